"""The rules of seals and failovers, each left out: what is planted to be found (S15)."""

from typing import Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import Effects, Send
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import Elected, PreVoteResponse, TailPreVoteRequest, VoteResponse
from safekeeper.consensus.term_history import HistoryEntry, TermHistory, last_tli
from walproxy.failover.candidates import HostLook, obstacle
from walproxy.failover.log_end import LogEnd
from walproxy.failover.sealer import Sealer
from walproxy.proposer.campaign import Campaign, Outcome
from walproxy.proposer.election import extend_history
from walproxy.proposer.primary import LogPlan, PrimaryIdentity
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.purpose import CancelSeal, Numbers, Obstacle, Purpose, Reserve, TakeBack

_PURSUE = Sealer.pursue
_TAKE_WHOLE_LOG = Campaign._take_whole_log
_TAKE_BACK_OBSTACLE = TakeBack.obstacle


def floor_of_the_entry_before(
    history: TermHistory, plan: LogPlan, leader_id: LeaderId, gives_up: bool = False, purpose: Purpose | None = None
) -> TermHistory:
    """A term inherits the floor of the entry before it, and that of the seal goes with its entry."""
    *kept, last = extend_history(history, plan, leader_id, gives_up, purpose)
    inherited = kept[-1].floor if kept else 0
    return (*kept, _with_floor(last, last.floor if purpose is not None else inherited))


def floor_of_the_sealer_alone(
    history: TermHistory, plan: LogPlan, leader_id: LeaderId, gives_up: bool = False, purpose: Purpose | None = None
) -> TermHistory:
    """A seal is in the memory of the run that has won it: the next leader's log has none."""
    *kept, last = extend_history(history, plan, leader_id, gives_up, purpose)
    return (*kept, last if purpose is not None else _with_floor(last, 0))


def _with_floor(entry: HistoryEntry, floor: int) -> HistoryEntry:
    return HistoryEntry(entry.term, entry.start_lsn, entry.tli, entry.gives_up, floor, entry.given)


def never_sealed(primary: PrimaryIdentity, floor: int) -> str:
    """A primary is refused for its bytes alone."""
    return ""


def given_of_the_entry_before(
    history: TermHistory, plan: LogPlan, leader_id: LeaderId, gives_up: bool = False, purpose: Purpose | None = None
) -> TermHistory:
    """A term inherits what was handed out from the entry before it: a reservation goes with its entry."""
    *kept, last = extend_history(history, plan, leader_id, gives_up, purpose)
    given = max(last.given if purpose is not None else 0, kept[-1].given if kept else 0, plan.tli)
    return (*kept, HistoryEntry(last.term, last.start_lsn, last.tli, last.gives_up, last.floor, given))


def next_to_the_standby(look: HostLook, end: LogEnd, *others: int) -> int:
    """A standby is promoted to the number next to its own."""
    return 1 + max(look.tli, *others)


async def reserved_in_memory(run: Sealer, purpose: Purpose) -> None:
    """A number is handed out before a quorum has it: no term is won for it."""
    if not isinstance(purpose, Reserve):
        await _PURSUE(run, purpose)


def given_before_its_first_term(campaign: Campaign, vote: VoteResponse) -> None:
    """An attempt takes back what others have handed out since its first term, which it had lost to them."""
    before = campaign._candidacy.given_before
    _TAKE_WHOLE_LOG(campaign, vote)
    if before is not None:
        campaign._candidacy.given_before = before


def numbers_given_again(cancel: CancelSeal, last: HistoryEntry) -> Numbers:
    """A cancellation gives the numbers of promotions out again."""
    return Numbers(cancel.tli - 1, cancel.tli)


def taken_back_over_others(purpose: TakeBack, last: HistoryEntry, log_tli: int, *, is_own: bool) -> Obstacle | None:
    """An attempt takes the seal of another one back."""
    return _TAKE_BACK_OBSTACLE(purpose, last, log_tli, is_own=True)


class _NeverPromoting:
    """An attempt does not remember that it has requested a promotion: it takes its number back."""

    def __get__(self, attempt: Any, kind: Any) -> str:
        return ""

    def __set__(self, attempt: Any, name: str) -> None:
        pass


never_promoting = _NeverPromoting()


def seal_whatever_the_log_is_on(campaign: Campaign, vote: VoteResponse) -> None:
    """A repeated failover seals the timeline of the server that it has promoted."""
    tli = last_tli(vote.history, vote.flush_lsn)
    if not tli:
        campaign._lose("the log has no WAL yet")
        return
    campaign.plan = LogPlan(vote.flush_lsn, tli, cuts=False)
    campaign.outcome = Outcome.WON


def sealed_once_elected(proposer: Proposer) -> Elected | None:
    """A seal counts when its term is won, before a quorum has it."""
    leadership = proposer.leadership
    return leadership.elected if leadership is not None and leadership.is_tail else None


def nothing_passed_over(look: HostLook, number: int) -> range:
    """A standby takes the number next to its own."""
    return range(0)


def has_anything(look: HostLook, end: LogEnd) -> bool:
    """A standby is promoted as it is."""
    return not obstacle(look, end)


def never_lost(look: HostLook, end: LogEnd) -> str:
    """A standby that had everything is promoted, whatever was made of it since."""
    return ""


def has_the_last_byte(look: HostLook, end: LogEnd) -> bool:
    """A standby is waited for until it has replayed the log's last byte, which may be in the midst of a record."""
    return not obstacle(look, end) and look.replayed_lsn >= end.end_lsn


def kept_as_replayed(look: HostLook) -> Lsn:
    """What a standby has not replayed has no complete record, unless one was seen."""
    return look.complete_lsn or look.replayed_lsn or look.received_lsn


class GrantsTailsOverTheLiving(Acceptor):
    """Lets a proposer without a primary be elected although another one is live."""

    def _tail_pre_vote(self, connection: int, message: TailPreVoteRequest, now: float) -> Effects:
        yield Send(connection, PreVoteResponse(True, ""))
