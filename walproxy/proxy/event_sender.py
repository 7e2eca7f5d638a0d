"""Sends the events of a proxy or an agent to the safekeepers, which keep them (protocol step 15).

A task apart from the links: each batch goes over a connection of its own, which greets, sends and is closed, so that
nothing that fails here disturbs the consensus. A safekeeper that is not connected, or does not accept events, is tried
again later, with a growing pause; what has left the recorder's memory meanwhile is not sent to it.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping

from safekeeper.base.errors import WalproxyError
from safekeeper.base.event_log import EventRecorder
from safekeeper.base.events import KeptEvent
from safekeeper.base.logs import describe_bug
from safekeeper.base.settings import Address
from safekeeper.consensus.messages import EventExchange, EventPage
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.proxy.safekeeper_requests import SafekeeperRequests

# Events that occur together are sent together.
GATHER_S = 0.2
# Without events, new receivers are looked for this often.
LOOK_INTERVAL_S = 5.0
PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 60.0
# For the last events at the end of a process.
LAST_EVENTS_TIMEOUT_S = 0.2
# For a connection and its replies.
SEND_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class _Receiver:
    """One safekeeper: the number of the first event that it has not got, and when it is tried next."""

    __slots__ = ("next_seq", "pause_s", "try_at")

    def __init__(self) -> None:
        self.next_seq = 0
        self.pause_s = PAUSE_MIN_S
        self.try_at = 0.0


class EventSender:
    """Sends what `recorder` records.

    Args:
        receivers: returns the addresses of the safekeepers that are connected and not refused, by id.
        credentials: for connections; their content may change.
    """

    def __init__(
        self, recorder: EventRecorder, receivers: Callable[[], Mapping[int, Address]], credentials: Credentials
    ) -> None:
        self._recorder = recorder
        self._find_receivers = receivers
        self._credentials = credentials
        self._run = secrets.token_hex(16)
        self._receivers: dict[int, _Receiver] = {}
        self._recorded = asyncio.Event()
        self._last: Mapping[int, Address] = {}

    async def run(self) -> None:
        """Send until cancelled. A bug ends the sending, and nothing else."""
        loop = asyncio.get_running_loop()

        def wake(kept: KeptEvent) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._recorded.set)

        self._recorder.on_event = wake
        try:
            while True:
                self._last = self._find_receivers()
                is_done = await self._send_to(self._last)
                try:
                    async with asyncio.timeout(LOOK_INTERVAL_S if is_done else PAUSE_MIN_S):
                        await self._recorded.wait()
                    await asyncio.sleep(GATHER_S)
                except TimeoutError:
                    pass  # A safekeeper may have been connected since, or lacks events still.
                self._recorded.clear()
        except Exception as bug:
            logger.error("events are no longer sent to the safekeepers: %s", describe_bug(bug))

    async def flush(self, timeout_s: float) -> None:
        """Send the last events to the safekeepers that could be reached last; return at the timeout at the latest."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_to(self._last)
        except TimeoutError:
            logger.debug("not every safekeeper has got the last events")

    async def _send_to(self, addresses: Mapping[int, Address]) -> bool:
        """Send to all safekeepers at once what they lack; return whether none that is known lacks anything."""
        now = asyncio.get_running_loop().time()
        due = []
        for safekeeper_id, address in addresses.items():
            receiver = self._receivers.setdefault(safekeeper_id, _Receiver())
            if now >= receiver.try_at:
                due.append(self._send(safekeeper_id, address, receiver))
        await asyncio.gather(*due)
        end = self._recorder.page(1 << 62).next_seq
        return all(receiver.next_seq >= end for receiver in self._receivers.values())

    async def _send(self, safekeeper_id: int, address: Address, receiver: _Receiver) -> None:
        if not self._recorder.page(receiver.next_seq).events:
            return
        requests = SafekeeperRequests(safekeeper_id, address, self._credentials)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                greeting = await requests.greet(self._run)
                while (page := self._recorder.page(receiver.next_seq)).events:
                    events = tuple(kept.event for kept in page.events)
                    await requests.ask(EventExchange(greeting.cluster_id, events), EventPage)
                    receiver.next_seq = page.next_seq
            receiver.pause_s = PAUSE_MIN_S
        except (WalproxyError, TimeoutError) as error:
            logger.debug("safekeeper %d has not got the last events: %s", safekeeper_id, error or "timeout")
            receiver.try_at = asyncio.get_running_loop().time() + receiver.pause_s
            receiver.pause_s = min(2 * receiver.pause_s, PAUSE_MAX_S)
        finally:
            await requests.close()
