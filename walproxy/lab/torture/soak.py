"""A soak: nothing goes wrong for a long time, and nothing grows.

A steady load commits, a standby streams from a safekeeper, WAL is archived and removed, every status page is requested
again and again, and what each process uses is written down. The verdict is that of `growth.py` on the proxies and the
safekeepers, and that every commit was answered and is there; PostgreSQL's own processes are shown and not judged, for
they take up shared memory as they touch it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import psycopg

from walproxy.lab.torture.aftermath import check_tables
from walproxy.lab.torture.clients import TortureClients
from walproxy.lab.torture.growth import violations_of
from walproxy.lab.torture.record import Operation, Run, Violation
from walproxy.lab.torture.report_figures import pauses_of
from walproxy.lab.torture.sampling import Sampler
from walproxy.lab.torture.workloads.steady import Steady

_SAMPLES_MAX: Final = 720
_SAMPLE_EVERY_S_MIN: Final = 1.0
_SAMPLE_EVERY_S_MAX: Final = 5.0
_STEP_S: Final = 1.0
_STATUS_EVERY_S: Final = 5.0
_GAP_S_MAX: Final = 30.0
_RATE_SHARE_MIN: Final = 0.8
_WORKLOADS: Final = (Steady(),)
_POSTGRES: Final = ("postgres", "standby")


class SoakedCluster(Protocol):
    """The interface of a running cluster for a soak."""

    @property
    def engine(self) -> str:
        """The environment of the processes."""

    @property
    def conninfo(self) -> str:
        """The primary's connection string."""

    def process_ids(self) -> dict[str, int]:
        """Return the processes that live, by name."""

    def status_of(self, who: str, /) -> dict[str, Any] | None:
        """Return a process's /status, None if it does not answer."""


class Load(NamedTuple):
    """The load of a soak."""

    clients: int = 4
    commits_per_s: float = 40.0


def soak(
    cluster: SoakedCluster,
    seconds: float,
    load: Load,
    safekeepers: int,
    progress: Callable[[float, str], None] = lambda passed_s, what: None,
) -> Run:
    """Soak a cluster that runs; return everything that was seen.

    Args:
        seconds: for how long. Ctrl-C ends it before that, which is a violation.
        safekeepers: how many the cluster has.
        progress: called every second, with the seconds that have passed and how many commits there were, in words.

    Raises:
        WalproxyError: the load cannot run.
    """
    with psycopg.connect(cluster.conninfo, autocommit=True) as connection:
        for workload in _WORKLOADS:
            connection.execute(workload.tables.encode())
        version = connection.info.parameter_status("server_version") or "of an unknown version"
    begun_at = time.monotonic()

    def passed_s() -> float:
        return time.monotonic() - begun_at

    clients = TortureClients(cluster.conninfo, load.clients, load.commits_per_s, _WORKLOADS, 0, begun_at)
    every_s = min(max(seconds / _SAMPLES_MAX, _SAMPLE_EVERY_S_MIN), _SAMPLE_EVERY_S_MAX)
    is_interrupted = False
    with Sampler(cluster.process_ids, begun_at, every_s) as sampler:
        clients.start()
        try:
            _let_pass(cluster, clients, seconds, passed_s, progress)
        except KeyboardInterrupt:
            is_interrupted = True
        end_s = passed_s()
        clients.stop()
    operations = clients.ended_since(0)
    # Late operations are recorded as well; the run is over nevertheless.
    samples = [sample for sample in sampler.samples if sample.at_s <= end_s]
    violations = violations_of(samples, end_s, is_judged)
    violations += commit_violations(operations, end_s, load.commits_per_s, clients.problem)
    violations += asyncio.run(check_tables(cluster.conninfo, clients.tries(), _WORKLOADS))
    if is_interrupted:
        violations.append(Violation("Interrupted", f"interrupted after {end_s:.0f} of {seconds:.0f} s"))
    return Run(0, end_s, cluster.engine, version.split()[0], safekeepers, operations, [], samples, violations)


def _let_pass(
    cluster: SoakedCluster,
    clients: TortureClients,
    seconds: float,
    passed_s: Callable[[], float],
    progress: Callable[[float, str], None],
) -> None:
    """Let the time pass, and ask everybody for a status now and then, as a monitoring system does."""
    status_due_s = 0.0
    while (left_s := seconds - passed_s()) > 0:
        clients.check()
        if passed_s() >= status_due_s:
            status_due_s = passed_s() + _STATUS_EVERY_S
            for name in filter(is_judged, cluster.process_ids()):
                cluster.status_of(name)  # Whether it answers is seen elsewhere.
        progress(passed_s(), f"{len(clients.history.operations):,} commits")
        time.sleep(min(_STEP_S, left_s))


def is_judged(process: str) -> bool:
    """Return whether a process must not grow: all but PostgreSQL's own."""
    return not process.startswith(_POSTGRES)


def commit_violations(
    operations: list[Operation], seconds: float, commits_per_s: float, last_error: str
) -> list[Violation]:
    """Return what was wrong with commits: refused or unanswered ones, a long time without any, too few of them."""
    found = []
    not_ok = [each for each in operations if each.outcome != "ok"]
    if not_ok:
        reason = f"; a client's last error: {last_error}" if last_error else ""
        found.append(
            Violation("CommitsFailed", f"{len(not_ok)} commits failed, the first {not_ok[0].begun_s:.1f} s in{reason}")
        )
    begin_s, end_s = pauses_of(operations, seconds)[0]
    gap_s = end_s - begin_s
    if gap_s > _GAP_S_MAX:
        found.append(Violation("NoProgress", f"no commit succeeded for {gap_s:.0f} s, from {begin_s:.0f} s on"))
    expected = seconds * commits_per_s
    if len(operations) < _RATE_SHARE_MIN * expected:
        found.append(
            Violation(
                "LoadTooSmall",
                f"{len(operations)} commits in {seconds:.0f} s, not {expected:.0f}: the machine or the commits "
                "are too slow for this load; lower --rate",
            )
        )
    return found
