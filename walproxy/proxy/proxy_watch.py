"""Observes the state of a proxy some times per second: logs and records what has changed, for people and for /status.

It decides nothing. Beside it run the watches of the quorum, of the primary's settings, and of SQL on the primary.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from safekeeper.base.logs import ProblemLog, RateLimits, log_event, record_event
from walproxy.proposer.view import ProposerView
from walproxy.proxy.primary_watch import PrimaryWatch
from walproxy.proxy.quorum_watch import QuorumWatch, WatchedProxy
from walproxy.proxy.readiness import SERVING_STATES, Readiness
from walproxy.proxy.replay_watch import ReplayWatch
from walproxy.proxy.sql_watch import SqlWatch
from walproxy.proxy.state_events import StateEvents, look_at

logger = logging.getLogger(__name__)

# The state is observed no more often than this, and when the phase has changed: it is most of what an idle proxy does.
OBSERVATION_INTERVAL_S = 0.2
LINES_OF_A_KIND_MAX = 10
LINES_INTERVAL_S = 60.0
# Events that differ only in figures.
EVENTS_OF_A_KIND_MAX = 30


class ObservableProxy(WatchedProxy, Protocol):
    """The proxy, as the watches need it; called on the event loop."""

    def sql_conninfo(self) -> str | None:
        """Return the connection string of the primary for SQL, None without a primary."""

    def served_conninfo(self) -> str | None:
        """Return the same, and None for a spare, too."""


class ProxyWatch:
    """The watch of one proxy. All times are the event loop's.

    Attributes:
        state: the public name of the state, as of the last observation.
        state_since: when it changed last.
        readiness: whether commits succeed, for /readyz.
        replay: which standbys receive WAL and do not replay it.
        quorum: since when there is no quorum.
        primary: whether commits wait for this proxy, and how many sessions do.
        sql: whether SQL on the primary is possible.
    """

    def __init__(self, proxy: ObservableProxy, slot: str, application_name: str, clock: Callable[[], float]) -> None:
        self.state = "connecting"
        self.state_since = 0.0
        self.readiness = Readiness()
        self.replay = ReplayWatch()
        self.quorum = QuorumWatch(proxy, clock)
        self.primary = PrimaryWatch(proxy.served_conninfo, slot, application_name, clock)
        self.sql = SqlWatch(proxy.sql_conninfo, clock)
        self._next_at = 0.0
        self._state_events = StateEvents(0.0)
        self._event_texts = RateLimits(EVENTS_OF_A_KIND_MAX, LINES_INTERVAL_S)
        self._lines = RateLimits(LINES_OF_A_KIND_MAX, LINES_INTERVAL_S)
        self._apply_problem = ProblemLog(logger)
        self._member_problems: dict[int, ProblemLog] = {}

    def begin(self, now: float) -> None:
        """Begin to observe."""
        self.state_since = now
        self._state_events = StateEvents(now)

    def is_due(self, now: float, *, has_changed: bool) -> bool:
        """Return whether the state is to be observed now; if so, the next time is after a while.

        Args:
            has_changed: the phase has.
        """
        if now < self._next_at and not has_changed:
            return False
        self._next_at = now + OBSERVATION_INTERVAL_S
        return True

    def forget(self, safekeeper_id: int) -> None:
        """Forget a safekeeper that was removed."""
        self._member_problems.pop(safekeeper_id, None)

    def observe(
        self,
        view: ProposerView,
        state: str,
        now: float,
        *,
        up: frozenset[int],
        full: frozenset[int],
        problems: Mapping[int, str],
        primary: str | None,
        primary_problem: str,
    ) -> None:
        """Log and record what has changed.

        Args:
            state: the public name of the state.
            up, full, problems, primary, primary_problem: see `look_at`.
        """
        serves = state in SERVING_STATES
        self.replay.observe(view.standbys, now)
        if state != self.state:
            missing = [f"safekeeper {i}: {problem}" for i, problem in problems.items() if problem]
            note = f" ({'; '.join(missing)})" if missing and state == "waiting_for_quorum" else ""
            self.log_line(logging.INFO, f"{self.state} -> {state} after {now - self.state_since:.1f} s{note}")
            self.state, self.state_since = state, now
        look = look_at(
            view,
            up=up,
            full=full,
            problems=problems,
            primary=primary,
            primary_problem=primary_problem,
            serves=serves,
        )
        for kind, fields, text in self._state_events.compare(look, now):
            if self._event_texts.admit(text) is not None:
                record_event(logger, kind, fields, text)
        self.readiness.observe(serves, now, is_spare=view.is_spare)
        for safekeeper_id, problem in problems.items():
            # The link logs its own problems, the proposer logs refusals.
            if problem and safekeeper_id in up - full and not view.peers[safekeeper_id].refused:
                log = self._member_problems.setdefault(safekeeper_id, ProblemLog(logger))
                log.note(problem, "safekeeper %d: %s", safekeeper_id, problem)
        apply_problem = view.lacking
        if apply_problem:
            self._apply_problem.note(
                apply_problem, "remote_apply is blocked: %s", apply_problem, event="remote-apply-blocked"
            )
        elif apply_problem is not None:
            self._apply_problem.over("remote_apply is no longer blocked", event="remote-apply-resumed")

    def log_line(self, level: int, line: str, event: str = "", term: int = 0) -> None:
        """Log a line that may repeat: a few of its kind per minute, with the number of suppressed ones."""
        addition = self._lines.admit(line)
        if addition is not None and event:
            log_event(logger, event, {"term": term}, "%s%s", line, addition, level=level)
        elif addition is not None:
            logger.log(level, "%s%s", line, addition)
