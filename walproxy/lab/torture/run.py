"""A run of the torture test: a cluster, clients, a nemesis until the time is over, and then the checks.

The nemesis has the calling thread; clients, samples and the watch over the standbys have threads of their own. The last
fault is always a power cut of everything, PostgreSQL included, in the midst of the load. When commits succeed
again, the clients end, sessions that they have left are waited for, and everything is compared: tables with the
history, the safekeepers' bytes with the primary's, the standbys' positions, and the logs, which must not contain a
traceback.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import psycopg

from walproxy.lab.testing import EngineName, WalproxyCluster
from walproxy.lab.torture.aftermath import check_copies, check_logs, check_tables, keep_logs, wait_for_sessions
from walproxy.lab.torture.clients import TortureClients
from walproxy.lab.torture.nemesis import DIED, Nemesis
from walproxy.lab.torture.plan import Bout, Targets, plan_bout, plan_power_cut
from walproxy.lab.torture.quorum_check import check_quorum
from walproxy.lab.torture.record import Operation, Run, Violation
from walproxy.lab.torture.sampling import Sampler
from walproxy.lab.torture.standby_watch import StandbyWatch
from walproxy.lab.torture.workloads import WORKLOADS

PROXIES: Final = 2
STANDBYS: Final = 1
# Each client that disconnects while its commit waits leaves a session.
_SETTINGS: Final = {"max_connections": "200"}
_CALM_S: Final = (0.3, 2.0)
_STEP_S: Final = 0.2
_SAMPLE_EVERY_S: Final = 2.0


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    Attributes:
        seed: of the faults and of what clients do; real processes add their own chance.
        seconds: after this time no bout begins but the last one.
        rate: transactions a second of all clients, while nothing makes them wait.
        postgres, safekeepers, engine: see WalproxyCluster.
        directory: where the cluster's data and logs go.
        safekeeper_program, proxy_program: in place of ours; processes only.
    """

    seed: int
    seconds: float
    directory: Path
    clients: int = 8
    rate: float = 200.0
    safekeepers: int = 3
    postgres: str | None = None
    engine: EngineName = "auto"
    safekeeper_program: Sequence[str] | None = None
    proxy_program: Sequence[str] | None = None


class Stressed(NamedTuple):
    """The result of a run: its history, and the seconds after each bout until a commit succeeded."""

    run: Run
    recoveries_s: list[float]


class Watcher(Protocol):
    """Receives the progress of a run."""

    def show(self, passed_s: float, what: str) -> None:
        """Show that `passed_s` seconds have passed, and that `what` is in progress."""
        ...

    def add_line(self, passed_s: float, line: str) -> None:
        """Print a line about an event."""
        ...


def stress(plan: RunOptions, watcher: Watcher) -> Stressed:
    """Run the torture test on a new cluster; return the result. Ctrl-C ends the bouts early; the checks still run.

    Raises:
        WalproxyError: the cluster cannot be set up, or the torture test itself fails.
    """
    with WalproxyCluster(
        plan.postgres,
        plan.safekeepers,
        proxies=PROXIES,
        standbys=STANDBYS,
        engine=plan.engine,
        directory=plan.directory,
        settings=_SETTINGS,
        volatile_disks=True,
        safekeeper_program=plan.safekeeper_program,
        proxy_program=plan.proxy_program,
    ) as cluster:
        cluster.wait_until_streaming()
        version = _make_tables(cluster.conninfo)
        return _Run(plan, watcher, cluster, version).carry_out()


class _Run:
    """A run on a cluster that streams."""

    def __init__(self, plan: RunOptions, watcher: Watcher, cluster: WalproxyCluster, postgres: str) -> None:
        self._plan = plan
        self._watcher = watcher
        self._cluster = cluster
        self._postgres = postgres
        self._begun_at = time.monotonic()
        self._targets = Targets(
            tuple(name for name in cluster.members if name.startswith("safekeeper")),
            tuple(name for name in cluster.members if name.startswith("walproxy")),
            tuple(name for name in cluster.members if name.startswith("standby")),
        )
        self._clients = TortureClients(cluster.conninfo, plan.clients, plan.rate, WORKLOADS, plan.seed, self._begun_at)
        self._nemesis = Nemesis(cluster, self._clients, self._targets, self._passed_s, self._wait)
        self._watch = StandbyWatch(cluster.status_of, self._targets.proxies)
        self._early: list[Violation] = []
        self._operations: list[Operation] = []
        self._doing = "waiting for the first commit"

    def carry_out(self) -> Stressed:
        """Carry out the whole run."""
        with Sampler(self._cluster.process_ids, self._begun_at, _SAMPLE_EVERY_S) as sampler, self._watch:
            self._clients.start()
            progresses = self._nemesis.see_progress() and self._carry_out_bouts()
            self._doing = "waiting for the clients to end"
            self._wait(0.0)
            self._clients.stop()
            seconds = self._passed_s()
        self._look_through_history()
        violations = [*self._nemesis.violations, *self._watch.violations, *self._early]
        has_died = any(violation.rule == DIED for violation in violations)
        violations += self._check_what_is_left(progresses and not has_died)
        if violations and self._cluster.engine == "containers":
            keep_logs(self._cluster, self._plan.directory)
        run = Run(
            self._plan.seed,
            seconds,
            self._cluster.engine,
            self._postgres,
            self._plan.safekeepers,
            self._operations,
            self._nemesis.faults,
            sampler.samples,
            violations,
        )
        return Stressed(run, self._nemesis.recoveries_s)

    def _carry_out_bouts(self) -> bool:
        """Carry out one bout after the other, then the last power cut; return whether commits still succeed."""
        chance = random.Random(f"{self._plan.seed}/nemesis")
        try:
            while self._passed_s() < self._plan.seconds:
                self._wait(chance.uniform(*_CALM_S))
                if not self._carry_out(plan_bout(chance, self._targets)):
                    return False
                if self._nemesis.violations or self._watch.violations or self._early:
                    # The cluster is kept as it is at the violation.
                    return True
        except KeyboardInterrupt:
            self._watcher.add_line(self._passed_s(), "interrupted: ending all faults, then checking the results")
            self._cluster.heal()
        return self._carry_out(plan_power_cut(self._targets, with_postgres=True))

    def _carry_out(self, bout: Bout) -> bool:
        """Carry out a bout, check the replies that clients received meanwhile, and report it."""
        self._doing = str(bout)
        begun_s = self._passed_s()
        progresses = self._nemesis.carry_out(bout)
        self._clients.check()
        self._look_through_history()
        resumed = f"commits resumed after {self._nemesis.recoveries_s[-1]:.1f} s"
        outcome = resumed if progresses else "commits have not resumed"
        self._watcher.add_line(begun_s, f"{bout}: {outcome}")
        return progresses

    def _look_through_history(self) -> None:
        """Search the commits that have ended since the last time for some without a quorum."""
        new = self._clients.ended_since(len(self._operations))
        self._operations += new
        self._early += check_quorum(new, self._nemesis.faults, self._targets.safekeepers)

    def _check_what_is_left(self, catches_up: bool) -> list[Violation]:
        """Compare the cluster's content with the replies to clients; copies only if they can catch up at all."""
        cluster = self._cluster
        self._doing = "checking tables, bytes and logs"
        self._wait(0.0)
        wait_for_sessions(cluster.conninfo)
        tries = self._clients.tries()
        violations = asyncio.run(check_tables(cluster.conninfo, tries))
        if catches_up:
            violations += check_copies(cluster, self._targets.safekeepers, self._targets.standbys, tries)
        return violations + check_logs(cluster)

    def _passed_s(self) -> float:
        return time.monotonic() - self._begun_at

    def _wait(self, seconds: float) -> None:
        """Wait for `seconds`, and report the progress to the watcher."""
        deadline_s = self._passed_s() + seconds
        while True:
            self._watcher.show(self._passed_s(), self._doing)
            left_s = deadline_s - self._passed_s()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _STEP_S))


def _make_tables(conninfo: str) -> str:
    """Make the tables of all workloads; return PostgreSQL's version."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for workload in WORKLOADS:
            connection.execute(workload.tables.encode())
        version = connection.execute("SHOW server_version").fetchone()
    assert version is not None  # SHOW has a row.
    return str(version[0]).split()[0]
