"""A host: the manager of a PostgreSQL, and all processes that it has started, some of which outlive it.

A process belongs to a host by a variable of its environment, which children inherit, or, because PostgreSQL overwrites
its own, by its current folder, which is the data folder. So a host can lose its power, or stand still, whatever the
manager is and has started.
"""

import contextlib
import http.client
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg

from safekeeper.base.errors import WalproxyError
from walproxy.agent.processes import processes_of
from walproxy.lab.cluster.local_cluster import LocalProcess

Part = Literal["manager", "proxy", "postgres", "other"]

_MARK = "WALPROXY_LAB_HOST"
_HTTP_TIMEOUT_S = 2.0
_CONNECT_TIMEOUT_S = 2
_ENDS_WITHIN_S = 20.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Place:
    """Where a host is, and what it has.

    Attributes:
        name: of the host, e.g. "pg1".
        address: its IP address.
        folder: of all its files; exists.
        pg_port, http_port, proxy_http_port: of its listeners.
    """

    name: str
    address: str
    folder: Path
    pg_port: int
    http_port: int
    proxy_http_port: int

    @property
    def data_directory(self) -> Path:
        """PostgreSQL's."""
        return self.folder / "data"

    @property
    def socket_directory(self) -> Path:
        """Of PostgreSQL's Unix socket, which no partition cuts."""
        return self.folder / "socket"

    @property
    def discarded_directory(self) -> Path:
        """Of the agent's discarded reports."""
        return self.folder / "discarded"

    @property
    def local_conninfo(self) -> str:
        """Of the superuser, through the Unix socket."""
        return f"host={self.socket_directory} port={self.pg_port} user=postgres dbname=postgres"


class Host:
    """A host whose manager is one command.

    Attributes:
        place: where it is.
        manager: its process.

    Args:
        run_id: unique among all runs on this machine.
    """

    def __init__(self, place: Place, manager: LocalProcess, run_id: str) -> None:
        self.place = place
        self.manager = manager
        mark = f"{run_id}:{place.name}"
        manager.environment[_MARK] = mark
        self._mark = f"{_MARK}={mark}".encode()

    @property
    def name(self) -> str:
        """E.g. "pg1"."""
        return self.place.name

    def start(self) -> None:
        """Start its manager, which starts the rest. Harmless if it runs."""
        if self.manager.pid is None:
            self.manager.start()

    # Its processes.

    def pids(self, *parts: Part) -> list[int]:
        """Return the processes of these parts, all without any: the manager first, PostgreSQL last."""
        found = list(self._parts())
        chosen = [pid for pid, part in found if not parts or part in parts]
        order: dict[int, int] = {pid: ("manager", "proxy", "other", "postgres").index(part) for pid, part in found}
        return sorted(chosen, key=lambda pid: order[pid])

    def kill(self, *parts: Part) -> None:
        """End these parts with SIGKILL, all without any, stopped ones too; return when none exists.

        Raises:
            WalproxyError: one still exists after 20 s.
        """
        deadline = time.monotonic() + _ENDS_WITHIN_S
        while pids := self.pids(*parts):
            _send(pids, signal.SIGKILL)
            if "manager" in parts or not parts:
                self.manager.kill9()
            if time.monotonic() > deadline:
                raise WalproxyError(f"processes of {self.name} still exist after SIGKILL: {pids}")

    def stop(self, *parts: Part) -> None:
        """Let these parts stand still, all without any: SIGSTOP."""
        stopped: set[int] = set()
        while new := set(self.pids(*parts)) - stopped:  # Until none was being started meanwhile.
            _send(sorted(new), signal.SIGSTOP)
            stopped |= new

    def resume(self, *parts: Part) -> None:
        """Let them go on: SIGCONT."""
        _send(reversed(self.pids(*parts)), signal.SIGCONT)

    @contextlib.contextmanager
    def manager_stopped(self) -> Iterator[None]:
        """Let the manager stand still during the block, if it runs and does not stand still already."""
        pid = self.manager.pid
        stops = pid is not None and _state(Path("/proc", str(pid))) not in "TZX"
        if pid is not None and stops:
            _send([pid], signal.SIGSTOP)
        try:
            yield
        finally:
            if pid is not None and stops:
                _send([pid], signal.SIGCONT)

    def _parts(self) -> Iterable[tuple[int, Part]]:
        manager = self.manager.pid
        postgres = set(processes_of(self.place.data_directory)) if self.place.data_directory.is_dir() else set()
        for pid in postgres:
            yield pid, "postgres"
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            if pid == manager:
                yield pid, "manager"
                continue
            if pid in postgres or not self._is_marked(folder):
                continue
            words = _words(folder)
            if b"walproxy" in b" ".join(words) and b"run" in words:
                yield pid, "proxy"
            else:
                yield pid, "other"

    def _is_marked(self, folder: Path) -> bool:
        if _state(folder) in "ZX":
            return False
        try:
            return self._mark in (folder / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False

    # What it replies.

    def is_leader(self) -> bool:
        """Return whether its REST replies 200 to /primary."""
        connection = http.client.HTTPConnection(self.place.address, self.place.http_port, timeout=_HTTP_TIMEOUT_S)
        try:
            connection.request("GET", "/primary")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run `sql` in its PostgreSQL, through the Unix socket, and return the rows.

        Raises:
            psycopg.Error: it does not reply, or refuses.
        """
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def connect(self, application_name: str = "failover lab") -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection through the Unix socket, in autocommit mode.

        Raises:
            psycopg.Error: it does not reply, or refuses.
        """
        return psycopg.connect(
            self.place.local_conninfo,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            application_name=application_name,
        )


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _state(folder: Path) -> str:
    """Return the state of a process, a letter as in ps(1); "X" if it is gone."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _words(folder: Path) -> list[bytes]:
    try:
        return (folder / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
