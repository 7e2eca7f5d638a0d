"""What a safekeeper that is slow or dead costs those who commit: nothing that can be felt, or it is a defect.

Three safekeepers whose disks are 2 ms slower than this machine's, one load, and in turn: all of them well; one whose
disk takes 200 ms; one that was killed. A quorum of two does not need the third. Reported is the median of each case's
commit time over that with all members well in the same round. Before each turn the member is started anew, as the case
wants it, and has caught up, so that only its present state is measured.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from walproxy.bench import commit_load
from walproxy.bench.rounds import median, ratio
from walproxy.bench.slow_cluster import SYNC_DELAY_MS
from walproxy.local_cluster import LocalCluster

WELL, SLOW, DEAD = "all well", "one slow", "one dead"
CASES = (WELL, SLOW, DEAD)
SLOW_MS = 200.0
_MEMBER = 3
_CATCH_UP_TIMEOUT_S = 120.0
_DELAY_ARGUMENT = 2  # Behind -m and the name of the module.


class MemberCell(NamedTuple):
    """What is measured once a round: one of CASES, and how many clients commit."""

    case: str
    clients: int


class MemberTurn(msgspec.Struct, frozen=True):
    """What one turn measured."""

    round: int
    case: str
    clients: int
    tps: float
    p50_ms: float
    p99_ms: float


class MemberResult(msgspec.Struct, frozen=True):
    """The medians of one case; `to_well` is that of the rounds' ratios of `p50_ms`, between `low` and `high`.

    `p99_to_well` is the same of `p99_ms`.
    """

    case: str
    clients: int
    tps: float
    p50_ms: float
    p99_ms: float
    to_well: float | None
    low: float | None
    high: float | None
    p99_to_well: float | None


def cells(clients: Sequence[int]) -> list[MemberCell]:
    """Return all that is measured in a round."""
    return [MemberCell(case, count) for count in clients for case in CASES]


def take_turn(cluster: LocalCluster, number: int, cell: MemberCell, seconds: float) -> MemberTurn:
    """Measure the load while a member is as the case wants it.

    Args:
        cluster: of slow_cluster.py.

    Raises:
        WalproxyError: a process has failed.
    """
    with _member(cluster, cell.case):
        times = commit_load.measure(cluster.postgres, cell.clients, seconds)
    return MemberTurn(number, *cell, *times)


def compare_members(turns: Sequence[MemberTurn]) -> list[MemberResult]:
    """Return the medians of each case, by clients and then in the order of CASES."""
    places = {(turn.round, MemberCell(turn.case, turn.clients)): turn for turn in turns}
    tps = {place: turn.tps for place, turn in places.items()}
    p50_ms = {place: turn.p50_ms for place, turn in places.items()}
    p99_ms = {place: turn.p99_ms for place, turn in places.items()}
    results = []
    for cell in cells(sorted({turn.clients for turn in turns})):
        if all(each != cell for _, each in places):
            continue
        base = cell._replace(case=WELL)
        usual, slowest = ratio(p50_ms, cell, base), ratio(p99_ms, cell, base)
        results.append(
            MemberResult(
                *cell,
                median(tps, cell),
                median(p50_ms, cell),
                median(p99_ms, cell),
                usual and usual.median,
                usual and usual.low,
                usual and usual.high,
                slowest and slowest.median,
            )
        )
    return results


@contextmanager
def _member(cluster: LocalCluster, case: str) -> Iterator[None]:
    """Let one member be as the case wants it while the block runs; it has caught up when the block begins."""
    _start_member(cluster, SLOW_MS if case == SLOW else SYNC_DELAY_MS)
    if case == DEAD:
        cluster.safekeepers[_MEMBER].kill9()
    yield


def _start_member(cluster: LocalCluster, delay_ms: float) -> None:
    member = cluster.safekeepers[_MEMBER]
    member.kill9()
    member.arguments[_DELAY_ARGUMENT] = str(delay_ms)
    member.start()

    def has_caught_up() -> bool:
        status = cluster.proxy.status()
        rows = status["safekeepers"] if status is not None else []
        return any(row["id"] == _MEMBER and row["state"] == "streaming" and row["lag_bytes"] == 0 for row in rows)

    cluster.wait_until(has_caught_up, f"safekeeper {_MEMBER} has caught up", _CATCH_UP_TIMEOUT_S)
