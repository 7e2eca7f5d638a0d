"""One turn of one arm of the comparison with PostgreSQL's own quorum, and the medians of them all."""

import statistics
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from walproxy.lab.bench import pgbench
from walproxy.lab.bench.arms import Arm
from walproxy.lab.bench.rounds import median, ratio
from walproxy.lab.process_resources import cpu_seconds, resident_bytes


class ArmCell(NamedTuple):
    """A cell that is measured once a round."""

    arm: str
    clients: int


class PgbenchRun(msgspec.Struct, frozen=True):
    """The measurements of one run of pgbench.

    Attributes:
        round, arm, clients: which turn it was.
        tps: transactions a second.
        latency_ms: average, of a transaction.
        cpu_s: CPU time that the arm's receivers (or proxy and safekeepers) used.
        seconds: how long it ran.
        resident_bytes: what each of them has in RAM at its end, by name.
    """

    round: int
    arm: str
    clients: int
    tps: float
    latency_ms: float
    cpu_s: float
    seconds: float
    resident_bytes: dict[str, int]


class ArmMedians(msgspec.Struct, frozen=True):
    """The medians of one arm at one number of clients.

    Attributes:
        to_local, to_native, to_three: median over the rounds of (tps of the arm / tps of that arm in the same round);
            three is walproxy with three safekeepers, with which only other numbers of them are compared.
        spread: the lowest and the highest of `to_native`, or of `to_local` where native-quorum was not run, or of
            `to_three` where local was not either.
        cpu_us: CPU time of the arm's own processes for a transaction, in microseconds.
        resident_bytes: what each of them has in RAM, by name.
    """

    arm: str
    clients: int
    tps: float
    latency_ms: float
    cpu_us: float
    to_local: float | None
    to_native: float | None
    to_three: float | None
    spread: tuple[float, float] | None
    resident_bytes: dict[str, float]


def take_turn(arm: Arm, number: int, clients: int, seconds: int) -> PgbenchRun:
    """Run pgbench -N and return what it measured.

    Raises:
        WalproxyError: it failed, or printed what is not understood.
    """
    cpu_before_s = cpu_seconds(arm.process_ids().values())
    measured = pgbench.run(arm.postgres, clients, seconds)
    pids = arm.process_ids()
    cpu_s = cpu_seconds(pids.values()) - cpu_before_s
    return PgbenchRun(
        number, arm.name, clients, measured.tps, measured.average_ms, cpu_s, float(seconds), resident_bytes(pids)
    )


def compare(turns: Iterable[PgbenchRun], cells: Iterable[ArmCell]) -> list[ArmMedians]:
    """Return the medians of cells, in their order. Each has had a turn."""
    by_place = {(turn.round, ArmCell(turn.arm, turn.clients)): turn for turn in turns}
    tps = {place: turn.tps for place, turn in by_place.items()}
    result = []
    for cell in cells:
        mine = [turn for (_, each), turn in by_place.items() if each == cell]
        to_local = ratio(tps, cell, ArmCell("local", cell.clients))
        to_native = ratio(tps, cell, ArmCell("native-quorum", cell.clients))
        to_three = ratio(tps, cell, ArmCell("walproxy", cell.clients)) if cell.arm.startswith("walproxy") else None
        shown = to_native or to_local or to_three
        result.append(
            ArmMedians(
                *cell,
                median(tps, cell),
                statistics.median(turn.latency_ms for turn in mine),
                statistics.median(1e6 * turn.cpu_s / (turn.tps * turn.seconds) for turn in mine),
                to_local and to_local.median,
                to_native and to_native.median,
                to_three and to_three.median,
                (shown.low, shown.high) if shown else None,
                {
                    name: statistics.median(turn.resident_bytes[name] for turn in mine)
                    for name in mine[0].resident_bytes
                },
            )
        )
    return result
