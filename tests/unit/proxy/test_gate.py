"""Whether commits wait for the proxy: PostgreSQL's syntax, a model of its rule, and the lines that operators read."""

from collections.abc import Iterable, Iterator
from itertools import chain, combinations, product
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from walproxy.proxy.gate import (
    Exemption,
    Gate,
    GateFacts,
    GateState,
    StandbyNames,
    Walsender,
    classify,
    parse_standby_names,
)

OURS = Walsender("walproxy", is_ours=True, is_chosen=True)
GATED, WITH_OTHERS, NOT_GATED, UNKNOWN = GateState.GATED, GateState.WITH_OTHERS, GateState.NOT_GATED, GateState.UNKNOWN


def gate(setting: str, *others: str, ours: Walsender | None = OURS, counts: bool | None = True) -> Gate:
    """Return the result for walsenders of these names beside the proxy's."""
    walsenders = [Walsender(name, counts=counts) for name in others]
    return classify(
        GateFacts(setting, "on", (*([ours] if ours is not None else []), *walsenders), role="rep"), "walproxy"
    )


# The syntax.

PARSED = {
    "walproxy": (False, 1, ("walproxy",)),
    " WalProxy ,\tb ": (False, 1, ("walproxy", "b")),
    "2 (a, b)": (False, 2, ("a", "b")),
    "FIRST 2(a,b)": (False, 2, ("a", "b")),
    "first\f1 (a)": (False, 1, ("a",)),
    "Any 02 (a, b, *)": (True, 2, ("a", "b", "*")),
    "*": (False, 1, ("*",)),
    '"*"': (False, 1, ("*",)),
    '"A ""b"" (c), d", 7': (False, 1, ('a "b" (c), d', "7")),
    '"any", "first"': (False, 1, ("any", "first")),
    "anyone, firsts": (False, 1, ("anyone", "firsts")),
    "1, 2": (False, 1, ("1", "2")),
    "3": (False, 1, ("3",)),
    '""': (False, 1, ("",)),
    "a$1, é": (False, 1, ("a$1", "é")),
}
REFUSED = [
    *(" ", "a b", "a,", ",a", "any", "any, b", "ANY 1", "ANY 1 ()", "ANY (a)", "ANY a (b)", "FIRST 0 (a)", "0 (a)"),
    *('"a', "a-b", "2 (a", "2 a)", "(a)", "1 (a) b", "ANY 1 (a), b", "1a", "a'b", "FIRST 1 FIRST (a)", "(", "1 ("),
]


@pytest.mark.parametrize(("text", "wanted"), PARSED.items())
def test_a_setting_is_parsed_as_postgresql_parses_it(text: str, wanted: tuple[bool, int, tuple[str, ...]]) -> None:
    assert parse_standby_names(text) == StandbyNames(*wanted)


@pytest.mark.parametrize("text", REFUSED)
def test_a_setting_that_postgresql_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="syntax error"):
        parse_standby_names(text)
    assert gate(text).state is UNKNOWN


def test_an_empty_setting_names_no_standby() -> None:
    assert parse_standby_names("") is None


# A model of PostgreSQL's rule, by brute force.


class Row(NamedTuple):
    """A walsender that counts: its name, whether it is the proxy's, and its place in PostgreSQL's memory."""

    name: str
    is_ours: bool
    slot: int


def priority(rule: StandbyNames, name: str) -> int:
    """SyncRepGetStandbyPriority, for names in lower case."""
    for place, listed in enumerate(rule.names):
        if listed in (name, "*"):
            return 1 if rule.is_any else place + 1
    return 0


def chosen(rule: StandbyNames, rows: Iterable[Row]) -> list[Row]:
    """SyncRepGetCandidateStandbys."""
    found = [row for row in rows if priority(rule, row.name)]
    if not rule.is_any:
        found = sorted(found, key=lambda row: (priority(rule, row.name), row.slot))[: rule.count]
    return found


def confirmed(rule: StandbyNames, rows: list[Row], flushed: set[Row]) -> bool:
    """SyncRepGetSyncRecPtr: whether a commit returns that `flushed` have, and the others have not."""
    found = chosen(rule, rows)
    if len(found) < rule.count:
        return False
    positions = sorted((row in flushed for row in found), reverse=True)
    return positions[rule.count - 1] if rule.is_any else positions[-1]


def returns_without_us(rule: StandbyNames, rows: list[Row]) -> bool:
    return confirmed(rule, rows, {row for row in rows if not row.is_ours})


def worlds(rule: StandbyNames, ours: Row, others: list[Row]) -> Iterator[list[Row]]:
    """Yield each set of walsenders that there may be later, in each order."""
    names: list[str] = []
    for name in dict.fromkeys([*rule.names, *(row.name for row in others)]):
        present = sum(row.name == name for row in others)
        if name == "*":
            names += ["stranger"] * rule.count
        elif priority(rule, name):
            names += [name] * (present if name == ours.name else max(1, present))
    for size in range(len(names) + 1):
        for some in {*combinations(sorted(names), size)}:
            rows = [Row(name, False, 2 * slot) for slot, name in enumerate(some)]
            yield rows
            for slot in (-1, 2 * size + 1):  # Of equal priority: before all, or after all.
                yield [*rows, ours._replace(slot=slot)]


NAMES = st.sampled_from(["walproxy", "a", "b", "*"])


@settings(max_examples=400, deadline=None)
@given(
    is_any=st.booleans(),
    count=st.integers(1, 3),
    names=st.lists(NAMES, min_size=1, max_size=3),
    others=st.lists(st.sampled_from(["walproxy", "a", "b", "c"]), max_size=3),
    slot=st.integers(0, 3),
    connected=st.booleans(),
)
@example(is_any=False, count=1, names=["a", "walproxy"], others=["a"], slot=0, connected=True)
@example(is_any=True, count=2, names=["walproxy", "a", "b"], others=["a", "b"], slot=0, connected=True)
@example(is_any=False, count=1, names=["walproxy", "a"], others=["a"], slot=0, connected=False)
@example(is_any=False, count=2, names=["a", "walproxy"], others=["a", "a"], slot=0, connected=True)
@example(is_any=False, count=1, names=["*"], others=["c"], slot=1, connected=True)
def test_the_result_is_that_of_postgresqls_rule(
    is_any: bool, count: int, names: list[str], others: list[str], slot: int, connected: bool
) -> None:
    rule = StandbyNames(is_any, count, tuple(names))
    ours = Row("walproxy", True, min(slot, len(others)))
    order = [*others[: ours.slot], None, *others[ours.slot :]]
    rows = [Row(name, False, place) for place, name in enumerate(order) if name is not None]
    present = [*rows, ours] if connected else rows
    text = f"{'ANY' if is_any else 'FIRST'} {count} ({', '.join(names)})"
    shown = Walsender("walproxy", is_ours=True, counts=connected, is_chosen=connected and ours in chosen(rule, present))
    result = gate(text, *others, ours=shown)

    if not priority(rule, "walproxy"):
        assert result.state is NOT_GATED
        assert result.hangs is not confirmed(rule, rows, {*rows})
        return
    assert (result.state is NOT_GATED) is returns_without_us(rule, present)
    is_for_ever = not any(returns_without_us(rule, world) for world in worlds(rule, ours, rows))
    if is_for_ever:
        assert result.state is (GATED if count == 1 else WITH_OTHERS)
        assert bool(result.reason) is result.hangs
    elif result.state is not NOT_GATED:
        assert result.state is WITH_OTHERS and result.reason
    everybody = [*rows, ours]
    assert result.hangs is not confirmed(rule, everybody, {*everybody})
    if result.state is GATED:
        assert not result.reason


def test_without_the_right_to_see_other_walsenders_the_result_is_the_same_or_unknown() -> None:
    texts = ["walproxy", "walproxy, a", "a, walproxy", "*", "ANY 2 (walproxy, a, b)", "FIRST 2 (walproxy, a)", "b", ""]
    names = ["a", "b", "walproxy"]
    for text, others in product(texts, chain.from_iterable(combinations(names, size) for size in range(4))):
        blind = gate(text, *others, ours=Walsender("walproxy", is_ours=True, counts=None), counts=None)
        seen = {gate(text, *others, counts=counts).state for counts in (True, False)}
        assert blind.state is UNKNOWN or {blind.state} == seen, (text, others)
    assert gate("walproxy", ours=Walsender("walproxy", is_ours=True, counts=None)).state is GATED
    blind = gate("walproxy, a", "a", counts=None)
    assert "GRANT pg_monitor TO rep" in blind.reason and blind.state is UNKNOWN


# What an operator reads.


@pytest.mark.parametrize(
    ("setting", "others", "state", "text"),
    [
        ("walproxy", "", GATED, ""),
        ("WALPROXY", "a b", GATED, ""),
        (
            "",
            "",
            NOT_GATED,
            "synchronous_standby_names is ''; run ALTER SYSTEM SET synchronous_standby_names = 'walproxy'",
        ),
        ("a", "a", NOT_GATED, "does not contain walproxy; run"),
        ("a", "", NOT_GATED, "does not contain walproxy, and too few of these standbys stream: commits hang; run"),
        ("a, walproxy", "a", NOT_GATED, "commits return once a has them; run"),
        ("a, walproxy", "", WITH_OTHERS, "do not wait for the quorum once another standby of the list connects; run"),
        ("walproxy, a", "a", WITH_OTHERS, "do not wait for the quorum once this proxy is disconnected; run"),
        ("*", "", WITH_OTHERS, "do not wait for the quorum once another standby of the list connects; run"),
        ("ANY 1 (*)", "b", NOT_GATED, "commits return once b has them; run"),
        ("ANY 2 (walproxy, a, b)", "a b", NOT_GATED, "commits return once a, b has them; run"),
        ("ANY 2 (walproxy, a, b)", "a", WITH_OTHERS, "once another standby of the list connects; run"),
        ("FIRST 2 (walproxy, a)", "a", WITH_OTHERS, ""),
        ("FIRST 2 (walproxy, a)", "", WITH_OTHERS, "and 0 of 1 other standbys are connected: commits hang"),
        ("FIRST 3 (walproxy, a)", "a", WITH_OTHERS, "and 1 of 2 other standbys is connected: commits hang"),
    ],
)
def test_a_setting_is_judged_with_the_reason_and_the_command(
    setting: str, others: str, state: GateState, text: str
) -> None:
    result = gate(setting, *others.split())
    assert result.state is state
    assert text in result.reason and bool(text) is bool(result.reason)
    assert result.hangs is ("hang" in text)


def test_a_proxy_that_is_disconnected_is_replaced_by_the_next_standby_of_the_list() -> None:
    assert gate("walproxy, a", "a", ours=None).state is NOT_GATED
    assert gate("walproxy, a", ours=None).state is WITH_OTHERS
    assert gate("walproxy", ours=None).state is GATED
    assert gate("FIRST 2 (walproxy, a)", "a", ours=None).state is WITH_OTHERS
    not_yet = Walsender("walproxy", is_ours=True, counts=False)
    assert gate("walproxy, a", "a", ours=not_yet).state is NOT_GATED


def test_the_command_connection_of_a_spare_replaces_nothing() -> None:
    assert gate("walproxy", "walproxy", counts=False).state is GATED
    assert gate("walproxy", "walproxy", counts=True).state is WITH_OTHERS


def test_the_name_in_the_command_is_quoted_where_postgresql_needs_it() -> None:
    for name, wanted in (("my-proxy", "'\"my-proxy\"'"), ("any", "'\"any\"'"), ("it's", "'\"it''s\"'"), ("p1", "'p1'")):
        (problem,) = {classify(GateFacts("", "on", ()), name).reason}
        assert f"synchronous_standby_names = {wanted} and" in problem
        assert parse_standby_names(wanted[1:-1].replace("''", "'")) == StandbyNames(False, 1, (name,))


@pytest.mark.parametrize("value", ["off", "local", "OFF", "false", "no", "0"])
def test_a_level_that_waits_for_no_standby_lets_commits_pass(value: str) -> None:
    result = classify(GateFacts("walproxy", value, (OURS,)), "walproxy")
    assert result.state is NOT_GATED and f"synchronous_commit is {value}; run" in result.reason
    for_all = GateFacts("walproxy", None, (OURS,), (Exemption("", "", value),))
    assert classify(for_all, "walproxy").state is NOT_GATED and result.is_by_level
    assert not classify(GateFacts("b", value, (OURS,)), "walproxy").is_by_level
    some = GateFacts("walproxy", "on", (OURS,), (Exemption("etl", "", value), Exemption("", "logs", value)))
    result = classify(some, "walproxy")
    assert result.state is GATED and not result.reason
    assert result.exempt == (
        f"commits of role etl ({value}), every role in database logs ({value}) do not wait: synchronous_commit is set "
        "for them"
    )


def test_a_level_that_waits_is_no_exemption_and_many_exemptions_are_not_all_listed() -> None:
    for value in ("on", "remote_write", "remote_apply", "1"):
        assert not classify(GateFacts("walproxy", value, (OURS,), (Exemption("a", "b", value),)), "walproxy").exempt
    hidden = classify(GateFacts("walproxy", None, (OURS,), role="rep"), "walproxy")
    assert hidden.state is GATED and hidden.exempt.startswith(
        "the server's own synchronous_commit is unknown: role rep"
    )
    many = tuple(Exemption(f"r{number}", "d", "off") for number in range(8))
    assert "role r4 in database d (off) and 3 more do" in classify(GateFacts("walproxy", "on", (), many), "w").exempt
