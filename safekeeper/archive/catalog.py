"""Which WAL an archive holds, along PostgreSQL's timelines. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from safekeeper.archive.objects import ArchivedObject, Listing
from safekeeper.lsn import Lsn
from safekeeper.timelines import Lineage


class ArchivedRange(NamedTuple):
    """Bytes [begin_lsn, end_lsn) of the timeline `tli` that are all in the archive."""

    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn
    ends_with_partial: bool


class Hole(NamedTuple):
    """Bytes [begin_lsn, end_lsn) of `tli` that are not in the archive, though bytes before and after them are.

    A history file that is missing is a hole of no bytes.

    Attributes:
        missing: the name of the first file that would fill it.
    """

    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn
    missing: str


class Catalog:
    """What is in an archive.

    Attributes:
        listing: what it was made from.
        timelines: every TLI that has a segment, a partial or a history file, ascending.
        histories: the ancestors of each TLI whose history file is there and understood.
    """

    listing: Listing
    segment_size: int
    timelines: tuple[int, ...]
    histories: Mapping[int, Lineage]

    def __init__(self, listing: Listing, segment_size: int, histories: Mapping[int, Lineage]) -> None:
        raise NotImplementedError

    def find(self, tli: int, begin_lsn: Lsn) -> ArchivedObject | None:
        """Return the file of `tli` for the segment that holds byte `begin_lsn`: whole, else the longest partial."""
        raise NotImplementedError

    def candidates(self, tli: int, begin_lsn: Lsn) -> list[ArchivedObject]:
        """Return all objects that `find` chooses from, the best first."""
        raise NotImplementedError

    def chain(self, tli: int, begin_lsn: Lsn) -> Lsn:
        """Return how far the WAL of `tli` and its ancestors reaches without a hole from `begin_lsn`."""
        raise NotImplementedError

    def ranges(self) -> list[ArchivedRange]:
        """Return what is there, by timeline and LSN. The bytes before a fork are the parent's."""
        raise NotImplementedError

    def holes(self) -> list[Hole]:
        """Return what is missing, by timeline and LSN."""
        raise NotImplementedError
