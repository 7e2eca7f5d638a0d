"""May this primary go on where the donor's log ends? The check of one primary, once a term is won (S9, S10).

First `plan_term`: do the timelines fit, and where does the term begin? If it begins below the log's end, the donor
says which record a cut there would lose; one that may have been acknowledged is not cut. Then the donor's bytes and the
primary's are compared, page by page, over the segment before the term's start. Where the primary has recycled that
segment, its first record must link to the log's last one instead: that is seen once it streams.

Nothing of this changes anything. Nothing of a primary that is refused is taken.
"""

from collections.abc import Iterator

from safekeeper.consensus.actions import Action, Level, Note, SendMessage, StartReplication
from safekeeper.consensus.control_state import NodeId
from safekeeper.consensus.leadership import Leadership
from safekeeper.consensus.messages import (
    DIGEST_PAGE_SIZE,
    DigestRequest,
    DigestResponse,
    TailRequest,
    TailResponse,
    VoteResponse,
)
from safekeeper.consensus.primary import LogPlan, PrimaryIdentity, first_difference, first_log_plan, plan_log
from safekeeper.consensus.primary_stream import PrimaryStream, check_range
from safekeeper.errors import PrimaryRefused, RemoteProtocolError
from safekeeper.lsn import Lsn, format_lsn


def plan_term(vote: VoteResponse, primary: PrimaryIdentity) -> LogPlan:
    """Return where the next term begins.

    Args:
        vote: the donor's.

    Raises:
        PrimaryRefused: the primary's timelines do not continue the donor's log.
    """
    if not vote.history:
        return first_log_plan(primary)
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

    One on another timeline is worth a new term, unless it is one of `several_primaries` and fits to no later log. Every
    later log has what is committed in this term: a line of descent that has parted from that, or ends before it, has
    parted from any log that goes on from there.
    """
    elected = leadership.elected
    if (primary.system_id, primary.segment_size) != (elected.system_id, elected.segment_size):
        return (
            f"the primary has system identifier {primary.system_id} and segment size {primary.segment_size}, "
            f"the quorum's log has {elected.system_id} and {elected.segment_size}: it is another PostgreSQL"
        )
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
    """Return how the primary's bytes differ from ours, which are `whose`; empty if they do not."""
    lsn = first_difference(begin_lsn, ours, theirs)
    if lsn is None:
        return ""
    return (
        f"the primary's WAL differs from {whose} in the page at {format_lsn(lsn)}: it was restored from a backup, "
        "lost flushed WAL, or is another copy of this cluster"
    )


def recycled(lsn: Lsn) -> str:
    """Return why a primary that has not kept the WAL from `lsn` on cannot continue a log that ends there."""
    return (
        f"the primary has recycled the WAL at {format_lsn(lsn)}, where the quorum's log ends: "
        "its slot was dropped or invalidated (see walproxy rebootstrap)"
    )


class Verification:
    """One primary, held against the log of one donor.

    Attributes:
        plan: where the term is to begin.
        is_passed: the term may be led.
        awaits_link: it may be led, but nothing was compared: the first record must link to our last one (S10).
        gives_up: the term begins at a fork that cuts what may have been acknowledged, as the operator allows.
        refusal: why this primary cannot go on, empty as long as nothing is known against it.
    """

    def __init__(
        self,
        node_id: NodeId,
        donor: int,
        vote: VoteResponse,
        plan: LogPlan,
        segment_size: int,
        stream: PrimaryStream,
        allow_data_loss: bool = False,
    ) -> None:
        self.plan = plan
        self.is_passed = self.awaits_link = self.gives_up = False
        self.refusal = ""
        self._node_id = node_id
        self._donor = donor
        self._segment_size = segment_size
        self._stream = stream
        self._allow_data_loss = allow_data_loss
        self._check = check_range(vote.history, vote.wal_begin_lsn, plan.start_lsn, plan.tli, segment_size)
        self._segment_is_gone = False
        self._our_page_crcs: tuple[int, ...] | None = None
        self._their_page_crcs: tuple[int, ...] | None = None

    def begin(self) -> Iterator[Action]:
        """Ask what a cut would lose if there is one to be justified (S9), else compare at once."""
        if self.plan.cuts:
            yield self._ask_for_tail()
        else:
            yield from self._compare()

    def on_tail(self, response: TailResponse, possible_commit_lsn: Lsn) -> Iterator[Action]:
        """The donor says which records are around the term's start.

        Args:
            possible_commit_lsn: M, the highest position that may have been committed (S9).
        """
        plan = self.plan
        if response.lsn != plan.start_lsn:
            return
        if self._segment_is_gone:
            yield self._stream.start(
                StartReplication(
                    plan.start_lsn,
                    plan.tli,
                    plan.start_lsn,
                    plan.tli,
                    previous_record_lsn=response.last_record_lsn,
                    log_tail=response.log_tail,
                )
            )
            self.is_passed = self.awaits_link = True
        elif 0 < response.record_end_lsn <= possible_commit_lsn:
            if self._allow_data_loss:
                self.gives_up = True
                yield Note(
                    Level.WARNING,
                    f"WAL [{format_lsn(response.lsn)}, {format_lsn(possible_commit_lsn)}) may have been acknowledged "
                    f"and is given up (--allow-data-loss): the primary's timeline {plan.tli} forked off before it",
                )
                yield from self._compare()
            else:
                self.refusal = (
                    f"the primary's timeline {plan.tli} forked off at {format_lsn(response.lsn)}, but WAL up to "
                    f"{format_lsn(possible_commit_lsn)} may have been acknowledged: it lacks the record "
                    f"[{format_lsn(response.lsn)}, {format_lsn(response.record_end_lsn)}) "
                    "(--allow-data-loss gives it up)"
                )
        else:
            yield from self._compare()

    def on_digest(self, response: DigestResponse) -> None:
        """The donor's checksums have come.

        Raises:
            RemoteProtocolError: they are not those that were asked for.
        """
        if response.end_lsn != self.plan.start_lsn:
            return
        begin_lsn = self._check.begin_lsn
        pages = -(-(response.end_lsn - begin_lsn) // DIGEST_PAGE_SIZE)
        if response.begin_lsn != begin_lsn or len(response.page_crcs) != pages:
            raise RemoteProtocolError(
                f"{len(response.page_crcs)} checksums from {format_lsn(response.begin_lsn)} on are not those of "
                f"the {pages} pages from {format_lsn(begin_lsn)} on that were asked for"
            )
        self._our_page_crcs = response.page_crcs
        self._judge()

    def on_primary_checked(self, page_crcs: tuple[int, ...]) -> None:
        """The primary's checksums have come."""
        self._their_page_crcs = page_crcs
        self._judge()

    def on_segment_removed(self) -> Iterator[Action]:
        """The primary has recycled the segment to compare.

        If the log ends on a segment's border, the next segment is all that is needed: its first record must link to
        our last one. Otherwise this primary cannot go on from where the log ends.
        """
        if self.plan.start_lsn % self._segment_size or self._segment_is_gone:
            self.refusal = recycled(self.plan.start_lsn)
        else:
            self._segment_is_gone = True
            yield self._ask_for_tail()

    def _ask_for_tail(self) -> SendMessage:
        return SendMessage(self._donor, TailRequest(self._node_id, 0, self.plan.start_lsn))

    def _compare(self) -> Iterator[Action]:
        """Have the primary's bytes before the term's start compared with the donor's."""
        plan, check = self.plan, self._check
        if check.begin_lsn < plan.start_lsn:
            yield SendMessage(self._donor, DigestRequest(self._node_id, 0, check.begin_lsn, plan.start_lsn))
        else:
            self._our_page_crcs = self._their_page_crcs = ()
        yield self._stream.start(StartReplication(check.begin_lsn, check.tli, plan.start_lsn, plan.tli))
        self._judge()

    def _judge(self) -> None:
        if self._our_page_crcs is not None and self._their_page_crcs is not None:
            whose = f"safekeeper {self._donor}'s"
            self.refusal = difference(self._check.begin_lsn, self._our_page_crcs, self._their_page_crcs, whose)
            self.is_passed = not self.refusal
