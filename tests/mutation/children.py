"""Forked children that do one thing each, report JSON objects on a pipe, and have limits of time and memory.

A child that reaches a limit of CPU time is killed by the kernel (SIGXCPU); one that waits for something that never
comes is killed by the parent. Time in which it could run and others did does not count as waiting, so a busy machine
changes no result. Its last report shows what it was doing.
"""

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from tests.mutation.suites import silence

MEMORY_BYTES = 3 << 30
Report = dict[str, Any]
Send = Callable[[Report], None]
POLL_S = 1.0
EXIT_ERROR = 70


@dataclass
class Child:
    """A running child, and all that it has reported."""

    pid: int
    pipe: Connection
    label: str
    began_at: float
    reports: list[Report] = field(default_factory=list)

    def waited_s(self) -> float:
        """Return for how long it has neither run nor been ready to run."""
        ran_ns, ready_ns, _ = map(int, Path(f"/proc/{self.pid}/schedstat").read_text().split())
        return time.monotonic() - self.began_at - (ran_ns + ready_ns) / 1e9


@dataclass(frozen=True)
class Ended:
    """A child that has ended.

    Attributes:
        status: its exit code, or minus the signal that has killed it.
        hung: whether it was killed because it has waited for too long.
    """

    label: str
    reports: list[Report]
    status: int
    hung: bool

    @property
    def timed_out(self) -> bool:
        """Whether it has used its CPU time, or has waited for too long."""
        return self.hung or self.status == -signal.SIGXCPU


def limit_cpu(seconds: float) -> None:
    """Let the kernel kill this process when it has used so much more CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))


def run_all(jobs: Iterable[tuple[str, Callable[[Send], None]]], processes: int, waits_s_max: float) -> Iterator[Ended]:
    """Run each job in a child of its own, at most `processes` at once; yield the children as they end."""
    waiting = iter(jobs)
    running: dict[Connection, Child] = {}
    try:
        while True:
            while len(running) < processes and (job := next(waiting, None)) is not None:
                child = _start(*job)
                running[child.pipe] = child
            if not running:
                return
            ready = wait(list(running), POLL_S)
            for pipe in ready:
                assert isinstance(pipe, Connection)
                child = running[pipe]
                try:
                    child.reports.append(json.loads(pipe.recv_bytes()))
                except EOFError:
                    del running[pipe]
                    yield _reaped(child, hung=False)
            for child in [child for child in running.values() if child.waited_s() > waits_s_max]:
                os.kill(child.pid, signal.SIGKILL)
                del running[child.pipe]
                yield _reaped(child, hung=True)
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            _reaped(child, hung=True)


def _start(label: str, job: Callable[[Send], None]) -> Child:
    receiving, sending = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        receiving.close()
        _be_child(job, sending)
    sending.close()
    return Child(pid, receiving, label, time.monotonic())


def _be_child(job: Callable[[Send], None], sending: Connection) -> None:
    """Run the job, and end the process whatever happens."""
    status = EXIT_ERROR
    try:
        silence()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        job(lambda report: sending.send_bytes(json.dumps(report).encode()))
        status = 0
    except BaseException:
        sending.send_bytes(json.dumps({"error": traceback.format_exc()}).encode())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _reaped(child: Child, hung: bool) -> Ended:
    child.pipe.close()
    _, status = os.waitpid(child.pid, 0)
    return Ended(child.label, child.reports, os.waitstatus_to_exitcode(status), hung)
