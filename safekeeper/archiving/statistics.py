"""What a safekeeper has done with its archive since its start, counted."""

import time

# Upper bounds of the histogram of uploads, in seconds.
UPLOAD_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class UploadStatistics:
    """Uploads, counted.

    Attributes:
        uploads, bytes: files that were put into the archive, and their plain bytes.
        errors: attempts that failed.
        seconds: that the uploads took together.
        by_seconds: how many took at most UPLOAD_BUCKETS_S[i] and more than the bound before; all longer ones last.
        last_upload_at: when the last one was finished, in seconds since 1970; 0 before the first one.
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
