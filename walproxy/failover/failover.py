"""`walproxy failover`: seal the old primary's timeline, promote the best standby, wait until commits go on (step 13).

Each step can be repeated by any run of the command after any interruption; the state is in the safekeepers and the
servers (survey.py):

1. Look at the safekeepers and the servers. A server that was promoted already: go on with step 3.
2. Promote a standby under a seal (attempt.py).
3. Wait until a proxy has made it the primary: the log goes on, on its timeline.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from safekeeper.base.lsn import Lsn
from safekeeper.base.settings import Address
from safekeeper.consensus.messages import AcceptorGreeting
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.failover.attempt import (
    POLL_S,
    AttemptOptions,
    FailoverFailed,
    PromotedMeanwhile,
    PromotionAttempt,
    StepDisplay,
)
from walproxy.failover.server import Promotion
from walproxy.failover.survey import (
    Finished,
    Plan,
    Promote,
    Survey,
    check_cancellable,
    log_is_on,
    next_step,
    overtaken_reason,
)
from walproxy.failover.world import RealWorld, World
from walproxy.postgres.hosts import PrimaryHost
from walproxy.proposer.purpose import CancelSeal

_PLANS_MAX = 5


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

    Args:
        safekeepers: ids and addresses.
        hosts: the servers.
        resume_timeout_s: how long to wait for a proxy in the last step.
        attempt: the options of its attempt.
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
        attempt: AttemptOptions | None = None,
        may_be_read_only: bool = False,
        world: World | None = None,
    ) -> None:
        self._world: World = world or RealWorld(
            safekeepers, hosts, credentials, seal_timeout_s=seal_timeout_s, may_be_read_only=may_be_read_only
        )
        self._show = show
        self._options = attempt or AttemptOptions()
        self._resume_timeout_s = resume_timeout_s
        self._seconds: dict[str, float] = {}
        self._began_at = self._since = time.monotonic()
        self._attempt: PromotionAttempt | None = None

    @property
    def is_sealed(self) -> bool:
        """Whether the old timeline was sealed by this run, and was not let in again."""
        return self._attempt is not None and self._attempt.is_sealed

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
            self._attempt = PromotionAttempt(self._world, self._show, self._options, survey, plan.wanted, self._ended)
            return await self._attempt.run(takeover=takeover)
        if isinstance(plan, Finished):
            return plan.primary.name, Promotion(survey.log.log_tli, 0)
        name, promotion = plan.promoted.name, Promotion(plan.promoted.tli, plan.promoted.replayed_lsn)
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
        async with self._world.sealing(takeover=False, waiting=self._show.waiting) as run:
            await run.pursue(CancelSeal(tli))
        return tli, True

    def remedy(self) -> str:
        """Return what to do if this run is interrupted now, one line."""
        return self._attempt.remedy() if self._attempt is not None else "nothing was changed"

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
            await asyncio.sleep(POLL_S)

    def _ended(self, step: str) -> None:
        now = time.monotonic()
        self._seconds[step] = round(self._seconds.get(step, 0.0) + now - self._since, 3)
        self._since = now
