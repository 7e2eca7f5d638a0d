"""What an agent looks at, in two loops: the safekeepers, with which it exchanges reports, and its own server."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from safekeeper.base.errors import RemoteProtocolError, WalproxyError
from walproxy.agent.activity import Activity
from walproxy.agent.decision import Decider, describe, leader_of
from walproxy.agent.managed_server import ManagedServer
from walproxy.agent.proxy_process import ProxyProcess, ProxyProgress
from walproxy.agent.report import AgentReport, AgentSettings, encode
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.server_look import ServerLook, ServerState
from walproxy.agent.sight import AgentSight
from walproxy.agent.state import ClusterView, view_of

EXCHANGE_INTERVAL_S = 0.25
LOOK_INTERVAL_S = 0.5
LOOK_SOON_INTERVAL_S = 0.1
LOOK_SOON_FOR_S = 10.0
_COMMITS_INTERVAL_S = 0.02
# Added to the time at which the loss of the leader can be known: an exchange a moment too early would not show it.
_AFTER_LOSS_S = 0.01
_SETTINGS_TIMEOUT_S = 5.0


@dataclass
class ClusterWatch:
    """Exchanges reports with the safekeepers.

    Attributes:
        dead_after_s: of the agent.
        view: the last exchange.
        quorum_seen_at: when a quorum of safekeepers last replied, in seconds since 1970; 0 for never.
        last_leader: the name of the agent that led last; "" if none has.
    """

    views: SafekeeperViews
    activity: Activity
    dead_after_s: float
    view: ClusterView = field(
        default_factory=lambda: ClusterView(time.monotonic(), problem="no safekeeper has replied yet")
    )
    quorum_seen_at: float = 0.0
    last_leader: str = ""
    _exchange_now: asyncio.Event = field(default_factory=asyncio.Event)

    def exchange_now(self) -> None:
        """Report at once."""
        self._exchange_now.set()

    async def change_settings(self, change: Callable[[AgentSettings], AgentSettings]) -> None:
        """Change the settings that all agents share; log why they were not changed."""
        try:
            await self.views.change_settings(change, timeout_s=_SETTINGS_TIMEOUT_S)
        except WalproxyError as error:
            self.activity.log(f"the shared settings were not changed: {error}", level=logging.WARNING)

    async def run(self, report: Callable[[], AgentReport], received: Callable[[ClusterView], None]) -> None:
        """Exchange until cancelled.

        Args:
            report: returns what to report.
            received: is called with the view after each exchange.
        """
        timeout_s = min(1.0, self.dead_after_s / 4)
        interval_s = min(EXCHANGE_INTERVAL_S, self.dead_after_s / 10)
        while True:
            began_at = time.monotonic()
            self._exchange_now.clear()
            view = _view_of(await self.views.exchange(encode(report()), timeout_s=timeout_s))
            if not view.has_quorum:
                # What all agents share is known to a quorum: a pause goes on while none replies.
                view = replace(view, settings=self.view.settings)
            self.view = view
            if view.has_quorum:
                self.quorum_seen_at = time.time()
            leader = leader_of(view)
            if leader is not None and leader.name != self.last_leader:
                self.last_leader = leader.name
                self.activity.log(f"{leader.name} leads, on timeline {leader.tli}")
            received(view)
            ended_at = time.monotonic()
            next_at = began_at + interval_s
            silent_s = view.leader_silent_s
            if silent_s is not None and silent_s < self.dead_after_s:
                # Not up to an interval later than the loss of the leader can be known.
                next_at = min(next_at, ended_at + self.dead_after_s - silent_s + _AFTER_LOSS_S)
            await until_set(self._exchange_now, next_at - ended_at)

    async def close(self) -> None:
        """Close the connections."""
        await self.views.close()


@dataclass
class ServerWatch:
    """Looks at the server, and whether commits succeed through the own proxy.

    Attributes:
        dead_after_s: of the agent.
        changed: is set after each look.
        look: the last one.
        commits: whether commits succeed.
        looked_at: when the last look began.
    """

    server: ManagedServer
    proxy: ProxyProcess
    decider: Decider
    activity: Activity
    dead_after_s: float
    changed: asyncio.Event
    look: ServerLook = field(default_factory=lambda: ServerLook(ServerState.MISSING))
    commits: bool = False
    looked_at: float = -1.0
    _progress: ProxyProgress = field(default_factory=ProxyProgress)
    _needed_at: float = 0.0
    _look_now: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_current(self) -> bool:
        """Whether the last look began after the last step had ended."""
        return self.looked_at >= self._needed_at

    def look_again(self) -> None:
        """Look now: a step has ended."""
        self._needed_at = time.monotonic()
        self._look_now.set()

    async def run(self) -> None:
        """Look until cancelled."""
        timeout_s = max(1.0, min(3.0, self.dead_after_s / 3))
        while True:
            began_at = time.monotonic()
            self._look_now.clear()
            look, commits = await asyncio.gather(asyncio.to_thread(self.server.look, timeout_s), self._proxy_commits())
            if look.state != self.look.state or look.tli != self.look.tli:
                self.activity.log(f"PostgreSQL is {describe(look)}")
            self.look, self.commits, self.looked_at = look, commits and look.state is ServerState.PRIMARY, began_at
            self.changed.set()
            is_new = look.state is ServerState.PRIMARY and began_at - self._needed_at < LOOK_SOON_FOR_S
            if is_new and self.decider.ended_writes and not self.commits:
                # A server that has just become a primary accepts writes as soon as commits succeed.
                await self._wait_for_commits(began_at + LOOK_SOON_INTERVAL_S)
                continue
            await until_set(self._look_now, max(0.01, began_at + LOOK_INTERVAL_S - time.monotonic()))

    async def _wait_for_commits(self, until: float) -> None:
        """Wait until the proxy reports that commits succeed; ask it more often than the server is looked at."""
        while not self.commits and time.monotonic() < until:
            await asyncio.sleep(_COMMITS_INTERVAL_S)
            self.commits = await self._proxy_commits()
            self.changed.set()

    async def _proxy_commits(self) -> bool:
        """Return whether commits succeed through the own proxy, and note that they have."""
        now = time.monotonic()
        before, self._progress = self._progress, await self.proxy.progress()
        if self._progress.has_advanced(before):
            self.decider.commits_advanced(now)
        return self._progress.commits


async def until_set(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until an event is set, or the timeout is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_s)):
            await event.wait()


def _view_of(sight: AgentSight) -> ClusterView:
    """Return what an exchange has found; the agent is paused if the shared settings cannot be read."""
    try:
        return view_of(sight)
    except RemoteProtocolError as error:
        return replace(
            view_of(sight, AgentSettings(is_paused=True)), problem=f"the shared settings cannot be read: {error}"
        )
