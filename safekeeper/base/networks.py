"""Lists of networks from which clients are accepted, and the test for loopback addresses."""

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
            ValueError: a part is not a network, or the text is empty.
        """
        found = []
        for part in (part.strip() for part in written.split(",")):
            try:
                found.append(ipaddress.ip_network(part))
            except ValueError:
                raise ValueError(f"{part!r} is not a network: {_advice(part)}") from None
        return cls(tuple(found))

    def admits(self, host: str) -> bool:
        """Return whether the numeric address `host` is in one of the networks; False for any other text."""
        address = _parse_address(host)
        return address is not None and any(address in network for network in self.networks)

    def __str__(self) -> str:
        return ", ".join(map(str, self.networks))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to `host`, given as an address to listen on."""
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
    # A listener on [::] receives IPv4 peers as ::ffff:192.0.2.7, and 192.0.2.0/24 must include them.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _advice(written: str) -> str:
    try:
        return f"write {ipaddress.ip_network(written, strict=False)} for the whole network"
    except ValueError:
        return "write ADDRESS/BITS, for example 10.0.0.0/8, and several with commas between them"
