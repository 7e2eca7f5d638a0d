"""Watch for the loss of the quorum: an ERROR after a second and every minute, with the facts that an operator needs
first.

The line contains since when the quorum is lost, how many members take part and how many are needed, which are missing
and why, and how many sessions wait for their commits, as `PrimaryWatch` has read it last. A quorum that is back within
a second was only slow, for instance while its disks wrote much old WAL. A proxy that has not had a quorum yet gets more
time: its safekeepers may be starting, too.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from safekeeper.base.logs import log_event
from walproxy.proxy.gate import Gate, GateState

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.25
REPEAT_S = 60.0
LOST_S = 1.0
START_S = 10.0


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

    def waiting_sessions(self) -> tuple[int | None, str]:
        """Return how many sessions wait for their commits, or None and why that is unknown."""

    def gate(self) -> Gate | None:
        """Return whether commits wait for this proxy, None if nothing is known."""


class QuorumWatch:
    """The watch of one proxy.

    Attributes:
        lost_at: the event loop's time of the loss; None while there is a quorum.
    """

    def __init__(self, proxy: WatchedProxy, clock: Callable[[], float]) -> None:
        self.lost_at: float | None = None
        self._proxy = proxy
        self._clock = clock
        self._had_quorum = self._is_logged = False
        self._log_at = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def look(self) -> None:
        """Check which members take part, and log if that is due."""
        now = self._clock()
        attendance = self._proxy.attendance(now)
        if self.lost_at is None:
            self._had_quorum = self._had_quorum or attendance.is_quorum is True
            if attendance.is_quorum is not False or attendance.is_spare:
                return
            self.lost_at = now
            self._log_at = now + (LOST_S if self._had_quorum else START_S)
        elif attendance.is_quorum or attendance.is_spare:
            self._end(now, attendance.is_spare)
            return
        lost_s = now - self.lost_at
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
        self.lost_at = None

    def _log(self, attendance: Attendance, lost_s: float) -> None:
        count, problem = self._proxy.waiting_sessions()
        waiting = f"unknown ({problem})" if count is None else str(count)
        gate = self._proxy.gate()
        missing = "; ".join(f"safekeeper {i}: {problem}" for i, problem in sorted(attendance.missing.items()))
        facts = (
            f"{lost_s:.0f} s, {attendance.present} of {attendance.count} members take part, {attendance.needed} are "
            f"needed; waiting sessions: {waiting}; missing: {missing or 'unknown'}"
        )
        if gate is not None and gate.state is GateState.NOT_GATED:
            text = f"commits do not wait: no quorum for {facts}"
        else:
            text = f"commits wait: no quorum for {facts}"
        if self._is_logged:
            logger.error("%s", text)
        else:
            fields = {"present": attendance.present, "members": attendance.count, "needed": attendance.needed}
            log_event(logger, "quorum-lost", fields, "%s", text)
