"""Measure how long commits wait when the proxy starts, and when it or a safekeeper dies.

    nobody              nothing happens: the longest commit on this machine without a fault
    safekeeper killed   kill -9 of one of three: no commit should take longer
    proxy started       it was stopped; PostgreSQL and three safekeepers run, with a cluster among them
    proxy killed        kill -9, and it is started again at once, as a supervisor does
    spare takes over    kill -9 while another proxy waits with the same options; the first stays away
    spare, proxy hung   the same with SIGSTOP: its connections stay, as those of a machine that lost its power do
    eight clients       nothing happens, with eight clients
    disk replaced       kill -9 of one of three, its data folder is deleted, it starts again, and `walproxy members
                        replace` runs to its end, with eight clients: no commit should take longer

One client commits all the time, in the last two cases eight. The clock starts with what happens, and runs until the
proxy that serves then reports in its /status that it streams, and until the first commit is acknowledged that was begun
since. A commit that was in progress does not count, because its acknowledgement may have been on its way. A proxy that
starts spends most of the time on the CPU, with its imports: its CPU time distinguishes a slow proxy from a machine that
is busy with something else.
"""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NamedTuple

import msgspec

from safekeeper.base.errors import WalproxyError
from walproxy.lab.bench.arms import make_server
from walproxy.lab.bench.members import wait_until_caught_up
from walproxy.lab.cluster.local_cluster import LocalCluster, LocalProcess
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.transactions import SingleStatement
from walproxy.lab.process_resources import cpu_seconds
from walproxy.postgres.binaries import ServerBinaries

NOBODY, SAFEKEEPER, START, RESTART, SPARE, HUNG, BUSY, REPLACED = (
    "nobody",
    "safekeeper killed",
    "proxy started",
    "proxy killed",
    "spare takes over",
    "spare, proxy hung",
    "eight clients",
    "disk replaced",
)
CASES = (NOBODY, SAFEKEEPER, START, RESTART, SPARE, HUNG, BUSY, REPLACED)
START_GOAL_S = 1.0
COMMIT_GOAL_S = 2.0
_WITH_SPARE = (SPARE, HUNG)
_CLIENTS = {BUSY: 8, REPLACED: 8}
_VICTIM = 2
_REPLACED_WITHIN_S = 60.0
_COMMITS_BEFORE_S = 0.3
_TABLE = "CREATE TABLE IF NOT EXISTS steady_commits (payload text)"
_INSERT = SingleStatement("INSERT INTO steady_commits VALUES (repeat('x', 100))")


class CrashCell(NamedTuple):
    """The case that is measured once a round: one of CASES."""

    case: str


class CrashTurn(msgspec.Struct, frozen=True):
    """The measurements of one turn, in seconds.

    Attributes:
        streaming_s: from what happened until the proxy that serves then streams; None where none had to begin.
        commit_s: from what happened until a commit is acknowledged that was begun since.
        longest_s: the longest commit that ended since, while the load went on.
        cpu_s: CPU time that the proxy which serves then has used for it, from its start on if it was started.
    """

    round: int
    case: str
    streaming_s: float | None
    commit_s: float
    longest_s: float
    cpu_s: float | None


class Spread(msgspec.Struct, frozen=True):
    """Figures of all rounds: their median, the lowest and the highest."""

    median: float
    low: float
    high: float


class CrashResult(msgspec.Struct, frozen=True):
    """The figures of one case over the rounds, as those of CrashTurn."""

    case: str
    streaming_s: Spread | None
    commit_s: Spread | None
    longest_s: Spread | None
    cpu_s: Spread | None


@dataclass(frozen=True)
class CrashSite:
    """A running cluster, and a spare proxy that is not running."""

    cluster: LocalCluster
    spare: LocalProcess

    def take_turn(self, number: int, case: str, seconds: float) -> CrashTurn:
        """Let it happen, and watch commits for that many seconds, or until there are some again.

        Raises:
            WalproxyError: a process has failed, or commits have stopped.
        """
        self._settle(case)
        postgres = self.cluster.postgres
        with Clients(postgres.conninfo, _CLIENTS.get(case, 1), lambda client: _INSERT, measures_s=math.inf) as commits:
            if case != START:
                commits.wait_for_commit(monotonic() + _COMMITS_BEFORE_S)
            cpu_before_s = self._spare_cpu_s()
            began_at = monotonic()
            server = self._strike(case)
            streaming_s = cpu_s = None
            if server is not None:
                self.cluster.wait_for_state("streaming", proxy=server)
                streaming_s = monotonic() - began_at
                cpu_s = cpu_seconds([server.pid or 0]) - cpu_before_s
            if case == REPLACED:
                self._replace()
            commit_s = commits.wait_for_commit(began_at).ended_at - began_at
            commits.wait_for_commit(began_at + seconds)
            longest_s = commits.history.longest_since(began_at)
        # One that hangs would go on in the next turn.
        if case == HUNG:
            self.cluster.proxy.kill9()
        return CrashTurn(number, case, streaming_s, commit_s, longest_s, cpu_s)

    def _settle(self, case: str) -> None:
        """Bring about what the case begins with, whatever the turn before has left."""
        cluster = self.cluster
        self.spare.stop()
        for safekeeper in cluster.safekeepers.values():
            if safekeeper.pid is None:
                safekeeper.start()
        if cluster.proxy.pid is None:
            cluster.start_proxy()
        cluster.wait_for_state("streaming")
        wait_until_caught_up(cluster, *cluster.safekeepers)
        if case in _WITH_SPARE:
            cluster.start_proxy(self.spare)
            cluster.wait_until(self.spare.is_spare, "another proxy waits as a spare", process=self.spare)
        elif case == START:
            cluster.proxy.stop()

    def _spare_cpu_s(self) -> float:
        """Return the CPU time that the spare has used until now; 0 without one."""
        return 0.0 if self.spare.pid is None else cpu_seconds([self.spare.pid])

    def _strike(self, case: str) -> LocalProcess | None:
        """Let it happen; return the proxy that has to begin then, None if the one that serves goes on."""
        cluster = self.cluster
        if case in (SAFEKEEPER, REPLACED):
            cluster.safekeepers[_VICTIM].kill9()
        elif case == START:
            return cluster.start_proxy()
        elif case == RESTART:
            cluster.proxy.kill9()
            return cluster.start_proxy()
        elif case == SPARE:
            cluster.proxy.kill9()
            return self.spare
        elif case == HUNG:
            cluster.proxy.pause()
            return self.spare
        return None

    def _replace(self) -> None:
        """Give the safekeeper that was killed an empty disk, and make that a member."""
        cluster = self.cluster
        shutil.rmtree(cluster.safekeeper_directory(_VICTIM))
        replacement = cluster.safekeepers[_VICTIM].start()
        cluster.wait_until(lambda: replacement.status() is not None, "it replies", process=replacement)
        command = [sys.executable, "-m", "walproxy", "members", "replace", cluster.place_of(_VICTIM)]
        ended = subprocess.run(
            command,
            env={**os.environ, **cluster.operator_environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=_REPLACED_WITHIN_S,
        )
        if ended.returncode != 0:
            raise WalproxyError(f"walproxy members replace failed: {ended.stderr.strip()[-500:]}")


@contextmanager
def crash_site(directory: Path, binaries: ServerBinaries) -> Iterator[CrashSite]:
    """Yield a running cluster with a spare proxy that is not running yet."""
    postgres = make_server(directory, binaries)
    with LocalCluster(directory, postgres) as cluster:
        spare = cluster.make_proxy("spare")
        cluster.proxies.append(spare)
        cluster.start()
        postgres.execute(_TABLE)
        yield CrashSite(cluster, spare)


def compare_crashes(turns: Sequence[CrashTurn]) -> list[CrashResult]:
    """Return the figures of each case, in the order of CASES."""
    results = []
    for case in CASES:
        mine = [turn for turn in turns if turn.case == case]
        if mine:
            results.append(
                CrashResult(
                    case,
                    _spread([turn.streaming_s for turn in mine if turn.streaming_s is not None]),
                    _spread([turn.commit_s for turn in mine]),
                    _spread([turn.longest_s for turn in mine]),
                    _spread([turn.cpu_s for turn in mine if turn.cpu_s is not None]),
                )
            )
    return results


def _spread(figures: Sequence[float]) -> Spread | None:
    return Spread(median(figures), min(figures), max(figures)) if figures else None
