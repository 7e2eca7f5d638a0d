"""Measure the cost of a slow or dead safekeeper for commits: any visible cost is a defect.

Three safekeepers whose disks are 2 ms slower than this machine's, one load, and alternately: all of them well; one
whose disk takes 200 ms; one that was killed. A quorum of two does not need the third. Reported is the median of each
case's commit time over that with all members well in the same round. Before each turn the member is restarted as the
case requires, and has caught up, so that only its present state is measured.
"""

from collections.abc import Sequence

import msgspec

from walproxy.lab.bench import commit_load
from walproxy.lab.bench.commit_cases import CommitCell, CommitFigures, CommitTurn
from walproxy.lab.bench.slow_cluster import SYNC_DELAY_MS
from walproxy.lab.cluster.local_cluster import LocalCluster

WELL, SLOW, DEAD = "all well", "one slow", "one dead"
CASES = (WELL, SLOW, DEAD)
SLOW_MS = 200.0
_MEMBER = 3
_CATCH_UP_TIMEOUT_S = 120.0
_DELAY_ARGUMENT = 2  # After -m and the name of the module.


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


def take_turn(cluster: LocalCluster, number: int, cell: CommitCell, seconds: float) -> CommitTurn:
    """Measure the load while a member is in the state of the case.

    Args:
        cluster: of slow_cluster.py.

    Raises:
        WalproxyError: a process has failed.
    """
    _start_member(cluster, SLOW_MS if cell.case == SLOW else SYNC_DELAY_MS)
    if cell.case == DEAD:
        cluster.safekeepers[_MEMBER].kill9()
    return CommitTurn(number, *cell, *commit_load.measure(cluster.postgres, cell.clients, seconds))


def compare_members(turns: Sequence[CommitTurn]) -> list[MemberResult]:
    """Return the medians of each case, by clients and then in the order of CASES."""
    figures = CommitFigures(turns, CASES)
    return [MemberResult(cell.case, cell.clients, *figures.against(cell, WELL)) for cell in figures.cells]


def wait_until_caught_up(cluster: LocalCluster, *safekeeper_ids: int) -> None:
    """Wait until the first proxy feeds these safekeepers, and they have everything.

    Raises:
        LocalProcessFailed: they do not within two minutes.
    """

    def have_caught_up() -> bool:
        status = cluster.proxy.status()
        rows = status["safekeepers"] if status is not None else []
        fed = {row["id"] for row in rows if row["state"] == "streaming" and row["lag_bytes"] == 0}
        return fed.issuperset(safekeeper_ids)

    what = f"safekeeper {', '.join(map(str, safekeeper_ids))} has caught up"
    cluster.wait_until(have_caught_up, what, _CATCH_UP_TIMEOUT_S)


def _start_member(cluster: LocalCluster, delay_ms: float) -> None:
    """Restart the member on a disk of this delay, and wait until it has caught up."""
    member = cluster.safekeepers[_MEMBER]
    member.kill9()
    member.arguments[_DELAY_ARGUMENT] = str(delay_ms)
    member.start()
    wait_until_caught_up(cluster, _MEMBER)
