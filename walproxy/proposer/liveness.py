"""The members of a term, and which of them answer.

A leader is alive while a commit quorum has answered within the heartbeat timeout: only then do other candidates not
depose it, and only then do commits succeed. A member that answers and refuses WAL does not take part.

Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from safekeeper.consensus.commitment import QuorumRule
from safekeeper.consensus.membership import Identity, Membership
from walproxy.proposer.progress import Progress


@dataclass(frozen=True, slots=True)
class Timing:
    """The timeouts and intervals of a proposer, in seconds.

    Attributes:
        refused_wait_min_s, refused_wait_max_s: the pause before the next election for a host that was refused, the
            first one and the maximum.
        catchup_bytes_per_s: the rate at which WAL below the window is fetched for one member.
    """

    heartbeat_interval_s: float = 0.25
    heartbeat_timeout_s: float = 1.0
    response_timeout_s: float = 5.0
    vote_timeout_s: float = 2.0
    vote_grace_s: float = 0.1
    verify_timeout_s: float = 60.0
    retry_interval_s: float = 0.2
    refused_wait_min_s: float = 10.0
    refused_wait_max_s: float = 300.0
    catchup_bytes_per_s: int = 64 << 20


class Liveness:
    """The members of a term.

    Attributes:
        membership: which of them count.
        rule: what a commit quorum of them is.
        members: by safekeeper id; learners too.
        sequence: the number of the last round of messages; an answer repeats it.
    """

    def __init__(self, membership: Membership, rule: QuorumRule, timing: Timing, now: float) -> None:
        self.membership = membership
        self.rule = rule
        self.members: dict[int, Progress] = {}
        self.sequence = 0
        self._timing = timing
        self._began_at = now
        self._answered_until = now  # Until then a quorum has answered in time, unless one of them is disconnected.

    def confirmed_since(self, sequence: int) -> bool:
        """Return whether a commit quorum has answered message number `sequence` or a later one, and still follows.

        Then no other leader was elected when they answered: its votes would include one of them.
        """
        return self.membership.has_commit_quorum(
            p.identity for p in self.members.values() if p.voter and p.follows and p.acked_sequence >= sequence
        )

    def answers(self, now: float) -> bool:
        """Return whether a quorum has answered within the heartbeat timeout; votes count as answers.

        Answers come later and later: what a quorum has answered is enough until it is too old, unless a member is lost.
        """
        if now >= self._answered_until:
            self._answered_until = (
                max(self._began_at, self.rule.time(self._answer_times())) + self._timing.heartbeat_timeout_s
            )
        return now < self._answered_until

    def _answer_times(self) -> dict[Identity, float]:
        return {
            p.identity: p.last_response_at
            for p in self.members.values()
            if p.voter and p.is_connected and p.last_response_at is not None
        }

    def is_served(self, now: float) -> bool:
        """Return whether a commit quorum of members that accept WAL answers: only then can a commit succeed."""
        return self.membership.has_commit_quorum(self._taking_part(now))

    def taking_part(self, now: float) -> set[int]:
        """Return the ids of the members that answer and accept WAL."""
        return {safekeeper_id for safekeeper_id, _ in self._taking_part(now)}

    def _taking_part(self, now: float) -> set[Identity]:
        refusing = {p.identity for p in self.members.values() if p.refusal or p.is_doubted}
        return {each for each in self._answering(now) if each not in refusing}

    def _answering(self, now: float) -> Iterator[Identity]:
        """Return the voters that have answered within the heartbeat timeout; at the term's beginning all of them."""
        timeout_s = self._timing.heartbeat_timeout_s
        if now - self._began_at < timeout_s:
            yield from self.membership.identities()
            return
        for progress in self.members.values():
            answered_at = progress.last_response_at
            if progress.voter and progress.is_connected and answered_at is not None and now - answered_at < timeout_s:
                yield progress.identity
