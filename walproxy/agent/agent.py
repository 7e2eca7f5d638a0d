"""The agent: looks, exchanges, decides, and takes the steps.

Three loops of one process. One exchanges reports with the safekeepers, one looks at the server (watches.py), and one
lets the `Decider` (decision.py) choose a step whenever one of them has news. One step is taken at a time (steps.py),
and the next is decided after another look. The proxy runs while the server is a primary, beside the steps: commits do
not wait for them.
"""

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import log_event
from safekeeper.base.lsn import format_lsn
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.agent.activity import Activity
from walproxy.agent.config import AgentConfig
from walproxy.agent.decision import SILENCE_S, Decider, Own, Step, Wait, leader_of
from walproxy.agent.guards import Guards
from walproxy.agent.managed_server import ManagedServer
from walproxy.agent.proxy_process import ProxyProcess
from walproxy.agent.report import CHANGES_MAX, AgentReport, AgentSettings, PrimaryChange
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.server_look import ServerState
from walproxy.agent.state import AgentState, ClusterView
from walproxy.agent.steps import Configure, Steps
from walproxy.agent.watches import ClusterWatch, ServerWatch, until_set
from walproxy.agent.work import AgentWork, WorkState
from walproxy.postgres.hosts import primary_hosts
from walproxy.postgres.local_server import end_with_parent

_log = logging.getLogger(__name__)

_TICK_S = 0.25


class Agent:
    """One agent and its server.

    Attributes:
        credentials: for the safekeepers.
        work: what it does for the lead.
        cluster: the exchanges with the safekeepers.
        watch: the looks at the server.

    Args:
        cluster_file: that of this agent, which its proxy reads, too.
    """

    def __init__(self, config: AgentConfig, credentials: Credentials, cluster_file: Path | None = None) -> None:
        hosts = primary_hosts(config.conninfo, "the local server's")
        if len(hosts) != 1:
            raise ConfigurationError("conninfo names several hosts: name the local server only")
        self.config = config
        self.credentials = credentials
        self.work = AgentWork()
        self._activity = Activity()
        self._guards = Guards(config, self._activity)
        self._decider = Decider(
            Own(
                config.name,
                address=str(config.address),
                dead_after_s=config.dead_after,
                may_lead=not config.no_failover,
                priority=config.priority,
                stops_without_quorum=config.without_quorum == "stop",
                guards_s=self._guards.limit_s,
            )
        )
        server = ManagedServer(
            config.pgdata,
            config.bin_dir,
            config.conninfo,
            log_path=config.server_log or config.pgdata.with_name(f"{config.pgdata.name}.log"),
            config_file=config.config_file,
        )
        self._proxy = ProxyProcess(_proxy_arguments(config, cluster_file), end_with_parent("KILL"))
        self._changed = asyncio.Event()
        views = SafekeeperViews(config.safekeepers, credentials, config.name)
        self.cluster = ClusterWatch(views, self._activity, config.dead_after)
        self.watch = ServerWatch(server, self._proxy, self._decider, self._activity, config.dead_after, self._changed)
        self._steps = Steps(
            *(config, credentials, hosts[0], server, self._proxy, self._guards),
            *(self.cluster, self._decider, self.work, self._activity),
        )
        self._step: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None  # of the last change of the primary
        self._started_at = time.time()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop`. The server goes on without the agent; the proxy does not.

        Raises:
            ConfigurationError: the data folder or a program cannot be used.
        """
        await asyncio.to_thread(self._prepare)
        works = (self.cluster.run(self.report, self._received), self.watch.run(), self._step_loop(), self._lease_loop())
        loops = [asyncio.create_task(each) for each in works]
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
            await self.cluster.close()
            self._guards.close()

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()

    def _prepare(self) -> None:
        self._guards.probe()
        self._steps.prepare()

    def _received(self, view: ClusterView) -> None:
        self._decider.saw(view)
        if leader_of(view) is not None:
            self._guards.led()
        silent_s = view.leader_silent_s
        if self.work.state is WorkState.SETTLING and silent_s is not None and silent_s < SILENCE_S:
            self.work.end()
        self._changed.set()

    async def _lease_loop(self) -> None:
        while True:
            await asyncio.sleep(self.config.lease_ttl / 4)
            if self.work.state is not WorkState.FAILING_OVER:
                await self._guards.keep_lease(self.work.state is not WorkState.WATCHING or self.report().is_leader)

    async def _step_loop(self) -> None:
        while True:
            await until_set(self._changed, _TICK_S)
            self._changed.clear()
            now, watch = time.monotonic(), self.watch
            await self._keep_proxy(now)
            self._guards.keep_watchdog(
                watch.look.state,
                is_failing_over=self.work.state is WorkState.FAILING_OVER,
                is_in_control=self._decider.is_in_control(time.monotonic(), self.cluster.view),
            )
            self._note_resumption(now)
            if (self._step is not None and not self._step.done()) or not watch.is_current:
                continue
            step = self._decider.decide(now, watch.look, self.cluster.view, commits=watch.commits)
            if isinstance(step, Wait):
                self._activity.wait_for(step.reason)
                self._activity.doing = ""
                if now >= self._decider.retry.at:
                    self._activity.problem = ""  # For as long as the others are first; then it is a candidate again.
                serves = watch.look.state in (ServerState.PRIMARY, ServerState.STANDBY)
                if serves and not self._steps.is_configured and not self.cluster.view.settings.is_paused:
                    self._take(Configure())
            else:
                self._activity.wait_for("")
                self._take(step)

    def _take(self, step: Step | Configure) -> None:
        async def take() -> None:
            try:
                await self._steps.take(step, self.watch.look.state)
            finally:
                self.watch.look_again()

        self._step = asyncio.create_task(take())

    async def _keep_proxy(self, now: float) -> None:
        """Run the proxy beside a primary, also while that restarts, and beside a standby that may be promoted.

        There it waits for its primary: its start would take longer than the rest of a failover. Beside an old primary
        it would only be refused.
        """
        look, view = self.watch.look, self.cluster.view
        is_current = not (view.log.tli and view.is_sealed_off(look.tli))
        is_useful = is_current if look.state is ServerState.PRIMARY else self._decider.own.may_lead
        if self.work.state in (WorkState.FAILING_OVER, WorkState.RESUMING):
            await self._proxy.keep_running(now)
        elif not self.watch.is_current:
            return
        elif look.state in (ServerState.PRIMARY, ServerState.STANDBY) and is_useful:
            await self._proxy.keep_running(now)
        elif self._proxy.is_running and not is_current and look.state in (ServerState.STOPPED, ServerState.PRIMARY):
            await self._proxy.stop(1.0)

    def _note_resumption(self, now: float) -> None:
        """Record a change of the primary once commits go on: when the server accepts writes, as its clients see it."""
        work, view = self.work, self.cluster.view
        if work.state is not WorkState.RESUMING:
            return
        if view.is_sealed_off(work.promotion.tli):
            work.end()  # By another failover: the others must not wait for this one.
            return
        if not self.watch.commits or self._decider.ended_writes:
            return
        work.resumed()
        order, promotion = work.order, work.promotion
        change = PrimaryChange(
            kind=work.kind,
            agent=self.config.name,
            old_tli=work.old_tli,
            tli=promotion.tli,
            term=view.log.term,
            fork_lsn=promotion.fork_lsn,
            seconds=round(now - work.lost_at, 3),
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
            self._steps.order_ended(order, "")

        def add(settings: AgentSettings) -> AgentSettings:
            kept = settings.without(order)
            return msgspec.structs.replace(kept, changes=(*kept.changes, change)[-CHANGES_MAX:])

        self._recording = asyncio.create_task(self.cluster.change_settings(add))

    def report(self) -> AgentReport:
        """Return what this agent reports now."""
        look, view, config, activity = self.watch.look, self.cluster.view, self.config, self._activity
        is_leader = (
            look.state is ServerState.PRIMARY
            and self.watch.commits
            and not self._decider.ended_writes
            and view.has_quorum
            and not view.is_sealed_off(look.tli)
        )
        host = config.http_listen.host if config.http_listen.host not in ("0.0.0.0", "::") else config.address.host
        scheme = "https" if config.http_tls else "http"
        return AgentReport(
            name=config.name,
            address=str(config.address),
            url=f"{scheme}://{config.http_listen._replace(host=host)}",
            state=look.state.value,
            system_id=look.system_id,
            server_version=look.server_version,
            tli=look.tli,
            written_lsn=look.written_lsn,
            received_lsn=look.received_lsn,
            replayed_lsn=look.replayed_lsn,
            is_leader=is_leader,
            has_resigned=self._decider.has_resigned,
            is_read_only=bool(look.is_read_only),
            is_streaming=look.is_streaming,
            is_paused=view.settings.is_paused,
            may_lead=self._decider.own.may_lead,
            priority=config.priority,
            dead_after_s=config.dead_after,
            is_failing_over=self.work.state is not WorkState.WATCHING,
            has_sealed=self.work.has_sealed,
            doing=activity.shown[:200],
            problem=(activity.problem or look.problem)[:300],
            order_done=activity.order_done,
            order_result=activity.order_result[:300],
        )

    def state(self) -> AgentState:
        """Return what the pages of this agent show."""
        return AgentState(
            own=self.report(),
            view=self.cluster.view,
            made_at=min(self.cluster.view.sent_at, self.watch.looked_at),
            started_at=self._started_at,
            quorum_seen_at=self.cluster.quorum_seen_at,
        )


def _proxy_arguments(config: AgentConfig, cluster_file: Path | None) -> list[str]:
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
