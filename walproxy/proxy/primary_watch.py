"""Watch whether commits wait for this proxy, and whether logical subscribers can be ahead of the quorum.

Every two seconds one query (primary_query.py) reads settings and walsenders of the primary; gate.py judges them. Each
change of the result is logged once, and again every hour. Until commits have waited for this proxy, commits that do not
wait are no ERROR: the settings follow its first start. A spare checks nothing, since another proxy serves.

After a failure the next attempt comes later each time, because each attempt of a role that may not connect adds a line
to the server's log. A result that is older than OLD_S no longer counts: then it is unknown whether commits wait.

A logical walsender sends a transaction as soon as the primary has flushed its commit, while the commit still waits for
the quorum. From PostgreSQL 17 on it waits for the slots in `synchronized_standby_slots`, if its own slot has the
property `failover`; in earlier versions it never waits. Slots that are read over SQL, and those of `walproxy pipeline
apply`, are not counted: `walproxy pipeline` shows nothing before the quorum has it.
Source: https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONIZED-STANDBY-SLOTS
"""

import asyncio
import logging
from collections.abc import Callable

from safekeeper.base.logs import ProblemLog
from walproxy.postgres.problems import PrimaryProblem, warning_of_subscribers
from walproxy.postgres.sessions import SqlSessions
from walproxy.proxy.gate import Gate, GateState, classify
from walproxy.proxy.primary_query import PrimaryAnswer, read_primary

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.25
CHECK_INTERVAL_S = 2.0
CHECK_AGAIN_MAX_S = 60.0
OLD_S = 10.0
SQL_TIMEOUT_S = 5.0
WARN_AGAIN_AFTER_S = 3600.0


class PrimaryWatch:
    """The watch of one proxy.

    Args:
        conninfo: returns the connection string of the primary for SQL, None without a primary, and for a spare.
        slot: the proxy's own slot, which `synchronized_standby_slots` must contain.
        application_name: the proxy's name in synchronous_standby_names.

    Attributes:
        problem: why the last attempt has failed, empty if it has not.
    """

    def __init__(
        self, conninfo: Callable[[], str | None], slot: str, application_name: str, clock: Callable[[], float]
    ) -> None:
        self.problem = ""
        self._find_conninfo = conninfo
        self._slot = slot
        self._application_name = application_name
        self._clock = clock
        self._sessions: SqlSessions | None = None
        self._answer: PrimaryAnswer | None = None
        self._gate: Gate | None = None
        self._checked_at = self._check_at = 0.0
        self._pause_s = CHECK_INTERVAL_S
        self._has_gated = False
        self._gate_log, self._exempt_log, self._unknown_log, self._subscriber_log = (
            ProblemLog(logger, self._clock, WARN_AGAIN_AFTER_S) for _ in range(4)
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                await self.check_if_due()
                await asyncio.sleep(POLL_INTERVAL_S)
        finally:
            await self._forget(None)

    def pool(self) -> SqlSessions | None:
        """Return the sessions with the watched primary; None for a spare and without a primary."""
        return self._sessions

    def gate(self) -> Gate | None:
        """Return whether commits wait for this proxy; None for a spare, without a primary, and before a result."""
        if self._sessions is None:
            return None
        if self.age_s() <= OLD_S:
            return self._gate
        return Gate(GateState.UNKNOWN, f"it cannot be checked: {self.problem or 'the primary does not reply'}")

    def age_s(self) -> float:
        """Return for how many seconds the result has been known; before the first result, for how many it has not."""
        return self._clock() - self._checked_at

    def waiting_sessions(self) -> tuple[int | None, str]:
        """Return how many sessions wait for their commits, or None and why that is unknown."""
        answer = self._answer
        if answer is None or self.age_s() > OLD_S:
            return None, self.problem or "no primary is connected"
        if answer.waiting_sessions is None:
            role = answer.gate.role
            return None, f"role {role} may not see what other sessions wait for: GRANT pg_monitor TO {role}"
        return answer.waiting_sessions, ""

    async def check_if_due(self) -> None:
        """Read from the primary if that is due, and log what has changed."""
        conninfo, now = self._find_conninfo(), self._clock()
        if conninfo != (self._sessions.conninfo if self._sessions is not None else None):
            await self._forget(conninfo)
        if self._sessions is None:
            return
        if now >= self._check_at:
            await self._check(self._sessions, now)
        self._log()

    async def _forget(self, conninfo: str | None) -> None:
        """Forget what is known, and close the sessions: there is another primary, or none."""
        sessions, self._sessions = self._sessions, SqlSessions(conninfo) if conninfo is not None else None
        self._answer, self._gate, self.problem = None, None, ""
        self._checked_at = self._check_at = self._clock()
        self._pause_s = CHECK_INTERVAL_S
        if sessions is not None:
            await sessions.close()

    async def _check(self, sessions: SqlSessions, now: float) -> None:
        try:
            answer = await read_primary(sessions, self._slot, timeout_s=SQL_TIMEOUT_S)
        except PrimaryProblem as problem:
            self.problem = problem.message
            self._check_at = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, CHECK_AGAIN_MAX_S)
            return
        self.problem, self._pause_s, self._check_at = "", CHECK_INTERVAL_S, now + CHECK_INTERVAL_S
        self._answer, self._checked_at = answer, now
        self._gate = classify(answer.gate, self._application_name)
        warning = warning_of_subscribers(answer.subscribers, self._slot)
        if warning is None:
            self._subscriber_log.over("logical subscribers no longer receive commits before the quorum has them")
        else:
            self._subscriber_log.note(
                warning, "logical subscribers can receive commits before the quorum has them: %s", warning
            )

    def _log(self) -> None:
        gate = self.gate()
        if gate is None:
            return
        if gate.state is GateState.UNKNOWN:
            self._unknown_log.note(gate.reason, "whether commits wait for the quorum is unknown: %s", gate.reason)
            return
        self._unknown_log.over("whether commits wait for the quorum is known again")
        if gate.exempt:
            self._exempt_log.note(gate.exempt, "%s", gate.exempt)
        else:
            self._exempt_log.over("all commits wait again: no role or database has another synchronous_commit")
        if gate.state is GateState.NOT_GATED:
            self._gate_log.note(
                gate.reason,
                "commits do not wait for the quorum: %s",
                gate.reason,
                level=logging.ERROR if self._has_gated else logging.WARNING,
                event="gate-lost" if self._has_gated else "",
            )
            return
        if gate.hangs:
            self._gate_log.note(
                gate.reason,
                "commits wait for another standby: %s",
                gate.reason,
                level=logging.ERROR,
                event="gate-blocked",
            )
        elif gate.reason:
            self._gate_log.note(gate.reason, "commits may return without the quorum: %s", gate.reason)
        else:
            self._gate_log.over("commits wait for the quorum again", event="gate-back" if self._has_gated else "")
        # Also if others are needed, too, or can replace this proxy.
        self._has_gated = True
