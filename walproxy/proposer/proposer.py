"""The proposer: win terms, and lead them.

Theory of operation. A proposer lives as long as one proxy process and has a random id. It waits for greetings and a
primary; then a `Campaign` requests pre-votes and votes, and verifies that the primary's WAL continues the donor's (S9,
S10). Only then is `Elected` sent to the members: everything before that changes nothing but promises. From then on a
`Leadership` sends WAL to the members. A term ends when a higher one is reported, when its start is lost, or when the
primary changes its timeline; the same proposer then tries to win a higher one. A primary that does not fit ends the
process, or, if there are several hosts, is treated as disconnected: a term that is led continues, an attempt to win one
is given up, and a primary that was refused waits before the next attempt (refusals.py).

    GATHERING -> [BOOTSTRAPPING ->] PRE_VOTING -> VOTING -> VERIFYING -> LEADING -> GATHERING ...
                                                                              \\-> FINISHED

Every public method is an event: its arguments are the event and the time; it returns the actions to execute in order.
Pure: jitter is an argument of `tick`.

Its parts, each of which inherits from the one before, or from `Terms`:

    ProposerState <- PrimaryRefusals <- Attempts <- Terms <- OperatorEvents <- SafekeeperEvents
                                                          <- PrimaryEvents
"""

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import Elected
from walproxy.proposer.actions import Action
from walproxy.proposer.phase import Phase
from walproxy.proposer.primary_events import PrimaryEvents
from walproxy.proposer.progress import State
from walproxy.proposer.purpose import Purpose
from walproxy.proposer.safekeeper_events import SafekeeperEvents

# The members are told what is known of each other's data folders this often, if it is news.
FOLDERS_INTERVAL_S = 1.0


class Proposer(SafekeeperEvents, PrimaryEvents):
    """The proposer of one proxy process: its events, and what its shell reads. Attributes: see `ProposerState`."""

    def tick(self, now: float, jitter: float) -> list[Action]:
        """Handle the passing of time. `jitter`, uniform in [0, 1), separates the attempts of candidates (step 2)."""
        self._jitter = jitter
        is_due = self.phase is Phase.GATHERING and now >= self._next_attempt_at
        if self._ends_tail_term():
            self._without_primary_since = None
            self._end_term(now, "a primary is connected")
            return self._take()
        self.roster.give_up_on_silent(now, self.timing.response_timeout_s)
        if any(len(peer.addresses) > 1 for peer in self.peers.values()):
            self._dial_members(now)
        if self.leadership is not None:
            if self.candidacy.purpose is not None and self.tail_elected is not None:
                self.candidacy.was_elected = True  # Its first purpose is served: this run never takes over again.
            self.leadership.tick(now)
            self._hang_up_removed(self.leadership, now)
            if now >= self._send_folders_at:
                self._send_folders_at = now + FOLDERS_INTERVAL_S
                known = self._learn_of_term()
                self.leadership.send_folders(known)
            if self.config.replace_lost:
                self.leadership.replace_lost(now)
            self._follow_leadership(now)
        elif self.campaign is not None:
            self.campaign.tick(now)
            self._follow_campaign(self.campaign, now)
        elif is_due and (self.primary or self.candidacy.term):
            # The time of the next attempt is random each time, whether or not this one starts. Only the first one of a
            # process begins as soon as a primary and a quorum are connected: it repeats no other.
            self._next_attempt_at = now + self.timing.retry_interval_s * (0.5 + jitter)
            self._try_to_begin(now, due=True)
        self._try_tail_term(now, is_due)
        return self._take()

    def _ends_tail_term(self) -> bool:
        """Return whether a tail term is led and a primary is there. It never ends in the event that has won it."""
        return self.leadership is not None and self.leadership.is_tail and self.primary is not None

    @property
    def knows_a_cluster(self) -> bool:
        """Whether a member of a cluster has greeted, or a term was requested."""
        return bool(self.term) or any(p.greeting is not None and p.greeting.membership for p in self.peers.values())

    @property
    def is_first_start(self) -> bool:
        """Whether all safekeepers have greeted, and none belongs to a cluster."""
        greetings = [peer.greeting for peer in self.peers.values()]
        return all(greeting is not None and greeting.membership is None for greeting in greetings)

    def committed_lsns(self) -> tuple[Lsn, Lsn]:
        """Return commit_lsn and truncate_lsn of the term that is led, 0 for what is unknown.

        WAL below them may leave the window.
        """
        leadership = self.leadership
        if leadership is None:
            return 0, 0
        leadership.update_truncate()
        return leadership.commit_lsn, leadership.truncate_lsn

    @property
    def tail_elected(self) -> Elected | None:
        """What has begun the tail term that is led, if a quorum has adopted it (12.4): its purpose is served (13.4)."""
        leadership = self.leadership
        if leadership is None or not leadership.is_tail or not leadership.commit_lsn:
            return None
        return leadership.elected

    def pursue(self, purpose: Purpose, now: float) -> list[Action]:
        """Win a tail term for a purpose: after one that this run leads, the next one."""
        if self.leadership is not None:
            self._end_term(now, f"the next one {purpose}")
        self.candidacy.purpose, self.candidacy.obstacle = purpose, None
        return self._take()

    @property
    def quorum_end_lsn(self) -> Lsn:
        """commit_lsn while a term is led, else the highest flush_lsn that a safekeeper has reported."""
        leadership = self.leadership
        if leadership is not None and leadership.commit_lsn:
            return leadership.commit_lsn
        greetings = [peer.greeting for peer in self.peers.values()]
        return max((greeting.flush_lsn for greeting in greetings if greeting is not None), default=0)

    def hot_standby_feedback(self) -> tuple[int, int] | None:
        """Return the oldest (xmin, catalog_xmin) that the standbys need, 0 for none.

        None while no verified primary streams, and before a quorum follows, which then has reported its standbys.
        """
        leadership = self.leadership
        if leadership is None or not leadership.streaming or not leadership.commit_lsn:
            return None
        return self.standbys.oldest_xmins()

    @property
    def is_spare(self) -> bool:
        """Whether another proposer is alive, so that this one waits."""
        return self.candidacy.is_spare

    @property
    def is_steady(self) -> bool:
        """Whether every configured safekeeper is sent WAL of the window, and only everyday events occur."""
        leadership = self.leadership
        # One that needs WAL below the window may wait for the next tick to fetch it.
        return (
            leadership is not None
            and len(self._steady) == len(self.peers)
            and all(
                progress.state is State.STREAMING and progress.sent_lsn >= leadership.window_begin_lsn
                for progress in self._steady.values()
            )
        )
