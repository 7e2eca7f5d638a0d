"""Messages of safekeepers that break the protocol, as docs/design/protocol.md states it (H2, 1.4, 3.3, 4.6, 6.2, 7.11).

Part of the reference of the proposer (proposer.py). The proposer must refuse these and no others; the shell then closes
the connection, and nothing else follows.
"""

from itertools import pairwise

from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AppendResponse,
    DigestResponse,
    FolderStates,
    PullEnded,
    ReadResponse,
    VoteResponse,
)
from safekeeper.consensus.term_history import TermHistory
from tests.simulation.references.acceptor.histories import last_term
from tests.simulation.references.proposer.run import ReferenceRun
from walproxy.proposer.phase import Phase


class BrokenMessages(ReferenceRun):
    """What a proposer must not take from a safekeeper."""

    def breaks_protocol(self, safekeeper_id: int, message: AcceptorMessage) -> bool | None:
        """Return whether a message is to be refused as broken, before it is handled; None: either way is permitted."""
        peer = self.roster.peers[safekeeper_id]
        if not peer.is_connected or self.is_finished:
            return False
        if type(message) is AppendResponse:
            return self._has_impossible_positions(safekeeper_id, message)
        if type(message) is FolderStates:
            return message.folders[0].safekeeper_id != safekeeper_id
        if type(message) is AcceptorGreeting:
            is_asked_for = (message.safekeeper_id, message.protocol_version) == (safekeeper_id, PROTOCOL_VERSION)
            is_whole = message.membership is None or message.cluster_id != ""
            return not (is_asked_for and is_whole and peer.asked_with)
        if type(message) is VoteResponse:
            return self._is_impossible_vote(safekeeper_id, message)
        if type(message) is DigestResponse:
            campaign = self.campaign
            return campaign is not None and safekeeper_id == campaign.donor and campaign.is_unasked(message)
        if type(message) is ReadResponse:
            return self.term is not None and self.term.is_unasked(safekeeper_id, message)
        if type(message) is PullEnded:
            return self._ends_elsewhere(safekeeper_id, message)
        return False

    def _has_impossible_positions(self, safekeeper_id: int, answer: AppendResponse) -> bool:
        """7.11."""
        term = self.term
        member = term.members.get(safekeeper_id) if term is not None else None
        if term is None or member is None or not member.is_connected or answer.leader_id != term.leader_id:
            return False
        return not answer.flush_lsn <= answer.write_lsn <= max(term.received_lsn, term.start_lsn)

    def _is_impossible_vote(self, safekeeper_id: int, vote: VoteResponse) -> bool:
        """3.5: a log that a voter for this term cannot have."""
        campaign = self.campaign
        if campaign is None or campaign.phase is not Phase.VOTING or safekeeper_id not in campaign.asked:
            return False
        if vote.leader_id != campaign.leader_id or not vote.granted:
            return False
        is_later = last_term(vote.history) >= vote.leader_id.term
        return is_later or not _is_history(vote.history) or any(e.start_lsn > vote.flush_lsn for e in vote.history)

    def _ends_elsewhere(self, safekeeper_id: int, message: PullEnded) -> bool:
        """6.9: the end of the last pull at a position that it cannot have."""
        term = self.term
        member = term.members.get(safekeeper_id) if term is not None else None
        if term is None or member is None or member.pull is None or message.request_id != member.pull.request_id:
            return False
        is_possible = member.sent_lsn <= message.write_lsn <= term.received_lsn
        return message.leader_id != term.leader_id or not is_possible


def _is_history(history: TermHistory) -> bool:
    """H2."""
    if any(0 in (entry.term, entry.start_lsn, entry.tli) for entry in history):
        return False
    return all(
        one.term < other.term and one.start_lsn <= other.start_lsn and one.tli <= other.tli
        for one, other in pairwise(history)
    )
