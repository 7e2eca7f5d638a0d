"""Measure whether tables of WAL cost the same for each gigabyte at every size, and whether memory stays constant.

One run of the job for the first part of a folder of WAL, for twice as much, and for four times as much: in an
order that is drawn for each round, each with a process, a JVM and tables of its own. A gigabyte is 10**9 bytes of WAL.
Each process makes tables of half a gigabyte before: Spark's start would make a gigabyte cheaper the more there are.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from walproxy.lab.bench.rounds import ratio
from walproxy.lab.bench.wal_folder import WalFolder
from walproxy.lab.bench.wal_runs import write_tables_apart

FACTORS = (1, 2, 4)
_WARM_UP_BYTES = 1 << 29


class GrowthCell(NamedTuple):
    """The cell that is measured once a round: a multiple of the smallest part of the WAL."""

    factor: int


class GrowthTurn(msgspec.Struct, frozen=True):
    """The measurements of one run.

    Attributes:
        wal_bytes: of the smallest amount, twice or four times as much.
        seconds_gb: for a gigabyte.
        driver_bytes, jvm_bytes: the most memory of the driver's Python and of its JVM.
    """

    round: int
    factor: int
    wal_bytes: int
    seconds_gb: float
    driver_bytes: int
    jvm_bytes: int


class GrowthResult(msgspec.Struct, frozen=True):
    """The medians for one amount of WAL.

    Attributes:
        to_smallest: median over the rounds of the time for a gigabyte, to that of the smallest amount in the same
            round; between `low` and `high`.
    """

    wal_gb: float
    seconds_gb: float
    to_smallest: float
    low: float
    high: float
    driver_bytes: int
    jvm_bytes: int


def cells() -> list[GrowthCell]:
    """Return what is measured in each round."""
    return [GrowthCell(factor) for factor in FACTORS]


def take_turn(wal: WalFolder, number: int, factor: int, directory: Path) -> GrowthTurn:
    """Make tables of the beginning of `wal`.

    Raises:
        WalproxyError: the command failed.
    """
    part = wal.beginning(wal.wal_bytes * factor // FACTORS[-1], directory / f"wal-{number}-{factor}")
    warm_up = wal.beginning(min(_WARM_UP_BYTES, part.wal_bytes), directory / f"warm-up-{number}-{factor}")
    run = write_tables_apart(warm_up.folder, part.folder, directory / "tables")
    return GrowthTurn(
        number, factor, part.wal_bytes, run.seconds / part.wal_bytes * 1e9, run.driver_bytes, run.jvm_bytes
    )


def compare_growth(turns: Sequence[GrowthTurn]) -> list[GrowthResult]:
    """Return the medians by amount."""
    figures = {(turn.round, GrowthCell(turn.factor)): turn.seconds_gb for turn in turns}
    results = []
    for factor in FACTORS:
        mine = [turn for turn in turns if turn.factor == factor]
        to_smallest = ratio(figures, GrowthCell(factor), GrowthCell(FACTORS[0]))
        if not mine or to_smallest is None:
            continue
        results.append(
            GrowthResult(
                mine[0].wal_bytes / 1e9,
                median(turn.seconds_gb for turn in mine),
                *to_smallest,
                round(median(turn.driver_bytes for turn in mine)),
                round(median(turn.jvm_bytes for turn in mine)),
            )
        )
    return results
