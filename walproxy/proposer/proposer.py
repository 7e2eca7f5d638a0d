"""The proposer: win terms, and lead them.

Theory of operation. A proposer lives as long as one proxy process and has a random id. It waits for greetings and a
primary; then a `Campaign` requests pre-votes and votes, and verifies that the primary's WAL continues the donor's (S9,
S10). Only then is `Elected` sent to the members: everything before that changes nothing but promises. From then on a
`Leadership` sends WAL to the members. A term ends when a higher one is reported, when its start is lost, or when the
primary changes its timeline; the same proposer then tries to win a higher one. A primary that does not fit ends the
process, or, if there are several hosts, is treated as disconnected: a term that is led continues, an attempt to win one
is given up, and a primary that another attempt would refuse again is refused without one (refusals.py).

    GATHERING -> [BOOTSTRAPPING ->] PRE_VOTING -> VOTING -> VERIFYING -> LEADING -> GATHERING ...
                                                                              \\-> FINISHED

Every public method is an event: its arguments are the event and the time; it returns the actions to execute in order.
Pure: jitter is an argument of `tick`.
"""

from safekeeper.base.errors import ConfigurationError, InvariantViolation, PrimaryRefused, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.folder_state import FolderState, KnownFolders
from safekeeper.consensus.membership import Member, QuorumSizes
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AcceptorMessage,
    AppendResponse,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    ChangeMembers,
    Elected,
    FolderIsOlder,
    FolderStates,
    MembersAnswer,
    PullEnded,
    ReadResponse,
    Reconfigured,
    Refusal,
    RefusalCode,
    StandbyFeedback,
    VoteResponse,
)
from walproxy.proposer.actions import (
    Action,
    Disconnect,
    EmptyWindow,
    Finish,
    Level,
    Note,
    RefusePrimary,
    ReportStatus,
    SendMessage,
    StopReplication,
)
from walproxy.proposer.apply_rule import ApplyRule
from walproxy.proposer.campaign import Campaign, Outcome
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.member_change import Target, halves_of, target_of
from walproxy.proposer.phase import Candidacy, Phase, ProposerConfig, Stage
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.primary_stream import PrimaryStream
from walproxy.proposer.progress import Progress, State
from walproxy.proposer.refusals import Refusals
from walproxy.proposer.roster import (
    Cluster,
    Roster,
    clusters_of,
    find_cluster,
    has_unknown_tail,
    later_cluster_reason,
    majority_against,
    misfit_reason,
    newest_cluster,
    older_copy_reason,
    other_cluster_reason,
    plan_bootstrap,
    repeated_bootstrap_reason,
    stuck_reason,
)
from walproxy.proposer.standbys import Standbys
from walproxy.proposer.verification import difference, recycled, refusal_in_term

BACKOFF_DOUBLINGS_MAX = 5
# A proxy whose primary is awaited for longer greets the safekeepers again before its first election.
GREETING_FRESH_S = 1.0
# The members are told what is known of each other's data folders this often, if it is news.
FOLDERS_INTERVAL_S = 1.0


class Proposer:
    """The proposer of one proxy process.

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
        self._greeted_for_refusal_at: float | None = None
        self._bootstrap: Bootstrap | None = None
        self._bootstrapped: set[int] = set()
        self._stream = PrimaryStream()
        self._probe_sequence: int | None = None
        self._next_attempt_at = 0.0
        self._without_primary_since: float | None = None
        self._tell_folders_at = 0.0
        self._jitter = 0.5
        self._steady: dict[int, Progress] = {}

    def connected(self, safekeeper_id: int, now: float) -> list[Action]:
        """Handle a connection to a safekeeper that is open now."""
        self.roster.connect(safekeeper_id)
        self._learn_of_term()
        self._out.append(self.roster.greet(safekeeper_id, self.primary, now))
        return self._take()

    def disconnected(self, safekeeper_id: int, now: float) -> list[Action]:
        """Handle the end of a connection to a safekeeper; keep the reason of a refusal until it greets again."""
        self.roster.disconnect(safekeeper_id)
        self.standbys.disconnected(safekeeper_id)
        if self._bootstrap is not None:
            self._gather(now)
        elif self.campaign is not None:
            self.campaign.disconnected(safekeeper_id, now)
            self._follow_campaign(self.campaign, now)
        elif self.leadership is not None:
            self.leadership.disconnected(safekeeper_id, now)
            self._check_start_is_there(now)
        return self._take()

    def message(self, safekeeper_id: int, message: AcceptorMessage, now: float) -> list[Action]:
        """Handle a message from a safekeeper.

        Raises:
            RemoteProtocolError: the message is invalid; close that connection.
        """
        progress = self._steady.get(safekeeper_id)
        if progress is not None:
            leadership = self.leadership
            assert leadership is not None  # by `_find_steady`
            if type(message) is AppendResponse:
                is_handled = leadership.on_steady_answer(safekeeper_id, progress, message, now)
            elif is_handled := type(message) is StandbyFeedback:
                leadership.on_standby_feedback(safekeeper_id, message.standbys)
            if is_handled:
                return self._taken()
        peer = self.peers[safekeeper_id]
        if not peer.connected or self.refusal is not None:
            return []
        # A message that was sent before the greeting does not answer it.
        if not isinstance(message, FolderStates):  # The answer itself follows.
            peer.waiting_since = now if peer.greeting is None else None
        leadership = self.leadership
        if isinstance(message, AppendResponse):
            peer.log.reset()  # An accepted append: the same reason is logged again if it returns.
            if leadership is not None:
                leadership.on_append_response(safekeeper_id, message, now)
                self._follow_leadership(now)
        elif isinstance(message, StandbyFeedback):
            # Without a leadership it is ignored: the next adoption requests it again.
            if leadership is not None:
                leadership.on_standby_feedback(safekeeper_id, message.standbys)
        elif isinstance(message, ArchiveReport):
            if leadership is not None:
                leadership.on_archive_report(safekeeper_id, message, now)
        elif isinstance(message, ReadResponse):
            if leadership is not None:
                leadership.on_read_response(safekeeper_id, message, now)
        elif isinstance(message, PullEnded):
            if leadership is not None:
                leadership.on_pull_ended(safekeeper_id, message, now)
        elif isinstance(message, Reconfigured):
            if leadership is not None:
                leadership.on_reconfigured(safekeeper_id, message, now)
                self._follow_leadership(now)
        elif isinstance(message, ChangeMembers):
            self._on_change_members(safekeeper_id, message, now)
        elif isinstance(message, FolderStates):
            self.roster.on_folder_states(safekeeper_id, message)
        elif isinstance(message, AcceptorGreeting):
            self._on_greeting(safekeeper_id, message, now)
        elif isinstance(message, Refusal):
            self._on_refusal(safekeeper_id, message, now)
        elif isinstance(message, Bootstrapped):
            self._on_bootstrapped(safekeeper_id, message, now)
        else:
            greeting = peer.greeting
            if isinstance(message, VoteResponse) and greeting and message.promised.term > greeting.promised.term:
                self.roster.remember_promise(safekeeper_id, message.promised)
            if self.campaign is not None:
                self.campaign.message(safekeeper_id, message, now)
                self._follow_campaign(self.campaign, now)
        return self._take()

    def primary_identified(
        self,
        primary: PrimaryIdentity,
        now: float,
        own_page_crcs: tuple[int, ...] = (),
        own_begin_lsn: Lsn = 0,
    ) -> list[Action]:
        """Handle the identity of a primary on an open connection.

        Args:
            own_page_crcs, own_begin_lsn: checksums of the pages of the received WAL, from `own_begin_lsn` up to
                `received_lsn`; own_begin_lsn is the start of the last segment in which a timed record is known to
                begin, or of the log. Empty if that is unknown.
        """
        if self._stream.identities_due > 1:
            # An answer for an election that was given up; the primary did not reply then. The next one is for the last.
            self._stream.identities_due -= 1
            return self._take()
        self._stream.identities_due = 0
        first = self.primary is None and not self.candidacy.held_term
        self.primary = primary
        self._greeted_for_refusal_at = None
        self._stream.own_page_crcs, self._stream.own_begin_lsn = own_page_crcs, own_begin_lsn
        self._stream.is_open = False
        if first:
            # Safekeepers that were greeted without an identity are greeted again with one, so that both sides check it.
            if not self.candidacy.term:
                # An election by greetings from before a failover is refused: the sealing term is in each membership.
                self.roster.forget_greetings(before=now - GREETING_FRESH_S)
            self.roster.greet_all(primary, now)
        campaign = self.campaign
        if self.leadership is not None:
            # A tail term ends at the next tick: then this primary is compared.
            if not self.leadership.is_tail:
                self._on_primary_in_term(self.leadership, primary, now)
        elif campaign is not None and not campaign.is_tail:
            campaign.primary = primary
            if campaign.awaits_primary and not self._refuse_foreigners(primary, now):
                campaign.primary_identified()
                self._follow_campaign(campaign, now)
        self._try_to_begin(now)
        return self._take()

    def primary_segment_removed(self, now: float) -> list[Action]:
        """Handle a primary that has recycled the segment to compare, or the one with which it was to continue."""
        # That COPY has ended; none of it was checked.
        self._stream.is_open = self._stream.is_checked = False
        if self.leadership is not None and not self._stream.compares:
            # Another term would have the same result.
            self._refuse_primary(recycled(self._stream.received_lsn), now)
        elif self.leadership is not None:
            self._end_term(now, "the primary has recycled the segment to compare")
            self._try_to_begin(now, due=True)
        elif self.campaign is not None:
            self.campaign.segment_removed()
            self._follow_campaign(self.campaign, now)
        return self._take()

    def primary_slot_in_use(self, now: float) -> list[Action]:
        """Handle a primary that replies, and cannot stream only because another walsender holds the slot (4.8)."""
        if self.campaign is not None:
            self.campaign.slot_in_use(now)
        return self._take()

    def primary_lost(self, now: float) -> list[Action]:
        """Handle the end of the connection to the primary."""
        self._part_from_primary()
        if self.campaign is not None:
            self._abandon_campaign(self.campaign, now, "the primary is disconnected")
        return self._take()

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, page_crcs: tuple[int, ...], now: float) -> list[Action]:
        """Handle the page checksums of the primary's bytes [begin_lsn, end_lsn) (S10)."""
        self._stream.require_open()
        if self.leadership is not None:
            reason = difference(begin_lsn, self._stream.own_page_crcs, page_crcs, "the WAL that it sent before")
            if reason:
                self._refuse_primary(reason, now)
            else:
                self._on_primary_verified(self.leadership)
        elif self.campaign is not None:
            self.campaign.primary_checked(page_crcs)
            self._follow_campaign(self.campaign, now)
        return self._take()

    def primary_refused(self, reason: str, now: float) -> list[Action]:
        """Refuse this primary for a reason of the shell, e.g. a record that does not link to the log (S10)."""
        self._refuse_primary(reason, now)
        return self._take()

    def timeline_ended(self, next_tli: int, end_lsn: Lsn, now: float) -> list[Action]:
        """Handle the end of the term's timeline: the next timeline needs another term (S9)."""
        stream = self._stream
        if end_lsn != stream.received_lsn:
            reason = f"timeline ended at {format_lsn(end_lsn)}, but its WAL did not"
            if self.campaign is not None:
                self._abandon_campaign(self.campaign, now, reason)
            else:
                self.primary = None
                self._out.append(StopReplication(reason))
        else:
            # It may end before the donor's checksums are received, and so before the term is led.
            stream.ended_lsn = end_lsn
        stream.is_open = False
        if self.leadership is not None:
            self.leadership.set_streaming(False)
            self._follow_leadership(now)
        return self._take()

    def wal_received(self, end_lsn: Lsn, now: float) -> list[Action]:
        """Handle WAL that was appended to the window, up to `end_lsn`."""
        stream = self._stream
        if not stream.is_open:
            stream.require_open()
        stream.received_lsn = end_lsn
        if self._steady:
            assert self.leadership is not None  # by `_find_steady`
            self.leadership.on_wal_received(end_lsn, now)
            if end_lsn < self.leadership.write_lsn:
                self.check()  # Nothing else that is checked can have changed.
            return self._taken()
        if self.leadership is not None:
            if stream.awaits_link:
                stream.awaits_link = False
                # The first record links to the log, otherwise the shell would not have passed it on.
                self._on_primary_verified(self.leadership)
            self.leadership.on_wal_received(end_lsn, now)
        return self._take()

    def wal_evicted(self, begin_lsn: Lsn) -> None:
        """Record that the window begins at `begin_lsn` now."""
        self._stream.window_begin_lsn = begin_lsn
        if self.leadership is not None:
            self.leadership.window_begin_lsn = begin_lsn

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
            if self.sealed is not None:
                self.candidacy.was_elected = True  # The seal holds: this run never takes over again.
            self.leadership.tick(now)
            self._hang_up_removed(self.leadership, now)
            if now >= self._tell_folders_at:
                self._tell_folders_at = now + FOLDERS_INTERVAL_S
                known = self._learn_of_term()
                self.leadership.tell_folders(known)
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

    def _try_tail_term(self, now: float, is_due: bool) -> None:
        """Campaign for a tail term if there has been no primary for long enough, and one is wanted and of use.

        Args:
            is_due: the time of the next attempt has come.
        """
        if self.primary is not None:
            self._without_primary_since = None
            return
        if self._without_primary_since is None:
            self._without_primary_since = now
        tail_after_s, seal = self.config.tail_after_s, self.config.seal
        if seal is None and (tail_after_s is None or now - self._without_primary_since < tail_after_s):
            return
        if self.candidacy.log_tli:
            return  # There is nothing to seal.
        if self.phase is not Phase.GATHERING or not is_due:
            return
        cluster = find_cluster(self.peers)
        if cluster is None or not (seal is not None or has_unknown_tail(self.peers, cluster)):
            return
        self._stage.enter(Phase.PRE_VOTING)
        self.campaign = Campaign(
            self.config, self._stage, self.roster, self._stream, self.candidacy, cluster, None, now, self._out
        )
        self.campaign.begin(now)

    def set_apply_rule(self, rule: ApplyRule) -> list[Action]:
        """Designate other standbys: compute the apply position for them at once."""
        leadership = self.leadership
        before_lsn = self.standbys.apply_lsn(leadership.commit_lsn) if leadership is not None else 0
        self.standbys.set_rule(rule)
        if leadership is not None:
            leadership.report_apply(before_lsn)
        return self._take()

    def change_members(
        self, wanted: tuple[Member, ...], now: float, sizes: QuorumSizes | None = None, force: bool = False
    ) -> list[Action]:
        """Change the members to `wanted`, in order of their ids, as soon as that is safe; or cancel such a change.

        Args:
            sizes: of their quorums; the present ones if None.
            force: even if too few of the new members follow, so that commits wait until more do.

        Raises:
            ConfigurationError: the change is refused; it says why.
        """
        leadership = self.leadership
        if leadership is None:
            raise ConfigurationError("this proxy leads no term: only the leader changes the members")
        refusal = self._begin_change(leadership, target_of(leadership.membership, wanted, sizes), force, now)
        if refusal:
            raise ConfigurationError(refusal)
        return self._take()

    def _begin_change(self, leadership: Leadership, wanted: Target, force: bool, now: float) -> str:
        """Begin a change of the members; return why it is refused, empty if it is not."""
        refusal = leadership.refusal_of_change(wanted, force)
        if not refusal:
            leadership.begin_change(wanted, force, now)
            self._dial_members(now)
        return refusal

    def _on_change_members(self, safekeeper_id: int, message: ChangeMembers, now: float) -> None:
        """Handle the change that an operator wants, relayed by a safekeeper, which relays the answer back."""
        leadership = self.leadership
        if leadership is None:
            refusal = "this proxy leads no term, and only the leader changes the members: repeat the command"
        else:
            refusal = self._refusal_or_begin(leadership, message, now)
        if refusal:
            self._note(Level.WARNING, f"a change of the members is refused: {refusal}")
        self._out.append(SendMessage(safekeeper_id, MembersAnswer(message.request_id, refusal)))
        self._follow_leadership(now)

    def _refusal_or_begin(self, leadership: Leadership, message: ChangeMembers, now: float) -> str:
        cluster_id, generation = leadership.elected.cluster_id, leadership.membership.generation
        wanted = target_of(leadership.membership, message.wanted, message.quorum_sizes)
        if message.cluster_id != cluster_id:
            return f"this proxy leads cluster {cluster_id[:8]}, not {message.cluster_id[:8]}"
        if message.is_repeated and wanted == leadership.cancelled:
            return "the change was cancelled"
        if not 0 <= generation - message.generation <= 1:
            # The joint membership of this change is one above; the next one ends it.
            return (
                f"the membership has changed meanwhile, from generation {message.generation} to {generation}: repeat "
                "the command"
            )
        return self._begin_change(leadership, wanted, message.force, now)

    def _dial_members(self, now: float) -> None:
        """Dial the members that are known, each at the address of the data folder that is to be one."""
        leadership = self.leadership
        cluster = _cluster_of(leadership) if leadership is not None else newest_cluster(self.peers)
        if cluster is None:
            return
        membership = cluster.membership
        wanted = leadership.wanted if leadership is not None else halves_of(membership)[-1]
        others = {member.id: member for half in membership.halves() for member in half}
        members = list({**others, **{member.id: member for member in wanted.members}}.values())
        self.roster.dial(members)
        self.roster.redirect(members, cluster.id, now)

    def _hang_up_removed(self, leadership: Leadership, now: float) -> None:
        """Close the connections to safekeepers that were removed, once they know it, and are not configured."""
        membership = leadership.membership
        if membership.new_members:
            return
        needed = membership.ids() | {member.id for member in leadership.wanted.members}
        for safekeeper_id in self.roster.removed(needed):
            progress = leadership.members.get(safekeeper_id)
            if progress is None or not progress.is_connected or progress.generation == membership.generation:
                leadership.forget(safekeeper_id, now)
                self.standbys.disconnected(safekeeper_id)
                self.roster.hang_up(safekeeper_id)

    def forget_refusals(self) -> None:
        """Forget refusals, since an operator may have repaired a host: elections decide about all of them again."""
        self.refusals.forget()

    def _learn_of_term(self) -> KnownFolders:
        """Learn what the members have on disk in the term that is led; return what is known of its cluster."""
        leadership = self.leadership
        if leadership is None:
            return {}
        cluster_id = leadership.elected.cluster_id
        self.roster.learn(cluster_id, leadership.folder_states())
        return self.roster.known[cluster_id]

    def _on_older_copy(self, safekeeper_id: int, greeting: AcceptorGreeting, known: FolderState, now: float) -> None:
        """Count a data folder no more that was replaced by an older copy of itself; as a leader, tell it so (S8e)."""
        leadership, folder = self.leadership, self.peers[safekeeper_id].folder
        is_told = leadership is not None and leadership.elected.cluster_id == greeting.cluster_id
        reason = older_copy_reason(safekeeper_id, folder, known)
        self.roster.refuse(safekeeper_id, None, reason, disconnects=not is_told)
        if leadership is not None and is_told:
            # It returns with another incarnation, as a folder that was lost does.
            self._out.append(self.roster.ask(safekeeper_id, FolderIsOlder(leadership.leader_id, known), now))
        elif self.campaign is not None:
            self.campaign.refused(safekeeper_id, now)
            self._follow_campaign(self.campaign, now)

    def _on_greeting(self, safekeeper_id: int, greeting: AcceptorGreeting, now: float) -> None:
        self.roster.on_greeting(safekeeper_id, greeting, now)
        known = self.peers[safekeeper_id].older_than
        membership = self.leadership.membership if self.leadership is not None else greeting.membership
        is_member = membership is not None and membership.is_voter(safekeeper_id, greeting.incarnation)
        if known is not None and is_member and not self.peers[safekeeper_id].refused:
            self._on_older_copy(safekeeper_id, greeting, known, now)
            return
        if not self.peers[safekeeper_id].refused:
            self._dial_members(now)
            if self.peers[safekeeper_id].greeting is None:
                return  # It is disconnected, to be dialled at another address.
        if self._bootstrap is not None and safekeeper_id not in self._bootstrapped:
            # A second greeting that was sent before is not an answer to the bootstrap.
            self.peers[safekeeper_id].waiting_since = now
        if self.peers[safekeeper_id].refused:
            return
        leadership = self.leadership
        if leadership is not None:
            later = find_cluster(self.peers)
            if later is not None and later.is_later_than(_cluster_of(leadership)):
                self._end_term(now, "a quorum of members has a newer membership")
            else:
                self._welcome(leadership, safekeeper_id, greeting, now)
        elif self.campaign is not None:
            self.campaign.greeted(safekeeper_id, now)
        else:
            self._try_to_begin(now)

    def _welcome(self, leadership: Leadership, safekeeper_id: int, greeting: AcceptorGreeting, now: float) -> None:
        """Send `Elected` to a safekeeper, unless it belongs to another cluster."""
        ours = _cluster_of(leadership)
        is_member = ours.membership.is_voter(safekeeper_id, greeting.incarnation)
        if is_member and self.roster.is_doubted(safekeeper_id, ours.id):
            # Others have reported more of its data folder since it has greeted.
            self.peers[safekeeper_id].greeting = None
            self._out.append(self.roster.greet(safekeeper_id, self.primary, now))
            return
        later_reason = later_cluster_reason(greeting, ours)
        if later_reason:
            # Its greeting is kept: a quorum of that cluster ends the term.
            self.roster.leave_out(safekeeper_id, later_reason)
        elif greeting.cluster_id not in ("", ours.id) and not greeting.is_empty:
            reason = other_cluster_reason(greeting)
            self.roster.refuse(safekeeper_id, RefusalCode.OTHER_CLUSTER, reason)
        elif greeting.membership and Cluster(greeting.cluster_id, greeting.membership).is_later_than(ours):
            self._end_term(now, "a member has a newer membership")
        elif not leadership.is_told((safekeeper_id, greeting.incarnation)):
            # On this connection it may have acknowledged WAL with another data folder, which may return (S8e).
            self._learn_of_term()
            leadership.on_greeting((safekeeper_id, greeting.incarnation), now)

    def _try_to_begin(self, now: float, due: bool = False) -> None:
        """Start the bootstrap or an election, if that is possible."""
        primary = self.primary
        if self.phase is not Phase.GATHERING or primary is None or not (due or now >= self._next_attempt_at):
            return
        if self._refuse_foreigners(primary, now):
            return
        misfit = misfit_reason(self.peers)
        if misfit:
            self._finish(ConfigurationError(misfit))
            return
        cluster = find_cluster(self.peers)
        if cluster is not None:
            self.stuck = ""
            if self._is_refused_again(primary, now):
                return
            self._stage.enter(Phase.PRE_VOTING)
            self.campaign = Campaign(
                self.config, self._stage, self.roster, self._stream, self.candidacy, cluster, primary, now, self._out
            )
            self.campaign.begin(now)
            return
        bootstrap = plan_bootstrap(self.peers, primary, self.config.addresses)
        stuck = stuck_reason(self.peers)
        if bootstrap is not None:
            stuck = "" if self.config.bootstrap else repeated_bootstrap_reason(primary)
            if not stuck and self.roster.are_greeted_together():
                self._begin_bootstrap(bootstrap, now)
                return
            if not stuck:
                # Greetings of different times must not be combined: a member that is empty now because its disk was
                # lost, and one that was empty before, may have acknowledged WAL together in between.
                if not self.roster.awaits_greetings():
                    self.roster.forget_greetings()
                    self.roster.greet_all(primary, now)
                return
            if not self._greeted_since_slot:
                # Another proxy may have finished its bootstrap, and created the slot, since these greetings.
                self._greeted_since_slot = True
                self.roster.forget_greetings()
                self.roster.greet_all(primary, now)
                return
        if stuck and stuck != self.stuck:
            self.stuck = stuck
            self._note(Level.ERROR, stuck)

    def _is_refused_again(self, primary: PrimaryIdentity, now: float) -> bool:
        """Refuse a primary without an election if it would be refused again (4.10). True if none is to begin now."""
        if not self.refusals.may_be_repeated(primary, now):
            return False
        if self._greeted_for_refusal_at is None:
            # Logs may have changed since these greetings.
            self._greeted_for_refusal_at = self._next_attempt_at = now
            self.roster.forget_greetings()
            self.roster.greet_all(primary, now)
            return True
        is_awaited = any(peer.connected and peer.greeting is None and not peer.refused for peer in self.peers.values())
        if is_awaited and now - self._greeted_for_refusal_at < self.timing.vote_timeout_s:
            return True
        reason = self.refusals.reason(primary, self.peers, now)
        if reason:
            self._refuse_primary(reason, now)
        return bool(reason)

    def _refuse_foreigners(self, primary: PrimaryIdentity, now: float) -> bool:
        """Check S10's identity part before votes are requested. True if the primary is refused."""
        self.roster.refuse_foreigners(primary)
        reason = majority_against(self.peers)
        if reason:
            self._refuse_primary(reason, now)
            self.roster.forgive_foreigners()
        return bool(reason)

    def _begin_bootstrap(self, bootstrap: Bootstrap, now: float) -> None:
        """Have the first membership written; repeat one that was interrupted."""
        self._stage.enter(Phase.BOOTSTRAPPING)
        self._bootstrap = bootstrap
        self._bootstrapped = set()
        count = len(self.peers)
        self._note(Level.INFO, f"bootstrapping cluster {bootstrap.cluster_id[:8]} with {count} empty safekeepers")
        self._out.extend(self.roster.ask(safekeeper_id, bootstrap, now) for safekeeper_id in self.peers)

    def _on_bootstrapped(self, safekeeper_id: int, message: Bootstrapped, now: float) -> None:
        bootstrap = self._bootstrap
        if bootstrap is None or message.cluster_id != bootstrap.cluster_id:
            return
        self._bootstrapped.add(safekeeper_id)
        if self._bootstrapped == self.peers.keys():
            # Only when all have confirmed: with a quorum, a member that was wiped meanwhile would be accepted.
            self._stage.enter(Phase.GATHERING)
            self._bootstrap = None
            self.roster.greet_all(self.primary, now)

    def _follow_campaign(self, campaign: Campaign, now: float) -> None:
        """Act on the outcome of the campaign."""
        if campaign.outcome is Outcome.WON:
            self._lead(campaign, now)
        elif isinstance(campaign.error, PrimaryRefused):
            self._refuse_primary(str(campaign.error), now)
        elif campaign.error is not None:
            self._finish(campaign.error)
        elif campaign.outcome is Outcome.LOST:
            self._abandon_campaign(campaign, now, campaign.reason)

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

    def _lead(self, campaign: Campaign, now: float) -> None:
        elected, stream = campaign.elected(), self._stream
        ours = Cluster(elected.cluster_id, elected.membership)
        if any(cluster.id == ours.id and cluster.is_later_than(ours) for cluster in clusters_of(self.peers)):
            # The term would end with the first member that is told of it.
            self._abandon_campaign(campaign, now, "a member has a newer membership")
            return
        term_start_lsn = elected.history[-1].start_lsn
        self.standbys.cut(term_start_lsn)
        self._stage.enter(Phase.LEADING)
        leadership = Leadership(
            elected,
            campaign.donor,
            self.standbys,
            self.timing,
            now,
            self._out,
            self.config.addresses,
            is_tail=campaign.is_tail,
        )
        candidacy = self.candidacy
        if campaign.is_tail:
            self._out.append(EmptyWindow(term_start_lsn))
            self._note(
                Level.INFO,
                f"tail term {leadership.leader_id.term}: elected by {len(campaign.votes)} of "
                f"{len(campaign.membership.members)}, donor {campaign.donor}: the log ends at "
                f"{format_lsn(term_start_lsn)} on timeline {leadership.tli}",
                "term-won",
                leadership.leader_id.term,
            )
        else:
            leadership.received_lsn = stream.received_lsn
            leadership.window_begin_lsn = stream.window_begin_lsn
            stream.awaits_link = campaign.awaits_link
            leadership.streaming = stream.is_checked = stream.is_open and not stream.awaits_link
            candidacy.has_led = True
        if self.config.seal is not None:
            term, floor = leadership.leader_id.term, elected.history[-1].floor
            if self.config.seal.cancels:
                self._note(Level.INFO, f"term {term} cancels the seal of timeline {self.config.seal.tli}")
            elif self.config.seal.readmits:
                self._note(
                    Level.INFO,
                    f"term {term} lets timeline {self.config.seal.readmits} in: the timelines up to {floor} are sealed",
                )
            else:
                self._note(Level.INFO, f"term {term} seals the timelines up to {floor}")
        candidacy.held_term, candidacy.held_commit_lsn = elected.leader_id.term, term_start_lsn
        self.leadership, self.campaign = leadership, None
        for safekeeper_id, peer in self.peers.items():
            if peer.greeting is not None and not peer.refused and self.leadership is leadership:
                self._welcome(leadership, safekeeper_id, peer.greeting, now)

    def _on_primary_in_term(self, leadership: Leadership, primary: PrimaryIdentity, now: float) -> None:
        """Handle a primary that is identified in a term that is led."""
        refusal = refusal_in_term(leadership, primary, self.config.several_primaries)
        if refusal:
            self._refuse_primary(refusal, now)
        elif primary.tli != leadership.tli:
            self._end_term(now, f"the primary is on timeline {primary.tli}, the term on {leadership.tli}")
        else:
            # S10: a primary is streamed only in a term that a quorum still confirms.
            leadership.probe(now)
            self._probe_sequence = leadership.sequence
            self._follow_leadership(now)

    def _follow_leadership(self, now: float) -> None:
        """Take the next step of the leader if it is due: the check of the primary, or the switch of the timeline."""
        leadership = self.leadership
        if leadership is None:
            return
        ended_lsn = self._stream.ended_lsn
        if ended_lsn is not None and leadership.commit_lsn >= ended_lsn:
            self._end_term(now, f"timeline {leadership.tli} has ended at {format_lsn(ended_lsn)}")
            self._try_to_begin(now, due=True)
        elif self._probe_sequence is not None and leadership.confirmed_since(self._probe_sequence):
            self._probe_sequence = None
            self._resume_primary(leadership, now)
        else:
            self._check_start_is_there(now)

    def _resume_primary(self, leadership: Leadership, now: float) -> None:
        """Stream from where the primary was disconnected, after a check of the WAL that it had sent (S10)."""
        assert self.primary is not None  # a probe ends with its connection
        action = self._stream.resume(leadership, self.primary)
        if action is None:
            self._end_term(now, "no checksums of the received WAL are kept: comparing with the donor instead")
            return
        self._out.append(action)
        if self._stream.is_checked:
            self._on_primary_verified(leadership)

    def _on_primary_verified(self, leadership: Leadership) -> None:
        """Handle a primary that was verified: the quorum's positions may be reported to it (S1, S10)."""
        self._stream.is_checked = True
        leadership.set_streaming(True)

    def _check_start_is_there(self, now: float) -> None:
        if self.leadership is not None and self.leadership.has_lost_its_start():
            self._end_term(now, "the donor was disconnected before a quorum had its WAL")

    def _end_term(self, now: float, reason: str, *, is_deposed: bool = False) -> None:
        """Stop leading; report positions of 0 to PostgreSQL until the next term has reached its start (S1)."""
        leadership, candidacy = self.leadership, self.candidacy
        assert leadership is not None  # by the callers
        term = leadership.leader_id.term
        self._note(Level.INFO, f"term {term} ends: {reason}", "term-lost", term)
        self._learn_of_term()  # Its members may return as older copies (S8e).
        candidacy.held_commit_lsn = max(candidacy.held_commit_lsn, leadership.commit_lsn)
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

    def _on_refusal(self, safekeeper_id: int, refusal: Refusal, now: float) -> None:
        """Handle a refusal of a safekeeper, according to its code."""
        code, leadership = refusal.code, self.leadership
        self.roster.remember_promise(safekeeper_id, refusal.promised)
        if self.campaign is not None:
            self.campaign.donor_refused(safekeeper_id, refusal.reason)
            self._follow_campaign(self.campaign, now)
        if code is RefusalCode.STALE_TERM:
            if leadership is not None and refusal.promised.term > leadership.leader_id.term:
                reason = f"safekeeper {safekeeper_id} has promised {refusal.promised}"
                self._end_term(now, reason, is_deposed=True)
        elif code is RefusalCode.RANGE and leadership is not None:
            leadership.on_range_refused(safekeeper_id, refusal.reason, now)
        elif code is RefusalCode.STORAGE_FULL and leadership is not None:
            leadership.on_storage_full(safekeeper_id, refusal.reason)
            self._out.append(Disconnect(safekeeper_id, refusal.reason))
        elif code in (RefusalCode.POSITION, RefusalCode.NOT_ADOPTED, RefusalCode.GENERATION, RefusalCode.STORAGE_FULL):
            # The safekeeper closes the connection, too, and greets on the next one.
            self._note(Level.WARNING, f"safekeeper {safekeeper_id} refuses: {refusal.reason}")
            self._out.append(Disconnect(safekeeper_id, refusal.reason))
        else:
            if code is not RefusalCode.NOT_A_MEMBER or self.campaign is None:
                self.roster.refuse(safekeeper_id, code, refusal.reason)
            if self._bootstrap is not None:
                self._gather(now)
            elif self.campaign is not None:
                self.campaign.refused(safekeeper_id, now)
                self._follow_campaign(self.campaign, now)
            elif self.primary is not None:
                self._refuse_foreigners(self.primary, now)

    def _refuse_primary(self, reason: str, now: float) -> None:
        """End the process, or continue without this primary: none of its WAL has passed the check (S10)."""
        if not self.config.several_primaries:
            self._finish(PrimaryRefused(reason))
            return
        campaign = self.campaign
        if campaign is not None and campaign.leader_id is not None:
            self._note(Level.INFO, f"term {campaign.leader_id.term} is not led, the primary is refused: {reason}")
        if campaign is not None and campaign.phase is Phase.VERIFYING and campaign.primary is not None:
            by_bytes = campaign.plan is not None
            self.refusals.remember(
                campaign.primary, reason, campaign.cluster, campaign.votes, by_bytes=by_bytes, now=now
            )
        self._out.append(RefusePrimary(reason))
        self._part_from_primary()
        if self.campaign is not None or self._bootstrap is not None:
            # No other candidate is the cause: the next primary need not wait for long.
            self._gather(now)

    def _part_from_primary(self) -> None:
        self.primary = None
        self._probe_sequence = None
        self._stream.disconnected()
        if self.leadership is not None:
            # The next connection may be to another server: no positions are reported to it before it was checked (S10).
            self.leadership.set_streaming(False)

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
    def sealed(self) -> Elected | None:
        """What has begun the term that is led, if that seals a timeline and a quorum has adopted it (step 13).

        From then on the seal holds, whatever becomes of this run.
        """
        leadership = self.leadership
        if self.config.seal is None or leadership is None or not leadership.commit_lsn:
            return None
        return leadership.elected

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
    def phase(self) -> Phase:
        """The present phase."""
        return self._stage.phase

    @property
    def term(self) -> int:
        """The last term that this proposer requested or holds."""
        return self.candidacy.term

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
        """Return the members whose everyday answers need nothing but `Leadership.on_steady_answer`.

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


def _cluster_of(leadership: Leadership) -> Cluster:
    return Cluster(leadership.elected.cluster_id, leadership.membership)
