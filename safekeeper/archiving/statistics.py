"""Counters of a safekeeper's uploads since its start."""

import time

# Upper bounds of the histogram of uploads, in seconds.
UPLOAD_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class UploadStatistics:
    """Counters of uploads.

    Attributes:
        uploads, bytes: files that were archived, and their uncompressed bytes.
        errors: attempts that failed.
        seconds: total time of the uploads.
        by_seconds: number of uploads that took at most UPLOAD_BUCKETS_S[i] and more than the bound before; the last
            element counts all longer ones.
        last_upload_at: the end of the last upload, in seconds since 1970; 0 before the first one.
    """

    def __init__(self) -> None:
        self.uploads = 0
        self.bytes = 0
        self.errors = 0
        self.seconds = 0.0
        self.by_seconds = [0] * (len(UPLOAD_BUCKETS_S) + 1)
        self.last_upload_at = 0.0

    def count(self, size_bytes: int, took_s: float) -> None:
        """Count one upload."""
        self.uploads += 1
        self.bytes += size_bytes
        self.seconds += took_s
        self.by_seconds[sum(took_s > bound for bound in UPLOAD_BUCKETS_S)] += 1
        self.last_upload_at = time.time()
