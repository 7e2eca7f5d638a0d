"""What a `Decider` remembers between its decisions. Times are those of its clock, in seconds. Pure."""

import math
from dataclasses import dataclass

from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.agent.state import ClusterView

# A report that is older is that of an agent that is away; a quorum that has not replied for longer was away.
FRESH_S = 2.0
# How long an agent whose attempt has failed leaves the next one to others: twice as long each time up to a limit, which
# is how long commits wait at most once its cause has gone. After one that has taken its seal back all agents wait
# so long for the old primary, which needs a proxy, and an election.
RETRY_S_MIN, RETRY_S_MAX = 3.0, 6.0
# A primary that was started, or a leader that was lost, so often within the time gives the lead up to a standby.
UNSTEADY_TIMES, UNSTEADY_WITHIN_S = 3, 60.0


@dataclass
class Exchanges:
    """What the exchanges with the safekeepers have shown.

    Attributes:
        leader_seen_at: when a quorum of them last received a message of a leader; None if that is unknown.
        quorum_since: since when a quorum of them has replied.
    """

    leader_seen_at: float | None = None
    quorum_since: float = 0.0
    _quorum_seen_at: float = -math.inf

    def saw(self, view: ClusterView) -> None:
        """Take an exchange into account: it bounds from below when they last received from a leader."""
        if view.leader_silent_s is not None:
            received_at = view.sent_at - view.leader_silent_s
            self.leader_seen_at = max(
                received_at, self.leader_seen_at if self.leader_seen_at is not None else -math.inf
            )
        if view.has_quorum:
            if view.sent_at - self._quorum_seen_at > FRESH_S:
                self.quorum_since = view.sent_at
            self._quorum_seen_at = view.sent_at

    def silent_s(self, now: float) -> float:
        """Return for how long, at most, the safekeepers have received nothing from a leader."""
        return now - self.leader_seen_at if self.leader_seen_at is not None else 0.0


@dataclass
class Retry:
    """When a step that may fail is tried again.

    Attributes:
        at: not before then.
    """

    at: float = 0.0
    _failures: int = 0
    _failed_at: float = -math.inf

    def failed(self, now: float) -> None:
        """Wait, for longer after each failure of the last minutes."""
        if now - self._failed_at > 2 * UNSTEADY_WITHIN_S:
            self._failures = 0
        self.at = now + min(RETRY_S_MIN * 2**self._failures, RETRY_S_MAX)
        self._failures, self._failed_at = min(self._failures + 1, 10), now


class Recent:
    """Times of the last minute at which something happened."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def add(self, now: float) -> None:
        """It happens now."""
        self._times = [*self._within(now), now]

    def is_often(self, now: float) -> bool:
        """Return whether it has happened so often that a standby is the better leader."""
        return len(self._within(now)) >= UNSTEADY_TIMES

    def clear(self) -> None:
        """Count from the beginning."""
        self._times.clear()

    def _within(self, now: float) -> list[float]:
        return [at for at in self._times if now - at < UNSTEADY_WITHIN_S]


@dataclass
class SealedAttempts:
    """The other agents whose attempts had sealed at the last exchange, and the log's timeline then."""

    _names: frozenset[str] = frozenset()
    _log_tli: int = 0

    def have_failed(self, names: frozenset[str], view: ClusterView) -> bool:
        """Take an exchange into account; return whether an attempt has ended, and the log has not gone on.

        Args:
            names: the other agents whose attempts have sealed.
        """
        have_failed = bool(self._names - names) and view.has_quorum and view.log.tli == self._log_tli
        self._names, self._log_tli = names, view.log.tli
        return have_failed


@dataclass
class ServerMemory:
    """What the looks at the own server have shown.

    Attributes:
        was_primary: it was one when it last replied.
        hangs_since: None if it replies.
        advanced_at: when the quorum received more WAL from it.
        is_stranded: it was a standby, and has replayed WAL that the leader's timeline does not have.
    """

    was_primary: bool = False
    hangs_since: float | None = None
    advanced_at: float = -math.inf
    is_stranded: bool = False

    def saw(self, now: float, look: ServerLook) -> None:
        """Take a look into account."""
        if look.state is ServerState.PRIMARY:
            self.was_primary = True
        elif look.state in (ServerState.STANDBY, ServerState.STOPPED, ServerState.MISSING):
            self.was_primary = False
        if look.state is not ServerState.HANGS:
            self.hangs_since = None
        elif self.hangs_since is None:
            self.hangs_since = now - look.hangs_s
            self.was_primary = self.was_primary or look.is_in_recovery is False
        if look.state is ServerState.STANDBY:
            self.is_stranded = False
