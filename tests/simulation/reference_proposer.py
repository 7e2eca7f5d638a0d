"""A reference of the proposer, written from docs/design/protocol.md, that looks on at the real one in the simulator.

Theory of operation. The other checkers detect what is wrong at the end of a chain of events. This reference states what
a proposer has to do with each event, so a wrong decision is found when it is made (proposer_checker.py passes the
events on). It is the protocol's text in the plainest form: formulas of the whole state, and it shares only types with
walproxy/proposer. The numbers in the docstrings are those of the protocol. What it does not model is `NOT_MODELLED`.

Each event of `Proposer` is a method with the same arguments. It changes the state, and collects in `_expected` the
actions that the protocol fixes; the actual ones must be these, in any order. Where the protocol leaves a choice, the
actual action decides: when an attempt begins, an append, a read, a pull, the archiver. Such an action is checked
against what is permitted, and what must not be left out is checked at the end of the event (reference_term.py).

    reference_roster.py     what greetings say, and what a run keeps (steps 0, 1, 11)
    reference_ballots.py    formulas: quorums, the donor, M, the history, where a term begins (steps 4 and 5)
    reference_campaign.py   an attempt to win a term (steps 2 to 4, 12, 13)
    reference_refusals.py   hosts that elections have refused (4.10)
    reference_term.py       a term that is led (steps 5 to 7, 9); reference_members.py, reference_standbys.py (10, 7.14)
"""

from typing import Any

import msgspec

from safekeeper.base.errors import ConfigurationError, Fenced, PrimaryRefused, WalproxyError
from safekeeper.consensus.membership import Identity, Member, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AppendRequest,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    ChangeMembers,
    Elected,
    FolderIsOlder,
    FolderStates,
    MembersAnswer,
    PreVoteRequest,
    ProposerGreeting,
    PullEnded,
    PullWal,
    ReadRequest,
    ReadResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    StandbyFeedback,
    TailPreVoteRequest,
    VoteResponse,
)
from tests.simulation.reference_ballots import fits_log, segment_before, tli_of_comparison
from tests.simulation.reference_campaign import Outcome, ReferenceCampaign
from tests.simulation.reference_histories import folders_of, key
from tests.simulation.reference_members import ReferenceMembers
from tests.simulation.reference_refusals import ReferenceRefusals
from tests.simulation.reference_roster import Cluster, Known, Peer, ReferenceRoster, Stream, is_older
from tests.simulation.reference_standbys import ReferenceStandbys
from tests.simulation.reference_term import Differs, ReferenceTerm, expect
from walproxy.proposer.actions import (
    Action,
    Dial,
    Disconnect,
    EmptyWindow,
    Finish,
    HangUp,
    Note,
    RefusePrimary,
    ReportStatus,
    SendAppend,
    SendMessage,
    StartReplication,
    StopReplication,
)
from walproxy.proposer.apply_rule import ApplyRule
from walproxy.proposer.phase import Phase, ProposerConfig
from walproxy.proposer.primary import PrimaryIdentity

# What a run may take otherwise (bends.py).
GREETING_FRESH_S = 1.0
BACKOFF_DOUBLINGS_MAX = 5
FOLDERS_INTERVAL_S = 1.0

NOT_MODELLED = {
    "Note": "what is logged",
    "error": "the wording of errors and of the reasons of actions; their kind is compared",
    "due": "when an attempt begins, but for the least pause before it; when a heartbeat or a fetch is sent",
    "archiver": "9.2, that an archiver is replaced, and by which one; why it may be, the first one and assignments are",
    "redirect": "10.11, the addresses by which a member is dialled, and which of two is tried next",
    "pull_sources": "6.6, which sources come first",
    "replace_lost": "10.12",
    "cluster_id": "0.3, the digest of a bootstrap",
    "invalid": "messages that break the protocol: the shell closes that connection",
}

# These come by themselves, or answer other requests than those of the leader of a term.
_NO_ANSWERS = (FolderStates, StandbyFeedback, ArchiveReport, ChangeMembers, ReadResponse, Refusal)
# Which argument of an event is its time.
_NOW = {
    "connected": 1,
    "disconnected": 1,
    "message": 2,
    "primary_identified": 1,
    "primary_segment_removed": 0,
    "primary_lost": 0,
    "primary_checked": 3,
    "primary_refused": 1,
    "timeline_ended": 2,
    "wal_received": 1,
    "tick": 0,
    "change_members": 1,
}


class ReferenceProposer:
    """What a proposer does with each event.

    Attributes:
        roster: the safekeepers.
        known: what it keeps from one attempt to the next.
        primary: as it was identified last, None while none is in sight.
        campaign, term: the attempt or the term that is under way, None without one.
        is_finished: whether the run has ended.
    """

    def __init__(self, config: ProposerConfig) -> None:
        self.config = config
        self.roster = ReferenceRoster(config.safekeeper_ids)
        self.known = Known()
        self.primary: PrimaryIdentity | None = None
        self.campaign: ReferenceCampaign | None = None
        self.term: ReferenceTerm | None = None
        self.is_finished = False
        self._standbys = ReferenceStandbys(config.apply_rule)
        self._stream = Stream()
        self._bootstrap: Bootstrap | None = None
        self._bootstrapped: set[int] = set()
        self._probe: int | None = None
        self._refusals = ReferenceRefusals(config.timing)
        self._greeted_since_slot = False
        self._pause_until = 0.0
        self._without_primary_since: float | None = None
        self._told_folders_at: float | None = None
        # Of the present event.
        self._actions: list[Action] = []
        self._expected: list[Action] = []
        self._acting: ReferenceTerm | None = None
        self._welcomed: dict[int, Identity] = {}
        self._removed: list[int] = []
        self._is_tick = False
        self._ended = False
        self._now = 0.0
        self._phase_after = Phase.GATHERING
        self._membership_after: Membership | None = None

    # ------------------------------------------------------------------ an event

    def after(
        self,
        event: str,
        arguments: tuple[Any, ...],
        actions: list[Action],
        phase: Phase = Phase.GATHERING,
        membership: Membership | None = None,
    ) -> None:
        """Take an event, and check the actions that the proposer has returned for it.

        Args:
            event, arguments: as the proposer was called.
            phase, membership: of the proposer after the event: whether it has given up an attempt, and whether it has
                decided for a membership, shows there. The second one is None without a term.

        Raises:
            Differs: they are not what the protocol says.
        """
        self._actions = _without_repeats(actions)
        self._expected.clear()
        self._acting = self.term
        self._welcomed = {}
        self._is_tick = event == "tick"
        self._ended = False
        self._phase_after, self._membership_after = phase, membership
        if event in _NOW:
            self._now = arguments[_NOW[event]]
        if self.term is not None:
            self.term.begin_event()
        for action in self._actions:
            if isinstance(action, Dial):
                self._dialled(action)
        getattr(self, event)(*arguments)
        self._may_begin()
        self._explain()
        self._forget_removed()
        self._require(event, arguments)
        if self.term is not None:
            self.roster.learn(self.term.elected.cluster_id, self.term.folder_states())

    @property
    def phase(self) -> Phase:
        """The phase of the table in protocol.md."""
        if self.is_finished:
            return Phase.FINISHED
        if self.term is not None:
            return Phase.LEADING
        if self.campaign is not None:
            return self.campaign.phase
        return Phase.BOOTSTRAPPING if self._bootstrap is not None else Phase.GATHERING

    def _sent(self, kind: type) -> list[tuple[int, Any]]:
        """The messages of a kind, with their addressees."""
        return [
            (action.safekeeper_id, action.message)
            for action in self._actions
            if isinstance(action, SendMessage) and isinstance(action.message, kind)
        ]

    def _has(self, kind: type) -> bool:
        return any(isinstance(action, kind) for action in self._actions)

    # ------------------------------------------------------------------ safekeepers

    def connected(self, safekeeper_id: int, now: float) -> None:
        """1.1."""
        before = self.roster.peers[safekeeper_id]
        self.roster.peers[safekeeper_id] = Peer(True, answered_at=now, is_missing=before.is_missing, code=before.code)
        self._greet(safekeeper_id)

    def disconnected(self, safekeeper_id: int, now: float) -> None:
        """3.6, 7.7, 0.9."""
        peer = self.roster.peers[safekeeper_id]
        peer.is_connected, peer.greeting = False, None
        self._standbys.disconnected(safekeeper_id)
        if self._bootstrap is not None:
            self._gather(now)
        elif self.campaign is not None:
            self.campaign.disconnected(safekeeper_id, now)
            self._follow_campaign(now)
        elif self.term is not None:
            self.term.disconnected(safekeeper_id, now)
            self._check_start(now)

    def message(self, safekeeper_id: int, message: AcceptorMessage, now: float) -> None:
        """A message of a safekeeper."""
        peer = self.roster.peers[safekeeper_id]
        if not peer.is_connected or self.is_finished:
            return
        if not isinstance(message, _NO_ANSWERS):
            peer.answered_at = now
        term = self.term
        if isinstance(message, FolderStates):
            peer.reported = message.cluster_id, message.folders[0]
            self.roster.learn(message.cluster_id, message.folders)
        elif isinstance(message, AcceptorGreeting):
            self._greeting(safekeeper_id, message, now)
        elif isinstance(message, Refusal):
            self._refusal(safekeeper_id, message, now)
        elif isinstance(message, Bootstrapped):
            self._bootstrapped_by(safekeeper_id, message)
        elif isinstance(message, ChangeMembers):
            self._change_requested(safekeeper_id, message)
            self._follow_term(now)
        elif isinstance(message, AppendResponse):
            if term is not None:
                term.answered(safekeeper_id, message, now)
                self._follow_term(now)
        elif isinstance(message, StandbyFeedback):
            if term is not None and safekeeper_id in term.members and term.members[safekeeper_id].follows:
                self._standbys.report(safekeeper_id, message.standbys)
        elif isinstance(message, ArchiveReport):
            if term is not None:
                term.archive_reported(safekeeper_id, message, now)
        elif isinstance(message, PullEnded):
            if term is not None:
                term.pull_ended(safekeeper_id, message)
        elif isinstance(message, Reconfigured):
            if term is not None and message.leader_id == term.leader_id:
                member = term.members.get(safekeeper_id)
                if member is not None and member.is_connected:
                    member.generation = max(member.generation, message.generation)
                    self._decide()
                self._follow_term(now)
        elif not isinstance(message, ReadResponse):
            if isinstance(message, VoteResponse):
                self._shows_promise(safekeeper_id, message.promised.term, message.promised)
            if self.campaign is not None:
                self.campaign.message(safekeeper_id, message, now)
                self._follow_campaign(now)

    def _shows_promise(self, safekeeper_id: int, term: int, promised: Any) -> None:
        """3.1."""
        peer = self.roster.peers[safekeeper_id]
        if peer.greeting is not None and term >= peer.greeting.promised.term:
            peer.greeting = _with(peer.greeting, promised=promised)

    def _greet(self, safekeeper_id: int) -> None:
        """1.1."""
        primary = self.primary
        greeting = ProposerGreeting(
            PROTOCOL_VERSION,
            self.config.proposer_id,
            safekeeper_id,
            primary.system_id if primary is not None else None,
            primary.segment_size if primary is not None else None,
        )
        self.roster.peers[safekeeper_id].asked_with.append(self.roster.folders)
        self._expected.append(SendMessage(safekeeper_id, greeting))

    def _greet_all(self) -> None:
        for safekeeper_id, peer in self.roster.peers.items():
            if peer.is_connected:
                self._greet(safekeeper_id)

    def _disconnect(self, safekeeper_id: int) -> None:
        self._expected.append(Disconnect(safekeeper_id, ""))

    def _greeting(self, safekeeper_id: int, greeting: AcceptorGreeting, now: float) -> None:
        """1.4, 1.6, 11.6, 11.7, 3.6."""
        peer, term = self.roster.peers[safekeeper_id], self.term
        folder = safekeeper_id, greeting.incarnation
        known = peer.asked_with.popleft().get(greeting.cluster_id, {}).get(folder)
        peer.greeting, peer.greeted_at = greeting, now
        peer.is_missing, peer.code = False, None
        for other_id, other in self.roster.peers.items():
            twin = other.greeting if other_id != safekeeper_id else None
            if twin is not None and twin.incarnation == greeting.incarnation:
                self.roster.miss(safekeeper_id, None)
                self._disconnect(safekeeper_id)
                return
        membership = term.membership if term is not None else greeting.membership
        is_member = membership is not None and folder in folders_of(membership)
        if is_member and known is not None and peer.reported is not None and is_older(peer.reported[1], known):
            self.roster.miss(safekeeper_id, None)
            if term is not None and term.elected.cluster_id == greeting.cluster_id:
                self._expected.append(SendMessage(safekeeper_id, FolderIsOlder(term.leader_id, known)))
                return
            self._disconnect(safekeeper_id)
            if self.campaign is not None:
                self.campaign.refused(safekeeper_id, now)
                self._follow_campaign(now)
            return
        if term is not None:
            later = self.roster.cluster()
            if later is not None and later.is_later_than(self._ours(term)):
                self._end_term()
            else:
                self._welcome(term, safekeeper_id, greeting)
        elif self.campaign is not None:
            self.campaign.greeted(safekeeper_id)

    @staticmethod
    def _ours(term: ReferenceTerm) -> Cluster:
        return Cluster(term.elected.cluster_id, term.membership)

    def _welcome(self, term: ReferenceTerm, safekeeper_id: int, greeting: AcceptorGreeting) -> None:
        """1.6, 5.2, 11.6."""
        ours = self._ours(term)
        folder = safekeeper_id, greeting.incarnation
        if folder in folders_of(ours.membership) and self.roster.is_doubted(safekeeper_id, ours.id):
            self.roster.peers[safekeeper_id].greeting = None
            self._greet(safekeeper_id)
            return
        if greeting.cluster_id not in ("", ours.id):
            membership = greeting.membership
            if membership is not None and membership.generation > ours.membership.generation:
                return
            if not self.roster.peers[safekeeper_id].is_empty:
                self.roster.miss(safekeeper_id, RefusalCode.OTHER_CLUSTER)
                self._disconnect(safekeeper_id)
                return
        elif greeting.membership is not None and key(greeting.membership) > key(ours.membership):
            self._end_term()
            return
        told = term.members.get(safekeeper_id)
        if told is None or not told.is_connected or told.folder != folder:
            self._welcomed[safekeeper_id] = folder
            # Sent now: others that are welcomed in the same event are not followers yet.
            self._take_elected(term, safekeeper_id, folder)

    def _take_elected(self, term: ReferenceTerm, safekeeper_id: int, folder: Identity) -> None:
        sent = [message for to, message in self._sent(Elected) if to == safekeeper_id]
        expect(len(sent) == 1, f"5.2: safekeeper {safekeeper_id} is sent Elected {len(sent)} times, not once")
        term.sent_elected(safekeeper_id, folder, sent[0])

    def _refusal(self, safekeeper_id: int, refusal: Refusal, now: float) -> None:
        """The table of refusals."""
        code, term = refusal.code, self.term
        peer = self.roster.peers[safekeeper_id]
        if peer.greeting is not None:
            peer.greeting = _with(peer.greeting, promised=refusal.promised)
        if self.campaign is not None:
            self.campaign.donor_refused(safekeeper_id)
            self._follow_campaign(now)
        if code is RefusalCode.STALE_TERM:
            if term is not None and refusal.promised.term > term.leader_id.term:
                self._end_term()
        elif code is RefusalCode.RANGE and term is not None:
            term.range_refused(safekeeper_id)
        elif code in (
            RefusalCode.POSITION,
            RefusalCode.NOT_ADOPTED,
            RefusalCode.GENERATION,
            RefusalCode.STORAGE_FULL,
        ):
            member = term.members.get(safekeeper_id) if term is not None else None
            if code is RefusalCode.STORAGE_FULL and member is not None:
                member.refuses = True
            self._disconnect(safekeeper_id)
        else:
            if code is not RefusalCode.NOT_A_MEMBER or self.campaign is None:
                self.roster.miss(safekeeper_id, code)
                self._disconnect(safekeeper_id)
            if self._bootstrap is not None:
                self._gather(now)
            elif self.campaign is not None:
                self.campaign.refused(safekeeper_id, now)
                self._follow_campaign(now)
            elif self.primary is not None:
                self._miss_foreigners(self.primary, now)

    # ------------------------------------------------------------------ the primary

    def primary_identified(
        self, primary: PrimaryIdentity, now: float, own_page_crcs: tuple[int, ...] = (), own_begin_lsn: int = 0
    ) -> None:
        """1.1, 4.2, 7.12."""
        is_first = self.primary is None and not self.known.held[0]
        self.primary = primary
        self._refusals.greeted_at = None
        stream = self._stream
        stream.own_page_crcs, stream.own_begin_lsn, stream.is_open = own_page_crcs, own_begin_lsn, False
        if is_first:
            if not self.known.requested_term:
                for peer in self.roster.peers.values():
                    if peer.greeted_at < now - GREETING_FRESH_S:
                        peer.greeting = None
            self._greet_all()
        campaign, term = self.campaign, self.term
        if term is not None:
            if not term.is_tail:
                self._primary_in_term(term, primary, now)
        elif campaign is not None and not campaign.is_tail:
            campaign.primary = primary
            if campaign.awaits_primary and not self._miss_foreigners(primary, now):
                campaign.identified(primary)
                self._follow_campaign(now)

    def _primary_in_term(self, term: ReferenceTerm, primary: PrimaryIdentity, now: float) -> None:
        """7.12, 13.5."""
        elected = term.elected
        is_other = (primary.system_id, primary.segment_size) != (elected.system_id, elected.segment_size)
        if is_other or primary.tli <= elected.history[-1].floor:
            self._refuse_primary(now)
        elif primary.tli != term.tli:
            several = self.config.several_primaries and term.commit_lsn > 0
            if several and not fits_log(elected.history, term.commit_lsn, primary):
                self._refuse_primary(now)
            else:
                self._end_term()
        elif primary.flush_lsn < term.received_lsn:
            self._refuse_primary(now)
        else:
            self._probed(term)
            self._follow_term(now)

    def _probed(self, term: ReferenceTerm) -> None:
        """7.12: each member that follows is asked to confirm the term, with a number that it was not sent yet."""
        appends = [a for a in self._actions if isinstance(a, SendAppend)]
        followers = {i for i, member in term.members.items() if member.follows}
        asked = {i for append in appends for i in append.safekeeper_ids}
        expect(followers <= asked, f"7.12: of {sorted(followers)} only {sorted(asked)} are asked to confirm the term")
        sequences = [append.header.sequence for append in appends]
        old = max((member.told_sequence for member in term.members.values()), default=-1)
        expect(min(sequences, default=old + 1) > old, "7.12: the number of a probe was used before")
        self._probe = min(sequences, default=old + 1)

    def primary_segment_removed(self, now: float) -> None:
        """4.7, 7.12."""
        self._stream.is_open = self._stream.is_checked = False
        if self.term is not None and not self._stream.compares:
            self._refuse_primary(now)
        elif self.term is not None:
            self._end_term()
        elif self.campaign is not None:
            self.campaign.segment_removed()
            self._follow_campaign(now)

    def primary_lost(self, now: float) -> None:
        """7.6: nothing is reported to the next one before it was checked."""
        self._part()
        if self.campaign is not None:
            self._abandon(now)

    def primary_checked(self, begin_lsn: int, end_lsn: int, page_crcs: tuple[int, ...], now: float) -> None:
        """4.6, 7.12."""
        if self.term is not None:
            if page_crcs == self._stream.own_page_crcs:
                self._stream.is_checked = self.term.streams = True
            else:
                self._refuse_primary(now)
        elif self.campaign is not None:
            self.campaign.checked(page_crcs)
            self._follow_campaign(now)

    def primary_refused(self, reason: str, now: float) -> None:
        """The shell has found that it does not fit (4.7)."""
        self._refuse_primary(now)

    def timeline_ended(self, next_tli: int, end_lsn: int, now: float) -> None:
        """7.13."""
        stream = self._stream
        if end_lsn == stream.received_lsn:
            stream.ended_lsn = end_lsn
        elif self.campaign is not None:
            self._abandon(now)
        else:
            self.primary = None
            self._expected.append(StopReplication(""))
        stream.is_open = False
        if self.term is not None:
            self.term.streams = False
            self._follow_term(now)

    def wal_received(self, end_lsn: int, now: float) -> None:
        """7.10."""
        stream, term = self._stream, self.term
        stream.received_lsn = end_lsn
        if term is not None:
            if stream.awaits_link:
                stream.awaits_link, stream.is_checked, term.streams = False, True, True
            term.received_lsn = end_lsn

    def wal_evicted(self, begin_lsn: int) -> None:
        """The window begins there now."""
        self._stream.window_begin_lsn = begin_lsn
        if self.term is not None:
            self.term.window_begin_lsn = begin_lsn

    # ------------------------------------------------------------------ time, and the operator

    def tick(self, now: float, jitter: float) -> None:
        """12.5, the waits, and what is due."""
        term = self.term
        if term is not None and term.is_tail and self.primary is not None:
            self._end_term()
            return
        if term is not None:
            if self.config.seal is not None and term.commit_lsn:
                self.known.was_elected = True  # 13.1: a takeover holds until the seal is committed.
            term.truncate_lsn = term.truncate_limit()
            self._decide()
            self._hang_up(term)
            self._follow_term(now)
        elif self.campaign is not None:
            self.campaign.tick(now, self._phase_after is Phase.GATHERING)
            self._follow_campaign(now)
        if self.primary is not None:
            self._without_primary_since = None
        elif self._without_primary_since is None:
            self._without_primary_since = now

    def _hang_up(self, term: ReferenceTerm) -> None:
        """10.11."""
        for action in self._actions:
            if isinstance(action, HangUp):
                safekeeper_id = action.safekeeper_id
                needed = {folder[0] for folder in folders_of(term.membership)}
                needed |= {member.id for member in term.change.wanted.members} | set(self.config.safekeeper_ids)
                expect(safekeeper_id not in needed, "10.11: a member, or a configured safekeeper, is disconnected")
                member = term.members.get(safekeeper_id)
                knows = member is None or not member.is_connected or member.generation == term.membership.generation
                expect(knows and not term.membership.new_members, "10.11: it does not have the final membership yet")
                self._removed.append(safekeeper_id)
                self._standbys.disconnected(safekeeper_id)
                self._expected.append(action)

    def _forget_removed(self) -> None:
        """What was sent to them before, in the same event, was checked."""
        for safekeeper_id in self._removed:
            del self.roster.peers[safekeeper_id]
            if self.term is not None:
                self.term.disconnected(safekeeper_id, self._now)
                self.term.members.pop(safekeeper_id, None)
        self._removed = []

    def set_apply_rule(self, rule: ApplyRule) -> None:
        """7.14."""
        self._standbys.rule = rule

    def change_members(
        self, wanted: tuple[Member, ...], now: float, sizes: QuorumSizes | None = None, force: bool = False
    ) -> None:
        """10.10, of an operator at this proxy; one that was not refused."""
        term = self.term
        if term is None:
            raise Differs("10.1: members are changed without a term")
        end = ReferenceMembers.end_of(term.membership, wanted, sizes)
        expect(not self.refuses_change(wanted, sizes, force), "10.10: a change is to be refused")
        term.change.want(term.membership, end, force)
        self._decide()

    def refuses_change(self, wanted: tuple[Member, ...], sizes: QuorumSizes | None, force: bool) -> bool:
        """10.10: whether such a change is refused."""
        term = self.term
        if term is None:
            return True
        end = ReferenceMembers.end_of(term.membership, wanted, sizes)
        return term.change.refuses(term.membership, end, force, term.taking_part())

    def forget_refusals(self) -> None:
        """4.10."""
        self._refusals.forget()

    def _change_requested(self, safekeeper_id: int, message: ChangeMembers) -> None:
        """10.10."""
        term = self.term
        is_refused = (
            term is None
            or message.cluster_id != term.elected.cluster_id
            or term.change.refuses_command(term.membership, message, term.taking_part())
        )
        self._expected.append(SendMessage(safekeeper_id, MembersAnswer(message.request_id, "no" if is_refused else "")))
        if term is not None and not is_refused:
            end = ReferenceMembers.end_of(term.membership, message.wanted, message.quorum_sizes)
            term.change.want(term.membership, end, message.force)
            self._decide()

    def _decide(self) -> None:
        """10.2, 10.4 to 10.6: a membership that is decided for, and whether it had to be."""
        term = self.term
        if term is None:
            return
        sent = self._sent(Reconfigure)
        # How far truncate_lsn has advanced since it was sent last is the leader's choice between two ticks.
        limit = term.next_membership(term.truncate_limit())
        lowest = term.next_membership(term.truncate_lsn)
        membership = sent[0][1].membership if sent else self._membership_after
        if membership is None or membership == term.membership:
            expect(limit is None or membership is None, "10.2: the next membership is not decided for")
            return
        expect(membership in (limit, lowest), f"10.4: {membership} is decided for, reference {lowest}")
        expect(all(m == Reconfigure(term.leader_id, membership) for _, m in sent), "10.2: different memberships")
        followers = {i for i, member in term.members.items() if member.is_connected}
        expect({i for i, _ in sent} == followers, f"10.2: it is sent to {sorted(i for i, _ in sent)} only")
        term.decide(membership)

    # ------------------------------------------------------------------ attempts and terms

    def _follow_campaign(self, now: float) -> None:
        campaign = self.campaign
        if campaign is None:
            return
        if campaign.outcome is Outcome.WON:
            self._lead(campaign, now)
        elif campaign.outcome is Outcome.REFUSED:
            self._refuse_primary(now)
        elif campaign.outcome is Outcome.FENCED:
            self._finish(Fenced)
        elif campaign.outcome is Outcome.LOST:
            self._abandon(now)

    def _abandon(self, now: float) -> None:
        """2.5, 8.2."""
        if self._stream.is_open:
            self._stream.is_open = False
            self.primary = None
            self._expected.append(StopReplication(""))
        if self.campaign is not None and self.campaign.phase is not Phase.PRE_VOTING:
            self.known.failed += 1
        self._gather(now)

    def _gather(self, now: float) -> None:
        """The waits; 0.9."""
        if self._bootstrap is not None:
            self.roster.forget_greetings()
            self._greet_all()
        self.campaign = self._bootstrap = None
        pause_s = self.config.timing.retry_interval_s / 2
        if self.known.failed:
            pause_s *= 2 ** min(self.known.failed, BACKOFF_DOUBLINGS_MAX) * 0.5
        self._pause_until = max(self._pause_until, now + pause_s)

    def _lead(self, campaign: ReferenceCampaign, now: float) -> None:
        """Step 5."""
        elected, stream = campaign.elected(), self._stream
        ours = Cluster(elected.cluster_id, elected.membership)
        if any(each.id == ours.id and each.is_later_than(ours) for each in self.roster.clusters()):  # 10.9
            self._abandon(now)
            return
        start_lsn = elected.history[-1].start_lsn
        self._standbys.cut(start_lsn)
        term = ReferenceTerm(elected, campaign.donor, campaign.is_tail, self._standbys, self.config.timing, now)
        if campaign.is_tail:
            self._expected.append(EmptyWindow(start_lsn))
        else:
            term.received_lsn, term.window_begin_lsn = stream.received_lsn, stream.window_begin_lsn
            stream.awaits_link = campaign.awaits_link
            term.streams = stream.is_checked = stream.is_open and not stream.awaits_link
            self.known.has_led = True
        self.known.failed = 0
        self.known.held = elected.leader_id.term, start_lsn
        self.term = self._acting = term
        self.campaign = None
        for safekeeper_id, greeting in self.roster.greetings().items():
            if self.term is term:
                self._welcome(term, safekeeper_id, greeting)

    def _follow_term(self, now: float) -> None:
        """7.12, 7.13, 6.4."""
        term, stream = self.term, self._stream
        if term is None:
            return
        if stream.ended_lsn is not None and term.commit_lsn >= stream.ended_lsn:
            self._end_term()
        elif self._probe is not None and term.is_confirmed(self._probe):
            self._probe = None
            self._resume(term)
        else:
            self._check_start(now)

    def _check_start(self, now: float) -> None:
        if self.term is not None and self.term.has_lost_its_start():
            self._end_term()

    def _resume(self, term: ReferenceTerm) -> None:
        """7.12: what the primary has sent before is compared, and the COPY goes on."""
        stream, history, lsn, primary = self._stream, term.elected.history, term.received_lsn, self.primary
        if primary is None:
            return
        begin_lsn, tli = lsn, term.tli
        stream.compares = segment_before(lsn, primary.segment_size) < lsn and lsn > history[0].start_lsn
        if stream.compares:
            if not stream.own_page_crcs:
                self._end_term()
                return
            begin_lsn = stream.own_begin_lsn
            tli = tli_of_comparison(history, begin_lsn, lsn, term.tli, primary.segment_size)
        stream.is_open, stream.tli, stream.is_checked = True, term.tli, not stream.compares
        self._expected.append(StartReplication(begin_lsn, tli, lsn, term.tli, resumes=True))
        if stream.is_checked:
            term.streams = True

    def _end_term(self) -> None:
        """8.1."""
        term = self.term
        if term is None:
            return
        self.roster.learn(term.elected.cluster_id, term.folder_states())
        self.known.held = term.leader_id.term, max(term.start_lsn, term.commit_lsn)
        self.term = self._probe = self._stream.ended_lsn = None
        self._ended = True
        self._pause_until = 0.0
        self.roster.forget_greetings()
        self._greet_all()

    def _refuse_primary(self, now: float) -> None:
        """4.9."""
        if not self.config.several_primaries:
            self._finish(PrimaryRefused)
            return
        campaign = self.campaign
        if campaign is not None and campaign.phase is Phase.VERIFYING and campaign.primary is not None:
            by_bytes = campaign.beginning is not None
            self._refusals.remember(campaign.primary, campaign.cluster, campaign.votes, by_bytes, now)
        self._expected.append(RefusePrimary(""))
        self._part()
        if self.campaign is not None or self._bootstrap is not None:
            self._gather(now)

    def _part(self) -> None:
        self.primary = self._probe = None
        stream = self._stream
        stream.is_open, stream.awaits_link, stream.ended_lsn = False, False, None
        if self.term is not None:
            self.term.streams = False

    def _finish(self, kind: type[WalproxyError]) -> None:
        if self.is_finished:
            return
        self._ended = self.term is not None
        self.is_finished = True
        self.campaign = self._bootstrap = self.term = None
        ends = [action for action in self._actions if isinstance(action, Finish)]
        expect([type(end.error) for end in ends] == [kind], f"the run does not end with {kind.__name__}")
        self._expected.extend(ends)

    # ------------------------------------------------------------------ beginnings (steps 0 to 2, 12)

    def _may_begin(self) -> None:
        """An attempt that the proposer begins in this event: when it does is its choice, how it does is not."""
        if self.is_finished or self.phase is not Phase.GATHERING:
            return
        asks = bool(self._sent(PreVoteRequest) or self._sent(TailPreVoteRequest))
        if self.primary is None:
            if asks:
                self._begin_tail()
            return
        primary = self.primary
        for_others = {_worded(action) for action in self._expected if isinstance(action, Disconnect)}
        disconnected = {
            action.safekeeper_id
            for action in self._actions
            if isinstance(action, Disconnect) and _worded(action) not in for_others and not self._is_silent(action)
        }
        is_refused = (self._has(Finish) or self._has(RefusePrimary)) and not self._is_refused_already()
        begins = asks or is_refused or disconnected & set(self.roster.foreigners(primary))
        if begins and self._miss_foreigners(primary, self._now):
            return
        if asks:
            self._begin_campaign(primary)
        elif self._sent(Bootstrap):
            self._begin_bootstrap(primary)
        elif self._has(Finish):
            self._require_misfit()
            self._finish(ConfigurationError)
        elif is_refused:
            repeats, refusals = self._repeats(primary), self._refusals
            is_due = repeats and refusals.greeted_at is not None and not refusals.awaits(self.roster, self._now)
            is_refused = is_due and refusals.refuses(primary, self.roster, self._now)
            expect(is_refused, "4.10: a host is refused without a vote")
            self._refuse_primary(self._now)
        elif len(self._sent(ProposerGreeting)) > sum(_is_greeting(action) for action in self._expected):
            if self._repeats(primary):
                expect(self._refusals.greeted_at is None, "4.10: safekeepers are greeted twice for one host")
                self._refusals.greeted_at, self._pause_until = self._now, 0.0
            else:
                is_first = bool(primary.slot) and not self._greeted_since_slot
                expect(is_first, "0.2: safekeepers are greeted again for no reason")
                self._greeted_since_slot = True
            self.roster.forget_greetings()
            self._greet_all()

    def _is_refused_already(self) -> bool:
        return any(isinstance(action, RefusePrimary) for action in self._expected)

    def _repeats(self, primary: PrimaryIdentity) -> bool:
        """4.10: whether an attempt with this host might only repeat a refusal."""
        return self.roster.cluster() is not None and self._refusals.is_to_be_greeted_for(primary, self._now)

    def _begin_campaign(self, primary: PrimaryIdentity) -> None:
        """2.1, 10.9, 0.12."""
        cluster = self.roster.cluster()
        if cluster is None:
            raise Differs("2.1: an attempt begins without a quorum of greetings")
        listed = {folder[0] for folder in folders_of(cluster.membership)} <= self.roster.peers.keys()
        expect(listed, "0.12: an attempt begins with a list that lacks a member")
        expect(self._now >= self._pause_until, "an attempt begins before the pause is over")
        if self._repeats(primary):
            refusals = self._refusals
            expect(refusals.greeted_at is not None, "4.10: an attempt begins with a host that may be refused again")
            expect(not refusals.awaits(self.roster, self._now), "4.10: an attempt begins before all have greeted")
            expect(not refusals.refuses(primary, self.roster, self._now), "4.10: an attempt repeats a refusal")
        self._begin(cluster, primary)

    def _begin(self, cluster: Cluster, primary: PrimaryIdentity | None) -> None:
        self.campaign = ReferenceCampaign(
            self.config, self.roster, self._stream, self.known, cluster, primary, self._now, self._expected
        )
        self.campaign.begin()

    def _begin_tail(self) -> None:
        """12.1, 13.1."""
        seal, after_s, since = self.config.seal, self.config.tail_after_s, self._without_primary_since
        expect(self._is_tick and not self.known.has_gone_on, "12.1: a tail term is not wanted")
        if seal is None:
            waited = after_s is not None and since is not None and self._now - since >= after_s
            expect(waited, "12.1: a tail term is wanted too early")
        cluster = self.roster.cluster()
        if cluster is None:
            raise Differs("12.1: an attempt begins without a quorum of greetings")
        expect(seal is not None or self.roster.has_unknown_tail(cluster), "12.1: the end of the log is known")
        self._begin(cluster, None)

    def _miss_foreigners(self, primary: PrimaryIdentity, now: float) -> bool:
        """1.5; return whether the primary is refused by a majority."""
        for safekeeper_id in self.roster.foreigners(primary):
            self.roster.miss(safekeeper_id, RefusalCode.OTHER_SYSTEM)
            self._disconnect(safekeeper_id)
        peers = self.roster.peers
        others = [peer for peer in peers.values() if peer.code is RefusalCode.OTHER_SYSTEM]
        if len(others) <= len(peers) // 2:
            return False
        self._refuse_primary(now)
        for safekeeper_id, peer in peers.items():
            if peer.code is RefusalCode.OTHER_SYSTEM:
                peer.is_missing, peer.code = False, None
            elif peer.is_connected and peer.greeting is None:
                self._disconnect(safekeeper_id)
        return True

    def _require_misfit(self) -> None:
        """0.12."""
        cluster = self.roster.cluster()
        memberships = [each.membership for each in self.roster.clusters()]
        if cluster is not None:
            memberships = [cluster.membership]
        fits = [{f[0] for f in folders_of(each)} <= self.roster.peers.keys() for each in memberships]
        expect(bool(fits) and not any(fits), "0.12: the run ends although its list fits")

    def _begin_bootstrap(self, primary: PrimaryIdentity) -> None:
        """0.1 to 0.4."""
        peers = self.roster.peers
        expect(self.roster.cluster() is None, "0.1: a bootstrap although a cluster has a quorum")
        expect(all(peer.is_empty and not peer.is_missing for peer in peers.values()), "0.2: not all are empty")
        expect(self.config.bootstrap or not primary.slot, "0.2: a bootstrap although there is a slot")
        addresses = self.config.addresses
        members = tuple(
            Member(i, peer.greeting.incarnation, addresses.get(i, ""))
            for i, peer in sorted(peers.items())
            if peer.greeting is not None
        )
        cluster_id = self._sent(Bootstrap)[0][1].cluster_id
        known = {peer.greeting.cluster_id for peer in peers.values() if peer.greeting is not None}
        expect(known <= {"", cluster_id}, "0.2: another cluster has begun")
        self._bootstrap = Cluster(cluster_id, Membership(1, members)).bootstrap(primary)
        self._bootstrapped = set()
        self._expected.extend(SendMessage(safekeeper_id, self._bootstrap) for safekeeper_id in peers)

    def _bootstrapped_by(self, safekeeper_id: int, message: Bootstrapped) -> None:
        """0.9."""
        if self._bootstrap is None or message.cluster_id != self._bootstrap.cluster_id:
            return
        self._bootstrapped.add(safekeeper_id)
        if self._bootstrapped == self.roster.peers.keys():
            self._bootstrap = None
            self._greet_all()

    def _dialled(self, action: Dial) -> None:
        """10.11."""
        self.roster.peers.setdefault(action.safekeeper_id, Peer())
        self._expected.append(action)

    # ------------------------------------------------------------------ the actions

    def _explain(self) -> None:
        """Compare the actions that the protocol fixes, and check the others against what is permitted."""
        fixed: list[Action] = []
        for action in self._actions:
            if isinstance(action, SendAppend):
                for safekeeper_id in action.safekeeper_ids:
                    self._leading().sent_append(safekeeper_id, action.header, action.end_lsn, self._now, False)
            elif not self._is_left_open(action):
                fixed.append(action)
        missing = _without_repeats([_worded(action) for action in self._expected])
        for action in fixed:
            worded = _worded(action)
            if worded not in missing:
                raise Differs(f"does {action}, reference {_alike(worded, missing)}")
            missing.remove(worded)
        if missing:
            raise Differs(f"does not {missing[0]}")

    def _leading(self) -> ReferenceTerm:
        if self._acting is None:
            raise Differs("sends what only the leader of a term sends")
        return self._acting

    def _is_left_open(self, action: Action) -> bool:
        """Check an action that the protocol does not fix, or that is compared elsewhere; return whether it is one."""
        if isinstance(action, Disconnect):
            return self._is_silent(action)
        if not isinstance(action, SendMessage):
            return isinstance(action, ReportStatus)
        safekeeper_id, message = action.safekeeper_id, action.message
        if isinstance(message, Elected):
            if safekeeper_id not in self._welcomed:
                self._leading().sent_elected(safekeeper_id, None, message)
        elif isinstance(message, AppendRequest):
            end_lsn = message.begin_lsn + len(message.payload)
            self._leading().sent_append(safekeeper_id, message, end_lsn, self._now, True)
        elif isinstance(message, ReadRequest):
            self._leading().sent_read(safekeeper_id, message)
        elif isinstance(message, PullWal):
            self._leading().sent_pull(safekeeper_id, message)
        elif isinstance(message, ArchiveAssignment):
            self._leading().sent_assignment(safekeeper_id, message, self._now, self._is_tick)
        elif isinstance(message, FolderStates):
            self._told_folders(safekeeper_id, message)
        elif isinstance(message, Reconfigure):
            expect(message.membership == self._leading().membership, "10.4: a membership that is not decided for")
        else:
            return False
        return True

    def _told_folders(self, safekeeper_id: int, message: FolderStates) -> None:
        """11.3."""
        term = self._leading()
        expect(self._is_tick and term.members[safekeeper_id].follows, "11.3: folders are told at the wrong time")
        last = self._told_folders_at
        is_due = last is None or last == self._now or self._now >= last + FOLDERS_INTERVAL_S
        expect(is_due, "11.3: folders are told too often")
        self._told_folders_at = self._now
        self.roster.learn(term.elected.cluster_id, term.folder_states())
        known = self.roster.folders[term.elected.cluster_id]
        states = tuple(known[folder] for folder in sorted(folders_of(term.membership)) if folder in known)
        expected = FolderStates(term.elected.cluster_id, states)
        expect(message == expected, f"11.3: tells {message}, reference {expected}")

    def _is_silent(self, action: Disconnect) -> bool:
        """The waits: a safekeeper that does not answer."""
        if action in self._expected or not self._is_tick:
            return False
        if any(isinstance(a, Disconnect) and a.safekeeper_id == action.safekeeper_id for a in self._expected):
            return False
        member = self.term.members.get(action.safekeeper_id) if self.term is not None else None
        if member is not None and member.pull is not None and not member.pull.sources:
            return True  # The end of a pull is not confirmed.
        peer = self.roster.peers[action.safekeeper_id]
        return self._now - peer.answered_at > self.config.timing.response_timeout_s

    def _require(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What must have been done at the end of the event."""
        reports = [action for action in self._actions if isinstance(action, ReportStatus)]
        term = self.term
        if self._ended:
            expect(reports[-1:] == [ReportStatus(0, 0, 0)], "8.1: a term ends, and PostgreSQL is not told (0, 0, 0)")
            return
        if term is None:
            expect(all(report == ReportStatus(0, 0, 0) for report in reports), "7.6: positions without a term")
            return
        status, told = term.status(), term.reported or ReportStatus(0, 0, 0)
        if reports:
            expect(reports[-1] == status, f"7.6: reports {reports[-1]}, reference {status}")
            term.reported = reports[-1]
        elif status != told:
            is_lower = (status.flush_lsn, status.apply_lsn) == (told.flush_lsn, told.apply_lsn)
            is_lower = is_lower and status.write_lsn < told.write_lsn
            expect(is_lower, f"7.6: does not report {status} after {told}")
        term.require_commits()
        term.require_assignments()
        if event in ("wal_received", "tick"):
            gone = {a.safekeeper_id for a in self._actions if isinstance(a, Disconnect)}
            term.require_wal(term.members.keys() - gone)
        elif event == "message" and isinstance(arguments[1], AppendResponse | PullEnded):
            term.require_wal([arguments[0]])


def _without_repeats(actions: list[Action]) -> list[Action]:
    """Return the actions without notes; a connection that is closed for two reasons is closed once."""
    kept: list[Action] = []
    closed: set[int] = set()
    for action in actions:
        if isinstance(action, Disconnect):
            if action.safekeeper_id in closed:
                continue
            closed.add(action.safekeeper_id)
        if not isinstance(action, Note):
            kept.append(action)
    return kept


def _is_greeting(action: Action) -> bool:
    return isinstance(action, SendMessage) and isinstance(action.message, ProposerGreeting)


def _with(greeting: AcceptorGreeting, **changes: Any) -> AcceptorGreeting:
    return msgspec.structs.replace(greeting, **changes)


def _worded(action: Action) -> Action:
    """Return an action without its wording, which is not compared."""
    if isinstance(action, Disconnect):
        return Disconnect(action.safekeeper_id, "")
    if isinstance(action, StopReplication):
        return StopReplication("")
    if isinstance(action, RefusePrimary):
        return RefusePrimary("")
    if isinstance(action, SendMessage) and isinstance(action.message, MembersAnswer):
        answer = action.message
        return SendMessage(action.safekeeper_id, MembersAnswer(answer.request_id, "no" if answer.refusal else ""))
    return action


def _alike(action: Action, others: list[Action]) -> Action | None:
    """Return one of the same kind, for the message."""
    kind = type(action.message) if isinstance(action, SendMessage) else None
    for other in others:
        if type(other) is type(action) and (not isinstance(other, SendMessage) or type(other.message) is kind):
            return other
    return None
