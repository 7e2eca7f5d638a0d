"""The experiments of the benchmark from their servers to their tables: what the command line chooses from."""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from walproxy.lab.bench import (
    archive_commits,
    archive_outage,
    bulk,
    crashes,
    levels,
    measure,
    members,
    memory,
    newcomer,
    pgbench,
    readers,
    row_changes,
    tables,
    uploads,
    wal_growth,
    wal_tables,
)
from walproxy.lab.bench.arms import ARMS, SIZES
from walproxy.lab.bench.commit_cases import CommitCell, cells_of
from walproxy.lab.bench.rounds import shuffled_rounds
from walproxy.lab.bench.slow_cluster import slow_cluster
from walproxy.lab.bench.standby_arms import LEVEL_ARMS
from walproxy.lab.bench.wal_folder import write_wal
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.postgres.binaries import ServerBinaries

_Cell = TypeVar("_Cell", bound=tuple[Any, ...])
_Turn = TypeVar("_Turn")


class Progress(Protocol):
    """Receives the progress of an experiment."""

    def expect(self, steps: int) -> None:
        """Announce `steps` further steps."""

    def begin(self, what: str) -> None:
        """Announce that the next step begins; the previous one is done."""


@dataclass(frozen=True)
class Work:
    """The options of an experiment.

    Attributes:
        directory: empty; the servers' user can enter it.
        clients: numbers of clients, each measured by itself.
        rounds, seconds: how often each cell has its turn, and how long a turn is.
        scale: of pgbench's tables, or how much WAL is archived, loaded or becomes tables.
        minutes: how long an archive is dead.
        seed: of the order of the turns.
        arms: only these, where there is a choice; the usual ones if empty.
        delay_ms: how far away receivers and safekeepers are.
    """

    binaries: ServerBinaries
    directory: Path
    clients: list[int]
    rounds: int
    seconds: int
    scale: int
    seed: int
    minutes: float
    arms: tuple[str, ...]
    delay_ms: float
    progress: Progress

    @property
    def conditions(self) -> str:
        """For the title of a table."""
        return (
            f"on PostgreSQL {self.binaries.version}: medians of {self.rounds} rounds of {self.seconds} s, "
            f"seed {self.seed}"
        )


@dataclass(frozen=True)
class Found:
    """Everything measured, for JSON, and what is shown to a person."""

    turns: Sequence[Any]
    medians: Sequence[Any]
    shown: Sequence[Any]


def measure_arms(work: Work) -> Found:
    """Compare no standby, PostgreSQL's own quorum, and walproxy."""
    makers = ARMS | SIZES
    names = work.arms or tuple(ARMS)
    cells = [measure.ArmCell(name, count) for count in work.clients for name in names]
    work.progress.expect(len(names) + work.rounds * len(cells))
    turns = []
    with contextlib.ExitStack() as stack:
        arms = {}
        for name in names:
            work.progress.begin(f"preparing {name}")
            arms[name] = stack.enter_context(makers[name](work.directory / name, work.binaries, work.delay_ms))
            pgbench.prepare(arms[name].postgres, work.scale)
        for number, cell in _turns(work, cells):
            turns.append(measure.take_turn(arms[cell.arm], number, cell.clients, work.seconds))
    results = measure.compare(turns, cells)
    conditions = work.conditions + (f", each receiver {work.delay_ms:g} ms away" if work.delay_ms else "")
    return Found(turns, results, [tables.arms_table(results, conditions)])


def measure_bulk(work: Work) -> Found:
    """Compare how fast a COPY becomes durable without a standby, with PostgreSQL's own quorum, and through walproxy."""
    cells = [bulk.BulkCell(name) for name in ARMS]
    work.progress.expect(len(cells) + work.rounds * len(cells))
    turns = []
    with contextlib.ExitStack() as stack:
        arms = {}
        for name, make in ARMS.items():
            work.progress.begin(f"preparing {name}")
            arms[name] = stack.enter_context(make(work.directory / name, work.binaries, work.delay_ms))
            bulk.prepare(arms[name].postgres)
        for number, cell in _turns(work, cells):
            turns.append(bulk.take_turn(arms[cell.arm], number, work.scale * uploads.SCALE_BYTES))
    results = bulk.compare_bulk(turns, cells)
    rounds = f"on PostgreSQL {work.binaries.version}: medians of {work.rounds} rounds"
    return Found(turns, results, [tables.bulk_table(results, rounds)])


def measure_levels(work: Work) -> Found:
    """Compare the levels of synchronous_commit, with a standby of PostgreSQL's own and through walproxy."""
    cells = levels.cells(work.clients)
    work.progress.expect(len(LEVEL_ARMS) + work.rounds * len(cells))
    turns = []
    with contextlib.ExitStack() as stack:
        arms = {}
        for name, make in LEVEL_ARMS.items():
            work.progress.begin(f"preparing {name}")
            arms[name] = stack.enter_context(make(work.directory / name, work.binaries, work.scale))
        for number, cell in _turns(work, cells):
            arm = arms[cell.arm]
            arm.settle()
            measured = pgbench.run(arm.primary, cell.clients, work.seconds, cell.level)
            turns.append(levels.LevelTurn(number, *cell, *measured))
    results, single = levels.compare_levels(turns), levels.single_client(turns)
    shown = [tables.levels_table(results, work.conditions), *tables.single_client_lines(single)]
    return Found(turns, [*results, *single], shown)


def measure_readers(work: Work) -> Found:
    """Measure what readers of WAL cost those who commit."""
    turns = _on_slow_cluster(work, readers.CASES, readers.take_turn)
    results = readers.compare_readers(turns)
    return Found(turns, results, [tables.readers_table(results, work.conditions)])


def measure_members(work: Work) -> Found:
    """Measure what a safekeeper that is slow or dead costs those who commit."""
    turns = _on_slow_cluster(work, members.CASES, members.take_turn)
    results = members.compare_members(turns)
    return Found(turns, results, [tables.members_table(results, work.conditions)])


def _on_slow_cluster(
    work: Work, cases: Iterable[str], take_turn: Callable[[LocalCluster, int, CommitCell, float], _Turn]
) -> list[_Turn]:
    """Return the turns of cases that one cluster on slow disks can be put into."""
    cells = cells_of(cases, work.clients)
    work.progress.expect(1 + work.rounds * len(cells))
    work.progress.begin("preparing the cluster")
    with slow_cluster(work.directory / "cluster", work.binaries) as cluster:
        return [take_turn(cluster, number, cell, work.seconds) for number, cell in _turns(work, cells)]


def measure_crashes(work: Work) -> Found:
    """Measure how long commits wait when a process starts or dies, and memory while a safekeeper is dead."""
    crash_cells, memory_cells = [crashes.CrashCell(case) for case in crashes.CASES], [memory.MemoryCell()]
    work.progress.expect(1 + work.rounds * (len(crash_cells) + len(memory_cells)))
    crashed, weighed = [], []
    work.progress.begin("preparing the cluster")
    with crashes.crash_site(work.directory / "cluster", work.binaries) as site:
        for number, crash in _turns(work, crash_cells):
            crashed.append(site.take_turn(number, crash.case, work.seconds))
        bulk.prepare(site.cluster.postgres)
        for number, _ in _turns(work, memory_cells):
            weighed += memory.take_turn(site.cluster, number, work.scale * uploads.SCALE_BYTES)
    crash_results, memory_results = crashes.compare_crashes(crashed), memory.compare_memory(weighed)
    rounds = f"on PostgreSQL {work.binaries.version}: medians of {work.rounds} rounds"
    shown = [
        tables.crashes_table(crash_results, f"{rounds}, seed {work.seed}"),
        tables.memory_table(memory_results, rounds),
    ]
    return Found([*crashed, *weighed], [*crash_results, *memory_results], shown)


def measure_newcomers(work: Work) -> Found:
    """Measure what a new member costs commits while it receives all WAL, and how quick that is."""
    cells = [newcomer.NewcomerCell(clients, rate) for clients in work.clients for rate in newcomer.RATES]
    work.progress.expect(1 + work.rounds * len(cells))
    work.progress.begin("writing WAL")
    row_bytes = work.scale * uploads.SCALE_BYTES
    with newcomer.newcomer_site(work.directory / "cluster", work.binaries, row_bytes) as site:
        turns = [site.take_turn(number, cell, work.seconds) for number, cell in _turns(work, cells)]
    results = newcomer.compare_newcomers(turns)
    rounds = f"on PostgreSQL {work.binaries.version}: medians of {work.rounds} rounds, seed {work.seed}"
    return Found(turns, results, [tables.newcomers_table(turns, results, rounds)])


def measure_archive(work: Work) -> Found:
    """Measure how fast WAL is archived, and what an archive costs those who commit, alive and dead."""
    upload_cells = [uploads.UploadCell(case) for case in uploads.CASES]
    commit_cells = cells_of(archive_commits.CASES, work.clients)
    work.progress.expect(2 + work.rounds * (len(upload_cells) + len(commit_cells)))
    uploaded, committed = [], []
    work.progress.begin("writing WAL")
    wal_bytes = work.scale * uploads.SCALE_BYTES
    with uploads.hoarding_safekeeper(work.directory / "uploads", work.binaries, wal_bytes) as hoard:
        for number, upload in _turns(work, upload_cells):
            uploaded.append(hoard.take_turn(number, upload.case))
    shutil.rmtree(work.directory / "uploads")
    work.progress.begin("preparing the clusters")
    with archive_commits.archive_arms(work.directory / "commits", work.binaries) as arms:
        for number, commit in _turns(work, commit_cells):
            committed.append(arms[commit.case].take_turn(number, commit.clients, work.seconds))
    upload_results = uploads.compare_uploads(uploaded)
    commit_results = archive_commits.compare_commits(committed)
    rounds = f"on PostgreSQL {work.binaries.version}: medians of {work.rounds} rounds of {wal_bytes / 1e6:g} MB"
    shown = [
        tables.uploads_table(upload_results, rounds),
        tables.archive_commits_table(commit_results, work.conditions),
    ]
    return Found([*uploaded, *committed], [*upload_results, *commit_results], shown)


def measure_outage(work: Work) -> Found:
    """Let the archive be dead for minutes under load, and come back."""
    parts = len(archive_outage.minutes_of(work.minutes)) + 3
    work.progress.expect(1 + len(work.clients) * parts)
    minutes, results = [], []
    work.progress.begin("preparing the cluster")
    with archive_outage.outage_cluster(work.directory, work.binaries) as subject:
        for clients in work.clients:
            found, result = archive_outage.run_stretch(subject, clients, work.minutes, work.progress.begin)
            minutes += found
            results.append(result)
    return Found(minutes, results, [tables.minutes_table(minutes), *map(tables.outage_line, results)])


def measure_pipeline(work: Work) -> Found:
    """Measure how fast WAL is decoded and becomes tables, beside pg_waldump."""
    cells = [wal_tables.TableCell(case) for case in wal_tables.CASES]
    work.progress.expect(2 + work.rounds * len(cells))
    work.progress.begin("writing WAL")
    wal = write_wal(work.directory / "server", work.binaries, work.scale * uploads.SCALE_BYTES)
    work.progress.begin("starting Spark")
    with wal_tables.warm_session(wal, work.directory) as subject:
        turns = [subject.take_turn(number, cell.case) for number, cell in _turns(work, cells)]
    results = wal_tables.compare_tables(turns)
    rounds = f"on PostgreSQL {work.binaries.version}: medians of {work.rounds} rounds of {wal.wal_bytes / 1e6:.0f} MB"
    rounds += f", {subject.records / 1e6:.1f} million records"
    return Found(turns, results, [tables.wal_tables_table(results, rounds)])


def measure_growth(work: Work) -> Found:
    """Measure whether tables of more WAL cost more for each gigabyte, or more memory."""
    cells = wal_growth.cells()
    work.progress.expect(1 + work.rounds * len(cells))
    work.progress.begin("writing WAL")
    wal = write_wal(work.directory / "server", work.binaries, work.scale * uploads.SCALE_BYTES * wal_growth.FACTORS[-1])
    turns = [wal_growth.take_turn(wal, number, cell.factor, work.directory) for number, cell in _turns(work, cells)]
    results = wal_growth.compare_growth(turns)
    conditions = f"on PostgreSQL {work.binaries.version}: medians of {work.rounds} rounds"
    return Found(turns, results, [tables.growth_table(results, conditions)])


def measure_row_changes(work: Work) -> Found:
    """Measure how fast row changes reach a table, beside pg_recvlogical."""
    cells = row_changes.cells()
    work.progress.expect(1 + work.rounds * len(cells))
    work.progress.begin("writing changes")
    changes = work.scale * row_changes.SCALE_CHANGES
    with row_changes.changes_site(work.directory / "server", work.binaries, changes) as site:
        turns = [site.take_turn(number, cell) for number, cell in _turns(work, cells)]
    results = row_changes.compare_changes(turns)
    rounds = f"on PostgreSQL {work.binaries.version}: medians of {work.rounds} rounds of {changes:,} changes"
    return Found(turns, results, [tables.row_changes_table(results, rounds)])


EXPERIMENTS: dict[str, Callable[[Work], Found]] = {
    "arms": measure_arms,
    "bulk": measure_bulk,
    "levels": measure_levels,
    "readers": measure_readers,
    "members": measure_members,
    "crashes": measure_crashes,
    "newcomer": measure_newcomers,
    "archive": measure_archive,
    "outage": measure_outage,
    "pipeline": measure_pipeline,
    "growth": measure_growth,
    "apply": measure_row_changes,
}


def _turns(work: Work, cells: Sequence[_Cell]) -> Iterator[tuple[int, _Cell]]:
    for number, cell in shuffled_rounds(cells, work.rounds, work.seed):
        work.progress.begin(f"round {number + 1}: {', '.join(map(str, cell))}")
        yield number, cell
