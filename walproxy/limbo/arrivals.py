"""Since when each position of the uncommitted WAL waits, by the proxy's monotonic clock.

One pair for each batch that is received, not for each commit. A transaction waits since the batch arrived that has the
last byte of its record. Memory is bounded: beyond `ARRIVALS_MAX` batches, neighbours count as one that arrived when
the first of them did, so no wait is shown as shorter than it is. Pure.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from safekeeper.base.lsn import Lsn

ARRIVALS_MAX: Final = 1 << 17


class Arrivals:
    """The arrivals of WAL, in order.

    Attributes:
        note: record a batch as the pair (its end, when it arrived); the caller appends, nothing else happens then.
    """

    def __init__(self, arrivals_max: int = ARRIVALS_MAX) -> None:
        self._pairs: deque[tuple[Lsn, float]] = deque()
        self._former: deque[tuple[Lsn, float]] = deque()  # of streams before this one
        self._max = arrivals_max
        self.note = self._pairs.append

    def trim(self, reported_lsn: Lsn) -> None:
        """Forget batches that end at or below `reported_lsn`, and merge neighbours of too many."""
        for pairs in (self._former, self._pairs):
            while pairs and pairs[0][0] <= reported_lsn:
                pairs.popleft()
            if len(pairs) > self._max:
                _merge_neighbours(pairs)

    def clear(self) -> None:
        """Forget all: other WAL follows."""
        self._former.clear()
        self._pairs.clear()

    def repeat(self) -> None:
        """The stream begins again at an earlier position: WAL that had arrived waits since then."""
        end_lsn = self._former[-1][0] if self._former else 0
        self._former.extend(pair for pair in self._pairs if pair[0] > end_lsn)
        self._pairs.clear()

    def since(self, lsns: Iterable[Lsn]) -> list[float | None]:
        """Return when the byte before each position arrived, None if that is unknown."""
        pairs = self._ordered()
        ends = [end_lsn for end_lsn, _ in pairs]
        found = [bisect_left(ends, lsn) for lsn in lsns]
        return [pairs[index][1] if index < len(pairs) else None for index in found]

    def oldest(self, reported_lsn: Lsn) -> float | None:
        """Return when the oldest byte above `reported_lsn` arrived; None if there is none."""
        return next((at for end_lsn, at in chain(self._former, self._pairs) if end_lsn > reported_lsn), None)

    def _ordered(self) -> list[tuple[Lsn, float]]:
        end_lsn = self._former[-1][0] if self._former else 0
        return [*self._former, *(pair for pair in self._pairs if pair[0] > end_lsn)]


def _merge_neighbours(pairs: deque[tuple[Lsn, float]]) -> None:
    """Merge each two neighbours, in place: the later end, the earlier time."""
    merged = [
        (later[0], earlier[1])
        for earlier, later in zip(islice(pairs, 0, None, 2), islice(pairs, 1, None, 2), strict=False)
    ]
    if len(pairs) % 2:
        merged.append(pairs[-1])
    pairs.clear()
    pairs.extend(merged)
