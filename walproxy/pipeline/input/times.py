"""From a time to an LSN: where WAL from that time on begins, or where WAL up to it ends.

WAL has times where transactions end, by the clock of the server that wrote it. They rise along the log, but not
strictly: a backend takes the time before its record gets a place, a clock is set back, a promoted standby's clock is
another one. So a binary search is done with a margin: a time counts as passed only where the log is MARGIN_S later.
Within the margin every record is looked at, and of those found the outermost counts:

- WAL from a time on begins after the last transaction that ended before the first one at or after that time;
- WAL up to a time ends with the last transaction that ended at or before that time.

No transaction of the requested time is left out unless clocks differ by more than the margin; some that ended just
outside of it may be in it.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from safekeeper.base.lsn import Lsn
from safekeeper.waldecode.format import RM_XACT
from safekeeper.waldecode.transaction_end import ABORT, ABORT_PREPARED, COMMIT, COMMIT_PREPARED, OPERATION_MASK
from walproxy.pipeline.decoder.decode import Decoded, Workspace
from walproxy.pipeline.input.pieces import PlannedPiece, decode_piece
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.wal_sources.ranges import by_segment
from walproxy.wal_sources.source import Extent, LogPath

MARGIN_S = 10

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MARGIN_US = MARGIN_S * 1_000_000
_ENDS = (COMMIT, ABORT, COMMIT_PREPARED, ABORT_PREPARED)
_TIME_BYTES = 8
# Enough to find a transaction's end in most WAL; a whole segment is read only where there is none.
_PROBE_BYTES = 256 << 10


def begin_of_time(wal_input: WalInput, path: LogPath, extents: Sequence[Extent], time: datetime) -> Lsn:
    """Return where the WAL from `time` on begins; the first byte there is if all of it is later.

    Args:
        extents: what is there, not empty. Holes are passed over.
        time: with a time zone.

    Raises:
        SourceCorrupt: what is there is no valid WAL.
        As WalInput.read.
    """
    search = _Search(wal_input, path, extents)
    wanted = _microseconds(time)
    first = search.first(lambda began: began >= wanted - _MARGIN_US)
    begin_lsn = extents[0].begin_lsn
    for index in range(max(first - 1, 0), len(search.pieces)):
        ends = search.ends(search.pieces[index])
        late = np.flatnonzero(ends.time >= wanted)
        before = ends.end_lsn[: late[0]] if late.size else ends.end_lsn
        begin_lsn = int(before[-1]) if before.size else begin_lsn
        if late.size:
            break
    return begin_lsn


def end_of_time(wal_input: WalInput, path: LogPath, extents: Sequence[Extent], time: datetime) -> Lsn:
    """Return where the WAL up to `time` ends; the first byte there is if all of it is later.

    Args, Raises:
        As begin_of_time.
    """
    search = _Search(wal_input, path, extents)
    wanted = _microseconds(time)
    behind = search.first(lambda began: began > wanted + _MARGIN_US)
    for index in range(behind - 1, -1, -1):
        ends = search.ends(search.pieces[index])
        early = np.flatnonzero(ends.time <= wanted)
        if early.size:
            return int(ends.end_lsn[early[-1]])
    return extents[0].begin_lsn


class _Ends:
    """The ends of transactions in a piece, in the order of the log.

    Attributes:
        end_lsn: int64, where their last records end.
        time: int64, microseconds since 2000-01-01 UTC.
    """

    def __init__(self, decoded: Decoded) -> None:
        wanted = (decoded.rmid == RM_XACT) & np.isin(decoded.info & OPERATION_MASK, _ENDS)
        wanted &= decoded.main_bytes >= _TIME_BYTES
        places = decoded.main_offset[wanted][:, None] + np.arange(_TIME_BYTES)
        self.end_lsn: NDArray[np.int64] = decoded.end_lsn[wanted].copy()
        self.time: NDArray[np.int64] = decoded.stripped[places].view("<i8").reshape(-1)


class _Search:
    """Reads as little of the log as it can.

    Attributes:
        pieces: the log, one piece a segment.
    """

    def __init__(self, wal_input: WalInput, path: LogPath, extents: Sequence[Extent]) -> None:
        self._input = wal_input
        self._path = path
        self._workspace = Workspace()
        self._first_times: dict[int, int | None] = {}
        self.pieces = [
            PlannedPiece(*part, extent.end_lsn) for extent in extents for part in by_segment(*extent, path.segment_size)
        ]

    def ends(self, piece: PlannedPiece) -> _Ends:
        """Return where transactions end in a piece."""
        return _Ends(decode_piece(self._input, self._path, piece, workspace=self._workspace))

    def first(self, is_passed: Callable[[int], bool]) -> int:
        """Return a piece from which on times pass, and at whose predecessor they do not; their number if none.

        Args:
            is_passed: of the time at which the first transaction ends in a piece or after it. Where none ends after it,
                it is passed.
        """
        low, high = -1, len(self.pieces)
        while high - low > 1:
            middle = (low + high) // 2
            time = self._next_time(middle)
            low, high = (low, middle) if time is None or is_passed(time) else (middle, high)
        return high

    def _next_time(self, index: int) -> int | None:
        """Return when the first transaction ends in a piece or after it."""
        for each in range(index, len(self.pieces)):
            time = self._first_time(each)
            if time is not None:
                return time
        return None

    def _first_time(self, index: int) -> int | None:
        if index not in self._first_times:
            piece = self.pieces[index]
            beginning = piece._replace(end_lsn=min(piece.begin_lsn + _PROBE_BYTES, piece.end_lsn))
            times = self.ends(beginning).time
            if not times.size and beginning != piece:
                times = self.ends(piece).time
            self._first_times[index] = int(times[0]) if times.size else None
        return self._first_times[index]


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND
