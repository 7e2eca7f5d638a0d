"""What manages the PostgreSQL of each host: `walproxy agent`, or another program to compare it with.

A manager is one command on each host, which starts PostgreSQL and all that belongs to it, and serves Patroni's REST
(GET /primary). What else it needs, a store for instance, it names as supporters, which run beside the safekeepers.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from walproxy.lab.failover.host import Place

AGENT = ("-m", "walproxy", "agent")


@dataclass(frozen=True)
class Surroundings:
    """What a manager is told of the rest.

    Attributes:
        bin_directory: of PostgreSQL's programs.
        safekeepers: the value of --safekeepers, and of its variable.
        standby_conninfo: the safekeepers' replication listeners, for primary_conninfo.
        allowed: the network of all members.
        safekeeper_addresses: the IP addresses of the safekeepers' places in the network, by name.
        places: of all hosts, by name.
        fence_command: succeeds, unless it is to fail.
    """

    bin_directory: Path
    safekeepers: str
    standby_conninfo: str
    allowed: str = ""
    safekeeper_addresses: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    fence_command: str = "true"


@dataclass(frozen=True)
class Supporter:
    """A process that managers need.

    Attributes:
        name: e.g. "etcd1".
        member: the place where it runs, one of `Surroundings.safekeeper_addresses`.
        command: its words.
    """

    name: str
    member: str
    command: tuple[str, ...]


class Manager(Protocol):
    """A way to manage the servers.

    Attributes:
        name: for the table.
        has_discarded_reports: it writes discarded reports as the agent does, and rejoins as the agent does.
        history: the words of the command that lists its changes of the primary as JSON; none without such a command.
        makes_servers: it makes the data folders; otherwise they are made for it.
    """

    name: str
    has_discarded_reports: bool
    makes_servers: bool
    history: tuple[str, ...]

    def supporters(self, around: Surroundings, folder: Path, port: Callable[[int], int]) -> Sequence[Supporter]:
        """Return what runs beside the hosts. Called once, before `command`.

        Args:
            folder: for their data.
            port: returns a port for a listener, see `Network.port`.
        """

    def command(self, place: Place, around: Surroundings) -> Sequence[str]:
        """Return the command of a host, the interpreter included. May write files into the host's folder."""

    def switchover(self, to: Place, around: Surroundings) -> Sequence[str]:
        """Return the command that makes the server of a host the primary; or another one, if it cannot be chosen."""


class AgentManager:
    """`walproxy agent`.

    Args:
        dead_after_s: the value of --dead-after.
        program: the words after the interpreter, before the options.
        options: further ones.
    """

    name = "walproxy agent"
    has_discarded_reports = True
    makes_servers = False
    history: tuple[str, ...] = (sys.executable, "-m", "walproxy", "cluster", "history", "--json")

    def __init__(self, dead_after_s: float = 5.0, program: Sequence[str] = AGENT, options: Sequence[str] = ()) -> None:
        self.dead_after_s = dead_after_s
        self._options = tuple(options)
        self._program = tuple(program)

    def supporters(self, around: Surroundings, folder: Path, port: Callable[[int], int]) -> Sequence[Supporter]:
        return ()

    def command(self, place: Place, around: Surroundings) -> Sequence[str]:
        return (
            *(sys.executable, *self._program),
            *("--name", place.name),
            *("--pgdata", str(place.data_directory)),
            *("-c", f"bin_dir={around.bin_directory}"),
            *("-c", f"conninfo={place.local_conninfo}"),
            *("-c", f"address={place.address}:{place.pg_port}"),
            *("-c", "peer_conninfo=user=postgres dbname=postgres"),
            *("--safekeepers", around.safekeepers),
            *("-c", f"standby_conninfo={around.standby_conninfo}"),
            *("--http-listen", f"{place.address}:{place.http_port}"),
            *("-c", f"proxy_http={place.address}:{place.proxy_http_port}"),
            *("-c", f"discarded_dir={place.discarded_directory}"),
            *("-c", f"dead_after={self.dead_after_s:g}"),
            *("-c", f"fence_command={around.fence_command}"),
            *self._options,
        )

    def switchover(self, to: Place, around: Surroundings) -> Sequence[str]:
        return (sys.executable, "-m", "walproxy", "switchover", "--to", to.name, "--yes")
