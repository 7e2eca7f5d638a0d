"""Records of a log one after the other: the input and output of `walproxy pipeline waldump`.

    WalInput --plan_pieces--> pieces --decode_piece, select, render (threads)--> results in the order of the log

Pieces are decoded and rendered in threads: the compiled code runs without the interpreter's lock. Results come in
order, and only a few pieces are processed at once, so memory stays small however long the log is. With a limit pieces
are read one by one, and none more than needed.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from walproxy.pipeline.decoder.decode import Decoded, Workspace
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.input.pieces import THREADS, PlannedPiece, cut, decode_valid_part, in_order, plan_pieces
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.jobs.waldump_selection import Selection
from walproxy.wal_sources.source import Extent, LogPath, SourceCorrupt, SourceUnavailable

Result = TypeVar("Result")
Work = Callable[[Decoded, Any], Result]

_UNDER_WAY: Final = THREADS + 1
_POLL_S: Final = 0.5

_log = logging.getLogger(__name__)


class LogForked(WalproxyError):
    """The log that is followed has gone on elsewhere, from before where it was already read."""


@dataclass(frozen=True)
class Done(Generic[Result]):
    """One piece, read.

    Attributes:
        piece: its bounds.
        reached_lsn: the next read begins here.
        first_lsn: where its first record begins, at or after the requested begin; 0 without records.
        last_end_lsn: where the last selected one ends; 0 without one.
        shown: how many records were selected.
        result: their rendered form.
        damage: what is wrong after the last of its records.
    """

    piece: PlannedPiece
    reached_lsn: Lsn
    first_lsn: Lsn
    last_end_lsn: Lsn
    shown: int
    result: Result
    damage: SourceCorrupt | None


class Scan:
    """Some of the records of a log.

    Args:
        wal: where it comes from.
        selection: which records.
        tli: the timeline; None: the newest.
        limit: no more records than that; None: all.
        allow_gaps: WAL that is missing is skipped.
        follow: wait for more at the end, indefinitely or up to the selection's end.
        end_must_be_there: WAL that ends before the selection's end is an error.

    Attributes:
        planned_bytes: how much WAL there was when the log was last looked at.
    """

    def __init__(
        self,
        wal: WalInput,
        selection: Selection,
        *,
        tli: int | None = None,
        limit: int | None = None,
        allow_gaps: bool = False,
        follow: bool = False,
        end_must_be_there: bool = True,
    ) -> None:
        self._wal = wal
        self._selection = selection
        self._tli = tli
        self._limit = limit
        self._allow_gaps = allow_gaps
        self._follow = follow
        self._end_must_be_there = end_must_be_there
        self._workspaces = threading.local()
        self._reached_lsn = selection.begin_lsn
        self._is_away = False
        self.planned_bytes = 0

    def run(self, work: Work[Result]) -> Iterator[Done[Result]]:
        """Yield what `work` makes of the selected records of each piece, in the order of the log.

        Args:
            work: gets what was decoded and the indices of the selected records; called in threads.

        Raises:
            ConfigurationError: the range is empty.
            LogForked: see there.
            WalMissing: there is a hole in the range.
            SourceCorrupt: what is there is no valid WAL; all before it was yielded.
            SourceUnavailable: the input does not answer.
        """
        left = self._limit
        with ThreadPoolExecutor(THREADS, "waldump") as pool:
            for path, pieces in self._rounds():
                self.planned_bytes = sum(piece.end_lsn - piece.begin_lsn for piece in pieces)
                read = functools.partial(self._read, path, replace(self._selection, begin_lsn=self._reached_lsn), work)
                if left is None:
                    results = in_order(pool, read, pieces, _UNDER_WAY)
                else:
                    results = (read(piece, left) for piece in pieces)
                for done in results:
                    self._reached_lsn = max(self._reached_lsn, done.reached_lsn)
                    yield done
                    if done.damage is not None:
                        raise done.damage
                    if left is not None:
                        left -= done.shown
                        if left <= 0:
                            return

    def _rounds(self) -> Iterator[tuple[LogPath, list[PlannedPiece]]]:
        """Yield the ranges to read: once, or repeatedly as the WAL grows."""
        path = self._wal.log_path(self._tli)
        if not self._follow:
            extents = self._wal.extents(path)
            end_lsn = self._selection.end_lsn if self._selection.end_lsn < LSN_MAX else None
            if end_lsn is not None and extents and not self._end_must_be_there:
                end_lsn = min(end_lsn, extents[-1].end_lsn)
            pieces = plan_pieces(path, extents, self._reached_lsn or None, end_lsn, allow_gaps=self._allow_gaps)
            yield path, cut(pieces)
            return
        while True:
            path, extents = self._look(path)
            until_lsn = min(extents[-1].end_lsn, self._selection.end_lsn) if extents else 0
            if until_lsn > self._reached_lsn:
                begin_lsn, before_lsn = self._reached_lsn or None, self._reached_lsn
                yield path, cut(plan_pieces(path, extents, begin_lsn, until_lsn, allow_gaps=self._allow_gaps))
                if self._reached_lsn >= self._selection.end_lsn:
                    return
                if self._reached_lsn > before_lsn:
                    continue
            time.sleep(_POLL_S)

    def _look(self, path: LogPath) -> tuple[LogPath, list[Extent]]:
        """Return the timeline as it is now, which may be a newer one than before, and its extents."""
        try:
            now = self._wal.log_path(self._tli)
            extents = self._wal.extents(now)
            self._is_away = False
        except SourceUnavailable as error:
            if not self._is_away:
                _log.warning("%s; retrying until it answers", error)
            self._is_away = True
            return path, []
        if now.common_end(path) < self._reached_lsn:
            raise LogForked(
                f"timeline {now.tli} of {self._wal.name} forks from timeline {path.tli} at "
                f"{format_lsn(now.common_end(path))}, and the WAL up to {format_lsn(self._reached_lsn)} is shown "
                f"already: begin again, or follow the old one with --timeline {path.tli}"
            )
        return now, extents

    def _read(
        self, path: LogPath, selection: Selection, work: Work[Result], piece: PlannedPiece, left: int | None = None
    ) -> Done[Result]:
        """Read one piece."""
        if not hasattr(self._workspaces, "own"):
            self._workspaces.own = Workspace()
        decoded, damage = decode_valid_part(self._wal, path, piece, workspace=self._workspaces.own)
        selected = selection.of(decoded)[:left]
        first = int(np.searchsorted(decoded.lsn, selection.begin_lsn))
        # Zeros after a switch record are skipped as a whole.
        reached_lsn = decoded.end.lsn if decoded.end.kind == "incomplete" else piece.end_lsn
        return Done(
            piece,
            reached_lsn,
            int(decoded.lsn[first]) if first < decoded.count else 0,
            int(decoded.end_lsn[selected[-1]]) if len(selected) else 0,
            len(selected),
            work(decoded, selected),
            damage,
        )


def format_as_json(decoded: Decoded, selected: Any) -> bytes:
    """Return a line of JSON for each selected record: the columns of the view `records`.

    LSNs are formatted as PostgreSQL does. A record that ends a transaction has the columns of the view `transactions`,
    too.

    Raises:
        WalFormatError: such a record is not as its version writes it.
    """
    rows = view_batch("records", decoded, _NO_PIECE).take(pa.array(selected)).to_pylist()
    ended = {row.pop("lsn"): row for row in view_batch("transactions", decoded, _NO_PIECE).to_pylist()}
    for row in rows:
        transaction = ended.get(row["lsn"])
        if transaction is not None:
            # The other columns that both views have are printed once.
            row["transaction"] = {
                name: format_lsn(value) if name == "origin_lsn" and value is not None else value
                for name, value in transaction.items()
                if name not in ("end_lsn", "tli", "origin")
            }
        for name in ("lsn", "end_lsn", "previous_lsn"):
            row[name] = format_lsn(row[name])
    return msgspec.json.Encoder().encode_lines(rows)


_NO_PIECE: Final = Piece(0, 0)
