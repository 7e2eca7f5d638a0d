"""The hosts that a connection string names, and which of them is tried next.

libpq would connect to the first host that accepts it. That does not show which PostgreSQL is the right one: an old
primary accepts connections too, and is refused only when its WAL is compared (S10). So each host gets a connection
string of its own, and `HostRota` decides which one to try:

- in rounds, one host after the other, beginning with the one that worked last; after a round the caller pauses;
- a host that is refused is put aside. It is tried again after a while, and only at the end of a round in which no other
  host was of use. Whether it has changed is then seen by its identity; if it has not, the consensus lets it wait for
  longer each time, since an attempt costs a term (walproxy/proposer/refusals.py).

A name that resolves to several addresses is one host; psycopg tries them. So is a service (service=...), whatever it
contains. There is one primary at most, so load_balance_hosts has nothing to balance: the order is that of the string.

Source: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-MULTIPLE-HOSTS
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from safekeeper.base.errors import (
    EXIT_CONFIGURATION,
    EXIT_PRIMARY_REFUSED,
    ConfigurationError,
    PrimaryRefused,
    WalproxyError,
)
from safekeeper.base.log_once import LogOnce
from walproxy.postgres.conninfo import parse_conninfo

REFUSED_RETRY_S = 10.0
DEFAULT_PORT = "5432"
_LISTS = ("host", "hostaddr", "port")
# What is looked for is a primary anyway; a session that is read-only for another reason is libpq's to find.
_SESSIONS = {"any": "any", "primary": "any", "prefer-standby": "any", "read-write": "read-write"}
_NEVER_A_PRIMARY = ("standby", "read-only")


@dataclass(frozen=True, slots=True)
class PrimaryHost:
    """One host: how logs and /status call it, and libpq's connection string for it alone."""

    name: str
    conninfo: str


class HostState(Enum):
    """The state of a host."""

    UNTRIED = "untried"
    CONNECTED = "connected"  # it has reported its identity, and there is no reason against it yet
    UNREACHABLE = "unreachable"  # or it accepts no connection at the moment
    STANDBY = "standby"  # passed over until it is promoted
    REFUSED = "refused"  # put aside


@dataclass(slots=True)
class HostCandidate:
    """A host among the others.

    Attributes:
        problem: why it is of no use, empty if it is.
        is_distrusted: it was refused, and since then nothing has shown that it fits after all.
        exit_code: that of a process that ends because of its refusal.
        retry_at: before then it is not tried again once it is refused.
        problem_log: of the problems that were logged.
    """

    host: PrimaryHost
    state: HostState = HostState.UNTRIED
    problem: str = "not connected yet"
    is_distrusted: bool = False
    exit_code: int = EXIT_PRIMARY_REFUSED
    retry_at: float = 0.0
    problem_log: LogOnce = field(default_factory=LogOnce)
    _noted: set[str] = field(default_factory=set)

    def is_first(self, key: str) -> bool:
        """Return whether this is the first call with `key`: what it names is logged once for each host."""
        is_first = key not in self._noted
        self._noted.add(key)
        return is_first


class HostRota:
    """Choose the host to try next. Times are arguments, of any clock in seconds that does not go back.

    Attributes:
        candidates: every host, in the order of the connection string.
        current: the one that was tried last.
        refused_retry_s: how long a refused host is left alone.
    """

    def __init__(self, hosts: Sequence[PrimaryHost], refused_retry_s: float = REFUSED_RETRY_S) -> None:
        self.refused_retry_s = refused_retry_s
        self.candidates = [HostCandidate(host) for host in hosts]
        self.current = self.candidates[0]
        self._first = 0
        self._round = deque(self.candidates)

    @property
    def is_single(self) -> bool:
        """Whether there is only one host."""
        return len(self.candidates) == 1

    def next(self, now: float) -> HostCandidate | None:
        """Return the host to try; None at the end of a round, after which the next round begins."""
        if not self._round:
            order = self.candidates[self._first :] + self.candidates[: self._first]
            self._round.extend(each for each in order if each.state is not HostState.REFUSED)
            self._round.extend(each for each in order if each.state is HostState.REFUSED and each.retry_at <= now)
            return None
        self.current = self._round.popleft()
        return self.current

    def connected(self) -> None:
        """Note that the present host has reported its identity."""
        self.current.state, self.current.problem = HostState.CONNECTED, ""

    def works(self) -> bool:
        """Note that the present host works, so that the next round begins with it. Return whether it is a new one."""
        before, self._first = self._first, self.candidates.index(self.current)
        self._round.clear()
        return self._first != before

    def failed(self, state: HostState, problem: str) -> None:
        """Note that the present host cannot be used at the moment."""
        self.current.state, self.current.problem = state, problem

    def refused(self, problem: str, now: float, exit_code: int = EXIT_PRIMARY_REFUSED) -> None:
        """Note that the present host must not be streamed, or cannot be as it is configured."""
        self.failed(HostState.REFUSED, problem)
        self.current.is_distrusted = True
        self.current.exit_code, self.current.retry_at = exit_code, now + self.refused_retry_s

    def problem(self) -> str:
        """Return why there is no primary, empty if one is connected."""
        if self.is_single or self.current.state is HostState.CONNECTED:
            return self.current.problem
        return "; ".join(f"{each.host.name}: {each.problem}" for each in self.candidates)

    def verdict(self) -> WalproxyError | None:
        """Return what ends a run in which every host is refused, None while one of them may still serve."""
        if any(each.state is not HostState.REFUSED for each in self.candidates):
            return None
        if all(each.exit_code == EXIT_CONFIGURATION for each in self.candidates):
            return ConfigurationError(f"no host can be used: {self.problem()}")
        return PrimaryRefused(f"every host is refused: {self.problem()}")


def with_hosts(conninfo: str, places: Sequence[tuple[str, int]]) -> str:
    """Return a connection string with these hosts and ports, unless it names some itself or a service."""
    try:
        given = conninfo_to_dict(conninfo)
    except ProgrammingError:
        return conninfo  # Who uses it refuses it, and shows no password.
    if given.keys() & {"host", "hostaddr", "service"}:
        return conninfo
    hosts, ports = zip(*places, strict=True)
    return make_conninfo(conninfo, host=",".join(hosts), port=",".join(map(str, ports)))


def primary_hosts(conninfo: str, whose: str = "the primary's") -> tuple[PrimaryHost, ...]:
    """Return the hosts of a connection string (key=value or URI), one at least.

    PGHOST, PGHOSTADDR, PGPORT and PGTARGETSESSIONATTRS count where the string is silent. A single host keeps its
    connection string as it is. an error names `whose` it is.

    Raises:
        ConfigurationError: libpq cannot read it, its lists are of different lengths, or it asks for a standby.
    """
    given = parse_conninfo(conninfo, whose)
    # A service may contain what the string does not, and only libpq can read it.
    elsewhere = {} if "service" in given else _defaults()
    hosts, addresses, ports = (_listed(given.get(name, elsewhere.get(name, ""))) for name in _LISTS)
    wanted = given.get("target_session_attrs") or elsewhere.get("target_session_attrs") or "any"
    if wanted not in _SESSIONS:
        asks = (
            "asks for a standby, which cannot be streamed"
            if wanted in _NEVER_A_PRIMARY
            else "is not a value that libpq accepts"
        )
        raise ConfigurationError(f"target_session_attrs={wanted} {asks}: use read-write")
    count = max(len(hosts), len(addresses), 1)
    for name, listed in zip(_LISTS, (hosts, addresses, ports), strict=True):
        if len(listed) not in ((0, 1, count) if name == "port" else (0, count)):
            counts = f"{len(listed)} values of {name} for {count} host{'s' if count > 1 else ''}"
            raise ConfigurationError(f"{whose} connection string is wrong: {counts}")
    found: dict[PrimaryHost, None] = {}  # as an ordered set: a host that is named twice is one
    for index in range(count):
        one = {
            name: listed[index if len(listed) == count else 0]
            for name, listed in zip(_LISTS, (hosts, addresses, ports), strict=True)
            if listed
        }
        name = _name(one.get("host") or one.get("hostaddr") or "local", one.get("port") or DEFAULT_PORT)
        if count > 1:
            one["target_session_attrs"] = _SESSIONS[wanted]
        found[PrimaryHost(name, make_conninfo("", **{**given, **one}) if count > 1 else conninfo)] = None
    return tuple(found)


def _defaults() -> dict[str, str]:
    """Return the environment's values, or else libpq's defaults."""
    return {option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val}


def _listed(value: str) -> list[str]:
    return [each.strip() for each in value.split(",")] if value else []


def _name(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("/") else f"{host}:{port}"
