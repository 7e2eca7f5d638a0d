"""Which bytes of a log the files of several timelines hold together.

Every file begins where its segment does, and bears the name of one timeline. A path, a timeline with its ancestors,
uses a file of an ancestor up to where that was left. The segment with a fork inside may lie there under both names: the
child's file has the parent's bytes below the fork, so it is as good as the parent's there.

Pure.
"""

from collections.abc import Callable, Iterable, Iterator

from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn, segment_start
from safekeeper.waldecode.format import (
    LONG_HEADER,
    LONG_PAGE_HEADER_SIZE,
    LONG_PAGE_HEADER_TAIL,
    PAGE_HEADER,
    PAGE_SIZE,
)
from walproxy.pipeline.input.wal_input import Buffer, Extent, WalMissing
from walproxy.wal_sources.source import LogPath, Origin, SourceCorrupt


def union(ranges: Iterable[Extent]) -> list[Extent]:
    """Return what ranges cover together, ascending, as few ranges as possible."""
    joined: list[Extent] = []
    for extent in sorted(ranges):
        if not joined or extent.begin_lsn > joined[-1].end_lsn:
            joined.append(extent)
        elif extent.end_lsn > joined[-1].end_lsn:
            joined[-1] = joined[-1]._replace(end_lsn=extent.end_lsn)
    return joined


def extents_along(path: LogPath, extents_of: Callable[[int], Iterable[Extent]]) -> list[Extent]:
    """Return which bytes of `path` are there.

    Args:
        extents_of: what the files of one timeline hold, whoever's bytes these are.
    """
    return union(
        Extent(extent.begin_lsn, min(extent.end_lsn, left_lsn))
        for tli, left_lsn in (*path.lineage, (path.tli, LSN_MAX))
        for extent in extents_of(tli)
        if extent.begin_lsn < left_lsn
    )


def by_segment(begin_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> Iterator[Extent]:
    """Yield [begin_lsn, end_lsn) cut at the borders of segments."""
    while begin_lsn < end_lsn:
        border_lsn = min(segment_start(begin_lsn, segment_size) + segment_size, end_lsn)
        yield Extent(begin_lsn, border_lsn)
        begin_lsn = border_lsn


def missing(name: str, path: LogPath, begin_lsn: Lsn, end_lsn: Lsn) -> WalMissing:
    """Return the error of bytes that are not in the input called `name`."""
    return WalMissing(
        f"{name} has no {path.name_of(begin_lsn)} with the WAL from {format_lsn(begin_lsn)} to {format_lsn(end_lsn)}"
    )


def check_first_page(segment: Buffer, begin_lsn: Lsn, tli: int, origin: Origin, what: str) -> None:
    """Check that a segment that begins with these bytes is one of this system, and the one that it is called.

    Args:
        segment: its beginning; too few bytes pass.
        tli: whose name it bears.
        what: the file, for a person.

    Raises:
        SourceCorrupt: it is not.
    """
    if segment.nbytes < LONG_PAGE_HEADER_SIZE:
        return
    header = segment[:LONG_PAGE_HEADER_SIZE].tobytes()
    _, flags, page_tli, address, _ = PAGE_HEADER.unpack_from(header)
    system_id, segment_size, page_size = LONG_PAGE_HEADER_TAIL.unpack_from(header, PAGE_HEADER.size)
    if not flags & LONG_HEADER:
        problem = f"does not begin with a header of WAL at {format_lsn(begin_lsn)}"
    elif system_id != origin.system_id:
        problem = f"is WAL of the system {system_id}, not of {origin.system_id}"
    elif (segment_size, page_size) != (origin.segment_size, PAGE_SIZE):
        problem = f"has segments of {segment_size} and pages of {page_size} bytes, not of {origin.segment_size}"
    elif address != begin_lsn or not 0 < page_tli <= tli:
        problem = f"has at {format_lsn(begin_lsn)} a page of {format_lsn(address)} on timeline {page_tli}"
    else:
        return
    raise SourceCorrupt(f"{what} {problem}: it was put there by mistake, or is damaged")
