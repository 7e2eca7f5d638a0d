"""The disk's free space, and what could not be written for want of it: logged on changes, shown on /status."""

import logging
import time
from collections.abc import Callable

from safekeeper.base.errors import ResourceShortage
from safekeeper.base.logs import RateLimit, log_event
from safekeeper.base.lsn import Lsn
from safekeeper.storage.filesystem import Space

WARN_AGAIN_AFTER_S = 600.0

# What may lack disk space.
WAL = "WAL"
CONTROL_FILE = "control file"

_LOW = "the disk has %d MiB of free space left, less than the %d MiB of disk_free_warning: free some space"

_log = logging.getLogger(__name__)


class DiskSpace:
    """The disk's space as the node last measured it.

    Attributes:
        free_warning_bytes: less free space than this is logged as a warning.
        space: as last measured, None before.
        lacking: what could not be written for want of disk space at the last attempt -> the reason.
        wal_ends_at_lsn: the end of the last segment that was prepared; meaningful while WAL is lacking.
        shortages: how often a file could not be opened for want of a file descriptor or memory, and was retried.
    """

    def __init__(self, free_warning_bytes: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.free_warning_bytes = free_warning_bytes
        self.space: Space | None = None
        self.lacking: dict[str, str] = {}
        self.wal_ends_at_lsn: Lsn = 0
        self.shortages = 0
        self._shortage_lines = RateLimit(lines=3, interval_s=60, clock=clock)
        self._clock = clock
        self._warned_at: float | None = None

    @property
    def is_low(self) -> bool:
        """Whether less space is free than free_warning_bytes."""
        return self.space is not None and self.space.free_bytes < self.free_warning_bytes

    def note(self, what: str, error: BaseException | None) -> None:
        """Record that `what` was written or, with an error, that it could not be for want of disk space."""
        if isinstance(error, ResourceShortage):
            self.lacking[what] = str(error)
            self.short_of_resources(error)
        elif error is None:
            if self.lacking.pop(what, None) is not None:
                log_event(_log, "disk-space-back", {"what": what}, "disk space for the %s is available again", what)
        elif what not in self.lacking:
            self.lacking[what] = str(error)
            log_event(
                _log,
                "disk-full",
                {"what": what},
                "not enough disk space for the %s: %s; free some space, writing then resumes by itself",
                what,
                error,
                level=logging.WARNING,
            )

    def short_of_resources(self, error: ResourceShortage) -> None:
        """Record that a file could not be opened, which is retried."""
        self.shortages += 1
        more = self._shortage_lines.admit()
        if more is not None:
            _log.warning("%s: retrying; if this line repeats, raise the limit of open files%s", error, more)

    def measured(self, space: Space) -> None:
        """Record the disk's measured space."""
        self.space = space
        now, free_mib = self._clock(), space.free_bytes >> 20
        fields = {"free_bytes": space.free_bytes}
        if not self.is_low:
            if self._warned_at is not None:
                self._warned_at = None
                log_event(_log, "disk-space-back", fields, "the disk has %d MiB of free space again", free_mib)
        elif self._warned_at is None or now - self._warned_at >= WARN_AGAIN_AFTER_S:
            is_new, self._warned_at = self._warned_at is None, now
            warning_mib = self.free_warning_bytes >> 20
            if is_new:
                log_event(_log, "disk-low", fields, _LOW, free_mib, warning_mib)
            else:
                _log.warning(_LOW, free_mib, warning_mib)
