"""Check whether logical subscribers can receive commits before the quorum has them, and warn if they can.

A logical walsender sends a transaction as soon as the primary has flushed its commit, while the commit still waits for
the quorum. From PostgreSQL 17 on it waits for the slots in `synchronized_standby_slots`, if its own slot has the
property `failover`; in earlier versions it never waits. The check is a query, so with a role that may only replicate it
is skipped. Slots that are read over SQL, and those of `walproxy pipeline apply`, are not counted: `walproxy pipeline`
shows nothing before the quorum has it.
Source: https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONIZED-STANDBY-SLOTS
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from safekeeper.base.logs import ProblemLog
from walproxy.postgres.problems import PrimaryProblem, warning_of_subscribers
from walproxy.postgres.sql import read_logical_subscribers

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5
CHECK_INTERVAL_S = 10.0
# Each attempt of a role that may not connect adds a line to the server's log.
CHECK_AGAIN_AFTER_FAILURE_S = 600.0
WARN_AGAIN_AFTER_S = 3600.0
SQL_TIMEOUT_S = 5.0


class StreamingProxy(Protocol):
    """The proxy whose primary is checked; called on the event loop."""

    def streamed_conninfo(self) -> str | None:
        """Return the connection string for SQL of the primary that is streamed, None if none is."""


class SubscriberWatch:
    """The check of one proxy, repeated while WAL streams.

    Args:
        slot: the proxy's own slot, which `synchronized_standby_slots` must contain.
    """

    def __init__(self, proxy: StreamingProxy, slot: str, clock: Callable[[], float] | None = None) -> None:
        self._proxy = proxy
        self._slot = slot
        self._clock = clock if clock is not None else asyncio.get_running_loop().time
        self._warning = ProblemLog(logger, self._clock, WARN_AGAIN_AFTER_S)
        self._failure = ProblemLog(logger, self._clock, WARN_AGAIN_AFTER_S)
        self._conninfo = ""
        self._check_at = 0.0

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check_if_due()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def check_if_due(self) -> None:
        """Check a primary when it starts to stream, and from time to time; log the result."""
        conninfo, now = self._proxy.streamed_conninfo(), self._clock()
        if conninfo is None or (conninfo == self._conninfo and now < self._check_at):
            return
        self._conninfo, self._check_at = conninfo, now + CHECK_INTERVAL_S
        try:
            subscribers = await read_logical_subscribers(conninfo, timeout_s=SQL_TIMEOUT_S)
        except PrimaryProblem as problem:
            self._check_at = now + CHECK_AGAIN_AFTER_FAILURE_S
            self._failure.note(
                str(problem), "could not check the slots of logical subscribers: %s", problem, level=logging.INFO
            )
            return
        self._failure.over()
        warning = warning_of_subscribers(subscribers, self._slot)
        if warning is None:
            self._warning.over("logical subscribers no longer receive commits before the quorum has them")
        else:
            self._warning.note(
                warning, "logical subscribers can receive commits before the quorum has them: %s", warning
            )
