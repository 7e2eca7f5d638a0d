"""An archive that is dead for minutes under load, and comes back: commit times minute by minute, and what piles up.

    before    one minute with an archive that is well
    dead      for the requested number of minutes
    revived   the archive is back, and the archiver catches up by itself while the load goes on
    after     one minute with an archive that is well

Every fdatasync of every safekeeper takes 2 ms longer (slow_cluster.py). Each number of clients has such a stretch, all
on one cluster.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from walproxy.lab.bench import commit_load
from walproxy.lab.bench.archive_commits import PARTIAL_INTERVAL_S, wait_until_archived
from walproxy.lab.bench.commit_load import CommitTimes
from walproxy.lab.bench.local_archive import LocalArchive
from walproxy.lab.bench.slow_cluster import slow_cluster
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.postgres.binaries import ServerBinaries

BEFORE, DEAD, REVIVED, AFTER = "before", "dead", "revived", "after"

_MINUTE_S = 60.0
_CATCH_UP_S_MAX = 600.0


class Minute(msgspec.Struct, frozen=True):
    """The measurements of one minute of the load.

    Attributes:
        number: within its phase, from 1.
        unarchived_bytes: committed WAL that the archive lacked at its end.
    """

    clients: int
    phase: str
    number: int
    tps: float
    p50_ms: float
    p99_ms: float
    unarchived_bytes: int


class OutageResult(msgspec.Struct, frozen=True):
    """A stretch as a whole.

    Attributes:
        alive_ms, dead_ms: medians of the minutes' `p50_ms`, with the archive well (before and after) and dead.
        ratio: of the latter to the former.
        worst_ratio: the same of the minute that was the slowest while the archive was dead.
        piled_up_bytes: committed WAL that the archive lacked when it came back.
        caught_up_s: from then until the archive had all of it.
    """

    clients: int
    dead_minutes: float
    alive_ms: float
    dead_ms: float
    ratio: float
    worst_ratio: float
    piled_up_bytes: int
    caught_up_s: float


class OutageCluster(NamedTuple):
    """A cluster, and its archive."""

    cluster: LocalCluster
    archive: LocalArchive


@contextmanager
def outage_cluster(directory: Path, binaries: ServerBinaries) -> Iterator[OutageCluster]:
    """Yield a cluster that archives, ready for the load."""
    archive = LocalArchive(directory / "archive")
    options = archive.options(PARTIAL_INTERVAL_S)
    with slow_cluster(directory / "cluster", binaries, *options) as cluster:
        wait_until_archived(cluster)
        yield OutageCluster(cluster, archive)


def minutes_of(dead_minutes: float) -> list[float]:
    """Return how many seconds each part of the dead phase has: minutes, and what is left."""
    whole, rest_s = divmod(dead_minutes * _MINUTE_S, _MINUTE_S)
    return [_MINUTE_S] * round(whole) + ([rest_s] if rest_s else [])


def run_stretch(
    subject: OutageCluster, clients: int, dead_minutes: float, begin: Callable[[str], None]
) -> tuple[list[Minute], OutageResult]:
    """Run one stretch; return its minutes, and the whole.

    Args:
        dead_minutes: how long the archive is dead; if that is less than one, the other minutes are so short, too.
        begin: called with a word when something begins that takes up to a minute.

    Raises:
        LocalProcessFailed: the archiver has not caught up within ten minutes.
    """
    cluster, archive = subject
    minute_s = min(_MINUTE_S, dead_minutes * _MINUTE_S)
    minutes: list[Minute] = []

    def note(phase: str, number: int, times: CommitTimes) -> None:
        minutes.append(Minute(clients, phase, number, *times, _unarchived_bytes(cluster)))

    def load(phase: str, number: int, seconds: float) -> None:
        begin(f"{clients} clients, {phase}, minute {number}")
        note(phase, number, commit_load.measure(cluster.postgres, clients, seconds))

    load(BEFORE, 1, minute_s)
    archive.die()
    for number, seconds in enumerate(minutes_of(dead_minutes), 1):
        load(DEAD, number, seconds)
    piled_up_bytes = minutes[-1].unarchived_bytes
    begin(f"{clients} clients, {REVIVED}")
    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(commit_load.measure, cluster.postgres, clients, minute_s)
        caught_up_s = _revive(subject)
        note(REVIVED, 1, loaded.result())
    load(AFTER, 1, minute_s)
    return minutes, sum_up(minutes, dead_minutes, piled_up_bytes, caught_up_s)


def sum_up(minutes: Sequence[Minute], dead_minutes: float, piled_up_bytes: int, caught_up_s: float) -> OutageResult:
    """Return the whole of a stretch."""
    alive_ms = statistics.median(each.p50_ms for each in minutes if each.phase in (BEFORE, AFTER))
    dead = [each.p50_ms for each in minutes if each.phase == DEAD]
    dead_ms = statistics.median(dead)
    ratios = dead_ms / alive_ms, max(dead) / alive_ms
    return OutageResult(minutes[0].clients, dead_minutes, alive_ms, dead_ms, *ratios, piled_up_bytes, caught_up_s)


def _revive(subject: OutageCluster) -> float:
    """Bring the archive back; return after how many seconds it had all that was committed then."""
    target_lsn = subject.cluster.commit_lsn()
    began_at = monotonic()
    subject.archive.revive()
    wait_until_archived(subject.cluster, target_lsn, _CATCH_UP_S_MAX)
    return monotonic() - began_at


def _unarchived_bytes(cluster: LocalCluster) -> int:
    return max(0, cluster.commit_lsn() - cluster.archived_lsn())
