"""The experiments of the benchmark from their servers to their tables: what the command line chooses from."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from walproxy.lab.bench import crashes, levels, measure, members, memory, pgbench, tables
from walproxy.lab.bench.arms import ARMS, SIZES
from walproxy.lab.bench.rounds import shuffled_rounds
from walproxy.lab.bench.standby_arms import LEVEL_ARMS
from walproxy.postgres.binaries import ServerBinaries

_Cell = TypeVar("_Cell", bound=tuple[Any, ...])


class ExperimentProgress(Protocol):
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
        scale: of pgbench's tables, or how much is copied while a safekeeper is dead.
        arms: only these, where there is a choice; the usual ones if empty.
        delay_ms: how far away receivers and safekeepers are.
    """

    binaries: ServerBinaries
    directory: Path
    clients: list[int]
    rounds: int
    seconds: int
    scale: int
    arms: tuple[str, ...]
    delay_ms: float
    progress: ExperimentProgress

    @property
    def conditions(self) -> str:
        """For the title of a table."""
        return f"on PostgreSQL {self.binaries.version}: medians of {self.rounds} rounds of {self.seconds} s"


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


def measure_members(work: Work) -> Found:
    """Measure what a safekeeper that is slow or dead costs those who commit."""
    cells = members.cells(work.clients)
    work.progress.expect(1 + work.rounds * len(cells))
    work.progress.begin("preparing the cluster")
    with members.slow_cluster(work.directory / "cluster", work.binaries) as cluster:
        turns = [members.take_turn(cluster, number, cell, work.seconds) for number, cell in _turns(work, cells)]
    results = members.compare_members(turns)
    return Found(turns, results, [tables.members_table(results, work.conditions)])


def measure_crashes(work: Work) -> Found:
    """Measure how long commits wait when a process starts or dies, and memory while a safekeeper is dead."""
    crash_cells, memory_cells = [crashes.CrashCell(case) for case in crashes.CASES], [memory.MemoryCell()]
    work.progress.expect(1 + work.rounds * (len(crash_cells) + len(memory_cells)))
    crashed, weighed = [], []
    work.progress.begin("preparing the cluster")
    with crashes.crash_site(work.directory / "cluster", work.binaries) as site:
        for number, crash in _turns(work, crash_cells):
            crashed.append(site.take_turn(number, crash.case, work.seconds))
        memory.prepare(site.cluster.postgres)
        for number, _ in _turns(work, memory_cells):
            weighed += memory.take_turn(site.cluster, number, work.scale * memory.SCALE_BYTES)
    crash_results, memory_results = crashes.compare_crashes(crashed), memory.compare_memory(weighed)
    rounds = f"on PostgreSQL {work.binaries.version}: medians of {work.rounds} rounds"
    shown = [
        tables.crashes_table(crash_results, rounds),
        tables.memory_table(memory_results, rounds),
    ]
    return Found([*crashed, *weighed], [*crash_results, *memory_results], shown)


EXPERIMENTS: dict[str, Callable[[Work], Found]] = {
    "arms": measure_arms,
    "levels": measure_levels,
    "members": measure_members,
    "crashes": measure_crashes,
}


def _turns(work: Work, cells: Sequence[_Cell]) -> Iterator[tuple[int, _Cell]]:
    for number, cell in shuffled_rounds(cells, work.rounds):
        work.progress.begin(f"round {number + 1}: {', '.join(map(str, cell))}")
        yield number, cell
