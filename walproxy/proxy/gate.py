"""Whether commits wait for this proxy: a pure function of settings of PostgreSQL and of its walsenders.

`synchronous_standby_names` is FIRST n or ANY n of a list. The candidates are the walsenders that stream, have reported
a flush position, and have a name of the list. A commit returns

    FIRST n     once the n candidates of the highest priority have confirmed it
    ANY n       once any n candidates have confirmed it
    fewer       never, until there are n candidates

So no commit returns without this proxy if fewer than n other candidates can exist, whatever they do, and whether the
proxy is connected or not. Otherwise it depends on the present candidates, and on the next one that connects. A name
other than the proxy's is expected to have one walsender, unless it has more now; `*` has any number. Source:
SyncRepGetSyncRecPtr and SyncRepGetStandbyPriority in PostgreSQL's syncrep.c; the syntax is that of syncrep_gram.y and
syncrep_scanner.l.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from walproxy.proposer.apply_rule import fold_name

_TOKEN = re.compile(
    r'[ \t\n\r\f\v]*(?:"(?P<quoted>(?:[^"]|"")*)"'
    r"|(?P<word>[A-Za-z_\u0080-\U0010ffff][A-Za-z_0-9$\u0080-\U0010ffff]*)"
    r"|(?P<number>[0-9]+)|(?P<mark>[,()])|(?P<any>\*))"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9$]*|[0-9]+")
_ANY_NAME = "*"
# The values of synchronous_commit that wait for no standby, as ALTER ROLE stores them: as they were written.
_NOT_WAITING = {"off": "off", "local": "local", "false": "off", "no": "off", "0": "off"}
_SHOWN_MAX = 5


class GateState(StrEnum):
    """Whether commits wait for this proxy."""

    GATED = "gated"  # No commit returns without it, and none needs another standby.
    WITH_OTHERS = "gated with others"  # None returns without it now; others are needed, too, or can replace it.
    NOT_GATED = "not gated"  # Commits return that it has not confirmed.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StandbyNames:
    """A value of synchronous_standby_names.

    Attributes:
        is_any: ANY instead of FIRST.
        count: the number of standbys for which a commit waits.
        names: folded; `*` stands for each name.
    """

    is_any: bool
    count: int
    names: tuple[str, ...]

    def priority(self, name: str) -> int:
        """Return the place of this name in the list, from 1 on; 0: it does not count. For ANY, all are equal."""
        folded = fold_name(name)
        for place, listed in enumerate(self.names, 1):
            if listed in (folded, _ANY_NAME):
                return place
        return 0


@dataclass(frozen=True, slots=True)
class Walsender:
    """A row of pg_stat_replication.

    Attributes:
        name: its application_name.
        is_ours: whether it streams to this proxy.
        counts: whether it streams and has reported a flush position; None: the role has no right to see that.
        is_chosen: whether PostgreSQL shows it as `sync` or `quorum`.
    """

    name: str
    is_ours: bool = False
    counts: bool | None = True
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Exemption:
    """A value of synchronous_commit for some sessions, that does not wait: a row of pg_db_role_setting.

    Attributes:
        role, database: empty: all.
        value: as it was written.
    """

    role: str
    database: str
    value: str

    def __str__(self) -> str:
        role = f"role {self.role}" if self.role else "every role"
        return f"{role} in database {self.database}" if self.database else role


@dataclass(frozen=True, slots=True)
class GateFacts:
    """What decides whether commits wait.

    Attributes:
        standby_names: the setting synchronous_standby_names.
        synchronous_commit: that of the server itself; None if settings of the asking role or database hide it.
        walsenders: all of them.
        exemptions: see Exemption.
        role: the role that has asked.
    """

    standby_names: str
    synchronous_commit: str | None
    walsenders: tuple[Walsender, ...]
    exemptions: tuple[Exemption, ...] = ()
    role: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """The result.

    Attributes:
        state: see GateState.
        reason: what is wrong or unknown, and what to do, in one line; empty if nothing is.
        hangs: commits wait for standbys that are not connected, even if this proxy confirms them.
        exempt: commits that do not wait, in one line; empty without any.
        is_by_level: not gated only because of the default of synchronous_commit: sessions with another value wait.
    """

    state: GateState
    reason: str = ""
    hangs: bool = False
    exempt: str = ""
    is_by_level: bool = False


def parse_standby_names(text: str) -> StandbyNames | None:
    """Parse synchronous_standby_names as PostgreSQL does; None if it is empty: no commit waits.

    Raises:
        ValueError: PostgreSQL would not accept it.
    """
    if not text:
        return None
    tokens = list(_tokens(text))
    kinds = [kind for kind, _ in tokens]
    is_any, count = False, 1
    has_keyword = kinds[:1] in (["any"], ["first"])
    number = tokens[has_keyword] if len(tokens) > has_keyword else ("", "")
    if has_keyword or kinds[:2] == ["number", "("]:
        if number[0] != "number" or kinds[has_keyword + 1 : has_keyword + 2] != ["("] or kinds[-1] != ")":
            raise ValueError(f"synchronous_standby_names has a syntax error: {text!r}")
        is_any, count = kinds[0] == "any", int(number[1])
        tokens = tokens[has_keyword + 2 : -1]
    names, commas = tokens[::2], tokens[1::2]
    is_list = len(tokens) % 2 and all(kind in ("name", "number") for kind, _ in names)
    if not is_list or any(kind != "," for kind, _ in commas) or count < 1:
        raise ValueError(f"synchronous_standby_names has a syntax error: {text!r}")
    return StandbyNames(is_any, count, tuple(fold_name(name) for _, name in names))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text): a `name`, a `number`, `any`, `first`, or a mark as its own kind."""
    position, end = 0, len(text.rstrip(" \t\n\r\f\v"))
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"synchronous_standby_names has a syntax error at {text[position:]!r}")
        position = match.end()
        found = match.group(match.lastgroup or "")
        if match.lastgroup == "word":
            yield (found.lower(), found) if found.lower() in ("any", "first") else ("name", found)
        elif match.lastgroup == "quoted":
            yield "name", found.replace('""', '"')
        elif match.lastgroup == "any":
            yield "name", found
        else:
            yield (found if match.lastgroup == "mark" else "number"), found


def classify(facts: GateFacts, application_name: str) -> Gate:
    """Return whether commits wait for the proxy of this name.

    Args:
        application_name: as configured; while the proxy streams, PostgreSQL's row has it.
    """
    every = [each for each in facts.exemptions if _waits_not(each.value) and not each.role and not each.database]
    some = [each for each in facts.exemptions if _waits_not(each.value) and each not in every]
    exempt = ""
    if some:
        shown = ", ".join(f"{each} ({each.value})" for each in some[:_SHOWN_MAX])
        more = f" and {len(some) - _SHOWN_MAX} more" if len(some) > _SHOWN_MAX else ""
        exempt = f"commits of {shown}{more} do not wait: synchronous_commit is set for them"
    if facts.synchronous_commit is None and not every:
        hidden = f"the server's own synchronous_commit is unknown: role {facts.role} or its database has another one"
        exempt = f"{exempt}; {hidden}" if exempt else hidden
    gate = _of_names(facts, application_name)
    if gate.state is not GateState.NOT_GATED:
        gate = _of_level(facts, bool(every)) or gate
    return replace(gate, exempt=exempt)


def _waits_not(synchronous_commit: str | None) -> bool:
    return synchronous_commit is not None and synchronous_commit.strip().lower() in _NOT_WAITING


def _of_level(facts: GateFacts, is_reset_for_all: bool) -> Gate | None:
    """Return NOT_GATED if sessions wait for no standby by default, else None."""
    if is_reset_for_all:
        return Gate(
            GateState.NOT_GATED,
            "synchronous_commit is set for every role; run ALTER ROLE ALL RESET synchronous_commit",
            is_by_level=True,
        )
    if _waits_not(facts.synchronous_commit):
        return Gate(
            GateState.NOT_GATED,
            f"synchronous_commit is {facts.synchronous_commit}; run ALTER SYSTEM SET synchronous_commit = 'on' and "
            "SELECT pg_reload_conf()",
            is_by_level=True,
        )
    return None


def _of_names(facts: GateFacts, application_name: str) -> Gate:
    """Return what synchronous_standby_names and the walsenders make of it."""
    setting = f"synchronous_standby_names is '{facts.standby_names}'"
    ours = next((each for each in facts.walsenders if each.is_ours), None)
    name = ours.name if ours is not None else application_name
    advice = f"run ALTER SYSTEM SET synchronous_standby_names = {_quoted(name)} and SELECT pg_reload_conf()"
    try:
        rule = parse_standby_names(facts.standby_names)
    except ValueError as error:
        return Gate(GateState.UNKNOWN, str(error))
    if rule is None:
        return Gate(GateState.NOT_GATED, f"{setting}; {advice}")
    others = [each for each in facts.walsenders if not each.is_ours and rule.priority(each.name)]
    priority = rule.priority(name)
    hangs = len(others) + bool(priority) < rule.count or (
        all(each.counts is not None for each in others)
        and sum(bool(each.counts) for each in others) + bool(priority) < rule.count
    )
    if not priority:
        waiting = ", and too few of these standbys stream: commits hang" if hangs else ""
        return Gate(GateState.NOT_GATED, f"{setting}, which does not contain {name}{waiting}; {advice}", hangs)
    needed = f"{setting}, and {_streaming(others, rule.count - 1)} connected: commits hang" if hangs else ""
    if _others_max(rule, name, others) < rule.count:
        return Gate(GateState.GATED if rule.count == 1 else GateState.WITH_OTHERS, needed, hangs)
    is_replaced = _is_replaced(rule, ours, priority, others)
    if is_replaced is None:
        return Gate(
            GateState.UNKNOWN,
            f"{setting}, and role {facts.role} may not see which standbys are chosen: GRANT pg_monitor TO {facts.role}",
        )
    if is_replaced:
        names = ", ".join(sorted({each.name for each in others if each.counts}))
        return Gate(GateState.NOT_GATED, f"{setting}, and commits return once {names} has them; {advice}")
    when = "another standby of the list connects" if _can_precede(rule, name) else "this proxy is disconnected"
    return Gate(
        GateState.WITH_OTHERS, needed or f"{setting}: commits do not wait for the quorum once {when}; {advice}", hangs
    )


def _others_max(rule: StandbyNames, name: str, others: Iterable[Walsender]) -> float:
    """Return how many candidates there can be besides the proxy.

    A walsender that does not stream is left out: the command connection of each spare has the proxy's name.
    """
    if _ANY_NAME in rule.names:
        return float("inf")
    present = Counter(fold_name(each.name) for each in others if each.counts is not False)
    return sum(max(1, present[each]) for each in {*rule.names} - {fold_name(name)}) + present[fold_name(name)]


def _can_precede(rule: StandbyNames, name: str) -> bool:
    """Return whether enough others can be chosen while this proxy streams."""
    if rule.is_any or rule.names[rule.priority(name) - 1] == _ANY_NAME:
        return True
    return len({*rule.names[: rule.priority(name) - 1]}) >= rule.count


def _is_replaced(rule: StandbyNames, ours: Walsender | None, priority: int, others: list[Walsender]) -> bool | None:
    """Return whether a commit returns now without the proxy; None: the role may not see that."""
    if any(each.counts is None for each in others):
        return None
    counting = [rule.priority(each.name) for each in others if each.counts]
    if rule.is_any or ours is None or ours.counts is False:
        return len(counting) >= rule.count
    ahead = sum(each < priority for each in counting)
    equal = counting.count(priority)
    if ahead < rule.count <= ahead + equal:
        return not ours.is_chosen  # PostgreSQL chooses by the number of a slot in its memory.
    return ahead >= rule.count


def _streaming(others: Iterable[Walsender], needed: int) -> str:
    count = sum(each.counts is not False for each in others)
    return f"{count} of {needed} other standbys {'is' if count == 1 else 'are'}"


def _quoted(name: str) -> str:
    """Return a name as the value of synchronous_standby_names, as a literal of SQL."""
    is_plain = _PLAIN_NAME.fullmatch(name) and name.lower() not in ("any", "first")
    listed = name if is_plain else '"{}"'.format(name.replace('"', '""'))
    return "'{}'".format(listed.replace("'", "''"))
