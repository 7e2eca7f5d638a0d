"""`walproxy failover`: seal the old primary's timeline, promote the best standby, wait until commits go on (step 13).

Each step can be repeated by any run of the command after any interruption; the state is in the safekeepers and the
servers (survey.py):

1. Look at the safekeepers and the servers. A server that was promoted under the present seal: go on with step 5.
2. Seal the log's timeline, and lead that term while the next two steps take place.
3. Wait until the chosen standby has the last complete record of the log.
4. Promote it to the first timeline above the floor.
5. Wait until a proxy has made it the primary: the log goes on, on its timeline.

The term of step 2 may be lost before step 4, to a proxy with the old primary or to another failover. The first is
harmless, since its primary is refused, and the timeline is sealed again; the second one goes on, and this one ends.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.settings import Address
from safekeeper.consensus.messages import AcceptorGreeting
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.failover.candidates import HostLook, choose, has_everything, missing_bytes, obstacle, tlis_to_reserve
from walproxy.failover.log_end import LogEnd
from walproxy.failover.sealer import NotSealed
from walproxy.failover.server import Promotion
from walproxy.failover.survey import (
    Finished,
    Plan,
    Promote,
    Readmit,
    Survey,
    check_cancellable,
    log_is_on,
    next_step,
    overtaken_reason,
)
from walproxy.failover.world import RealWorld, Sealed, World
from walproxy.postgres.hosts import PrimaryHost
from walproxy.proposer.seal import Seal

_POLL_S = 0.05
_SEALS_MAX = 64
_PLANS_MAX = 5
_SEAL_AGAIN_PAUSE_S = 1.0
# A server that is promoted replies all the time.
_LOST_AFTER_S = 10.0


class FailoverFailed(WalproxyError):
    """The failover was begun, and did not come to its end. One line says why, and what to do."""


class PromotedMeanwhile(FailoverFailed):
    """Another command has promoted a standby since this one has looked: it looks again."""


class StepDisplay(Protocol):
    """Where a failover shows what it does."""

    def step(self, text: str) -> None:
        """Show that a step has begun or ended."""

    def waiting(self, text: str, missing_bytes: int = 0) -> None:
        """Show for what it waits, at each look: how many bytes are missing, 0 if it waits for something else."""


@dataclass(frozen=True)
class FailoverReport:
    """The end of a failover.

    Attributes:
        primary: the promoted server.
        old_tli, tli: the timelines before and after; the same if nothing was to be done.
        fork_lsn: where the new one begins, 0 if unknown. What the old primary has above it was not acknowledged.
        term_before, term: of the log, before and after.
        seconds: how long each step took, by its name, and `all`.
    """

    primary: str
    old_tli: int
    tli: int
    fork_lsn: Lsn
    term_before: int
    term: int
    seconds: dict[str, float]


class Failover:
    """One run of a failover.

    Attributes:
        is_sealed: the old timeline was sealed by this run.

    Args:
        safekeepers: ids and addresses.
        hosts: the servers.
        resume_timeout_s: how long to wait for a proxy in the last step.
        promote_timeout_s: how long a standby may replay nothing while it is promoted.
        guard: called under the seal, right before a standby is promoted; what it raises ends the run.
        may_be_read_only: default_transaction_read_only does not hinder a promotion: the caller takes it away later.
        world: what is looked at and changed, in place of these safekeepers and servers.
    """

    def __init__(
        self,
        safekeepers: tuple[tuple[int, Address], ...],
        hosts: Sequence[PrimaryHost],
        credentials: Credentials,
        show: StepDisplay,
        *,
        seal_timeout_s: float = 30.0,
        resume_timeout_s: float = 30.0,
        promote_timeout_s: float = 60.0,
        guard: Callable[[], Awaitable[None]] | None = None,
        may_be_read_only: bool = False,
        world: World | None = None,
    ) -> None:
        self._world: World = world or RealWorld(
            safekeepers, hosts, credentials, seal_timeout_s=seal_timeout_s, may_be_read_only=may_be_read_only
        )
        self._show = show
        self._guard = guard
        self._resume_timeout_s = resume_timeout_s
        self._promote_timeout_s = promote_timeout_s
        self._seconds: dict[str, float] = {}
        self._began_at = self._since = time.monotonic()
        self._sealing_tli = 0
        self._promoting = ""
        self.is_sealed = False

    async def survey(self) -> Survey:
        """Look at the safekeepers and the servers.

        Raises:
            WalproxyError: no safekeeper replies.
            ConfigurationError: none is a member.
            FailoverRefused: no member replies, or the log is empty.
        """
        return await self._world.survey()

    async def close(self) -> None:
        """Close all connections."""
        await self._world.close()

    async def run(self, wanted: str = "", *, old_is_dead: bool = False) -> FailoverReport:
        """Fail over, or finish a failover that was begun.

        Args:
            wanted: the standby to promote, HOST or HOST:PORT; "" for the one that has received the most.
            old_is_dead: also if the old primary replies, or its proxy leads.

        Raises:
            FailoverRefused: the primary lives.
            NoCandidate, NotSealed, FailoverFailed, ConfigurationError, WalproxyError: one line.
        """
        log, name, promotion = await self.promote(wanted, old_is_dead=old_is_dead)
        term = log.last_term
        if promotion.tli != log.log_tli:
            term = await self._until_log_is_on(name, promotion)
        self._seconds["all"] = round(time.monotonic() - self._began_at, 3)
        return FailoverReport(
            primary=name,
            old_tli=log.log_tli,
            tli=promotion.tli,
            fork_lsn=promotion.fork_lsn,
            term_before=log.last_term,
            term=term,
            seconds=self._seconds,
        )

    async def promote(self, wanted: str = "", *, old_is_dead: bool = False) -> tuple[AcceptorGreeting, str, Promotion]:
        """Take the steps up to the promotion.

        Returns:
            The log as it was before, and the promoted server; the log's own primary if nothing is to be done.

        Raises:
            As `run`.
        """
        self._began_at = self._since = time.monotonic()
        survey = await self.survey()
        log, plan = survey.log, next_step(survey, wanted, old_is_dead=old_is_dead)
        for _ in range(_PLANS_MAX):
            try:
                return log, *await self._carry_out(survey, plan, takeover=old_is_dead)
            except PromotedMeanwhile as error:
                self._show.step(str(error))
                # What serves the log by now is not the old primary.
                old_is_dead = False
                survey = await self.survey()
                plan = next_step(survey, wanted)
        raise FailoverFailed("other commands promote standbys all the time: end them, and repeat this one")

    async def _carry_out(self, survey: Survey, plan: Plan, *, takeover: bool) -> tuple[str, Promotion]:
        """Return the server that a proxy is to take over, and its promotion."""
        if isinstance(plan, Promote):
            return await self._seal_and_promote(survey, plan.wanted, takeover=takeover)
        if isinstance(plan, Finished):
            return plan.primary.name, Promotion(survey.log.log_tli, 0)
        name = self._promoting = plan.promoted.name
        promotion = Promotion(plan.promoted.tli, plan.promoted.replayed_lsn)
        if isinstance(plan, Readmit):
            await self._readmit(survey.log.log_tli, plan)
        else:
            self._show.step(f"{name} was promoted to timeline {promotion.tli} already")
        return name, promotion

    async def cancel(self) -> tuple[int, bool]:
        """Let the sealed primary in again.

        Returns:
            The timeline of the log, and whether it was sealed.

        Raises:
            FailoverRefused: a server was promoted already.
        """
        survey = await self.survey()
        tli = survey.log.log_tli
        if not check_cancellable(survey):
            return tli, False
        async with self._sealed(Seal(tli, cancels=True)):
            return tli, True

    def remedy(self) -> str:
        """Return what to do if this run is interrupted now, one line."""
        if self._promoting:
            return f"{self._promoting} may be promoted already: repeat the command, and it goes on"
        if self._sealing_tli:
            return (
                f"timeline {self._sealing_tli} may be sealed: repeat the command, and it goes on; or let the old "
                "primary in again with walproxy failover --cancel"
            )
        return "nothing was changed"

    async def _seal_and_promote(self, survey: Survey, wanted: str, *, takeover: bool) -> tuple[str, Promotion]:
        """Seal the log's timeline, and promote a standby to the number that this seal gives out."""
        tli, in_use_tli = survey.log.log_tli, survey.in_use_tli
        floor = 0
        for _ in range(_SEALS_MAX):
            was_led = False
            try:
                async with self._sealed(Seal(tli), takeover=takeover) as sealed:
                    self.is_sealed, was_led, takeover = True, True, False
                    end = await self._log_end(sealed)
                    floor = end.floor
                    if in_use_tli > floor:
                        self._show.step(f"timeline {in_use_tli} is in use: sealing the numbers up to it")
                        continue
                    self._show.step(
                        f"sealed timeline {tli}: the log ends at {format_lsn(end.end_lsn)}, in term "
                        f"{sealed.elected.leader_id.term}"
                    )
                    self._ended("seal")
                    chosen = await self._until_caught_up(sealed, end, wanted, survey)
                    self._ended("catch up")
                    promotion = await self._promote(sealed, chosen, end)
                    self._ended("promote")
                    break
            except NotSealed as error:
                if self._promoting or not floor:
                    raise
                if not was_led:
                    raise FailoverFailed(f"{error}; {self.remedy()}") from None
                await self._check_sealing_again(error, floor)
                self._show.step(f"sealing timeline {tli} again: {error}")
        else:
            raise FailoverFailed(f"timeline {tli} was sealed {_SEALS_MAX} times, and its term was lost each time")
        name, next_tli = chosen.name, end.promoted_tli
        if promotion.tli < next_tli:
            raise PromotedMeanwhile(
                f"{name} was promoted to timeline {promotion.tli} by another command, and the seal gives out {next_tli}"
            )
        if promotion.tli > next_tli:
            # It found history files of other numbers: no later failover may give out the number that it took.
            self._show.step(f"{name} took timeline {promotion.tli}, not {next_tli}: sealing the numbers between")
            await self._raise_floor(tli, promotion.tli)
        return name, promotion

    async def _log_end(self, sealed: Sealed) -> LogEnd:
        try:
            end = await self._world.log_end(sealed)
        except WalproxyError as error:
            sealed.check()  # Members do not deliver WAL to a leader that was deposed.
            raise FailoverFailed(f"{error}; {self.remedy()}") from None
        if not end.records_end_lsn:
            raise FailoverFailed(
                "the log has no complete record, so no commit was acknowledged: let the old primary in again with "
                "walproxy failover --cancel, or begin again with walproxy rebootstrap"
            )
        return end

    async def _check_sealing_again(self, lost: NotSealed, floor: int) -> None:
        """Wait for a moment; then make sure that the lost term was not another failover's or its cancellation's gain.

        Raises:
            FailoverFailed: it was.
        """
        if lost.log_tli:
            raise lost
        await asyncio.sleep(_SEAL_AGAIN_PAUSE_S * (0.5 + random.random()))
        greetings, problems = await self._world.greetings()
        if not greetings:
            raise FailoverFailed(f"no safekeeper replies: {problems}; {self.remedy()}")
        newest = max(greetings.values(), key=lambda greeting: (greeting.last_term, greeting.flush_lsn))
        if newest.floor > floor:
            raise FailoverFailed(
                f"another failover has sealed the timelines up to {newest.floor}: it goes on, and this one has "
                "promoted no server"
            )
        if newest.floor < floor:
            raise FailoverFailed("the failover was cancelled by another command")

    async def _until_caught_up(self, sealed: Sealed, end: LogEnd, wanted: str, before: Survey) -> HostLook:
        """Return the first standby that has everything."""
        standbys = {look.name for look in before.looks if look.in_recovery is not False}
        while True:
            looks = [look for look in await self._world.looks() if wanted in ("", look.name)]
            sealed.check()
            ready = [look for look in looks if has_everything(look, end)]
            if ready:
                return choose(ready, end)
            promoted = [
                look
                for look in looks
                if look.in_recovery is False
                and look.name in standbys
                and (look.system_id, look.tli > end.tli) == (end.system_id, True)
            ]
            if promoted:
                raise PromotedMeanwhile(
                    f"{promoted[0].name} was promoted to timeline {promoted[0].tli} by another command meanwhile"
                )
            able = [look for look in looks if not obstacle(look, end)]
            if able:
                best = choose(able, end)
                what = "receives WAL" if best.receives else "lacks WAL, and is connected to no server that sends it"
                self._show.waiting(f"{best.name} {what}", missing_bytes(best, end))
            else:
                reasons = "; ".join(f"{look.name} {obstacle(look, end)}" for look in looks)
                self._show.waiting(f"waiting for a standby that can be promoted: {reasons}")
            await asyncio.sleep(_POLL_S)

    async def _promote(self, sealed: Sealed, chosen: HostLook, end: LogEnd) -> Promotion:
        """Promote a standby, and wait until it is a primary, however long it replays WAL before."""
        name = chosen.name
        self._show.step(f"promoting {name}, which has everything up to {format_lsn(end.records_end_lsn)}")
        try:
            await self._world.reserve(name, tlis_to_reserve(chosen, end))
            if self._guard is not None:
                await self._guard()
            sealed.check()  # Another failover may have taken over while the standby caught up.
            self._promoting = name
            await self._world.request_promotion(name, end)
        except NotSealed:
            raise
        except WalproxyError as error:
            raise FailoverFailed(f"{error}; timeline {end.tli} is sealed, repeat the command to go on") from None
        best, replied_at, progress_at = chosen, time.monotonic(), time.monotonic()
        while True:
            look = next(look for look in await self._world.looks() if look.name == name)
            now = time.monotonic()
            if look.in_recovery is False:
                return Promotion(look.tli, look.replayed_lsn)
            if look.in_recovery is None:
                if now - replied_at > _LOST_AFTER_S:
                    raise FailoverFailed(
                        f"{name} was lost while it was promoted ({look.problem}): see its log, a full disk ends it; "
                        "start it and repeat the command, or promote another standby with --to"
                    )
                self._show.waiting(f"{name} {look.problem}")
            else:
                replied_at = now
                if look.replayed_lsn > best.replayed_lsn:
                    best, progress_at = look, now
                left = max(0, look.reached_lsn - look.replayed_lsn)
                if now - progress_at > self._promote_timeout_s:
                    raise FailoverFailed(
                        f"{name} is a standby still and has replayed nothing for {self._promote_timeout_s:g} s, with "
                        f"{left} bytes left: see its log, a long query may block the replay; repeat the command then, "
                        "or promote another standby with --to"
                    )
                self._show.waiting(f"{name} replays WAL before it is promoted", left)
            await asyncio.sleep(_POLL_S)

    async def _raise_floor(self, tli: int, promoted_tli: int) -> None:
        """Seal numbers until `promoted_tli` is the next one, unless the log goes on to it first."""
        for _ in range(_SEALS_MAX):
            try:
                async with self._sealed(Seal(tli)) as sealed:
                    if sealed.elected.history[-1].floor + 1 >= promoted_tli:
                        return
            except NotSealed:
                return  # Its proxy leads: later seals are above its timeline.

    async def _readmit(self, tli: int, plan: Readmit) -> None:
        """Lower the floor below a promoted server, so that proxies accept it. The old primary stays sealed off."""
        name, promoted_tli = plan.promoted.name, plan.promoted.tli
        self._show.step(f"{name} was promoted to timeline {promoted_tli} and sealed off: letting it in again")
        async with self._sealed(Seal(tli, readmits=promoted_tli)):
            pass

    async def _until_log_is_on(self, name: str, promotion: Promotion) -> int:
        """Wait until a quorum has WAL of the promoted server; return the term."""
        self._show.step(f"{name} is a primary on timeline {promotion.tli}: waiting for its proxy")
        deadline = time.monotonic() + self._resume_timeout_s
        while True:
            greetings, problems = await self._world.greetings()
            for greeting in greetings.values():
                if log_is_on(greeting, promotion.tli, promotion.fork_lsn):
                    self._ended("resume")
                    return greeting.last_term
            overtaken = overtaken_reason(greetings, promotion.tli)
            if overtaken:
                raise FailoverFailed(f"{name} was promoted to timeline {promotion.tli}, and {overtaken}")
            if time.monotonic() > deadline:
                raise FailoverFailed(
                    f"{name} was promoted to timeline {promotion.tli}, and no proxy has taken it over within "
                    f"{self._resume_timeout_s:g} s{f' ({problems})' if problems else ''}: start walproxy run with a "
                    "--primary that names it, or read the log of the one that runs; if that refuses it, promote "
                    "another standby with --to"
                )
            self._show.waiting(
                f"waiting for a walproxy run that takes {name} over{f' ({problems})' if problems else ''}"
            )
            await asyncio.sleep(_POLL_S)

    def _sealed(self, seal: Seal, *, takeover: bool = False) -> AbstractAsyncContextManager[Sealed]:
        self._sealing_tli = seal.tli
        return self._world.sealed(
            seal, takeover=takeover, waiting=lambda problem: self._show.waiting(f"not sealed yet: {problem}")
        )

    def _ended(self, step: str) -> None:
        now = time.monotonic()
        self._seconds[step] = round(self._seconds.get(step, 0.0) + now - self._since, 3)
        self._since = now
