"""The limbo of a running proxy: decodes the uncommitted WAL, samples sessions, executes the policy.

It looks at the age of the oldest uncommitted WAL four times a second. If that exceeds `slow_commit`, or a client
asks, it samples the sessions that wait, and then reads the WAL that it has not read yet: in this order, so that a
session in the sample has its record in the queue, if the proxy has received it. A record without a session was perhaps
received after the sample. Everything runs on the event loop; decoding, in slices of some milliseconds, yields to it in
between.

A commit's wait ends in SQL only after another look at commit_lsn, and in a statement that checks that the session still
waits for the same transaction.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from safekeeper.base.logs import ProblemLog, log_event
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.waldecode.format import ALIGNMENT, PAGE_SIZE, WalFormatError
from walproxy.limbo.commit_policy import DETACH, FENCE, TERMINATE, WARN, CommitPolicy, is_unconfirmed
from walproxy.limbo.facts import ObservedProxy, Positions, WaitingCommit, WaitingSession
from walproxy.limbo.sessions import READ_ONLY, end_waits, is_fenced, read_waiting_sessions, set_fence
from walproxy.limbo.transactions import ABORT, Arrivals, Entry, TransactionQueue, first_page_to_read
from walproxy.postgres.problems import PrimaryProblem
from walproxy.postgres.sessions import SqlSessions

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.25
# With commits that wait, each look is a query to PostgreSQL.
SLOW_LOOK_INTERVAL_S: Final = 1.0
SQL_TIMEOUT_S: Final = 2.0
# After that, a session of the sample has perhaps committed long ago.
SAMPLE_AGE_S_MAX: Final = 2.0
# Of one look; WAL that is not read by then is read by the next one.
DECODE_S: Final = 2.0
# Of one request: it is charged to the clients' share of the loop's time, which no other client may use until it is
# repaid.
REQUEST_DECODE_S: Final = 0.05
SLICE_BYTES: Final = 16 << 10
# Committed WAL before the queue is read for the rate of commits, and skipped if it is more.
KEPT_BYTES: Final = 64 << 10
SKIP_BYTES: Final = 256 << 10
RATE_S: Final = 5.0
ENDED_AT_ONCE_MAX: Final = 200
LINES_MAX: Final = 50


class Limbo:
    """The limbo of one proxy.

    Attributes:
        queue: the transactions of the uncommitted WAL, as far as it was read.
        arrivals: since when WAL waits.
        policy: what happens to a commit that waits too long.
        shows_literals: whether GET /limbo has the literals of the statements.
        sessions: by transaction, of the last sample; those of which the transaction is unknown have negative keys.
        sessions_problem: why the sessions are unknown, empty if they are known.
        sampled_at: the loop's time of the last sample that succeeded, None without one.
        is_slow: whether the last look has found a commit that waits for longer than `slow_commit_s`.
        seen_since: since when each transaction was seen to wait, by xid, the loop's time.
    """

    def __init__(
        self,
        proxy: ObservedProxy,
        policy: CommitPolicy,
        slow_commit_s: float,
        clock: Callable[[], float] | None = None,
        *,
        pool: Callable[[], SqlSessions | None] = lambda: None,
    ) -> None:
        self.queue = TransactionQueue()
        self.arrivals = Arrivals()
        self.policy = policy
        self.slow_commit_s = slow_commit_s
        self.shows_literals = False
        self.sessions: dict[int, WaitingSession] = {}
        self.sessions_problem = "no sample yet"
        self.sampled_at: float | None = None
        self.is_slow = False
        self.seen_since: dict[int, float] = {}
        self._proxy = proxy
        self._clock = clock
        self._pool = pool
        self._segment_size = self._major = self._tli = 0
        self._next_page_lsn: Lsn | None = None  # to read from if no record begins where the WAL in memory does
        self._next_look_at = 0.0
        self._apply_mark: tuple[float, Lsn] = 0.0, 0  # since when the apply position is below which
        self._history: deque[tuple[float, Lsn]] = deque()
        self._lock = asyncio.Lock()
        self._overdue_log = ProblemLog(logger)
        self._sql_log = ProblemLog(logger)

    def now(self) -> float:
        """Return the time of its clock, the event loop's by default."""
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()

    def stream_begins(self, lsn: Lsn, tli: int) -> None:
        """Another stream begins at `lsn`: WAL above it is received a second time, or replaced by that of `tli`."""
        self.queue.stop()
        self.arrivals.repeat()
        self._discard(lsn, tli)

    def timeline_ended(self, lsn: Lsn, next_tli: int) -> None:
        """The timeline of the stream has ended at `lsn`."""
        self._discard(lsn, next_tli)

    def _discard(self, lsn: Lsn, next_tli: int) -> None:
        lost = self.queue.discard(lsn, next_tli)
        if lost:
            self.arrivals.clear()
            for entry in lost[:LINES_MAX]:
                logger.warning(
                    "transaction %d (%s at %s) is discarded: timeline %d begins at %s",
                    *(entry.xid, entry.kind, format_lsn(entry.start_lsn), next_tli, format_lsn(lsn)),
                )

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Forget what is confirmed; refresh and execute the policy if WAL has waited for long, or a fence is up."""
        positions, now = self._proxy.limbo_positions(), self.now()
        self.arrivals.trim(positions.reported_lsn)
        self._history.append((now, positions.commit_lsn))
        while now - self._history[0][0] > RATE_S:
            self._history.popleft()
        self.is_slow = is_slow = self._is_slow(positions, now)
        policy = self.policy
        if not is_slow:
            is_refreshing = self._lock.locked()  # Its sample is shown once it has decoded the WAL.
            if self.sampled_at is not None and not is_refreshing and now - self.sampled_at > SAMPLE_AGE_S_MAX:
                self._forget_sample("")
            if len(self.queue):
                self.queue.confirm(positions.reported_lsn)
            self._overdue_log.over("no commit waits longer than commit_timeout now")
        may_be_fenced = policy.is_fenced or (policy.is_fenced is None and policy.action == FENCE)
        if (is_slow or (may_be_fenced and positions.leads)) and now >= self._next_look_at:
            self._next_look_at = now + min(SLOW_LOOK_INTERVAL_S, policy.timeout_s or SLOW_LOOK_INTERVAL_S)
            await self.refresh()
            await self._apply_policy(self.now())

    def _is_slow(self, positions: Positions, now: float) -> bool:
        """Whether this proxy leads, and a position waits for longer than `slow_commit`."""
        if positions.applied_lsn >= self._apply_mark[1]:
            self._apply_mark = now, positions.reported_lsn
        if not positions.leads:
            return False  # Another proxy may lead, and act on the sessions.
        slow_s = min(self.slow_commit_s, self.policy.timeout_s or self.slow_commit_s)
        since = self.arrivals.oldest(positions.reported_lsn)
        apply_s = now - self._apply_mark[0] if positions.applied_lsn < self._apply_mark[1] else 0.0
        # As of the sample: the sessions of a busy server that a client's request has found are others by now.
        sampled_at = self.sampled_at or 0.0
        session_s = max((sampled_at - self.seen_since[key] for key in self.sessions), default=0.0)
        return max(now - since if since is not None else 0.0, apply_s, session_s) >= slow_s

    def arrived(self, entries: Iterable[Entry]) -> list[float | None]:
        """Return when the last byte of each record arrived, None if that is unknown."""
        # The last byte is one of the last eight: the others are padding, which may arrive later.
        return self.arrivals.since(entry.end_lsn - ALIGNMENT + 1 for entry in entries)

    def oldest_wait_s(self) -> float | None:
        """Return the age of the oldest WAL that is not reported to PostgreSQL, without reading it; None without."""
        since = self.arrivals.oldest(self._proxy.limbo_positions().reported_lsn)
        return self.now() - since if since is not None else None

    def commits_per_s(self) -> float | None:
        """Return how many commits were confirmed a second, over the last seconds; None if unknown.

        It is an estimate: commit_lsn's speed, and the commits in the WAL that was read.
        """
        if len(self._history) < 2 or not self._history[0][1]:
            return None
        (then, from_lsn), now = self._history[0], self.now()
        commit_lsn = self._proxy.limbo_positions().commit_lsn
        if commit_lsn <= from_lsn:
            return 0.0
        if not self.queue.read_bytes or now <= then:
            return None
        return (commit_lsn - from_lsn) / (now - then) * self.queue.read_commits / self.queue.read_bytes

    async def refresh(self, decode_s: float = DECODE_S) -> None:
        """Sample the sessions, then read the WAL that was not read yet, for at most `decode_s`."""
        async with self._lock:
            await self._sample()
            await self._decode(self.now() + decode_s)

    async def _sample(self) -> None:
        conninfo = self._proxy.sql_conninfo()
        if conninfo is None:
            self._forget_sample("no primary is connected")
            return
        sampled_at = self.now()
        try:
            sessions = await read_waiting_sessions(conninfo, self._pool(), timeout_s=SQL_TIMEOUT_S)
        except PrimaryProblem as problem:
            self._forget_sample(problem.message)
            return
        self.sessions = {session.xid or -session.pid: session for session in sessions}
        self.sessions_problem, self.sampled_at = "", sampled_at
        self._keep_seen(self.sessions)
        for key in self.sessions:
            self.seen_since.setdefault(key, sampled_at)

    def _forget_sample(self, problem: str) -> None:
        self.sessions, self.sessions_problem, self.sampled_at = {}, problem, None

    def _keep_seen(self, keys: Iterable[int]) -> None:
        """Forget since when transactions wait that have left the queue and have no session."""
        if self.seen_since:
            kept = {*keys, *(entry.xid for entry in self.queue)}
            self.seen_since = {key: at for key, at in self.seen_since.items() if key in kept}

    async def _decode(self, deadline: float) -> None:
        """Read the WAL in memory until its end, or until the deadline."""
        window, queue = self._proxy.window, self.queue
        while True:
            reported_lsn = self._proxy.limbo_positions().reported_lsn
            queue.confirm(reported_lsn)
            is_gone = not window.begin_lsn <= queue.position <= window.end_lsn
            if is_gone or reported_lsn - queue.position > SKIP_BYTES:
                queue.stop()
            if queue.is_full or max(reported_lsn, queue.position) >= window.end_lsn:
                return
            if not queue.position and not self._begin(reported_lsn):
                return
            end_lsn = min(queue.position + SLICE_BYTES, window.end_lsn)
            queue.feed(b"".join(window.slices(queue.position, end_lsn)))
            if queue.problem:
                if self._next_page_lsn is None or self._next_page_lsn >= window.end_lsn:
                    return
                self._begin_at_next_page()  # The WAL in memory begins within a record.
            if self.now() >= deadline:
                return
            await asyncio.sleep(0)

    def _begin(self, reported_lsn: Lsn) -> bool:
        """Begin where no record of the queue is missed, and return True; or as early as the WAL in memory permits."""
        facts, window = self._proxy.limbo_facts(), self._proxy.window
        self._segment_size = facts.segment_size or self._segment_size
        self._major = facts.server_version // 10000 or self._major
        self._tli, self._next_page_lsn = facts.tli, None
        if not self._segment_size:
            return False
        begin_lsn = window.begin_lsn
        lsn = max(begin_lsn, min(reported_lsn, window.end_lsn) - KEPT_BYTES // 2)
        page_lsn = first_page_to_read(self._read, lsn, begin_lsn, window.end_lsn, self._segment_size)
        if page_lsn is None:
            self._next_page_lsn = begin_lsn - begin_lsn % PAGE_SIZE + PAGE_SIZE
        elif page_lsn >= window.end_lsn:
            return False
        try:
            self.queue.begin(begin_lsn if page_lsn is None else page_lsn, self._segment_size, self._major, self._tli)
        except WalFormatError:  # No record can begin there.
            return self._begin_at_next_page()
        return True

    def _begin_at_next_page(self) -> bool:
        lsn, self._next_page_lsn = self._next_page_lsn, None
        if lsn is None or lsn >= self._proxy.window.end_lsn:
            return False
        self.queue.begin(lsn, self._segment_size, self._major, self._tli)
        return True

    def _read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        return b"".join(self._proxy.window.slices(begin_lsn, end_lsn))

    def problem(self) -> str:
        """Return why the list is not complete, empty if it is."""
        positions, window, queue = self._proxy.limbo_positions(), self._proxy.window, self.queue
        problems = []
        if queue.problem:
            problems.append(f"cannot decode the WAL: {queue.problem}")
        elif queue.is_full:
            problems.append(
                f"more than {len(queue.entries)} transactions: those above {format_lsn(queue.position)} are not read"
            )
        elif queue.skipped_until > positions.reported_lsn:
            problems.append(f"the record that ends at {format_lsn(queue.skipped_until)} began below the WAL in memory")
        elif positions.reported_lsn < window.end_lsn and queue.position < window.end_lsn:
            problems.append(
                f"{window.end_lsn - max(queue.position, positions.reported_lsn)} bytes of WAL are not decoded yet"
            )
        if not positions.leads:
            problems.append("this proxy does not lead a term: only sessions show what waits")
        if self.sessions_problem:
            problems.append(f"sessions are unknown: {self.sessions_problem}")
        return "; ".join(problems)

    def waits(self, now: float) -> list[WaitingCommit]:
        """Return the commits that wait, oldest first, as far as they are known."""
        commit_lsn = self._proxy.limbo_positions().commit_lsn
        entries = [e for e in self.queue if e.kind != ABORT and e.end_lsn > commit_lsn and self.may_wait(e)]
        arrived = self.arrived(entries)
        found = [
            WaitingCommit(entry.xid, entry.end_lsn, now - self._since(entry.xid, at, now), self.sessions.get(entry.xid))
            for entry, at in zip(entries, arrived, strict=True)
        ]
        known = {entry.xid for entry in self.queue}
        found += [
            WaitingCommit(session.xid, None, now - self._since(key, None, now), session)
            for key, session in self.sessions.items()
            if key not in known
        ]
        return sorted(found, key=lambda wait: -wait.waits_s)

    def may_wait(self, entry: Entry) -> bool:
        """Whether a session waits for an entry, or it is unknown whether one does."""
        return entry.kind != ABORT and (bool(self.sessions_problem) or entry.xid in self.sessions)

    def _since(self, key: int, arrived_at: float | None, now: float) -> float:
        return arrived_at if arrived_at is not None else self.seen_since.get(key, now)

    async def _apply_policy(self, now: float) -> None:
        if not self._proxy.limbo_positions().leads:
            return
        policy = self.policy
        decision = policy.decide(self.waits(now))
        if decision.fresh:
            self._overdue_log.note(
                "overdue",
                "commits wait longer than commit_timeout = %g s (action: %s): transactions %s; the oldest waits %.1f s",
                *(policy.timeout_s, policy.action, _xids(decision.fresh), decision.fresh[0].waits_s),
                event="commit-timeout",
            )
            if policy.action in (WARN, FENCE):
                policy.counts[policy.action] += len(decision.fresh)
        try:
            if decision.act_on:
                await self._end_waits(decision.act_on)
            if decision.fence is not None:
                await self._set_fence(decision.fence)
            self._sql_log.over("the action of on_commit_timeout succeeds again")
        except PrimaryProblem as problem:
            self._sql_log.note(problem.message, "cannot execute on_commit_timeout: %s", problem.message)

    async def _end_waits(self, overdue: tuple[WaitingCommit, ...]) -> None:
        policy, conninfo = self.policy, self._proxy.sql_conninfo()
        if conninfo is None:
            return
        by_session = {wait.session: wait for wait in overdue[:ENDED_AT_ONCE_MAX] if wait.session is not None}
        ended, problem = await end_waits(
            conninfo,
            by_session,
            # The connection took some time.
            lambda session: is_unconfirmed(by_session[session], self._proxy.limbo_positions().commit_lsn),
            terminate=policy.action == TERMINATE,
            timeout_s=SQL_TIMEOUT_S,
        )
        policy.counts[policy.action] += len(ended)
        for session in ended:
            wait = by_session[session]
            lsn = format_lsn(wait.end_lsn) if wait.end_lsn is not None else "an unknown position"
            fields = {"xid": wait.xid, "waits_s": round(wait.waits_s, 3), "action": policy.action}
            if wait.end_lsn is not None:
                fields["end_lsn"] = lsn
            if policy.action == DETACH:
                log_event(
                    logger,
                    "commit-timeout",
                    fields,
                    "data-loss risk: detached transaction %d (up to %s) of session %d after %.1f s: PostgreSQL reports "
                    "success, but no quorum has the commit",
                    *(wait.xid, lsn, session.pid, wait.waits_s),
                )
            else:
                log_event(
                    logger,
                    "commit-timeout",
                    fields,
                    "terminated session %d: its transaction %d (up to %s) has waited %.1f s; its outcome is unknown to "
                    "the client, and it is committed on the primary",
                    *(session.pid, wait.xid, lsn, wait.waits_s),
                )
        if problem:
            self._sql_log.note(problem, "cannot execute on_commit_timeout: %s", problem)

    async def _set_fence(self, on: bool) -> None:
        policy, conninfo = self.policy, self._proxy.sql_conninfo()
        if conninfo is None:
            return
        if not on and policy.is_fenced is None and not await is_fenced(conninfo, timeout_s=SQL_TIMEOUT_S):
            policy.is_fenced = False
            return
        await set_fence(conninfo, on, timeout_s=SQL_TIMEOUT_S)
        policy.is_fenced = on
        if on:
            logger.warning("new transactions are read-only until no commit waits: %s = on", READ_ONLY)
        else:
            logger.warning("no commit waits: new transactions are read-write again: %s is reset", READ_ONLY)


def _xids(waits: tuple[WaitingCommit, ...]) -> str:
    shown = ", ".join(str(wait.xid) for wait in waits[:10])
    return f"{shown} and {len(waits) - 10} more" if len(waits) > 10 else shown
