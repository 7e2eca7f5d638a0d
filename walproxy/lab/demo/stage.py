"""The stage of the steps: the cluster, the load, and its history, with the waits and commands that steps share.

A step causes an event, checks its effect on clients, and returns that as one line. A step that returns has held. One
that raises StepFailed has seen an effect that contradicts a guarantee. Everything else that a step raises, above all
that a wait was over, shows on a busy machine only that the machine is too slow. So a time is shown beside what is usual
on an idle machine (docs/guide/operations.md), and decides nothing.
"""

import itertools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, parse_lsn
from safekeeper.storage.data_folder import WAL_FOLDER
from walproxy.lab.cluster.local_cluster import LocalCluster, LocalProcess
from walproxy.lab.demo.bank import Transfer
from walproxy.lab.demo.workload import APPLICATION_NAME, transfer_clients
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.history import History
from walproxy.postgres.patience import TimeLimit, load_text, slowdown
from walproxy.proxy.status_fields import ProxyStatus

SHORT_WATCH_S = 1.0

_POLL_S = 0.005
# Of all waits, on an idle machine: far above what is usual.
_WAIT_S_MAX = 60.0
_COMMAND_S_MAX = 300.0
_PROGRESS_S = 15.0
_WAITING_CLIENTS = f"""
    SELECT count(*) FILTER (WHERE wait_event = 'SyncRep'), count(*) FILTER (WHERE wait_event_type = 'Lock')
    FROM pg_stat_activity WHERE application_name = '{APPLICATION_NAME}'
"""


class StepFailed(WalproxyError):
    """The effect that a step has seen contradicts a guarantee."""


class StepUnfinished(WalproxyError):
    """A step was given up: what it waited for did not happen in time, or a command failed."""


@dataclass
class DemoStage:
    """Everything that a step may use.

    Attributes:
        cluster: the processes.
        clients: how many of them the load has.
        history: the replies to clients.
        transfer_ids: of the transfers that clients will try.
        load: the clients, or the last ones.
        dead_since_lsn: commit_lsn when each dead safekeeper was killed, by its id.
        segment_size: of the WAL, in bytes.
        backed_up_lsn: the base backup is older than this.
        end_lsn: the end of the WAL that is compared, once PostgreSQL is shut down.
        survivor: the safekeeper that is left when all others are lost, once they are.
        new_log_lsn: where the WAL of the load after the loss begins.
        old_transfers: how many transfers were in the books by then.
        report: where the page is written that outlives the demo.
        notify: prints a line on the progress of a step that takes long.
    """

    cluster: LocalCluster
    clients: int
    history: History[Transfer] = field(default_factory=History)
    transfer_ids: Iterator[int] = field(default_factory=partial(itertools.count, 1))
    load: Clients[Transfer] | None = None
    dead_since_lsn: dict[int, Lsn] = field(default_factory=dict)
    segment_size: int = 0
    backed_up_lsn: Lsn = 0
    end_lsn: Lsn = 0
    survivor: int = 0
    new_log_lsn: Lsn = 0
    old_transfers: int = 0
    report: Path = Path("report.html")
    notify: Callable[[str], None] = lambda line: None

    def start_load(self) -> None:
        """Let new clients commit at the primary, whichever server that is."""
        self.load = transfer_clients(
            lambda: self.cluster.postgres.conninfo(), self.clients, self.history, self.transfer_ids
        )
        self.load.start()

    def stop_load(self) -> None:
        """Let every client finish its transfer, and end.

        Raises:
            WalproxyError: see Clients.stop.
            StepUnfinished: commits still waited.
        """
        assert self.load is not None  # start_load made it
        limit_s = _WAIT_S_MAX * slowdown()
        waiting = self.load.stop(limit_s)
        if waiting:
            raise StepUnfinished(f"{waiting} commits of the load still waited after {limit_s:.0f} s")

    def require(self, holds: bool, otherwise: str) -> None:
        """Raise StepFailed with the message `otherwise` unless `holds`."""
        if not holds:
            raise StepFailed(otherwise)

    def observe(self, duration_s: float) -> tuple[float, float]:
        """Let the load run for a while; return the moments of begin and end."""
        begin = time.monotonic()
        time.sleep(duration_s)
        return begin, time.monotonic()

    def wait_until(self, condition: Callable[[], bool], what: str) -> float:
        """Wait until `condition()` holds, and return how many seconds that took.

        Raises:
            StepUnfinished: it does not hold after a minute, or longer on a busy machine.
        """
        limit, progress_s = TimeLimit(_WAIT_S_MAX), _PROGRESS_S
        while not condition():
            if limit.is_over:
                problem = f"; a client's last error: {self.history.problem}" if self.history.problem else ""
                raise StepUnfinished(f"condition not met within {limit.passed_s:.0f} s: {what}{problem}")
            if limit.passed_s > progress_s:
                self.notify(f"{limit.passed_s:.0f} s, waiting until {what}; {load_text()}")
                progress_s += _PROGRESS_S
            time.sleep(_POLL_S)
        return limit.passed_s

    def seconds_to_new_commit(self, since: float, begun_after: float) -> float:
        """Wait for the acknowledgement of a transfer begun after `begun_after`; return the seconds since `since`."""
        self.wait_until(
            lambda: self.history.first_begun_since(begun_after) is not None, "a new transfer was acknowledged"
        )
        first = self.history.first_begun_since(begun_after)
        assert first is not None  # it was there just now
        return first.ended_at - since

    def usual(self, seconds: float, usual_s: float) -> str:
        """Return a time beside the one that is usual on an idle machine."""
        if seconds < usual_s:
            return f"less than {usual_s:g} s"
        return f"usually less than {usual_s:g} s; {load_text()}"

    def waiting_clients(self) -> tuple[int, int]:
        """Return how many clients wait for the quorum, and how many for a row that one of those has changed."""
        [(for_quorum, for_locks)] = self.cluster.postgres.execute(_WAITING_CLIENTS)
        return for_quorum, for_locks

    def wait_until_all_wait(self) -> None:
        """Wait until no client can go on."""

        def all_wait() -> bool:
            for_quorum, for_locks = self.waiting_clients()
            return bool(for_quorum) and for_quorum + for_locks == self.clients

        self.wait_until(all_wait, "every client's commit waits")

    def kill_safekeeper(self, safekeeper_id: int) -> None:
        """Crash a safekeeper."""
        self.dead_since_lsn[safekeeper_id] = self.cluster.commit_lsn()
        self.cluster.safekeepers[safekeeper_id].kill9()

    def safekeeper_lsns(self, name: str) -> dict[int, Lsn]:
        """Return one position, e.g. "flush_lsn", as each safekeeper reports it; 0 for one that does not answer."""
        answers = {i: process.status() for i, process in self.cluster.safekeepers.items()}
        return {i: parse_lsn(answer[name]) if answer else 0 for i, answer in answers.items()}

    def all_safekeeper_lsns(self, name: str) -> dict[int, Lsn]:
        """Return one position as each safekeeper reports it, once all have replied."""
        found: dict[int, Lsn] = {}

        def all_reply() -> bool:
            found.update(self.safekeeper_lsns(name))
            return all(found.values())

        self.wait_until(all_reply, "all safekeepers reply")
        return found

    def command(self, *words: str | Path, finds_safekeepers: bool = False) -> str:
        """Run a command of walproxy, as an operator would; return what it printed.

        Args:
            finds_safekeepers: it connects to the safekeepers.

        Raises:
            StepUnfinished: it failed, or takes too long.
        """
        written = shlex.join(["walproxy", *map(str, words)])
        limit = TimeLimit(_COMMAND_S_MAX)
        with subprocess.Popen(
            [sys.executable, "-m", "walproxy", *map(str, words)],
            env={**os.environ, **(self.cluster.operator_environment if finds_safekeepers else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while True:
                try:
                    output, errors = process.communicate(timeout=_PROGRESS_S)
                    break
                except subprocess.TimeoutExpired:
                    if limit.is_over:
                        process.kill()
                        raise StepUnfinished(f"{written} did not end within {limit.passed_s:.0f} s") from None
                    self.notify(f"{limit.passed_s:.0f} s, {' '.join(map(str, words[:2]))} goes on; {load_text()}")
                except BaseException:
                    process.kill()
                    raise
        if process.returncode != 0:
            raise StepUnfinished(f"{written} failed: {one_line(errors.strip()[-500:])}")
        return output

    def wal_folder(self, safekeeper_id: int) -> Path:
        """Return where a safekeeper keeps its segments."""
        return self.cluster.safekeeper_directory(safekeeper_id) / WAL_FOLDER


class Step(NamedTuple):
    """One step: what it is called, and what it does; that returns what was seen, or raises."""

    title: str
    act: Callable[[DemoStage], str]


def leading_proxy(cluster: LocalCluster) -> tuple[LocalProcess, ProxyStatus] | None:
    """Return the proxy that is closest to serving, and its /status; None if no proxy answers."""
    answers = [(process, status) for process in cluster.proxies if (status := process.proxy_status()) is not None]

    def closeness(answer: tuple[LocalProcess, ProxyStatus]) -> tuple[bool, bool, Lsn]:
        status = answer[1]
        return status.state == "streaming", not status.spare, parse_lsn(status.commit_lsn)

    return max(answers, key=closeness, default=None)


def serving_proxy(stage: DemoStage) -> tuple[LocalProcess, ProxyStatus]:
    """Return the proxy through which commits succeed, and its /status, once there is one."""
    found: list[tuple[LocalProcess, ProxyStatus]] = []

    def serves() -> bool:
        leading = leading_proxy(stage.cluster)
        if leading is not None and leading[1].state == "streaming":
            found.append(leading)
        return bool(found)

    stage.wait_until(serves, "a proxy streams")
    return found[0]
