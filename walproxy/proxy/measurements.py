"""What a proxy measures and counts since its start, for /status, /metrics and `walproxy levels`."""

from typing import Any

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

    def describe(self, now: float) -> dict[str, Any]:
        """Return the fields of /status; `now` is the event loop's time."""
        answers = self.answers
        return {
            "times": self.commits.describe(now),
            "elections": self.elections.describe(now),
            "votes": {"granted": answers.granted, "refused": answers.refused},
            "refusals": {code.value: count for code, count in answers.refusals.items() if count},
            "reconnects": {
                "primary": self.primary_reconnects,
                "safekeepers": {str(i): count for i, count in sorted(self.reconnects.items())},
            },
        }
