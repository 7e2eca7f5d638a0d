"""One connection to a primary: its state, the data of each state, and the transitions between the states.

    connected ---> IDLE <---> STARTING <---> STREAMING          each of them ---> STOPPED ---> REFUSED

A `FeedConnection` exists while PostgreSQL is connected. A request for WAL exists from STARTING on (`RequestedWal`), a
COPY in STREAMING (`OpenCopy`): a request takes a COPY for each timeline. Both remain in STOPPED and REFUSED until the
COPY has ended. Each transition is one method here, and `TRANSITIONS` lists those that are allowed.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from safekeeper.base.errors import InvariantViolation
from safekeeper.base.lsn import Lsn
from safekeeper.waldecode.continuity import LinkCheck
from walproxy.postgres.page_checksums import PageChecksums
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proposer.actions import StartReplication
from walproxy.proxy.feed_slot import FeedSlot

logger = logging.getLogger(__name__)

# The limit of WAL that is buffered while the first record is incomplete.
UNLINKED_BYTES_MAX = 64 << 20


class FeedState(Enum):
    """What a connection is used for; each comment names the events that end the state."""

    IDLE = "idle"  # it is identified from time to time; the owner requests WAL: STARTING
    STARTING = "starting"  # the slot is waited for, and a COPY: STREAMING; none is left, or WAL is removed: IDLE
    STREAMING = "streaming"  # a COPY is open; its end: STARTING
    STOPPED = "stopped"  # the owner has closed it; the end of the connection, or REFUSED
    REFUSED = "refused"  # the owner has closed it and refused its host; the end of the connection


TRANSITIONS: dict[FeedState, frozenset[FeedState]] = {
    FeedState.IDLE: frozenset({FeedState.STARTING, FeedState.STOPPED, FeedState.REFUSED}),
    FeedState.STARTING: frozenset({FeedState.STREAMING, FeedState.IDLE, FeedState.STOPPED, FeedState.REFUSED}),
    FeedState.STREAMING: frozenset({FeedState.STARTING, FeedState.STOPPED, FeedState.REFUSED}),
    FeedState.STOPPED: frozenset({FeedState.STOPPED, FeedState.REFUSED}),
    FeedState.REFUSED: frozenset({FeedState.REFUSED}),
}

_CLOSED = (FeedState.STOPPED, FeedState.REFUSED)


class WalReceiver(Protocol):
    """The receiver of the requested WAL; called on the event loop."""

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, digest: PageChecksums) -> None:
        """Handle the checksums of the bytes to compare; these bytes themselves are not passed on."""

    def wal_received(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        """Handle received WAL, which is to be made durable."""

    def primary_refused(self, reason: str) -> None:
        """Handle a primary whose WAL does not continue the log."""


@dataclass(slots=True)
class OpenCopy:
    """A COPY that is open. Times are the event loop's.

    Attributes:
        caught_up_at: when the walsender was last found to lag behind the primary's WAL; first, when the COPY began.
        sent_positions: the positions that were last sent in it.
        sent_feedback: the hot standby feedback that was last sent in it, at `sent_feedback_at`.
    """

    caught_up_at: float
    sent_positions: tuple[Lsn, Lsn, Lsn] = (0, 0, 0)
    sent_feedback: tuple[int, int] | None = None
    sent_feedback_at: float = 0.0


@dataclass(slots=True)
class FeedConnection:
    """One connection to a primary.

    Attributes:
        receiver: the replication connection; another one once the primary no longer had the requested WAL.
        slot: the proxy's slot, as found here.
        state: see `FeedState`; changed by the methods only.
        reason: why the owner has closed it.
        requests: of the owner: WAL, or None for the identity.
        segment_size: of the primary.
        positions: the quorum's, as the owner has last reported them. Those of a connection are reported once it was
            verified (S10).
        wal: the requested WAL.
        copy: the open COPY; None while nothing can be reported.
    """

    receiver: ReplicationConnection
    slot: FeedSlot
    state: FeedState = FeedState.IDLE
    reason: str = ""
    requests: "asyncio.Queue[StartReplication | None]" = field(default_factory=asyncio.Queue)
    segment_size: int = 0
    positions: tuple[Lsn, Lsn, Lsn] = (0, 0, 0)
    wal: "RequestedWal | None" = None
    copy: OpenCopy | None = None

    # The transitions.

    def become_starting(self, wal: "RequestedWal") -> None:
        """Record that WAL is requested."""
        self._enter(FeedState.STARTING)
        self.wal = wal

    def become_streaming(self, now: float) -> OpenCopy:
        """Record that a COPY has begun; return it."""
        self._enter(FeedState.STREAMING)
        self.copy = OpenCopy(now)
        return self.copy

    def end_copy(self) -> None:
        """Record that the COPY has ended: nothing can be reported between two COPYs."""
        self.copy = None
        if self.state is FeedState.STREAMING:
            self._enter(FeedState.STARTING)

    def become_idle(self) -> None:
        """Record that the request is answered, or cannot be."""
        self._enter(FeedState.IDLE)
        self.wal = None

    def stop(self, reason: str) -> None:
        """Close it for the owner, and drop the owner's requests."""
        self._close(
            FeedState.STOPPED if self.state is not FeedState.REFUSED else FeedState.REFUSED, self.reason or reason
        )

    def refuse(self, reason: str) -> None:
        """Close it for the owner, which refuses its host, and drop the owner's requests."""
        self._close(FeedState.REFUSED, reason)

    def _close(self, state: FeedState, reason: str) -> None:
        self._enter(state)
        self.reason = reason
        while not self.requests.empty():
            self.requests.get_nowait()
        self.receiver.close()

    def _enter(self, state: FeedState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise InvariantViolation(
                f"a connection to a primary cannot change from {self.state.value} to {state.value}"
            )
        self.state = state

    def raise_if_closed(self) -> None:
        """Check that the owner has not closed it meanwhile.

        Raises:
            PrimaryProblem: it has.
        """
        if self.state in _CLOSED:
            raise PrimaryProblem(ProblemKind.LOST, self.reason)

    def sendable_positions(self) -> tuple[Lsn, Lsn, Lsn]:
        """Return the positions to send in the COPY: never more than was received in it."""
        received_lsn, positions = self.receiver.received_lsn, self.positions
        if max(positions) <= received_lsn:
            return positions
        write_lsn, flush_lsn, apply_lsn = positions
        return min(write_lsn, received_lsn), min(flush_lsn, received_lsn), min(apply_lsn, received_lsn)


class RequestedWal:
    """The WAL of one request, on its way to the owner: what is to be verified of it is verified first (S10).

    Args:
        checksums: of the bytes to compare, which come first; None if there are none.
        link_check: of the first record, if there are no bytes to compare with.

    Attributes:
        request: the owner's.
        feedback: the oldest (xmin, catalog_xmin) that standbys need; None until they are reported for this request,
            because earlier ones may belong to a verified stream, and this one is not verified yet.
    """

    def __init__(
        self,
        request: StartReplication,
        owner: WalReceiver,
        connection: FeedConnection,
        checksums: PageChecksums | None,
        link_check: LinkCheck | None,
    ) -> None:
        self.request = request
        self.feedback: tuple[int, int] | None = None
        self._begin_lsn = request.begin_lsn
        self._owner = owner
        self._connection = connection
        self._checksums = checksums
        self._link_check = link_check
        self._unlinked: list[memoryview] = []

    def received(self, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
        """Handle WAL of a COPY."""
        if begin_lsn < self._begin_lsn:
            begin_lsn, chunks = self._take_compared(begin_lsn, chunks)
        if self._link_check is not None:
            begin_lsn, chunks = self._take_unlinked(self._link_check, chunks)
        # The owner may have refused this primary: the WAL after the bytes that differ is not of this log.
        if chunks and self._connection.state is FeedState.STREAMING:
            self._owner.wal_received(begin_lsn, chunks)

    def _take_compared(self, begin_lsn: Lsn, chunks: list[memoryview]) -> tuple[Lsn, list[memoryview]]:
        """Add the bytes to compare to the checksums; return the rest."""
        checksums, end_lsn = self._checksums, self._begin_lsn
        assert checksums is not None  # by the owner's `check_begin_lsn`
        rest: list[memoryview] = []
        for chunk in chunks:
            head = min(len(chunk), end_lsn - begin_lsn)
            if head:
                checksums.feed(chunk[:head])
            if head < len(chunk):
                rest.append(chunk[head:] if head else chunk)
            begin_lsn += head
        if begin_lsn == end_lsn:
            self._checksums = None
            self._owner.primary_checked(self.request.check_begin_lsn, end_lsn, checksums)
        return begin_lsn, rest

    def _take_unlinked(self, check: LinkCheck, chunks: list[memoryview]) -> tuple[Lsn, list[memoryview]]:
        """Buffer WAL until its first record is known to link to the log's last one; return what to pass on."""
        begin_lsn = self._begin_lsn
        for chunk in chunks:
            self._unlinked.append(chunk)
            if check.feed(bytes(chunk)) is False:
                break
        if check.linked is None and sum(map(len, self._unlinked)) < UNLINKED_BYTES_MAX:
            return begin_lsn, []
        held, self._unlinked, self._link_check = self._unlinked, [], None
        if check.linked:
            logger.info("the primary's WAL continues the quorum's log: %s", check.reason)
            return begin_lsn, held
        self._owner.primary_refused(f"the primary's WAL does not continue the quorum's log: {check.reason}")
        return begin_lsn, []
