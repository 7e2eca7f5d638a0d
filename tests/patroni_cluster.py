"""A cluster that the real Patroni manages, as docs/guide/ha.md sets it up: three hosts, three safekeepers, one etcd.

A host is Patroni, its PostgreSQL, and a proxy, which die together in `kill9`. Everything is on the loopback interface.
Patroni refuses to run as root: then it, and its server, run as the user of the other tests' servers. The server is not
a child of Patroni, which detaches it; it is found by its data folder.
"""

import contextlib
import http.client
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import yaml
from psycopg.conninfo import make_conninfo

from tests.waiting import wait_for
from walproxy.agent import processes
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.lab.cluster.reader_passfile import reader_passfile
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.history import History
from walproxy.lab.load.transactions import SingleStatement
from walproxy.postgres.binaries import ServerBinaries, reachable_binaries, server_user
from walproxy.postgres.local_server import end_with_parent, free_port
from walproxy.postgres.process_table import descendants

_SCOPE = "main"
_HTTP_TIMEOUT_S = 2.0
# Below 20 s Patroni takes 20 s.
TTL_S = 20
_DCS = {
    "ttl": TTL_S,
    "loop_wait": 1,
    "retry_timeout": 3,
    "maximum_lag_on_failover": 1 << 20,
    "slots": {"walproxy": {"type": "physical"}},
    "postgresql": {
        "use_pg_rewind": True,
        "parameters": {
            "synchronous_standby_names": "walproxy",
            "wal_keep_size": "256MB",
            "wal_retrieve_retry_interval": "1s",
            "max_connections": 30,
            "shared_buffers": "16MB",
            "fsync": "on",
        },
    },
}


class Host:
    """A host of the cluster: Patroni, PostgreSQL, a proxy.

    Attributes:
        name: Patroni's name of the member.
        port: PostgreSQL's.
        rest_port: Patroni's.
        data_directory: PostgreSQL's.
        proxy: not started yet.
    """

    def __init__(self, name: str, folder: Path, proxy: LocalProcess) -> None:
        self.name = name
        self.folder = folder
        self.port, self.rest_port = free_port(), free_port()
        self.data_directory = folder / "data"
        self.configuration = folder / "patroni.yml"
        self.log_path = folder / "patroni.log"
        self.proxy = proxy
        self._patroni: subprocess.Popen[bytes] | None = None

    @property
    def conninfo(self) -> str:
        """How a client connects to its PostgreSQL."""
        return make_conninfo("", host="127.0.0.1", port=str(self.port), user="postgres", dbname="postgres")

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement there."""
        with psycopg.connect(self.conninfo, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def is_leader(self) -> bool:
        """Return whether Patroni reports that its PostgreSQL takes writes, as a load balancer asks it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.rest_port, timeout=_HTTP_TIMEOUT_S)
        try:
            connection.request("GET", "/primary")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def start(self, environment: Mapping[str, str]) -> None:
        """Start Patroni and the proxy, as the machine's start does."""
        with self.log_path.open("ab") as log:
            self._patroni = subprocess.Popen(
                [
                    *_as_server_user(),
                    *end_with_parent("KILL"),
                    sys.executable,
                    "-m",
                    "patroni",
                    str(self.configuration),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, **environment, "PYTHONWARNINGS": "ignore", "HOME": str(self.folder)},
                start_new_session=True,
            )
        self.restart_proxy()

    def restart_proxy(self) -> None:
        """Start the proxy again if it has ended, as a service manager does: a proxy that was fenced ends."""
        if self._patroni is not None and self.proxy.pid is None:
            self.proxy.start()

    def kill9(self) -> None:
        """End Patroni, PostgreSQL and the proxy at once: a machine that loses its power, except for its disk."""
        patroni = self._patroni
        pids = [patroni.pid, *descendants(patroni.pid)] if patroni is not None and patroni.poll() is None else []
        if self.proxy.pid is not None:
            pids.append(self.proxy.pid)
        for pid in [*pids, *(processes.processes_of(self.data_directory) if self.data_directory.exists() else ())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.data_directory.exists():
            processes.kill_all(self.data_directory, 10.0)
        self.proxy.kill9()
        if patroni is not None:
            patroni.wait()
            self._patroni = None

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of Patroni's log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


class PatroniCluster:
    """The whole cluster.

    Attributes:
        hosts: by name.
        safekeepers: their processes.

    Args:
        folder: one that the server's user can enter.
        process_type: what makes safekeepers and proxies.
        restores: standbys have a restore_command.
    """

    def __init__(
        self,
        folder: Path,
        binaries: ServerBinaries,
        *,
        process_type: type[LocalProcess] = LocalProcess,
        host_count: int = 3,
        restores: bool = True,
    ) -> None:
        self._folder = folder
        self._restores = restores
        self._user = server_user()
        self._binaries = reachable_binaries(binaries, self._user)
        secret = secrets.token_hex(16)
        self._environment = {"WALPROXY_SECRET": secret, "SAFEKEEPER_SECRET": secret}
        self._etcd_port = free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self.safekeepers: list[LocalProcess] = []
        places, readers = [], []
        for safekeeper_id in (1, 2, 3):
            port, reader_port, http_port = free_port(), free_port(), free_port()
            places.append(f"{safekeeper_id}=127.0.0.1:{port}")
            readers.append(str(reader_port))
            options = ["--id", str(safekeeper_id), "--data-dir", str(folder / f"safekeeper-{safekeeper_id}")]
            options += ["--proposer-listen", f"127.0.0.1:{port}", "--pg-listen", f"127.0.0.1:{reader_port}"]
            options += ["--http-listen", f"127.0.0.1:{http_port}"]
            arguments = ["-m", "safekeeper", "run", *options]
            log_path = folder / f"safekeeper-{safekeeper_id}.log"
            self.safekeepers.append(process_type(f"safekeeper {safekeeper_id}", arguments, http_port, log_path))
        self._places = ",".join(places)
        passfile = str(reader_passfile(folder))
        hosts, ports = ",".join(["127.0.0.1"] * 3), ",".join(readers)
        self._readers = make_conninfo("", host=hosts, port=ports, user="standby", passfile=passfile)
        self.hosts: dict[str, Host] = {}
        for name in [f"pg{number}" for number in range(1, host_count + 1)]:
            (folder / name).mkdir(mode=0o755)
            http_port = free_port()
            proxy = process_type(f"proxy of {name}", [], http_port, folder / name / "walproxy.log")
            self.hosts[name] = Host(name, folder / name, proxy)
        ports = ",".join(str(host.port) for host in self.hosts.values())
        primary = make_conninfo(
            "",
            host=",".join(["127.0.0.1"] * len(self.hosts)),
            port=ports,
            user="postgres",
            dbname="postgres",
            target_session_attrs="read-write",
        )
        for host in self.hosts.values():
            host.proxy.environment = self._environment
            host.proxy.arguments = [
                *("-m", "walproxy", "run", "--primary", primary, "--safekeepers", self._places),
                *("--http-listen", f"127.0.0.1:{host.proxy.http_port}", "--bootstrap", "true"),
            ]
            self._configure(host)

    def _configure(self, host: Host) -> None:
        """Write the configuration of a host's Patroni."""
        walproxy = f"{sys.executable} -m walproxy"
        settings = {
            "scope": _SCOPE,
            "name": host.name,
            "restapi": {
                "listen": f"127.0.0.1:{host.rest_port}",
                "connect_address": f"127.0.0.1:{host.rest_port}",
            },
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {"dcs": _DCS, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"]},
            "postgresql": {
                "listen": f"127.0.0.1:{host.port}",
                "connect_address": f"127.0.0.1:{host.port}",
                "data_dir": str(host.data_directory),
                "bin_dir": str(self._binaries.bin_directory),
                "pgpass": str(host.folder / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": "postgres"},
                    "replication": {"username": "replicator", "password": "replicator"},
                },
                "parameters": {"unix_socket_directories": "", "dynamic_shared_memory_type": "mmap"},
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
                "recovery_conf": (
                    {"restore_command": f"{walproxy} wal-fetch %f %p --safekeepers '{self._readers}'"}
                    if self._restores
                    else {}
                ),
                "pre_promote": (
                    f"{walproxy} ready-to-promote --pgdata {host.data_directory} --conninfo user=postgres "
                    f"--safekeepers {self._places} --old-is-dead"
                ),
            },
        }
        host.configuration.write_text(yaml.safe_dump(settings))
        if self._user is not None:
            for path in (host.folder, host.configuration):
                os.chown(path, self._user.uid, self._user.gid)

    # Life.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start everything, and wait until all members work."""
        self._start_etcd()
        for safekeeper in self.safekeepers:
            safekeeper.environment = self._environment
            safekeeper.start()
        first, *others = self.hosts.values()
        self.start_host(first)
        wait_for(first.is_leader, lambda: f"Patroni has made a primary: {first.log_tail()}", 120)
        for host in others:
            self.start_host(host)
        self.wait_until_well()
        return self

    def _start_etcd(self) -> None:
        peer_port = free_port()
        url, peer_url = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{peer_port}"
        with (self._folder / "etcd.log").open("wb") as log:
            self._etcd = subprocess.Popen(
                [
                    *(*end_with_parent("KILL"), _program("etcd"), "--data-dir", str(self._folder / "etcd")),
                    *("--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer_url),
                    *("--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def start_host(self, host: Host) -> None:
        """Start Patroni and the proxy of a host."""
        host.start(self._environment)

    def restart_proxies(self) -> None:
        """Start proxies that have ended, as a service manager does."""
        for host in self.hosts.values():
            host.restart_proxy()

    def close(self) -> None:
        """End every process."""
        for host in self.hosts.values():
            host.kill9()
        for safekeeper in self.safekeepers:
            safekeeper.kill9()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()

    # What one asks it.

    @property
    def leader(self) -> Host | None:
        """The host whose PostgreSQL takes writes."""
        return next((host for host in self.hosts.values() if host.is_leader()), None)

    def members(self) -> list[dict[str, Any]]:
        """Return the members as Patroni's REST interface shows them, none if no Patroni replies."""
        for host in self.hosts.values():
            try:
                url = f"http://127.0.0.1:{host.rest_port}/cluster"
                with urllib.request.urlopen(url, timeout=_HTTP_TIMEOUT_S) as response:
                    members = json.load(response)["members"]
                    assert isinstance(members, list)
                    return members
            except OSError:
                continue
        return []

    def wait_until_well(self, timeout_s: float = 120.0) -> None:
        """Wait until one member leads, the others stream from it, and a commit returns."""

        def is_well() -> bool:
            self.restart_proxies()
            states = sorted((str(member["role"]), str(member["state"])) for member in self.members())
            return states == [("leader", "running")] + [("replica", "streaming")] * (len(self.hosts) - 1)

        wait_for(is_well, lambda: f"all members work: {self.members()}\n{self.log_tails()}", timeout_s, 0.2)

    def log_tails(self) -> str:
        """Return the end of every log."""
        logs = [path for host in self.hosts.values() for path in (host.log_path, host.proxy.log_path) if path.exists()]
        return "\n".join(f"{path}:\n" + "\n".join(path.read_text().splitlines()[-12:]) for path in logs)

    def patronictl(self, *arguments: str) -> str:
        """Run `patronictl`, and return its output."""
        configuration = next(iter(self.hosts.values())).configuration
        answer = subprocess.run(
            [sys.executable, "-c", "from patroni.ctl import ctl; ctl()", "-c", str(configuration), *arguments],
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    def expire_leader(self) -> None:
        """Remove the leader's key from etcd, as etcd does once its time to live is over."""
        subprocess.run(
            [_program("etcdctl"), f"--endpoints=127.0.0.1:{self._etcd_port}", "del", f"/service/{_SCOPE}/leader"],
            env={**os.environ, "ETCDCTL_API": "3"},
            check=True,
            capture_output=True,
        )


class Ledger:
    """Clients that insert rows into the leader's table, and what they were told."""

    def __init__(self, cluster: PatroniCluster, workers: int = 4) -> None:
        self._cluster = cluster
        leader = cluster.leader
        assert leader is not None
        leader.execute("CREATE TABLE ledger (worker int, number int)")
        numbers = {worker: itertools.count(1) for worker in range(1, workers + 1)}
        self._turn = itertools.cycle(cluster.hosts.values())

        def next_row(client: int) -> Row:
            return Row(client, next(numbers[client]))

        self.clients = Clients(self._conninfo, workers, next_row, hangs_up_after_s=60.0)

    def _conninfo(self) -> str:
        return (self._cluster.leader or next(self._turn)).conninfo

    @property
    def history(self) -> History["Row"]:
        """The replies."""
        return self.clients.history

    def wait_for_commits(self, count: int, since: float | None = None, timeout_s: float = 120.0) -> float:
        """Wait for `count` acknowledged rows that began at `since`, by default now; return the first one's end."""
        begin = time.monotonic() if since is None else since

        def has_them() -> bool:
            self._cluster.restart_proxies()
            return len(list(itertools.islice(self.history.begun_since(begin), count))) == count

        wait_for(
            has_them,
            lambda: f"{count} commits were acknowledged; {self.history.problem}\n{self._cluster.log_tails()}",
            timeout_s,
        )
        return next(self.history.begun_since(begin)).ended_at

    def lost(self) -> list[tuple[int, int]]:
        """Return the acknowledged rows that the present leader does not have."""
        told = [(each.transaction.worker, each.transaction.number) for each in list(self.history.acknowledged)]
        leader = self._cluster.leader
        assert leader is not None
        found = {(worker, number) for worker, number in leader.execute("SELECT worker, number FROM ledger")}
        return [row for row in told if row not in found]


class Row(SingleStatement):
    """A row of the ledger."""

    def __init__(self, worker: int, number: int) -> None:
        super().__init__("INSERT INTO ledger VALUES ($1, $2)", worker, number)
        self.worker, self.number = worker, number


def _as_server_user() -> Sequence[str]:
    """Return the words before a command that root runs as the servers' user, who may read what only root may."""
    user = server_user()
    if user is None:
        return ()
    words = ("setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups")
    return (*words, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--")


def _program(name: str) -> str:
    path = shutil.which(name)
    assert path is not None, f"{name} is missing: apt-get install etcd-server etcd-client"
    return path
