"""Injects the planned faults, ends them, and verifies that commits succeed again; records each fault with its times.

A fault's beginning is recorded when it has taken effect, its end before it begins to be undone: between these times it
was in effect for certain, and the checkers rely on that.

What outsiders do takes no quorum and no process away: while it lasts, a transaction that begins must be acknowledged,
the proxy that leads must go on leading, and it must report that commits are not gated when they are not.

After each bout everything is healed, and a transaction that begins only then must be acknowledged before a deadline.
A process that has ended meanwhile without having been killed is a violation; only a proxy may, when another one has
taken over from it, and is started again as its supervisor would.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import Final, Literal

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.lab.testing import WalproxyCluster
from walproxy.lab.testing.hindrances import GATE_REMOVED, HINDRANCES
from walproxy.lab.torture.clients import TortureClients
from walproxy.lab.torture.plan import (
    CUT_OFF,
    DEAF,
    FLOOD,
    FULL_DISK,
    KILL,
    MUTE,
    NO_DESCRIPTORS,
    OUTSIDERS,
    PAUSE,
    POWER_CUT,
    SLOW_DISK,
    STOP,
    Bout,
    PlannedFault,
    Targets,
)
from walproxy.lab.torture.record import Fault, Violation

NO_PROGRESS: Final = "NoProgress"
DIED: Final = "Died"
DURABLE: Final = "Durable"
DEPOSED: Final = "Deposed"
UNNOTICED: Final = "Unnoticed"

PROGRESS_WITHIN_S: Final = 60.0
_ANSWERS_WITHIN_S: Final = 30.0
_POLL_S: Final = 0.02
_LOG_LINES: Final = 5
_DIRECTIONS: Final[dict[str, Literal["both", "to", "from"]]] = {CUT_OFF: "both", DEAF: "to", MUTE: "from"}


class Nemesis:
    """Carries out bouts.

    Attributes:
        faults: the faults so far.
        violations: of the rules that a cluster must obey.
        recoveries_s: the time after each bout until a commit that had begun after it was acknowledged.

    Args:
        clock: seconds since the run began.
        wait: waits for a number of seconds.
    """

    def __init__(
        self,
        cluster: WalproxyCluster,
        commits: TortureClients,
        targets: Targets,
        clock: Callable[[], float],
        wait: Callable[[float], None],
    ) -> None:
        self.faults: list[Fault] = []
        self.violations: list[Violation] = []
        self.recoveries_s: list[float] = []
        self._cluster = cluster
        self._commits = commits
        self._targets = targets
        self._clock = clock
        self._wait = wait

    def carry_out(self, bout: Bout) -> bool:
        """Carry out a bout to its end; return whether commits succeeded again after it.

        Raises:
            WalproxyError: the cluster does not carry out a fault.
        """
        if bout.kind == POWER_CUT:
            self._cut_power([fault.target for fault in bout.faults])
        elif bout.kind == OUTSIDERS:
            led = self._leader()
            self._carry_out_in_time(bout.faults, self._see_outsider)
            if led != (leads := self._leader()):
                self._violate(DEPOSED, f"{led} led before, and {leads} leads after: {bout}")
        else:
            self._carry_out_in_time(bout.faults)
        self._see_who_died()
        self._cluster.heal()
        return self.see_progress()

    def see_progress(self) -> bool:
        """Wait until a transaction is acknowledged that begins from now on; without one there is a violation."""
        since_s = self._clock()
        while self._commits.last_ok_begun_s < since_s:
            if self._clock() - since_s > PROGRESS_WITHIN_S:
                self._violate(
                    NO_PROGRESS,
                    f"no commit for {PROGRESS_WITHIN_S:g} s after everything was healed at {since_s:.1f} s; "
                    f"a client's last problem: {self._commits.problem or 'none'}; "
                    + "; ".join(self._end_of_log(proxy) for proxy in self._targets.proxies),
                )
                return False
            self._wait(_POLL_S)
        self.recoveries_s.append(self._clock() - since_s)
        return True

    def _carry_out_in_time(
        self, faults: tuple[PlannedFault, ...], see: Callable[[PlannedFault, float], None] = lambda fault, begun_s: None
    ) -> None:
        """Begin and undo each when its time has come; a fault lasts from the moment on when it was brought about.

        Args:
            see: called for each with the time when it has begun, before it is undone.
        """
        began_s = self._clock()
        order = itertools.count()
        due: list[tuple[float, int, PlannedFault, float | None]] = [
            (began_s + fault.after_s, next(order), fault, None) for fault in faults
        ]
        heapq.heapify(due)
        while due:
            moment_s, _, fault, begun_s = heapq.heappop(due)
            self._wait(max(0.0, moment_s - self._clock()))
            if begun_s is None:
                self._begin(fault)
                begun_s = self._clock()
                heapq.heappush(due, (begun_s + fault.lasts_s, next(order), fault, begun_s))
            else:
                see(fault, begun_s)
                self.faults.append(Fault(fault.kind, fault.target, begun_s, self._clock()))
                self._undo(fault)

    def _see_outsider(self, fault: PlannedFault, begun_s: float) -> None:
        """Wait until a transaction is acknowledged that has begun under a fault, and until the proxy has noticed it."""
        self._wait_until(lambda: self._commits.last_ok_begun_s > begun_s, NO_PROGRESS, f"no commit under: {fault}")
        if fault.kind == GATE_REMOVED:
            self._wait_until(
                self._is_reported_not_gated, UNNOTICED, f"no proxy reports that commits are not gated: {fault}"
            )

    def _is_reported_not_gated(self) -> bool:
        # A spare has no gate.
        statuses = filter(None, map(self._cluster.status_of, self._targets.proxies))
        return any(gate["state"] == "not gated" for gate in (status["gate"] for status in statuses) if gate is not None)

    def _wait_until(self, condition: Callable[[], bool], rule: str, message: str) -> None:
        since_s = self._clock()
        while not condition():
            if self._clock() - since_s > _ANSWERS_WITHIN_S:
                self._violate(rule, message)
                return
            self._wait(_POLL_S)

    def _leader(self) -> tuple[str, int] | None:
        """Return the proxy that streams, and its term; None if none does in time."""
        deadline_s = self._clock() + _ANSWERS_WITHIN_S
        while self._clock() <= deadline_s:
            for proxy in self._targets.proxies:
                status = self._cluster.status_of(proxy)
                if status is not None and status["state"] == "streaming":
                    return proxy, status["term"]
            self._wait(_POLL_S)
        return None

    def _begin(self, fault: PlannedFault) -> None:
        cluster, target = self._cluster, fault.target
        if fault.kind == KILL:
            cluster.kill(target)
        elif fault.kind == PAUSE:
            # A proxy may have ended by itself meanwhile, because another one has taken over.
            if target in cluster.process_ids():
                cluster.pause(target)
        elif fault.kind == STOP:
            self._stop(target)
        elif fault.kind == SLOW_DISK:
            cluster.slow(target, fault.fsync_ms)
        elif fault.kind == FULL_DISK:
            self._wait_for_start(target)
            cluster.fill(target)
        elif fault.kind == FLOOD:
            cluster.flood(target)
        elif fault.kind == NO_DESCRIPTORS:
            self._wait_for_start(target)
            cluster.take_descriptors(target)
        elif fault.kind in HINDRANCES:
            cluster.hinder(target, fault.kind)
        else:
            cluster.partition(target, _DIRECTIONS[fault.kind])

    def _wait_for_start(self, safekeeper: str) -> None:
        """Wait until a safekeeper that the bout before has left starting runs: a start without room ends, and may.

        One that has died is waited for no longer: `_see_who_died` reports it.
        """
        deadline_s = self._clock() + _ANSWERS_WITHIN_S
        while self._cluster.status_of(safekeeper) is None and safekeeper in self._cluster.process_ids():
            if self._clock() > deadline_s:
                return
            self._wait(_POLL_S)

    def _undo(self, fault: PlannedFault) -> None:
        if fault.kind in (KILL, STOP):
            self._cluster.start(fault.target)
        else:
            self._cluster.heal(fault.target)

    def _stop(self, target: str) -> None:
        """Stop a process in order. What the plan stops has all it needs to end."""
        try:
            self._cluster.stop(target)
        except WalproxyError as error:
            self._violate(NO_PROGRESS, f"{target} does not stop: {one_line(str(error))}")
            self._cluster.kill(target)

    def _cut_power(self, victims: list[str]) -> None:
        """Kill all; then what was acknowledged must be on the disks of a quorum of those that start again."""
        begun_s = {}
        for victim in victims:
            self._cluster.kill(victim)
            begun_s[victim] = self._clock()
        acknowledged_lsn = self._commits.acknowledged_lsn
        cut_s = self._clock()
        # The safekeepers alone: who has no leader gets nothing that he did not have.
        for victim in sorted(victims, key=lambda victim: victim not in self._targets.safekeepers):
            if victim not in self._targets.safekeepers and acknowledged_lsn:
                self._check_disks(acknowledged_lsn, cut_s)
                acknowledged_lsn = 0
            self.faults.append(Fault(POWER_CUT, victim, begun_s[victim], self._clock()))
            self._cluster.start(victim)

    def _check_disks(self, acknowledged_lsn: Lsn, cut_s: float) -> None:
        flush_lsns = {name: self._recovered_lsn(name) for name in self._targets.safekeepers}
        holders = [name for name, flush_lsn in flush_lsns.items() if flush_lsn > acknowledged_lsn]
        if len(holders) < self._targets.quorum:
            disks = ", ".join(f"{name} up to {format_lsn(lsn)}" for name, lsn in flush_lsns.items())
            self._violate(
                DURABLE,
                f"after the power cut at {cut_s:.1f} s fewer than {self._targets.quorum} safekeepers have the commit "
                f"after {format_lsn(acknowledged_lsn)} that was acknowledged before; on disk: {disks}",
            )

    def _recovered_lsn(self, safekeeper: str) -> Lsn:
        """Return up to where a safekeeper that was just started has WAL; 0 if it does not come up."""
        deadline_s = self._clock() + _ANSWERS_WITHIN_S
        while (status := self._cluster.status_of(safekeeper)) is None:
            if self._clock() > deadline_s or safekeeper not in self._cluster.process_ids():
                self._violate(DIED, f"{safekeeper} does not start after a power cut: {self._end_of_log(safekeeper)}")
                return 0
            self._wait(_POLL_S)
        return parse_lsn(status["flush_lsn"])

    def _see_who_died(self) -> None:
        """Check that no process but a proxy has ended by itself; `heal` starts a proxy again."""
        living = self._cluster.process_ids()
        for member in self._cluster.members:
            if member not in living and member not in self._targets.proxies:
                self._violate(DIED, f"{member} has ended without having been killed: {self._end_of_log(member)}")

    def _end_of_log(self, member: str) -> str:
        lines = " | ".join(self._cluster.logs(member, _LOG_LINES).splitlines())
        return f"the log of {member} ends with: {lines or '(nothing)'}"

    def _violate(self, rule: str, message: str) -> None:
        self.violations.append(Violation(rule, message))
