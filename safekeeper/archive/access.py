"""The configured archive of a process, opened when it is first needed.

A folder on a network file system may hang on the first access. So the archive is opened in the threads that use it, and
a safekeeper starts and serves without it. The libraries of object stores are imported then, too: they take 4.5 MB and
10 ms, which a safekeeper without an archive saves.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from safekeeper.archive.objects import NO_OPTIONS

if TYPE_CHECKING:
    from safekeeper.archive.fetch import ArchiveReader
    from safekeeper.archive.store import ObjectStore


class ArchiveAccess:
    """The archive's location and access; creates a local folder. `store` and `reader` block; thread-safe.

    Attributes:
        url: the archive's URL, without credentials.
    """

    def __init__(self, url: str, options: Mapping[str, str] = NO_OPTIONS, *, timeout_s: float = 30) -> None:
        self.url = _without_credentials(url)
        self._written = url
        self._options = options
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._store: ObjectStore | None = None

    def store(self) -> "ObjectStore":
        """Return the archive's store.

        Raises:
            ConfigurationError: the URL or an option is not valid.
        """
        from safekeeper.archive.store import ObjectStore

        with self._lock:
            if self._store is None:
                self._store = ObjectStore.open(
                    self._written, options=self._options, timeout_s=self._timeout_s, makes_folder=True
                )
            return self._store

    def reader(self) -> "ArchiveReader":
        """Return a reader of the archive.

        Raises:
            As `store`.
        """
        from safekeeper.archive.fetch import ArchiveReader

        return ArchiveReader(self.store())


def _without_credentials(url: str) -> str:
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
