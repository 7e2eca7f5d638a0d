"""The steps that an agent takes on its server, one at a time. Each blocks in a thread, with a bound."""

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.logs import describe_bug, log_event
from safekeeper.base.lsn import format_lsn
from safekeeper.base.settings import address as parse_address
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.agent import agent_settings
from walproxy.agent.activity import Activity
from walproxy.agent.config import AgentConfig
from walproxy.agent.decision import (
    AllowWrites,
    Decider,
    EndWrites,
    FailOver,
    Kill,
    LetIn,
    Rebuild,
    Refuse,
    Rejoin,
    Resign,
    StartPrimary,
    StartStandby,
    Step,
    StepDown,
    Stop,
    Wait,
)
from walproxy.agent.guards import Guards
from walproxy.agent.managed_server import READ_ONLY, ManagedServer
from walproxy.agent.orders import CANCEL
from walproxy.agent.proxy_process import ProxyProcess
from walproxy.agent.rejoin import RejoinRun
from walproxy.agent.rejoin_folder import RejoinFolder
from walproxy.agent.rejoin_plan import RejoinPlan, Way
from walproxy.agent.report import AgentReport, Order
from walproxy.agent.server_look import ServerState
from walproxy.agent.watches import ClusterWatch
from walproxy.agent.work import AgentWork, WorkState
from walproxy.failover.attempt import AttemptOptions
from walproxy.failover.discarded_report import discarded_report, write_report
from walproxy.failover.failover import Failover
from walproxy.failover.sealer import sealing_run
from walproxy.postgres.hosts import PrimaryHost
from walproxy.postgres.problems import ServerProblem
from walproxy.proposer.purpose import Readmit

_log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 30.0
_FORCED_STOP_TIMEOUT_S = 5.0
# The server's walreceiver connects again every 5 s.
_CATCH_UP_TIMEOUT_S = 7.0
_SEAL_TIMEOUT_S = 10.0


class Configure:
    """The step that writes the settings of a server that ran before the agent did."""


@dataclass
class Steps:
    """The steps of one agent.

    Attributes:
        host: the server, as a failover reaches it.
        is_configured: the server has the settings of its role.
    """

    config: AgentConfig
    credentials: Credentials
    host: PrimaryHost
    server: ManagedServer
    proxy: ProxyProcess
    guards: Guards
    cluster: ClusterWatch
    decider: Decider
    work: AgentWork
    activity: Activity
    is_configured: bool = False

    def prepare(self) -> None:
        """Check that the server can be managed, and find whether its writes were ended (blocking).

        Raises:
            ConfigurationError: the data folder or a program cannot be used.
        """
        self.server.prepare()
        self.decider.ended_writes = READ_ONLY in agent_settings.read(self.config.pgdata)

    async def take(self, step: Step | Configure, state: ServerState) -> None:
        """Take one step. An error is logged, and shown as the agent's problem until a step succeeds.

        Args:
            state: of the server.
        """
        try:
            match step:
                case Configure():
                    await self._configure(state)
                case StartPrimary():
                    await self._start_primary()
                case StartStandby():
                    await self._start_standby()
                case FailOver(order):
                    await self._fail_over(order)
                case EndWrites(reason, stops):
                    await self._end_writes(reason, stops)
                case AllowWrites():
                    await self._allow_writes()
                case Stop(reason):
                    self.activity.log(f"stopping PostgreSQL: {reason}", level=logging.WARNING)
                    await self.proxy.kill()
                    await asyncio.to_thread(self._stop_by_force)
                case Kill(reason):
                    _log.warning("killing PostgreSQL: %s", reason)
                    await self.proxy.kill()
                    self.decider.resigned(time.monotonic())
                    await asyncio.to_thread(self.server.kill)
                case Rejoin(leader):
                    await self._rejoin(leader)
                case Rebuild(leader, order):
                    await self._rebuild(leader, order)
                case StepDown(order, to, reason):
                    await self._step_down(order, to, reason)
                case Resign(reason):
                    self.activity.log(f"has resigned: {reason}", level=logging.WARNING)
                    self.decider.resigned(time.monotonic())
                case LetIn(tli):
                    await self._let_in(tli)
                case Refuse(order, reason):
                    if reason:
                        _log.warning("refused the %s: %s", order.kind, reason)
                    self.order_ended(order, reason)
                    await self._remove_order(order)
                case Wait():
                    pass
            self.activity.succeeded()
        except (WalproxyError, OSError) as error:
            self.decider.failed(time.monotonic())
            self.activity.failed(str(error))
        except Exception as bug:
            self.decider.failed(time.monotonic())
            self.activity.failed(describe_bug(bug))
        finally:
            self.activity.doing = ""

    def order_ended(self, order: Order, result: str) -> None:
        """Record that an order was executed, or why it was not."""
        self.decider.orders_done.add(order.id)
        self.activity.order_done, self.activity.order_result = order.id, result

    async def _remove_order(self, order: Order) -> None:
        await self.cluster.change_settings(lambda settings: settings.without(order))

    # Settings, start and stop.

    def _common_settings(self) -> dict[str, str]:
        return {"synchronous_standby_names": f'"{self.config.application_name}"'}

    async def _configure(self, state: ServerState) -> None:
        """Write the agent's settings of a server that serves already."""
        if state is ServerState.STANDBY:
            await asyncio.to_thread(self._make_standby)
            self.decider.ended_writes = False
            # It would retain WAL without end.
            await asyncio.to_thread(self.server.drop_slot, self.config.slot)
        else:
            await asyncio.to_thread(self._configure_primary)
        self.is_configured = True

    def _configure_primary(self) -> None:
        kept = agent_settings.read(self.config.pgdata)
        if agent_settings.write(self.config.pgdata, {**kept, **self._common_settings()}):
            self.server.reload()

    def _make_standby(self) -> None:
        self.server.make_standby(
            self.config.standby_conninfo, self.config.restore_command, settings=self._common_settings()
        )

    async def _start_primary(self) -> None:
        self._begin("starting PostgreSQL as the primary")

        def start() -> None:
            agent_settings.write(self.config.pgdata, {**self._common_settings(), READ_ONLY: "on"})
            self.server.start(as_standby=False, timeout_s=self.config.start_timeout)

        self.decider.ended_writes = True
        await asyncio.to_thread(start)
        self.is_configured = True

    async def _start_standby(self) -> None:
        self._begin("starting PostgreSQL as a standby")

        def start() -> None:
            self._make_standby()
            self.server.start(as_standby=True, timeout_s=self.config.start_timeout)

        await asyncio.to_thread(start)
        self.decider.ended_writes = False
        self.is_configured = False

    def _begin(self, doing: str) -> None:
        self.activity.doing = doing
        self.activity.log(doing)

    async def _end_writes(self, reason: str, stops: bool) -> None:
        log_event(_log, "writes-ended", {}, "no writes from now on: %s", reason, level=logging.WARNING)
        if not stops:
            try:
                await asyncio.to_thread(self.server.make_read_only, max(0.3, 0.15 * self.config.dead_after))
                self.decider.ended_writes = True
                return
            except WalproxyError as error:
                _log.warning("PostgreSQL could not be made read-only, it is stopped: %s", error)
        await asyncio.to_thread(self._stop_by_force)

    async def _allow_writes(self) -> None:
        await asyncio.to_thread(self.server.make_writable)
        self.decider.ended_writes = False
        log_event(_log, "writes-allowed", {}, "a quorum of the safekeepers receives WAL: writes are allowed")

    def _stop_by_force(self) -> None:
        for mode in ("fast", "immediate"):
            try:
                self.server.stop(mode, _FORCED_STOP_TIMEOUT_S)
                return
            except ServerProblem as error:
                _log.warning("%s", error)
        self.server.kill()

    async def _step_down(self, order: Order | None, to: str, reason: str) -> None:
        why = f" ({reason})" if reason else ""
        self.activity.doing = f"switchover to {to}: stopping PostgreSQL"
        _log.warning("%s%s", self.activity.doing, why)
        if order is not None:
            self.decider.orders_done.add(order.id)
        try:
            await asyncio.to_thread(self.server.stop, "fast", _STOP_TIMEOUT_S)
        except ServerProblem as error:
            if order is not None:
                self.order_ended(order, str(error))
                await self._remove_order(order)
            raise
        self.decider.resigned(time.monotonic())

    async def _let_in(self, tli: int) -> None:
        """Lower the floor below the own server, which only that keeps out (13.10)."""
        self._begin(f"no agent leads or fails over: letting timeline {tli} in again")
        async with sealing_run(self.config.safekeepers, credentials=self.credentials, timeout_s=_SEAL_TIMEOUT_S) as run:
            await run.pursue(Readmit(tli))
        log_event(_log, "primary-readmitted", {"tli": tli}, "timeline %d is not sealed any longer", tli)

    # A failover.

    async def _fail_over(self, order: Order | None) -> None:
        kind = order.kind if order is not None else "failover"
        began_at = time.monotonic()
        lost_at = self.decider.exchanges.leader_seen_at or began_at
        self.activity.doing = f"{kind}: sealing timeline {self.cluster.view.log.tli}"
        why = "ordered" if order is not None else "the leader is lost"
        log_event(_log, "failover-begun", {"kind": kind}, "%s begins: %s", kind, why)

        async def guard() -> None:
            await self.guards.require(self.cluster.last_leader)
            await prepared
            ordered = self.cluster.view.settings.order
            if ordered is not None and ordered.kind == CANCEL:
                raise WalproxyError("the failover was cancelled by an operator")

        run = Failover(
            self.config.safekeepers,
            [self.host],
            self.credentials,
            _FailoverDisplay(self.activity, kind),
            # One that has ended can be started again once the attempt is over.
            attempt=AttemptOptions(guard, catch_up_timeout_s=_CATCH_UP_TIMEOUT_S, has_ended=self.server.has_ended),
            may_be_read_only=True,
            seal_timeout_s=_SEAL_TIMEOUT_S,
        )
        self.work.fail_over(run, order, lost_at)
        self.cluster.exchange_now()  # The others wait once they have received that.
        # It accepts writes once commits succeed. A standby accepts none in any case.
        self.decider.ended_writes = True
        # While the guards are asked.
        prepared = asyncio.create_task(asyncio.to_thread(self._prepare_promotion))
        try:
            await self.proxy.keep_running(began_at)
            # The old leader has stopped its server; its proxy may still count as healthy for a second.
            log, _, promotion = await run.promote(old_is_dead=kind == "switchover")
            self.work.promoted(log.log_tli, promotion)
        except WalproxyError as error:
            log_event(_log, "failover-failed", {"kind": kind}, "%s failed: %s", kind, error, level=logging.WARNING)
            raise
        finally:
            if self.work.state is WorkState.FAILING_OVER:
                self.work.end()
            await asyncio.gather(prepared, return_exceptions=True)  # Its error is the guard's.
            self.is_configured = False  # A standby that was not promoted is made an ordinary one again.
            await run.close()
        self.proxy.retry()

    def _prepare_promotion(self) -> None:
        """Let the server be read-only once it is a primary, and retain the WAL that its proxy compares and sends first.

        A slot that is made after the promotion is too late for that.
        """
        kept = agent_settings.read(self.config.pgdata)
        agent_settings.write(self.config.pgdata, {**kept, READ_ONLY: "on"})
        self.server.reload()
        self.server.make_slot(self.config.slot)

    # A server that becomes a standby of the leader.

    async def _rejoin(self, leader: AgentReport) -> None:
        self.activity.doing = f"rejoining {leader.name}"
        _log.info("%s as a standby", self.activity.doing)
        way = await asyncio.to_thread(self._rejoin_and_report, leader)
        self.decider.rejoined()
        fields = {"leader": leader.name, "way": way.value}
        log_event(_log, "server-rejoined", fields, "rejoined %s (%s)", leader.name, way.value)

    def _rejoin_and_report(self, leader: AgentReport) -> Way:
        if RejoinFolder(self.config.pgdata).read() is not None:
            return self._rejoin_run(leader).run()  # Continued: its report was made before it began.
        plan = self._rejoin_run(leader).plan()
        keep_wal = None
        if plan.way is not Way.FOLLOW:
            keep_wal = self._report_discarded(plan)
        return self._rejoin_run(leader, keep_wal).run()

    def _rejoin_run(self, leader: AgentReport, keep_wal: Path | None = None) -> RejoinRun:
        place = parse_address(leader.address)
        return RejoinRun(
            self.server,
            make_conninfo(self.config.peer_conninfo, host=place.host, port=place.port),
            primary_conninfo=self.config.standby_conninfo,
            restore_command=self.config.restore_command,
            keep_wal=keep_wal,
        )

    def _report_discarded(self, plan: RejoinPlan) -> Path | None:
        """Keep a report of the transactions that the rejoin discards; return where to keep the WAL if it fails."""
        config = self.config
        folder = config.discarded_dir or config.pgdata.with_name(f"{config.pgdata.name}.discarded")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        control = self.server.control_data()
        fork_lsn = plan.fork.lsn if plan.fork is not None else None
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{at}-timeline-{control.last_tli}"
        try:
            if fork_lsn is None:
                raise ConfigurationError(f"no fork is known: {plan.reason}")
            report = discarded_report(config.pgdata / "pg_wal", fork_lsn, control.last_tli)
            write_report(folder / f"{name}.json", report)
        except WalproxyError as error:
            _log.error("no report of the discarded transactions, their WAL is kept in %s: %s", folder / name, error)
            return folder / name
        log = _log.warning if report.commits else _log.info
        log(
            "%d committed transactions after %s reached no quorum and are discarded: %s",
            report.commits,
            format_lsn(fork_lsn),
            folder / f"{name}.json",
        )
        return None

    async def _rebuild(self, leader: AgentReport, order: Order) -> None:
        self.activity.doing = f"rebuilding from {leader.name}"
        fields = {"leader": leader.name}
        log_event(_log, "server-rebuilt", fields, "rebuilding the data folder by a base backup of %s", leader.name)

        def rebuild() -> None:
            self._stop_by_force()
            self._rejoin_run(leader).run(by_base_backup=True)

        try:
            await asyncio.to_thread(rebuild)
        except (WalproxyError, OSError) as error:
            self.order_ended(order, str(error))
            raise
        else:
            self.order_ended(order, "")
        finally:
            await self._remove_order(order)


@dataclass
class _FailoverDisplay:
    """Where a failover shows what it does: the agent's report and its log."""

    activity: Activity
    kind: str

    def step(self, text: str) -> None:
        """Show that a step has begun or ended."""
        self.activity.doing = f"{self.kind}: {text}"
        _log.info("%s: %s", self.kind, text)

    def waiting(self, text: str, missing_bytes: int = 0) -> None:
        """Show for what it waits."""
        self.activity.doing = f"{self.kind}: {text}" + (f" ({missing_bytes} bytes)" if missing_bytes else "")
