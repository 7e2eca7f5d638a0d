"""Several PostgreSQL servers with an agent beside each, and safekeepers: all real processes on this machine.

For the demo and the tests. The agents start the servers; here they are only made, looked at over SQL, and killed.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import psycopg

from safekeeper.base.errors import WalproxyError
from walproxy.agent.managed_server import ManagedServer
from walproxy.agent.server_look import ServerState
from walproxy.lab.cluster.local_cluster import SAFEKEEPER, LocalProcess, LocalProcessFailed
from walproxy.lab.cluster.reader_passfile import reader_passfile
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries, free_port
from walproxy.postgres.patience import TimeLimit

_POLL_S = 0.02
_SETTINGS = {
    "shared_buffers": "16MB",
    "max_connections": "40",
    "wal_log_hints": "on",
    "wal_keep_size": "256MB",
    "hot_standby": "on",
    "wal_retrieve_retry_interval": "200ms",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
}


class AgentHost:
    """One server with its agent.

    Attributes:
        name: of the agent.
        postgres: to initialise the data folder and for SQL; the agent starts and stops the server.
        server: to look at it, and to kill it.
        agent: the process.
    """

    def __init__(self, name: str, postgres: LocalPostgres, agent: LocalProcess) -> None:
        self.name = name
        self.postgres = postgres
        self.agent = agent
        self.server = ManagedServer(
            postgres.data_directory,
            postgres.binaries.bin_directory,
            postgres.conninfo(),
            log_path=postgres.log_path,
        )

    def kill9(self) -> None:
        """End agent, proxy and server at once, as the loss of the machine would."""
        self.agent.kill9()
        self.server.kill()

    def close(self) -> None:
        """End what runs."""
        with contextlib.suppress(ProcessLookupError):
            self.agent.resume()
        self.kill9()


class AgentCluster:
    """The whole.

    Attributes:
        hosts: by name.
        safekeepers: by id.

    Args:
        options: further ones of each agent.
    """

    process_type: ClassVar[type[LocalProcess]] = LocalProcess

    def __init__(
        self,
        directory: Path,
        binaries: ServerBinaries,
        *,
        names: Sequence[str] = ("pg1", "pg2", "pg3"),
        safekeeper_count: int = 3,
        options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self._passfile = reader_passfile(directory)
        self._ports = {i: (free_port(), free_port(), free_port()) for i in range(1, safekeeper_count + 1)}
        self.safekeepers = {i: self._make_safekeeper(i) for i in self._ports}
        self.hosts = {name: self._make_host(name, binaries, options) for name in names}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def safekeepers_option(self) -> str:
        """The value of --safekeepers."""
        return ",".join(f"{i}=127.0.0.1:{listen}" for i, (listen, _, _) in self._ports.items())

    def _make_safekeeper(self, safekeeper_id: int) -> LocalProcess:
        listen, pg_listen, http = self._ports[safekeeper_id]
        arguments = [*SAFEKEEPER, "--id", str(safekeeper_id)]
        arguments += ["--data-dir", str(self.directory / f"safekeeper-{safekeeper_id}")]
        arguments += ["--listen", f"127.0.0.1:{listen}", "--pg-listen", f"127.0.0.1:{pg_listen}"]
        arguments += ["--http", f"127.0.0.1:{http}"]
        log_path = self.directory / f"safekeeper-{safekeeper_id}.log"
        return self.process_type(f"safekeeper {safekeeper_id}", arguments, http, log_path)

    def _make_host(self, name: str, binaries: ServerBinaries, options: Sequence[str]) -> AgentHost:
        port = free_port()
        settings = {**_SETTINGS, "cluster_name": name, "port": str(port)}
        postgres = LocalPostgres(binaries, self.directory / name, port=port, settings=settings)
        http = free_port()
        feed = psycopg.conninfo.make_conninfo(
            "",
            host=",".join("127.0.0.1" for _ in self._ports),
            port=",".join(str(pg_listen) for _, pg_listen, _ in self._ports.values()),
            user="postgres",
            passfile=str(self._passfile),
            application_name=name,
        )
        arguments = [
            *("-m", "walproxy", "agent", "--name", name),
            *("--pgdata", str(postgres.data_directory), "-c", f"bin_dir={postgres.binaries.bin_directory}"),
            *("-c", f"conninfo={postgres.conninfo()}", "-c", f"address=127.0.0.1:{postgres.port}"),
            *("--safekeepers", self.safekeepers_option, "-c", f"standby_conninfo={feed}"),
            *("--http-listen", f"127.0.0.1:{http}", "-c", f"proxy_http=127.0.0.1:{free_port()}"),
            *("-c", f"server_log={postgres.log_path}"),
            *options,
        ]
        agent = self.process_type(f"agent {name}", arguments, http, self.directory / f"agent-{name}.log")
        return AgentHost(name, postgres, agent)

    def start(self, init: Callable[[LocalPostgres], object] | None = None) -> Self:
        """Make the first server, start all, and wait until the first leads and the others are standbys."""
        first, *others = self.hosts.values()
        (init or LocalPostgres.init)(first.postgres)
        for safekeeper in self.safekeepers.values():
            safekeeper.start()
        first.agent.start()
        self.wait_for_leader(first.name)
        for host in others:
            first.postgres.back_up(host.postgres.data_directory)
            host.postgres.configure({})
            host.server.touch_as_owner(host.postgres.data_directory / "standby.signal")
            host.agent.start()
        for host in others:
            self.wait_until(lambda host=host: self.is_standby(host.name), f"{host.name} is a standby")  # type: ignore[misc]
        return self

    # Looking.

    def clients_conninfo(self, **options: str) -> str:
        """Return the connection string of clients, which find the primary."""
        ports = ",".join(str(host.postgres.port) for host in self.hosts.values())
        hosts = ",".join("127.0.0.1" for _ in self.hosts)
        given = {"user": "postgres", "dbname": "postgres", "target_session_attrs": "read-write", **options}
        return psycopg.conninfo.make_conninfo("", host=hosts, port=ports, connect_timeout="3", **given)

    def is_standby(self, name: str) -> bool:
        """Return whether a server streams from a safekeeper."""
        return bool(self._scalar(name, "SELECT status = 'streaming' FROM pg_stat_wal_receiver"))

    def is_leader(self, name: str) -> bool:
        """Return whether a server is a primary that accepts writes, and commits wait for the quorum and succeed."""
        sql = (
            "SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off' AND EXISTS "
            "(SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))"
        )
        return bool(self._scalar(name, sql))

    def _scalar(self, name: str, sql: str) -> Any:
        host = self.hosts[name]
        try:
            with psycopg.connect(host.postgres.conninfo(), autocommit=True, connect_timeout=2) as connection:
                row = connection.execute(sql.encode()).fetchone()
        except psycopg.Error:
            return None
        return row[0] if row is not None else None

    def leader(self) -> AgentHost | None:
        """Return the host whose server leads, None if none does."""
        return next((host for host in self.hosts.values() if self.is_leader(host.name)), None)

    def wait_for_leader(self, *names: str, timeout_s: float = 30.0) -> AgentHost:
        """Wait until one of these hosts, by default any, leads.

        Raises:
            LocalProcessFailed: none does within `timeout_s`.
        """
        found: list[AgentHost] = []

        def leads() -> bool:
            leader = self.leader()
            if leader is not None and (not names or leader.name in names):
                found.append(leader)
            return bool(found)

        self.wait_until(leads, f"{' or '.join(names) or 'a host'} leads", timeout_s)
        return found[0]

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        """Wait until `condition()`.

        Raises:
            LocalProcessFailed: it does not hold within `timeout_s`.
        """
        limit = TimeLimit(timeout_s)
        while not condition():
            if limit.is_over:
                logs = "; ".join(f"{host.name}: {host.agent.log_tail(4)}" for host in self.hosts.values())
                raise LocalProcessFailed(f"condition not met within {limit.passed_s:.0f} s: {what}; logs: {logs}")
            time.sleep(_POLL_S)

    def states(self) -> Mapping[str, ServerState]:
        """Return what each server does."""
        return {name: host.server.look().state for name, host in self.hosts.items()}

    def close(self) -> None:
        """End every process; the files stay."""
        problems = []
        for host in self.hosts.values():
            try:
                host.close()
            except WalproxyError as error:
                problems.append(str(error))
        for safekeeper in self.safekeepers.values():
            with contextlib.suppress(ProcessLookupError):
                safekeeper.resume()
            safekeeper.kill9()
        if problems:
            raise LocalProcessFailed("; ".join(problems))
