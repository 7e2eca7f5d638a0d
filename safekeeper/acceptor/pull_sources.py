"""Which source a pull of WAL reads from: the next one after a failure, another one instead of a slow one.

Pure.
"""

from collections.abc import Sequence

from safekeeper.consensus.messages import PullSource

# A source is slow if it has kept the pull waiting for this time, and has sent less than this for each second of it.
SLOW_AFTER_S = 3.0
SLOW_BYTES_PER_S = 8 << 20
# A slow source is left for one that was so much faster, or that was not tried yet.
FASTER_BY = 2.0


class PullSources:
    """The sources of one pull, in the leader's order.

    Args:
        sources: as the leader has named them.
        bytes_per_s: the limit of the pull's rate, 0 for none.
    """

    def __init__(self, sources: Sequence[PullSource], bytes_per_s: int) -> None:
        self._sources = list(sources)
        self._speeds: dict[int, float] = {}  # In bytes a second, of those that were slow.
        self._slow_bytes_per_s = min(SLOW_BYTES_PER_S, bytes_per_s / 2) if bytes_per_s else SLOW_BYTES_PER_S

    def next(self) -> PullSource | None:
        """Return the source to read from: the first that was not slow, else the fastest; None if all have failed."""
        return max(self._sources, key=self._speed, default=None)

    def failed(self, source: PullSource) -> None:
        """Leave out a source that cannot be read."""
        self._sources.remove(source)

    def is_to_be_left(self, source: PullSource, received_bytes: int, waited_s: float) -> bool:
        """Return whether another source is likely to be faster than this one.

        Args:
            received_bytes: what it has sent.
            waited_s: for how long the pull has waited for it and for nothing else.
        """
        if waited_s < SLOW_AFTER_S or received_bytes >= self._slow_bytes_per_s * waited_s:
            return False
        self._speeds[source.safekeeper_id] = speed = received_bytes / waited_s
        return any(self._speed(other) > FASTER_BY * speed for other in self._sources)

    def _speed(self, source: PullSource) -> float:
        return self._speeds.get(source.safekeeper_id, float("inf"))
