"""An archive in an object store: of safekeepers, or of another tool. Which one is found out at the first question.

A manifest marks an archive of safekeepers. Without one the names at the URL decide.
"""

import threading
from collections.abc import Mapping

from safekeeper.base.errors import ArchiveRefused
from safekeeper.base.lsn import Lsn
from walproxy.pipeline.input.foreign.archive import ForeignArchive
from walproxy.pipeline.input.foreign.roots import find_root
from walproxy.wal_sources.archive import ArchiveSource
from walproxy.wal_sources.asking import ask
from walproxy.wal_sources.source import ByteSource, Extent, LogPath, Origin


class RemoteArchive:
    """See ByteSource."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """Open it; no request is sent yet.

        Raises:
            ConfigurationError: the URL or an option cannot be used.
        """
        self._archive = ArchiveSource(url, options)
        self._foreign = ForeignArchive(url, options)
        self.name = self._archive.name
        self._lock = threading.Lock()
        self._known: ByteSource | None = None

    def origin(self) -> Origin:
        """See WalSource."""
        return self._source().origin()

    def log_path(self, tli: int | None = None) -> LogPath:
        """See ByteSource."""
        return self._source().log_path(tli)

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """See WalSource."""
        return self._source().extents(path, begin_lsn)

    def read_into(self, path: LogPath, begin_lsn: Lsn, room: memoryview) -> None:
        """See ByteSource."""
        self._source().read_into(path, begin_lsn, room)

    def _source(self) -> ByteSource:
        with self._lock:
            if self._known is None:
                self._known = self._found()
            return self._known

    def _found(self) -> ByteSource:
        try:
            self._archive.origin()
        except ArchiveRefused:
            if ask(lambda: find_root(self._foreign.store)) is None:
                raise
            return self._foreign
        return self._archive
