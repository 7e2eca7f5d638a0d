"""The records that make a page at an LSN: an image to begin with, and the later ones that change it.

The log is read backwards from that LSN, a segment at a time, until an image of the page is found, or a record that
begins with an empty one; before the beginning of the base backup nothing matters, for the backup has the page. The
table `page_versions` has the same of every piece that the pipeline has processed, so that these need not be read;
only the piece with the last record is decoded nevertheless, to show what that record does.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow.dataset as ds

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.decoder.decode import Decoded, Workspace
from walproxy.pipeline.decoder.opcodes import operation_name, rmgr_name
from walproxy.pipeline.input.pieces import PlannedPiece, decode_piece
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table
from walproxy.pipeline.pages.relation import PageId
from walproxy.pipeline.schemas import arrow_schema
from walproxy.wal_sources.source import Extent, LogPath

_VIEW: Final = "page_versions"
# A record of this kind refers to a page of the heap whose LSN it leaves alone, unless the cluster has checksums or
# logs hints: heap_xlog_visible().
_LEAVES_LSN: Final = ("Heap2", "VISIBLE")


class PageChange(NamedTuple):
    """A record that changes the page.

    Attributes:
        makes_page: it holds an image that redo puts in place, or begins with an empty page.
        sets_lsn: the page's header has its end afterwards, for certain.
    """

    lsn: Lsn
    end_lsn: Lsn
    rmgr: str
    operation: str
    makes_page: bool
    sets_lsn: bool


class PageHistory(NamedTuple):
    """The records that made a page.

    Attributes:
        image_lsn: the record that it begins with; None if that is the base backup's page.
        records_since_image: how many have changed it since.
        last: the last record; None if nothing has changed the page since the backup.
        possible_lsns: that the page's header can have, the newest first.
        or_older: it can also have an LSN before all of these.
    """

    image_lsn: Lsn | None
    records_since_image: int
    last: PageChange | None
    possible_lsns: list[Lsn]
    or_older: bool

    def allows(self, page_lsn: Lsn) -> bool:
        """Return whether a page with this LSN in its header is the one that these records make."""
        is_older = not self.possible_lsns or page_lsn < self.possible_lsns[-1]
        return page_lsn in self.possible_lsns or (self.or_older and is_older)


class RecordPosition(NamedTuple):
    """The position of a record."""

    lsn: Lsn
    end_lsn: Lsn


class LogReader:
    """The WAL of one path, from the beginning of a backup on, in pieces of a segment."""

    def __init__(self, wal_input: WalInput, path: LogPath, pieces: Sequence[PlannedPiece]) -> None:
        self.path = path
        self.pieces = pieces
        self._input = wal_input
        self._workspace = Workspace()

    def decode(self, piece: PlannedPiece) -> Decoded:
        """Decode a piece; what was decoded before is void.

        Raises:
            As decode_piece.
        """
        return decode_piece(self._input, self.path, piece, workspace=self._workspace)

    def last_record(self, at_lsn: Lsn) -> RecordPosition | None:
        """Return the last record that ends at or before `at_lsn`; None if there is none.

        Recovery that stops right after it has replayed what was complete at that LSN, and no more.
        """
        for piece in reversed(self.pieces):
            if piece.begin_lsn >= at_lsn:
                continue
            decoded = self.decode(piece)
            count = int(np.searchsorted(decoded.end_lsn, at_lsn, side="right"))
            if count:
                return RecordPosition(int(decoded.lsn[count - 1]), int(decoded.end_lsn[count - 1]))
        return None


class _Part(NamedTuple):
    """The records of one piece that concern the page."""

    piece: PlannedPiece
    records: int
    image_lsn: Lsn | None
    records_since_image: int


def history_of(log: LogReader, page: PageId, at_lsn: Lsn, tables: Path | None = None) -> PageHistory:
    """Return how the page came about that all records make that end at or before `at_lsn`.

    Args:
        tables: a folder with the table `page_versions`, of pieces of this log.

    Raises:
        As decode_piece; ConfigurationError: there is no such table.
    """
    known = _KnownParts(tables, page, at_lsn) if tables is not None else None
    image_lsn = None
    since_image = 0
    newest: PlannedPiece | None = None
    for piece in reversed(log.pieces):
        if piece.begin_lsn >= at_lsn:
            continue
        part = known.part(piece) if known is not None and piece.end_lsn <= at_lsn else None
        if part is None:
            part = _part_of(piece, changes(log.decode(piece), page, at_lsn))
        if part.records and newest is None:
            newest = piece
        since_image += part.records_since_image
        if part.image_lsn is not None:
            image_lsn = part.image_lsn
            break
    if newest is None:
        return PageHistory(None, 0, None, [], True)
    found = changes(log.decode(newest), page, at_lsn)
    possible = []
    for change in reversed(found):
        possible.append(change.end_lsn)
        if change.sets_lsn:
            break
    return PageHistory(image_lsn, since_image, found[-1], possible, not any(change.sets_lsn for change in found))


def changes(decoded: Decoded, page: PageId, at_lsn: Lsn) -> list[PageChange]:
    """Return the records of a piece that change the page and end at or before `at_lsn`."""
    relation = page.relation
    wanted = (
        (decoded.relation == relation.relation)
        & (decoded.block == page.block)
        & (decoded.fork == page.fork)
        & (decoded.database == relation.database)
        & (decoded.tablespace == relation.tablespace)
    )
    makes = wanted & (decoded.image_applied | decoded.will_init)
    makers = set(decoded.block_record[makes].tolist())
    found = []
    for record in np.unique(decoded.block_record[wanted]).tolist():
        if decoded.end_lsn[record] > at_lsn:
            break
        rmid, info = int(decoded.rmid[record]), int(decoded.info[record])
        what = (rmgr_name(rmid), operation_name(decoded.major, rmid, info))
        sets_lsn = record in makers or not (what[0] == _LEAVES_LSN[0] and what[1].startswith(_LEAVES_LSN[1]))
        found.append(
            PageChange(
                int(decoded.lsn[record]),
                int(decoded.end_lsn[record]),
                *what,
                makes_page=record in makers,
                sets_lsn=sets_lsn or page.fork != 0,
            )
        )
    return found


def _part_of(piece: PlannedPiece, found: Sequence[PageChange]) -> _Part:
    image = max((index for index, change in enumerate(found) if change.makes_page), default=-1)
    image_lsn = found[image].lsn if image >= 0 else None
    return _Part(piece, len(found), image_lsn, len(found) - 1 - image)


class _KnownParts:
    """The rows of the table `page_versions` about one page, and the WAL that the table covers."""

    def __init__(self, tables: Path, page: PageId, at_lsn: Lsn) -> None:
        columns = ["begin_lsn", "end_lsn", "records", "last_end_lsn", "image_lsn", "records_since_image"]
        relation = page.relation
        location = LakeLocation(str(tables.absolute()))
        with open_lake_table(location, _VIEW, schema=arrow_schema(_VIEW), create=False) as table:
            is_page = (
                (ds.field("relation") == relation.relation)
                & (ds.field("block") == page.block)
                & (ds.field("fork") == page.fork)
                & (ds.field("database") == relation.database)
                & (ds.field("tablespace") == relation.tablespace)
                & (ds.field("begin_lsn") < at_lsn)
            )
            self._rows = sorted(table.to_arrow(columns, is_page).to_pylist(), key=lambda row: row["begin_lsn"])
            bounds = table.to_arrow(["begin_lsn", "end_lsn"], ds.field("end_lsn") <= at_lsn)
        pairs = bounds.group_by(["begin_lsn", "end_lsn"]).aggregate([]).to_pylist()
        self._covered = list(_merged(sorted((pair["begin_lsn"], pair["end_lsn"]) for pair in pairs)))
        self._at_lsn = at_lsn

    def part(self, piece: PlannedPiece) -> _Part | None:
        """Return what the table has of a piece; None if it does not have all of it, or goes beyond the LSN."""
        covered = any(each.begin_lsn <= piece.begin_lsn and piece.end_lsn <= each.end_lsn for each in self._covered)
        rows = [row for row in self._rows if piece.begin_lsn <= row["begin_lsn"] < piece.end_lsn]
        if not covered or any(row["end_lsn"] > piece.end_lsn or row["last_end_lsn"] > self._at_lsn for row in rows):
            return None
        since = 0
        image_lsn = None
        for row in rows:
            image_lsn = row["image_lsn"] if row["image_lsn"] is not None else image_lsn
            since = row["records_since_image"] + (since if row["image_lsn"] is None else 0)
        return _Part(piece, sum(row["records"] for row in rows), image_lsn, since)


def _merged(ranges: Sequence[tuple[Lsn, Lsn]]) -> Iterator[Extent]:
    """Yield ascending ranges, those that touch as one."""
    current: Extent | None = None
    for begin_lsn, end_lsn in ranges:
        if current is not None and begin_lsn <= current.end_lsn:
            current = Extent(current.begin_lsn, max(current.end_lsn, end_lsn))
            continue
        if current is not None:
            yield current
        current = Extent(begin_lsn, end_lsn)
    if current is not None:
        yield current
