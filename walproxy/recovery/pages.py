"""The check of a WAL file: the headers of its pages against its name.

Every page header contains its position and the version, and some contain the system id. The check finds a file of
another cluster, a misnamed or recycled one, and torn or zeroed pages; the checksums of the archive and of PostgreSQL
find the rest. 2 ms for 16 MiB, since only the headers are read.
"""

from pathlib import Path

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.waldecode.format import (
    LONG_HEADER,
    LONG_PAGE_HEADER_SIZE,
    LONG_PAGE_HEADER_TAIL,
    MAJOR_OF_MAGIC,
    PAGE_HEADER,
    PAGE_HEADER_SIZE,
    PAGE_SIZE,
)
from walproxy.wal_sources.source import Origin, SourceCorrupt

_CHUNK_BYTES = 128 * PAGE_SIZE
_NO_HEADER = bytes(PAGE_HEADER_SIZE)


class PageCheck:
    """Check that bytes, which arrive in pieces, are `size` bytes of WAL of timeline `tli` from a segment's start on.

    Args:
        begin_lsn: the start of the segment.
        what: the file in messages: its name and source.
    """

    def __init__(self, tli: int, begin_lsn: Lsn, size: int, origin: Origin, what: str) -> None:
        self._tli = tli
        self._begin_lsn = self._lsn = begin_lsn
        self._size = size
        self._origin = origin
        self._what = what
        self._magic = 0
        self._filler_lsn: Lsn | None = None  # Where pages of zeros began, which fill a segment after a switch record.
        self._rest = b""  # The beginning of a page.

    def feed(self, piece: bytes) -> None:
        """Check the pages that `piece` completes.

        Raises:
            SourceCorrupt: they are not this WAL.
        """
        chunk = self._rest + piece if self._rest else piece
        whole = len(chunk) // PAGE_SIZE * PAGE_SIZE
        self._check(chunk, whole)
        self._rest = chunk[whole:]

    def finish(self) -> None:
        """Check the last page, which may be incomplete, and the size.

        Raises:
            SourceCorrupt: as `feed`; or there are more or fewer bytes.
        """
        rest, self._rest = self._rest, b""
        self._check(rest, len(rest))
        found = self._lsn - self._begin_lsn
        if found != self._size:
            raise SourceCorrupt(f"{self._what} has {found} bytes where {self._size} are expected")

    def _check(self, chunk: bytes, size: int) -> None:
        lsn = self._lsn
        self._lsn += size
        offset = 0
        while offset < size:
            header = chunk[offset : offset + LONG_PAGE_HEADER_SIZE]
            if len(header) < PAGE_HEADER_SIZE:
                return  # A partial that ends inside a header.
            if header[:PAGE_HEADER_SIZE] == _NO_HEADER and lsn + offset != self._begin_lsn:
                self._filler_lsn = self._filler_lsn or lsn + offset
            elif self._filler_lsn is not None:
                filler = f"{format_lsn(self._filler_lsn)} to {format_lsn(lsn + offset)}"
                raise SourceCorrupt(f"{self._what} is zero from {filler}")
            else:
                self._magic = _check_header(
                    header, lsn + offset, self._begin_lsn, self._tli, self._magic, self._origin, self._what
                )
            offset += PAGE_SIZE


def check_pages(path: Path, tli: int, begin_lsn: Lsn, size: int, origin: Origin, what: str) -> None:
    """Check a file: see PageCheck.

    Raises:
        SourceCorrupt: it is not this WAL.
    """
    check = PageCheck(tli, begin_lsn, size, origin, what)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            check.feed(chunk)
    check.finish()


def _check_header(header: bytes, lsn: Lsn, begin_lsn: Lsn, tli: int, magic: int, origin: Origin, what: str) -> int:
    """Check one page's header; return its magic."""
    found_magic, flags, page_tli, address, _ = PAGE_HEADER.unpack_from(header)
    if found_magic not in MAJOR_OF_MAGIC or magic not in (0, found_magic):
        raise SourceCorrupt(f"{what} has a page at {format_lsn(lsn)} that is not WAL: its magic is {found_magic:04X}")
    if address != lsn:
        raise SourceCorrupt(f"{what} has a page at {format_lsn(lsn)} that belongs to {format_lsn(address)}")
    if not 0 < page_tli <= tli:
        raise SourceCorrupt(f"{what} has a page at {format_lsn(lsn)} of timeline {page_tli}")
    if bool(flags & LONG_HEADER) != (lsn == begin_lsn):
        raise SourceCorrupt(f"{what} has a page at {format_lsn(lsn)} with the flags {flags:04X}")
    if flags & LONG_HEADER and len(header) >= LONG_PAGE_HEADER_SIZE:
        system_id, segment_size, page_size = LONG_PAGE_HEADER_TAIL.unpack_from(header, PAGE_HEADER_SIZE)
        if system_id != origin.system_id:
            raise SourceCorrupt(f"{what} is WAL of the system {system_id}, not of {origin.system_id}")
        if (segment_size, page_size) != (origin.segment_size, PAGE_SIZE):
            raise SourceCorrupt(f"{what} has segments of {segment_size} and pages of {page_size} bytes")
    return int(found_magic)
