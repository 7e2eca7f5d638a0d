"""Determines which WAL an archive contains, along PostgreSQL's timelines.

A file is named by the timeline of its last byte. So the segment in which timeline 2 left timeline 1 is stored under the
name of timeline 2, and its bytes below the fork are those of timeline 1. A file of timeline 1 for the same segment may
exist, too, and can replace the other one below the fork. The WAL of a timeline is therefore collected along its
lineage: each ancestor's file counts up to the fork at which the lineage left that ancestor, and of the files of each
segment the one that reaches furthest counts.

Pure: it interprets a listing, and does no I/O.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from safekeeper.archive.objects import ArchivedFile, ArchivedObject, Listing
from safekeeper.base.lsn import LSN_MAX, Lsn, segment_name, segment_start
from safekeeper.base.timelines import Lineage, timeline_history_name, tli_of_byte


class ArchivedRange(NamedTuple):
    """Bytes [begin_lsn, end_lsn) of the timeline `tli`, all of which are in the archive."""

    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn
    ends_with_partial: bool


class Hole(NamedTuple):
    """Bytes [begin_lsn, end_lsn) of `tli` that are not in the archive, although bytes before and after them are.

    A missing history file is a hole of no bytes, where its timeline begins.

    Attributes:
        missing: the name of the first file that would fill it.
    """

    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn
    missing: str


class _Stretch(NamedTuple):
    """Bytes [begin_lsn, end_lsn) along one lineage, without a hole."""

    begin_lsn: Lsn
    end_lsn: Lsn
    ends_with_partial: bool


class Catalog:
    """The content of an archive.

    Attributes:
        listing: the listing from which it was made.
        timelines: every TLI that has a segment, a partial or a history file, ascending.
        histories: the ancestors of each TLI whose history file exists and is valid.
    """

    def __init__(self, listing: Listing, segment_size: int, histories: Mapping[int, Lineage]) -> None:
        self.listing = listing
        self.segment_size = segment_size
        self.histories = dict(histories)
        self._files: dict[int, dict[Lsn, ArchivedFile]] = {}  # By TLI and begin_lsn: the one that reaches furthest.
        for file in sorted((archived.file for archived in listing.objects), key=lambda file: file.end_lsn):
            if file.kind != "history":
                self._files.setdefault(file.tli, {})[file.begin_lsn] = file
        named = {archived.file.tli for archived in listing.objects}
        self.timelines = tuple(sorted(named | self.histories.keys()))
        self._known_stretches: dict[int, list[_Stretch]] = {}

    def chain(self, tli: int, begin_lsn: Lsn) -> Lsn:
        """Return how far the WAL of `tli` and its ancestors reaches without a hole from `begin_lsn`."""
        for stretch in self._stretches(tli):
            if stretch.begin_lsn <= begin_lsn < stretch.end_lsn:
                return stretch.end_lsn
        return begin_lsn

    def ranges(self) -> list[ArchivedRange]:
        """Return the archived ranges, by timeline and LSN. The bytes before a fork are the parent's."""
        by_tli: dict[int, list[ArchivedRange]] = {}
        for tli in self.timelines:
            for stretch in self._stretches(tli):
                for owner, begin_lsn, end_lsn in self._by_owner(tli, stretch.begin_lsn, stretch.end_lsn):
                    ends_with_partial = stretch.ends_with_partial and end_lsn == stretch.end_lsn
                    found = ArchivedRange(owner, begin_lsn, end_lsn, ends_with_partial)
                    by_tli.setdefault(owner, []).append(found)
        return [found for tli in sorted(by_tli) for found in _joined_ranges(by_tli[tli])]

    def holes(self) -> list[Hole]:
        """Return the holes that a recovery along some timeline would meet, by timeline and LSN."""
        histories: list[Hole] = []
        by_tli: dict[int, list[Hole]] = {}
        for tli in self.timelines:
            stretches = self._stretches(tli)
            if tli > 1 and tli not in self.histories:
                begin_lsn = stretches[0].begin_lsn if stretches else 0
                histories.append(Hole(tli, begin_lsn, begin_lsn, timeline_history_name(tli)))
            for before, after in pairwise(stretches):
                for owner, begin_lsn, end_lsn in self._by_owner(tli, before.end_lsn, after.begin_lsn):
                    by_tli.setdefault(owner, []).append(Hole(owner, begin_lsn, end_lsn, self._name(tli, begin_lsn)))
        return sorted([*histories, *(hole for holes in by_tli.values() for hole in _joined_holes(holes))])

    def _stretches(self, tli: int) -> list[_Stretch]:
        """Return the ranges that can be read along the lineage of `tli`, ascending."""
        stretches = self._known_stretches.get(tli)
        if stretches is None:
            stretches = self._known_stretches[tli] = _joined_stretches(self._reach(tli))
        return stretches

    def _reach(self, tli: int) -> dict[Lsn, tuple[Lsn, bool]]:
        """Return for each segment the end of its archived bytes of this lineage, and whether a partial ends there."""
        reach: dict[Lsn, tuple[Lsn, bool]] = {}
        for owner, limit_lsn in (*self.histories.get(tli, ()), (tli, LSN_MAX)):
            for begin_lsn, file in self._files.get(owner, {}).items():
                end_lsn = min(file.end_lsn, limit_lsn)
                if begin_lsn < end_lsn > reach.get(begin_lsn, (0, False))[0]:
                    reach[begin_lsn] = end_lsn, file.kind == "partial"
        return reach

    def _by_owner(self, tli: int, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[tuple[int, Lsn, Lsn]]:
        """Yield the parts (owner, begin_lsn, end_lsn) of a range of the lineage of `tli`, split at its forks."""
        for owner, limit_lsn in (*self.histories.get(tli, ()), (tli, LSN_MAX)):
            if begin_lsn < min(end_lsn, limit_lsn):
                yield owner, begin_lsn, min(end_lsn, limit_lsn)
                begin_lsn = min(end_lsn, limit_lsn)

    def _name(self, tli: int, lsn: Lsn) -> str:
        """Return the name of the segment that contains byte `lsn` of the lineage of `tli`."""
        last_lsn = segment_start(lsn, self.segment_size) + self.segment_size - 1
        return segment_name(tli_of_byte(tli, self.histories.get(tli, ()), last_lsn), lsn, self.segment_size)


def best_first(archived: ArchivedObject) -> tuple[Lsn, bool]:
    """Return a key to sort objects of one segment: the longest first, then those that need no decompression."""
    return -archived.file.end_lsn, archived.compressed


def _joined_stretches(reach: Mapping[Lsn, tuple[Lsn, bool]]) -> list[_Stretch]:
    """Join segments that follow each other without a hole."""
    stretches: list[_Stretch] = []
    for begin_lsn in sorted(reach):
        end_lsn, is_partial = reach[begin_lsn]
        if stretches and stretches[-1].end_lsn == begin_lsn:
            begin_lsn = stretches.pop().begin_lsn
        stretches.append(_Stretch(begin_lsn, end_lsn, is_partial))
    return stretches


def _joined_ranges(ranges: Iterable[ArchivedRange]) -> list[ArchivedRange]:
    """Return the union of ranges of one timeline: several lineages share their ancestors' bytes."""
    joined: list[ArchivedRange] = []
    for found in sorted(ranges):
        last = joined[-1] if joined else None
        if last is None or found.begin_lsn > last.end_lsn:
            joined.append(found)
        elif found.end_lsn > last.end_lsn:
            joined[-1] = ArchivedRange(found.tli, last.begin_lsn, found.end_lsn, found.ends_with_partial)
        elif found.end_lsn == last.end_lsn and not found.ends_with_partial:
            joined[-1] = last._replace(ends_with_partial=False)
    return joined


def _joined_holes(holes: Iterable[Hole]) -> list[Hole]:
    """Return the union of holes of one timeline."""
    joined: list[Hole] = []
    for hole in sorted(holes, key=lambda hole: (hole.begin_lsn, hole.end_lsn)):
        last = joined[-1] if joined else None
        if last is None or hole.begin_lsn > last.end_lsn:
            joined.append(hole)
        elif hole.end_lsn > last.end_lsn:
            joined[-1] = last._replace(end_lsn=hole.end_lsn)
    return joined
