"""What each level of synchronous_commit waits for now, how long that takes, and what each loss would cost.

A pure function of the proxy's /status. The time is from the arrival of WAL at the proxy; the primary's own flush comes
in addition at every level but `off`, and the proxy cannot measure it. A loss is of a machine with its disk. Amounts
are bytes of WAL as of this moment, and estimates: WAL that the primary has not sent yet is in none of them.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from safekeeper.base.lsn import Lsn, parse_lsn
from safekeeper.base.status_fields import RecentTimes
from walproxy.proxy.status_fields import CommitLatencies, ListedSafekeeper, ProxyStatus

NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Slowest:
    """The safekeeper or standby that replies last."""

    name: str  # E.g. `safekeeper 3`, `standby standby1`.
    problem: str  # Why it does not take part; empty if it does.
    p50_s: float | None  # Of its replies; None if unknown, and for a standby.
    p99_s: float | None
    lag_bytes: int | None  # WAL that it lacks; None if unknown.
    is_needed: bool  # A commit waits for it: the others are not enough.


@dataclass(frozen=True, slots=True)
class Losses:
    """What is lost of commits that have returned, in words."""

    primary: str  # If the primary is lost now.
    primary_and_minority: str  # If a minority of the members is lost with it: those that have most.
    quorum_disks: str  # If the disks of a commit quorum are lost, those that have most.


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level: `unknown` if another proxy serves, no term is led, or PostgreSQL's settings are unknown."""

    level: str  # A value of synchronous_commit.
    state: str  # `ok`, `blocked`, `not gated` (it does not wait for the safekeepers), or `unknown`.
    waits_for: str  # In words.
    problem: str  # Why it is not ok; empty if it is.
    slowest: Slowest | None  # None if the level waits for no safekeeper, or none is known.
    p50_s: float | None  # Expected for the safekeepers and standbys; None if not measured, and for `off` and `local`.
    p99_s: float | None
    losses: Losses


def levels_of(status: ProxyStatus) -> list[LevelRow]:
    """Return a row for each level, from the content of /status; from `off` to `remote_apply`."""
    members = members_of(status)
    count, quorum, rule = len(members), status.quorum, status.apply_rule
    state, problem = _remote_state(status)
    apply_state, apply_problem = state, problem
    if state == "ok" and rule and status.apply_problem:
        apply_state, apply_problem = "blocked", status.apply_problem
    slowest = _slowest_member(members, status)
    replayed_by = f", and that {rule} replayed it" if rule else "; no standby is designated, so it is the same as on"
    times = status.times
    on = _losses_of_quorum(status, members)
    own = [
        LevelRow("off", "ok", "nothing", "", None, None, None, _losses_of_primary(status, is_off=True)),
        LevelRow("local", "ok", "the primary's disk", "", None, None, None, _losses_of_primary(status)),
    ]
    if state == "not gated":
        return [
            *own,
            *(
                LevelRow(level, state, "no safekeeper", problem, None, None, None, _losses_of_primary(status))
                for level in ("remote_write", "on", "remote_apply")
            ),
        ]
    return [
        *own,
        LevelRow(
            "remote_write",
            state,
            f"the primary's disk, and that {quorum} of {count} safekeepers received it",
            problem,
            slowest,
            *_expected(times.write),
            _losses_of_receipt(status, members, on),
        ),
        LevelRow(
            "on",
            state,
            f"the primary's disk, and the disks of {quorum} of {count} safekeepers",
            problem,
            slowest,
            *_expected(times.quorum),
            on,
        ),
        LevelRow(
            "remote_apply",
            apply_state,
            f"the primary's disk, the disks of {quorum} of {count} safekeepers{replayed_by}",
            apply_problem,
            (_slowest_standby(status) if rule else None) or slowest,
            *_expected(times.apply if rule else times.quorum),
            on,
        ),
    ]


def members_of(status: ProxyStatus) -> list[ListedSafekeeper]:
    """Return the safekeepers that count for a quorum; all that are listed while no membership is known."""
    ids = status.members
    return [each for each in status.safekeepers if ids is None or each.id in ids]


def slowest_first(safekeepers: list[ListedSafekeeper], times: CommitLatencies) -> list[ListedSafekeeper]:
    """Return the safekeepers of /status, those that do not stream first, then by the p50 of their replies."""

    def rank(each: ListedSafekeeper) -> tuple[bool, float, int]:
        return each.state == "streaming", -(times.p50_of(each.id) or 0.0), each.id

    return sorted(safekeepers, key=rank)


def _remote_state(status: ProxyStatus) -> tuple[str, str]:
    """Return the state of the levels that wait for safekeepers, and why it is not ok."""
    gate = status.gate
    if gate is not None and gate.state == "not gated" and not gate.is_by_level:
        return "not gated", gate.reason or ""
    if status.state == "streaming" and gate is not None and (gate.hangs or gate.state == "unknown"):
        return "blocked" if gate.hangs else "unknown", gate.reason or ""
    if status.state == "streaming":
        return "ok", ""
    if status.spare:
        return "unknown", "this proxy is a spare: request the page of the proxy that leads"
    lost = status.quorum_lost
    if lost is not None:
        missing = "; ".join(f"safekeeper {each.id}: {each.problem}" for each in lost.missing)
        return "blocked", f"no quorum: members that take part: {lost.present}, needed: {lost.needed}; {missing}"
    primary = status.primary.problem
    return "blocked", f"the proxy is {status.state}" + (f": {primary}" if primary else "")


def _expected(times: RecentTimes) -> tuple[float | None, float | None]:
    return times.p50_s, times.p99_s


def _slowest_member(members: list[ListedSafekeeper], status: ProxyStatus) -> Slowest | None:
    ordered = slowest_first(members, status.times)
    if not ordered:
        return None
    worst = ordered[0]
    times = status.times.members.get(str(worst.id))
    others = sum(each.state == "streaming" for each in ordered[1:])
    problem = "" if worst.state == "streaming" else worst.problem or worst.state
    return Slowest(
        f"safekeeper {worst.id}",
        problem,
        *(_expected(times) if times is not None else (None, None)),
        worst.lag_bytes,
        others < status.quorum,
    )


def _slowest_standby(status: ProxyStatus) -> Slowest | None:
    """Return the designated standby that has replayed least; None before one was seen."""
    designated = [each for each in status.standbys if each.designated]
    if not designated:
        return None
    worst = min(designated, key=lambda each: (each.connected, parse_lsn(each.apply_lsn), each.name))
    problem = "" if worst.connected else "it is not streaming"
    # With `ANY k` the others may be enough: then nothing is blocked although this one is gone.
    is_needed = bool(status.apply_problem) or len(designated) == 1
    return Slowest(f"standby {worst.name}", problem, None, None, worst.apply_lag_bytes, is_needed)


def _losses_of_primary(status: ProxyStatus, *, is_off: bool = False) -> Losses:
    """Return what is lost of commits that waited for no safekeeper."""
    unsafe_bytes = max(0, parse_lsn(status.received_lsn) - parse_lsn(status.commit_lsn))
    known = parse_lsn(status.commit_lsn) > 0
    amount = f"now {_in_words(unsafe_bytes)} of WAL or more" if known else "how much is unknown"
    text = f"commits that no quorum has, {amount}"
    if is_off:
        text += "; also by a crash those of the last 3 x wal_writer_delay"
    return Losses(text, text, f"{NOTHING} while the primary lives")


def _losses_of_quorum(status: ProxyStatus, members: list[ListedSafekeeper]) -> Losses:
    """Return what is lost of commits that are on the disks of a quorum."""
    commit_lsn, quorum = parse_lsn(status.commit_lsn), status.quorum
    if not commit_lsn or not members:
        unknown = "unknown: this proxy leads no term"
        return Losses(unknown, unknown, unknown)
    flush_lsns = sorted((parse_lsn(each.flush_lsn) for each in members), reverse=True)
    kept_lsn: Lsn = max(
        flush_lsns[quorum] if len(flush_lsns) > quorum else 0,
        max((parse_lsn(each.flush_lsn) for each in status.standbys), default=0),
    )
    if kept_lsn >= commit_lsn:
        disks = f"{NOTHING}: another member or a standby has all WAL"
    else:
        amount = f"{_in_words(commit_lsn - kept_lsn)} of WAL" if kept_lsn else "all WAL that is not archived"
        disks = f"{NOTHING} while the primary lives; with it {amount}"
    return Losses(NOTHING, _with_minority(status, members, (each.flush_lsn for each in members), commit_lsn), disks)


def _losses_of_receipt(status: ProxyStatus, members: list[ListedSafekeeper], on: Losses) -> Losses:
    """Return what is lost of commits that a quorum has received: as with `on`, and what is not on its disks yet."""
    write_lsn, commit_lsn = parse_lsn(status.write_lsn), parse_lsn(status.commit_lsn)
    if not commit_lsn or not members:
        return on
    power = f"; by a power failure of them and of the primary {_in_words(max(0, write_lsn - commit_lsn))} more"
    minority = _with_minority(status, members, (each.write_lsn for each in members), max(write_lsn, commit_lsn))
    return Losses(on.primary, minority, on.quorum_disks + power)


def _with_minority(status: ProxyStatus, members: list[ListedSafekeeper], positions: Iterable[str], lsn: Lsn) -> str:
    """Return what is lost with the primary and a minority, of WAL below `lsn`.

    Args:
        positions: up to where each member has WAL.
    """
    minority = (len(members) - 1) // 2
    holders = sum(parse_lsn(position) >= lsn for position in positions)
    streaming = sum(each.state == "streaming" for each in members)
    if holders <= minority:
        return f"the newest commits: {holders} of {len(members)} members have them"
    if streaming - minority < max(status.quorum, status.elect_quorum):
        return f"{NOTHING}, but no quorum remains: {streaming} of {len(members)} members stream"
    return NOTHING


def _in_words(count: int) -> str:
    return f"{count} bytes" if count != 1 else "1 byte"
