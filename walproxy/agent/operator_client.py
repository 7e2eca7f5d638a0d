"""What `walproxy cluster` does through the safekeepers: it reads the agents' reports and changes their shared settings.

An order is a change of these settings, so any number of commands may run, and each may be interrupted: the agents act
on the last order, and `Operator.follow` only watches them.
"""

import asyncio
import secrets
import time
from collections.abc import Callable

import msgspec

from safekeeper.base.errors import WalproxyError
from walproxy.agent.orders import REINIT, OrderHeadway, describe, headway
from walproxy.agent.report import AgentSettings, Order
from walproxy.agent.safekeeper_views import SafekeeperViews
from walproxy.agent.state import ClusterView, is_fresh, view_of

_EXCHANGE_TIMEOUT_S = 3.0
_CHANGE_TIMEOUT_S = 10.0
_POLL_S = 0.2
# An agent that has ended an order removes it from the settings, and reports that at its next exchange.
_REPORT_TIMEOUT_S = 5.0


class Operator:
    """A command's connections to the safekeepers.

    Args:
        clock: in seconds since 1970.
    """

    def __init__(self, views: SafekeeperViews, clock: Callable[[], float] = time.time) -> None:
        self._views = views
        self._clock = clock

    async def look(self) -> ClusterView:
        """Return the cluster now.

        Raises:
            WalproxyError: no safekeeper has replied, or the shared settings cannot be read.
        """
        sight = await self._views.exchange(b"", timeout_s=_EXCHANGE_TIMEOUT_S)
        if not sight.views:
            raise WalproxyError(f"no safekeeper has replied: {sight.missing()}")
        return view_of(sight)

    async def pause(self, is_paused: bool) -> None:
        """Stop or resume what the agents do by themselves.

        Raises:
            WalproxyError: no quorum of safekeepers has replied.
        """
        await self._change(lambda settings: msgspec.structs.replace(settings, is_paused=is_paused))

    async def wait_for_pause(self, is_paused: bool, timeout_s: float) -> list[str]:
        """Return once all agents that report have received it; or, after the timeout, those that have not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            view = await self.look()
            missing = [
                seen.report.name for seen in view.agents if is_fresh(seen) and seen.report.is_paused != is_paused
            ]
            if not missing or loop.time() > deadline:
                return missing
            await asyncio.sleep(_POLL_S)

    async def give(self, kind: str, agent: str) -> Order:
        """Give the agents an order.

        Raises:
            WalproxyError: no quorum of safekeepers has replied.
        """
        order = Order(secrets.token_hex(16), kind, agent, self._clock())
        await self._change(lambda settings: msgspec.structs.replace(settings, order=order))
        return order

    async def follow(
        self, order: Order, old_leader: str, timeout_s: float, show: Callable[[OrderHeadway], None]
    ) -> ClusterView:
        """Wait until an order is executed; return the cluster then.

        Args:
            old_leader: the agent that led when the order was given; "" for none.
            timeout_s: until it is executed; of a reinit, until it has begun, since a base backup takes its time. An
                order that no agent has acted on by then is withdrawn.
            show: is called with each look's headway.

        Raises:
            WalproxyError: an agent has refused it or failed, or the timeout has passed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        has_begun, gone_at = False, 0.0
        while True:
            view = await self._look_again()
            now = headway(view, order, old_leader) if view is not None else OrderHeadway("no safekeeper replies")
            has_begun = has_begun or now.has_begun
            if now.failure:
                raise WalproxyError(f"the {describe(order)} has failed: {now.failure}")
            gone_at = (gone_at or loop.time()) if now.is_gone else 0.0
            if now.is_gone and loop.time() - gone_at > _REPORT_TIMEOUT_S:
                raise WalproxyError(f"the {describe(order)} has failed: another command has withdrawn it")
            if now.is_done and view is not None:
                return view
            show(now)
            if loop.time() > deadline and not (order.kind == REINIT and has_begun):
                await self._give_up(order, has_begun, now.what, timeout_s)
            await asyncio.sleep(_POLL_S)

    async def _change(self, change: Callable[[AgentSettings], AgentSettings]) -> None:
        await self._views.change_settings(change, timeout_s=_CHANGE_TIMEOUT_S)

    async def _look_again(self) -> ClusterView | None:
        """Return the cluster; None if no safekeeper has replied this time."""
        try:
            return await self.look()
        except WalproxyError:
            return None

    async def _give_up(self, order: Order, has_begun: bool, what: str, timeout_s: float) -> None:
        late = f"the {describe(order)} is not done after {timeout_s:g} s"
        if has_begun:
            raise WalproxyError(f"{late} and may go on: {what}; walproxy cluster show shows the agents")

        await self._change(lambda settings: settings.without(order))
        raise WalproxyError(
            f"{late}, and is withdrawn: no agent has acted on it; walproxy cluster show shows the agents"
        )
