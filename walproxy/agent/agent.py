"""The agent: looks, exchanges, decides, and takes the steps.

Three loops of one process. One exchanges reports with the safekeepers, one looks at the server, and one lets the
`Decider` (walproxy/agent/decision.py) choose a step whenever one of them has news. One step is taken at a time, and
the next is decided after another look. Steps block in threads, with bounds. The proxy runs while the server is a
primary, beside the steps: commits do not wait for them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError, WalproxyError
from safekeeper.base.logs import CHANGES_A_MINUTE, ProblemLog, RateLimits, describe_bug, log_event
from safekeeper.base.lsn import format_lsn
from safekeeper.base.settings import address as parse_address
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.agent import agent_settings
from walproxy.agent.config import AgentConfig
from walproxy.agent.decision import (
    SILENCE_S,
    AllowWrites,
    Decider,
    EndWrites,
    FailOver,
    Kill,
    Own,
    Rebuild,
    Refuse,
    Rejoin,
    StartPrimary,
    StartStandby,
    Step,
    StepDown,
    Stop,
    Wait,
    describe,
    leader_of,
    without_order,
)
from walproxy.agent.lease import EtcdLease
from walproxy.agent.lease_guard import LeaseGuard
from walproxy.agent.managed_server import ManagedServer
from walproxy.agent.proxy_process import ProxyProcess, ProxyProgress
from walproxy.agent.rejoin import RejoinRun
from walproxy.agent.rejoin_folder import RejoinFolder
from walproxy.agent.rejoin_plan import RejoinPlan, Way
from walproxy.agent.report import CHANGES_MAX, AgentReport, AgentSettings, Order, PrimaryChange, encode
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.agent.sight import AgentSight
from walproxy.agent.state import AgentState, ClusterView, view_of
from walproxy.agent.watchdog import Watchdog
from walproxy.failover.discarded_report import discarded_report, write_report
from walproxy.failover.failover import Failover
from walproxy.failover.server import Promotion
from walproxy.postgres.hosts import primary_hosts
from walproxy.postgres.local_server import end_with_parent
from walproxy.postgres.problems import ServerProblem

_log = logging.getLogger(__name__)

EXCHANGE_INTERVAL_S = 0.25
LOOK_INTERVAL_S = 0.5
LOOK_SOON_INTERVAL_S = 0.1
LOOK_SOON_FOR_S = 10.0
_COMMITS_INTERVAL_S = 0.02
# Added to the time at which the loss of the leader can be known: an exchange a moment too early would not show it.
_AFTER_LOSS_S = 0.01
_TICK_S = 0.25
_SETTINGS_TIMEOUT_S = 5.0
_STOP_TIMEOUT_S = 30.0
_FORCED_STOP_TIMEOUT_S = 5.0
_CATCH_UP_TIMEOUT_S = 25.0
_FENCE_TIMEOUT_S = 60.0
_READ_ONLY = "default_transaction_read_only"


class Agent:
    """One agent and its server.

    Attributes:
        credentials: for the safekeepers.
        look: the last look at the server.
        view: the last exchange.
        commits: whether commits succeed through the own proxy.

    Args:
        cluster_file: that of this agent, which its proxy reads, too.
    """

    def __init__(self, config: AgentConfig, credentials: Credentials, cluster_file: Path | None = None) -> None:
        self.config = config
        self.credentials = credentials
        self.server = ManagedServer(
            config.pgdata,
            config.bin_dir,
            config.conninfo,
            log_path=self._log_path(),
            config_file=config.config_file,
        )
        hosts = primary_hosts(config.conninfo, "the local server's")
        if len(hosts) != 1:
            raise ConfigurationError("conninfo names several hosts: name the local server only")
        self._host = hosts[0]
        self._views = SafekeeperViews(config.safekeepers, credentials, config.name)
        self._proxy = ProxyProcess(self._proxy_arguments(cluster_file), end_with_parent("KILL"))
        self._watchdog = Watchdog(Path(config.watchdog_device), required=config.watchdog == "required")
        self._lease = _lease_guard(config)
        self._decider = Decider(
            Own(
                config.name,
                address=str(config.address),
                dead_after_s=config.dead_after,
                may_lead=not config.no_failover,
                priority=config.priority,
                stops_without_quorum=config.without_quorum == "stop",
            )
        )
        self.look = ServerLook(ServerState.MISSING)
        self.view = ClusterView(time.monotonic(), problem="no safekeeper has replied yet")
        self.commits = False
        self._progress = ProxyProgress()
        self._looked_at = -1.0
        self._look_needed_at = 0.0
        self._server_version = 0
        self._doing = ""
        self._problem = ""
        self._order_done = ""
        self._order_result = ""
        # A reason that comes and goes each second is a few lines a minute, as is a step that fails again and again.
        self._waits_for = ProblemLog(_log)
        self._failures = ProblemLog(_log)
        self._lines = RateLimits(CHANGES_A_MINUTE, 60.0)
        self._is_failing_over = False
        self._is_settling = False  # It was promoted, and the safekeepers have not heard its proxy yet.
        self._last_leader = ""
        self._step: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._prepared: asyncio.Task[None] | None = None
        self._started_at = time.time()
        self._quorum_seen_at = 0.0
        self._promoted: tuple[Order | None, float, int, Promotion] | None = None
        self._is_configured = False
        self._changed = asyncio.Event()
        self._look_now = asyncio.Event()
        self._exchange_now = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop`. The server goes on without the agent; the proxy does not.

        Raises:
            ConfigurationError: the data folder or a program cannot be used.
        """
        await asyncio.to_thread(self._prepare)
        works = (self._exchange_loop, self._look_loop, self._step_loop, self._lease_loop)
        loops = [asyncio.create_task(loop()) for loop in works]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([*loops, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()  # A loop ends by an error only.
        finally:
            for each in (*loops, stopping, self._step, self._recording):
                if each is not None:
                    each.cancel()
            await asyncio.gather(*loops, stopping, return_exceptions=True)
            await self._proxy.stop()
            await self._views.close()
            if self._watchdog.is_open:
                self._watchdog.close()

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()

    def _log_path(self) -> Path:
        return self.config.server_log or self.config.pgdata.with_name(f"{self.config.pgdata.name}.log")

    def _prepare(self) -> None:
        if self._lease is not None:
            self._lease.probe()
        if not self._log_path().exists():
            # The server's user need not be allowed to create files in that folder.
            self.server.touch_as_owner(self._log_path())
        self.server.owner()
        for program in ("postgres", "pg_ctl", "pg_controldata"):
            self.server.program(program)
        self._decider.ended_writes = _READ_ONLY in agent_settings.read(self.config.pgdata)

    def _proxy_arguments(self, cluster_file: Path | None) -> list[str]:
        config = self.config
        places = ",".join(f"{each}={place}" for each, place in config.safekeepers)
        arguments = ["--primary", config.conninfo, "--safekeepers", places, "--http-listen", str(config.proxy_http)]
        arguments += ["-c", f"slot={config.slot}", "-c", f"application_name={config.application_name}"]
        for name, path in (("--secret-file", config.secret_file), ("--config", cluster_file)):
            if path is not None:
                arguments += [name, str(path)]
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if (path := getattr(config, name)) is not None:
                arguments += ["-c", f"{name}={path}"]
        if config.log_format != "text":
            arguments += ["-c", f"log_format={config.log_format}"]  # Both write to the same log.
        return arguments

    async def _exchange_loop(self) -> None:
        timeout_s = min(1.0, self.config.dead_after / 4)
        interval_s = min(EXCHANGE_INTERVAL_S, self.config.dead_after / 10)
        while True:
            began_at = time.monotonic()
            self._exchange_now.clear()
            self.view = view = _view_of(await self._views.exchange(encode(self.report()), timeout_s=timeout_s))
            if view.has_quorum:
                self._quorum_seen_at = time.time()
            self._decider.saw(view)
            heard_age_s = view.leader_heard_age_s
            if self._promoted is None and heard_age_s is not None and heard_age_s < SILENCE_S:
                self._is_settling = False
            leader = leader_of(view)
            if leader is not None and leader.name != self._last_leader:
                self._last_leader = leader.name
                self._say(f"{leader.name} leads, on timeline {leader.tli}")
            self._changed.set()
            ended_at = time.monotonic()
            next_at = began_at + interval_s
            if heard_age_s is not None and heard_age_s < self.config.dead_after:
                # Not up to an interval later than the loss of the leader can be known.
                next_at = min(next_at, ended_at + self.config.dead_after - heard_age_s + _AFTER_LOSS_S)
            await _until_set(self._exchange_now, next_at - ended_at)

    async def _look_loop(self) -> None:
        timeout_s = max(1.0, min(3.0, self.config.dead_after / 3))
        while True:
            began_at = time.monotonic()
            self._look_now.clear()
            look, commits = await asyncio.gather(asyncio.to_thread(self.server.look, timeout_s), self._proxy_commits())
            if look.state != self.look.state or look.tli != self.look.tli:
                self._say(f"PostgreSQL is {describe(look)}")
            self.look, self.commits, self._looked_at = look, commits and look.state is ServerState.PRIMARY, began_at
            self._changed.set()
            is_new = look.state is ServerState.PRIMARY and began_at - self._look_needed_at < LOOK_SOON_FOR_S
            if is_new and self._decider.ended_writes and not self.commits:
                # A server that has just become a primary accepts writes as soon as commits succeed.
                await self._wait_for_commits(began_at + LOOK_SOON_INTERVAL_S)
                continue
            await _until_set(self._look_now, max(0.01, began_at + LOOK_INTERVAL_S - time.monotonic()))

    async def _wait_for_commits(self, until: float) -> None:
        """Wait until the proxy reports that commits succeed; ask it more often than the server is looked at."""
        while not self.commits and time.monotonic() < until:
            await asyncio.sleep(_COMMITS_INTERVAL_S)
            self.commits = await self._proxy_commits()
            self._changed.set()

    async def _proxy_commits(self) -> bool:
        """Return whether commits succeed through the own proxy, and note that they have."""
        now = time.monotonic()
        before, self._progress = self._progress, await self._proxy.progress()
        if self._progress.has_advanced(before):
            self._decider.commits_advanced(now)
        return self._progress.commits

    async def _lease_loop(self) -> None:
        while True:
            await asyncio.sleep(self.config.lease_ttl / 4)
            if self._lease is not None and not self._is_failing_over:
                await self._lease.keep(self._is_settling or self.report().is_leader)

    async def _step_loop(self) -> None:
        while True:
            await _until_set(self._changed, _TICK_S)
            self._changed.clear()
            now = time.monotonic()
            await self._keep_proxy(now)
            self._keep_watchdog()
            self._note_resumption(now)
            if self._step is not None and not self._step.done():
                continue
            if self._looked_at < self._look_needed_at or self._looked_at < 0:
                continue
            step = self._decider.decide(now, self.look, self.view, commits=self.commits)
            if isinstance(step, Wait):
                self._wait_for(step.reason)
                self._doing = ""
                if now >= self._decider.retry_at:
                    self._problem = ""  # For as long as the others are first; then it is a candidate again.
                if not self._is_configured and not self.view.settings.is_paused:
                    self._step = asyncio.create_task(self._take(Configure()))
            else:
                self._wait_for("")
                self._step = asyncio.create_task(self._take(step))

    def _wait_for(self, reason: str) -> None:
        if reason:
            self._waits_for.note(reason, "waiting: %s", reason, level=logging.INFO)
        else:
            self._waits_for.over()

    async def _keep_proxy(self, now: float) -> None:
        """Run the proxy beside a primary, also while that restarts, and beside a standby that may be promoted.

        There it waits for its primary: its start would take longer than the rest of a failover. Beside an old primary
        it would only be refused.
        """
        look = self.look
        is_current = not (self.view.log.tli and self.view.is_sealed_off(look.tli))
        is_useful = is_current if look.state is ServerState.PRIMARY else self._decider.own.may_lead
        if self._is_failing_over or self._promoted is not None:
            await self._proxy.keep_running(now)
        elif self._looked_at < self._look_needed_at:
            return
        elif look.state in (ServerState.PRIMARY, ServerState.STANDBY) and is_useful:
            await self._proxy.keep_running(now)
        elif self._proxy.is_running and not is_current and look.state in (ServerState.STOPPED, ServerState.PRIMARY):
            await self._proxy.stop(1.0)

    def _keep_watchdog(self) -> None:
        if self.config.watchdog == "off":
            return
        watchdog, state = self._watchdog, self.look.state
        try:
            if state in (ServerState.STANDBY, ServerState.STOPPED, ServerState.MISSING):
                if not self._is_failing_over:
                    watchdog.close()
            elif state is ServerState.PRIMARY and not watchdog.is_open:
                watchdog.open()
            elif self._decider.is_in_control(time.monotonic(), self.view):
                watchdog.keep_alive()
        except WalproxyError as error:
            self._failed(str(error))

    def _note_resumption(self, now: float) -> None:
        """Record a change of the primary once commits go on."""
        if self._promoted is not None and self.view.is_sealed_off(self._promoted[3].tli):
            # By another failover: the others must not wait for this one.
            self._promoted, self._is_settling = None, False
        if self._promoted is None or not self.commits:
            return
        (order, lost_at, old_tli, promotion), self._promoted = self._promoted, None
        change = PrimaryChange(
            kind=order.kind if order is not None else "failover",
            agent=self.config.name,
            old_tli=old_tli,
            tli=promotion.tli,
            term=self.view.log.term,
            fork_lsn=promotion.fork_lsn,
            seconds=round(now - lost_at, 3),
            at=round(time.time(), 3),
        )
        log_event(
            _log,
            "failover-done",
            {"tli": promotion.tli, "seconds": change.seconds},
            "commits go on after the %s, on timeline %d from %s, after %.2f s without a leader",
            change.kind,
            promotion.tli,
            format_lsn(promotion.fork_lsn),
            change.seconds,
        )
        if order is not None:
            self._done(order, "")

        def add(settings: AgentSettings) -> AgentSettings:
            kept = without_order(settings, order)
            return msgspec.structs.replace(kept, changes=(*kept.changes, change)[-CHANGES_MAX:])

        self._recording = asyncio.create_task(self._change_settings(add))

    def report(self) -> AgentReport:
        """Return what this agent reports now."""
        look, config = self.look, self.config
        is_leader = (
            look.state is ServerState.PRIMARY
            and self.commits
            and not self._decider.ended_writes
            and self.view.has_quorum
            and not self.view.is_sealed_off(look.tli)
        )
        host = config.http_listen.host if config.http_listen.host not in ("0.0.0.0", "::") else config.address.host
        scheme = "https" if config.http_tls else "http"
        return AgentReport(
            name=config.name,
            address=str(config.address),
            url=f"{scheme}://{config.http_listen._replace(host=host)}",
            state=look.state.value,
            system_id=look.system_id,
            server_version=self._server_version,
            tli=look.tli,
            written_lsn=look.written_lsn,
            received_lsn=look.received_lsn,
            replayed_lsn=look.replayed_lsn,
            is_leader=is_leader,
            has_resigned=self._decider.has_resigned,
            is_read_only=bool(look.is_read_only),
            is_streaming=look.is_streaming,
            is_paused=self.view.settings.is_paused,
            may_lead=self._decider.own.may_lead,
            priority=config.priority,
            dead_after_s=config.dead_after,
            is_failing_over=self._is_failing_over or self._is_settling,
            doing=(self._doing or self._waits_for.text)[:200],
            problem=(self._problem or look.problem)[:300],
            order_done=self._order_done,
            order_result=self._order_result[:300],
        )

    def state(self) -> AgentState:
        """Return what the pages of this agent show."""
        return AgentState(
            own=self.report(),
            view=self.view,
            made_at=min(self.view.sent_at, self._looked_at),
            started_at=self._started_at,
            quorum_seen_at=self._quorum_seen_at,
        )

    async def _take(self, step: "Step | Configure") -> None:
        """Take one step. An error is logged, and shown as the agent's problem until a step succeeds."""
        try:
            match step:
                case Configure():
                    await self._configure()
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
                    self._say(f"stopping PostgreSQL: {reason}", level=logging.WARNING)
                    await self._proxy.kill()
                    await asyncio.to_thread(self._stop_by_force)
                case Kill(reason):
                    _log.warning("killing PostgreSQL: %s", reason)
                    await self._proxy.kill()
                    self._decider.resigned(time.monotonic())
                    await asyncio.to_thread(self.server.kill)
                case Rejoin(leader):
                    await self._rejoin(leader)
                case Rebuild(leader, order):
                    await self._rebuild(leader, order)
                case StepDown(order, to):
                    await self._step_down(order, to)
                case Refuse(order, reason):
                    if reason:
                        _log.warning("refused the %s: %s", order.kind, reason)
                    self._done(order, reason)
                    await self._change_settings(lambda settings: without_order(settings, order))
                case Wait():
                    pass
            self._problem = ""
            self._failures.over()
        except (WalproxyError, OSError) as error:
            self._decider.failed(time.monotonic())
            self._failed(str(error))
        except Exception as bug:
            self._decider.failed(time.monotonic())
            self._failed(describe_bug(bug))
        finally:
            self._doing = ""
            self._look_again()

    def _look_again(self) -> None:
        self._look_needed_at = time.monotonic()
        self._look_now.set()

    def _failed(self, problem: str) -> None:
        self._failures.note(problem, "%s", problem, level=logging.ERROR)
        self._problem = problem

    def _say(self, line: str, *, level: int = logging.INFO) -> None:
        """Log a line that each attempt repeats."""
        addition = self._lines.admit(line)
        if addition is not None:
            _log.log(level, "%s%s", line, addition)

    def _done(self, order: Order, result: str) -> None:
        self._decider.orders_done.add(order.id)
        self._order_done, self._order_result = order.id, result

    async def _change_settings(self, change: Callable[[AgentSettings], AgentSettings]) -> None:
        try:
            await self._views.change_settings(change, timeout_s=_SETTINGS_TIMEOUT_S)
        except WalproxyError as error:
            self._say(f"the shared settings were not changed: {error}", level=logging.WARNING)

    def _common_settings(self) -> dict[str, str]:
        return {"synchronous_standby_names": f'"{self.config.application_name}"'}

    async def _configure(self) -> None:
        """Write the agent's settings of a server that runs already."""
        if self.look.state is ServerState.STANDBY:
            await asyncio.to_thread(self._make_standby)
            self._decider.ended_writes = False
            # It would retain WAL without end.
            await asyncio.to_thread(self.server.drop_slot, self.config.slot)
        elif self.look.state is ServerState.PRIMARY:
            await asyncio.to_thread(self._configure_primary)
        else:
            return
        self._is_configured = True

    def _configure_primary(self) -> None:
        kept = agent_settings.read(self.config.pgdata)
        if agent_settings.write(self.config.pgdata, {**kept, **self._common_settings()}):
            self.server.reload()

    def _make_standby(self) -> None:
        self.server.make_standby(
            self.config.standby_conninfo, self.config.restore_command, settings=self._common_settings()
        )

    async def _start_primary(self) -> None:
        self._doing = "starting PostgreSQL as the primary"
        self._say(self._doing)

        def start() -> None:
            agent_settings.write(self.config.pgdata, {**self._common_settings(), _READ_ONLY: "on"})
            self.server.start(as_standby=False, timeout_s=self.config.start_timeout)

        self._decider.ended_writes = True
        await asyncio.to_thread(start)
        self._is_configured = True

    async def _start_standby(self) -> None:
        self._doing = "starting PostgreSQL as a standby"
        self._say(self._doing)

        def start() -> None:
            self._make_standby()
            self.server.start(as_standby=True, timeout_s=self.config.start_timeout)

        await asyncio.to_thread(start)
        self._decider.ended_writes = False
        self._is_configured = False

    async def _fail_over(self, order: Order | None) -> None:
        kind = order.kind if order is not None else "failover"
        began_at = time.monotonic()
        lost_at = self._decider.leader_heard_at or began_at
        self._doing = f"{kind}: sealing timeline {self.view.log.tli}"
        why = "ordered" if order is not None else "the leader is lost"
        log_event(_log, "failover-begun", {"kind": kind}, "%s begins: %s", kind, why)
        if self.config.watchdog != "off":
            # Whether it can be opened is better known before the seal.
            self._watchdog.open()
            self._watchdog.close()
        run = Failover(
            self.config.safekeepers,
            [self._host],
            self.credentials,
            _Show(self, kind),
            guard=self._guard_promotion,
            may_be_read_only=True,
            seal_timeout_s=10.0,
        )
        self._is_failing_over = True
        self._exchange_now.set()  # The others wait once they know.
        await self._proxy.keep_running(began_at)
        # It accepts writes once commits succeed. A standby accepts none in any case.
        self._decider.ended_writes = True
        # While the timeline is sealed.
        self._prepared = asyncio.create_task(asyncio.to_thread(self._prepare_promotion))
        try:
            async with asyncio.timeout(_CATCH_UP_TIMEOUT_S):
                # The old leader has stopped its server; its proxy may still count as healthy for a second.
                log, _, promotion = await run.promote(old_is_dead=kind == "switchover")
            self._promoted = order, lost_at, log.log_tli, promotion
            self._is_settling = True
        except TimeoutError:
            raise WalproxyError(
                f"the {kind} was given up after {_CATCH_UP_TIMEOUT_S:g} s: the server has not received all that may "
                "have been acknowledged"
            ) from None
        finally:
            self._is_failing_over = False
            await asyncio.gather(self._prepared, return_exceptions=True)  # Its error is the guard's.
            self._is_configured = False  # A standby that was not promoted is made an ordinary one again.
            await run.close()
        self._proxy.retry()

    async def _guard_promotion(self) -> None:
        """Make sure of what a promotion requires: lease, fence and watchdog as configured, and the preparation."""
        if self._lease is not None:
            self._doing = "failover: waiting for the lease"
            await self._lease.require()
        if self.config.fence_command:
            await self._fence()
        if self.config.watchdog != "off":
            self._watchdog.open()
        assert self._prepared is not None  # by `_fail_over`
        await self._prepared

    def _prepare_promotion(self) -> None:
        """Let the server be read-only once it is a primary, and retain the WAL that its proxy compares and sends first.

        A slot that is made after the promotion is too late for that.
        """
        kept = agent_settings.read(self.config.pgdata)
        agent_settings.write(self.config.pgdata, {**kept, _READ_ONLY: "on"})
        self.server.reload()
        self.server.make_slot(self.config.slot)

    async def _fence(self) -> None:
        self._doing = "failover: waiting for fence_command"
        process = await asyncio.create_subprocess_shell(
            self.config.fence_command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "WALPROXY_OLD_PRIMARY": self._last_leader},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_FENCE_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            raise WalproxyError(f"fence_command has not ended within {_FENCE_TIMEOUT_S:g} s: no promotion") from None
        if process.returncode != 0:
            lines = output.decode(errors="replace").strip().splitlines() or ["no output"]
            raise WalproxyError(f"fence_command has failed with exit code {process.returncode}: {lines[-1]}")

    async def _end_writes(self, reason: str, stops: bool) -> None:
        log_event(_log, "writes-ended", {}, "no writes from now on: %s", reason, level=logging.WARNING)
        if not stops:
            try:
                await asyncio.to_thread(self.server.make_read_only, max(0.3, 0.15 * self.config.dead_after))
                self._decider.ended_writes = True
                return
            except WalproxyError as error:
                _log.warning("PostgreSQL could not be made read-only, it is stopped: %s", error)
        await asyncio.to_thread(self._stop_by_force)

    async def _allow_writes(self) -> None:
        await asyncio.to_thread(self.server.make_writable)
        self._decider.ended_writes = False
        log_event(_log, "writes-allowed", {}, "a quorum of the safekeepers receives WAL: writes are allowed")

    def _stop_by_force(self) -> None:
        for mode in ("fast", "immediate"):
            try:
                self.server.stop(mode, _FORCED_STOP_TIMEOUT_S)
                return
            except ServerProblem as error:
                _log.warning("%s", error)
        self.server.kill()

    async def _rejoin(self, leader: AgentReport) -> None:
        self._doing = f"rejoining {leader.name}"
        _log.info("%s as a standby", self._doing)
        way = await asyncio.to_thread(self._rejoin_and_report, leader)
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
        folder = self.config.discarded_dir or self.config.pgdata.with_name(f"{self.config.pgdata.name}.discarded")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        control = self.server.control_data()
        fork_lsn = plan.fork.lsn if plan.fork is not None else None
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{at}-timeline-{control.last_tli}"
        try:
            if fork_lsn is None:
                raise ConfigurationError(f"no fork is known: {plan.reason}")
            report = discarded_report(self.config.pgdata / "pg_wal", fork_lsn, control.last_tli)
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
        self._doing = f"rebuilding from {leader.name}"
        fields = {"leader": leader.name}
        log_event(_log, "server-rebuilt", fields, "rebuilding the data folder by a base backup of %s", leader.name)

        def rebuild() -> None:
            self._stop_by_force()
            self._rejoin_run(leader).run(by_base_backup=True)

        try:
            await asyncio.to_thread(rebuild)
        except (WalproxyError, OSError) as error:
            self._done(order, str(error))
            raise
        else:
            self._done(order, "")
        finally:
            await self._change_settings(lambda settings: without_order(settings, order))

    async def _step_down(self, order: Order, to: str) -> None:
        self._doing = f"switchover to {to}: stopping PostgreSQL"
        _log.warning("%s", self._doing)
        self._decider.orders_done.add(order.id)
        try:
            await asyncio.to_thread(self.server.stop, "fast", _STOP_TIMEOUT_S)
        except ServerProblem as error:
            self._done(order, str(error))
            await self._change_settings(lambda settings: without_order(settings, order))
            raise
        self._decider.resigned(time.monotonic())


def _lease_guard(config: AgentConfig) -> LeaseGuard | None:
    if not config.lease_etcd:
        return None
    secret = config.lease_password
    lease = EtcdLease(
        config.lease_etcd,
        config.lease_key,
        config.lease_ttl,
        tls=ssl.create_default_context(cafile=config.lease_ca) if config.lease_etcd[0].startswith("https") else None,
        user=config.lease_user,
        password=secret.value.decode() if secret is not None else "",
    )
    return LeaseGuard(lease, config.name, wait_s=config.lease_ttl + 2.0)


async def _until_set(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until an event is set, or the timeout is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_s)):
            await event.wait()


class Configure:
    """The step that writes the settings of a server that ran before the agent did."""


class _Show:
    """Where a failover shows what it does: the agent's report and its log."""

    def __init__(self, agent: Agent, kind: str) -> None:
        self._agent = agent
        self._kind = kind

    def step(self, text: str) -> None:
        """Show that a step has begun or ended."""
        self._agent._doing = f"{self._kind}: {text}"
        _log.info("%s: %s", self._kind, text)

    def waiting(self, text: str, missing_bytes: int = 0) -> None:
        """Show for what it waits."""
        self._agent._doing = f"{self._kind}: {text}" + (f" ({missing_bytes} bytes)" if missing_bytes else "")


def _view_of(sight: AgentSight) -> ClusterView:
    """Return what an exchange has found; the agent is paused if the shared settings cannot be read."""
    try:
        return view_of(sight)
    except RemoteProtocolError as error:
        return replace(
            view_of(sight, AgentSettings(is_paused=True)), problem=f"the shared settings cannot be read: {error}"
        )
