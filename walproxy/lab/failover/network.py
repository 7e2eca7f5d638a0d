"""The network of the hosts and safekeepers: a namespace and an address for each, or ports of the loopback interface.

In namespaces each member has one cable (a pair of virtual interfaces) to a bridge in the namespace of the run, where
the clients are. A partition drops packets at the member that is cut off, silently, as a broken network does; an
unplugged cable also takes away its carrier.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from walproxy.lab.failover.isolation import NETWORKS, run
from walproxy.postgres.local_server import free_port

Direction = Literal["both", "to", "from"]

_BRIDGE = "br0"
_SUBNET = "10.213.0"
_CLIENTS = f"{_SUBNET}.1"
_FIRST = 11


class Network(Protocol):
    """Where members are reached, and whether their traffic can be dropped."""

    has_partitions: bool
    clients_address: str
    """Of the processes outside the members: the load."""
    allowed: str
    """The network of all members, for access lists."""

    def add(self, name: str) -> str:
        """Make a place for a member; return its IP address."""

    def port(self, usual: int) -> int:
        """Return a port for a listener of a member: the usual one if it can be the same for all members."""

    def words_in(self, name: str) -> tuple[str, ...]:
        """Return the words before a command that run it at a member's place."""

    def cut(self, name: str, addresses: Iterable[str], direction: Direction = "both") -> None:
        """Drop the packets between a member and these addresses, or only those `to` or `from` them."""

    def unplug(self, name: str) -> None:
        """Take a member's carrier away."""

    def heal(self, name: str) -> None:
        """End `cut` and `unplug`."""


class NamespaceNetwork:
    """A namespace for each member. The process is in namespaces of its own already (isolation.py)."""

    has_partitions = True
    clients_address = _CLIENTS
    allowed = f"{_SUBNET}.0/24"

    def __init__(self) -> None:
        self._cables: dict[str, str] = {}
        run("ip", "link", "add", _BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{_CLIENTS}/24", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")

    def add(self, name: str) -> str:
        number = len(self._cables)
        cable = self._cables[name] = f"cable{number}"
        address = f"{_SUBNET}.{_FIRST + number}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", cable, "master", _BRIDGE, "up")
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        return address

    def port(self, usual: int) -> int:
        return usual

    def words_in(self, name: str) -> tuple[str, ...]:
        return ("nsenter", f"--net={NETWORKS / name}", "--")

    def cut(self, name: str, addresses: Iterable[str], direction: Direction = "both") -> None:
        self._filter(name, rules(list(addresses), direction))

    def unplug(self, name: str) -> None:
        run("ip", "link", "set", self._cables[name], "down")

    def heal(self, name: str) -> None:
        run("ip", "link", "set", self._cables[name], "up")
        self._filter(name, [])

    def _filter(self, name: str, lines: Sequence[str]) -> None:
        table = "".join(f"{line}\n" for line in ("*filter", *lines, "COMMIT"))
        run(*self.words_in(name), "iptables-restore", content=table)


class LoopbackNetwork:
    """All members at one address, each listener at a port of its own; without partitions."""

    has_partitions = False
    clients_address = "127.0.0.1"
    allowed = "127.0.0.0/8"

    def add(self, name: str) -> str:
        return "127.0.0.1"

    def port(self, usual: int) -> int:
        return free_port()

    def words_in(self, name: str) -> tuple[str, ...]:
        return ()

    def cut(self, name: str, addresses: Iterable[str], direction: Direction = "both") -> None:
        raise NotImplementedError("the loopback interface has no partitions")

    def unplug(self, name: str) -> None:
        raise NotImplementedError("the loopback interface has no cables")

    def heal(self, name: str) -> None:
        pass


def rules(addresses: Sequence[str], direction: Direction) -> list[str]:
    """Return the rules of the firewall that drop packets between its host and these addresses."""
    received = [f"-A INPUT -s {address} -j DROP" for address in addresses]
    sent = [f"-A OUTPUT -d {address} -j DROP" for address in addresses]
    return {"both": received + sent, "to": sent, "from": received}[direction]
