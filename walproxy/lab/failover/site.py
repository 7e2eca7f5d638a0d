"""The whole: hosts with a PostgreSQL each, three safekeepers, and whether all is well. Also for the demo and the tests.

The first host's server is made with initdb, the others are base backups of it once its commits go through the quorum,
unless the manager does this itself. Everything else is the managers' work.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import psycopg

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.lab.cluster.local_cluster import SAFEKEEPER, LocalProcess
from walproxy.lab.cluster.reader_passfile import reader_passfile
from walproxy.lab.failover.host import Host, Place
from walproxy.lab.failover.manager import Manager, Supporter, Surroundings
from walproxy.lab.failover.network import Network
from walproxy.lab.failover.triggers import Triggers
from walproxy.postgres.binaries import ServerBinaries, reachable_binaries, server_user
from walproxy.postgres.local_server import LocalPostgres
from walproxy.postgres.patience import TimeLimit, slowdown

HOST_NAMES = ("pg1", "pg2", "pg3")
SAFEKEEPER_IDS = (1, 2, 3)
SEGMENT_MIB = 1

_PG_PORT, _HTTP_PORT, _PROXY_HTTP_PORT = 5432, 8008, 7667
_PROPOSER_PORT, _SAFEKEEPER_PG_PORT, _SAFEKEEPER_HTTP_PORT = 5454, 5455, 7676
_SETTINGS = {
    "synchronous_standby_names": "walproxy",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "wal_log_hints": "on",
    "track_commit_timestamp": "on",
    "wal_keep_size": "256MB",
    # Segments that the keeper copies must not be overwritten meanwhile.
    "wal_recycle": "off",
    "wal_retrieve_retry_interval": "200ms",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    "dynamic_shared_memory_type": "mmap",
}
_STARTS_WITHIN_S = 90.0
_COMMAND_WITHIN_S = 60.0
_POLL_S = 0.1
_LOG_LINES = 6
_LOOK = """
SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off',
  CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text,
  CASE WHEN pg_is_in_recovery() THEN (SELECT received_tli FROM pg_stat_wal_receiver WHERE status = 'streaming')
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int END
"""


class NotWell(WalproxyError):
    """Not all is well in time. One line for each host."""


@dataclass(frozen=True)
class ServerSight:
    """A server as it replies.

    Attributes:
        is_primary: it is not in recovery, and accepts writes.
        lsn: of a primary, the end of its WAL; of a standby, how far it has replayed.
        tli: the timeline that it writes or receives, 0 for a standby that does not stream.
    """

    is_primary: bool
    lsn: Lsn
    tli: int


@dataclass(frozen=True)
class Health:
    """All is well.

    Attributes:
        leader: the host of the primary.
        tli: its timeline; the standbys receive it, too.
        lsn: the end of its WAL when it was looked at, which the standbys have replayed.
    """

    leader: Host
    tli: int
    lsn: Lsn


class Site:
    """The hosts and safekeepers. A context manager: at its end nothing runs; the files stay.

    Attributes:
        process_type: what makes each daemon that has no place of its own in the network.
        hosts: by name.
        safekeepers: by id.
        around: what the managers are told.
        triggers: faults inside a promotion.

    Args:
        folder: for everything; any user must be able to enter it.
        names: of the hosts.
        safekeeper_folder: for the data of the safekeepers.
        volatile_disks: a kill of a safekeeper is a power cut: what it has not synced is lost.
    """

    process_type: ClassVar[type[LocalProcess]] = LocalProcess

    def __init__(
        self,
        folder: Path,
        binaries: ServerBinaries,
        network: Network,
        manager: Manager,
        *,
        names: Sequence[str] = HOST_NAMES,
        safekeeper_folder: Path | None = None,
        volatile_disks: bool = True,
    ) -> None:
        self.folder = folder
        self.network = network
        self.manager = manager
        self.binaries = reachable_binaries(binaries, server_user())
        self.segment_size = SEGMENT_MIB << 20
        self.triggers = Triggers(folder / "triggers")
        self._secret = secrets.token_hex(16)
        self._run_id = secrets.token_hex(8)
        self._volatile_disks = volatile_disks
        self.safekeepers: dict[int, LocalProcess] = {}
        self.safekeeper_addresses: dict[int, str] = {}
        proposers, readers = [], []
        for each in SAFEKEEPER_IDS:
            proposer_port, pg_port = self._add_safekeeper(each, safekeeper_folder or folder)
            proposers.append(f"{each}={self.safekeeper_addresses[each]}:{proposer_port}")
            readers.append((self.safekeeper_addresses[each], pg_port))
        places = {name: self._make_place(name) for name in names}
        self.around = Surroundings(
            bin_directory=self.binaries.bin_directory,
            safekeepers=",".join(proposers),
            standby_conninfo=psycopg.conninfo.make_conninfo(
                "",
                host=",".join(address for address, _ in readers),
                port=",".join(str(port) for _, port in readers),
                user="postgres",
                passfile=str(reader_passfile(folder)),
                connect_timeout="2",
            ),
            allowed=network.allowed,
            safekeeper_addresses={f"sk{number}": address for number, address in self.safekeeper_addresses.items()},
            places=places,
            fence_command=self.triggers.fence_command,
        )
        self._supporters = [
            self._make_supporter(each) for each in manager.supporters(self.around, folder, network.port)
        ]
        self.hosts = {name: self._make_host(place) for name, place in places.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the project's commands: the secret."""
        return {"WALPROXY_SECRET": self._secret, "SAFEKEEPER_SECRET": self._secret}

    @property
    def operator_environment(self) -> dict[str, str]:
        """The variables of an operator's commands: the secret, and the safekeepers."""
        return {**self.environment, "WALPROXY_SAFEKEEPERS": self.around.safekeepers}

    def close(self) -> None:
        """End every process of it."""
        for host in self.hosts.values():
            host.kill()
        for process in [*self.safekeepers.values(), *self._supporters]:
            process.kill9()

    # Making it.

    def start(self, init: Callable[[LocalPostgres], object] | None = None) -> Health:
        """Make the servers, start everything, and return once all is well.

        Args:
            init: makes the first server's data folder, in place of initdb.

        Raises:
            WalproxyError: it is not in time.
        """
        first, *others = self.hosts.values()
        server = None if self.manager.makes_servers else self._make_server(first.place, init)
        for process in [*self.safekeepers.values(), *self._supporters]:
            process.start()
        first.start()
        self.wait_for_leader(first.name, timeout_s=_STARTS_WITHIN_S)
        for host in others:
            if server is not None:
                server.back_up(host.place.data_directory)
                self._configure(host.place)
                signal = host.place.data_directory / "standby.signal"
                signal.touch()
                _give(signal)
            host.start()
        return self.wait_until_well(_STARTS_WITHIN_S)

    def _make_server(self, place: Place, init: Callable[[LocalPostgres], object] | None) -> LocalPostgres:
        """Make the data folder of the first host; return what can copy its server once that runs."""
        server = LocalPostgres(self.binaries, place.data_directory)
        if init is None:
            server.init(wal_segment_mib=SEGMENT_MIB)
        else:
            init(server)
        with (server.data_directory / "pg_hba.conf").open("a") as hba:
            hba.write(f"host all all {self.network.allowed} trust\nhost replication all {self.network.allowed} trust\n")
        self._configure(place)
        server.client_options = {"host": place.address, "port": str(place.pg_port)}
        return server

    def _make_supporter(self, supporter: Supporter) -> LocalProcess:
        address = self.around.safekeeper_addresses[supporter.member]
        log_path = self.folder / f"{supporter.name}.log"
        return self._make_process(supporter.name, supporter.command, 0, log_path, supporter.member, address)

    def _make_process(
        self, name: str, command: Sequence[str], http_port: int, log_path: Path, member: str, address: str
    ) -> LocalProcess:
        """Return a process at a member's place, not started."""
        program, *arguments = command
        words_in = self.network.words_in(member)
        if not words_in and program == sys.executable:
            return self.process_type(name, arguments, http_port, log_path)
        return LocalProcess(name, arguments, http_port, log_path, program=(*words_in, program), address=address)

    def _add_safekeeper(self, number: int, folder: Path) -> tuple[int, int]:
        """Make a safekeeper; return the ports of its proposers' and replication listeners."""
        name, network = f"sk{number}", self.network
        address = self.safekeeper_addresses[number] = network.add(name)
        proposer_port, pg_port = network.port(_PROPOSER_PORT), network.port(_SAFEKEEPER_PG_PORT)
        http_port = network.port(_SAFEKEEPER_HTTP_PORT)
        volatile = ("-m", "walproxy.lab.testing.faulty_disk", "--volatile", str(self.folder / f"{name}.faults"), "run")
        command = [
            *(sys.executable, *(volatile if self._volatile_disks else SAFEKEEPER)),
            *("--id", str(number), "--data-dir", str(folder / name)),
            *("--proposer-listen", f"{address}:{proposer_port}", "--http-listen", f"{address}:{http_port}"),
            *("--pg-listen", f"{address}:{pg_port}", "-c", f"pg_allow={network.allowed}"),
        ]
        process = self._make_process(name, command, http_port, self.folder / f"{name}.log", name, address)
        process.environment.update(self.environment)
        self.safekeepers[number] = process
        return proposer_port, pg_port

    def _make_place(self, name: str) -> Place:
        network = self.network
        folder = self.folder / name
        folder.mkdir(mode=0o755)
        place = Place(
            name,
            network.add(name),
            folder,
            network.port(_PG_PORT),
            network.port(_HTTP_PORT),
            network.port(_PROXY_HTTP_PORT),
        )
        for directory in (place.socket_directory, place.discarded_directory):
            directory.mkdir(mode=0o755)
            _give(directory)
        _give(folder)  # A rejoin makes folders beside the data folder.
        return place

    def _make_host(self, place: Place) -> Host:
        command, log_path = self.manager.command(place, self.around), place.folder / "manager.log"
        name = f"{self.manager.name} {place.name}"
        process = self._make_process(name, command, place.http_port, log_path, place.name, place.address)
        process.environment.update(self.environment)
        return Host(place, process, self._run_id)

    def _configure(self, place: Place) -> None:
        settings = {
            **_SETTINGS,
            "port": str(place.pg_port),
            "listen_addresses": place.address,
            "unix_socket_directories": str(place.socket_directory),
            "cluster_name": place.name,
            "recovery_end_command": self.triggers.recovery_end_command,
        }
        path = place.data_directory / "local.conf"
        path.write_text("".join(f"{name} = '{value}'\n" for name, value in settings.items()))
        _give(path)

    # Doing to it what an operator does.

    def switch_over(self, to: Host) -> str:
        """Make a host's server the primary by the manager's command; return what is wrong, empty if nothing is."""
        timeout_s = _COMMAND_WITHIN_S * slowdown()
        try:
            answer = self._run(self.manager.switchover(to.place, self.around), timeout_s)
        except subprocess.TimeoutExpired:
            return f"the switchover to {to.name} has not ended within {timeout_s:.0f} s"
        if answer.returncode != 0:
            reason = " ".join((answer.stderr or answer.stdout).split())[-500:]
            return f"the switchover to {to.name} failed with exit code {answer.returncode}: {reason}"
        return ""

    def recorded_s(self) -> float | None:
        """Return the time without commits of the last change of the primary, as recorded; None if nothing is."""
        if not self.manager.history:
            return None
        answer = self._run(self.manager.history, _COMMAND_WITHIN_S * slowdown())
        if answer.returncode != 0:
            raise WalproxyError(f"the history cannot be read: {answer.stderr.strip()}")
        changes = json.loads(answer.stdout)
        return float(changes[-1]["seconds"]) if changes else None

    def _run(self, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={**os.environ, **self.operator_environment},
        )

    # Looking at it.

    def look(self) -> dict[str, ServerSight | str]:
        """Return each server as it replies, or why it does not."""
        sights: dict[str, ServerSight | str] = {}
        for name, host in self.hosts.items():
            try:
                [(is_primary, lsn, tli)] = host.execute(_LOOK)
            except psycopg.Error as error:
                sights[name] = " ".join(str(error).split())
            else:
                sights[name] = ServerSight(is_primary, parse_lsn(lsn) if lsn else 0, tli or 0)
        return sights

    def wait_for_leader(self, *names: str, timeout_s: float = 30.0) -> Host:
        """Wait until one of these hosts, by default any, leads: commits succeed on it.

        Raises:
            NotWell: none does in time.
        """
        hosts = [self.hosts[name] for name in names or self.hosts]
        found: list[Host] = []

        def leads() -> bool:
            found[:] = [host for host in hosts if host.is_leader()]
            return bool(found)

        def what() -> str:
            return "; ".join(["a host leads", *(f"{each.name}: {each.manager.log_tail(_LOG_LINES)}" for each in hosts)])

        _wait_until(leads, what, timeout_s)
        return found[0]

    def wait_until_well(self, timeout_s: float) -> Health:
        """Wait until one server is the primary, and all others stream from it and have caught up.

        Raises:
            NotWell: not in time.
        """
        found: Health | None = None
        sights: dict[str, ServerSight | str] = {}

        def is_well() -> bool:
            nonlocal found, sights
            sights = self.look()
            found = self._health(sights, found)
            return found is not None and all(
                isinstance(sight, ServerSight) and sight.lsn >= found.lsn for sight in sights.values()
            )

        _wait_until(is_well, lambda: f"all is well: {self._described(sights)}", timeout_s)
        assert found is not None  # is_well() has set it.
        return found

    def _health(self, sights: dict[str, ServerSight | str], before: Health | None) -> Health | None:
        """Return the state, with the position of `before` if that is still the leader; None if not all is well."""
        leaders = [name for name, sight in sights.items() if isinstance(sight, ServerSight) and sight.is_primary]
        if len(leaders) != 1:
            return None
        leader = self.hosts[leaders[0]]
        sight = sights[leader.name]
        assert isinstance(sight, ServerSight)
        if any(not isinstance(other, ServerSight) or other.tli != sight.tli for other in sights.values()):
            return None
        if not leader.is_leader():
            return None
        if before is not None and (before.leader, before.tli) == (leader, sight.tli):
            return before
        return Health(leader, sight.tli, sight.lsn)

    def _described(self, sights: dict[str, ServerSight | str]) -> str:
        lines = []
        for name, host in self.hosts.items():
            sight = sights.get(name, "not looked at")
            if isinstance(sight, ServerSight):
                role = "primary" if sight.is_primary else "standby or read-only"
                sight = f"{role} on timeline {sight.tli} at {format_lsn(sight.lsn)}"
            leads = ", leads" if host.is_leader() else ""
            lines.append(f"{name} {sight}{leads}; its manager: {host.manager.log_tail(_LOG_LINES)}")
        return "\n  ".join(["", *lines])


def remove(folder: Path) -> None:
    """Remove a folder and all in it; harmless if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _give(path: Path) -> None:
    """Make the servers' user the owner of a file."""
    user = server_user()
    if user is not None:
        os.chown(path, user.uid, user.gid)


def _wait_until(condition: Callable[[], Any], what: Callable[[], str], timeout_s: float) -> None:
    limit = TimeLimit(timeout_s)
    while not condition():
        if limit.is_over:
            raise NotWell(f"not within {timeout_s:g} s: {what()}")
        time.sleep(_POLL_S)
