"""The check of one primary, once a term is won: whether its WAL continues the donor's log (S9, S10).

First `plan_term` decides whether the timelines fit, and where the term begins. If it begins below the log's end, the
donor reports which record a cut there would lose; one that may have been acknowledged is not cut. Then the donor's
bytes and the primary's are compared, page by page, over the segment before the term's start, and further back until the
range contains a timed record: another record in its place would have another time. A primary that has recycled that WAL
is refused, unless the operator allows it: then the WAL of the last segment that it still has is compared, and if it has
none, its first record must link to the log's last one, which is checked once it streams.

The check changes nothing. No WAL of a primary that is refused is accepted.
"""

from safekeeper.base.errors import PrimaryRefused, RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    DIGEST_PAGE_SIZE,
    DigestRequest,
    DigestResponse,
    TailRequest,
    TailResponse,
    VoteResponse,
)
from walproxy.proposer.actions import Action, Level, Note, SendMessage, StartReplication
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.primary import LogPlan, PrimaryIdentity, first_difference, first_log_plan, plan_log
from walproxy.proposer.primary_stream import PrimaryStream, check_range, check_range_from
from walproxy.proposer.purpose import sealed_reason


def plan_term(vote: VoteResponse, primary: PrimaryIdentity) -> LogPlan:
    """Return where the next term begins.

    Args:
        vote: the donor's.

    Raises:
        PrimaryRefused: the primary's timelines do not continue the donor's log, or its own is sealed (S15).
    """
    if not vote.history:
        return first_log_plan(primary)
    sealed = sealed_reason(primary, vote.history[-1].floor)
    if sealed:
        raise PrimaryRefused(sealed)
    plan = plan_log(vote.history, vote.flush_lsn, primary)
    if plan.start_lsn < vote.wal_begin_lsn:
        raise PrimaryRefused(
            f"the primary's timeline {plan.tli} forked off at {format_lsn(plan.start_lsn)}, before the beginning "
            f"of the quorum's log at {format_lsn(vote.wal_begin_lsn)}: the two cannot be compared "
            "(see walproxy rebootstrap)"
        )
    return plan


def refusal_in_term(leadership: Leadership, primary: PrimaryIdentity, several_primaries: bool) -> str:
    """Return why a primary cannot be the one of a term that is led, nor of a later one; empty if it may be.

    One on another timeline requires a new term, unless it is one of `several_primaries` and fits no later log. Every
    later log contains the WAL that is committed in this term: a line of descent that diverges from that, or ends before
    it, diverges from every later log.
    """
    elected = leadership.elected
    if (primary.system_id, primary.segment_size) != (elected.system_id, elected.segment_size):
        return (
            f"the primary has system identifier {primary.system_id} and segment size {primary.segment_size}, "
            f"the quorum's log has {elected.system_id} and {elected.segment_size}: it is another PostgreSQL server"
        )
    sealed = sealed_reason(primary, elected.history[-1].floor)
    if sealed:
        return sealed
    if primary.tli != leadership.tli:
        if several_primaries and leadership.commit_lsn:
            try:
                plan_log(elected.history, leadership.commit_lsn, primary)
            except PrimaryRefused as refused:
                return str(refused)
    elif primary.flush_lsn < leadership.received_lsn:
        return (
            f"the primary's WAL ends at {format_lsn(primary.flush_lsn)}, but it has sent WAL up to "
            f"{format_lsn(leadership.received_lsn)}: it was restored from a backup or lost its disk"
        )
    return ""


def difference(begin_lsn: Lsn, ours: tuple[int, ...], theirs: tuple[int, ...], whose: str) -> str:
    """Return how the primary's bytes differ from `ours`, which are `whose`; empty if they do not."""
    lsn = first_difference(begin_lsn, ours, theirs)
    if lsn is None:
        return ""
    return (
        f"the primary's WAL differs from {whose} in the page at {format_lsn(lsn)}: it was restored from a backup, "
        "lost flushed WAL, or is another copy of this cluster"
    )


def recycled(lsn: Lsn) -> str:
    """Return why a primary without the WAL from `lsn` on cannot continue a log that ends there."""
    return (
        f"the primary has recycled the WAL at {format_lsn(lsn)}, where the quorum's log ends: "
        "its slot was dropped or invalidated (see walproxy rebootstrap)"
    )


class Verification:
    """The comparison of one primary with the log of one donor.

    Attributes:
        plan: where the term is to begin.
        is_passed: the term may be led.
        awaits_link: it may be led, but nothing was compared: the first record must link to the log's last one (S10).
        gives_up: the term begins at a fork that cuts what may have been acknowledged, as the operator allows.
        compared_bytes: the number of bytes to compare.
        refusal: why this primary cannot continue the log, empty if there is no known reason.
    """

    def __init__(
        self,
        leader_id: LeaderId,
        donor: int,
        vote: VoteResponse,
        plan: LogPlan,
        segment_size: int,
        stream: PrimaryStream,
        out: list[Action],
        *,
        cannot_cut: tuple[int, ...] | None = None,
        allow_data_loss: bool = False,
        allow_unverified: bool = False,
    ) -> None:
        self.plan = plan
        self.is_passed = self.awaits_link = self.gives_up = False
        self.refusal = ""
        self._leader_id = leader_id
        self._donor = donor
        self._segment_size = segment_size
        self._stream = stream
        self._out = out
        self._cannot_cut = cannot_cut
        self._allow_data_loss = allow_data_loss
        self._allow_unverified = allow_unverified
        self._history = vote.history
        # The range that is always compared; the donor reports from where on, which may be further back.
        self._check = self._last_segment = check_range(
            vote.history, vote.wal_begin_lsn, plan.start_lsn, plan.tli, segment_size
        )
        self._segment_is_gone = False
        self._donor_crcs: list[int] = []
        self._donor_crcs_end_lsn: Lsn = 0
        self._our_page_crcs: tuple[int, ...] | None = None
        self._their_page_crcs: tuple[int, ...] | None = None

    @property
    def compared_bytes(self) -> int:
        """The number of bytes of WAL to compare."""
        return self.plan.start_lsn - self._check.begin_lsn

    def begin(self) -> None:
        """Ask which record a cut would lose, if there is a cut (S9); else compare at once."""
        if self.plan.cuts:
            self._out.append(self._ask_for_tail())
        else:
            self._compare()

    def on_tail(self, response: TailResponse, possible_commit_lsn: Lsn) -> None:
        """Handle the donor's report of the records around the term's start.

        Args:
            possible_commit_lsn: M, the highest position that may have been committed (S9).
        """
        plan = self.plan
        if response.lsn != plan.start_lsn:
            return
        if self._segment_is_gone:
            self._out.append(
                self._stream.start(
                    StartReplication(
                        plan.start_lsn,
                        plan.tli,
                        plan.start_lsn,
                        plan.tli,
                        previous_record_lsn=response.last_record_lsn,
                        log_tail=response.log_tail,
                    )
                )
            )
            self.is_passed = self.awaits_link = True
        elif 0 < response.record_end_lsn <= possible_commit_lsn:
            if self._allow_data_loss and self._cannot_cut is not None:
                # They can skip WAL only when a quorum of others has adopted the term (5.4).
                if ids := ", ".join(map(str, self._cannot_cut)):
                    self.refusal = (
                        f"the primary's timeline {plan.tli} forked off at {format_lsn(response.lsn)}, and safekeepers "
                        f"{ids} retain no WAL from there: no quorum could cut its log there (start the other "
                        "safekeepers, or see walproxy rebootstrap)"
                    )
                else:
                    self.refusal = (
                        f"the primary's timeline {plan.tli} forked off at {format_lsn(response.lsn)}, and too few "
                        "safekeepers have voted for a commit quorum to cut its log there (start the other safekeepers)"
                    )
            elif self._allow_data_loss:
                self.gives_up = True
                self._out.append(
                    Note(
                        Level.WARNING,
                        f"WAL [{format_lsn(response.lsn)}, {format_lsn(possible_commit_lsn)}) may have been "
                        "acknowledged and is lost (--allow-data-loss): the primary's timeline "
                        f"{plan.tli} forked off before it",
                    )
                )
                self._compare()
            else:
                self.refusal = (
                    f"the primary's timeline {plan.tli} forked off at {format_lsn(response.lsn)}, but WAL up to "
                    f"{format_lsn(possible_commit_lsn)} may have been acknowledged: it lacks the record "
                    f"[{format_lsn(response.lsn)}, {format_lsn(response.record_end_lsn)}) "
                    "(--allow-data-loss gives it up)"
                )
        else:
            self._compare()

    def on_digest(self, response: DigestResponse) -> None:
        """Handle checksums of the donor, all or the next ones.

        Raises:
            RemoteProtocolError: they are not the requested ones.
        """
        start_lsn = self.plan.start_lsn
        if response.request_id != self._leader_id.term or self._our_page_crcs is not None:
            return  # of another campaign
        is_first = not self._donor_crcs
        begin_lsn = response.begin_lsn if is_first else self._donor_crcs_end_lsn
        pages = -(-(response.end_lsn - begin_lsn) // DIGEST_PAGE_SIZE)
        is_asked_for = (
            begin_lsn <= self._last_segment.begin_lsn and begin_lsn % self._segment_size == 0
            if is_first
            else response.begin_lsn == begin_lsn
        )
        if not is_asked_for or not begin_lsn < response.end_lsn <= start_lsn or len(response.page_crcs) != pages:
            raise RemoteProtocolError(
                f"{len(response.page_crcs)} checksums of [{format_lsn(response.begin_lsn)}, "
                f"{format_lsn(response.end_lsn)}) are not the requested ones"
            )
        if is_first:
            self._check = check_range_from(begin_lsn, self._history, start_lsn, self.plan.tli, self._segment_size)
            # WAL without such a record since the beginning of the log was never acknowledged to a commit.
            is_proof = begin_lsn <= response.timed_lsn < start_lsn or begin_lsn <= self._history[0].start_lsn
            if not is_proof and not self._allow_unverified:
                self.refusal = (
                    f"the quorum's log begins at {format_lsn(begin_lsn)} and has no record with a time below "
                    f"{format_lsn(start_lsn)}: that this is the primary which wrote it cannot be verified "
                    "(--allow-unverified-primary if it is, else see walproxy rebootstrap)"
                )
                return
        self._donor_crcs += response.page_crcs
        self._donor_crcs_end_lsn = response.end_lsn
        if response.end_lsn < start_lsn:
            self._out.append(
                SendMessage(
                    self._donor, DigestRequest(self._leader_id, self._leader_id.term, response.end_lsn, start_lsn)
                )
            )
            return
        self._our_page_crcs = tuple(self._donor_crcs)
        self._out.append(self._start_stream())

    def on_primary_checked(self, page_crcs: tuple[int, ...]) -> None:
        """Handle the checksums of the primary."""
        self._their_page_crcs = page_crcs
        self._judge()

    def on_segment_removed(self) -> None:
        """Handle a primary that has recycled WAL which is to be compared.

        Only its bytes prove that it is the right one (S10): without them the operator has to allow it. Then the last
        segment is compared. If that is recycled, too, and the log ends on a segment's border, the next segment
        suffices: its first record must link to the log's last one. Otherwise this primary cannot continue the log.
        """
        begin_lsn, start_lsn = self._check.begin_lsn, self.plan.start_lsn
        if begin_lsn < start_lsn and not self._allow_unverified:
            self.refusal = (
                f"the primary has recycled WAL of [{format_lsn(begin_lsn)}, {format_lsn(start_lsn)}), which is to be "
                "compared with the quorum's log: that it is the primary which wrote that log cannot be verified "
                "(--allow-unverified-primary if it is, else see walproxy rebootstrap)"
            )
        elif begin_lsn < self._last_segment.begin_lsn:
            assert self._our_page_crcs is not None  # the stream has begun with them
            skipped = (self._last_segment.begin_lsn - begin_lsn) // DIGEST_PAGE_SIZE
            self._check, self._our_page_crcs = self._last_segment, self._our_page_crcs[skipped:]
            self._out.append(self._start_stream())
        elif self.plan.start_lsn % self._segment_size or self._segment_is_gone:
            self.refusal = recycled(self.plan.start_lsn)
        else:
            self._segment_is_gone = True
            self._out.append(self._ask_for_tail())

    def _ask_for_tail(self) -> SendMessage:
        return SendMessage(self._donor, TailRequest(self._leader_id, 0, self.plan.start_lsn))

    def _compare(self) -> None:
        """Start the comparison of the primary's bytes before the term's start with the donor's."""
        plan, check = self.plan, self._check
        if check.begin_lsn < plan.start_lsn:
            term = self._leader_id.term
            request = DigestRequest(self._leader_id, term, check.begin_lsn, plan.start_lsn, back_to_timed=True)
            self._out.append(SendMessage(self._donor, request))
        else:
            self._our_page_crcs = self._their_page_crcs = ()
            self._out.append(self._start_stream())
            self._judge()

    def _start_stream(self) -> StartReplication:
        plan, check = self.plan, self._check
        return self._stream.start(StartReplication(check.begin_lsn, check.tli, plan.start_lsn, plan.tli))

    def _judge(self) -> None:
        if self._our_page_crcs is not None and self._their_page_crcs is not None:
            whose = f"safekeeper {self._donor}'s"
            self.refusal = difference(self._check.begin_lsn, self._our_page_crcs, self._their_page_crcs, whose)
            self.is_passed = not self.refusal
