"""The experiments of the benchmark from their servers to their tables: what the command line chooses from."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from walproxy.bench import levels, measure, pgbench, readers, tables
from walproxy.bench.arms import ARMS
from walproxy.bench.rounds import shuffled_rounds
from walproxy.bench.standby_arms import LEVEL_ARMS
from walproxy.server_binaries import ServerBinaries

_Cell = TypeVar("_Cell", bound=tuple[Any, ...])


class Progress(Protocol):
    """Who wants to know how far it has come."""

    def expect(self, steps: int) -> None:
        """So many steps are to come."""

    def begin(self, what: str) -> None:
        """The next step begins; the one before is done."""


@dataclass(frozen=True)
class Work:
    """What is asked for.

    Attributes:
        directory: empty; the servers' user can enter it.
        clients: numbers of clients, each measured by itself.
        rounds, seconds: how often each cell has its turn, and how long a turn is.
        scale: of pgbench's tables.
        seed: of the order of the turns.
        arms: only these, where there is a choice; all if empty.
    """

    binaries: ServerBinaries
    directory: Path
    clients: list[int]
    rounds: int
    seconds: int
    scale: int
    seed: int
    arms: tuple[str, ...]
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
    names = work.arms or tuple(ARMS)
    cells = [measure.ArmCell(name, count) for count in work.clients for name in names]
    work.progress.expect(len(names) + work.rounds * len(cells))
    turns = []
    with contextlib.ExitStack() as stack:
        arms = {}
        for name in names:
            work.progress.begin(f"preparing {name}")
            arms[name] = stack.enter_context(ARMS[name](work.directory / name, work.binaries))
            pgbench.prepare(arms[name].postgres, work.scale)
        for number, cell in _turns(work, cells):
            turns.append(measure.take_turn(arms[cell.arm], number, cell.clients, work.seconds))
    results = measure.compare(turns)
    return Found(turns, results, [tables.arms_table(results, work.conditions)])


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
    cells = readers.cells(work.clients)
    work.progress.expect(1 + work.rounds * len(cells))
    turns = []
    work.progress.begin("preparing the cluster")
    with readers.slow_cluster(work.directory / "cluster", work.binaries) as cluster:
        for number, cell in _turns(work, cells):
            turns.append(readers.take_turn(cluster, number, cell, work.seconds))
    results = readers.compare_readers(turns)
    return Found(turns, results, [tables.readers_table(results, work.conditions)])


EXPERIMENTS: dict[str, Callable[[Work], Found]] = {
    "arms": measure_arms,
    "levels": measure_levels,
    "readers": measure_readers,
}


def _turns(work: Work, cells: Sequence[_Cell]) -> Iterator[tuple[int, _Cell]]:
    for number, cell in shuffled_rounds(cells, work.rounds, work.seed):
        work.progress.begin(f"round {number + 1}: {', '.join(map(str, cell))}")
        yield number, cell
