"""Watch for the loss of the quorum: an ERROR after a second and every minute, with the facts that an operator needs
first.

The line contains since when the quorum is lost, how many members take part and how many are needed, which are missing
and why, and how many sessions wait for their commits. The number of sessions is a query to PostgreSQL; with a role that
may only replicate it is unknown. A quorum that is back within a second was only slow, for instance while its disks
wrote much old WAL. A proxy that has not had a quorum yet gets more time: its safekeepers may be starting, too.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from safekeeper.base.logs import log_event
from walproxy.postgres.problems import PrimaryProblem
from walproxy.postgres.sql import count_waiting_sessions

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.25
COUNT_INTERVAL_S = 10.0
REPEAT_S = 60.0
LOST_S = 1.0
START_S = 10.0
SQL_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Attendance:
    """The members of the cluster, or the listed safekeepers while no membership is known.

    Attributes:
        is_quorum: whether those that take part are a commit quorum; None during an election, and without a primary.
        is_spare: another proxy serves, so this one has no information about the members.
        present, count, needed: how many take part, of how many members, and how many a commit needs; without a leader,
            how many it needs and elect one.
        missing: why each of the others does not take part, by id.
    """

    is_quorum: bool | None
    is_spare: bool
    present: int
    count: int
    needed: int
    missing: Mapping[int, str]


class WatchedProxy(Protocol):
    """The proxy that is watched; called on the event loop."""

    def attendance(self, now: float) -> Attendance:
        """Return which members take part now."""

    def sql_conninfo(self) -> str | None:
        """Return the connection string of the primary for SQL, None without a primary."""


class QuorumWatch:
    """The watch of one proxy.

    Attributes:
        lost_at: the event loop's time of the loss; None while there is a quorum.
        waiting_sessions: how many sessions waited for their commits when they were last counted; None if unknown.
        waiting_problem: why that is unknown, empty if it is known.
    """

    def __init__(
        self,
        proxy: WatchedProxy,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.lost_at: float | None = None
        self.waiting_sessions: int | None = None
        self.waiting_problem = ""
        self._proxy = proxy
        self._clock = clock if clock is not None else asyncio.get_running_loop().time
        self._had_quorum = self._is_logged = False
        self._count_at = self._log_at = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Check which members take part; count the waiting sessions and log if that is due."""
        now = self._clock()
        attendance = self._proxy.attendance(now)
        if self.lost_at is None:
            self._had_quorum = self._had_quorum or attendance.is_quorum is True
            if attendance.is_quorum is not False or attendance.is_spare:
                return
            self.lost_at = self._count_at = now
            self._log_at = now + (LOST_S if self._had_quorum else START_S)
        elif attendance.is_quorum or attendance.is_spare:
            self._end(now, attendance.is_spare)
            return
        lost_s = now - self.lost_at
        if now >= self._count_at:
            self._count_at = now + COUNT_INTERVAL_S
            await self._count()
        if now >= self._log_at:
            self._log_at = now + REPEAT_S
            self._log(attendance, lost_s)
            self._is_logged = True

    def _end(self, now: float, is_spare: bool) -> None:
        if self._is_logged and not is_spare and self.lost_at is not None:
            lost_s = now - self.lost_at
            log_event(
                logger, "quorum-back", {"after_s": round(lost_s, 3)}, "a quorum takes part again after %.1f s", lost_s
            )
        self._is_logged = False
        self.lost_at = self.waiting_sessions = None

    async def _count(self) -> None:
        conninfo = self._proxy.sql_conninfo()
        self.waiting_sessions, self.waiting_problem = None, "no primary is connected"
        if conninfo is None:
            return
        try:
            self.waiting_sessions = await count_waiting_sessions(conninfo, timeout_s=SQL_TIMEOUT_S)
            self.waiting_problem = ""
        except PrimaryProblem as problem:
            self.waiting_problem = problem.message

    def _log(self, attendance: Attendance, lost_s: float) -> None:
        waiting = f"unknown ({self.waiting_problem})" if self.waiting_sessions is None else str(self.waiting_sessions)
        missing = "; ".join(f"safekeeper {i}: {problem}" for i, problem in sorted(attendance.missing.items()))
        text = (
            f"commits wait: no quorum for {lost_s:.0f} s, {attendance.present} of {attendance.count} members take "
            f"part, {attendance.needed} are needed; waiting sessions: {waiting}; missing: {missing or 'unknown'}"
        )
        if self._is_logged:
            logger.error("%s", text)
        else:
            fields = {"present": attendance.present, "members": attendance.count, "needed": attendance.needed}
            log_event(logger, "quorum-lost", fields, "%s", text)
