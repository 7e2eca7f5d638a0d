"""The primary's COPY: whether it is open, whether its WAL was verified, and up to where it was received (S10).

A COPY begins with the bytes to compare (`CheckRange`). The WAL after them is appended to the window. The COPY continues
from one term to the next unless another proposer has written to the log meanwhile.
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
    """Return the bytes of a primary below `lsn` that must always be compared (S10).

    That is from the start of the segment of byte `lsn` - 1 on; at the base of the log the range is empty.

    Args:
        history, wal_begin_lsn: of the log.
        lsn: the position from which the primary continues.
        tli: the timeline on which it continues.
    """
    if not history or lsn <= wal_begin_lsn:
        return CheckRange(lsn, tli)
    return check_range_from(segment_start(lsn - 1, segment_size), history, lsn, tli, segment_size)


def check_range_from(begin_lsn: Lsn, history: TermHistory, lsn: Lsn, tli: int, segment_size: int) -> CheckRange:
    """Return the range [begin_lsn, lsn) with the timeline under which a primary has its first segment.

    That is the timeline of the segment's last byte in the log: the file of a segment in which a timeline was left is a
    part of the next one, too. For the segment that contains `lsn` it is the one on which the primary continues.
    """
    border_lsn = begin_lsn + segment_size
    if border_lsn <= lsn:
        tli = tli_at(history, border_lsn - 1)
    return CheckRange(begin_lsn, tli)


@dataclass(slots=True)
class PrimaryStream:
    """The state of the WAL stream from the primary.

    Attributes:
        identities_due: the number of `IdentifyPrimary` that were returned and not answered on this connection.
        is_open: `StartReplication` was returned, and the stream has not ended.
        tli: the timeline that it streams.
        is_checked: its WAL below the beginning of the stream was verified.
        compares: it begins with bytes to compare; otherwise with the first byte that the log lacks.
        awaits_link: it could not be compared: its first record must link to the log's last one instead.
        received_lsn: end of the WAL that was received from it.
        window_begin_lsn: the oldest byte in the window.
        ended_lsn: where the timeline has ended, None while it continues.
        own_begin_lsn, own_page_crcs: checksums of the WAL that was received before this connection, back to a timed
            record, to compare with its present WAL; empty if unknown.
    """

    identities_due: int = 0
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
        """Continue in the same term; None if that is impossible, because no checksums of the received WAL are kept."""
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
        """Handle the end of the connection."""
        self.is_open = self.awaits_link = False
        self.ended_lsn = None
        self.identities_due = 0

    def require_open(self) -> None:
        """Check that the stream is open: the shell must have dropped WAL of a primary that was refused or given up."""
        if not self.is_open:
            raise InvariantViolation("WAL was received from a primary that must not be streamed")
