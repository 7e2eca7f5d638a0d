"""What a proxy measures and counts since its start, for /status, /metrics and `walproxy levels`."""

from safekeeper.consensus.answer_counts import AnswerCounts
from walproxy.proxy.commit_times import CommitTimes
from walproxy.proxy.election_times import ElectionTimes


class Measurements:
    """The measurements of one proxy.

    Attributes:
        commits: how long commits wait for the safekeepers.
        elections: attempts to win a term, and the terms.
        answers: votes and refusals that it has received.
        reconnects: how often the connection to each safekeeper was made again.
        primary_reconnects: the same for the replication connection to a primary.
    """

    def __init__(self) -> None:
        self.commits = CommitTimes()
        self.elections = ElectionTimes()
        self.answers = AnswerCounts()
        self.reconnects: dict[int, int] = {}
        self.primary_reconnects = 0
        self._had_primary = self._is_primary_lost = False

    def connected(self, safekeeper_id: int) -> None:
        """Handle a connection to a safekeeper that is open now."""
        self.reconnects[safekeeper_id] = self.reconnects.get(safekeeper_id, -1) + 1

    def forget(self, safekeeper_id: int) -> None:
        """Forget a safekeeper that was removed."""
        self.commits.forget(safekeeper_id)
        self.reconnects.pop(safekeeper_id, None)

    def primary_lost(self) -> None:
        """Handle the end of the connection to the primary."""
        self._is_primary_lost = self._had_primary

    def primary_identified(self) -> None:
        """Handle the identity of the primary: on a new connection, or once more on the same one."""
        self.primary_reconnects += self._is_primary_lost
        self._had_primary, self._is_primary_lost = True, False
