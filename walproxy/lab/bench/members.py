"""Measure the cost of a slow or dead safekeeper for commits: any visible cost is a defect.

Three safekeepers whose disks are 2 ms slower than this machine's, one load, and alternately: all of them well; one
whose disk takes 200 ms; one that was killed. A quorum of two does not need the third. Reported is the median of each
case's commit time over that with all members well in the same round. Before each turn the member is restarted as the
case requires, and has caught up, so that only its present state is measured.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from walproxy.lab.bench import commit_load
from walproxy.lab.bench.arms import make_server
from walproxy.lab.bench.rounds import median, ratio
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.testing.faulty_disk import DiskFaults, write_faults
from walproxy.postgres.binaries import ServerBinaries

WELL, SLOW, DEAD = "all well", "one slow", "one dead"
CASES = (WELL, SLOW, DEAD)
SYNC_DELAY_MS = 2.0
"""Of every disk: slower than this machine's own, so that the delay decides, and not the noise."""
SLOW_MS = 200.0
_MEMBER = 3
_CATCH_UP_TIMEOUT_S = 120.0
_DELAY_ARGUMENT = 2  # After -m and the name of the module.


class MemberCell(NamedTuple):
    """A cell that is measured once a round: a case, and how many clients commit."""

    case: str
    clients: int


class MemberTurn(msgspec.Struct, frozen=True):
    """The measurements of one turn."""

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


@contextmanager
def slow_cluster(directory: Path, binaries: ServerBinaries) -> Iterator[LocalCluster]:
    """Yield a running cluster of safekeepers on slow disks, ready for the load of commit_load.py."""
    postgres = make_server(directory, binaries)
    disk = directory / "disk.json"
    write_faults(disk, DiskFaults(fsync_ms=SYNC_DELAY_MS))
    program = ("-m", "walproxy.lab.testing.faulty_disk", str(disk), "run")
    with LocalCluster(directory, postgres, safekeeper_program=program) as cluster:
        cluster.start()
        commit_load.prepare(postgres)
        yield cluster


def take_turn(cluster: LocalCluster, number: int, cell: MemberCell, seconds: float) -> MemberTurn:
    """Measure the load while a member is in the state of the case.

    Args:
        cluster: of slow_cluster().

    Raises:
        WalproxyError: a process has failed.
    """
    _start_member(cluster, SLOW_MS if cell.case == SLOW else SYNC_DELAY_MS)
    if cell.case == DEAD:
        cluster.safekeepers[_MEMBER].kill9()
    return MemberTurn(number, *cell, *commit_load.measure(cluster.postgres, cell.clients, seconds))


def cells(clients: Iterable[int]) -> list[MemberCell]:
    """Return all that is measured in a round, by clients and then in the order of CASES."""
    return [MemberCell(case, count) for count in clients for case in CASES]


def compare_members(turns: Sequence[MemberTurn]) -> list[MemberResult]:
    """Return the medians of each case, by clients and then in the order of CASES."""
    by_place = {(turn.round, MemberCell(turn.case, turn.clients)): turn for turn in turns}
    tps = {place: turn.tps for place, turn in by_place.items()}
    p50_ms = {place: turn.p50_ms for place, turn in by_place.items()}
    p99_ms = {place: turn.p99_ms for place, turn in by_place.items()}
    measured = {cell for _, cell in by_place}
    results = []
    for cell in cells(sorted({cell.clients for cell in measured})):
        if cell not in measured:
            continue
        well = cell._replace(case=WELL)
        usual, slowest = ratio(p50_ms, cell, well), ratio(p99_ms, cell, well)
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


def wait_until_caught_up(cluster: LocalCluster, *safekeeper_ids: int) -> None:
    """Wait until the first proxy feeds these safekeepers, and they have everything.

    Raises:
        LocalProcessFailed: they do not within two minutes.
    """

    def have_caught_up() -> bool:
        status = cluster.proxy.proxy_status()
        rows = status.safekeepers if status is not None else []
        fed = {row.id for row in rows if row.state == "streaming" and row.lag_bytes == 0}
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
