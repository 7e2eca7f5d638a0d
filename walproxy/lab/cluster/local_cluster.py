"""A whole cluster on this machine: PostgreSQL, safekeepers, proxies, each a real process.

For the demo, the benchmark and the tests. The processes are this project's own commands, run by this interpreter, with
their logs in files; they can be killed as a crash would and started again at the same place. Nothing is left running: a
cluster is a context manager, and on Linux the kernel ends the processes when the thread that started them dies.

Everything blocks; asyncio code calls it through `asyncio.to_thread`.
"""

import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Protocol, Self
from urllib.parse import urlencode

import msgspec
import psycopg

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.lab.cluster.local_standby import make_standby
from walproxy.lab.cluster.reader_passfile import reader_passfile
from walproxy.postgres.local_server import LocalPostgres, end_with_parent, free_port
from walproxy.postgres.patience import TimeLimit, slowdown
from walproxy.proxy.status_fields import ProxyStatus

SAFEKEEPER = ("-m", "safekeeper", "run")
_POLL_S = 0.02
_HTTP_TIMEOUT_S = 2.0


class LocalProcessFailed(WalproxyError):
    """A local process failed or did not respond; the message ends with the last lines of its log."""


class Child(Protocol):
    """A process that was started here: what `LocalProcess` needs of `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: signal.Signals, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class LocalProcess:
    """One of our daemons.

    Attributes:
        name: for messages, e.g. "safekeeper 2".
        arguments: the command line after the interpreter.
        http_port: where its /status is.
        log_path: its output.
        http_tls: the CA to trust at its HTTP listener, None if that has no TLS.
        outlives_us: it goes on when this process ends without having ended it.

    Args:
        program: the words before its arguments.
        address: where its HTTP listener is.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        http_port: int,
        log_path: Path,
        outlives_us: bool = False,
        *,
        program: Sequence[str] = (sys.executable,),
        address: str = "127.0.0.1",
    ) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.http_port = http_port
        self.log_path = log_path
        self.outlives_us = outlives_us
        self.environment: dict[str, str] = {}
        self.http_tls: ssl.SSLContext | None = None
        self._program = tuple(program)
        self._address = address
        self._process: Child | None = None

    @property
    def url(self) -> str:
        """The address of its HTTP listener."""
        return f"{'https' if self.http_tls else 'http'}://{self._address}:{self.http_port}"

    @property
    def pid(self) -> int | None:
        """Its process id while it lives."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> Self:
        """Start it; returns at once."""
        if self.pid is not None:
            raise LocalProcessFailed(f"{self.name} is already running, with pid {self.pid}")
        with self.log_path.open("ab") as log:
            self._process = self._spawn(log, {**os.environ, **self.environment})
        return self

    def _spawn(self, output: IO[bytes], environment: dict[str, str]) -> Child:
        return subprocess.Popen(
            [*(() if self.outlives_us else end_with_parent("KILL")), *self._program, *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )

    def kill9(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stop it with SIGSTOP: it lives and does nothing, as one does that hangs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self, timeout_s: float = 20.0) -> int:
        """Stop it with SIGTERM and return its exit code.

        Raises:
            LocalProcessFailed: it still runs after `timeout_s`.
        """
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Wait for its end and return its exit code.

        Raises:
            LocalProcessFailed: it still runs after `timeout_s`.
        """
        assert self._process is not None  # start was called
        try:
            return self._process.wait(timeout_s * slowdown())
        except subprocess.TimeoutExpired:
            raise LocalProcessFailed(f"{self.name} is still running after {timeout_s:g} s: {self.log_tail()}") from None

    def status(self) -> dict[str, Any] | None:
        """Return its /status, None if it does not answer."""
        return read_status(self.url, self.http_tls)

    def proxy_status(self) -> ProxyStatus | None:
        """Return the /status of a proxy, None if it does not answer."""
        status = self.status()
        return msgspec.convert(status, ProxyStatus) if status is not None else None

    def is_spare(self) -> bool:
        """Return whether a proxy answers that it is a spare."""
        status = self.proxy_status()
        return status is not None and status.spare

    def log_tail(self, lines: int = 8) -> str:
        """Return the last lines of its log, joined."""
        if not self.log_path.exists():
            return "(no log)"
        return " | ".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


def read_status(url: str, tls: ssl.SSLContext | None = None) -> dict[str, Any] | None:
    """Return the /status of a daemon by the address of its HTTP listener, None if it does not answer.

    Args:
        tls: the CA to trust there, None without TLS.
    """
    try:
        with urllib.request.urlopen(url + "/status", timeout=_HTTP_TIMEOUT_S, context=tls) as response:
            content = json.load(response)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


class LocalCluster:
    """A PostgreSQL whose commits go through one proxy to safekeepers.

    Attributes:
        process_type: what makes each daemon.
        directory: everything is in it.
        postgres: the primary; `initialise` makes it.
        safekeepers: by id.
        proxies: the first one, and spares.
        standbys: by name, each fed by safekeepers; `add_standby` makes them.
        former_primaries: those that `promote` has replaced.
        reader_options: the parameters of `standby_conninfo` besides hosts.
        outlives_us: the daemons go on when this process ends without `close`.
        engine: what it runs on.

    Args:
        candidates: names of standbys to come; the proxies know where they will be, and follow one that is promoted.
        safekeeper_program: what runs a safekeeper, after the interpreter.
        safekeeper_options: what else each is given, e.g. where the archive is.
        through: returns the port at which proxies reach what listens at a port, a relay's for instance.
    """

    process_type: ClassVar[type[LocalProcess]] = LocalProcess
    engine: ClassVar[str] = "processes"

    def __init__(
        self,
        directory: Path,
        postgres: LocalPostgres,
        safekeeper_count: int = 3,
        *,
        candidates: Sequence[str] = (),
        outlives_us: bool = False,
        safekeeper_program: Sequence[str] = SAFEKEEPER,
        safekeeper_options: Sequence[str] = (),
        through: Callable[[int], int] = lambda port: port,
    ) -> None:
        self.outlives_us = outlives_us
        self.directory = directory
        self.postgres = postgres
        self.standbys: dict[str, LocalPostgres] = {}
        self.former_primaries: list[LocalPostgres] = []
        directory.mkdir(parents=True, exist_ok=True)
        passfile = str(reader_passfile(directory))
        self.reader_options = {"user": "postgres", "connect_timeout": "5", "passfile": passfile}
        self._candidate_ports = {name: free_port() for name in candidates}
        self._safekeeper_program = tuple(safekeeper_program)
        self._safekeeper_options = tuple(safekeeper_options)
        ids = range(1, safekeeper_count + 1)
        self._listen_ports = {i: free_port() for i in ids}
        self._reached_ports = {i: through(port) for i, port in self._listen_ports.items()}
        self._pg_listen_ports = {i: free_port() for i in ids}
        self.safekeepers = {i: self._make_safekeeper(i) for i in self._listen_ports}
        self.proxies = [self.make_proxy("walproxy")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def conninfo(self) -> str:
        """The primary's connection string."""
        return self.postgres.conninfo()

    @property
    def daemons(self) -> dict[str, LocalProcess]:
        """The safekeepers and proxies by name: safekeeper1, ..., walproxy, ..."""
        safekeepers = {f"safekeeper{i}": process for i, process in self.safekeepers.items()}
        return safekeepers | {proxy.name: proxy for proxy in self.proxies}

    def process_ids(self) -> dict[str, int]:
        """Return the processes that live, by name, those of PostgreSQL included."""
        processes: dict[str, LocalPostgres | LocalProcess] = {"postgres": self.postgres, **self.daemons}
        processes |= self.standbys
        return {name: process.pid for name, process in processes.items() if process.pid is not None}

    def status_of(self, who: str) -> dict[str, Any] | None:
        """Return a daemon's /status, None if it does not answer."""
        return self.daemons[who].status()

    @property
    def proxy(self) -> LocalProcess:
        """The first proxy."""
        return self.proxies[0]

    @property
    def safekeepers_option(self) -> str:
        """The value of --safekeepers."""
        return ",".join(self.place_of(i) for i in sorted(self._reached_ports))

    @property
    def operator_environment(self) -> dict[str, str]:
        """The variables with which an operator's command finds the safekeepers."""
        return {"WALPROXY_SAFEKEEPERS": self.safekeepers_option}

    def safekeeper_directory(self, safekeeper_id: int) -> Path:
        """Return the data folder of a safekeeper."""
        return self.directory / f"safekeeper-{safekeeper_id}"

    def _make_safekeeper(self, safekeeper_id: int) -> LocalProcess:
        http_port = free_port()
        arguments = [
            *(*self._safekeeper_program, "--id", str(safekeeper_id)),
            *("--data-dir", str(self.safekeeper_directory(safekeeper_id))),
            *("--listen", f"127.0.0.1:{self._listen_ports[safekeeper_id]}"),
            *("--pg-listen", f"127.0.0.1:{self._pg_listen_ports[safekeeper_id]}"),
            *("--http", f"127.0.0.1:{http_port}"),
            *self._safekeeper_options,
        ]
        log_path = self.directory / f"safekeeper-{safekeeper_id}.log"
        return self.process_type(f"safekeeper {safekeeper_id}", arguments, http_port, log_path, self.outlives_us)

    def add_safekeeper(self, safekeeper_id: int) -> LocalProcess:
        """Make another safekeeper, not started: one that the proxies' --safekeepers lacks until they are made again."""
        self._listen_ports[safekeeper_id] = port = free_port()
        self._pg_listen_ports[safekeeper_id] = free_port()
        self._reached_ports[safekeeper_id] = port
        self.safekeepers[safekeeper_id] = process = self._make_safekeeper(safekeeper_id)
        return process

    def drop_safekeeper(self, safekeeper_id: int) -> None:
        """End a safekeeper, and forget it; its data folder stays."""
        self.safekeepers.pop(safekeeper_id).kill9()
        for ports in (self._listen_ports, self._pg_listen_ports, self._reached_ports):
            del ports[safekeeper_id]

    def place_of(self, safekeeper_id: int) -> str:
        """Return a safekeeper as --safekeepers names it: ID=HOST:PORT."""
        return f"{safekeeper_id}=127.0.0.1:{self._reached_ports[safekeeper_id]}"

    def standby_conninfo(self, *safekeeper_ids: int) -> str:
        """Return a connection string for these safekeepers, by default all, which are tried one after the other."""
        ports = [self._pg_listen_ports[i] for i in safekeeper_ids or self.safekeepers]
        return _several_hosts(ports, **self.reader_options)

    def wal_url(self, *safekeeper_ids: int) -> str:
        """Return the safekeeper:// URL of these safekeepers, by default of all, as `walproxy pipeline` reads them."""
        hosts = ",".join(f"127.0.0.1:{self._pg_listen_ports[i]}" for i in safekeeper_ids or self.safekeepers)
        return f"safekeeper://{hosts}?{urlencode(self.reader_options)}"

    def safekeeper_at(self, port: int) -> int | None:
        """Return which safekeeper serves replication clients at `port`, None if none does."""
        return next((i for i, listening in self._pg_listen_ports.items() if listening == port), None)

    def add_standby(
        self,
        name: str,
        *safekeeper_ids: int,
        slot: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> LocalPostgres:
        """Copy the primary and start the copy as a standby that streams from safekeepers, by default from any."""
        standby = make_standby(
            self.postgres,
            self.directory / name,
            name,
            feed=self.standby_conninfo(*safekeeper_ids),
            slot=slot,
            settings=settings,
            port=self._candidate_ports.get(name, 0),
        )
        self.standbys[name] = standby
        return standby.start()

    def promote(self, name: str) -> LocalPostgres:
        """Make a standby the primary of this cluster; return it. What becomes of the old one is the caller's matter."""
        standby = self.standbys.pop(name)
        self.former_primaries.append(self.postgres)
        self.postgres = standby
        standby.promote()
        return standby

    def primary_conninfo(self) -> str:
        """Return the connection string that proxies get: the primary and the candidates, whichever takes writes."""
        if not self._candidate_ports:
            return self.postgres.conninfo()
        ports = dict.fromkeys([self.postgres.port, *self._candidate_ports.values()])
        return _several_hosts(list(ports), user="postgres", dbname="postgres", target_session_attrs="read-write")

    def make_proxy(self, name: str, *options: str, conninfo: str = "") -> LocalProcess:
        """Return a proxy process for this cluster, not started; append it to `proxies` to have it closed."""
        http_port = free_port()
        arguments = [
            *("-m", "walproxy", "run", "--primary", conninfo or "@PRIMARY@"),
            *("--safekeepers", self.safekeepers_option, "--http", f"127.0.0.1:{http_port}"),
            *options,
        ]
        return self.process_type(name, arguments, http_port, self.directory / f"{name}.log", self.outlives_us)

    def start_proxy(self, proxy: LocalProcess | None = None) -> LocalProcess:
        """Start a proxy, the first one by default. The primary's port must be known by then."""
        proxy = proxy or self.proxy
        proxy.arguments = [self.primary_conninfo() if a == "@PRIMARY@" else a for a in proxy.arguments]
        return proxy.start()

    def start(self, settings: Mapping[str, str] | None = None) -> Self:
        """Start PostgreSQL, the safekeepers and the first proxy, and wait until commits go through the quorum."""
        if not self.postgres.is_running:
            self.postgres.start()
        for safekeeper in self.safekeepers.values():
            safekeeper.start()
        self.start_proxy()
        self.wait_for_state("streaming")
        self.gate_commits()
        return self

    def gate_commits(self) -> None:
        """Let PostgreSQL's commits wait for the quorum, and wait until its walsender counts."""
        self.postgres.configure({"synchronous_standby_names": "walproxy"})
        self.postgres.reload()
        self.wait_until(
            lambda: bool(
                self.postgres.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')")
            ),
            "PostgreSQL counts walproxy as synchronous",
        )

    def wait_for_state(self, *states: str, proxy: LocalProcess | None = None, timeout_s: float = 30.0) -> None:
        """Wait until a proxy is in one of `states`.

        Raises:
            LocalProcessFailed: it is not within `timeout_s`, or has ended.
        """
        watched = proxy or self.proxy

        def is_there() -> bool:
            if watched.pid is None:
                raise LocalProcessFailed(f"{watched.name} has ended; log: {watched.log_tail()}")
            status = watched.proxy_status()
            return status is not None and status.state in states

        self.wait_until(is_there, f"{watched.name} is {' or '.join(states)}", timeout_s, watched)

    def wait_until(
        self,
        condition: Callable[[], bool],
        what: str,
        timeout_s: float = 30.0,
        process: LocalProcess | None = None,
    ) -> None:
        """Wait until `condition()`.

        Raises:
            LocalProcessFailed: it does not hold within `timeout_s`.
        """
        limit = TimeLimit(timeout_s)
        while not condition():
            if limit.is_over:
                about = process or self.proxy
                raise LocalProcessFailed(
                    f"condition not met within {limit.passed_s:.0f} s: {what}; log: {about.log_tail()}"
                )
            time.sleep(_POLL_S)

    def commit_lsn(self) -> Lsn:
        """Return the highest commit_lsn that any proxy reports, 0 if none."""
        return max((parse_lsn(s.commit_lsn) for s in (p.proxy_status() for p in self.proxies) if s), default=0)

    def archived_lsn(self) -> Lsn:
        """Return how far the archive reaches, by any safekeeper's status; 0 if none does."""
        statuses = filter(None, (process.status() for process in self.safekeepers.values()))
        return max((parse_lsn(status["archived_lsn"]) for status in statuses), default=0)

    def close(self) -> None:
        """End every process; the files stay."""
        for process in [*self.proxies, *self.safekeepers.values()]:
            with contextlib.suppress(ProcessLookupError):
                process.resume()
            process.kill9()
        for server in [self.postgres, *self.standbys.values(), *self.former_primaries]:
            server.close()


def _several_hosts(ports: Sequence[int], **options: str) -> str:
    """Return libpq's connection string of servers on the loopback interface, tried in this order."""
    hosts = ",".join("127.0.0.1" for _ in ports)
    return psycopg.conninfo.make_conninfo("", host=hosts, port=",".join(map(str, ports)), **options)
