"""The proposer: wins terms, and leads them.

Theory of operation. A proposer is a *run*: one life of one proxy, with a random id. It gathers greetings and a primary,
asks whether it may be elected (pre-vote), is elected (vote), makes sure that the primary's WAL continues the donor's
(S9, S10), and only then tells the members (`Elected`): what is done up to that point changes nothing but promises. From
then on a `Leadership` feeds the members. A term ends when a higher one is heard of, when its start is lost, or when the
primary changes its timeline; the same run then tries to win a higher one. A primary that does not fit ends the run, or,
where there are several hosts, is as good as lost: a term that is led stays so, an attempt to win one is given up.

    GATHERING -> [BOOTSTRAPPING ->] PRE_VOTING -> VOTING -> VERIFYING -> LEADING -> GATHERING ...
                                                                              \\-> FINISHED

Every public method is an event: it takes what happened and the time, and returns the actions to carry out in order.
Pure: jitter is an argument of `tick`.
"""

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from safekeeper.consensus.actions import (
    Action,
    Disconnect,
    Finish,
    IdentifyPrimary,
    Level,
    Note,
    RefusePrimary,
    ReportStatus,
    SendMessage,
    StartReplication,
    StopReplication,
)
from safekeeper.consensus.apply_rule import ApplyRule
from safekeeper.consensus.campaign import Campaign, Outcome
from safekeeper.consensus.control_state import NodeId
from safekeeper.consensus.election import (
    choose_donor,
    collect_tli_histories,
    extend_history,
)
from safekeeper.consensus.leadership import Leadership, Timing
from safekeeper.consensus.messages import (
    DIGEST_PAGE_SIZE,
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AppendResponse,
    Bootstrap,
    Bootstrapped,
    DigestRequest,
    DigestResponse,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    ReadResponse,
    Refusal,
    RefusalCode,
    StandbyFeedback,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.primary import (
    LogPlan,
    PrimaryIdentity,
    check_range_begin,
    first_difference,
    first_log_plan,
    plan_log,
)
from safekeeper.consensus.roster import (
    Cluster,
    Peer,
    bootstrap_of,
    find_cluster,
    foreign_reason,
    highest_promise,
    other_cluster_reason,
    plan_bootstrap,
    stuck_reason,
    twin_of,
    voters_of,
)
from safekeeper.consensus.standbys import Standbys
from safekeeper.consensus.term_history import check_history, last_term
from safekeeper.errors import Fenced, InvariantViolation, PrimaryRefused, RemoteProtocolError, WalproxyError
from safekeeper.lsn import Lsn, format_lsn

BACKOFF_DOUBLINGS_MAX = 5


class Phase(Enum):
    """Where a proposer is; each comment says what moves it on."""

    GATHERING = "gathering"  # a quorum of members and a primary are there, and it is time: PRE_VOTING
    BOOTSTRAPPING = "bootstrapping"  # every member has confirmed: GATHERING
    PRE_VOTING = "pre_voting"  # a majority agrees: VOTING; it does not: GATHERING, as a spare
    VOTING = "voting"  # a majority has promised: VERIFYING; a higher promise or a timeout: GATHERING
    VERIFYING = "verifying"  # the primary continues the log: LEADING; it does not: FINISHED, or GATHERING for another
    LEADING = "leading"  # a higher term, a lost start, a new timeline: GATHERING
    FINISHED = "finished"  # nothing


@dataclass(frozen=True, slots=True)
class ProposerConfig:
    """What an operator decides.

    Attributes:
        run: random id of this run, 32 hexadecimal digits.
        safekeeper_ids: the members at a bootstrap.
        takeover: be elected even if another proposer is alive.
        allow_data_loss: let a fork cut what may have been committed (S9).
        several_primaries: there are other hosts to try, so that a primary that is refused does not end the run.
        apply_rule: the standbys that must have replayed what `apply` says.
    """

    run: str
    safekeeper_ids: tuple[int, ...]
    takeover: bool = False
    allow_data_loss: bool = False
    several_primaries: bool = False
    apply_rule: ApplyRule = field(default_factory=ApplyRule)
    timing: Timing = field(default_factory=Timing)


class Proposer:
    """One run of a proposer.

    Attributes:
        phase: see `Phase`.
        peers: every configured safekeeper.
        leadership: the term that it leads, None if none.
        standbys: what the standbys of all safekeepers have said, in this term and before.
        primary: the primary's identity, None while there is no connection.
        is_spare: another proposer is alive; this one waits.
        term: the last term that this run asked for or holds.
        refusal: why it has finished, empty if it has not.
        stuck: why only an operator can help, empty if that is not so.
    """

    def __init__(self, config: ProposerConfig) -> None:
        self.config = config
        self.timing = config.timing
        self.phase = Phase.GATHERING
        self.peers: dict[int, Peer] = {i: Peer() for i in config.safekeeper_ids}
        self.leadership: Leadership | None = None
        self.standbys = Standbys(config.apply_rule)
        self.primary: PrimaryIdentity | None = None
        self.is_spare = False
        self.term = 0
        self.refusal = ""
        self.stuck = ""
        self._campaign: Campaign | None = None
        self._bootstrapped: set[int] = set()
        self._bootstrap: Bootstrap | None = None
        self._next_attempt_at = 0.0
        self._copying = False
        self._copied_tli = 0
        self._copy_is_checked = False
        self._awaits_link = False
        self._failed_campaigns = 0
        self._jitter = 0.5
        self._received_lsn: Lsn = 0
        self._window_begin_lsn: Lsn = 0
        self._held_term = 0
        self._held_commit_lsn: Lsn = 0
        self._probe_sequence: int | None = None
        self._own_page_crcs: tuple[int, ...] = ()
        self._ended_tli_at: Lsn | None = None
        self._out: list[Action] = []

    # ------------------------------------------------------------------ events: safekeepers

    def connected(self, safekeeper_id: int, now: float) -> list[Action]:
        """A connection to a safekeeper is open."""
        known = self.peers[safekeeper_id]
        self.peers[safekeeper_id] = Peer(True, None, None, known.refused, known.refused_code, known.told)
        self._greet(safekeeper_id, now)
        return self._take()

    def disconnected(self, safekeeper_id: int, now: float) -> list[Action]:
        """A connection to a safekeeper is closed; why it was refused stays known until it greets again."""
        peer = self.peers[safekeeper_id]
        peer.connected, peer.greeting = False, None
        self.standbys.parted(safekeeper_id)
        if self.phase is Phase.BOOTSTRAPPING:
            self._gather(now)
        elif self.phase in (Phase.PRE_VOTING, Phase.VOTING) and self._campaign is not None:
            self._campaign.refusals.add(safekeeper_id)
            self._campaign.votes.pop(safekeeper_id, None)
            self._judge_campaign(now)
        elif self.phase is Phase.VERIFYING and self._campaign is not None:
            if safekeeper_id == self._campaign.donor:
                self._abandon_campaign(now, f"donor {safekeeper_id} is gone")
        elif self.leadership is not None:
            self._out.extend(self.leadership.parted(safekeeper_id, now))
            self._check_start_is_there(now)
        return self._take()

    def message(self, safekeeper_id: int, message: AcceptorMessage, now: float) -> list[Action]:
        """A safekeeper said something.

        Raises:
            RemoteProtocolError: it makes no sense; close that connection.
        """
        peer = self.peers[safekeeper_id]
        if not peer.connected or self.phase is Phase.FINISHED:
            return []
        # What was on its way already says nothing about the greeting that is awaited.
        peer.waiting_since = now if peer.greeting is None else None
        if isinstance(message, AppendResponse):
            peer.told = ""  # All is well: the same reason is news again when it comes back.
            if self.leadership is not None:
                self._out.extend(self.leadership.on_append_response(safekeeper_id, message, now))
                self._follow_up(now)
        elif isinstance(message, StandbyFeedback):
            # Without a leadership nobody asked: it is told anew with the next adoption.
            if self.leadership is not None:
                self._out.extend(self.leadership.on_standby_feedback(safekeeper_id, message.standbys))
        elif isinstance(message, ReadResponse):
            if self.leadership is not None:
                self._out.extend(self.leadership.on_read_response(safekeeper_id, message, now))
        elif isinstance(message, AcceptorGreeting):
            self._on_greeting(safekeeper_id, message, now)
        elif isinstance(message, Refusal):
            self._on_refusal(safekeeper_id, message, now)
        elif isinstance(message, Bootstrapped):
            self._on_bootstrapped(safekeeper_id, message, now)
        elif isinstance(message, PreVoteResponse):
            self._on_pre_vote(safekeeper_id, message, now)
        elif isinstance(message, VoteResponse):
            self._on_vote(safekeeper_id, message, now)
        elif isinstance(message, DigestResponse):
            self._on_digest(safekeeper_id, message, now)
        elif isinstance(message, TailResponse):
            self._on_tail(safekeeper_id, message, now)
        return self._take()

    # ------------------------------------------------------------------ events: the primary

    def primary_identified(
        self, primary: PrimaryIdentity, now: float, own_page_crcs: tuple[int, ...] = ()
    ) -> list[Action]:
        """A connection to the primary is open and says who it is.

        Args:
            own_page_crcs: checksums of the pages that were received of the segment that holds the last received byte,
                from its start up to `received_lsn`.
        """
        first = self.primary is None and self._held_term == 0
        self.primary = primary
        self._own_page_crcs = own_page_crcs
        self._copying = False
        if first:
            # What was greeted without an identity is greeted again with one, so that both sides check it.
            for safekeeper_id, peer in self.peers.items():
                if peer.connected:
                    self._greet(safekeeper_id, now)
        leadership = self.leadership
        if leadership is not None:
            ours = (leadership.elected.system_id, leadership.elected.segment_size)
            if (primary.system_id, primary.segment_size) != ours:
                self._refuse_primary(
                    f"the primary has system identifier {primary.system_id} and segment size {primary.segment_size}, "
                    f"the quorum's log has {ours[0]} and {ours[1]}: it is another PostgreSQL",
                    now,
                )
            elif primary.tli != leadership.tli:
                refusal = self._refusal_of_lineage(leadership, primary)
                if refusal:
                    self._refuse_primary(refusal, now)
                else:
                    self._end_term(now, f"the primary is on timeline {primary.tli}, the term on {leadership.tli}")
            elif primary.flush_lsn < leadership.received_lsn:
                self._refuse_primary(
                    f"the primary's WAL ends at {format_lsn(primary.flush_lsn)}, but it has sent WAL up to "
                    f"{format_lsn(leadership.received_lsn)}: it was restored from a backup or lost its disk",
                    now,
                )
            else:
                # S10: a primary is streamed only in a term that still stands.
                self._out.extend(leadership.probe(now))
                self._probe_sequence = leadership.sequence
                self._follow_up(now)
        if self.phase is Phase.VERIFYING and self._campaign is not None and self._campaign.plan is None:
            self._plan(self._campaign, now)
        self._try_to_begin(now)
        return self._take()

    def primary_segment_removed(self, now: float) -> list[Action]:
        """The primary has recycled the segment that was to be compared.

        If the log ends on a segment's border, the next segment is all that is needed: its first record must link to
        our last one (S10). Otherwise this primary cannot go on from where the log ends.
        """
        campaign = self._campaign
        # That COPY is over; nothing of it was checked.
        self._copying = self._copy_is_checked = False
        if self.leadership is not None:
            self._end_term(now, "the primary has recycled the segment to compare")
            self._try_to_begin(now, due=True)
        elif self.phase is Phase.VERIFYING and campaign is not None and campaign.plan is not None:
            start_lsn = campaign.plan.start_lsn
            assert self.primary is not None and campaign.node_id is not None  # both led to the check
            if start_lsn % self.primary.segment_size or campaign.links:
                self._refuse_primary(
                    f"the primary has recycled the WAL at {format_lsn(start_lsn)}, where the quorum's log ends: "
                    "its slot was dropped or invalidated (see walproxy rebootstrap)",
                    now,
                )
            else:
                campaign.links = True
                request = TailRequest(campaign.node_id, 0, start_lsn)
                self._out.append(SendMessage(campaign.donor, request))
        return self._take()

    def primary_lost(self, now: float) -> list[Action]:
        """The connection to the primary is gone."""
        self._part_from_primary()
        if self.leadership is None and self.phase in (Phase.PRE_VOTING, Phase.VOTING, Phase.VERIFYING):
            self._abandon_campaign(now, "the primary is gone")
        return self._take()

    def _part_from_primary(self) -> None:
        self.primary = None
        self._copying = self._awaits_link = False
        self._probe_sequence = self._ended_tli_at = None
        if self.leadership is not None:
            # The next connection may lead to another server: it is told nothing before it was checked (S10).
            self._out.append(self.leadership.set_streaming(False))

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, page_crcs: tuple[int, ...], now: float) -> list[Action]:
        """The primary's bytes [begin_lsn, end_lsn) were received; these are their pages' checksums (S10)."""
        self._require_copy()
        if self.leadership is not None:
            differs_lsn = first_difference(begin_lsn, self._own_page_crcs, page_crcs)
            if differs_lsn is not None:
                self._refuse_primary(_differs(differs_lsn, "what it sent before"), now)
            else:
                self._primary_is_ours(self.leadership)
        elif self.phase is Phase.VERIFYING and self._campaign is not None:
            self._campaign.their_page_crcs = page_crcs
            self._verify(now)
        return self._take()

    def primary_refused(self, reason: str, now: float) -> list[Action]:
        """The shell found what makes this primary unusable, e.g. a record that does not link to ours (S10)."""
        self._refuse_primary(reason, now)
        return self._take()

    def timeline_ended(self, next_tli: int, end_lsn: Lsn, now: float) -> list[Action]:
        """The primary has streamed the term's timeline to its end; the next one is another term's (S9)."""
        if end_lsn != self._received_lsn:
            reason = f"timeline ended at {format_lsn(end_lsn)}, not where its WAL did"
            if self._campaign is not None:
                self._abandon_campaign(now, reason)
            else:
                self.primary = None
                self._out.append(StopReplication(reason))
        else:
            # It may end before the donor's checksums are there, and so before the term is led.
            self._ended_tli_at = end_lsn
        self._copying = False
        if self.leadership is not None:
            self._out.append(self.leadership.set_streaming(False))
            self._follow_up(now)
        return self._take()

    def wal_received(self, end_lsn: Lsn, now: float) -> list[Action]:
        """The window has grown up to `end_lsn`."""
        self._require_copy()
        self._received_lsn = end_lsn
        if self.leadership is not None:
            if self._awaits_link:
                self._awaits_link = False
                # The first record links to our last one, else the shell would not have handed it on.
                self._primary_is_ours(self.leadership)
            self._out.extend(self.leadership.on_wal_received(end_lsn, now))
        return self._take()

    def _require_copy(self) -> None:
        """What a primary sends after it was refused or given up must have been dropped: the window has it otherwise."""
        if not self._copying:
            raise InvariantViolation("WAL was taken from a primary that is not to be streamed")

    def wal_evicted(self, begin_lsn: Lsn) -> None:
        """The window begins at `begin_lsn` now."""
        self._window_begin_lsn = begin_lsn
        if self.leadership is not None:
            self.leadership.window_begin_lsn = begin_lsn

    # ------------------------------------------------------------------ events: time

    def tick(self, now: float, jitter: float) -> list[Action]:
        """Time has passed. `jitter` is uniform in [0, 1): it keeps candidates from stepping on each other (step 2)."""
        campaign = self._campaign
        self._jitter = jitter
        for safekeeper_id, peer in self.peers.items():
            waited_s = now - peer.waiting_since if peer.waiting_since is not None else 0.0
            if peer.connected and waited_s > self.timing.response_timeout_s:
                peer.waiting_since = None
                self._out.append(Disconnect(safekeeper_id, f"no answer for {waited_s:.1f} s"))
        if self.leadership is not None:
            self._out.extend(self.leadership.tick(now))
            self._follow_up(now)
        elif campaign is not None:
            waited_s = now - campaign.began_at
            verifying = self.phase is Phase.VERIFYING
            if self.phase is Phase.VOTING and campaign.quorum_at is not None:
                self._judge_campaign(now)
            elif waited_s > (self.timing.verify_timeout_s if verifying else self.timing.vote_timeout_s):
                whom = "the primary or the donor" if verifying else "a quorum"
                self._abandon_campaign(now, f"{whom} did not answer in time")
        elif self.phase is Phase.GATHERING and now >= self._next_attempt_at:
            # The next attempt is drawn anew each time, whether or not this one starts.
            self._next_attempt_at = now + self.timing.retry_interval_s * (0.5 + jitter)
            self._try_to_begin(now, due=True)
        return self._take()

    # ------------------------------------------------------------------ events: the operator

    def set_apply_rule(self, rule: ApplyRule) -> list[Action]:
        """Other standbys are designated from now on: what has been replayed is counted anew at once."""
        leadership = self.leadership
        before_lsn = self.standbys.apply_lsn(leadership.commit_lsn) if leadership is not None else 0
        self.standbys.set_rule(rule)
        if leadership is not None:
            self._out.extend(leadership.report_apply(before_lsn))
        return self._take()

    # ------------------------------------------------------------------ gathering

    def _ask(self, safekeeper_id: int, message: ProposerMessage, now: float) -> None:
        """Send what must be answered soon."""
        peer = self.peers[safekeeper_id]
        if peer.waiting_since is None:
            peer.waiting_since = now
        self._out.append(SendMessage(safekeeper_id, message))

    def _greet(self, safekeeper_id: int, now: float) -> None:
        primary = self.primary
        greeting = ProposerGreeting(
            PROTOCOL_VERSION,
            self.config.run,
            safekeeper_id,
            primary.system_id if primary else None,
            primary.segment_size if primary else None,
        )
        self._ask(safekeeper_id, greeting, now)

    def _on_greeting(self, safekeeper_id: int, greeting: AcceptorGreeting, now: float) -> None:
        if greeting.safekeeper_id != safekeeper_id or greeting.protocol_version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"safekeeper {greeting.safekeeper_id} with protocol {greeting.protocol_version} answered the greeting"
            )
        peer = self.peers[safekeeper_id]
        peer.greeting, peer.refused, peer.refused_code = greeting, "", None
        peer.waiting_since = None
        twin = twin_of(self.peers, safekeeper_id, greeting.incarnation)
        if twin is not None:
            self._refuse_peer(
                safekeeper_id, None, f"its data folder is a copy of safekeeper {twin}'s: wipe one of the two"
            )
            return
        leadership = self.leadership
        if leadership is not None:
            if greeting.cluster_id not in ("", leadership.elected.cluster_id) and not greeting.is_empty:
                self._refuse_peer(safekeeper_id, RefusalCode.OTHER_CLUSTER, other_cluster_reason(greeting))
                return
            if greeting.membership and greeting.membership.generation > leadership.membership.generation:
                self._end_term(now, "a member knows a newer membership")
                return
            voter = leadership.membership.is_voter(safekeeper_id, greeting.incarnation)
            self._out.extend(leadership.welcome(safekeeper_id, voter, now))
        elif self.phase is Phase.VOTING and self._campaign is not None and self._campaign.node_id is not None:
            self._ask_for_vote(safekeeper_id, now)
        else:
            self._try_to_begin(now)

    def _try_to_begin(self, now: float, due: bool = False) -> None:
        """Start what can be started: the bootstrap, or an election."""
        if self.phase is not Phase.GATHERING or self.primary is None:
            return
        if not due and now < self._next_attempt_at:
            return
        if self._refuse_foreigners(now):
            return
        cluster = find_cluster(self.peers)
        if cluster is not None:
            self.stuck = ""
            self._pre_vote(cluster, now)
            return
        bootstrap = plan_bootstrap(self.peers, self.primary)
        if bootstrap is not None:
            self._begin_bootstrap(bootstrap, now)
            return
        stuck = stuck_reason(self.peers)
        if stuck and stuck != self.stuck:
            self.stuck = stuck
            self._note(Level.ERROR, stuck)

    def _refuse_foreigners(self, now: float) -> bool:
        """Check S10's identity part before anybody is asked to vote. True if the primary is refused."""
        assert self.primary is not None  # by the caller
        reasons = []
        for safekeeper_id, peer in self.peers.items():
            reason = foreign_reason(peer.greeting, self.primary) if peer.greeting is not None else ""
            if reason:
                self._refuse_peer(safekeeper_id, RefusalCode.OTHER_SYSTEM, reason)
            if peer.refused_code is RefusalCode.OTHER_SYSTEM:
                reasons.append(peer.refused)
        if len(reasons) > len(self.peers) // 2:
            reason = f"{len(reasons)} of {len(self.peers)} safekeepers refuse it, e.g.: {reasons[0]}"
            self._refuse_primary(reason, now)
            self._forgive_foreigners()
            return True
        return False

    def _forgive_foreigners(self) -> None:
        """Another primary is to be tried: what the members said of this one must not be held against that one."""
        for safekeeper_id, peer in self.peers.items():
            if peer.refused_code is RefusalCode.OTHER_SYSTEM:
                peer.refused, peer.refused_code = "", None
            elif peer.connected and peer.greeting is None:
                # It has yet to answer a greeting that may name this primary.
                self._out.append(Disconnect(safekeeper_id, "another primary is tried"))

    # ------------------------------------------------------------------ bootstrap (step 0)

    def _begin_bootstrap(self, bootstrap: Bootstrap, now: float) -> None:
        """Have the first membership written; an earlier half-done one is repeated."""
        self._bootstrap = bootstrap
        self._bootstrapped = set()
        self.phase = Phase.BOOTSTRAPPING
        count = len(self.peers)
        self._note(Level.INFO, f"bootstrapping cluster {bootstrap.cluster_id[:8]} with {count} empty safekeepers")
        for safekeeper_id in self.peers:
            self._ask(safekeeper_id, bootstrap, now)

    def _on_bootstrapped(self, safekeeper_id: int, message: Bootstrapped, now: float) -> None:
        bootstrap = self._bootstrap
        if bootstrap is None or message.cluster_id != bootstrap.cluster_id:
            return
        self._bootstrapped.add(safekeeper_id)
        if self.phase is Phase.BOOTSTRAPPING and self._bootstrapped == self.peers.keys():
            # Only when all have it: a quorum's answer would let a member in that was wiped meanwhile.
            self._bootstrap = None
            self.phase = Phase.GATHERING
            for other_id in self.peers:
                self._greet(other_id, now)

    # ------------------------------------------------------------------ pre-vote (step 2)

    def _pre_vote(self, cluster: Cluster, now: float) -> None:
        voters = voters_of(self.peers, cluster)
        self._campaign = Campaign(now, cluster, voters)
        self.phase = Phase.PRE_VOTING
        for safekeeper_id in sorted(voters):
            self._ask(safekeeper_id, PreVoteRequest(self.config.run, self.config.takeover), now)

    def _on_pre_vote(self, safekeeper_id: int, response: PreVoteResponse, now: float) -> None:
        campaign = self._campaign
        if self.phase is Phase.PRE_VOTING and campaign is not None and safekeeper_id in campaign.asked:
            campaign.pre_votes[safekeeper_id] = response
            self._judge_campaign(now)

    def _judge_pre_votes(self, campaign: Campaign, now: float) -> None:
        outcome, rivals = campaign.pre_vote_outcome(), campaign.rivals(self.config.run)
        runs = ", ".join(sorted({run[:8] for run in rivals.values()}))
        if outcome is Outcome.WON:
            self._vote(campaign, now)
        elif campaign.membership.has_quorum(rivals) and self._held_term:
            self._finish(Fenced(f"a majority of safekeepers follows another proxy (run {runs})"))
        elif outcome is Outcome.LOST:
            if rivals and not self.is_spare:
                self.is_spare = True
                self._note(Level.INFO, f"another proxy serves (run {runs}): waiting as a spare")
            self._abandon_campaign(now, "")

    # ------------------------------------------------------------------ vote (steps 3 and 4)

    def _vote(self, campaign: Campaign, now: float) -> None:
        """Ask for the next term: above every promise that was seen and every term that this run has used (step 1)."""
        self.term = max(self.term, highest_promise(self.peers)) + 1
        campaign.node_id = NodeId(self.term, self.config.run)
        campaign.began_at = now
        # Who has greeted since the pre-vote is asked too: the more votes, the more exact is M (S9). Whoever has yet to
        # greet is asked then.
        campaign.asked |= voters_of(self.peers, campaign.cluster)
        campaign.refusals = {i for i in campaign.asked if self.peers[i].greeting is None}
        self.phase = Phase.VOTING
        self.is_spare = False
        for safekeeper_id in sorted(campaign.asked - campaign.refusals):
            self._ask_for_vote(safekeeper_id, now)

    def _ask_for_vote(self, safekeeper_id: int, now: float) -> None:
        campaign, peer = self._campaign, self.peers[safekeeper_id]
        assert campaign is not None and campaign.node_id is not None and peer.greeting is not None  # by the callers
        assert self.primary is not None  # a campaign needs one
        if not campaign.membership.is_voter(safekeeper_id, peer.greeting.incarnation):
            return
        campaign.asked.add(safekeeper_id)
        campaign.refusals.discard(safekeeper_id)
        if peer.greeting.membership is None:
            # It missed the bootstrap's end; it is in it by name.
            self._ask(safekeeper_id, bootstrap_of(campaign.cluster, self.primary), now)
        self._ask(safekeeper_id, VoteRequest(campaign.node_id, campaign.membership.generation), now)

    def _on_vote(self, safekeeper_id: int, response: VoteResponse, now: float) -> None:
        campaign, peer = self._campaign, self.peers[safekeeper_id]
        if peer.greeting is not None and response.promised.term > peer.greeting.promised.term:
            self._remember_promise(safekeeper_id, response.promised)
        if self.phase is not Phase.VOTING or campaign is None or response.node_id != campaign.node_id:
            return
        if response.granted:
            check_history(response.history)
            campaign.votes[safekeeper_id] = response
        else:
            campaign.refusals.add(safekeeper_id)
        self._judge_campaign(now)

    def _remember_promise(self, safekeeper_id: int, promised: NodeId) -> None:
        peer = self.peers[safekeeper_id]
        if peer.greeting is not None:
            peer.greeting = msgspec.structs.replace(peer.greeting, promised=promised)

    def _judge_campaign(self, now: float) -> None:
        campaign = self._campaign
        assert campaign is not None  # by the callers
        if self.phase is Phase.PRE_VOTING:
            self._judge_pre_votes(campaign, now)
            return
        outcome = campaign.vote_outcome(now, self.timing.vote_grace_s)
        if outcome is Outcome.WON:
            self._elect(campaign, now)
        elif outcome is Outcome.LOST:
            self._abandon_campaign(now, "a quorum did not vote for it")

    def _elect(self, campaign: Campaign, now: float) -> None:
        """A quorum has promised: choose the donor, and ask the primary once more who it is."""
        assert campaign.node_id is not None  # a vote was asked for
        self.phase = Phase.VERIFYING
        campaign.donor = choose_donor(campaign.votes)
        if not self._copying:
            # What it said before the votes may be behind them.
            self._out.append(IdentifyPrimary())
            return
        vote = campaign.votes[campaign.donor]
        same_log = (
            self._copy_is_checked
            and last_term(vote.history) == self._held_term
            and vote.history[-1].tli == self._copied_tli
        )
        if same_log and self._window_begin_lsn <= vote.flush_lsn <= self._received_lsn:
            # The bytes before the term's start came through this very COPY: it goes on, unchecked.
            campaign.plan = LogPlan(vote.flush_lsn, self._copied_tli, cuts=False)
            self._lead(campaign, now)
        else:
            self._abandon_campaign(now, "another proposer has written to the log, the primary is checked anew")

    def _plan(self, campaign: Campaign, now: float) -> None:
        """Find where the term begins, and have the primary checked."""
        assert self.primary is not None and campaign.node_id is not None  # a campaign needs both
        vote = campaign.votes[campaign.donor]
        if self._refuse_foreigners(now):
            return
        try:
            if not vote.history:
                campaign.plan = first_log_plan(self.primary)
            else:
                campaign.plan = plan_log(vote.history, vote.flush_lsn, self.primary)
        except PrimaryRefused as refused:
            self._refuse_primary(str(refused), now)
            return
        plan = campaign.plan
        if vote.history and plan.start_lsn < vote.wal_begin_lsn:
            self._refuse_primary(
                f"the primary's timeline {plan.tli} forked off at {format_lsn(plan.start_lsn)}, before the beginning "
                f"of the quorum's log at {format_lsn(vote.wal_begin_lsn)}: the two cannot be compared "
                "(see walproxy rebootstrap)",
                now,
            )
            return
        self._note(
            Level.INFO,
            f"term {campaign.node_id.term}: elected by {len(campaign.votes)} of {len(campaign.membership.members)}, "
            f"donor {campaign.donor}, begins at {format_lsn(plan.start_lsn)} on timeline {plan.tli}",
        )
        if plan.cuts and not self.config.allow_data_loss:
            # Where does the record end that begins at the fork? (S9)
            self._out.append(SendMessage(campaign.donor, TailRequest(campaign.node_id, 0, plan.start_lsn)))
        else:
            self._check_primary(campaign)
            self._verify(now)

    def _on_tail(self, safekeeper_id: int, response: TailResponse, now: float) -> None:
        campaign = self._campaign
        if (
            self.phase is not Phase.VERIFYING
            or campaign is None
            or campaign.plan is None
            or safekeeper_id != campaign.donor
            or response.lsn != campaign.plan.start_lsn
        ):
            return
        if campaign.links:
            plan = campaign.plan
            action = StartReplication(
                plan.start_lsn,
                plan.tli,
                plan.start_lsn,
                plan.tli,
                previous_record_lsn=response.last_record_lsn,
                log_tail=response.log_tail,
            )
            self._out.append(action)
            self._copying, self._copied_tli = True, plan.tli
            self._received_lsn = self._window_begin_lsn = plan.start_lsn
            self._lead(campaign, now, is_checked=False)
            return
        possible_lsn = campaign.possible_commit_lsn(self._held_term, self._held_commit_lsn)
        if 0 < response.record_end_lsn <= possible_lsn:
            self._refuse_primary(
                f"the primary's timeline {campaign.plan.tli} forked off at {format_lsn(response.lsn)}, but WAL up to "
                f"{format_lsn(possible_lsn)} may have been acknowledged: it lacks the record "
                f"[{format_lsn(response.lsn)}, {format_lsn(response.record_end_lsn)}) "
                "(--allow-data-loss gives it up)",
                now,
            )
        else:
            self._check_primary(campaign)
            self._verify(now)

    # ------------------------------------------------------------------ verify (S10)

    def _check_primary(self, campaign: Campaign) -> None:
        """Have the primary's bytes before the term's start compared with the donor's."""
        assert self.primary is not None and campaign.plan is not None and campaign.node_id is not None
        plan, vote = campaign.plan, campaign.votes[campaign.donor]
        begin_lsn, check_tli = plan.start_lsn, plan.tli
        if vote.history and plan.start_lsn > vote.wal_begin_lsn:
            begin_lsn = check_range_begin(plan.start_lsn, self.primary.segment_size)
            on_border = plan.start_lsn % self.primary.segment_size == 0
            if on_border:
                # Byte start - 1 lies in a segment that only the timeline of that byte has.
                check_tli = next(e.tli for e in reversed(vote.history) if e.start_lsn < plan.start_lsn)
            request = DigestRequest(campaign.node_id, 0, begin_lsn, plan.start_lsn)
            self._out.append(SendMessage(campaign.donor, request))
        else:
            campaign.our_page_crcs = campaign.their_page_crcs = ()
        self._copying, self._copied_tli, self._ended_tli_at = True, plan.tli, None
        self._out.append(StartReplication(begin_lsn, check_tli, plan.start_lsn, plan.tli))
        self._received_lsn = self._window_begin_lsn = plan.start_lsn

    def _on_digest(self, safekeeper_id: int, response: DigestResponse, now: float) -> None:
        campaign = self._campaign
        if (
            self.phase is Phase.VERIFYING
            and campaign is not None
            and campaign.plan is not None
            and safekeeper_id == campaign.donor
            and response.end_lsn == campaign.plan.start_lsn
            and self.primary is not None
        ):
            begin_lsn = check_range_begin(campaign.plan.start_lsn, self.primary.segment_size)
            pages = -(-(response.end_lsn - begin_lsn) // DIGEST_PAGE_SIZE)
            if response.begin_lsn != begin_lsn or len(response.page_crcs) != pages:
                raise RemoteProtocolError(
                    f"{len(response.page_crcs)} checksums from {format_lsn(response.begin_lsn)} on are not those of "
                    f"the {pages} pages from {format_lsn(begin_lsn)} on that were asked for"
                )
            campaign.our_page_crcs = response.page_crcs
            self._verify(now)

    def _verify(self, now: float) -> None:
        campaign = self._campaign
        if (
            campaign is None
            or campaign.plan is None
            or self.primary is None
            or campaign.our_page_crcs is None
            or campaign.their_page_crcs is None
        ):
            return
        begin_lsn = check_range_begin(campaign.plan.start_lsn, self.primary.segment_size)
        differs_lsn = first_difference(begin_lsn, campaign.our_page_crcs, campaign.their_page_crcs)
        if differs_lsn is not None:
            self._refuse_primary(_differs(differs_lsn, f"safekeeper {campaign.donor}'s"), now)
        else:
            self._lead(campaign, now)

    # ------------------------------------------------------------------ lead (steps 5 to 7)

    def _lead(self, campaign: Campaign, now: float, is_checked: bool = True) -> None:
        assert campaign.plan is not None and campaign.node_id is not None and self.primary is not None
        vote = campaign.votes[campaign.donor]
        history = extend_history(vote.history, campaign.plan, campaign.node_id)
        elected = Elected(
            campaign.node_id,
            campaign.cluster.id,
            self.primary.system_id,
            self.primary.segment_size,
            self.primary.server_version,
            campaign.membership,
            history,
            collect_tli_histories(history, self.primary, vote.tli_histories),
            vote.wal_begin_lsn if vote.history else campaign.plan.start_lsn,
            0,
            self.config.allow_data_loss,
        )
        # A fork may cut what every member had (S9).
        truncate_lsn = min(max(vote.truncate_lsn for vote in campaign.votes.values()), campaign.plan.start_lsn)
        self.standbys.cut(campaign.plan.start_lsn)
        leadership = Leadership(elected, campaign.donor, truncate_lsn, self.standbys, self.timing, now)
        leadership.received_lsn = self._received_lsn
        leadership.window_begin_lsn = self._window_begin_lsn
        leadership.streaming = self._copy_is_checked = is_checked and self._copying
        self._awaits_link = not is_checked
        self._failed_campaigns = 0
        self.leadership = leadership
        self._campaign = None
        self.phase = Phase.LEADING
        self._held_term, self._held_commit_lsn = campaign.node_id.term, campaign.plan.start_lsn
        for safekeeper_id, peer in self.peers.items():
            if peer.greeting is not None and not peer.refused:
                voter = campaign.membership.is_voter(safekeeper_id, peer.greeting.incarnation)
                self._out.extend(leadership.welcome(safekeeper_id, voter, now))

    def _follow_up(self, now: float) -> None:
        """See whether the leader's next step is due: the primary's check, the timeline's switch."""
        leadership = self.leadership
        if leadership is None:
            return
        self._held_commit_lsn = max(self._held_commit_lsn, leadership.commit_lsn)
        if self._ended_tli_at is not None and leadership.commit_lsn >= self._ended_tli_at:
            self._end_term(now, f"timeline {leadership.tli} has ended at {format_lsn(self._ended_tli_at)}")
            self._try_to_begin(now, due=True)
        elif self._probe_sequence is not None and leadership.confirmed_since(self._probe_sequence):
            self._probe_sequence = None
            self._resume_primary(leadership, now)
        else:
            self._check_start_is_there(now)

    def _resume_primary(self, leadership: Leadership, now: float) -> None:
        """The term stands: stream from where the primary left off, after a check of what it sent (S10)."""
        assert self.primary is not None  # a probe is dropped with its connection
        begin_lsn = leadership.received_lsn
        if begin_lsn > leadership.elected.history[0].start_lsn:
            if not self._own_page_crcs:
                self._end_term(now, "what was received is not known any more, the donor's bytes are compared instead")
                return
            begin_lsn = check_range_begin(leadership.received_lsn, self.primary.segment_size)
        check_tli = leadership.tli
        if leadership.received_lsn % self.primary.segment_size == 0:
            history = leadership.elected.history
            check_tli = next((e.tli for e in reversed(history) if e.start_lsn < leadership.received_lsn), check_tli)
        self._copying, self._copied_tli = True, leadership.tli
        action = StartReplication(begin_lsn, check_tli, leadership.received_lsn, leadership.tli, resumes=True)
        self._out.append(action)
        self._copy_is_checked = False
        if begin_lsn == leadership.received_lsn:
            self._primary_is_ours(leadership)

    def _primary_is_ours(self, leadership: Leadership) -> None:
        """The primary's bytes were found to be ours: it may be told what a quorum holds (S1, S10)."""
        self._copy_is_checked = True
        self._out.append(leadership.set_streaming(True))

    def _check_start_is_there(self, now: float) -> None:
        if self.leadership is not None and self.leadership.has_lost_its_start():
            self._end_term(now, "the donor is gone before a quorum had its WAL")

    def _end_term(self, now: float, reason: str) -> None:
        """Stop leading; what PostgreSQL is told goes back to 0 until the next term has reached its start (S1)."""
        assert self.leadership is not None  # by the callers
        self._note(Level.INFO, f"term {self.leadership.node_id.term} ends: {reason}")
        self._held_commit_lsn = max(self._held_commit_lsn, self.leadership.commit_lsn)
        self.leadership = None
        self._ended_tli_at = self._probe_sequence = None
        self._out.append(ReportStatus(0, 0, 0))
        self.phase = Phase.GATHERING
        self._next_attempt_at = now
        for safekeeper_id, peer in self.peers.items():
            if peer.connected:
                # Fresh greetings: positions and promises may have moved since the last ones.
                peer.greeting = None
                self._greet(safekeeper_id, now)

    # ------------------------------------------------------------------ refusals

    def _on_refusal(self, safekeeper_id: int, refusal: Refusal, now: float) -> None:
        code = refusal.code
        self._remember_promise(safekeeper_id, refusal.promised)
        if self.phase is Phase.VERIFYING and self._campaign is not None and safekeeper_id == self._campaign.donor:
            self._abandon_campaign(now, f"donor {safekeeper_id} refuses: {refusal.reason}")
        if code is RefusalCode.STALE_TERM:
            if self.leadership is not None and refusal.promised.term > self.leadership.node_id.term:
                self._end_term(now, f"safekeeper {safekeeper_id} has promised {refusal.promised}")
        elif code is RefusalCode.RANGE and self.leadership is not None:
            self.leadership.on_read_refused(safekeeper_id, now)
        elif code in (RefusalCode.POSITION, RefusalCode.NOT_ADOPTED, RefusalCode.GENERATION, RefusalCode.STORAGE_FULL):
            # The connection is closed from the other side too; it greets anew.
            self._note(Level.WARNING, f"safekeeper {safekeeper_id} refuses: {refusal.reason}")
            self._out.append(Disconnect(safekeeper_id, refusal.reason))
        elif code is RefusalCode.NOT_A_MEMBER and self._campaign is not None:
            self._campaign.refusals.add(safekeeper_id)
            self._judge_campaign_if_open(now)
        else:
            self._refuse_peer(safekeeper_id, code, refusal.reason)
            if self.phase is Phase.BOOTSTRAPPING:
                self._gather(now)
            elif self._campaign is not None:
                self._campaign.refusals.add(safekeeper_id)
                self._judge_campaign_if_open(now)
            elif self.primary is not None:
                self._refuse_foreigners(now)

    def _judge_campaign_if_open(self, now: float) -> None:
        if self.phase in (Phase.PRE_VOTING, Phase.VOTING):
            self._judge_campaign(now)

    def _refuse_peer(self, safekeeper_id: int, code: RefusalCode | None, reason: str) -> None:
        peer = self.peers[safekeeper_id]
        if peer.told != reason:
            peer.told = reason
            self._note(Level.ERROR, f"safekeeper {safekeeper_id} counts as missing: {reason}")
        peer.refused, peer.refused_code, peer.greeting = reason, code, None
        self._out.append(Disconnect(safekeeper_id, reason))

    def _refuse_primary(self, reason: str, now: float) -> None:
        """End this run, or go on without this primary: nothing of it has come beyond the check (S10)."""
        if not self.config.several_primaries:
            self._finish(PrimaryRefused(reason))
            return
        self._out.append(RefusePrimary(reason))
        self._part_from_primary()
        if self.leadership is None and self.phase is not Phase.GATHERING:
            # No other candidate is to blame: the next primary need not wait for long.
            self._gather(now)

    def _refusal_of_lineage(self, leadership: Leadership, primary: PrimaryIdentity) -> str:
        """Return why a primary on another timeline fits to no later log, so that it costs no term; empty if it may fit.

        Every later log has what is committed in this term. A line of descent that has parted from that, or ends
        before it, has parted from any log that goes on from there.
        """
        if not self.config.several_primaries or not leadership.commit_lsn:
            return ""
        try:
            plan_log(leadership.elected.history, leadership.commit_lsn, primary)
        except PrimaryRefused as refused:
            return str(refused)
        return ""

    def _abandon_campaign(self, now: float, reason: str) -> None:
        """Give up this attempt. A COPY that is still open from an earlier term is closed: nobody is led (step 8)."""
        if reason:
            self._note(Level.INFO, f"not elected: {reason}")
        if self._copying:
            self._copying = False
            self.primary = None
            self._out.append(StopReplication("no term is held"))
        if self.phase in (Phase.VOTING, Phase.VERIFYING):
            # Candidates that depose each other must get out of each other's way.
            self._failed_campaigns += 1
        self._gather(now)

    def _gather(self, now: float) -> None:
        self._campaign = None
        self._bootstrap = None
        self.phase = Phase.GATHERING
        wait_s = self.timing.retry_interval_s / 2
        if self._failed_campaigns:
            wait_s *= 2 ** min(self._failed_campaigns, BACKOFF_DOUBLINGS_MAX) * (0.5 + self._jitter)
        self._next_attempt_at = max(self._next_attempt_at, now + wait_s)

    def _finish(self, error: WalproxyError) -> None:
        self.phase = Phase.FINISHED
        self.refusal = str(error)
        self._campaign = None
        if self.leadership is not None:
            self.leadership = None
            self._out.append(ReportStatus(0, 0, 0))
        self._out.append(Finish(error))

    # ------------------------------------------------------------------ what a status page shows

    def state(self, now: float) -> str:
        """Return the public name of the state, one of those that docs/operations.md lists."""
        if self.phase is Phase.FINISHED:
            return "fenced"
        if self.primary is None:
            nobody = not self.term and all(peer.greeting is None for peer in self.peers.values())
            return "connecting" if nobody else "waiting_for_primary"
        if self.leadership is not None:
            if not self.leadership.answers(now):
                return "waiting_for_quorum"
            return "streaming" if self.leadership.commit_lsn else "recovering"
        if self.phase is not Phase.GATHERING or self.is_spare:
            return "electing"
        return "waiting_for_quorum" if find_cluster(self.peers) is None else "electing"

    def _note(self, level: Level, text: str) -> None:
        self._out.append(Note(level, text))

    def _take(self) -> list[Action]:
        out, self._out = self._out, []
        return out


def _differs(lsn: Lsn, whose: str) -> str:
    return (
        f"the primary's WAL differs from {whose} in the page at {format_lsn(lsn)}: it was restored from a backup, "
        "lost flushed WAL, or is another copy of this cluster"
    )
