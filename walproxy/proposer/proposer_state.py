"""The state of a proposer that all of its events share: how attempts and terms end, and the checks after each event.

The events are in classes that inherit from this one: primary_events.py, safekeeper_events.py, operator_events.py; when
attempts and terms begin is in attempts.py and terms.py, and why a primary is refused in primary_refusals.py.
"""

from safekeeper.base.errors import InvariantViolation, WalproxyError
from safekeeper.consensus.folder_state import KnownFolders
from safekeeper.consensus.messages import Bootstrap
from walproxy.proposer.actions import Action, Finish, Level, Note, ReportStatus, StopReplication
from walproxy.proposer.campaign import Campaign
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.phase import Candidacy, Phase, ProposerConfig, Stage
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.primary_stream import PrimaryStream
from walproxy.proposer.progress import Progress
from walproxy.proposer.purpose import Obstacle
from walproxy.proposer.refusals import Refusals
from walproxy.proposer.roster import Roster
from walproxy.proposer.standbys import Standbys

BACKOFF_DOUBLINGS_MAX = 5


class ProposerState:
    """The state of the proposer of one proxy process.

    Attributes:
        roster, peers: every configured safekeeper.
        candidacy: the state that it keeps between campaigns and terms.
        campaign: the present attempt to win a term, None if there is none.
        leadership: the term that it leads, None if none.
        refusals: the hosts that its campaigns have refused.
        standbys: the reports about the standbys of all safekeepers, in this term and before.
        primary: the primary's identity, None while there is no connection.
        refusal: why it has finished, None if it has not.
        stuck: why an operator must act, empty if that is not necessary.
    """

    def __init__(self, config: ProposerConfig) -> None:
        self.config = config
        self.timing = config.timing
        self._out: list[Action] = []
        self.roster = Roster(config.proposer_id, config.safekeeper_ids, config.addresses, self._out)
        self.peers = self.roster.peers
        self.candidacy = Candidacy()
        self._stage = Stage()
        self.campaign: Campaign | None = None
        self.leadership: Leadership | None = None
        self.refusals = Refusals(config.timing.refused_wait_min_s, config.timing.refused_wait_max_s)
        self.standbys = Standbys(config.apply_rule)
        self.primary: PrimaryIdentity | None = None
        self.refusal: WalproxyError | None = None
        self.stuck = ""
        self._greeted_since_slot = False
        self._bootstrap: Bootstrap | None = None
        self._bootstrapped: set[int] = set()
        self._stream = PrimaryStream()
        self._probe_sequence: int | None = None
        self._next_attempt_at = 0.0
        self._without_primary_since: float | None = None
        self._send_folders_at = 0.0
        self._jitter = 0.5
        self._steady: dict[int, Progress] = {}

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self._stage.phase

    @property
    def term(self) -> int:
        """The last term that this proposer requested or holds."""
        return self.candidacy.term

    def _gather(self, now: float) -> None:
        self._stage.enter(Phase.GATHERING)
        if self._bootstrap is not None:
            # Who has written it down is empty no more, and must not count as such for a bootstrap with other folders.
            self.roster.forget_greetings()
            self.roster.greet_all(self.primary, now)
        self.campaign = self._bootstrap = None
        self._next_attempt_at = max(self._next_attempt_at, now + self._pause_s())

    def _pause_s(self) -> float:
        """Return how long to wait before the next attempt: longer after each that was lost."""
        pause_s = self.timing.retry_interval_s / 2
        if self.candidacy.failed:
            pause_s *= 2 ** min(self.candidacy.failed, BACKOFF_DOUBLINGS_MAX) * (0.5 + self._jitter)
        return pause_s

    def _abandon_campaign(self, campaign: Campaign, now: float, reason: str) -> None:
        """Give up this attempt. Close a COPY that is still open from an earlier term: no term is led (step 8)."""
        if reason:
            self._note(Level.INFO, f"not elected: {reason}")
        if self._stream.is_open:
            self._stream.is_open = False
            self.primary = None
            self._out.append(StopReplication("no term is held"))
        if campaign.phase is not Phase.PRE_VOTING:
            # Candidates that depose each other must not start at the same time.
            self.candidacy.failed += 1
        self._gather(now)

    def _part_from_primary(self) -> None:
        self.primary = None
        self._probe_sequence = None
        self._stream.disconnected()
        if self.leadership is not None:
            # The next connection may be to another server: no positions are reported to it before it was checked (S10).
            self.leadership.set_streaming(False)

    def _end_term(self, now: float, reason: str, *, is_deposed: bool = False) -> None:
        """Stop leading; report positions of 0 to PostgreSQL until the next term has reached its start (S1)."""
        leadership, candidacy = self.leadership, self.candidacy
        assert leadership is not None  # by the callers
        term = leadership.leader_id.term
        self._note(Level.INFO, f"term {term} ends: {reason}", "term-lost", term)
        self._learn_of_term()  # Its members may return as older copies (S8e).
        candidacy.held_commit_lsn = max(candidacy.held_commit_lsn, leadership.commit_lsn)
        if leadership.is_tail and leadership.commit_lsn and candidacy.purpose is not None:
            candidacy.obstacle = Obstacle(f"a term that {candidacy.purpose} was committed, and has ended: {reason}")
        self._stage.enter(Phase.GATHERING)
        self.leadership = None
        self._stream.ended_lsn = self._probe_sequence = None
        self._out.append(ReportStatus(0, 0, 0))
        if is_deposed and not leadership.commit_lsn:
            # It has failed like a campaign: of two candidates that depose each other by turns, one must wait longer.
            candidacy.failed += 1
            self._next_attempt_at = now + self._pause_s()
        else:
            candidacy.failed, self._next_attempt_at = 0, now
        # New greetings: positions and promises may have changed since the last ones.
        self.roster.forget_greetings()
        self.roster.greet_all(self.primary, now)

    def _learn_of_term(self) -> KnownFolders:
        """Learn what the members have on disk in the term that is led; return what is known of its cluster."""
        leadership = self.leadership
        if leadership is None:
            return {}
        cluster_id = leadership.elected.cluster_id
        self.roster.learn(cluster_id, leadership.folder_states())
        return self.roster.known[cluster_id]

    def _finish(self, error: WalproxyError) -> None:
        if self.refusal is not None:
            return  # The shell may still report the primary after this proposer has finished.
        self._stage.enter(Phase.FINISHED)
        self.refusal = error
        self.campaign = self._bootstrap = None
        if self.leadership is not None:
            self.leadership = None
            self._out.append(ReportStatus(0, 0, 0))
        self._out.append(Finish(error))

    def _note(self, level: Level, text: str, event: str = "", term: int = 0) -> None:
        self._out.append(Note(level, text, event, term))

    def _take(self) -> list[Action]:
        """Check the state after an event, and return its actions; those of a broken state are never executed."""
        taken = self._taken()
        self.check()
        self._steady = self._find_steady()
        return taken

    def _taken(self) -> list[Action]:
        """Return the actions of an everyday event; see `_take` for those of the others."""
        taken = self._out.copy()
        self._out.clear()
        return taken

    def _find_steady(self) -> dict[int, Progress]:
        """Return the members whose answers to appends, and reports of standbys, change nothing but the term.

        Only the other events can change what is looked at here; each of them ends with this.
        """
        leadership = self.leadership
        if (
            leadership is None
            or not leadership.commit_lsn  # the term may still lose its start
            or self._probe_sequence is not None
            or self._stream.ended_lsn is not None
            or self._stream.awaits_link
        ):
            return {}
        peers = self.peers
        return {
            i: progress
            for i, progress in leadership.members.items()
            if progress.follows
            and not (progress.refusal or progress.is_doubted or peers[i].log.logged)
            and peers[i].connected
            and peers[i].waiting_since is None
        }

    def check(self) -> None:
        """Check that the phase agrees with the other state, and check the positions of the term.

        Raises:
            InvariantViolation: a check has failed. Stop the process.
        """
        leadership, phase = self.leadership, self._stage.phase
        if leadership is not None:
            # 3 us of CPU time a commit, of the 200 that a proxy uses with one client: one append, three answers.
            leadership.check()
            fits = phase is Phase.LEADING and self.campaign is None
        else:
            is_campaign = phase in (Phase.PRE_VOTING, Phase.VOTING, Phase.VERIFYING)
            fits = phase is not Phase.LEADING and (self.campaign is not None) == is_campaign
        if not fits:
            raise InvariantViolation(f"a proposer that is {phase.value} has another phase's state")
