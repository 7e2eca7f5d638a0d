"""One attempt of a failover to promote a standby (docs/design/protocol.md, 13.6 to 13.9).

1. Ask the guards: a lease, a fence, a watchdog. One that fails has changed nothing.
2. Seal the log's timeline, and lead that term while the next steps take place.
3. Wait until the chosen standby has the last complete record of the log.
4. Ask the guards again: what they guarantee may have ended meanwhile.
5. Reserve a number for the promotion: a term of the same run.
6. Promote the standby to that number, as long as the reserving term is led.

An attempt that fails before its request of step 6 takes the seal back: one more term of the same run, after which the
cluster can commit as it could before. One that has sent the request, or does not know, takes nothing back.

The term may be lost before step 6, to a proxy with the old primary or to another failover. The first is harmless, since
its primary is refused, and the timeline is sealed again; the second one goes on, and this one ends.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import format_lsn
from walproxy.failover.candidates import (
    HostLook,
    choose,
    has_everything,
    missing_bytes,
    number_for,
    obstacle,
    tlis_to_pass_over,
)
from walproxy.failover.log_end import LogEnd
from walproxy.failover.sealer import NotSealed
from walproxy.failover.server import NotRequested, Promotion
from walproxy.failover.survey import Survey
from walproxy.failover.world import SealingRun, World
from walproxy.proposer.purpose import Reserve, Seal, TakeBack

POLL_S = 0.05
_SEALS_MAX = 64
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


async def take_back(run: SealingRun, tli: int, show: StepDisplay) -> bool:
    """Let the old primary in again after an attempt that has failed; return whether no term of it keeps that out."""
    if run.given_before is None:
        return True
    show.step(f"taking the seal of timeline {tli} back")
    try:
        await run.pursue(TakeBack(tli, run.given_before))
    except WalproxyError as error:
        show.step(f"timeline {tli} may stay sealed: {error}")
        return False
    return True


@dataclass(frozen=True)
class AttemptOptions:
    """The options of an attempt.

    Attributes:
        guard: raises what forbids the promotion. It is called twice, and keeps what has succeeded.
        catch_up_timeout_s: how long a standby may receive nothing of what it lacks; None for as long as it takes.
        promote_timeout_s: how long a standby may replay nothing while it is promoted.
        has_ended: whether the only standby, which is on this machine, no longer runs; None where that is not known.
    """

    guard: Callable[[], Awaitable[None]] | None = None
    catch_up_timeout_s: float | None = None
    promote_timeout_s: float = 60.0
    has_ended: Callable[[], bool] | None = None


class PromotionAttempt:
    """One attempt.

    Attributes:
        is_sealed: its seal is committed, and was not taken back.
        promoting: the standby that was asked for its promotion, "" before.

    Args:
        wanted: the only standby to promote, "" for any.
        survey: what was found before.
        ended: is called with the name of each step that has ended.
    """

    def __init__(
        self,
        world: World,
        show: StepDisplay,
        options: AttemptOptions,
        survey: Survey,
        wanted: str,
        ended: Callable[[str], None],
    ) -> None:
        self.is_sealed = False
        self.promoting = ""
        self._world = world
        self._show = show
        self._options = options
        self._survey = survey
        self._tli = survey.log.log_tli
        self._wanted = wanted
        self._ended = ended

    def remedy(self) -> str:
        """Return what to do if it ends now, one line."""
        if self.promoting:
            return f"{self.promoting} may be promoted already: repeat the command, and it goes on"
        if self.is_sealed:
            return (
                f"timeline {self._tli} is sealed: repeat the command, and it goes on; or let the old primary in again "
                "with walproxy failover --cancel"
            )
        return "nothing was changed"

    async def run(self, *, takeover: bool) -> tuple[str, Promotion]:
        """Return the promoted server, and its promotion.

        Args:
            takeover: seal also if another proxy leads and has a primary.

        Raises:
            NotSealed, FailoverFailed, PromotedMeanwhile, WalproxyError: one line.
        """
        await self._ask_guard()
        async with self._world.sealing(takeover=takeover, waiting=self._show_unsealed) as run:
            try:
                await run.pursue(Seal(self._tli))
                for _ in range(_SEALS_MAX):
                    try:
                        return await self._under_seal(run)
                    except NotSealed as error:
                        if self.promoting:
                            raise
                        await self._seal_again(run, error)
                raise FailoverFailed(f"timeline {self._tli} was sealed {_SEALS_MAX} times, and each term was lost")
            except (Exception, asyncio.CancelledError):
                if not self.promoting:
                    self.is_sealed = not await take_back(run, self._tli, self._show)
                raise

    def _show_unsealed(self, problem: str) -> None:
        self._show.waiting(f"not sealed yet: {problem}")

    async def _ask_guard(self) -> None:
        if self._options.guard is not None:
            await self._options.guard()

    async def _under_seal(self, run: SealingRun) -> tuple[str, Promotion]:
        self.is_sealed = True
        end = await self._log_end(run)
        self._show.step(
            f"sealed timeline {self._tli}: the log ends at {format_lsn(end.end_lsn)}, in term "
            f"{run.elected.leader_id.term}"
        )
        self._ended("seal")
        chosen = await self._until_caught_up(run, end)
        self._ended("catch up")
        number = await self._reserve(run, chosen, end)
        promotion = await self._promote(run, chosen, end, number)
        self._ended("promote")
        if promotion.tli < number:
            raise PromotedMeanwhile(
                f"{chosen.name} was promoted to timeline {promotion.tli} by another command, and the attempt has "
                f"reserved {number}"
            )
        if promotion.tli > number:
            await self._note_taken(run, chosen.name, promotion.tli, number)
        return chosen.name, promotion

    async def _log_end(self, run: SealingRun) -> LogEnd:
        try:
            end = await self._world.log_end(run.elected)
        except WalproxyError as error:
            run.check()  # Members do not deliver WAL to a leader that was deposed.
            raise FailoverFailed(str(error)) from None
        if not end.records_end_lsn:
            raise FailoverFailed(
                "the log has no complete record, so no commit was acknowledged: the old primary goes on, or begin "
                "again with walproxy rebootstrap"
            )
        return end

    async def _seal_again(self, run: SealingRun, lost: NotSealed) -> None:
        """Wait for a moment; then seal again, unless the lost term was another failover's or its cancellation's gain.

        Raises:
            FailoverFailed: it was.
            NotSealed: the log has gone on, or another proxy serves.
        """
        if lost.log_tli:
            raise lost
        term = run.elected.leader_id.term
        await asyncio.sleep(_SEAL_AGAIN_PAUSE_S * (0.5 + random.random()))
        greetings, problems = await self._world.greetings()
        if not greetings:
            raise FailoverFailed(f"no safekeeper replies: {problems}")
        newest = max(greetings.values(), key=lambda greeting: (greeting.last_term, greeting.flush_lsn))
        if newest.last_term > term:
            raise FailoverFailed(
                "the failover was cancelled by another command"
                if newest.floor < self._tli
                else "another failover has sealed the timeline: it goes on, and this one has promoted no server"
            )
        self._show.step(f"sealing timeline {self._tli} again: {lost}")
        await run.pursue(Seal(self._tli))

    async def _until_caught_up(self, run: SealingRun, end: LogEnd) -> HostLook:
        """Return the first standby that has everything."""
        standbys = {look.name for look in self._survey.looks if look.in_recovery is not False}
        timeout_s = self._options.catch_up_timeout_s
        reached_lsn, progress_at = 0, time.monotonic()
        while True:
            looks = [look for look in await self._world.looks() if self._wanted in ("", look.name)]
            run.check()
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
            able, missing = [look for look in looks if not obstacle(look, end)], 0
            if able:
                best = choose(able, end)
                what = "receives WAL" if best.receives else "lacks WAL, and is connected to no server that sends it"
                text, missing = f"{best.name} {what}", missing_bytes(best, end)
                if best.reached_lsn > reached_lsn:
                    reached_lsn, progress_at = best.reached_lsn, time.monotonic()
            else:
                reasons = "; ".join(f"{look.name} {obstacle(look, end)}" for look in looks)
                text = f"waiting for a standby that can be promoted: {reasons}"
            self._show.waiting(text, missing)
            if timeout_s is not None and time.monotonic() - progress_at > timeout_s:
                raise FailoverFailed(f"no standby has received all that may have been acknowledged: {text}")
            await asyncio.sleep(POLL_S)

    async def _reserve(self, run: SealingRun, chosen: HostLook, end: LogEnd) -> int:
        """Ask the guards again, then reserve a number for the standby's promotion; return it."""
        found_tli = await self._world.highest_history(chosen.name)
        number = number_for(chosen, end, self._survey.in_use_tli, found_tli)
        await self._ask_guard()
        run.check()
        await run.pursue(Reserve(self._tli, number))
        await self._world.place_histories(chosen.name, tlis_to_pass_over(chosen, number))
        return number

    async def _promote(self, run: SealingRun, chosen: HostLook, end: LogEnd, number: int) -> Promotion:
        """Promote a standby, and wait until it is a primary, however long it replays WAL before."""
        name = chosen.name
        self._show.step(
            f"promoting {name} to timeline {number}: it has everything up to {format_lsn(end.records_end_lsn)}"
        )
        run.check()
        self.promoting = name
        try:
            await self._world.request_promotion(name, end)
        except NotRequested:
            self.promoting = ""
            raise
        except WalproxyError as error:
            raise FailoverFailed(f"{error}; {self.remedy()}") from None
        best, replied_at, progress_at = chosen, time.monotonic(), time.monotonic()
        while True:
            look = next(look for look in await self._world.looks() if look.name == name)
            now = time.monotonic()
            if look.in_recovery is False:
                return Promotion(look.tli, look.replayed_lsn)
            if look.in_recovery is None:
                has_ended = self._options.has_ended
                if (has_ended is not None and has_ended()) or now - replied_at > _LOST_AFTER_S:
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
                timeout_s = self._options.promote_timeout_s
                if now - progress_at > timeout_s:
                    raise FailoverFailed(
                        f"{name} is a standby still and has replayed nothing for {timeout_s:g} s, with {left} bytes "
                        "left: see its log, a long query may block the replay; repeat the command then, or promote "
                        "another standby with --to"
                    )
                self._show.waiting(f"{name} replays WAL before it is promoted", left)
            await asyncio.sleep(POLL_S)

    async def _note_taken(self, run: SealingRun, name: str, tli: int, number: int) -> None:
        """Record a number that a server took instead: no later failover may hand it out."""
        self._show.step(f"{name} took timeline {tli}, not {number}")
        try:
            await run.pursue(Reserve(self._tli, tli, is_taken=True))
        except NotSealed as error:
            self._show.step(f"timeline {tli} is not recorded: {error}")  # The promoted server's own term has it then.
