"""What a lone node must log of the space that it measures, stated once more; and the log that it gets for that.

Theory of operation. The limit of free space may be another one at each measurement, because an operator may change it
while the process runs. Whether something is logged follows from the lines before it: of a warning that has not ended
there is one more after a while, and one line says that it has ended.
"""

import logging

AGAIN_AFTER_S = 0.25
_LOW = "the disk has {} MiB of free space left, less than the {} MiB of --disk-free-warning: free some space"
_BACK = "the disk has {} MiB of free space again"


class LinesLog(logging.Logger):
    """A log that keeps its lines.

    Attributes:
        lines: since they were last removed, with the kind of event that each belongs to, empty for none.
    """

    def __init__(self) -> None:
        super().__init__("lines", logging.INFO)
        self.lines: list[tuple[str, str]] = []

    def isEnabledFor(self, level: int) -> bool:
        """Keep all lines, whatever is set for others."""
        return True

    def handle(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        event = getattr(record, "logged_event", None)
        self.lines.append((event.kind if event is not None else "", record.getMessage()))


class SpaceReference:
    """The lines about free space, of one process."""

    def __init__(self) -> None:
        self._warnings_s: list[float] = []  # When it was warned, since the warning began; none after its end.

    def lines(self, now_s: float, free_bytes: int, limit_bytes: int) -> list[tuple[str, str]]:
        """Return what must be logged when so much is measured: only the first warning is an event."""
        free_mib, limit_mib = free_bytes // 2**20, limit_bytes // 2**20
        before, self._warnings_s = self._warnings_s, []
        if free_bytes >= limit_bytes:
            return [("disk-space-back", _BACK.format(free_mib))] if before else []
        if before and now_s < before[-1] + AGAIN_AFTER_S:
            self._warnings_s = before
            return []
        self._warnings_s = [*before, now_s]
        return [("" if before else "disk-low", _LOW.format(free_mib, limit_mib))]
