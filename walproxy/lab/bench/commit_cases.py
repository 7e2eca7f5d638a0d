"""Cases under which the load of commit_load.py is measured, and what their turns add up to."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from walproxy.lab.bench.commit_load import CommitTimes
from walproxy.lab.bench.rounds import Ratio, median, ratio


class CommitCell(NamedTuple):
    """A cell that is measured once a round: a case, and how many clients commit."""

    case: str
    clients: int


class CommitTurn(msgspec.Struct, frozen=True):
    """The measurements of one turn."""

    round: int
    case: str
    clients: int
    tps: float
    p50_ms: float
    p99_ms: float


class Against(NamedTuple):
    """The medians of a cell beside those of a base with as many clients.

    Attributes:
        to_base: median of the rounds' ratios of `p50_ms`, between `low` and `high`; None where the base has no turn.
        p99_to_base: the same of `p99_ms`.
    """

    tps: float
    p50_ms: float
    p99_ms: float
    to_base: float | None
    low: float | None
    high: float | None
    p99_to_base: float | None


def cells_of(cases: Iterable[str], clients: Iterable[int]) -> list[CommitCell]:
    """Return all that is measured in a round, by clients and then in the order of the cases."""
    return [CommitCell(case, count) for count in clients for case in cases]


class CommitFigures:
    """The figures of all turns.

    Attributes:
        cells: those that were measured, in the order of `cells_of`.
    """

    def __init__(self, turns: Sequence[CommitTurn], cases: Iterable[str]) -> None:
        places = {(turn.round, CommitCell(turn.case, turn.clients)): turn for turn in turns}
        measured = {cell for _, cell in places}
        self.cells = [c for c in cells_of(cases, sorted({cell.clients for cell in measured})) if c in measured]
        self._tps = {place: turn.tps for place, turn in places.items()}
        self._p50_ms = {place: turn.p50_ms for place, turn in places.items()}
        self._p99_ms = {place: turn.p99_ms for place, turn in places.items()}

    def medians(self, cell: CommitCell) -> CommitTimes:
        """Return the medians of a cell."""
        return CommitTimes(median(self._tps, cell), median(self._p50_ms, cell), median(self._p99_ms, cell))

    def p50_to(self, cell: CommitCell, case: str) -> Ratio | None:
        """Return how the usual commit relates to that of another case in the same rounds."""
        return ratio(self._p50_ms, cell, cell._replace(case=case))

    def against(self, cell: CommitCell, case: str) -> Against:
        """Return the medians of a cell beside those of another case."""
        usual, slowest = self.p50_to(cell, case), ratio(self._p99_ms, cell, cell._replace(case=case))
        return Against(
            *self.medians(cell),
            usual and usual.median,
            usual and usual.low,
            usual and usual.high,
            slowest and slowest.median,
        )
