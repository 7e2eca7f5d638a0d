"""One attempt to win a term, as docs/design/protocol.md states it (steps 2 to 4, 12, 13).

Part of the reference of the proposer (proposer.py).

Theory of operation. Each event is a method. It appends the actions that follow to `expected`, and sets `outcome` as
soon as the answers decide it. Nothing of an attempt is left open by the protocol but when it begins, so all of its
messages are compared as they are.
"""

from enum import Enum

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import (
    AcceptorMessage,
    DigestRequest,
    DigestResponse,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    TailPreVoteRequest,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from tests.simulation.references.acceptor.histories import last_term
from tests.simulation.references.proposer.actions import event_of
from tests.simulation.references.proposer.ballots import (
    Beginning,
    Refused,
    beginning_of_term,
    can_commit,
    can_elect,
    donor_of,
    history_of_term,
    is_admitted,
    possibly_committed,
    segment_before,
    tli_histories_of,
    tli_of_comparison,
    tli_of_log,
)
from tests.simulation.references.proposer.roster import Cluster, Known, ReferenceRoster, Stream
from walproxy.proposer.actions import Action, Disconnect, IdentifyPrimary, SendMessage, StartReplication
from walproxy.proposer.phase import Phase, ProposerConfig
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.purpose import Readmit


class Outcome(Enum):
    """What the answers have decided."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"
    REFUSED = "refused"  # the primary cannot continue the log
    FENCED = "fenced"  # 2.6


class ReferenceCampaign:
    """The state of one attempt.

    Attributes:
        outcome, phase: how far it is.
        cluster: whose members are asked.
        primary: as it was identified last; None in an attempt to win a tail term.
        asked: the data folders that are asked, by safekeeper.
        leader_id: of the term that is asked for; None before the votes.
        votes: those that count, by data folder.
        donor: the safekeeper whose log was chosen (4.1).
        beginning: where the term begins; None before that is known.
        awaits_link: 4.7: the first record of the primary must link to the log's last one.
        phase_after: the phase of the proposer after the present event: how long it awaits answers is its choice.
    """

    def __init__(
        self,
        config: ProposerConfig,
        roster: ReferenceRoster,
        stream: Stream,
        known: Known,
        cluster: Cluster,
        primary: PrimaryIdentity | None,
        expected: list[Action],
    ) -> None:
        self.outcome = Outcome.OPEN
        self.phase = Phase.PRE_VOTING
        self.cluster = cluster
        self.primary = primary
        self.is_tail = primary is None
        # 12.3: what a member's greeting says of the server.
        self._member = next(each for _, each in sorted(roster.greetings().items()) if each.cluster_id == cluster.id)
        self.asked = roster.voters(cluster)
        self.leader_id: LeaderId | None = None
        self.votes: dict[Identity, VoteResponse] = {}
        self.donor = 0
        self.beginning: Beginning | None = None
        self.awaits_link = False
        self.phase_after = Phase.PRE_VOTING
        self._config = config
        self._roster = roster
        self._stream = stream
        self._known = known
        self._expected = expected
        self._pre_votes: dict[int, PreVoteResponse] = {}
        self._out: set[int] = set()
        self._check: tuple[int, int] = (0, 0)
        self._last_check: tuple[int, int] = (0, 0)
        self._crcs: tuple[int, ...] = ()
        self._crcs_end_lsn = 0
        self._has_crcs = False
        self._segment_is_gone = False
        self._gives_up = False

    @property
    def _vote(self) -> VoteResponse:
        return self.votes[self.asked[self.donor]]

    def begin(self) -> None:
        """2.1, 2.4, 12.2, 13.1."""
        run, config = self._config.proposer_id, self._config
        for safekeeper_id in sorted(self.asked):
            if self.is_tail and isinstance(self._known.purpose, Readmit | None):
                self._send(safekeeper_id, TailPreVoteRequest(run))
            else:
                self._send(safekeeper_id, PreVoteRequest(run, config.takeover and not self._known.was_elected))

    def message(self, safekeeper_id: int, message: AcceptorMessage) -> None:
        """An answer."""
        if isinstance(message, PreVoteResponse) and self.phase is Phase.PRE_VOTING and safekeeper_id in self.asked:
            self._pre_votes[safekeeper_id] = message
            self._judge()
        elif isinstance(message, VoteResponse) and self.phase is Phase.VOTING:
            if safekeeper_id in self.asked and message.leader_id == self.leader_id:
                if message.granted:
                    self.votes[self.asked[safekeeper_id]] = message
                else:
                    self._out.add(safekeeper_id)
                self._judge()
        elif self.phase is Phase.VERIFYING and self.beginning is not None and safekeeper_id == self.donor:
            if isinstance(message, DigestResponse):
                self._donor_has(message)
            elif isinstance(message, TailResponse) and message.lsn == self.beginning.lsn:
                self._donor_shows_tail(message)

    def greeted(self, safekeeper_id: int) -> None:
        """3.6: a voter that greets while votes are gathered is asked, too."""
        if self.phase is Phase.VOTING:
            self._ask(safekeeper_id)

    def refused(self, safekeeper_id: int) -> None:
        """A refusal to vote."""
        self._out.add(safekeeper_id)
        if self.phase is not Phase.VERIFYING:
            self._judge()

    def disconnected(self, safekeeper_id: int) -> None:
        """3.6, 4.8."""
        if self.phase is not Phase.VERIFYING:
            if safekeeper_id in self.asked:
                self.votes.pop(self.asked[safekeeper_id], None)
            self.refused(safekeeper_id)
        elif safekeeper_id == self.donor:
            self.outcome = Outcome.LOST

    def donor_refused(self, safekeeper_id: int) -> None:
        """4.8."""
        if self.phase is Phase.VERIFYING and safekeeper_id == self.donor:
            self.outcome = Outcome.LOST

    def tick(self) -> None:
        """4.1: an attempt is given up, unless a quorum has voted."""
        if self.phase is Phase.VOTING and can_elect(self.cluster.membership, self.votes):
            self._judge()
        elif self.phase is not self.phase_after:
            self.outcome = Outcome.LOST

    def _elects(self, safekeeper_ids: set[int]) -> bool:
        return can_elect(self.cluster.membership, {self.asked[i] for i in safekeeper_ids if i in self.asked})

    def _judge(self) -> None:
        if self.phase is Phase.PRE_VOTING:
            self._judge_pre_votes()
            return
        for folder in list(self.votes):
            if self._roster.is_doubted(folder[0], self.cluster.id):  # 11.5
                del self.votes[folder]
                self._out.add(folder[0])
                self._expected.append(Disconnect(folder[0], ""))
        if can_elect(self.cluster.membership, self.votes):
            silent = self.asked.keys() - {safekeeper_id for safekeeper_id, _ in self.votes} - self._out
            if not silent or self.phase_after is not Phase.VOTING:
                self._choose_donor()
        elif not self._elects(self.asked.keys() - self._out):
            self.outcome = Outcome.LOST

    def _judge_pre_votes(self) -> None:
        """2.5, 2.6."""
        answers = self._pre_votes
        granted = {i for i, answer in answers.items() if answer.granted}
        rivals = {i for i, a in answers.items() if a.live_proposer_id not in ("", self._config.proposer_id)}
        if self._elects(granted):
            self._ask_for_votes()
        elif self._elects(rivals) and self._known.has_led:
            self.outcome = Outcome.FENCED
        elif not self._elects(self.asked.keys() - (answers.keys() - granted) - (self._out - granted)):
            self.outcome = Outcome.LOST

    def _ask_for_votes(self) -> None:
        """3.1, 3.2."""
        self._known.requested_term = 1 + max(self._known.requested_term, *self._roster.promised_terms(), 0)
        self.leader_id = LeaderId(self._known.requested_term, self._config.proposer_id)
        self.phase = Phase.VOTING
        self.asked.update(self._roster.voters(self.cluster))
        self._out = {i for i in self.asked if self._roster.peers[i].greeting is None}
        for safekeeper_id in sorted(self.asked.keys() - self._out):
            self._ask(safekeeper_id)

    def _ask(self, safekeeper_id: int) -> None:
        folder = self._roster.voters(self.cluster).get(safekeeper_id)
        greeting = self._roster.peers[safekeeper_id].greeting
        if folder is None or greeting is None or self.leader_id is None:
            return
        self.asked[safekeeper_id] = folder
        self._out.discard(safekeeper_id)
        if greeting.membership is None:  # 0.9, 12.3
            self._send(safekeeper_id, self.cluster.bootstrap(self.primary or self._member))
        membership = self.cluster.membership
        self._send(safekeeper_id, VoteRequest(self.leader_id, membership.generation, self.cluster.id, membership))

    def _choose_donor(self) -> None:
        """4.1, 4.2, 12.3, 13.3."""
        self.phase = Phase.VERIFYING
        self.donor, _ = donor_of(self.votes)
        vote, stream = self._vote, self._stream
        if self.is_tail:
            tli = tli_of_log(vote.history, vote.flush_lsn)
            admitted = not tli or is_admitted(self._known.purpose, vote, self._known.served_terms)
            self._known.is_done = self._known.is_done or not admitted
            if not tli or not admitted:
                self.outcome = Outcome.LOST
            else:
                self.beginning, self.outcome = Beginning(vote.flush_lsn, tli, False), Outcome.WON
            return
        self._known.was_elected = True
        if not stream.is_open:
            stream.identities_due += 1
            self._expected.append(IdentifyPrimary())
            return
        goes_on = (
            stream.is_checked
            and last_term(vote.history) == self._known.held[0]
            and vote.history[-1].tli == stream.tli
            and stream.window_begin_lsn <= vote.flush_lsn <= stream.received_lsn
        )
        if goes_on:
            self._send_won()
            self.beginning, self.outcome = Beginning(vote.flush_lsn, stream.tli, False), Outcome.WON
        else:
            self.outcome = Outcome.LOST

    @property
    def awaits_primary(self) -> bool:
        """Whether the primary is to be identified after the votes."""
        return self.phase is Phase.VERIFYING and self.beginning is None

    def identified(self, primary: PrimaryIdentity) -> None:
        """4.3, 4.4; and the donor is asked."""
        vote = self._vote
        try:
            self.beginning = beginning_of_term(vote, primary)
        except Refused:
            self.outcome = Outcome.REFUSED
            return
        self._send_won()
        lsn, tli, cuts = self.beginning
        self._check = (lsn, tli)
        if vote.history and lsn > vote.wal_begin_lsn:
            begin_lsn = segment_before(lsn, primary.segment_size)
            self._check = begin_lsn, tli_of_comparison(vote.history, begin_lsn, lsn, tli, primary.segment_size)
        self._last_check = self._check
        if cuts:
            self._ask_tail()
        else:
            self._compare()

    def _send_won(self) -> None:
        """Step 15: an event."""
        assert self.leader_id is not None
        self._expected.append(event_of("term-won", self.leader_id.term))

    def _ask_tail(self) -> None:
        assert self.leader_id is not None and self.beginning is not None
        self._send(self.donor, TailRequest(self.leader_id, 0, self.beginning.lsn))

    def _compare(self) -> None:
        assert self.leader_id is not None and self.beginning is not None
        begin_lsn, lsn = self._check[0], self.beginning.lsn
        if begin_lsn < lsn:
            self._send(self.donor, DigestRequest(self.leader_id, self.leader_id.term, begin_lsn, lsn, True))
        else:
            self._start()
            self.outcome = Outcome.WON

    def _start(self, previous: TailResponse | None = None) -> None:
        assert self.beginning is not None
        lsn, tli = self.beginning.lsn, self.beginning.tli
        check = (lsn, tli) if previous is not None else self._check
        action = StartReplication(
            *check,
            lsn,
            tli,
            previous_record_lsn=previous.last_record_lsn if previous is not None else None,
        )
        self._expected.append(action)
        self._stream.start(action)

    def _donor_shows_tail(self, message: TailResponse) -> None:
        """4.5; in the case of 4.7 what the primary's first record must link to."""
        assert self.beginning is not None
        if self._segment_is_gone:
            self._start(message)
            self.awaits_link, self.outcome = True, Outcome.WON
            return
        limit_lsn = possibly_committed(self.votes, self.cluster.membership, self._known.held)
        if not 0 < message.record_end_lsn <= limit_lsn:
            self._compare()
            return
        can_cut = {folder for folder, vote in self.votes.items() if vote.wal_begin_lsn <= self.beginning.lsn}
        if not self._config.allow_data_loss or not can_commit(self.cluster.membership, can_cut):
            self.outcome = Outcome.REFUSED
        else:
            self._gives_up = True
            self._compare()

    def _donor_has(self, message: DigestResponse) -> None:
        """4.6."""
        assert self.leader_id is not None and self.beginning is not None and self.primary is not None
        lsn, tli, _ = self.beginning
        if message.request_id != self.leader_id.term or self._has_crcs:
            return
        history = self._vote.history
        if not self._crcs:
            begin_lsn = message.begin_lsn
            size = self.primary.segment_size
            self._check = begin_lsn, tli_of_comparison(history, begin_lsn, lsn, tli, size)
            is_proof = begin_lsn <= message.timed_lsn < lsn or begin_lsn <= history[0].start_lsn
            if not is_proof and not self._config.allow_unverified_primary:
                self.outcome = Outcome.REFUSED
                return
        self._crcs += message.page_crcs
        self._crcs_end_lsn = message.end_lsn
        if message.end_lsn < lsn:
            self._send(self.donor, DigestRequest(self.leader_id, self.leader_id.term, message.end_lsn, lsn))
        else:
            self._has_crcs = True
            self._start()

    def is_unasked(self, message: DigestResponse) -> bool:
        """4.6: whether these checksums are not those that the donor was asked for: they break the protocol."""
        if self.phase is not Phase.VERIFYING or self.beginning is None or self.leader_id is None or self._has_crcs:
            return False
        if message.request_id != self.leader_id.term:
            return False
        begin_lsn, end_lsn = message.begin_lsn, message.end_lsn
        if self._crcs:
            is_next = begin_lsn == self._crcs_end_lsn
        else:
            size = self.primary.segment_size if self.primary is not None else 1
            is_next = begin_lsn <= self._last_check[0] and not begin_lsn % size
        pages = [*range(begin_lsn, end_lsn, 8192)]
        return not (is_next and begin_lsn < end_lsn <= self.beginning.lsn and len(message.page_crcs) == len(pages))

    def checked(self, page_crcs: tuple[int, ...]) -> None:
        """4.6: the bytes of the primary."""
        if self._has_crcs:
            self.outcome = Outcome.WON if page_crcs == self._crcs else Outcome.REFUSED

    def segment_removed(self) -> None:
        """4.7."""
        if self.beginning is None or self.primary is None:
            return  # It was the COPY of an earlier term.
        begin_lsn, lsn, size = self._check[0], self.beginning.lsn, self.primary.segment_size
        if begin_lsn < lsn and not self._config.allow_unverified_primary:
            self.outcome = Outcome.REFUSED
        elif begin_lsn < self._last_check[0]:
            self._crcs = self._crcs[(self._last_check[0] - begin_lsn) // 8192 :]
            self._check = self._last_check
            self._start()
        elif lsn % size or self._segment_is_gone:
            self.outcome = Outcome.REFUSED
        else:
            self._segment_is_gone = True
            self._ask_tail()

    def elected(self) -> Elected:
        """The first `Elected` of the term."""
        assert self.leader_id is not None and self.beginning is not None
        vote, lsn = self._vote, self.beginning.lsn
        source = self.primary or self._member
        membership = self.cluster.membership
        history, forgotten = history_of_term(
            self.votes,
            membership,
            self.beginning,
            self.leader_id.term,
            self._gives_up,
            self._known.purpose if self.is_tail else None,
        )
        of_primary = self.primary.tli_histories if self.primary is not None else ()
        return Elected(
            self.leader_id,
            self.cluster.id,
            source.system_id,
            source.segment_size,
            source.server_version,
            self.cluster.under(self.leader_id.term).membership,
            history,
            tli_histories_of(history, of_primary, vote.tli_histories),
            vote.wal_begin_lsn if vote.history else lsn,
            0,
            min(lsn, vote.commit_lsn),
            forgotten,
        )

    def _send(self, safekeeper_id: int, message: object) -> None:
        self._expected.append(SendMessage(safekeeper_id, message))  # type: ignore[arg-type]
