"""A real PostgreSQL server on this machine, for the demo, the benchmark and the tests.

`LocalPostgres` makes a cluster of one of the servers that walproxy/postgres/binaries.py finds, starts and stops it,
kills it as a crash would, and never leaves it running: it is a context manager, and on Linux the kernel ends the server
when the *thread* that started it dies, so start it from the main thread or from a pool's thread that outlives it.

Under root everything runs as an unprivileged user of the system, which then owns the data folder.

The postmaster is a child of this process, so its pid is certain. Only processes that were started here, and their
children, are ever signalled. Everything blocks; asyncio code calls it through `asyncio.to_thread`.
"""

import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.postgres.binaries import ServerBinaries, ServerUser, find_servers, reachable_binaries, server_user
from walproxy.postgres.patience import TimeLimit, slowdown
from walproxy.postgres.process_table import descendants, wait_until_ended

__all__ = ["LocalPostgres", "LocalPostgresFailed", "ServerBinaries", "find_servers"]

StopMode = Literal["smart", "fast", "immediate"]

# https://www.postgresql.org/docs/current/server-shutdown.html
_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
# Below the range from which Linux takes the ports of outgoing connections: a port stays ours over a restart.
_PORTS = range(15_000, 32_000)
_PORT_SHARES = 16
_PORT_ATTEMPTS = 5
_handed_out: dict[int, None] = {}  # in the order in which they were handed out
_ports = _PORTS
_POLL_S = 0.01


class LocalPostgresFailed(WalproxyError):
    """A local server failed or did not respond; the message ends with the last lines of its log."""


class LocalPostgres:
    """One cluster and, while it runs, its server. The superuser is `postgres`; loopback needs no password.

    Attributes:
        client_options: further parameters of all its connection strings and those of its standbys: none, unless it was
            secured with TLS and passwords.

    Args:
        binaries: which PostgreSQL, from `find_servers`.
        data_directory: made by `init`; under root it must lie where the server's user can enter.
        port: 0 takes a free one, which is then kept over restarts.
        settings: lines of the configuration; `configure` changes them.
        outlives_us: the server goes on when this process ends without `close`.
        reads_all: under root, the server's user may read what only root may: a restore_command that is this project's
            own program, which may lie in root's home, and what that reads.
    """

    def __init__(
        self,
        binaries: ServerBinaries,
        data_directory: Path | str,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        outlives_us: bool = False,
        reads_all: bool = False,
    ) -> None:
        self._outlives_us = outlives_us
        self._reads_all = reads_all
        self._user = server_user()
        self.binaries = reachable_binaries(binaries, self._user)
        self.data_directory = Path(data_directory).absolute()
        self.log_path = self.data_directory.with_name(self.data_directory.name + ".log")
        self.port = port
        self.settings = dict(settings or {})
        self.client_options: dict[str, str] = {}
        self._choose_port = port == 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # The cluster.

    def init(self, *, sync: bool = False, wal_segment_mib: int | None = None) -> Self:
        """Make the cluster with initdb. `sync` waits for the disk, which a throw-away cluster need not.

        Raises:
            ConfigurationError: the server's user cannot reach the data folder.
            LocalPostgresFailed: initdb failed.
        """
        self._own(self.data_directory)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"]
        if not sync:
            options.append("--no-sync")
        if wal_segment_mib is not None:
            options.append(f"--wal-segsize={wal_segment_mib}")
        self._run("initdb", "-D", str(self.data_directory), *options)
        with (self.data_directory / "postgresql.conf").open("a") as file:
            file.write("include 'local.conf'\n")
        self.configure({})
        return self

    def configure(self, settings: Mapping[str, str]) -> None:
        """Add `settings` to the configuration file; they count from the next `start`, many also from `reload`."""
        self.settings.update(settings)
        path = self.data_directory / "local.conf"
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in self.settings.items()]
        path.write_text("".join(lines))
        self._give(path)

    def back_up(self, to: Path) -> None:
        """Copy the running cluster into a folder with pg_basebackup, with the WAL that the copy needs."""
        self._own(to)
        self._run("pg_basebackup", "-D", str(to), "-d", self.conninfo(), "-X", "stream", "-c", "fast", "-N")

    def base_backup(
        self,
        to: Path | str,
        *,
        primary_conninfo: str | None = None,
        settings: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> "LocalPostgres":
        """Copy the running cluster with pg_basebackup and return a standby of it that is not started yet.

        Args:
            to: the standby's data folder.
            primary_conninfo: where it gets its WAL from; this server by default.
            settings: added to those of this server.
            port: as for a new cluster.
        """
        ours = {**self.settings, **(settings or {}), "primary_conninfo": primary_conninfo or self.conninfo()}
        standby = LocalPostgres(self.binaries, to, port=port, settings=ours, outlives_us=self._outlives_us)
        standby.client_options = self.client_options
        self.back_up(standby.data_directory)
        standby.configure({})
        signal_file = standby.data_directory / "standby.signal"
        signal_file.touch()
        standby._give(signal_file)
        return standby

    # The server.

    def start(self, timeout_s: float = 30.0) -> Self:
        """Start the server and wait until it takes connections.

        Raises:
            LocalPostgresFailed: it ended, or was not ready in time (and is killed then).
        """
        if self.is_running:
            raise LocalPostgresFailed(f"the server of {self.data_directory} runs already, with pid {self.pid}")
        limit = TimeLimit(timeout_s)
        for attempt in range(_PORT_ATTEMPTS):
            if self._choose_port:
                self.port = free_port()
            log_begin = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._spawn()
            if self._wait_until_ready(limit):
                self._choose_port = False
                return self
            log = self.log_path.read_bytes()[log_begin:].decode(errors="replace")
            # Between the choice of a port and its use another process may take it: choose again.
            if not (self._choose_port and "ddress already in use" in log) or attempt + 1 == _PORT_ATTEMPTS:
                break
        raise self._failed("PostgreSQL did not start")

    def stop(self, mode: StopMode = "fast", timeout_s: float = 30.0) -> None:
        """Stop the server as `pg_ctl stop` does and wait for its end. Stopping a stopped server is fine.

        Raises:
            LocalPostgresFailed: it still runs after `timeout_s`, e.g. because a walsender waits for its receiver.
        """
        process = self._process
        if process is None:
            return
        process.send_signal(_STOP_SIGNALS[mode])
        try:
            process.wait(timeout_s * slowdown())
        except subprocess.TimeoutExpired:
            raise self._failed(f"PostgreSQL has not stopped ({mode}) within {timeout_s:g} s") from None
        self._process = None

    def kill9(self) -> None:
        """End every process of the server at once with SIGKILL: a crash, except that the page cache stays."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)  # it cannot start another child while they are counted
        pids = [process.pid, *descendants(process.pid)] if process.poll() is None else []
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
        self._process = None
        if not wait_until_ended(pids, 10.0):
            raise LocalPostgresFailed(f"processes of {self.data_directory} are still running 10 s after SIGKILL")

    def restart(self, mode: StopMode = "fast", timeout_s: float = 30.0) -> None:
        """Stop and start the server, on the same port."""
        self.stop(mode, timeout_s)
        self.start(timeout_s)

    def reload(self) -> None:
        """Make the server read its configuration again."""
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def promote(self, timeout_s: int = 60) -> None:
        """Make a standby a primary and wait until it is one.

        Raises:
            LocalPostgresFailed: it was not promoted in time.
        """
        if self.execute("SELECT pg_promote(true, %s)", timeout_s) != [(True,)]:
            raise self._failed(f"the standby was not promoted within {timeout_s} s")

    def close(self) -> None:
        """Stop the server, whatever it takes. The data folder stays."""
        try:
            self.stop("immediate", 10.0)
        except LocalPostgresFailed:
            self.kill9()

    # What one asks it.

    @property
    def is_running(self) -> bool:
        """Whether the postmaster is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it lives."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def pg_wal(self) -> Path:
        """The folder of the WAL segments."""
        return self.data_directory / "pg_wal"

    def conninfo(self, *, user: str = "postgres", dbname: str = "postgres", **options: str) -> str:
        """Return libpq's connection string of this server, over TCP on the loopback interface."""
        words: dict[str, str] = {"host": "127.0.0.1", "port": str(self.port), "user": user, "dbname": dbname}
        return psycopg.conninfo.make_conninfo("", **{**words, **self.client_options, **options})

    def execute(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run `sql` in a connection of its own, in autocommit mode, and return the rows of its (last) result."""
        with psycopg.connect(self.conninfo(), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(sql.encode(), parameters or None)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    # Processes and files.

    def _own(self, directory: Path) -> None:
        """Make a folder that is the server's user's."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._user is not None and not self._user.may_enter(directory):
            raise ConfigurationError(
                f"user {self._user.name}, which runs PostgreSQL because root may not, cannot enter the folders above "
                f"{directory}: choose a folder under {tempfile.gettempdir()}, or do not run as root"
            )
        self._give(directory)

    def _give(self, path: Path) -> None:
        """Make the server's user the owner of `path`."""
        if self._user is not None:
            os.chown(path, self._user.uid, self._user.gid)

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.uid, "group": self._user.gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> None:
        answer = subprocess.run(
            [self.binaries.path(program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd="/",
            env=_environment(),
            **self._as_user(),
        )
        if answer.returncode != 0:
            reason = " ".join((answer.stderr or answer.stdout).split())
            raise LocalPostgresFailed(f"{program} failed with status {answer.returncode}: {reason}")

    def _spawn(self) -> None:
        options = self._options()
        # A change of user makes the kernel forget which process's death ends this one: it comes first.
        reader = as_reader_of_all(self._user) if self._reads_all and self._user is not None else ()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *reader,
                    *(() if self._outlives_us else end_with_parent()),
                    str(self.binaries.path("postgres")),
                    "-D",
                    str(self.data_directory),
                    *(word for name, value in options.items() for word in ("-c", f"{name}={value}")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is for us, not for the server
                **({} if reader else self._as_user()),
            )

    def _options(self) -> dict[str, str]:
        """Return the settings that no configuration file changes."""
        return {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            # Its folder would stay in the system if this process was killed.
            "unix_socket_directories": "",
            "logging_collector": "off",
            # In the data folder: after a crash whose server is never started again it would stay in the system.
            "dynamic_shared_memory_type": "mmap",
        }

    def _wait_until_ready(self, limit: TimeLimit) -> bool:
        """Return whether the server got ready; if it did not, no process of it is left."""
        pid_file = self.data_directory / "postmaster.pid"
        while not limit.is_over:
            if not self.is_running:
                self._process = None
                return False
            try:
                lines = pid_file.read_text().split("\n")
            except FileNotFoundError:
                lines = []  # not there yet, or just being replaced: a crash leaves one
            # Line 1 is the pid (a crash leaves the file of the last server), line 8 the state that pg_ctl waits for.
            mine = len(lines) > 7 and lines[0].strip() == str(self.pid)
            if mine and lines[7].strip() in ("ready", "standby") and self._answers():
                return True
            time.sleep(_POLL_S)
        self.kill9()
        return False

    def _answers(self) -> bool:
        """Return whether it accepts connections; a standby's status is "standby" before it is consistent."""
        return psycopg.pq.PGconn.ping(self.conninfo().encode()) == psycopg.pq.Ping.OK

    def _failed(self, what: str) -> LocalPostgresFailed:
        return LocalPostgresFailed(f"{what} ({self.data_directory}); its log ends with: {self.log_tail(5)}")


def _environment() -> dict[str, str]:
    """Return our environment without what would lead PostgreSQL's programs elsewhere, with English messages."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LD_"))}
    return {**ours, "LC_ALL": "C", "HOME": "/"}


@functools.cache
def end_with_parent(signal_name: str = "QUIT") -> tuple[str, ...]:
    """Return the words before a command that make the kernel send it a signal when its parent dies.

    QUIT is PostgreSQL's immediate shutdown.

    Through setpriv of util-linux, because Python's own hook in the child does not go with threads.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    words = (setpriv, "--pdeathsig", signal_name, "--")
    answer = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if answer.returncode == 0 else ()


def as_reader_of_all(user: ServerUser) -> tuple[str, ...]:
    """Return the words with which root runs a command as `user` that may read all files; none where setpriv is not."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    words = (setpriv, f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups")
    return (*words, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--")


def take_ports(share: int) -> None:
    """Give this process a share of the ports of its own: those of the servers that others stopped stay theirs."""
    global _ports
    size = len(_PORTS) // _PORT_SHARES
    begin = _PORTS.start + share % _PORT_SHARES * size
    _ports = range(begin, begin + size)


def free_port() -> int:
    """Return a TCP port of the loopback interface that no process listens on now.

    A port is not handed out again soon: a server that has got one may be down for a while, and needs it again. Once
    three quarters of this process's share were handed out, the older half of them is free again.

    Raises:
        OSError: every port of the share is in use.
    """
    if len(_handed_out) >= len(_ports) * 3 // 4:
        for port in list(_handed_out)[: len(_handed_out) // 2]:
            del _handed_out[port]
    free = [port for port in _ports if port not in _handed_out]
    random.shuffle(free)
    for port in free:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out[port] = None
        return port
    raise OSError(f"no port of 127.0.0.1 from {_ports.start} to {_ports.stop - 1} is free")
