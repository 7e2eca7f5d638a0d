"""A segment of an archive of another tool: fetched, decompressed, verified, and kept for the next question.

A task reads a segment, then some pages of the next one for the record that straddles the border, then that segment. So
the last few segments stay in memory; threads that ask for the same one wait for the first of them.
"""

import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future

from safekeeper.archive.store import ObjectStore
from safekeeper.base.lsn import SEGMENT_SIZE_MAX, Lsn
from safekeeper.waldecode.format import LONG_PAGE_HEADER_SIZE
from walproxy.pipeline.input.foreign.codecs import read_plain
from walproxy.pipeline.input.foreign.names import ForeignFile
from walproxy.wal_sources.asking import ask
from walproxy.wal_sources.ranges import check_first_page
from walproxy.wal_sources.segment_listing import FirstPage, parse_first_page
from walproxy.wal_sources.source import Origin, SourceCorrupt

_KEPT_BYTES = 64 << 20


class Segments:
    """The segments of an archive. Blocking, thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Future[bytes]] = OrderedDict()

    def first_page(self, file: ForeignFile) -> FirstPage:
        """Return what a segment's first page contains.

        Raises:
            As `read`.
        """
        what = self.what(file)
        content = self._stored_segment(file, SEGMENT_SIZE_MAX)
        page = parse_first_page(read_plain(what, file.suffix, content, LONG_PAGE_HEADER_SIZE))
        if page is None:
            raise _not_wal(what, file)
        return page

    def read(self, file: ForeignFile, tli: int, begin_lsn: Lsn, origin: Origin) -> bytes:
        """Return a whole segment, which begins at `begin_lsn` of timeline `tli`.

        Raises:
            ConfigurationError: it is encrypted, or its compression is not supported.
            SourceCorrupt: it is truncated or damaged, has another SHA-1 than its name, or is another segment.
            SourceUnavailable, WalMissing
        """
        with self._lock:
            kept = self._kept.get(file.key)
            fetched: Future[bytes] = kept or Future()
            self._kept[file.key] = fetched
            self._kept.move_to_end(file.key)
            while len(self._kept) > max(_KEPT_BYTES // origin.segment_size, 1):
                self._kept.popitem(last=False)
        if kept is None:
            try:
                fetched.set_result(self._fetched(file, tli, begin_lsn, origin))
            except BaseException as error:
                with self._lock:
                    self._kept.pop(file.key, None)
                fetched.set_exception(error)  # For the threads that wait for it.
                raise
        return fetched.result()

    def stored(self, file: ForeignFile, max_bytes: int, kind: str) -> bytes:
        """Return a file as it is stored.

        Args:
            max_bytes: the limit of its size, so that a file of another kind does not fill the memory.
            kind: what it should be, for a person.

        Raises:
            SourceCorrupt: it is larger.
            SourceUnavailable, WalMissing
        """
        if file.size > max_bytes:
            raise SourceCorrupt(
                f"{self.what(file)} has {file.size} bytes, more than {kind} can have: remove it if it is not one"
            )
        return ask(lambda: self._store.get(file.key))

    def what(self, file: ForeignFile) -> str:
        """Return what a file is called in messages."""
        return f"{self._store.url.rstrip('/')}/{file.key}"

    def _stored_segment(self, file: ForeignFile, segment_size: int) -> bytes:
        # A compressor makes what it cannot compress a little larger.
        return self.stored(file, segment_size + segment_size // 16, "a segment")

    def _fetched(self, file: ForeignFile, tli: int, begin_lsn: Lsn, origin: Origin) -> bytes:
        what = self.what(file)
        content = self._stored_segment(file, origin.segment_size)
        # One byte more than there should be: then the end of the compressed stream, with its checksum, is read too.
        segment = read_plain(what, file.suffix, content, origin.segment_size + 1)
        if file.sha1:
            sha1 = hashlib.sha1(segment, usedforsecurity=False).hexdigest()
            if sha1 != file.sha1:
                raise SourceCorrupt(f"{what} has the SHA-1 {sha1}, but another one in its name: it is damaged")
        if parse_first_page(segment[:LONG_PAGE_HEADER_SIZE]) is None:
            raise _not_wal(what, file)
        check_first_page(memoryview(segment), begin_lsn, tli, origin, what)
        if len(segment) != origin.segment_size:
            size = "more" if len(segment) > origin.segment_size else f"{len(segment)} bytes"
            raise SourceCorrupt(
                f"{what} has {size} where a segment has {origin.segment_size} bytes: it is truncated or damaged"
            )
        return segment


def _not_wal(what: str, file: ForeignFile) -> SourceCorrupt:
    if file.suffix:
        return SourceCorrupt(f"{what} does not contain WAL: it is encrypted or damaged")
    return SourceCorrupt(
        f"{what} is neither WAL nor compressed with gzip, bzip2, xz, zstd or lz4: it is encrypted or damaged"
    )
