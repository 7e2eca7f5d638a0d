"""The events of safekeepers: connections, greetings, refusals and answers (docs/design/protocol.md, steps 0, 1, 3, 11).

Part of the reference of the proposer (proposer.py).
"""

from typing import Any

import msgspec

from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AcceptorMessage,
    AppendResponse,
    ArchiveReport,
    Bootstrapped,
    ChangeMembers,
    FolderIsOlder,
    FolderStates,
    PullEnded,
    ReadResponse,
    Reconfigured,
    Refusal,
    RefusalCode,
    StandbyFeedback,
    VoteResponse,
)
from tests.simulation.references.acceptor.histories import folders_of
from tests.simulation.references.proposer.broken import BrokenMessages
from tests.simulation.references.proposer.changes import MemberChanges
from tests.simulation.references.proposer.roster import Peer, is_older
from walproxy.proposer.actions import SendMessage


class SafekeeperEvents(MemberChanges, BrokenMessages):
    """What a safekeeper does, and sends."""

    def connected(self, safekeeper_id: int, now: float) -> None:
        """1.1."""
        before = self.roster.peers[safekeeper_id]
        self.roster.connections |= {len(self.roster.connections)}
        self.roster.peers[safekeeper_id] = Peer(True, is_missing=before.is_missing, code=before.code)
        self._greet(safekeeper_id)

    def disconnected(self, safekeeper_id: int, now: float) -> None:
        """3.6, 7.7, 0.9."""
        peer = self.roster.peers[safekeeper_id]
        peer.is_connected, peer.greeting = False, None
        self._standbys.disconnected(safekeeper_id)
        if self._bootstrap is not None:
            self._gather()
        elif self.campaign is not None:
            self.campaign.disconnected(safekeeper_id)
            self._follow_campaign(now)
        elif self.term is not None:
            self.term.disconnected(safekeeper_id)
            self._check_start(now)

    def message(self, safekeeper_id: int, message: AcceptorMessage, now: float) -> None:
        """A message of a safekeeper."""
        peer = self.roster.peers[safekeeper_id]
        if not peer.is_connected or self.is_finished:
            return
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
                self._has_answered = term.answered(safekeeper_id, message, now)
                self._follow_term(now)
        elif isinstance(message, StandbyFeedback):
            if term is not None and safekeeper_id in term.members and term.members[safekeeper_id].follows:
                self._standbys.report(safekeeper_id, message.standbys)
        elif isinstance(message, ArchiveReport):
            if term is not None:
                term.archive_reported(safekeeper_id, message)
        elif isinstance(message, PullEnded):
            if term is not None:
                self._has_answered = term.pull_ended(safekeeper_id, message)
        elif isinstance(message, Reconfigured):
            if term is not None and message.leader_id == term.leader_id:
                member = term.members.get(safekeeper_id)
                if member is not None and member.is_connected:
                    member.generation = max(member.generation, message.generation)
                    self._decide()
                self._follow_term(now)
        elif isinstance(message, ReadResponse):
            if term is not None:
                term.read_answered(safekeeper_id, message)
        else:
            if isinstance(message, VoteResponse):
                self._shows_promise(safekeeper_id, message.promised.term, message.promised)
            if self.campaign is not None:
                self.campaign.message(safekeeper_id, message)
                self._follow_campaign(now)

    def _shows_promise(self, safekeeper_id: int, term: int, promised: Any) -> None:
        """3.1."""
        peer = self.roster.peers[safekeeper_id]
        if peer.greeting is not None and term >= peer.greeting.promised.term:
            peer.greeting = _with(peer.greeting, promised=promised)

    def _greeting(self, safekeeper_id: int, greeting: AcceptorGreeting, now: float) -> None:
        """1.4, 1.6, 11.6, 11.7, 3.6."""
        peer, term = self.roster.peers[safekeeper_id], self.term
        folder = safekeeper_id, greeting.incarnation
        folders, peer.connections_then = peer.asked_with.popleft()
        known = folders.get(greeting.cluster_id, {}).get(folder)
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
                self.campaign.refused(safekeeper_id)
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
                self._gather()
            elif self.campaign is not None:
                self.campaign.refused(safekeeper_id)
                self._follow_campaign(now)
            elif self.primary is not None:
                self._miss_foreigners(self.primary)

    def _bootstrapped_by(self, safekeeper_id: int, message: Bootstrapped) -> None:
        """0.9."""
        if self._bootstrap is None or message.cluster_id != self._bootstrap.cluster_id:
            return
        self._bootstrapped.add(safekeeper_id)
        if self._bootstrapped == self.roster.peers.keys():
            self._bootstrap = None
            self._greet_all()


def _with(greeting: AcceptorGreeting, **changes: Any) -> AcceptorGreeting:
    return msgspec.structs.replace(greeting, **changes)
