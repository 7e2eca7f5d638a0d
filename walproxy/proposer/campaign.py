"""One attempt to win a term: the requests to the members, their answers, and the outcome.

First the pre-vote, then the vote, then the check of the primary (docs/design/protocol.md, steps 2 to 4;
verification.py). A campaign begins when a quorum and a primary are connected, and ends with its `outcome`, on which the
proposer acts.
"""

from collections.abc import Iterable
from enum import Enum

import msgspec

from safekeeper.base.errors import Fenced, PrimaryRefused, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.control_state import TERM_MAX, LeaderId
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import (
    AcceptorMessage,
    DigestResponse,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    TailPreVoteRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import last_term, last_tli
from walproxy.proposer.actions import Action, Disconnect, IdentifyPrimary, Level, Note
from walproxy.proposer.election import (
    check_vote,
    choose_donor,
    collect_tli_histories,
    extend_history,
    highest_possible_commit,
    shorten_history,
)
from walproxy.proposer.phase import Candidacy, Phase, ProposerConfig, Stage
from walproxy.proposer.primary import LogPlan, PrimaryIdentity
from walproxy.proposer.primary_stream import PrimaryStream
from walproxy.proposer.purpose import Readmit
from walproxy.proposer.roster import Cluster, Roster, a_member_of, bootstrap_of, highest_promise, voters_of
from walproxy.proposer.verification import Verification, plan_term

# The minimum rate at which WAL is compared.
VERIFIED_BYTES_PER_S = 8 << 20


class Outcome(Enum):
    """The result of the answers so far."""

    OPEN = "open"  # more answers may decide it
    WON = "won"  # a quorum agrees
    LOST = "lost"  # a quorum can no longer agree


class Campaign:
    """The state of one attempt.

    Attributes:
        outcome: WON once the term may be led, LOST once it will not be.
        reason: why it is lost, empty if that need not be logged.
        error: the error that ends the process: this primary is refused, or this proposer is fenced.
        cluster: the cluster whose members are asked.
        primary: its identity, as received last; None for a tail term, which needs none (step 12).
        is_tail: whether this is an attempt to win a tail term.
        asked: the members that are asked, or were: their data folders, by safekeeper id.
        leader_id: the candidate that the votes are for; None during the pre-vote.
        refusals: the members that refused, or are disconnected.
        quorum_at: when a quorum had voted.
        votes: the votes that were granted, by data folder.
        donor: the safekeeper id of the voter with the newest log.
        plan: where the term is to begin; None until the primary is identified again after the votes.
        verification: the check of the primary, None before it and if the primary need not be checked again.
    """

    def __init__(
        self,
        config: ProposerConfig,
        stage: Stage,
        roster: Roster,
        stream: PrimaryStream,
        candidacy: Candidacy,
        cluster: Cluster,
        primary: PrimaryIdentity | None,
        now: float,
        out: list[Action],
    ) -> None:
        self.outcome = Outcome.OPEN
        self.reason = ""
        self.error: WalproxyError | None = None
        self.cluster = cluster
        self.primary = primary
        self.is_tail = primary is None
        # Without a primary a member's greeting names the server; that member may be gone when a quorum has voted.
        self._server = primary or a_member_of(roster.peers, cluster)
        self.asked = voters_of(roster.peers, cluster)
        self.leader_id: LeaderId | None = None
        self.pre_votes: dict[int, PreVoteResponse] = {}
        self.votes: dict[Identity, VoteResponse] = {}
        self.refusals: set[int] = set()
        self.quorum_at: float | None = None
        self.donor = 0
        self.plan: LogPlan | None = None
        self.verification: Verification | None = None
        self._config = config
        self._stage = stage
        self._out = out
        self._roster = roster
        self._stream = stream
        self._candidacy = candidacy
        self._round_began_at = now

    @property
    def phase(self) -> Phase:
        """PRE_VOTING, VOTING or VERIFYING."""
        return self._stage.phase

    @property
    def _seals(self) -> bool:
        """Whether it asks as a proxy does, which deposes a leader without a primary (13.1)."""
        return self.is_tail and not isinstance(self._candidacy.purpose, Readmit | None)

    @property
    def membership(self) -> Membership:
        """The membership whose quorum decides."""
        return self.cluster.membership

    @property
    def donor_vote(self) -> VoteResponse:
        """The donor's vote, which describes the log."""
        return self.votes[self.asked[self.donor]]

    @property
    def awaits_primary(self) -> bool:
        """Whether the identity of the primary is awaited, after the votes."""
        return self.phase is Phase.VERIFYING and self.plan is None

    @property
    def awaits_link(self) -> bool:
        """Whether the term is won without a comparison: the primary's first record must link to the log (S10)."""
        return self.verification is not None and self.verification.awaits_link

    def begin(self, now: float) -> None:
        """Send the requests for pre-votes."""
        if self.is_tail and not self._seals:
            for safekeeper_id in sorted(self.asked):
                self._out.append(self._roster.ask(safekeeper_id, TailPreVoteRequest(self._config.proposer_id), now))
            return
        for safekeeper_id in sorted(self.asked):
            # Once: two proposers that depose each other repeatedly would win terms indefinitely.
            takeover = self._config.takeover and not self._candidacy.was_elected
            request = PreVoteRequest(self._config.proposer_id, takeover)
            self._out.append(self._roster.ask(safekeeper_id, request, now))

    def message(self, safekeeper_id: int, message: AcceptorMessage, now: float) -> None:
        """Handle the answer of a safekeeper; ignore one to another campaign.

        Raises:
            RemoteProtocolError: the answer is invalid.
        """
        verification = self.verification
        if isinstance(message, PreVoteResponse):
            if self.phase is Phase.PRE_VOTING and safekeeper_id in self.asked:
                self.pre_votes[safekeeper_id] = message
                self._judge(now)
        elif isinstance(message, VoteResponse):
            is_asked = self.phase is Phase.VOTING and safekeeper_id in self.asked
            if is_asked and message.leader_id == self.leader_id:
                if message.granted:
                    check_vote(message)
                    self.votes[self.asked[safekeeper_id]] = message
                else:
                    self.refusals.add(safekeeper_id)
                self._judge(now)
        elif verification is not None and safekeeper_id == self.donor:
            if isinstance(message, DigestResponse):
                verification.on_digest(message)
            elif isinstance(message, TailResponse):
                verification.on_tail(message, self.possible_commit_lsn())
            self._follow_verification()

    def greeted(self, safekeeper_id: int, now: float) -> None:
        """Handle a greeting: request the vote of that safekeeper if voting has begun."""
        if self.phase is Phase.VOTING:
            self._ask_for_vote(safekeeper_id, now)

    def refused(self, safekeeper_id: int, now: float) -> None:
        """Handle a refusal to vote."""
        self.refusals.add(safekeeper_id)
        if self.phase is not Phase.VERIFYING:
            self._judge(now)

    def disconnected(self, safekeeper_id: int, now: float) -> None:
        """Handle the end of a connection: the vote that was received on it no longer counts."""
        if self.phase is not Phase.VERIFYING:
            if safekeeper_id in self.asked:
                self.votes.pop(self.asked[safekeeper_id], None)
            self.refused(safekeeper_id, now)
        elif safekeeper_id == self.donor:
            self._lose(f"donor {safekeeper_id} is disconnected")

    def donor_refused(self, safekeeper_id: int, reason: str) -> None:
        """Handle a refusal: without the donor the primary cannot be checked."""
        if self.phase is Phase.VERIFYING and safekeeper_id == self.donor:
            self._lose(f"donor {safekeeper_id} refuses: {reason}")

    def tick(self, now: float) -> None:
        """End the vote, or give up, when its time is over."""
        timing = self._config.timing
        verifying = self.phase is Phase.VERIFYING
        if self.phase is Phase.VOTING and self.membership.has_elect_quorum(self.votes):
            self._judge(now)
        elif now - self._round_began_at > (self._verify_timeout_s() if verifying else timing.vote_timeout_s):
            self._lose(f"{'the primary or the donor' if verifying else 'a quorum'} did not reply before the timeout")

    def primary_identified(self) -> None:
        """Handle the identity of the primary after the votes: find where the term begins, and start the check."""
        assert self.leader_id is not None  # a vote was asked for
        vote = self.donor_vote
        try:
            assert self.primary is not None  # by the callers
            plan = self.plan = plan_term(vote, self.primary)
        except PrimaryRefused as refused:
            self._fail(refused)
            return
        self._note_won(plan)
        segment_size = self.primary.segment_size
        self.verification = Verification(
            self.leader_id,
            self.donor,
            vote,
            plan,
            segment_size,
            self._stream,
            self._out,
            cannot_cut=self._cannot_cut(plan.start_lsn),
            allow_data_loss=self._config.allow_data_loss,
            allow_unverified=self._config.allow_unverified_primary,
        )
        self.verification.begin()
        self._follow_verification()

    def primary_checked(self, page_crcs: tuple[int, ...]) -> None:
        """Handle the checksums of the primary (S10)."""
        if self.verification is not None:
            self.verification.on_primary_checked(page_crcs)
            self._follow_verification()

    def slot_in_use(self, now: float) -> None:
        """Handle a primary that waits for its slot: another term would find the slot in use, too (4.8)."""
        if self.phase is Phase.VERIFYING:
            self._round_began_at = now

    def segment_removed(self) -> None:
        """Handle a primary that has recycled the segment to compare (S10)."""
        if self.verification is not None:
            self.verification.on_segment_removed()
            self._follow_verification()

    def pre_vote_outcome(self) -> Outcome:
        """Return whether a quorum would let this proposer be elected (step 2)."""
        granted = {i for i, response in self.pre_votes.items() if response.granted}
        if self._has_quorum(granted):
            return Outcome.WON
        silent = self.asked.keys() - self.pre_votes.keys() - self.refusals
        return Outcome.OPEN if self._has_quorum(granted | silent) else Outcome.LOST

    def rivals(self) -> dict[int, str]:
        """Return, by member, the other proposer that it considers alive."""
        own = ("", self._config.proposer_id)
        return {i: r.live_proposer_id for i, r in self.pre_votes.items() if r.live_proposer_id not in own}

    def vote_outcome(self, now: float) -> Outcome:
        """Return whether a quorum has promised (step 3).

        With a quorum it stays open for a short time in which others may still answer: their votes make M exact (S9),
        and the donor may be a better one.
        """
        if self.membership.has_elect_quorum(self.votes):
            if self.quorum_at is None:
                self.quorum_at = now
            all_answered = self.asked.keys() <= {safekeeper_id for safekeeper_id, _ in self.votes} | self.refusals
            grace_is_over = now - self.quorum_at >= self._config.timing.vote_grace_s
            return Outcome.WON if all_answered or grace_is_over else Outcome.OPEN
        return Outcome.OPEN if self._has_quorum(self.asked.keys() - self.refusals) else Outcome.LOST

    def _has_quorum(self, ids: Iterable[int]) -> bool:
        """Return whether these safekeepers, all of which were asked, are an elect quorum."""
        return self.membership.has_elect_quorum(self.asked[safekeeper_id] for safekeeper_id in ids)

    def possible_commit_lsn(self) -> Lsn:
        """Return M, the highest position that may have been committed (S9)."""
        past = self._candidacy
        donor, membership = self.asked[self.donor], self.membership
        return highest_possible_commit(self.votes, donor, membership, past.held_term, past.held_commit_lsn)

    def _cannot_cut(self, lsn: Lsn) -> tuple[int, ...] | None:
        """Return the voters without the WAL at the cut if the other voters are no commit quorum; else None.

        The others can cut their logs there. When so many hold the new log, it is committed, and the rest drop theirs.
        Possibly no voter lacks it: a commit quorum may be larger than the elect quorum that has voted.
        """
        lacking = {voter for voter, vote in self.votes.items() if vote.wal_begin_lsn > lsn}
        if self.membership.has_commit_quorum(self.votes.keys() - lacking):
            return None
        return tuple(sorted(safekeeper_id for safekeeper_id, _ in lacking))

    def elected(self) -> Elected:
        """Return the first message to the members of the term that is won (step 5)."""
        assert self.plan is not None and self.leader_id is not None  # by the outcome
        vote = self.donor_vote
        source = self.primary or self._server
        assert source is not None  # a cluster is found by the greeting of a member
        gives_up = self.verification is not None and self.verification.gives_up
        purpose = self._candidacy.purpose if self.is_tail else None
        history, forgotten_term = shorten_history(
            extend_history(vote.history, self.plan, self.leader_id, gives_up, purpose),
            self.votes,
            self.asked[self.donor],
            self.membership,
        )
        return Elected(
            self.leader_id,
            self.cluster.id,
            source.system_id,
            source.segment_size,
            source.server_version,
            msgspec.structs.replace(self.membership, author=self.leader_id.term),
            history,
            collect_tli_histories(
                history, () if self.primary is None else self.primary.tli_histories, vote.tli_histories
            ),
            vote.wal_begin_lsn if vote.history else self.plan.start_lsn,
            0,
            # WAL that a fork cuts is no longer committed (S9).
            min(self.plan.start_lsn, vote.commit_lsn),
            forgotten_term,
        )

    def _judge(self, now: float) -> None:
        if self.phase is Phase.PRE_VOTING:
            self._judge_pre_votes(now)
            return
        self._drop_doubted()
        outcome = self.vote_outcome(now)
        if outcome is Outcome.WON:
            self._elect()
        elif outcome is Outcome.LOST:
            self._lose("a quorum did not vote for it")

    def _drop_doubted(self) -> None:
        """Count no vote of a data folder of which more is known than it has: it may be an older copy (S8e).

        Another voter may have reported that only now. The next greeting shows whether it is one.
        """
        for safekeeper_id, incarnation in list(self.votes):
            if self._roster.is_doubted(safekeeper_id, self.cluster.id):
                del self.votes[safekeeper_id, incarnation]
                self.refusals.add(safekeeper_id)
                reason = "more is known of its data folder than it has: it may be an older copy"
                self._out.append(Disconnect(safekeeper_id, reason))

    def _judge_pre_votes(self, now: float) -> None:
        outcome, rivals = self.pre_vote_outcome(), self.rivals()
        runs = ", ".join(sorted({run[:8] for run in rivals.values()}))
        if outcome is Outcome.WON:
            self._ask_for_votes(now)
        elif self._has_quorum(rivals) and self._candidacy.has_led:
            self._fail(Fenced(f"a majority of safekeepers follows another proxy (run {runs})"))
        elif outcome is Outcome.LOST:
            if rivals and not self._candidacy.is_spare and (self._seals or not self.is_tail):
                self._candidacy.is_spare = True
                text = f"another proxy serves (run {runs}): this one is a spare"
                if self._seals:
                    text = f"another proxy serves (run {runs}): nothing is sealed"
                self._out.append(Note(Level.INFO, text))
            self._lose("")

    def _ask_for_votes(self, now: float) -> None:
        """Request the next term: above every reported promise and every term that this proposer has used (step 1)."""
        candidacy, peers = self._candidacy, self._roster.peers
        highest_term = max(candidacy.term, highest_promise(peers))
        if highest_term >= TERM_MAX:
            self._lose(f"term {highest_term} was promised, the highest possible one")
            return
        candidacy.term = highest_term + 1
        candidacy.is_spare = False
        self.leader_id = LeaderId(candidacy.term, self._config.proposer_id)
        self._round_began_at = now
        # Members that have greeted since the pre-vote are asked too: with more votes M is more exact (S9). Others are
        # asked when they greet.
        self.asked.update(voters_of(peers, self.cluster))
        self.refusals = {i for i in self.asked if peers[i].greeting is None}
        self._stage.enter(Phase.VOTING)
        for safekeeper_id in sorted(self.asked.keys() - self.refusals):
            self._ask_for_vote(safekeeper_id, now)

    def _ask_for_vote(self, safekeeper_id: int, now: float) -> None:
        greeting = self._roster.peers[safekeeper_id].greeting
        assert self.leader_id is not None and greeting is not None  # by the callers
        identity = voters_of(self._roster.peers, self.cluster).get(safekeeper_id)
        if identity is None:
            return
        self.asked[safekeeper_id] = identity
        self.refusals.discard(safekeeper_id)
        if greeting.membership is None:
            # It missed the end of the bootstrap; the membership lists it.
            server = self.primary or self._server
            assert server is not None  # a cluster is found by the greeting of a member
            self._out.append(self._roster.ask(safekeeper_id, bootstrap_of(self.cluster, server), now))
        request = VoteRequest(self.leader_id, self.membership.generation, self.cluster.id, self.membership)
        self._out.append(self._roster.ask(safekeeper_id, request, now))

    def _elect(self) -> None:
        """Choose the donor, since a quorum has promised, and identify the primary again."""
        self._stage.enter(Phase.VERIFYING)
        self.donor, _ = choose_donor(self.votes)
        vote, stream = self.donor_vote, self._stream
        if self.is_tail:
            self._take_whole_log(vote)
            return
        self._candidacy.was_elected = True
        if not stream.is_open:
            # Its identity from before the votes may be older than they are.
            stream.identities_due += 1
            self._out.append(IdentifyPrimary())
            return
        same_log = stream.is_checked and self._has_written(vote) and vote.history[-1].tli == stream.tli
        if same_log and stream.window_begin_lsn <= vote.flush_lsn <= stream.received_lsn:
            # The bytes before the term's start were received in this COPY: it continues without a check.
            self.plan = LogPlan(vote.flush_lsn, stream.tli, cuts=False)
            self._note_won(self.plan)
            self.outcome = Outcome.WON
        else:
            self._lose("another proposer has written to the log, so the primary is checked again")

    def _note_won(self, plan: LogPlan) -> None:
        assert self.leader_id is not None  # a vote was asked for
        self._out.append(
            Note(
                Level.INFO,
                f"term {self.leader_id.term}: elected by {len(self.votes)} of {len(self.membership.members)}, "
                f"donor {self.donor}, begins at {format_lsn(plan.start_lsn)} on timeline {plan.tli}",
                "term-won",
                self.leader_id.term,
            )
        )

    def _take_whole_log(self, vote: VoteResponse) -> None:
        """Begin a tail term where the donor's log ends: nothing of it is cut (S9a), and no primary is compared."""
        tli, purpose = last_tli(vote.history, vote.flush_lsn), self._candidacy.purpose
        if not tli:
            self._lose("the log has no WAL yet")
            return
        if purpose is not None:
            is_own = last_term(vote.history) in self._candidacy.served_terms
            obstacle = purpose.obstacle(vote.history[-1], tli, is_own=is_own)
            if obstacle is not None:
                self._candidacy.obstacle = obstacle
                self._lose(obstacle.reason)
                return
            if not is_own:
                self._candidacy.given_before = vote.history[-1].given
        self.plan = LogPlan(vote.flush_lsn, tli, cuts=False)
        self.outcome = Outcome.WON

    def _has_written(self, vote: VoteResponse) -> bool:
        """Return whether this log ends in the last term of this proposer: no other one has written to it since."""
        return last_term(vote.history) == self._candidacy.held_term

    def _verify_timeout_s(self) -> float:
        """Return the timeout of the primary's check, in seconds: it grows with the WAL to compare."""
        compared_bytes = self.verification.compared_bytes if self.verification is not None else 0
        return self._config.timing.verify_timeout_s + compared_bytes / VERIFIED_BYTES_PER_S

    def _follow_verification(self) -> None:
        assert self.verification is not None  # by the callers
        if self.verification.refusal:
            self._fail(PrimaryRefused(self.verification.refusal))
        elif self.verification.is_passed:
            self.outcome = Outcome.WON

    def _fail(self, error: WalproxyError) -> None:
        self.outcome, self.error = Outcome.LOST, error

    def _lose(self, reason: str) -> None:
        self.outcome, self.reason = Outcome.LOST, reason
