"""Who may connect, by address: lists of networks, and which addresses are this machine's own."""

import ipaddress
from dataclasses import dataclass
from functools import lru_cache

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Networks:
    """A list of networks; immutable, two with the same networks are equal."""

    networks: tuple[_Network, ...]

    @classmethod
    def parse(cls, written: str) -> "Networks":
        """Return the networks of a text like `10.0.0.0/8, 192.0.2.7, ::1/128`.

        Raises:
            ValueError: one of them is none, or there are none.
        """
        found = []
        for part in (part.strip() for part in written.split(",")):
            try:
                found.append(ipaddress.ip_network(part))
            except ValueError:
                raise ValueError(f"{part!r} is not a network: {_advice(part)}") from None
        return cls(tuple(found))

    def admits(self, host: str) -> bool:
        """Return whether the numeric address `host` lies in one of the networks; what is no address does not."""
        address = _parse_address(host)
        return address is not None and any(address in network for network in self.networks)

    def __str__(self) -> str:
        return ", ".join(map(str, self.networks))


def is_loopback(host: str) -> bool:
    """Return whether `host`, as one writes it to listen, can be reached from this machine only."""
    address = _parse_address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def loopback_instead_of(host: str) -> str:
    """Return the loopback address of the same family as `host`; IPv4's for a name."""
    return "::1" if ":" in host else "127.0.0.1"


@lru_cache(maxsize=256)
def _parse_address(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    # What listens on [::] sees IPv4 peers as ::ffff:192.0.2.7, and 192.0.2.0/24 includes them nevertheless.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _advice(written: str) -> str:
    try:
        return f"write {ipaddress.ip_network(written, strict=False)} for the whole network"
    except ValueError:
        return "write ADDRESS/BITS, for example 10.0.0.0/8, and several with commas between them"
