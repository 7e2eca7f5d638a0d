"""The primary's COPY as the consensus sees it: is it open, was it found to be ours, how far has it come (S10).

A COPY begins with the bytes to compare (`check_range`). What comes behind them enters the window, and goes on from one
term to the next as long as nobody else has written to the log meanwhile.
"""

from dataclasses import dataclass
from typing import NamedTuple

from safekeeper.consensus.actions import StartReplication
from safekeeper.consensus.leadership import Leadership
from safekeeper.consensus.primary import PrimaryIdentity
from safekeeper.consensus.term_history import TermHistory, tli_at
from safekeeper.errors import InvariantViolation
from safekeeper.lsn import Lsn, segment_start


class CheckRange(NamedTuple):
    """Where the comparison with a primary begins, and the timeline under which it has those bytes."""

    begin_lsn: Lsn
    tli: int


def check_range(history: TermHistory, wal_begin_lsn: Lsn, lsn: Lsn, tli: int, segment_size: int) -> CheckRange:
    """Return from where on a primary's bytes are compared up to `lsn` (S10).

    From the start of the segment that holds byte `lsn` - 1; at the log's very base there is nothing to compare.

    Args:
        history, wal_begin_lsn: of the log.
        lsn: where the primary is to go on.
        tli: the timeline on which it does.
    """
    if not history or lsn <= wal_begin_lsn:
        return CheckRange(lsn, tli)
    if lsn % segment_size == 0:
        # Byte lsn - 1 lies in a segment that only the timeline of that byte has.
        tli = tli_at(history, lsn - 1)
    return CheckRange(segment_start(lsn - 1, segment_size), tli)


@dataclass(slots=True)
class PrimaryStream:
    """What is known of the WAL that the primary streams.

    Attributes:
        is_open: it has been told to stream, and has not stopped.
        tli: the timeline that it streams.
        is_checked: what it has was found to be ours up to where the stream began.
        compares: it begins with bytes to compare; else the first byte that it sends is one that the log lacks.
        awaits_link: it could not be compared: its first record must link to our last one instead.
        received_lsn: end of the WAL that came from it.
        window_begin_lsn: the oldest byte that the window still holds.
        ended_lsn: where the timeline has ended, None as long as it goes on.
        own_page_crcs: checksums of what was received before this connection, to compare with what it has now.
    """

    is_open: bool = False
    tli: int = 0
    is_checked: bool = False
    compares: bool = False
    awaits_link: bool = False
    received_lsn: Lsn = 0
    window_begin_lsn: Lsn = 0
    ended_lsn: Lsn | None = None
    own_page_crcs: tuple[int, ...] = ()

    def start(self, action: StartReplication) -> StartReplication:
        """Stream for a new term, into an empty window."""
        self.is_open, self.tli, self.ended_lsn = True, action.tli, None
        self.received_lsn = self.window_begin_lsn = action.begin_lsn
        self.compares = action.check_begin_lsn < action.begin_lsn
        return action

    def resume(self, leadership: Leadership, primary: PrimaryIdentity) -> StartReplication | None:
        """Go on in the same term; None if nobody knows any more what was received, so that it cannot be compared."""
        lsn, history = leadership.received_lsn, leadership.elected.history
        check = check_range(history, history[0].start_lsn, lsn, leadership.tli, primary.segment_size)
        self.compares = check.begin_lsn < lsn
        if self.compares and not self.own_page_crcs:
            return None
        self.is_open, self.tli, self.is_checked = True, leadership.tli, not self.compares
        return StartReplication(check.begin_lsn, check.tli, lsn, leadership.tli, resumes=True)

    def part(self) -> None:
        """The connection is gone."""
        self.is_open = self.awaits_link = False
        self.ended_lsn = None

    def require_open(self) -> None:
        """What a primary sends after it was refused or given up must have been dropped: the window has it otherwise."""
        if not self.is_open:
            raise InvariantViolation("WAL was taken from a primary that is not to be streamed")
