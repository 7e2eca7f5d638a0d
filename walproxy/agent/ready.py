"""`walproxy ready-to-promote`: for managers that promote by themselves (Patroni, repmgr, scripts).

A manager runs the command before it promotes a standby. Exit code 0 means: nothing that was acknowledged is lost by the
promotion, and nothing more is acknowledged on the old timeline. The command does the first steps of a failover
(protocol, step 13) for one standby, and leaves the promotion to its caller:

1. Seal the log's timeline, and lead that term while the next steps take place.
2. Wait until the standby has the last complete record of the log: by its walreceiver, by its restore_command, or, if
   neither delivers, by writing the missing WAL to its pg_wal (hand_over.py).
3. Reserve the number that the promotion takes, in a term of the same run, and make PostgreSQL pass the lower ones over.

It can be repeated, also for another standby: each run reserves a number of its own. A run that fails takes the seal
back, as a failover does.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from safekeeper.base.errors import PrimaryRefused, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.settings import Address
from safekeeper.base.timelines import PASSED_OVER_HISTORY
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.agent.hand_over import hand_over
from walproxy.agent.standby_folder import LocalStandbyFolder
from walproxy.failover.attempt import StepDisplay, take_back
from walproxy.failover.candidates import HostLook, missing_bytes, number_for, obstacle, tlis_to_pass_over
from walproxy.failover.failover import Failover
from walproxy.failover.log_end import LogEnd, TermWal, find_log_end
from walproxy.failover.sealer import NotSealed, Sealer, sealing_run
from walproxy.failover.server import Server
from walproxy.failover.survey import Survey
from walproxy.postgres.hosts import PrimaryHost
from walproxy.proposer.purpose import Reserve, Seal

_POLL_S = 0.05
# A proxy that leads may have lost its primary just now: safekeepers receive that with its next heartbeat.
_LEADER_ENDS_S = 2.5
_RETRY_S = 0.2
# A standby that starts, or a loaded machine.
_REPLIES_S = 10.0
# A walreceiver that works delivers at once. PostgreSQL tries its other means every wal_retrieve_retry_interval, 5 s.
_GRACE_S = 0.3
_REPLAYS_S = 1.0


class NotReady(WalproxyError):
    """The standby must not be promoted now. One line says why, and what to do."""


class StandbyRefused(PrimaryRefused):
    """The standby must not be promoted, however long one waits. One line says why."""


@dataclass(frozen=True)
class ReadyReport:
    """The end of a run.

    Attributes:
        standby: its name.
        tli: the timeline that is sealed.
        promoted_tli: the one that the promotion takes; a server with another one is refused.
        term: the sealing one.
        end_lsn: the end of the log.
        reached_lsn: the end of the standby's WAL.
        handed_bytes: how much of it was written to its pg_wal.
        seconds: the duration of the run.
    """

    standby: str
    tli: int
    promoted_tli: int
    term: int
    end_lsn: Lsn
    reached_lsn: Lsn
    handed_bytes: int
    seconds: float


class ReadyToPromote:
    """One run of the command.

    Args:
        safekeepers: ids and addresses.
        standby: how to connect to it.
        folder: its data folder; None if it is on another machine: then only its own means deliver WAL.
        old_is_dead: also if another proxy leads and has a primary.
    """

    def __init__(
        self,
        safekeepers: tuple[tuple[int, Address], ...],
        standby: PrimaryHost,
        credentials: Credentials,
        show: StepDisplay,
        *,
        folder: LocalStandbyFolder | None = None,
        old_is_dead: bool = False,
    ) -> None:
        self._safekeepers = safekeepers
        self._host = standby
        self._server = Server(standby)
        self._credentials = credentials
        self._show = show
        self._folder = folder
        self._old_is_dead = old_is_dead
        self._handed_bytes = 0
        self._doing = "looking at the safekeepers and the standby"

    async def run(self, timeout_s: float) -> ReadyReport:
        """Return when the standby may be promoted.

        Raises:
            NotReady, StandbyRefused, NotSealed, ConfigurationError, WalproxyError: it must not be; one line.
        """
        began_at = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                if self._folder is not None:
                    folder = self._folder
                    await asyncio.to_thread(lambda: folder.check(self._server.data_directory()))
                survey = await self._survey()
                # A restore_command may take a while for each number: meanwhile the timeline is sealed.
                free = asyncio.create_task(asyncio.to_thread(self._first_free_tli, survey.looks[0].tli))
                try:
                    return await self._until_ready(survey.log.log_tli, free, began_at, timeout_s)
                finally:
                    free.cancel()
                    await asyncio.gather(free, return_exceptions=True)
        except TimeoutError:
            raise NotReady(f"not ready after {timeout_s:g} s: {self._doing}") from None

    async def _survey(self) -> Survey:
        """Look at both sides, and refuse what no waiting changes before anything is sealed."""
        failover = Failover(self._safekeepers, (self._host,), self._credentials, self._show)
        deadline = time.monotonic() + _REPLIES_S
        try:
            while True:
                survey = await failover.survey()
                (look,) = survey.looks
                if look.in_recovery is not None or time.monotonic() > deadline:
                    self._refuse(look, survey.estimated_end())
                    return survey
                await asyncio.sleep(_RETRY_S)
        finally:
            await failover.close()

    def _refuse(self, look: HostLook, end: LogEnd) -> None:
        reason = obstacle(look, end)
        if look.in_recovery is None:
            raise NotReady(f"{look.name} does not reply: {reason}")
        if reason:
            raise StandbyRefused(f"{look.name} must not be promoted: it {reason}")

    async def _until_ready(self, tli: int, free: asyncio.Task[int], began_at: float, timeout_s: float) -> ReadyReport:
        left_s = timeout_s - (time.monotonic() - began_at)
        async with sealing_run(
            self._safekeepers,
            takeover=self._old_is_dead,
            credentials=self._credentials,
            timeout_s=round(max(0.1, left_s - 0.5), 1),  # Its error is the better one.
        ) as run:
            try:
                await self._seal(run, tli)
                end = await find_log_end(run.elected, self._safekeepers, self._credentials)
                term = run.elected.leader_id.term
                self._show.step(f"sealed timeline {end.tli}: the log ends at {format_lsn(end.end_lsn)}, in term {term}")
                look = await self._until_caught_up(run, end)
                promoted_tli = await self._reserve(run, look, end, await free)
                run.check()
            except (Exception, asyncio.CancelledError):
                await take_back(run, tli, self._show)
                raise
            return ReadyReport(
                standby=look.name,
                tli=end.tli,
                promoted_tli=promoted_tli,
                term=run.elected.leader_id.term,
                end_lsn=end.end_lsn,
                reached_lsn=look.reached_lsn,
                handed_bytes=self._handed_bytes,
                seconds=round(time.monotonic() - began_at, 3),
            )

    async def _seal(self, run: Sealer, tli: int) -> None:
        """Seal a timeline, also if a proxy leads that has lost its primary a moment ago."""
        self._doing = f"sealing timeline {tli}"
        deadline = time.monotonic() + _LEADER_ENDS_S
        while True:
            try:
                await run.pursue(Seal(tli))
                return
            except NotSealed as error:
                if not error.is_led:
                    raise
                if time.monotonic() > deadline:
                    raise NotReady(
                        "a proxy leads, and its primary commits: nothing is sealed (with --old-is-dead that primary is "
                        "sealed off)"
                    ) from None
            await asyncio.sleep(_RETRY_S)

    async def _until_caught_up(self, sealer: Sealer, end: LogEnd) -> HostLook:
        """Wait until the standby has every complete record, by whatever delivers it."""
        if not end.records_end_lsn:
            raise NotReady("the log has no complete record, so no commit was acknowledged: see walproxy rebootstrap")
        reached_lsn, reached_at = 0, 0.0
        was_handed = False
        while True:
            look = await asyncio.to_thread(self._server.look)
            sealer.check()
            now = time.monotonic()
            if look.in_recovery is None:
                self._doing = f"{look.name} does not reply: {look.problem}"
                await asyncio.sleep(_RETRY_S)
                continue
            self._refuse(look, end)
            missing = missing_bytes(look, end)
            if not missing:
                return look
            self._doing = f"{look.name} has WAL up to {format_lsn(look.reached_lsn)} and lacks {missing} bytes"
            self._show.waiting(f"{look.name} lacks WAL", missing)
            if look.reached_lsn != reached_lsn or not reached_at:
                reached_lsn, reached_at = look.reached_lsn, now
            elif self._folder is None:
                self._doing += ": see its log, and whether its primary_conninfo or restore_command reaches safekeepers"
            elif not was_handed and now - reached_at > _GRACE_S:
                await self._hand_over(self._folder, sealer, end, look)
                was_handed, reached_at = True, time.monotonic()
            elif was_handed and now - reached_at > _REPLAYS_S:
                # Recovery does not look at pg_wal while a walreceiver runs, e.g. one whose server hangs.
                self._doing += ", which are in its pg_wal: see its log, and whether its recovery is paused or delayed"
                await asyncio.to_thread(self._wake, self._folder)
                was_handed, reached_at = False, time.monotonic()
            await asyncio.sleep(_POLL_S)

    async def _hand_over(self, folder: LocalStandbyFolder, sealer: Sealer, end: LogEnd, look: HostLook) -> None:
        elected = sealer.elected
        histories = {history.tli: history.content for history in elected.tli_histories}
        wal = TermWal(elected, self._safekeepers, self._credentials)
        try:
            handed = await hand_over(folder, wal.read, end, look, elected.segment_size, histories)
        finally:
            await wal.close()
        self._handed_bytes += handed
        self._show.step(f"wrote {handed} bytes of WAL to the pg_wal of {look.name}")
        await asyncio.to_thread(folder.wake)

    def _wake(self, folder: LocalStandbyFolder) -> None:
        pid = self._server.walreceiver_pid()
        if pid is not None:
            self._show.step(f"ending the walreceiver of {self._server.name}, which receives nothing")
            folder.end_walreceiver(pid)
        folder.wake()

    async def _reserve(self, run: Sealer, look: HostLook, end: LogEnd, free_tli: int) -> int:
        """Reserve a number for the promotion, and make sure that it is taken; return it.

        Args:
            free_tli: the first number above the standby's that was free before.
        """
        number = number_for(look, end, free_tli - 1)
        self._doing = f"reserving timeline {number}"
        await run.pursue(Reserve(end.tli, number))
        await asyncio.to_thread(self._place_histories, tlis_to_pass_over(look, number))
        taken_tli = await asyncio.to_thread(self._first_free_tli, number - 1)
        if taken_tli > number:
            self._show.step(f"{look.name} would take timeline {taken_tli}, not {number}")
            await run.pursue(Reserve(end.tli, taken_tli, is_taken=True))
        return taken_tli

    def _place_histories(self, tlis: range) -> None:
        if self._folder is None:
            self._server.place_histories(tlis)
            return
        for tli in tlis:
            self._folder.place_history(tli, PASSED_OVER_HISTORY)

    def _first_free_tli(self, tli: int) -> int:
        """Return the first number above `tli` of which PostgreSQL finds no history file."""
        has_history: Callable[[int], bool]
        if self._folder is None:
            has_history = self._server.has_history
        else:
            has_history = self._folder.history_probe(self._server.restore_command())
        tli += 1
        while has_history(tli):
            tli += 1
        return tli
