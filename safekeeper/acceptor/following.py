"""The leader that an acceptor follows: its connection, and what the two have sent each other.

    idle <---> following <---> pulling

An acceptor follows a leader once it has adopted the leader's `Elected` on a connection (protocol, step 5). `Following`
exists only while it does: nothing of it outlives the leader, the connection or the process, and each `Elected` begins a
new one. docs/design/protocol.md lists the events that change the state.

Pure.
"""

from dataclasses import dataclass

from safekeeper.base.lsn import LSN_MAX, Lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import HEARTBEAT_TIMEOUT_S, AppendRequest, AppendResponse, PullWal


@dataclass(slots=True)
class Following:
    """A leader whose history was adopted on a connection.

    Attributes:
        leader_id, connection: that leader and that connection.
        commit_lsn: the highest commit_lsn that it has sent.
        seen_at, is_healthy: when its last `Elected` or append was received, and whether it reported to be healthy.
        sequence: of its last append.
        answered_write_lsn, answered_sequence: the contents of the last answer to it.
        pull: while pulling, its request to read WAL from other members.
        pulled_from_lsn: where the first pull began, LSN_MAX before it.
    """

    leader_id: LeaderId
    connection: int
    commit_lsn: Lsn
    seen_at: float
    is_healthy: bool = True
    sequence: int = 0
    answered_write_lsn: Lsn = 0
    answered_sequence: int = 0
    pull: PullWal | None = None
    pulled_from_lsn: Lsn = LSN_MAX

    def is_of(self, leader_id: LeaderId, connection: int) -> bool:
        """Return whether this leader is followed on this connection."""
        return connection == self.connection and leader_id == self.leader_id

    def is_alive(self, now: float) -> bool:
        """Return whether the leader has sent something within the heartbeat timeout."""
        return now - self.seen_at < HEARTBEAT_TIMEOUT_S

    def on_append(self, message: AppendRequest, now: float) -> None:
        """Record an append of the leader."""
        self.seen_at = now
        self.is_healthy = message.healthy
        self.sequence = message.sequence
        self.commit_lsn = max(self.commit_lsn, message.commit_lsn)

    def answer(self, write_lsn: Lsn, flush_lsn: Lsn, has_readers: bool) -> AppendResponse:
        """Return the answer to the leader's last append."""
        self.answered_write_lsn, self.answered_sequence = write_lsn, self.sequence
        return AppendResponse(self.leader_id, write_lsn, flush_lsn, self.sequence, has_readers)

    def begin_pull(self, pull: PullWal, write_lsn: Lsn) -> None:
        """Pull under this request; it replaces the one before."""
        self.pulled_from_lsn = min(self.pulled_from_lsn, write_lsn)
        self.pull = pull

    def end_pull(self) -> PullWal | None:
        """End the pull, and return it; None without one."""
        pull, self.pull = self.pull, None
        return pull
