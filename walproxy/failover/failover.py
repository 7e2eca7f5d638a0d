"""`walproxy failover`: seal the old primary's timeline, promote the best standby, wait until commits go on (step 13).

Each step can be repeated by any run of the command after any interruption; the state is in the safekeepers:

1. Look at the safekeepers and the servers. A server that was promoted under the present seal: go on with step 5.
2. Seal the log's timeline, and lead that term while the next two steps take place.
3. Wait until the chosen standby has the last complete record of the log.
4. Promote it to the first timeline above the floor.
5. Wait until a proxy has made it the primary: the log goes on, on its timeline.
"""

import asyncio
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
from walproxy.failover.candidates import HostLook, choose, has_everything, is_named, missing_bytes, tlis_to_reserve
from walproxy.failover.log_end import LogEnd, find_log_end
from walproxy.failover.sealer import Sealer, sealed_timeline
from walproxy.failover.server import Promotion, Server
from walproxy.postgres.hosts import PrimaryHost
from walproxy.proposer.seal import Seal
from walproxy.proxy.members import Fleet
from walproxy.proxy.members_plan import present_cluster

_POLL_S = 0.1
_SEALS_MAX = 64


class FailoverRefused(WalproxyError):
    """The failover is not begun. One line says why, and what to do."""


class Show(Protocol):
    """Where a failover shows what it does."""

    def step(self, text: str) -> None:
        """Show that a step has begun or ended."""

    def behind(self, look: HostLook, missing_bytes: int) -> None:
        """Show how much the standby that is waited for lacks. Called at each look."""


@dataclass(frozen=True)
class Survey:
    """What the safekeepers and the servers have.

    Attributes:
        log: the greeting of a safekeeper with the newest log.
        replying: how many safekeepers have replied, of how many.
        looks: the servers, in the user's order.
    """

    log: AcceptorGreeting
    replying: tuple[int, int]
    looks: tuple[HostLook, ...]

    @property
    def promoted(self) -> HostLook | None:
        """The server that the last failover has promoted, whether or not the log has gone on with it yet."""
        log = self.log
        fit = (look for look in self.looks if look.in_recovery is False and look.tli == log.floor + 1 > 1)
        return next((look for look in fit if look.system_id == log.system_id), None)

    @property
    def living_primary(self) -> HostLook | None:
        """The server that writes the log, and is not sealed off."""
        log = self.log
        fit = (look for look in self.looks if look.in_recovery is False and look.tli == log.log_tli > log.floor)
        return next((look for look in fit if look.system_id == log.system_id), None)

    def estimated_end(self) -> LogEnd:
        """Return the end of the newest log that was seen, as if it were sealed now and ended with a record."""
        log = self.log
        return LogEnd(
            system_id=log.system_id,
            tli=log.log_tli,
            lineage=tuple((tli, log.flush_lsn) for tli in range(1, log.log_tli)),
            end_lsn=log.flush_lsn,
            records_end_lsn=log.flush_lsn,
            floor=max(log.log_tli, log.floor + 1),
        )


@dataclass(frozen=True)
class Report:
    """The end of a failover.

    Attributes:
        primary: the promoted server.
        old_tli, tli: the timelines before and after.
        fork_lsn: where the new one begins, 0 if an earlier run has promoted the server. What the old primary has above
            it was not acknowledged.
        term_before, term: of the log, before and after.
        seconds: how long each step took, by its name.
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
        guard: called under the seal, right before a standby is promoted; what it raises ends the run.
        resume_timeout_s: how long to wait for a proxy in the last step.
    """

    def __init__(
        self,
        safekeepers: tuple[tuple[int, Address], ...],
        hosts: Sequence[PrimaryHost],
        credentials: Credentials,
        show: Show,
        *,
        guard: Callable[[], Awaitable[None]] | None = None,
        seal_timeout_s: float = 30.0,
        resume_timeout_s: float = 30.0,
    ) -> None:
        self._safekeepers = safekeepers
        self._credentials = credentials
        self._servers = {host.name: Server(host) for host in hosts}
        self._show = show
        self._guard = guard
        self._seal_timeout_s = seal_timeout_s
        self._resume_timeout_s = resume_timeout_s
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic()

    async def survey(self) -> Survey:
        """Look at the safekeepers and the servers.

        Raises:
            ConfigurationError: no safekeeper replies, or none is a member.
            FailoverRefused: the log is empty.
        """
        greetings, looks = await asyncio.gather(self._greet(), self._look())
        members = [greeting for greeting in greetings.values() if greeting is not None]
        log = max(members, key=lambda greeting: (greeting.last_term, greeting.flush_lsn))
        if not log.log_tli:
            raise FailoverRefused("the safekeepers have no WAL: no commit was ever acknowledged, start walproxy run")
        return Survey(log, (len(members), len(greetings)), looks)

    async def run(self, wanted: str = "", *, old_is_dead: bool = False) -> Report:
        """Fail over, or finish a failover that was begun.

        Args:
            wanted: the standby to promote, "" for the one that has received the most.
            old_is_dead: also if the old primary replies, or its proxy leads.

        Raises:
            FailoverRefused: the primary lives.
            NoCandidate, NotSealed, ConfigurationError, WalproxyError: one line.
        """
        survey, name, promotion = await self.promote(wanted, old_is_dead=old_is_dead)
        term = await self._until_log_is_on(name, promotion)
        return Report(
            primary=name,
            old_tli=survey.log.log_tli,
            tli=promotion.tli,
            fork_lsn=promotion.fork_lsn,
            term_before=survey.log.last_term,
            term=term,
            seconds=self._seconds,
        )

    async def promote(self, wanted: str = "", *, old_is_dead: bool = False) -> tuple[Survey, str, Promotion]:
        """Take the steps up to the promotion; return what was found, and the promoted server. As `run`."""
        survey = await self.survey()
        living, promoted = survey.living_primary, survey.promoted
        if promoted is not None and (
            (wanted and not is_named(promoted, wanted)) or (old_is_dead and promoted == living)
        ):
            promoted = None
        if living is not None and living != promoted and not old_is_dead:
            raise FailoverRefused(
                f"{living.name} is the primary of the log (timeline {living.tli}) and replies: use walproxy switchover "
                "to move to another server; with --old-is-dead it is sealed off all the same"
            )
        if promoted is not None:
            self._show.step(f"{promoted.name} was promoted to timeline {promoted.tli} by an earlier run")
            name, promotion = promoted.name, Promotion(promoted.tli, promoted.replayed_lsn)
        else:
            looks = [look for look in survey.looks if look != living]
            choose(looks, survey.estimated_end(), wanted)  # Before anything is changed.
            name, promotion = await self._seal_and_promote(survey.log.log_tli, wanted, takeover=old_is_dead)
        return survey, name, promotion

    async def cancel(self) -> Survey:
        """Let the sealed primary in again; return what was found.

        Raises:
            FailoverRefused: nothing is sealed, or a server was promoted already.
        """
        survey = await self.survey()
        log = survey.log
        if log.floor < log.log_tli:
            raise FailoverRefused(f"timeline {log.log_tli} of the log is not sealed: nothing is to be cancelled")
        later = [look for look in survey.looks if look.in_recovery is False and look.tli > log.log_tli]
        if later:
            raise FailoverRefused(
                f"{later[0].name} was promoted to timeline {later[0].tli}: finish the failover with walproxy failover"
            )
        async with self._sealed(Seal(log.log_tli, cancels=True), takeover=False):
            return survey

    # ------------------------------------------------------------------ steps

    async def _seal_and_promote(self, tli: int, wanted: str, *, takeover: bool) -> tuple[str, Promotion]:
        """Seal a timeline, and promote a standby to the number that this seal gives out."""
        promoted: tuple[str, Promotion] | None = None
        for _ in range(_SEALS_MAX):
            async with self._sealed(Seal(tli), takeover=takeover) as sealer:
                if promoted is None:
                    end = await find_log_end(sealer.elected, self._safekeepers, self._credentials)
                    self._show.step(
                        f"sealed timeline {end.tli}: the log ends at {format_lsn(end.end_lsn)}, in term "
                        f"{sealer.elected.leader_id.term}"
                    )
                    self._ended("seal")
                    chosen = await self._until_caught_up(sealer, end, wanted)
                    self._ended("catch up")
                    promoted = chosen.name, await self._promote(chosen, end)
                    self._ended("promote")
                name, promotion = promoted
                next_tli = sealer.elected.history[-1].floor + 1
                if promotion.tli < next_tli:
                    raise WalproxyError(
                        f"{name} was promoted to timeline {promotion.tli}, and the next free one is {next_tli}: make "
                        "it a standby again with pg_rewind, and repeat the command"
                    )
                if promotion.tli == next_tli:
                    return promoted
            # It found history files of other numbers: no later failover may give out the number that it took.
            self._show.step(f"{name} took timeline {promotion.tli}, not {next_tli}: sealing the numbers between")
        raise WalproxyError(f"{name} took timeline {promotion.tli}, far above {next_tli}: repeat the command")

    async def _until_caught_up(self, sealer: Sealer, end: LogEnd, wanted: str) -> HostLook:
        """Return the first standby that has everything."""
        if not end.records_end_lsn:
            raise FailoverRefused(
                "the log has no complete record, so nobody was told of a commit: cancel with walproxy failover "
                "--cancel and begin anew with walproxy rebootstrap"
            )
        while True:
            looks = await self._look()
            sealer.check()
            best = choose(looks, end, wanted)
            self._show.behind(best, missing_bytes(best, end))
            if has_everything(best, end):
                return best
            await asyncio.sleep(_POLL_S)

    async def _promote(self, chosen: HostLook, end: LogEnd) -> Promotion:
        server = self._servers[chosen.name]
        if self._guard is not None:
            await self._guard()
        self._show.step(f"promoting {chosen.name}, which has everything up to {format_lsn(end.records_end_lsn)}")
        await asyncio.to_thread(server.reserve, tlis_to_reserve(chosen, end))
        return await asyncio.to_thread(server.promote)

    async def _until_log_is_on(self, name: str, promotion: Promotion) -> int:
        """Wait until a quorum has WAL of the promoted server; return the term."""
        self._show.step(f"{name} is a primary on timeline {promotion.tli}: waiting for its proxy")
        deadline = time.monotonic() + self._resume_timeout_s
        while True:
            greetings = [each for each in (await self._greet()).values() if each is not None]
            for greeting in greetings:
                if greeting.log_tli == promotion.tli and greeting.commit_lsn > promotion.fork_lsn:
                    self._ended("resume")
                    return greeting.last_term
            if any(greeting.log_tli > promotion.tli for greeting in greetings):
                raise WalproxyError(f"another failover has overtaken this one: {name} must become a standby")
            if time.monotonic() > deadline:
                raise WalproxyError(
                    f"{name} was promoted to timeline {promotion.tli}, and no proxy has taken it over within "
                    f"{self._resume_timeout_s:g} s: start walproxy run with a --primary that names it, or read the log "
                    "of the one that runs"
                )
            await asyncio.sleep(_POLL_S)

    # ------------------------------------------------------------------ parts

    def _sealed(self, seal: Seal, *, takeover: bool) -> AbstractAsyncContextManager[Sealer]:
        return sealed_timeline(
            self._safekeepers,
            seal,
            takeover=takeover,
            credentials=self._credentials,
            timeout_s=self._seal_timeout_s,
        )

    async def _look(self) -> tuple[HostLook, ...]:
        return tuple(await asyncio.gather(*(asyncio.to_thread(server.look) for server in self._servers.values())))

    async def _greet(self) -> dict[int, AcceptorGreeting | None]:
        """Return the greeting of each member, None for one that does not reply."""
        fleet = Fleet(self._safekeepers, self._credentials)
        try:
            sight = await fleet.look()
        finally:
            await fleet.close()
        cluster = present_cluster(sight)
        ids = {member.id for half in cluster.membership.halves() for member in half}
        greetings = {each: sight[each].greeting if each in sight else None for each in ids}
        return {
            each: greeting if greeting is not None and greeting.cluster_id == cluster.id else None
            for each, greeting in greetings.items()
        }

    def _ended(self, step: str) -> None:
        now = time.monotonic()
        self._seconds[step], self._since = round(now - self._since, 3), now
