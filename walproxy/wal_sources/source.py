"""Sources of WAL: an archive, running safekeepers, the data folder of a stopped one, a folder of segments.

Each source reports which system wrote its WAL, and which bytes of a log it has. It reports "nothing" only when that is
certain; a source that cannot be read raises SourceUnavailable, because recovery that takes "unknown" for "missing" ends
early and loses commits. Beyond that there are two ways to read one:

- Recovery requests files by their names, as PostgreSQL does: offers of one segment, the best first.
- The pipeline requests bytes of a log, in whichever files they are.

`LogPath` is the WAL of one timeline together with its ancestors: what one recovery replays. A segment of it can bear
the name of several timelines, since the segment with a fork inside exists under the parent's name and the child's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import LSN_MAX, Lsn, segment_name, segment_start
from safekeeper.base.timelines import Lineage, tli_of_byte


class SourceUnavailable(WalproxyError):
    """A source cannot be read at the moment. Its content is not known."""


class SourceCorrupt(WalproxyError):
    """A source has the file, but not the bytes that it should have."""


class WalMissing(WalproxyError):
    """The requested WAL is missing: never written yet, removed, also since it was offered, or a hole."""


class Origin(NamedTuple):
    """The system that wrote the WAL of a source."""

    system_id: int
    segment_size: int


class Extent(NamedTuple):
    """Bytes [begin_lsn, end_lsn) of a log that are all there."""

    begin_lsn: Lsn
    end_lsn: Lsn


class Offer(NamedTuple):
    """Bytes of one segment that a source can deliver.

    Attributes:
        source: the source's name, for messages.
        begin_lsn, end_lsn: which bytes; begin_lsn is the segment's start.
        committed_lsn: bytes below it are known to be committed; end_lsn or more if all of them are.
        write: writes exactly these bytes to a new file of that path. Raises SourceUnavailable, SourceCorrupt,
            WalMissing; whatever it has left at the path then means nothing.
    """

    source: str
    begin_lsn: Lsn
    end_lsn: Lsn
    committed_lsn: Lsn
    write: Callable[[Path], None]

    @property
    def is_committed(self) -> bool:
        """Whether all of its bytes are known to be committed."""
        return self.end_lsn <= self.committed_lsn


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

    def ancestor(self, tli: int) -> "LogPath":
        """Return the path of an ancestor, whose own ancestors are the first of these."""
        return self._replace(tli=tli, lineage=tuple((each, left_lsn) for each, left_lsn in self.lineage if each < tli))

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

    All methods raise SourceUnavailable if it cannot be read now, and ConfigurationError or ArchiveRefused if a retry
    cannot help.

    Attributes:
        name: how messages call it, without credentials.
    """

    name: str

    def origin(self) -> Origin:
        """Return whose WAL it has."""
        ...

    def extents(self, path: LogPath, begin_lsn: Lsn = 0) -> list[Extent]:
        """Return which bytes of `path` are there now, ascending, with holes between them. May be called each second.

        Args:
            begin_lsn: what lies before may be left out, where that is less work.
        """
        ...


class SegmentSource(WalSource, Protocol):
    """A source of files, as PostgreSQL requests them from a restore_command."""

    def offers(self, tli: int, begin_lsn: Lsn) -> list[Offer]:
        """Return what it has of the segment that timeline `tli` calls its own, the best first.

        Raises:
            SourceCorrupt: it has something under that name that contradicts itself.
        """
        ...

    def history(self, tli: int) -> bytes | None:
        """Return the history file of `tli`, one without ancestors if a promotion passed it over, None if it has none.

        Raises:
            SourceCorrupt: it has one that cannot be used.
        """
        ...

    def has_later(self, tli: int, begin_lsn: Lsn) -> str | None:
        """Return the name of a file of `tli` after the segment that begins at `begin_lsn`; None if it has none."""
        ...


class ByteSource(WalSource, Protocol):
    """A source of the bytes of a log, repeatedly while the log grows.

    What it has once reported as present is committed, as far as that can be known: an archive holds committed WAL only,
    and safekeepers serve nothing else; a folder has what its server has written.
    """

    def log_path(self, tli: int | None = None) -> LogPath:
        """Return a timeline with its ancestors; the newest one if none is named. Each call asks the source again.

        Raises:
            WalMissing: there is no such timeline, or no WAL at all.
            SourceCorrupt: its history cannot be used.
        """
        ...

    def read_into(self, path: LogPath, begin_lsn: Lsn, room: memoryview) -> None:
        """Fill `room`, a writable view of bytes, with the bytes of `path` from `begin_lsn` on, raw.

        Raises:
            WalMissing: some of them are not there; the message names the file.
            SourceCorrupt: a file does not have the bytes that it should.
        """
        ...
