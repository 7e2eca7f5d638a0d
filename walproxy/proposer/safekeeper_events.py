"""The events of safekeepers: connections, greetings, refusals and answers."""

from collections.abc import Callable
from typing import Any

from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AcceptorMessage,
    AppendResponse,
    ArchiveReport,
    Bootstrapped,
    ChangeMembers,
    DigestResponse,
    FolderIsOlder,
    FolderStates,
    PreVoteResponse,
    PullEnded,
    ReadResponse,
    Reconfigured,
    Refusal,
    RefusalCode,
    StandbyFeedback,
    TailResponse,
    VoteResponse,
)
from walproxy.proposer.actions import Action, Disconnect, Level
from walproxy.proposer.operator_events import OperatorEvents
from walproxy.proposer.phase import Phase, ProposerConfig
from walproxy.proposer.roster import find_cluster, older_copy_reason
from walproxy.proposer.terms import cluster_of


class SafekeeperEvents(OperatorEvents):
    """What the shell reports about safekeepers, and receives from them."""

    def __init__(self, config: ProposerConfig) -> None:
        super().__init__(config)
        self._handlers: dict[type, Callable[[int, Any, float], None]] = {
            AcceptorGreeting: self._on_greeting,
            Refusal: self._on_refusal,
            Bootstrapped: self._on_bootstrapped,
            ChangeMembers: self._on_change_members,
            PreVoteResponse: self._on_campaign_answer,
            VoteResponse: self._on_vote,
            DigestResponse: self._on_campaign_answer,
            TailResponse: self._on_campaign_answer,
            AppendResponse: self._on_append_response,
            Reconfigured: self._on_reconfigured,
            StandbyFeedback: self._on_standby_feedback,
            ArchiveReport: self._on_term_message,
            ReadResponse: self._on_term_message,
            PullEnded: self._on_term_message,
        }

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
        leadership, progress = self.leadership, self._steady.get(safekeeper_id)
        if progress is not None and leadership is not None:
            if type(message) is AppendResponse:
                leadership.on_append_response(safekeeper_id, message, now)
                leadership.check_answer(progress)
                return self._taken()
            if type(message) is StandbyFeedback:
                leadership.on_standby_feedback(safekeeper_id, message.standbys)
                return self._taken()
        peer = self.peers[safekeeper_id]
        if not peer.connected or self.refusal is not None:
            return []
        if isinstance(message, FolderStates):
            # It comes before an answer, and is none.
            self.roster.on_folder_states(safekeeper_id, message)
            return self._take()
        # A message that was sent before the greeting does not answer it.
        peer.waiting_since = now if peer.greeting is None else None
        handler = self._handlers.get(type(message))
        if handler is not None:  # The others answer commands and agents.
            handler(safekeeper_id, message, now)
        return self._take()

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
            if later is not None and later.is_later_than(cluster_of(leadership)):
                self._end_term(now, "a quorum of members has a newer membership")
            else:
                self._welcome(leadership, safekeeper_id, greeting, now)
        elif self.campaign is not None:
            self.campaign.greeted(safekeeper_id, now)
        else:
            self._try_to_begin(now)
            if self.candidacy.purpose is not None:
                self._try_tail_term(now, now >= self._next_attempt_at)

    def _on_older_copy(self, safekeeper_id: int, greeting: AcceptorGreeting, known: FolderState, now: float) -> None:
        """Count a data folder no more that was replaced by an older copy of itself; as a leader, tell it so (S8e)."""
        leadership, folder = self.leadership, self.peers[safekeeper_id].folder
        has_sent = leadership is not None and leadership.elected.cluster_id == greeting.cluster_id
        reason = older_copy_reason(safekeeper_id, folder, known)
        self.roster.refuse(safekeeper_id, None, reason, disconnects=not has_sent)
        if leadership is not None and has_sent:
            # It returns with another incarnation, as a folder that was lost does.
            self._out.append(self.roster.ask(safekeeper_id, FolderIsOlder(leadership.leader_id, known), now))
        elif self.campaign is not None:
            self.campaign.refused(safekeeper_id, now)
            self._follow_campaign(self.campaign, now)

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

    def _on_vote(self, safekeeper_id: int, vote: VoteResponse, now: float) -> None:
        greeting = self.peers[safekeeper_id].greeting
        if greeting is not None and vote.promised.term > greeting.promised.term:
            self.roster.remember_promise(safekeeper_id, vote.promised)
        self._on_campaign_answer(safekeeper_id, vote, now)

    def _on_campaign_answer(self, safekeeper_id: int, message: AcceptorMessage, now: float) -> None:
        if self.campaign is not None:
            self.campaign.message(safekeeper_id, message, now)
            self._follow_campaign(self.campaign, now)

    def _on_append_response(self, safekeeper_id: int, response: AppendResponse, now: float) -> None:
        self.peers[safekeeper_id].log.reset()  # An accepted append: the same reason is logged again if it returns.
        self._on_term_message(safekeeper_id, response, now)
        self._follow_leadership(now)

    def _on_reconfigured(self, safekeeper_id: int, message: Reconfigured, now: float) -> None:
        self._on_term_message(safekeeper_id, message, now)
        self._follow_leadership(now)

    def _on_standby_feedback(self, safekeeper_id: int, feedback: StandbyFeedback, now: float) -> None:
        if self.leadership is not None:
            self.leadership.on_standby_feedback(safekeeper_id, feedback.standbys)

    def _on_term_message(self, safekeeper_id: int, message: AcceptorMessage, now: float) -> None:
        """Handle a message about a term; without one it is ignored: the next adoption requests it again."""
        if self.leadership is not None:
            self.leadership.message(safekeeper_id, message, now)
