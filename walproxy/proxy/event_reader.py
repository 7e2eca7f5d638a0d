"""Reads the events that the safekeepers of a cluster keep, for a command."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence

from safekeeper.base.errors import WalproxyError
from safekeeper.base.events import KeptEvent
from safekeeper.base.settings import Address
from safekeeper.consensus.messages import EventExchange, EventPage
from safekeeper.net.safekeeper_connection import Credentials
from walproxy.proxy.safekeeper_requests import SafekeeperRequests


class EventReader:
    """Reads from all safekeepers at once, each time what they have kept since the last time.

    Args:
        safekeepers: ids and addresses.
        since: the number of the first event to read; each safekeeper numbers them differently.

    Attributes:
        problems: why a safekeeper could not be read the last time, by id.
    """

    def __init__(self, safekeepers: Sequence[tuple[int, Address]], credentials: Credentials, since: int = 0) -> None:
        self.problems: dict[int, str] = {}
        self._addresses = dict(safekeepers)
        self._credentials = credentials
        self._run = secrets.token_hex(16)
        self._next = dict.fromkeys(self._addresses, since)

    async def read(self) -> Mapping[int, list[KeptEvent]]:
        """Return the further events of each safekeeper, in the order in which it has kept them.

        Raises:
            WalproxyError: no safekeeper could be read.
        """
        self.problems = {}
        found = dict(zip(self._addresses, await asyncio.gather(*map(self._read, self._addresses)), strict=True))
        if len(self.problems) == len(self._addresses):
            raise WalproxyError("; ".join(self.problems.values()))
        return found

    async def _read(self, safekeeper_id: int) -> list[KeptEvent]:
        requests = SafekeeperRequests(safekeeper_id, self._addresses[safekeeper_id], self._credentials)
        found: list[KeptEvent] = []
        try:
            cluster_id = (await requests.greet(self._run)).cluster_id
            is_first = True
            while True:
                since = self._next[safekeeper_id]
                page = await requests.ask(EventExchange(cluster_id, since=since), EventPage)
                if is_first and page.next_seq < since:
                    # It has lost its files, and numbers events from 1 again.
                    self._next[safekeeper_id], is_first = 0, False
                    continue
                is_first = False
                self._next[safekeeper_id] = page.next_seq
                found += page.events
                if not page.events:
                    return found
        except WalproxyError as error:
            self.problems[safekeeper_id] = str(error)
            return found
        finally:
            await requests.close()
