"""Measure the cost of the archive for commits: while it works, and while it is dead.

    none    safekeepers without an archive
    alive   they archive into a local folder
    dead    they did, and then it was taken away: uploads fail, and the WAL accumulates

Three clusters, one for each, that run the whole time; only one is loaded at a time. Every fdatasync of every safekeeper
takes 2 ms longer (slow_cluster.py).
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.lab.bench import commit_load
from walproxy.lab.bench.commit_cases import CommitFigures, CommitTurn
from walproxy.lab.bench.local_archive import LocalArchive
from walproxy.lab.bench.slow_cluster import slow_cluster
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.postgres.binaries import ServerBinaries

NONE, ALIVE, DEAD = "none", "alive", "dead"
CASES = (NONE, ALIVE, DEAD)
PARTIAL_INTERVAL_S = 5.0

_NOTICED_S_MAX = 60.0


class CommitResult(msgspec.Struct, frozen=True):
    """The medians of one case over the rounds.

    Attributes:
        to_none, to_alive: median of the rounds' ratios of `p50_ms` to that without an archive, and with one that lives.
        alive_low, alive_high: the lowest and the highest of the latter.
    """

    case: str
    clients: int
    tps: float
    p50_ms: float
    p99_ms: float
    to_none: float | None
    to_alive: float | None
    alive_low: float | None
    alive_high: float | None


@dataclass(frozen=True)
class ArchiveArm:
    """A cluster under one of CASES.

    Attributes:
        stands_at_lsn: how far its archive reaches and must not get any further, None if it may.
    """

    case: str
    cluster: LocalCluster
    stands_at_lsn: Lsn | None = None

    def take_turn(self, number: int, clients: int, seconds: float) -> CommitTurn:
        """Measure the load.

        Raises:
            WalproxyError: an archive that was to be dead is not.
        """
        times = commit_load.measure(self.cluster.postgres, clients, seconds)
        if self.stands_at_lsn is not None:
            reached_lsn, archive = self.cluster.archived_lsn(), self.cluster.archive_status()
            if reached_lsn > self.stands_at_lsn or (archive is not None and not archive["problem"]):
                raise WalproxyError(f"the archive was to be dead, and has got to {format_lsn(reached_lsn)}")
        return CommitTurn(number, self.case, clients, *times)


@contextmanager
def archive_arms(directory: Path, binaries: ServerBinaries) -> Iterator[dict[str, ArchiveArm]]:
    """Yield the clusters, by case, ready for the load."""
    archives = {case: LocalArchive(directory / f"archive-{case}") for case in (ALIVE, DEAD)}
    with contextlib.ExitStack() as stack:
        clusters = {}
        for case in CASES:
            options = archives[case].options(PARTIAL_INTERVAL_S) if case in archives else ()
            clusters[case] = stack.enter_context(slow_cluster(directory / case, binaries, *options))
        for case in archives:
            wait_until_archived(clusters[case])
        archives[DEAD].die()
        stands_at_lsn = wait_until_stuck(clusters[DEAD])
        yield {
            NONE: ArchiveArm(NONE, clusters[NONE]),
            ALIVE: ArchiveArm(ALIVE, clusters[ALIVE]),
            DEAD: ArchiveArm(DEAD, clusters[DEAD], stands_at_lsn),
        }


def compare_commits(turns: Sequence[CommitTurn]) -> list[CommitResult]:
    """Return the medians of each case, by clients and then in the order of CASES."""
    figures = CommitFigures(turns, CASES)
    results = []
    for cell in figures.cells:
        to_none = figures.p50_to(cell, NONE)
        to_alive = figures.p50_to(cell, ALIVE) if cell.case == DEAD else None
        results.append(
            CommitResult(
                *cell,
                *figures.medians(cell),
                to_none and to_none.median,
                to_alive and to_alive.median,
                to_alive and to_alive.low,
                to_alive and to_alive.high,
            )
        )
    return results


def wait_until_archived(cluster: LocalCluster, end_lsn: Lsn | None = None, timeout_s: float = 120.0) -> None:
    """Wait until the archive has the WAL below `end_lsn`, by default all that is committed now.

    Raises:
        LocalProcessFailed: it has not in time.
    """
    target_lsn = cluster.commit_lsn() if end_lsn is None else end_lsn
    what = f"the archive has the WAL below {format_lsn(target_lsn)}"
    cluster.wait_until(lambda: cluster.archived_lsn() >= target_lsn, what, timeout_s)


def wait_until_stuck(cluster: LocalCluster) -> Lsn:
    """Commit something that cannot be archived; wait until the archiver reports that; return the archive's position."""
    cluster.postgres.execute("INSERT INTO commit_load VALUES ('not archived')")
    cluster.wait_until(
        lambda: bool((cluster.archive_status() or {}).get("problem")), "the archiver has a problem", _NOTICED_S_MAX
    )
    return cluster.archived_lsn()
