"""The stage of the steps: the cluster, the load, and its history, with the waits and commands that steps share.

A step causes an event, checks its effect on clients, and returns that as one line. A step that returns has held; one
that has not raises. The bounds are those that the project promises on an idle machine (see docs/guide/operations.md),
or, where it promises no number, far above what is usual.
"""

import itertools
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, parse_lsn
from safekeeper.storage.data_folder import WAL_FOLDER
from walproxy.lab.cluster.local_cluster import LocalCluster, LocalProcess
from walproxy.lab.demo.bank import Transfer
from walproxy.lab.demo.workload import APPLICATION_NAME, transfer_clients
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.history import History

TAKEOVER_S_MAX = 3.0
RESUME_S_MAX = 10.0
CATCH_UP_S_MAX = 20.0
SHORT_WATCH_S = 1.0
# Spark takes its time to start where other things run, too.
COMMAND_S_MAX = 180.0

_POLL_S = 0.005
_STOP_S_MAX = 10.0
_WAITING_CLIENTS = f"""
    SELECT count(*) FILTER (WHERE wait_event = 'SyncRep'), count(*) FILTER (WHERE wait_event_type = 'Lock')
    FROM pg_stat_activity WHERE application_name = '{APPLICATION_NAME}'
"""


class StepFailed(WalproxyError):
    """A step's expected effect did not happen."""


@dataclass
class Stage:
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
            StepFailed: commits still waited after 10 s.
        """
        assert self.load is not None  # start_load made it
        waiting = self.load.stop(_STOP_S_MAX)
        self.require(
            not waiting, f"{waiting} commits of the load were waiting after {_STOP_S_MAX:g} s: look at the proxy's log"
        )

    def require(self, holds: bool, otherwise: str) -> None:
        """Raise StepFailed with the message `otherwise` unless `holds`."""
        if not holds:
            raise StepFailed(otherwise)

    def observe(self, duration_s: float) -> tuple[float, float]:
        """Let the load run for a while; return the moments of begin and end."""
        begin = time.monotonic()
        time.sleep(duration_s)
        return begin, time.monotonic()

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> float:
        """Wait until `condition()` holds, and return how many seconds that took.

        Raises:
            StepFailed: it did not within `timeout_s`.
        """
        begin = time.monotonic()
        while not condition():
            if time.monotonic() - begin > timeout_s:
                problem = f"; a client's last error: {self.history.problem}" if self.history.problem else ""
                raise StepFailed(f"condition not met within {timeout_s:g} s: {what}{problem}")
            time.sleep(_POLL_S)
        return time.monotonic() - begin

    def seconds_to_new_commit(self, since: float, begun_after: float, within_s: float) -> float:
        """Wait for the acknowledgement of a transfer begun after `begun_after`; return the seconds since `since`.

        Raises:
            StepFailed: they are more than `within_s`.
        """
        self.wait_until(
            lambda: self.history.first_begun_since(begun_after) is not None, "a new transfer was acknowledged", within_s
        )
        first = self.history.first_begun_since(begun_after)
        assert first is not None  # it was there just now
        seconds = first.ended_at - since
        self.require(seconds <= within_s, f"the first new commit took {seconds:.2f} s, more than {within_s:g} s")
        return seconds

    def waiting_clients(self) -> tuple[int, int]:
        """Return how many clients wait for the quorum, and how many for a row that one of those has changed."""
        [(for_quorum, for_locks)] = self.cluster.postgres.execute(_WAITING_CLIENTS)
        return for_quorum, for_locks

    def wait_until_all_wait(self) -> None:
        """Wait until no client can go on."""

        def all_wait() -> bool:
            for_quorum, for_locks = self.waiting_clients()
            return bool(for_quorum) and for_quorum + for_locks == self.clients

        self.wait_until(all_wait, "every client's commit waits", RESUME_S_MAX)

    def kill_safekeeper(self, safekeeper_id: int) -> None:
        """Crash a safekeeper."""
        self.dead_since_lsn[safekeeper_id] = self.cluster.commit_lsn()
        self.cluster.safekeepers[safekeeper_id].kill9()

    def safekeeper_lsns(self, name: str) -> dict[int, Lsn]:
        """Return one position, e.g. "flush_lsn", as each safekeeper reports it; 0 for one that does not answer."""
        answers = {i: process.status() for i, process in self.cluster.safekeepers.items()}
        return {i: parse_lsn(answer[name]) if answer else 0 for i, answer in answers.items()}

    def command(self, *words: str | Path, timeout_s: float = COMMAND_S_MAX) -> str:
        """Run a command of walproxy, as an operator would; return what it printed.

        Raises:
            StepFailed: it failed, or takes longer.
        """
        command = [sys.executable, "-m", "walproxy", *map(str, words)]
        written = shlex.join(["walproxy", *map(str, words)])
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"{written} did not end within {timeout_s:g} s") from error
        self.require(answer.returncode == 0, f"{written} failed: {one_line(answer.stderr.strip()[-500:])}")
        return answer.stdout

    def wal_folder(self, safekeeper_id: int) -> Path:
        """Return where a safekeeper keeps its segments."""
        return self.cluster.safekeeper_directory(safekeeper_id) / WAL_FOLDER


class Step(NamedTuple):
    """One step: what it is called, and what it does; that returns what was seen, or raises."""

    title: str
    act: Callable[[Stage], str]


def leading_proxy(cluster: LocalCluster) -> tuple[LocalProcess, dict[str, Any]] | None:
    """Return the proxy that is closest to serving, and its /status; None if no proxy answers."""
    answers = [(process, status) for process in cluster.proxies if (status := process.status()) is not None]

    def closeness(answer: tuple[LocalProcess, dict[str, Any]]) -> tuple[bool, bool, Lsn]:
        status = answer[1]
        return status["state"] == "streaming", not status["spare"], parse_lsn(status["commit_lsn"])

    return max(answers, key=closeness, default=None)
