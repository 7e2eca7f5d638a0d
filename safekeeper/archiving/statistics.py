"""Counters of a safekeeper's uploads since its start."""

import time

from safekeeper.base.histogram import Histogram


class UploadStatistics:
    """Counters of uploads.

    Attributes:
        times: durations of the files that were archived, from 8 ms to 4 minutes.
        bytes: their uncompressed bytes.
        errors: attempts that failed.
        last_upload_at: the end of the last upload, in seconds since 1970; 0 before the first one.
    """

    def __init__(self) -> None:
        self.times = Histogram(-7, 8)
        self.bytes = 0
        self.errors = 0
        self.last_upload_at = 0.0

    def count(self, size_bytes: int, took_s: float) -> None:
        """Count one upload."""
        self.times.observe(took_s)
        self.bytes += size_bytes
        self.last_upload_at = time.time()
