"""The archive as a source of WAL: every byte that it returns has been compared with its receipt."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from safekeeper.archive.catalog import Catalog
from safekeeper.archive.fetch import ArchiveReader
from safekeeper.archive.location import REQUEST_RETRIES
from safekeeper.archive.objects import ArchivedObject
from safekeeper.archive.store import ObjectStore
from safekeeper.base.lsn import Lsn
from walproxy.wal_sources.archive_access import archive_origin, ask_archive
from walproxy.wal_sources.source import (
    LogPath,
    Offer,
    Origin,
    Pieces,
    SourceLacks,
    later_of,
    next_of,
    reach_of,
)

_Result = TypeVar("_Result")


class ArchiveSource:
    """An archive. Its listing as a whole is read once, when it is needed; single files are looked for each time."""

    def __init__(
        self, url: str, options: Mapping[str, str], *, timeout_s: float = 30.0, retries: int = REQUEST_RETRIES
    ) -> None:
        store = ObjectStore.open(url, options=options, timeout_s=timeout_s, retries=retries)
        self.name = f"the archive {store.url}"
        self.store = store
        self._reader = ArchiveReader(store)
        self._lock = threading.Lock()
        self._origin: Origin | None = None
        self._catalog: Catalog | None = None

    def origin(self) -> Origin:
        """See WalSource."""
        with self._lock:
            if self._origin is None:
                self._origin = archive_origin(self.name, self._reader)
            return self._origin

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        """See WalSource."""
        self.origin()
        found = self._ask(lambda: self._reader.candidates(tli, begin_lsn))
        return [Offer(self.name, begin_lsn, each.file.end_lsn, each.file.end_lsn, self._writer(each)) for each in found]

    def history(self, tli: int) -> bytes | None:
        """See WalSource."""
        self.origin()
        return self._ask(lambda: self._reader.history(tli))

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        """See WalSource."""
        return later_of(self.pieces(), tli, begin_lsn, self.origin().segment_size)

    def reach(self, path: LogPath, begin_lsn: Lsn) -> Lsn:
        """See WalSource."""
        return reach_of(self.pieces(), path, begin_lsn)

    def next_after(self, path: LogPath, lsn: Lsn) -> Lsn | None:
        """See WalSource."""
        return next_of(self.pieces(), path, lsn)

    def pieces(self) -> Pieces:
        """Return all WAL that is in the archive."""
        self.origin()
        with self._lock:
            if self._catalog is None:
                self._catalog = self._ask(self._reader.catalog)
            found: dict[tuple[int, Lsn], Lsn] = {}
            for each in self._catalog.listing.objects:
                if each.file.kind != "history":
                    segment_lsn = each.file.begin_lsn
                    key = (each.file.tli, segment_lsn)
                    found[key] = max(found.get(key, 0), each.file.end_lsn)
            return found

    def _writer(self, archived: ArchivedObject) -> Callable[[Path], None]:
        return lambda path: self._ask(lambda: self._reader.fetch(archived, path))

    def _ask(self, question: Callable[[], _Result]) -> _Result:
        return ask_archive(question, SourceLacks)
