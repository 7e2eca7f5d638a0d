"""The elections of a proxy and the lengths of its terms, derived from the changes of its phase.

An election is an attempt for which votes were requested. An attempt that the pre-vote ends is declined: a spare makes
several a second, and none of them disturbs the leader.
"""

from safekeeper.base.histogram import Histogram
from walproxy.proposer.phase import Phase
from walproxy.proxy.status_fields import ElectionCounts

_CAMPAIGN = frozenset({Phase.PRE_VOTING, Phase.VOTING, Phase.VERIFYING})


class ElectionTimes:
    """The elections and terms of one proxy. All times are the event loop's, in seconds.

    Attributes:
        won, lost, declined: numbers of attempts, by their outcome.
        elections: durations of elections, from the first request to the first message to the members of the term, or to
            the end of the attempt; from 1 ms to 4 minutes.
        terms: lengths of the terms that have ended, from 1 s to 97 days.
        term_began_at: when the present term was won, None if none is led.
    """

    def __init__(self) -> None:
        self.won = self.lost = self.declined = 0
        self.elections = Histogram(-10, 8)
        self.terms = Histogram(0, 23)
        self.term_began_at: float | None = None
        self._phase = Phase.GATHERING
        self._began_at = 0.0

    def observe(self, phase: Phase, now: float) -> None:
        """Handle the present phase, after each event that may have changed it."""
        before = self._phase
        if phase is before:
            return
        self._phase = phase
        if before is Phase.LEADING and self.term_began_at is not None:
            self.terms.observe(now - self.term_began_at)
            self.term_began_at = None
        if phase is Phase.LEADING:
            self.won += 1
            self.elections.observe(now - self._began_at)
            self.term_began_at = now
        elif phase not in _CAMPAIGN and before in _CAMPAIGN:
            if before is Phase.PRE_VOTING:
                self.declined += 1
            else:
                self.lost += 1
                self.elections.observe(now - self._began_at)
        if phase in _CAMPAIGN and before not in _CAMPAIGN:
            self._began_at = now

    def describe(self, now: float) -> ElectionCounts:
        """Return the content of `elections` in /status."""
        return ElectionCounts(
            won=self.won,
            lost=self.lost,
            declined=self.declined,
            term_s=round(now - self.term_began_at, 3) if self.term_began_at is not None else None,
        )
