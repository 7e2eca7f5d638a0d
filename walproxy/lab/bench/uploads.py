"""Measure how fast a safekeeper archives WAL into a local folder, and what bounds it.

    disk     no archiver: files of the same sizes are written and synced, as many at once as a safekeeper uploads
    none     a safekeeper archives all of its WAL into an empty folder, as it is
    zstd     the same, compressed

One safekeeper is the whole quorum and holds all of the WAL. For each turn it is started with another archive; the clock
runs from the moment when it is the archiver until every whole segment has its receipt. The time of the disk alone
and the CPU time show whether the disk or the CPU is the bottleneck.
"""

import os
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from time import monotonic
from typing import NamedTuple

import msgspec

from safekeeper.archive.store import ObjectStore
from safekeeper.archive.upload import create
from safekeeper.archiving.archiver import UPLOADS_AT_ONCE
from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, parse_lsn, segment_start
from walproxy.lab.bench.arms import make_server
from walproxy.lab.bench.rounds import ratio
from walproxy.lab.cluster.local_cluster import LocalCluster, LocalProcess
from walproxy.lab.cluster.local_standby import current_lsn
from walproxy.lab.process_resources import cpu_seconds
from walproxy.postgres.binaries import ServerBinaries

DISK, PLAIN, ZSTD = "disk", "none", "zstd"
CASES = (DISK, PLAIN, ZSTD)
# Of WAL for each unit of --scale.
SCALE_BYTES = 50_000_000

_PIECE_BYTES = 1 << 20
_ROWS = 200_000
# Digits that are random and words that are not, as rows of tables are: something is left to do for zstd.
_TABLE = "CREATE TABLE filler (digits text, words text)"
_FILL = f"""
    SET synchronous_commit = off;
    INSERT INTO filler SELECT md5(random()::text), repeat('word ', 20) FROM generate_series(1, {_ROWS})
"""
_ARCHIVED_S_MAX = 600.0


class UploadCell(NamedTuple):
    """The case that is measured once a round: one of CASES."""

    case: str


class UploadTurn(msgspec.Struct, frozen=True):
    """The measurements of one turn.

    Attributes:
        wal_bytes: what was archived, or written.
        stored_bytes: what the archive has of it.
        cpu_s: CPU time of the safekeeper, or of who wrote.
    """

    round: int
    case: str
    seconds: float
    wal_bytes: int
    stored_bytes: int
    cpu_s: float


class UploadResult(msgspec.Struct, frozen=True):
    """The medians of one case over the rounds.

    Attributes:
        mb_s: megabytes (10**6) of WAL a second, between `low` and `high`.
        to_disk: median of the rounds' ratios to what the disk alone took.
        cpu_ms_mb: CPU time for a megabyte of WAL, in milliseconds.
        cores: CPU time over time: how many CPUs were busy.
        stored: size in the archive over the size of the WAL.
    """

    case: str
    mb_s: float
    low: float
    high: float
    to_disk: float | None
    cpu_ms_mb: float
    cores: float
    stored: float


@dataclass(frozen=True)
class Hoard:
    """A safekeeper with `segments` of WAL, the last of which ends at `end_lsn`; `directory` is for archives."""

    cluster: LocalCluster
    directory: Path
    end_lsn: Lsn
    segments: int
    segment_size: int
    system_id: int
    cluster_id: str

    @property
    def safekeeper(self) -> LocalProcess:
        """The only one."""
        return self.cluster.safekeepers[1]

    def take_turn(self, number: int, case: str) -> UploadTurn:
        """Archive it all, or write as much."""
        target = self.directory / f"{case}-{number}"
        try:
            return self._write(number, target) if case == DISK else self._archive(number, case, target)
        finally:
            rmtree(target, ignore_errors=True)

    def _write(self, number: int, target: Path) -> UploadTurn:
        target.mkdir()
        piece = os.urandom(_PIECE_BYTES)
        cpu_before_s, began_at = cpu_seconds([os.getpid()]), monotonic()
        with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
            for written in [
                pool.submit(_write_file, target / str(i), self.segment_size, piece) for i in range(self.segments)
            ]:
                written.result()
        seconds, cpu_s = monotonic() - began_at, cpu_seconds([os.getpid()]) - cpu_before_s
        size_bytes = self.segments * self.segment_size
        return UploadTurn(number, DISK, seconds, size_bytes, size_bytes, cpu_s)

    def _archive(self, number: int, case: str, target: Path) -> UploadTurn:
        """Archive everything, and leave the safekeeper as it was, without an archive."""
        safekeeper = self.safekeeper
        arguments = safekeeper.arguments
        # A cluster that has archived before does not begin another archive by itself.
        create(ObjectStore.open(str(target), makes_folder=True), self.system_id, self.segment_size, self.cluster_id)
        options = ("--archive", str(target), "--archive-compression", case)
        try:
            _restart(safekeeper, [*arguments, *options])
            self.cluster.wait_until(lambda: self.cluster.archive_status() is not None, "it archives")
            pids = [safekeeper.pid or 0]
            cpu_before_s, began_at = cpu_seconds(pids), monotonic()
            self.cluster.wait_until(self._is_archived, "everything is archived", _ARCHIVED_S_MAX, safekeeper)
            seconds, cpu_s = monotonic() - began_at, cpu_seconds(pids) - cpu_before_s
            stored_bytes = sum(file.stat().st_size for file in (target / "wal").rglob("*") if file.is_file())
            return UploadTurn(number, case, seconds, self.segments * self.segment_size, stored_bytes, cpu_s)
        finally:
            _restart(safekeeper, arguments)

    def _is_archived(self) -> bool:
        archive = self.cluster.archive_status()
        # Until it has read the new archive, it reports the state of the previous one.
        return (
            archive is not None
            and archive["uploads"] >= self.segments
            and parse_lsn(archive["archived_lsn"]) >= self.end_lsn
        )


@contextmanager
def hoarding_safekeeper(directory: Path, binaries: ServerBinaries, wal_bytes: int) -> Iterator[Hoard]:
    """Yield a safekeeper that has at least `wal_bytes` of WAL."""
    postgres = make_server(directory / "cluster", binaries)
    options = ("--wal-keep", "1TiB")
    with LocalCluster(directory / "cluster", postgres, 1, safekeeper_options=options) as cluster:
        cluster.start()
        postgres.execute(_TABLE)
        target_lsn = current_lsn(postgres) + wal_bytes
        while current_lsn(postgres) < target_lsn:
            postgres.execute(_FILL)
        cluster.wait_until(lambda: cluster.commit_lsn() >= target_lsn, "the safekeeper has all of the WAL", 120.0)
        status = cluster.safekeepers[1].status()
        if status is None:
            raise WalproxyError("the safekeeper of the benchmark does not answer")
        begin_lsn, segment_size = parse_lsn(status["wal_begin_lsn"]), status["segment_size"]
        end_lsn = segment_start(target_lsn, segment_size)
        segments, system_id = (end_lsn - begin_lsn) // segment_size, int(status["system_id"])
        yield Hoard(cluster, directory, end_lsn, segments, segment_size, system_id, status["cluster_id"])


def compare_uploads(turns: Sequence[UploadTurn]) -> list[UploadResult]:
    """Return the medians of each case, in the order of CASES."""
    rates = {(turn.round, UploadCell(turn.case)): turn.wal_bytes / 1e6 / turn.seconds for turn in turns}
    results = []
    for case in CASES:
        mine = [turn for turn in turns if turn.case == case]
        if not mine:
            continue
        own = [rate for (_, cell), rate in rates.items() if cell.case == case]
        to_disk = ratio(rates, UploadCell(case), UploadCell(DISK))
        results.append(
            UploadResult(
                case,
                statistics.median(own),
                min(own),
                max(own),
                to_disk and to_disk.median,
                statistics.median(1e3 * turn.cpu_s / (turn.wal_bytes / 1e6) for turn in mine),
                statistics.median(turn.cpu_s / turn.seconds for turn in mine),
                statistics.median(turn.stored_bytes / turn.wal_bytes for turn in mine),
            )
        )
    return results


def _write_file(path: Path, size_bytes: int, piece: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(size_bytes // len(piece)):
            file.write(piece)
        os.fsync(file.fileno())


def _restart(safekeeper: LocalProcess, arguments: Sequence[str]) -> None:
    safekeeper.stop()
    safekeeper.arguments = list(arguments)
    safekeeper.start()
