"""Cut the WAL that a job reads into pieces that tasks can share, each with what its last record needs beyond it.

A piece is at most one segment, so that one object of an archive is read once. A record belongs to the piece that holds
its first byte. The last one may go on in the next segment, or in many: the header of the page at the border has how
far, and that much more is read. Where the WAL ends, or ends before a hole, a record that is not wholly there is left
out; a later read finds it again, if the end of what was read is a `safe_end`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.waldecode.format import ALIGNMENT, PAGE_SIZE, page_header_size
from walproxy.pipeline.input.wal_input import Buffer, WalInput
from walproxy.wal_sources.ranges import by_segment
from walproxy.wal_sources.source import Extent, LogPath, SourceCorrupt, WalMissing

if TYPE_CHECKING:
    from walproxy.pipeline.decoder.decode import Decoded, Workspace

# Enough for nearly every record that begins on the last page; it is one request to a remote store.
_LOOK_AHEAD_BYTES = 8 * PAGE_SIZE
_HEADERS_AT_ONCE = 8
_HEADERS_AT_ONCE_MAX = 1024

UNLIMITED_LSN: Final = (1 << 63) - 1
AS_NEEDED_LSN: Final = UNLIMITED_LSN - 1

_log = logging.getLogger(__name__)


class PlannedPiece(NamedTuple):
    """A range of WAL to decode: the records whose first byte is in [begin_lsn, end_lsn).

    Attributes:
        begin_lsn: a page's start.
        available_lsn: up to there the WAL was there without a hole when the piece was planned. Nothing beyond is read,
            so that a task that is repeated finds the same. UNLIMITED_LSN: all that its records need is there, and the
            header of the page after them. AS_NEEDED_LSN: all that its records need, and perhaps no byte after them.
    """

    begin_lsn: Lsn
    end_lsn: Lsn
    available_lsn: Lsn


def plan_pieces(
    path: LogPath,
    extents: Sequence[Extent],
    begin_lsn: Lsn | None = None,
    end_lsn: Lsn | None = None,
    *,
    allow_gaps: bool = False,
    whole_until_lsn: Lsn | None = None,
) -> list[PlannedPiece]:
    """Return the pieces of [begin_lsn, end_lsn), cut where segments begin.

    Args:
        extents: what is there, of `WalInput.extents`.
        begin_lsn: rounded down to its page: records that begin on that page before it are in the first piece. None:
            from the first byte that is there.
        end_lsn: None: up to the last byte that is there.
        allow_gaps: WAL that is missing is passed over, and logged.
        whole_until_lsn: the `safe_end` that was found for this range, perhaps when more WAL could be seen than now.
            That a record is not wholly there is an error then, but before a gap that is allowed.

    Raises:
        ConfigurationError: the range is empty.
        WalMissing: some of it is not there.
    """
    if not extents:
        raise WalMissing(f"timeline {path.tli} has no WAL yet")
    first_lsn, last_lsn = extents[0].begin_lsn, extents[-1].end_lsn
    begin_lsn = first_lsn if begin_lsn is None else begin_lsn
    end_lsn = last_lsn if end_lsn is None else end_lsn
    if begin_lsn >= end_lsn:
        raise ConfigurationError(
            f"nothing to read from {format_lsn(begin_lsn)} to {format_lsn(end_lsn)}: the WAL goes from "
            f"{format_lsn(first_lsn)} to {format_lsn(last_lsn)}"
        )
    begin_lsn -= begin_lsn % PAGE_SIZE
    for gap in _gaps(extents, begin_lsn, end_lsn):
        problem = _missing(path, gap, first_lsn, last_lsn)
        if not allow_gaps:
            raise WalMissing(problem)
        _log.warning("%s: skipped", problem)
    return [
        PlannedPiece(*part, _available(part, extent, whole_until_lsn if end_lsn <= extent.end_lsn else None))
        for extent in extents
        for part in by_segment(max(begin_lsn, extent.begin_lsn), min(end_lsn, extent.end_lsn), path.segment_size)
    ]


def _available(part: Extent, extent: Extent, whole_until_lsn: Lsn | None) -> Lsn:
    """Return the `available_lsn` of a piece."""
    if whole_until_lsn is None:
        return extent.end_lsn
    if whole_until_lsn % PAGE_SIZE:
        return whole_until_lsn  # Within a page no record continues after a safe end.
    # At a page's boundary one may. Or it ends there, and nothing after it need be there.
    return UNLIMITED_LSN if _page_end(part.end_lsn) < whole_until_lsn else AS_NEEDED_LSN


def _page_end(lsn: Lsn) -> Lsn:
    """Return the first page boundary at or after `lsn`."""
    return -(-lsn // PAGE_SIZE) * PAGE_SIZE


def _gaps(extents: Sequence[Extent], begin_lsn: Lsn, end_lsn: Lsn) -> list[Extent]:
    """Return what of [begin_lsn, end_lsn) is not there."""
    gaps = []
    reached_lsn = begin_lsn
    for extent in (*extents, Extent(end_lsn, end_lsn)):
        if reached_lsn < min(extent.begin_lsn, end_lsn):
            gaps.append(Extent(reached_lsn, min(extent.begin_lsn, end_lsn)))
        reached_lsn = max(reached_lsn, extent.end_lsn)
    return gaps


def _missing(path: LogPath, gap: Extent, first_lsn: Lsn, last_lsn: Lsn) -> str:
    """Return what is wrong with a range of which `gap` is missing."""
    begin, end, name = format_lsn(gap.begin_lsn), format_lsn(gap.end_lsn), path.name_of(gap.begin_lsn)
    if gap.end_lsn <= first_lsn:
        return f"no WAL from {begin} on: the WAL begins at {format_lsn(first_lsn)}, begin there, or find {name}"
    if gap.begin_lsn >= last_lsn:
        return f"no WAL up to {end} yet: the WAL ends at {format_lsn(last_lsn)}, end there, or wait"
    return f"{name} is missing: no WAL from {begin} to {end}; find that file, or skip the gap with --allow-gaps"


class Room:
    """Memory that pieces are read into, one after the other: new memory costs a process as much as reading does."""

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)

    def take(self, size: int, kept: int = 0) -> Buffer:
        """Return a buffer of that size, of which the first `kept` bytes are unchanged."""
        if self._memory.nbytes < size:
            larger = np.empty(size + size // 8, dtype=np.uint8)
            larger[:kept] = self._memory[:kept]
            self._memory = larger
        return self._memory[:size]


class _OwnRoom(threading.local):
    """The buffer that each thread decodes from."""

    def __init__(self) -> None:
        self.room = Room()


_own = _OwnRoom()


def read_piece(wal_input: WalInput, path: LogPath, piece: PlannedPiece, room: Room | None = None) -> Buffer:
    """Return the WAL from the piece's begin on, up to the end of the last record that begins in it, if that is there.

    Args:
        room: where to put it; what was read into it before is lost.

    Raises:
        As WalInput.read.
    """
    from walproxy.pipeline.decoder.decode import straddler_end

    room = room or Room()
    border_lsn = min(_page_end(piece.end_lsn), piece.available_lsn)
    header_size = page_header_size(border_lsn, path.segment_size)
    if piece.available_lsn == UNLIMITED_LSN:
        look_ahead = header_size
    elif piece.available_lsn == AS_NEEDED_LSN:
        look_ahead = 0
    else:
        look_ahead = min(_LOOK_AHEAD_BYTES, piece.available_lsn - border_lsn)
    wal = _extended(wal_input, path, piece, room, 0, border_lsn + look_ahead)
    if look_ahead < header_size:
        return wal
    header = wal[border_lsn - piece.begin_lsn :][:header_size]
    record_end_lsn = straddler_end(header.tobytes(), border_lsn, path.segment_size)
    return _extended(wal_input, path, piece, room, wal.nbytes, record_end_lsn)


def decode_piece(
    wal_input: WalInput,
    path: LogPath,
    piece: PlannedPiece,
    *,
    check_crc: bool = True,
    workspace: "Workspace | None" = None,
) -> "Decoded":
    """Read and decode a piece. Its records are all there, but for one that is not wholly below `available_lsn`.

    Raises:
        SourceCorrupt: the bytes are not valid WAL of this system.
        As WalInput.read.
    """
    decoded, damage = decode_valid_part(wal_input, path, piece, check_crc=check_crc, workspace=workspace)
    if damage is not None:
        raise damage
    return decoded


def decode_valid_part(
    wal_input: WalInput,
    path: LogPath,
    piece: PlannedPiece,
    *,
    check_crc: bool = True,
    workspace: "Workspace | None" = None,
) -> "tuple[Decoded, SourceCorrupt | None]":
    """Read and decode a piece as `decode_piece` does; return also what is wrong after the last of its records.

    Raises:
        As WalInput.read.
    """
    from walproxy.pipeline.decoder.decode import decode

    wal = read_piece(wal_input, path, piece, _own.room)
    while True:
        decoded = decode(
            wal, piece.begin_lsn, piece.end_lsn, path.segment_size, check_crc=check_crc, workspace=workspace
        )
        reach_lsn = piece.begin_lsn + wal.nbytes
        if decoded.end.kind != "incomplete" or reach_lsn >= piece.available_lsn:
            break
        needed_lsn = max(decoded.end.needed_until_lsn, reach_lsn + ALIGNMENT)
        wal = _extended(wal_input, path, piece, _own.room, wal.nbytes, needed_lsn)
    _name_timelines(decoded, path)
    return decoded, _damage(wal_input, path, piece, decoded)


def _name_timelines(decoded: "Decoded", path: LogPath) -> None:
    """Correct the timelines of records right after a fork.

    The page on which a timeline was left keeps its header, and what the next one writes there follows it.
    """
    for _, left_lsn in path.lineage:
        page_end_lsn = left_lsn - left_lsn % PAGE_SIZE + PAGE_SIZE
        first, behind = np.searchsorted(decoded.lsn, (left_lsn, page_end_lsn))
        decoded.tli[first:behind] = path.tli_of(left_lsn)


def _damage(wal_input: WalInput, path: LogPath, piece: PlannedPiece, decoded: "Decoded") -> SourceCorrupt | None:
    system_id = wal_input.origin().system_id
    # After a switch record the rest of a segment is zero, and that may be where a piece begins.
    if decoded.end.kind == "invalid" and decoded.end.zeros_until_lsn < piece.end_lsn:
        return SourceCorrupt(f"{decoded.end.message}; in {path.name_of(decoded.end.lsn)} of {wal_input.name}")
    if decoded.system_id not in (0, system_id):
        return SourceCorrupt(
            f"{path.name_of(piece.begin_lsn)} of {wal_input.name} is WAL of the system {decoded.system_id}, "
            f"not of {system_id}: it was copied there by mistake"
        )
    return None


def _extended(
    wal_input: WalInput, path: LogPath, piece: PlannedPiece, room: Room, filled: int, until_lsn: Lsn
) -> Buffer:
    """Return the piece's WAL up to `until_lsn`, as far as that is available; `filled` bytes are in `room` already."""
    wanted = min(until_lsn, piece.available_lsn) - piece.begin_lsn
    if wanted <= filled:
        return room.take(filled, filled)
    wal = room.take(wanted, filled)
    wal_input.read(path, piece.begin_lsn + filled, piece.begin_lsn + wanted, wal[filled:])
    return wal


def safe_end(wal_input: WalInput, path: LogPath, begin_lsn: Lsn, available_lsn: Lsn) -> Lsn:
    """Return the end of the last record that is wholly below `available_lsn`; `begin_lsn` if there is none after it.

    A stream that is cut there decodes each record once, and never waits for one. Where there is no valid record the
    answer is `available_lsn`, so that decoding up to there finds what is wrong.

    Args:
        begin_lsn: where the stream stands: a `safe_end`, or a page's boundary.
        available_lsn: the WAL is there from begin_lsn up to here.

    Raises:
        As WalInput.read.
    """
    from walproxy.pipeline.decoder.decode import decode

    page_lsn = _safe_page(wal_input, path, begin_lsn - begin_lsn % PAGE_SIZE, available_lsn)
    if page_lsn >= available_lsn:
        return begin_lsn
    # The first record that is not wholly there begins on this page, if there is one.
    wal = wal_input.read(path, page_lsn, min(page_lsn + PAGE_SIZE, available_lsn))
    decoded = decode(wal, page_lsn, available_lsn, path.segment_size)
    if decoded.end.kind == "invalid":
        return max(available_lsn, begin_lsn)
    if decoded.end.kind == "incomplete":
        end_lsn = decoded.end.lsn  # of that first record
    else:
        end_lsn = int(decoded.end_lsn[decoded.count - 1]) if decoded.count else page_lsn
    return max(min(end_lsn, available_lsn), begin_lsn)


def _safe_page(wal_input: WalInput, path: LogPath, begin_lsn: Lsn, available_lsn: Lsn) -> Lsn:
    """Return the highest page boundary below which no record begins that reaches beyond `available_lsn`.

    It is `begin_lsn`, a page boundary too, if there is no such boundary after it.
    """
    from walproxy.pipeline.decoder.decode import straddler_end

    page_lsn = available_lsn - available_lsn % PAGE_SIZE
    if available_lsn - page_lsn < page_header_size(page_lsn, path.segment_size):
        page_lsn -= PAGE_SIZE  # Its header, which alone has what continues after it, is incomplete.
    pages = _HEADERS_AT_ONCE
    while page_lsn > begin_lsn:
        # A record that goes on for many pages is followed back to where it began, more pages at each step.
        first_lsn = max(begin_lsn, page_lsn - (pages - 1) * PAGE_SIZE)
        wal = wal_input.read(path, first_lsn, page_lsn + page_header_size(page_lsn, path.segment_size))
        while page_lsn >= first_lsn and page_lsn > begin_lsn:
            offset = page_lsn - first_lsn
            header = wal[offset : offset + page_header_size(page_lsn, path.segment_size)].tobytes()
            if straddler_end(header, page_lsn, path.segment_size) <= available_lsn:
                return page_lsn
            page_lsn -= PAGE_SIZE
        pages = min(pages * 4, _HEADERS_AT_ONCE_MAX)
    return begin_lsn


Result = TypeVar("Result")

THREADS: Final = 2
_PIECE_BYTES: Final = 16 << 20


def cut(pieces: Iterable[PlannedPiece]) -> list[PlannedPiece]:
    """Cut pieces of large segments."""
    return [
        piece._replace(begin_lsn=begin_lsn, end_lsn=min(begin_lsn + _PIECE_BYTES, piece.end_lsn))
        for piece in pieces
        for begin_lsn in range(piece.begin_lsn, piece.end_lsn, _PIECE_BYTES)
    ]


def in_order(
    pool: ThreadPoolExecutor, read: Callable[[PlannedPiece], Result], pieces: Iterable[PlannedPiece], at_once: int
) -> Iterator[Result]:
    """Yield the results of tasks of a pool in the order of the pieces, `at_once` of which are processed or waiting."""
    waiting = iter(pieces)
    under_way = deque(pool.submit(read, piece) for piece in islice(waiting, at_once))
    try:
        while under_way:
            done = under_way.popleft().result()
            under_way.extend(pool.submit(read, piece) for piece in islice(waiting, 1))
            yield done
    finally:
        for future in under_way:
            future.cancel()
