"""What a source of WAL is: the archive, a running safekeeper, or the data folder of a stopped one.

A source is asked for a segment and answers with offers, the best first: which bytes of it there are, and how to get
them. It answers "nothing" only when it is sure; when it cannot be asked it raises SourceUnavailable, because recovery
that takes "cannot say" for "not there" ends early and loses commits.

`LogPath` is the WAL of one timeline together with its ancestors: what one recovery replays. A segment of it can bear
the name of several timelines, since the segment with a fork inside exists under the parent's name and the child's.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import LSN_MAX, Lsn, segment_name, segment_start
from safekeeper.base.timelines import Lineage, tli_of_byte


class SourceUnavailable(WalproxyError):
    """A source cannot be asked at the moment. What it has is not known."""


class SourceCorrupt(WalproxyError):
    """A source has the file, but not the bytes that it should have."""


class SourceLacks(WalproxyError):
    """A source turns out not to have what it offered: it was removed meanwhile."""


class Origin(NamedTuple):
    """Whose WAL a source has."""

    system_id: int
    segment_size: int


class Offer(NamedTuple):
    """Bytes of one segment that a source can deliver.

    Attributes:
        source: the source's name, for messages.
        begin_lsn, end_lsn: which bytes; begin_lsn is the segment's start.
        committed_lsn: bytes below it are known to be committed; end_lsn or more if all of them are.
        write: writes exactly these bytes to a new file of that path. Raises SourceUnavailable, SourceCorrupt,
            SourceLacks; whatever it has left at the path then means nothing.
    """

    source: str
    begin_lsn: Lsn
    end_lsn: Lsn
    committed_lsn: Lsn
    write: Callable[[Path], None]

    @property
    def is_committed(self) -> bool:
        """Whether no byte of it may have been given up by the cluster."""
        return self.end_lsn <= self.committed_lsn


Pieces = Mapping[tuple[int, Lsn], Lsn]
"""What a source has: (TLI, start of the segment) to the end of the bytes that it has of it."""


class LogPath(NamedTuple):
    """The WAL of timeline `tli` and of its ancestors."""

    tli: int
    lineage: Lineage
    segment_size: int

    def tli_of(self, lsn: Lsn) -> int:
        """Return the timeline of byte `lsn`."""
        return tli_of_byte(self.tli, self.lineage, lsn)

    def name_of(self, lsn: Lsn) -> str:
        """Return PostgreSQL's name of the segment that holds byte `lsn`, under the timeline of its last byte."""
        last_lsn = segment_start(lsn, self.segment_size) + self.segment_size - 1
        return segment_name(self.tli_of(last_lsn), lsn, self.segment_size)

    def names(self, begin_lsn: Lsn) -> list[tuple[int, Lsn]]:
        """Return the timelines whose file of this segment holds bytes of this path, each with where these end.

        The newest first, which is the order in which PostgreSQL asks for them.
        """
        end_lsn = begin_lsn + self.segment_size
        found, began_lsn = [], 0
        for tli, left_lsn in (*self.lineage, (self.tli, LSN_MAX)):
            if began_lsn < end_lsn and left_lsn > begin_lsn:
                found.append((tli, min(left_lsn, end_lsn)))
            began_lsn = left_lsn
        return found[::-1]

    def common_end(self, other: "LogPath") -> Lsn:
        """Return the LSN up to which every byte of this path belongs to the same timeline as in `other`."""
        ours, theirs = ((*path.lineage, (path.tli, LSN_MAX)) for path in (self, other))
        common_lsn = 0
        for (tli, left_lsn), (other_tli, other_left_lsn) in zip(ours, theirs, strict=False):
            if tli != other_tli:
                break
            common_lsn = min(left_lsn, other_left_lsn)
            if left_lsn != other_left_lsn:
                break
        return common_lsn


class WalSource(Protocol):
    """One source. Blocking; may be used by several threads at once.

    All methods raise SourceUnavailable if it cannot be asked, and ConfigurationError or ArchiveRefused if asking again
    is of no use.
    """

    name: str

    def origin(self) -> Origin:
        """Return whose WAL it has."""
        ...

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        """Return what it has of the segment that timeline `tli` calls its own, the best first.

        Raises:
            SourceCorrupt: it has something under that name that contradicts itself.
        """
        ...

    def history(self, tli: int) -> bytes | None:
        """Return the history file of `tli`, None if it has none.

        Raises:
            SourceCorrupt: it has one that cannot be used.
        """
        ...

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        """Return the name of a file of `tli` behind the segment that begins at `begin_lsn`; None if it has none."""
        ...

    def reach(self, path: LogPath, begin_lsn: Lsn) -> Lsn:
        """Return how far the bytes of `path` are here without a hole from `begin_lsn` on: that if there is none."""
        ...

    def next_after(self, path: LogPath, lsn: Lsn) -> Lsn | None:
        """Return the first byte of `path` at or behind `lsn` that is here; None if there is none."""
        ...


def reach_of(pieces: Pieces, path: LogPath, begin_lsn: Lsn) -> Lsn:
    """Return how far `pieces` hold the bytes of `path` without a hole from `begin_lsn` on."""
    reached_lsn = begin_lsn
    while True:
        segment_lsn = segment_start(reached_lsn, path.segment_size)
        ends = [min(pieces.get((tli, segment_lsn), 0), end_lsn) for tli, end_lsn in path.names(segment_lsn) if end_lsn]
        longest_lsn = max(ends, default=0)
        if longest_lsn <= reached_lsn:
            return reached_lsn
        reached_lsn = longest_lsn


def next_of(pieces: Pieces, path: LogPath, lsn: Lsn) -> Lsn | None:
    """Return the first byte of `path` at or behind `lsn` that `pieces` hold; None if there is none."""
    found = [
        max(begin_lsn, lsn)
        for (tli, begin_lsn), end_lsn in pieces.items()
        for name_tli, useful_end_lsn in path.names(begin_lsn)
        if name_tli == tli and min(end_lsn, useful_end_lsn) > max(begin_lsn, lsn)
    ]
    return min(found, default=None)


def later_of(pieces: Pieces, tli: int, begin_lsn: Lsn, segment_size: int) -> str | None:
    """Return the name of the first file of `tli` behind the segment at `begin_lsn`; None if there is none."""
    later = [each_lsn for each_tli, each_lsn in pieces if each_tli == tli and each_lsn > begin_lsn]
    return segment_name(tli, min(later), segment_size) if later else None
