"""A cluster for tests out of containers, on a network of their own: the images that docker-compose.yml runs.

Safekeepers run on a disk of walproxy/lab/testing/faulty_disk.py, and one more container is the relay between them and
the proxies (walproxy/lab/testing/relay.py): faults need no privileges, neither here nor in the containers. What the
host must reach has a port that is chosen here and stays: the engine would choose another one at each start. Passwords
are random: where the engine is not this machine's own, ports are published beyond loopback.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from docker.models.containers import Container
from testcontainers.core.container import DockerContainer

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.cluster.local_cluster import read_status
from walproxy.lab.testing import container_parts as parts
from walproxy.lab.testing.engine import Blueprint, ClusterFailed, takes_connections
from walproxy.lab.testing.faulty_disk import DiskFaults
from walproxy.lab.testing.relay import Direction
from walproxy.lab.testing.relay_control import RelayControl
from walproxy.postgres.local_server import free_port

_WALPROXY_IMAGE = "walproxy"
_POSTGRES_IMAGE = "postgres:18"

_STARTUP_S = 60.0
_STOP_S = 60
_POLL_S = 0.1
_DATA = "/var/lib/safekeeper"
_ARCHIVE = "/var/lib/archive"
_PGDATA = "/var/lib/postgresql/walproxy"
_CONTROL_FILE = Path("/tmp/disk.json")
_CONTROL_PORT, _POSTGRES_PORT, _PROXY_HTTP_PORT, _SAFEKEEPER_HTTP_PORT = 6000, 5432, 7667, 7676
_READERS_PORT = 5433
_GATED = "SELECT 1 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"

# The user that runs it owns the folder above PGDATA in every PostgreSQL image.
_STANDBY = f"""set -eu
if [ ! -s {_PGDATA}/PG_VERSION ]; then
    rm -rf {_PGDATA}
    pg_basebackup --dbname 'host=postgres user=postgres' --pgdata {_PGDATA} --checkpoint fast
    touch {_PGDATA}/standby.signal
fi
exec postgres -D {_PGDATA} "$@"
"""


class ContainersEngine:
    """See `Engine`.

    Args:
        blueprint: what it is to be, without programs.
        directory: where copies of data folders go.
    """

    name = "containers"

    def __init__(self, blueprint: Blueprint, directory: Path) -> None:
        self._blueprint = blueprint
        self._directory = directory
        self.archive_url = _ARCHIVE if blueprint.archive else None
        self._password = secrets.token_hex(16)
        self._copies = 0
        parts.remove_leftovers()
        with ExitStack() as stack:
            self._network = stack.enter_context(parts.network())
            self._archive = stack.enter_context(parts.volume()) if blueprint.archive else None
            self._closing = stack.pop_all()
        self._host = parts.LOOPBACK
        self._ports: dict[str, int] = {}
        self._containers: dict[str, DockerContainer] = {}
        self._relay: RelayControl

    def start_all(self) -> None:
        blueprint = self._blueprint
        relay = ("-m", "walproxy.lab.testing.relay", f"0.0.0.0:{_CONTROL_PORT}")
        self._start("relay", self._program("relay", _CONTROL_PORT, *relay))
        self._start("postgres", self._primary())
        for number, name in enumerate(blueprint.safekeeper_names, 1):
            self._start(name, self._safekeeper(number, name))
        self._find_relay()
        for number, name in enumerate(blueprint.safekeeper_names, 1):
            self._relay.open(name, name, 5454, _CONTROL_PORT + number)
        # On its first start it answers over TCP only once it is set up.
        self._wait_until(self.primary_answers, "PostgreSQL answers", "postgres")
        # An image lets every host in, but in pg_hba.conf "all" databases does not cover replication.
        self._run_in("postgres", f"echo 'host replication all all scram-sha-256' >> {_PGDATA}/pg_hba.conf")
        self._execute("SELECT pg_reload_conf()")
        for name in blueprint.proxy_names:
            self._start(name, self._proxy(name))
        self._wait_until(
            lambda: any((self.status_of(name) or {}).get("state") == "streaming" for name in blueprint.proxy_names),
            "a proxy streams",
            "walproxy",
        )
        self._set_gate()
        for name in blueprint.standby_names:
            self._start(name, self._standby(name))

    def close(self) -> None:
        self._closing.close()

    def conninfo(self, member: str = "postgres") -> str:
        return psycopg.conninfo.make_conninfo(
            host=self._host,
            port=str(self._ports[member]),
            user="postgres",
            password=self._password,
            dbname="postgres",
        )

    def primary_answers(self) -> bool:
        return takes_connections(self.conninfo())

    def pause(self, member: str) -> None:
        with parts.engine_errors(f"pause {member}"):
            if self._state(member) == "running":
                parts.pause(self._container(member))

    def resume(self, member: str) -> None:
        with parts.engine_errors(f"resume {member}"):
            if self._state(member) == "paused":
                self._container(member).unpause()

    def kill(self, member: str) -> None:
        with parts.engine_errors(f"kill {member}"):
            if self.runs(member):
                self._container(member).kill()
                self._container(member).wait(timeout=_STOP_S)

    def stop(self, member: str) -> None:
        with parts.engine_errors(f"stop {member}"):
            self._container(member).stop(timeout=_STOP_S)

    def start(self, member: str) -> None:
        with parts.engine_errors(f"start {member}"):
            if not self.runs(member):
                self._container(member).start()

    def runs(self, member: str) -> bool:
        return self._state(member) in ("running", "paused")

    def hold(self, safekeeper: str, direction: Direction) -> None:
        self._relay.hold(safekeeper, direction)

    def set_disk(self, safekeeper: str, faults: DiskFaults) -> None:
        with parts.engine_errors(f"reach into {safekeeper}"):
            parts.put_file(self._container(safekeeper), _CONTROL_FILE, msgspec.json.encode(faults))

    def status_of(self, member: str) -> dict[str, Any] | None:
        if member not in (*self._blueprint.safekeeper_names, *self._blueprint.proxy_names):
            return None
        if member not in self._ports:
            return None
        # An address: for the name of the engine's host HTTP is not served.
        return read_status(f"http://{socket.gethostbyname(self._host)}:{self._ports[member]}")

    def http_port(self, member: str) -> int | None:
        return None

    def log(self, member: str, lines: int) -> str:
        if member not in self._containers:
            return ""
        with parts.engine_errors(f"read the log of {member}"):
            logged: bytes = self._container(member).logs(tail=lines)
        return logged.decode(errors="replace").rstrip("\n")

    def process_ids(self) -> dict[str, int]:
        return {
            name: self._container(name).attrs["State"]["Pid"] for name in self._blueprint.members if self.runs(name)
        }

    def data_folder(self, member: str) -> Path:
        """See `Engine`: a copy."""
        self._copies += 1
        path = _DATA if member in self._blueprint.safekeeper_names else _PGDATA
        with parts.engine_errors(f"copy {path} of {member}"):
            return parts.copy_folder(
                self._container(member), path, self._directory / "copies" / f"{member}-{self._copies}"
            )

    # The containers.

    def _program(self, name: str, port: int, *words: str) -> DockerContainer:
        """One of the project's own programs; `port` is published."""
        container = parts.new_container(walproxy_image(), name, self._network)
        return self._publish(container, name, port).with_command(["python", *words])

    def _publish(self, container: DockerContainer, name: str, port: int) -> DockerContainer:
        self._ports[name] = free_port()
        return container.with_bind_ports(port, self._ports[name])

    def _primary(self) -> DockerContainer:
        container = parts.new_container(postgres_image(self._blueprint), "postgres", self._network)
        settings = self._blueprint.settings or {}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return (
            self._publish(container, "postgres", _POSTGRES_PORT)
            .with_envs(POSTGRES_PASSWORD=self._password, PGDATA=_PGDATA)
            .with_command(["postgres", *words])
        )

    def _safekeeper(self, number: int, name: str) -> DockerContainer:
        container = self._program(
            name,
            _SAFEKEEPER_HTTP_PORT,
            *("-m", "walproxy.lab.testing.faulty_disk", *(("--volatile",) if self._blueprint.volatile_disks else ())),
            *(str(_CONTROL_FILE), "run", "--id", str(number), "--data-dir", _DATA, "--listen", "0.0.0.0:5454"),
            *("--http", f"0.0.0.0:{_SAFEKEEPER_HTTP_PORT}", "--pg-listen", f"0.0.0.0:{_READERS_PORT}"),
            *("-c", "pg_allow=0.0.0.0/0", *(("--archive", _ARCHIVE) if self._archive else ())),
        )
        if self._archive:
            container.with_volume_mapping(self._archive, _ARCHIVE, "rw")
        return container.with_env("SAFEKEEPER_SECRET", self._password)

    def _proxy(self, name: str) -> DockerContainer:
        links = range(1, self._blueprint.safekeepers + 1)
        return self._program(
            name,
            _PROXY_HTTP_PORT,
            *("-m", "walproxy", "run", "--primary", "host=postgres user=postgres dbname=postgres"),
            *("--safekeepers", ",".join(f"{i}=relay:{_CONTROL_PORT + i}" for i in links)),
            *("--http", f"0.0.0.0:{_PROXY_HTTP_PORT}"),
        ).with_envs(PGPASSWORD=self._password, WALPROXY_SECRET=self._password)

    def _standby(self, name: str) -> DockerContainer:
        feed = psycopg.conninfo.make_conninfo(
            host=",".join(self._blueprint.safekeeper_names),
            port=str(_READERS_PORT),
            user="postgres",
            application_name=name,
            connect_timeout="5",
        )
        # As the primary's: a standby must not have fewer connections than its primary, for instance.
        settings = self._blueprint.settings or {}
        own = {"primary_conninfo": feed, "wal_retrieve_retry_interval": "200ms", "cluster_name": name}
        options = {**settings, **own}
        words = [word for option, value in options.items() for word in ("-c", f"{option}={value}")]
        container = parts.new_container(
            postgres_image(self._blueprint),
            name,
            self._network,
            user="postgres",
            entrypoint=["bash", "-c", _STANDBY, "standby"],
        )
        return self._publish(container, name, _POSTGRES_PORT).with_env("PGPASSWORD", self._password).with_command(words)

    def _set_gate(self) -> None:
        """Let commits wait for the quorum; in postgresql.conf, because a hindrance ends with ALTER SYSTEM RESET."""
        line = "synchronous_standby_names = 'walproxy'"
        self._run_in("postgres", f'echo "{line}" >> {_PGDATA}/postgresql.conf')
        self._execute("SELECT pg_reload_conf()")
        self._wait_until(lambda: bool(self._execute(_GATED)), "PostgreSQL counts walproxy as synchronous", "postgres")

    def _start(self, name: str, container: DockerContainer) -> None:
        self._containers[name] = self._closing.enter_context(parts.started(container))

    def _container(self, member: str) -> Container:
        container = self._containers[member].get_wrapped_container()
        container.reload()
        return container

    def _state(self, member: str) -> str:
        return str(self._container(member).status) if member in self._containers else "not made"

    def _find_relay(self) -> None:
        """Wait until the relay answers; find the address at which the engine publishes ports."""
        hosts = dict.fromkeys([parts.LOOPBACK, self._containers["relay"].get_container_host_ip()])

        def answers() -> bool:
            for host in hosts:
                control = RelayControl(host, self._ports["relay"])
                if control.answers():
                    self._host, self._relay = host, control
                    return True
            return False

        self._wait_until(answers, "the relay answers", "relay")

    def _run_in(self, member: str, script: str) -> None:
        result = self._container(member).exec_run(["bash", "-c", script])
        if result.exit_code != 0:
            raise ClusterFailed(f"{script} failed in {member}: {result.output.decode(errors='replace').strip()}")

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo(), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def _wait_until(self, condition: Callable[[], bool], what: str, member: str) -> None:
        deadline = time.monotonic() + _STARTUP_S
        while not condition():
            if time.monotonic() > deadline or not self.runs(member):
                log = " | ".join(self.log(member, 5).splitlines())
                raise ClusterFailed(
                    f"condition not met within {_STARTUP_S:g} s: {what}; the log of {member} ends with {log}"
                )
            time.sleep(_POLL_S)


def walproxy_image() -> str:
    """Return the name of the project's image."""
    return os.environ.get("WALPROXY_IMAGE", _WALPROXY_IMAGE)


def postgres_image(blueprint: Blueprint) -> str:
    """Return the name of PostgreSQL's image."""
    wanted = blueprint.postgres
    if wanted is None:
        return os.environ.get("POSTGRES_IMAGE", _POSTGRES_IMAGE)
    is_version = wanted[:1].isdigit() and ":" not in wanted and "/" not in wanted
    return f"postgres:{wanted}" if is_version else wanted


def require_engine(blueprint: Blueprint, *, may_pull: bool) -> None:
    """Refuse a blueprint that cannot be built in containers here.

    Args:
        may_pull: PostgreSQL's image may come from a registry.

    Raises:
        ConfigurationError: there is no container engine, an image is missing, or programs of this machine are to run.
    """
    if blueprint.safekeeper_program or blueprint.proxy_program:
        raise ConfigurationError("programs of this machine do not run in containers: take engine='processes'")
    if not parts.engine_answers():
        raise ConfigurationError("no container engine answers: start one, or take engine='processes'")
    parts.require_image(walproxy_image(), "docker build --tag walproxy . in a clone of walproxy, or set WALPROXY_IMAGE")
    if not may_pull:
        parts.require_image(postgres_image(blueprint), "pull it, or set POSTGRES_IMAGE")
