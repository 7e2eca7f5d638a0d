"""What a run of the proposer keeps, and how its attempts and terms end, as docs/design/protocol.md states it.

Part of the reference of the proposer (proposer.py). All events share this state: each group of them is a class of its
own (safekeepers.py, primary.py, changes.py, beginnings.py) that inherits from this one.
"""

from typing import Any

from safekeeper.base.errors import PrimaryRefused, WalproxyError
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import PROTOCOL_VERSION, Bootstrap, ProposerGreeting, RefusalCode
from tests.simulation.references.proposer.actions import event_of, expect
from tests.simulation.references.proposer.campaign import ReferenceCampaign
from tests.simulation.references.proposer.refused_hosts import RefusedHosts
from tests.simulation.references.proposer.roster import Known, ReferenceRoster, Stream
from tests.simulation.references.proposer.standbys import ReferenceStandbys
from tests.simulation.references.proposer.term import ReferenceTerm
from walproxy.proposer.actions import Action, Disconnect, Finish, RefusePrimary, SendMessage, StopReplication
from walproxy.proposer.phase import Phase, ProposerConfig
from walproxy.proposer.primary import PrimaryIdentity


class ReferenceRun:
    """One run of the proposer.

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
        self._greeted_since_slot = False
        self._refused_hosts = RefusedHosts(config.timing)
        self._members_in_report: frozenset[Identity] = frozenset()
        # Of the present event.
        self._actions: list[Action] = []
        self._expected: list[Action] = []
        self._acting: ReferenceTerm | None = None
        self._welcomed: dict[int, Identity] = {}
        self._removed: list[int] = []
        self._silent: set[int] = set()
        self._is_tick = False
        self._ended = self._streamed = False
        self._has_answered = False  # A message that was awaited: its sender is sent what it lacks at once.
        self._now = 0.0
        self._membership_after: Membership | None = None

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
        self.roster.peers[safekeeper_id].asked_with.append((self.roster.folders, self.roster.connections))
        self._expected.append(SendMessage(safekeeper_id, greeting))

    def _greet_all(self) -> None:
        for safekeeper_id, peer in self.roster.peers.items():
            if peer.is_connected and safekeeper_id not in self._removed:
                self._greet(safekeeper_id)

    def _disconnect(self, safekeeper_id: int) -> None:
        self._expected.append(Disconnect(safekeeper_id, ""))

    def _miss_foreigners(self, primary: PrimaryIdentity) -> bool:
        """1.5; return whether the primary is refused by a majority."""
        for safekeeper_id in self.roster.foreigners(primary):
            self.roster.miss(safekeeper_id, RefusalCode.OTHER_SYSTEM)
            self._disconnect(safekeeper_id)
        peers = self.roster.peers
        others = [peer for peer in peers.values() if peer.code is RefusalCode.OTHER_SYSTEM]
        if len(others) <= len(peers) // 2:
            return False
        self._refuse_primary()
        for safekeeper_id, peer in peers.items():
            if peer.code is RefusalCode.OTHER_SYSTEM:
                peer.is_missing, peer.code = False, None
            elif peer.is_connected and peer.greeting is None:
                self._disconnect(safekeeper_id)
        return True

    def _abandon(self) -> None:
        """2.5, 8.2."""
        if self._stream.is_open:
            self._stream.is_open = False
            self.primary = None
            self._expected.append(StopReplication(""))
        self._gather()

    def _gather(self) -> None:
        """0.9."""
        if self._bootstrap is not None:
            self.roster.forget_greetings()
            self._greet_all()
        self.campaign = self._bootstrap = None

    def _learn_of_term(self) -> None:
        """11.3."""
        term = self.term
        if term is not None:
            acknowledged = term.acknowledged()
            if acknowledged != term.learnt:
                self.roster.learn(term.elected.cluster_id, term.folder_states())
                term.learnt = acknowledged

    def _end_term(self) -> None:
        """8.1."""
        term = self.term
        if term is None:
            return
        self._learn_of_term()
        self._expected.append(event_of("term-lost", term.leader_id.term))
        self.known.held = term.leader_id.term, max(term.start_lsn, term.commit_lsn)
        self.known.is_done = self.known.is_done or bool(term.is_tail and self.known.purpose and term.commit_lsn)
        self.term = self._probe = self._stream.ended_lsn = None
        self._ended = True
        self.roster.forget_greetings()
        self._greet_all()

    def _refuse_primary(self) -> None:
        """4.9."""
        if not self.config.several_primaries:
            self._finish(PrimaryRefused)
            return
        campaign = self.campaign
        if campaign is not None and campaign.phase is Phase.VERIFYING and campaign.primary is not None:
            self._refused_hosts.refused_by_election(campaign.primary, self._now)
        self._expected.append(RefusePrimary(""))
        self._part()
        if self.campaign is not None or self._bootstrap is not None:
            self._gather()

    def _part(self) -> None:
        self.primary = self._probe = None
        stream = self._stream
        stream.is_open, stream.awaits_link, stream.ended_lsn, stream.identities_due = False, False, None, 0
        if self.term is not None:
            self.term.streams = False

    def _finish(self, kind: type[WalproxyError]) -> None:
        if self.is_finished:
            return
        self._ended = self.term is not None
        self.is_finished = True
        self.campaign = self._bootstrap = self.term = None
        ends = [action for action in self._actions if isinstance(action, Finish)]
        expect([type(end.error) for end in ends] == [kind], "the run does not end with {}", kind.__name__)
        self._expected.extend(ends)
