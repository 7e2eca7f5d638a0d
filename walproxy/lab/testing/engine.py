"""The engines of clusters for tests: containers, or processes of this machine. One interface for both.

Members go by names: "postgres", "safekeeper1", ..., "walproxy", "walproxy2", ..., "standby1", ... An engine carries out
single calls; `WalproxyCluster` keeps a record of each member's faults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg

from safekeeper.base.errors import WalproxyError
from walproxy.lab.testing.faulty_disk import DiskFaults
from walproxy.lab.testing.relay import Direction

_PING_S = 2


class ClusterFailed(WalproxyError):
    """A cluster for tests failed or did not respond; the message names the member."""


@dataclass(frozen=True)
class Blueprint:
    """The parameters of a cluster; the fields are the arguments of `WalproxyCluster`."""

    postgres: str | None = None
    safekeepers: int = 3
    archive: bool = True
    proxies: int = 1
    standbys: int = 0
    settings: Mapping[str, str] | None = None
    volatile_disks: bool = False
    safekeeper_program: Sequence[str] | None = None
    proxy_program: Sequence[str] | None = None

    @property
    def safekeeper_names(self) -> tuple[str, ...]:
        """The members that are safekeepers, in the order of their ids."""
        return tuple(f"safekeeper{i}" for i in range(1, self.safekeepers + 1))

    @property
    def proxy_names(self) -> tuple[str, ...]:
        """The members that are proxies."""
        return ("walproxy", *(f"walproxy{number}" for number in range(2, self.proxies + 1)))

    @property
    def standby_names(self) -> tuple[str, ...]:
        """The members that are standbys."""
        return tuple(f"standby{number}" for number in range(1, self.standbys + 1))

    @property
    def members(self) -> tuple[str, ...]:
        """All members."""
        return ("postgres", *self.safekeeper_names, *self.proxy_names, *self.standby_names)


class Engine(Protocol):
    """A cluster's members, not started yet."""

    name: str
    """"containers" or "processes"."""
    archive_url: str | None

    def start_all(self) -> None:
        """Start every member; return when commits wait for the quorum and succeed."""

    def close(self) -> None:
        """End everything and remove what was made."""

    def conninfo(self, member: str = "postgres") -> str:
        """Return libpq's connection string of the superuser of a PostgreSQL: the primary or a standby."""

    def primary_answers(self) -> bool:
        """Return whether PostgreSQL takes connections."""

    def pause(self, member: str) -> None:
        """Let it stand still, with SIGSTOP or as if."""

    def resume(self, member: str) -> None:
        """Let it go on; harmless if it does."""

    def kill(self, member: str) -> None:
        """End it with SIGKILL and return when it has ended; harmless if it had."""

    def stop(self, member: str) -> None:
        """End it in order (PostgreSQL: a fast shutdown) and return when it has ended; harmless if it had."""

    def start(self, member: str) -> None:
        """Start it again at what it has left; harmless if it runs. Waits for no more than the process."""

    def runs(self, member: str) -> bool:
        """Return whether its process lives, be it paused."""

    def hold(self, safekeeper: str, direction: Direction) -> None:
        """Hold what passes between the proxies and a safekeeper."""

    def set_disk(self, safekeeper: str, faults: DiskFaults) -> None:
        """Give a safekeeper's disk these faults and no others."""

    def status_of(self, member: str) -> dict[str, Any] | None:
        """Return the /status of a daemon, None if it does not answer."""

    def http_port(self, member: str) -> int | None:
        """Return the port of a daemon's HTTP listener on this machine's loopback address, None if it is not there."""

    def log(self, member: str, lines: int) -> str:
        """Return the last lines of what it has logged."""

    def process_ids(self) -> dict[str, int]:
        """Return the process ids of the members that live."""

    def data_folder(self, member: str) -> Path:
        """Return the folder of a member's data, or a copy of it."""


def takes_connections(conninfo: str) -> bool:
    """Return whether a PostgreSQL server takes connections; within seconds, also if it hangs."""
    patient = psycopg.conninfo.make_conninfo(conninfo, connect_timeout=str(_PING_S))
    return psycopg.pq.PGconn.ping(patient.encode()) == psycopg.pq.Ping.OK


def major_of(postgres: str | None) -> int | None:
    """Return the major version at the end of "17", "postgres:17" or "postgres:17.2-bookworm"; None if there is none."""
    digits = (postgres or "").rpartition(":")[2].partition("-")[0].partition(".")[0]
    return int(digits) if digits.isdigit() else None
