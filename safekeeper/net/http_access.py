"""The requests that an HTTP listener answers: the host name that they are for, and the password.

A browser sends a request to any address to which a name resolves, and its owner may let a name resolve to loopback (DNS
rebinding): a page of that name may then read the answers, because for the browser they are of the page's own origin. So
a request must be for an IP address, `localhost`, the listener's own name, or a configured one. A request of HTTP/1.0
without Host is not a browser's: load balancers check servers with it.

The password is that of HTTP's Basic authentication (RFC 7617), with any user name. Load balancers and service managers
have none, so without it the probes are answered by their status code alone.

Pure: no I/O, no clock.
"""

import base64
import hmac
import ipaddress
import re
from collections.abc import Collection, Iterable
from enum import Enum
from typing import NamedTuple, Protocol

_NAMED_MAX = 100
_PORT = re.compile(r":[0-9]{0,5}\Z")


class Password(Protocol):
    """A password that may change."""

    @property
    def value(self) -> bytes:
        """Its bytes now."""

    def reload(self) -> bool:
        """Read it again; return whether it has changed. Raises ConfigurationError and keeps the old one."""


class AccessVerdict(Enum):
    """The answer to a request; each member's comment gives the reason."""

    FULL = "full"  # it is for this host, and has the password if one is required
    STATUS_ONLY = "status_only"  # it has no password, and is for a page whose status code is public
    MISDIRECTED = "misdirected"  # it is for another host
    NO_PASSWORD = "no_password"  # it has none
    WRONG_PASSWORD = "wrong_password"


class HttpAccess(NamedTuple):
    """The protection of an HTTP listener, besides its networks and TLS.

    Attributes:
        hosts: the host names for which requests are accepted, besides IP addresses and localhost; in lower case.
        password: None: none is required.
        probes: the paths of pages whose status code is public.
    """

    hosts: frozenset[str] = frozenset()
    password: Password | None = None
    probes: Collection[str] = ()

    def judge(self, own_name: str, authority: str, headers: Iterable[tuple[bytes, bytes]], path: str) -> AccessVerdict:
        """Decide how a request is answered.

        Args:
            own_name: the host on which the listener is configured to listen.
            authority: the host and port in the request's target, empty if that is a path.
            headers: their names in lower case.
            path: of the page.
        """
        found = dict(headers)
        if b"host" in found or authority:
            name = host_name(authority or found[b"host"].decode("latin-1"))
            if not (is_address(name) or name == "localhost" or name == own_name.lower() or name in self.hosts):
                return AccessVerdict.MISDIRECTED
        if self.password is None:
            return AccessVerdict.FULL
        given = _password(found.get(b"authorization", b""))
        if given is None:
            return AccessVerdict.STATUS_ONLY if path in self.probes else AccessVerdict.NO_PASSWORD
        return AccessVerdict.FULL if hmac.compare_digest(given, self.password.value) else AccessVerdict.WRONG_PASSWORD


OPEN_TO_ALL = HttpAccess()
"""No password, and no name but those that each listener has."""


def host_name(authority: str) -> str:
    """Return the host of `HOST` or `HOST:PORT`, in lower case; that of an IPv6 address without brackets."""
    name = _PORT.sub("", authority.strip().lower())
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1]
    # A name with a colon is not valid: without brackets an IPv6 address is none either.
    return "" if ":" in name else name.removesuffix(".")


def named(text: str) -> str:
    """Return the host that a client has named, for the log."""
    return repr(text[:_NAMED_MAX])


def is_address(name: str) -> bool:
    """Return whether `name` is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _password(authorization: bytes) -> bytes | None:
    """Return the password of an Authorization header, None without one; an empty one if the header is not valid."""
    if not authorization:
        return None
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return b""
    try:
        _, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except ValueError:
        return b""
    return password
