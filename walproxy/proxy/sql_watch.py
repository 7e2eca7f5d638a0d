"""Check that an SQL session can be opened, before something needs it, and warn if not.

WAL streams without one, so a wrong database or a missing line of pg_hba.conf would be noticed in the incident: by a
takeover that must end the walsender of a deposed proxy, by the count of the waiting sessions. Each proxy checks, spares
too: it takes over from its own host. A new session is opened each time, since one that is open proves nothing.
"""

import asyncio
import logging
from collections.abc import Callable

from safekeeper.base.logs import ProblemLog
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.sql import try_session

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5
CHECK_INTERVAL_S = 60.0
WARN_AGAIN_AFTER_S = 3600.0
SQL_TIMEOUT_S = 10.0
# They say nothing of the database and of pg_hba.conf, and the proxy shows them otherwise, or needs no session then.
_PASSING = (ProblemKind.NO_FREE_WALSENDER, ProblemKind.STARTING, ProblemKind.UNREACHABLE)


class SqlWatch:
    """The check of one proxy.

    Args:
        conninfo: returns the connection string of the primary for SQL, None without a primary.

    Attributes:
        problem: why no session can be opened, empty if one can or that is unknown.
    """

    def __init__(self, conninfo: Callable[[], str | None], clock: Callable[[], float]) -> None:
        self.problem = ""
        self._find_conninfo = conninfo
        self._clock = clock
        self._log = ProblemLog(logger, self._clock, WARN_AGAIN_AFTER_S)
        self._conninfo: str | None = None
        self._check_at = 0.0

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check_if_due()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def check_if_due(self) -> None:
        """Check a primary when it is connected, and from time to time; log a change."""
        conninfo, now = self._find_conninfo(), self._clock()
        if conninfo is None or (conninfo == self._conninfo and now < self._check_at):
            return
        self._conninfo, self._check_at = conninfo, now + CHECK_INTERVAL_S
        try:
            await try_session(conninfo, timeout_s=SQL_TIMEOUT_S)
        except PrimaryProblem as problem:
            if problem.kind in _PASSING:
                return
            self.problem = problem.message
            self._log.note(
                self.problem,
                "SQL on the primary is not possible, which a takeover from a proxy that hangs needs: %s",
                self.problem,
            )
        else:
            self.problem = ""
            self._log.over("SQL on the primary is possible")
