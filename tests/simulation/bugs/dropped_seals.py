"""The rules of seals and failovers, each left out: what is planted to be found (S15)."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import Effects, Send
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import Elected, PreVoteResponse, TailPreVoteRequest, VoteResponse
from safekeeper.consensus.term_history import HistoryEntry, TermHistory, last_tli
from walproxy.failover.candidates import HostLook, obstacle
from walproxy.failover.log_end import LogEnd
from walproxy.failover.sealer import sealed_timeline
from walproxy.proposer.campaign import Campaign, Outcome
from walproxy.proposer.election import extend_history
from walproxy.proposer.primary import LogPlan, PrimaryIdentity
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.seal import Seal

_FLOOR = Seal.floor


def floor_of_the_entry_before(
    history: TermHistory, plan: LogPlan, leader_id: LeaderId, gives_up: bool = False, seal: Seal | None = None
) -> TermHistory:
    """A term inherits the floor of the entry before it, and that of the seal goes with its entry."""
    *kept, last = extend_history(history, plan, leader_id, gives_up, seal)
    inherited = kept[-1].floor if kept else 0
    return (*kept, _with_floor(last, last.floor if seal is not None else inherited))


def floor_of_the_sealer_alone(
    history: TermHistory, plan: LogPlan, leader_id: LeaderId, gives_up: bool = False, seal: Seal | None = None
) -> TermHistory:
    """A seal is in the memory of the run that has won it: the next leader's log has none."""
    *kept, last = extend_history(history, plan, leader_id, gives_up, seal)
    return (*kept, last if seal is not None else _with_floor(last, 0))


def _with_floor(entry: HistoryEntry, floor: int) -> HistoryEntry:
    return HistoryEntry(entry.term, entry.start_lsn, entry.tli, entry.gives_up, floor)


def only_at_the_floor(primary: PrimaryIdentity, floor: int) -> str:
    """A primary is refused on the timeline that was sealed last, and no older one."""
    return f"timeline {primary.tli} is sealed" if primary.tli == floor else ""


def never_sealed(primary: PrimaryIdentity, floor: int) -> str:
    """A primary is refused for its bytes alone."""
    return ""


def readmitted_with_the_old_primary(seal: Seal, inherited: TermHistory) -> int:
    """A promoted server that was sealed off is let in again by cancelling the seal."""
    return _FLOOR(Seal(seal.tli, cancels=True) if seal.readmits else seal, inherited)


def raised_once(seal: Seal, inherited: TermHistory) -> int:
    """A repeated failover has the number of the one before."""
    return seal.tli - 1 if seal.cancels else max(seal.tli, inherited[-1].floor)


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
    return leadership.elected if proposer.config.seal is not None and leadership is not None else None


@contextlib.asynccontextmanager
async def sealed_and_left(
    safekeepers: Any, seal: Seal, *, waiting: Any, timeout_s: float, **settings: Any
) -> AsyncIterator[Any]:
    """The process that seals is done when it has sealed."""
    async with sealed_timeline(safekeepers, seal, waiting=waiting, timeout_s=timeout_s, **settings) as sealer:
        elected = sealer.elected
    yield _Left(elected)


class _Left(NamedTuple):
    elected: Elected

    def check(self) -> None:
        """It looks no more whether its term is led."""


def nothing_reserved(look: HostLook, end: LogEnd) -> range:
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
