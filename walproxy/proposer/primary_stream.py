"""The primary's COPY as the consensus sees it: is it open, was it found to be ours, how far has it come (S10).

A COPY begins with the bytes to compare (`CheckRange`). What comes behind them enters the window, and goes on from one
term to the next as long as nobody else has written to the log meanwhile.
"""

from dataclasses import dataclass
from typing import NamedTuple

from safekeeper.base.errors import InvariantViolation
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.term_history import TermHistory, tli_at
from walproxy.proposer.actions import StartReplication
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.primary import PrimaryIdentity


class CheckRange(NamedTuple):
    """Where the comparison with a primary begins, and the timeline under which it has those bytes."""

    begin_lsn: Lsn
    tli: int


def check_range(history: TermHistory, wal_begin_lsn: Lsn, lsn: Lsn, tli: int, segment_size: int) -> CheckRange:
    """Return what has to be compared of a primary's bytes below `lsn` in any case (S10).

    From the start of the segment that holds byte `lsn` - 1 on; at the log's very base there is nothing to compare.

    Args:
        history, wal_begin_lsn: of the log.
        lsn: where the primary is to go on.
        tli: the timeline on which it does.
    """
    if not history or lsn <= wal_begin_lsn:
        return CheckRange(lsn, tli)
    return check_range_from(segment_start(lsn - 1, segment_size), history, lsn, tli, segment_size)


def check_range_from(begin_lsn: Lsn, history: TermHistory, lsn: Lsn, tli: int, segment_size: int) -> CheckRange:
    """Return the range [begin_lsn, lsn) with the timeline under which a primary has its first segment.

    That is the timeline of the segment's last byte in the log: the file of a segment in which a timeline was left is a
    part of the next one, too. Of the segment that `lsn` lies in it is the one on which the primary goes on.
    """
    border_lsn = begin_lsn + segment_size
    if border_lsn <= lsn:
        tli = tli_at(history, border_lsn - 1)
    return CheckRange(begin_lsn, tli)


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
        own_begin_lsn, own_page_crcs: checksums of what was received before this connection, back to a record that
            bears a time, to compare with what it has now; none if that is not known.
    """

    is_open: bool = False
    tli: int = 0
    is_checked: bool = False
    compares: bool = False
    awaits_link: bool = False
    received_lsn: Lsn = 0
    window_begin_lsn: Lsn = 0
    ended_lsn: Lsn | None = None
    own_begin_lsn: Lsn = 0
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
        if self.compares:
            if not self.own_page_crcs:
                return None
            check = check_range_from(self.own_begin_lsn, history, lsn, leadership.tli, primary.segment_size)
        self.is_open, self.tli, self.is_checked = True, leadership.tli, not self.compares
        return StartReplication(check.begin_lsn, check.tli, lsn, leadership.tli, resumes=True)

    def disconnected(self) -> None:
        """The connection is gone."""
        self.is_open = self.awaits_link = False
        self.ended_lsn = None

    def require_open(self) -> None:
        """What a primary sends after it was refused or given up must have been dropped: the window has it otherwise."""
        if not self.is_open:
            raise InvariantViolation("WAL was taken from a primary that is not to be streamed")
