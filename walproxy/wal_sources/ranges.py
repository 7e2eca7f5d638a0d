"""Which bytes of a log the files of several timelines hold together.

Every file begins where its segment does, and bears the name of one timeline. A path, a timeline with its ancestors,
uses a file of an ancestor up to where that was left. The segment with a fork inside may lie there under both names: the
child's file has the parent's bytes below the fork, so it is as good as the parent's there.

Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn, segment_name, segment_start
from safekeeper.waldecode.format import (
    LONG_HEADER,
    LONG_PAGE_HEADER_SIZE,
    LONG_PAGE_HEADER_TAIL,
    PAGE_HEADER,
    PAGE_SIZE,
)
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceCorrupt, WalMissing


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
        extents_of: what the files of one timeline hold, also the bytes before it left its parent.
    """
    found, began_lsn = [], 0
    for tli, left_lsn in (*path.lineage, (path.tli, LSN_MAX)):
        first_lsn = segment_start(began_lsn, path.segment_size)  # A file of this timeline that begins before is no use.
        for extent in extents_of(tli):
            begin_lsn, end_lsn = max(extent.begin_lsn, first_lsn), min(extent.end_lsn, left_lsn)
            if begin_lsn < end_lsn:
                found.append(Extent(begin_lsn, end_lsn))
        began_lsn = left_lsn
    return union(found)


def extents_of_files(path: LogPath, ends: Mapping[tuple[int, Lsn], Lsn]) -> list[Extent]:
    """Return which bytes of `path` are in files.

    Args:
        ends: (TLI, start of the segment) to the end of the bytes that there are of it.
    """
    by_tli: dict[int, list[Extent]] = {}
    for (tli, begin_lsn), end_lsn in ends.items():
        by_tli.setdefault(tli, []).append(Extent(begin_lsn, end_lsn))
    return extents_along(path, lambda tli: by_tli.get(tli, ()))


def later_of(segments: Iterable[tuple[int, Lsn]], tli: int, begin_lsn: Lsn, segment_size: int) -> str | None:
    """Return the name of the first of these files that is one of `tli` after the segment at `begin_lsn`."""
    later_lsn = min((each for each_tli, each in segments if each_tli == tli and each > begin_lsn), default=None)
    return segment_name(tli, later_lsn, segment_size) if later_lsn is not None else None


def reach_of(extents: Iterable[Extent], begin_lsn: Lsn) -> Lsn:
    """Return how far the bytes from `begin_lsn` on are there without a hole: that if there is none."""
    return max(
        (extent.end_lsn for extent in extents if extent.begin_lsn <= begin_lsn < extent.end_lsn), default=begin_lsn
    )


def next_of(extents: Iterable[Extent], lsn: Lsn) -> Lsn | None:
    """Return the first byte at or after `lsn` that is there; None if there is none."""
    return min((max(extent.begin_lsn, lsn) for extent in extents if extent.end_lsn > lsn), default=None)


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


def check_first_page(segment: memoryview, begin_lsn: Lsn, tli: int, origin: Origin, what: str) -> None:
    """Check that a segment that begins with these bytes is one of this system, and the one that it is called.

    Args:
        segment: its beginning; too few bytes pass.
        tli: the timeline in its name.
        what: the file, for a person.

    Raises:
        SourceCorrupt: it is not.
    """
    if len(segment) < LONG_PAGE_HEADER_SIZE:
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
