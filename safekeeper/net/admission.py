"""Decides which connections a listener keeps, and how many file descriptors each listener may use. Pure.

A connection is unproven at first. It becomes proven when its peer has shown that it may be served: it proved the shared
secret, sent a valid greeting, or logged in. The two kinds have separate budgets, so that unproven connections cannot
displace proven ones:

    unproven   a new one is always accepted. If its host has too many, the oldest of that host is evicted; if there are
               too many in total, the oldest of the host that has the most
    proven     above the maximum either the new one is refused, or the one that is idle for longest is evicted

So one host can use at most half of the unproven budget, and a peer that proves itself before its host has opened that
number of further connections is served, whatever the others send. An IPv6 host is its /64 network, because a host is
assigned a /64 and can use any address of it.

The sum of all budgets and of the files that connections need is below the limit of open files by RESERVED_FILES, which
are for WAL segments, control files and all other files of the process (`share_descriptors`).
"""

import ipaddress
from collections.abc import Callable, Mapping
from typing import NamedTuple

UNPROVEN_MAX = 128
# Connections of one listener that were accepted and not counted yet, or evicted and not closed yet.
IN_TRANSIT_MAX = 8
# Standard streams, event loop, lock, listening sockets: 15. WAL: segments being written, prepared, read (8): 16. Files
# that are replaced, with their folders: 12. The archiver's files and connections to its store: 20 and more.
RESERVED_FILES = 80
_LEAST_UNPROVEN = 4
_LEAST_PROVEN = 4


class Budget(NamedTuple):
    """The maximum numbers of a listener's connections.

    Attributes:
        proven_max: 0 if no connection of this listener is ever proven.
        unproven_max: of all hosts together.
    """

    proven_max: int
    unproven_max: int = UNPROVEN_MAX

    @property
    def unproven_per_host_max(self) -> int:
        """The maximum number of unproven connections of one host."""
        return max(1, self.unproven_max // 2)


class Wish(NamedTuple):
    """The budget that a listener requests if enough file descriptors are free.

    Attributes:
        files_per_proven: number of files that a proven connection opens, beside its socket.
    """

    budget: Budget
    files_per_proven: int = 0

    @property
    def descriptors(self) -> int:
        """The maximum number of file descriptors that this needs."""
        return descriptors_of(self.budget, self.files_per_proven)


class Proved(NamedTuple):
    """The result for a connection that was proven.

    Attributes:
        admitted: whether it stays.
        evicted: the number of the connection to close for it, 0 if none.
    """

    admitted: bool
    evicted: int = 0


class Admission:
    """The connections of one listener, by number; numbers are never used twice.

    Attributes:
        budget: as above.
        evictions: number of unproven connections that were evicted.
        refusals: number of proven connections that were refused.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.evictions = 0
        self.refusals = 0
        self._unproven: dict[int, str] = {}  # Number: host. The oldest is the first.
        self._arrived_at: dict[int, float] = {}
        self._proven: set[int] = set()

    @property
    def unproven(self) -> int:
        """The number of unproven connections."""
        return len(self._unproven)

    @property
    def proven(self) -> int:
        """The number of proven connections."""
        return len(self._proven)

    def arrive(self, number: int, host: str, now: float) -> int:
        """Count a new connection, unproven; return the number of the one to close for it, 0 if none."""
        group = host_group(host)
        evicted = self._to_evict(group)
        if evicted:
            self.leave(evicted)
            self.evictions += 1
        self._unproven[number] = group
        self._arrived_at[number] = now
        return evicted

    def prove(self, number: int, received_at: Callable[[int], float] | None = None) -> Proved:
        """Count an unproven connection as proven.

        Args:
            received_at: the time at which a proven connection last received data. If given, the new one is always
                admitted; without it the new one is refused above the maximum, and stays unproven until it is closed.
        """
        if number in self._proven or number not in self._unproven:
            return Proved(number in self._proven)
        evicted = 0
        if len(self._proven) >= self.budget.proven_max:
            if received_at is None or not self._proven:
                self.refusals += 1
                return Proved(False)
            evicted = min(self._proven, key=received_at)
            self.leave(evicted)
        self.leave(number)
        self._proven.add(number)
        return Proved(True, evicted)

    def renew(self, number: int, now: float) -> None:
        """Count an unproven connection as the newest, because it was served."""
        if number in self._unproven:
            self._unproven[number] = self._unproven.pop(number)
            self._arrived_at[number] = now

    def is_proven(self, number: int) -> bool:
        """Return whether the connection is proven."""
        return number in self._proven

    def overdue(self, before: float) -> list[int]:
        """Return the unproven connections that were opened, or last renewed, before `before`."""
        found = []
        for number in self._unproven:
            if self._arrived_at[number] >= before:
                break
            found.append(number)
        return found

    def leave(self, number: int) -> None:
        """Forget a connection that is closed. Harmless for an unknown one."""
        self._unproven.pop(number, None)
        self._arrived_at.pop(number, None)
        self._proven.discard(number)

    def _to_evict(self, group: str) -> int:
        by_group: dict[str, list[int]] = {}
        for number, its_group in self._unproven.items():
            by_group.setdefault(its_group, []).append(number)
        if len(by_group.get(group, ())) >= self.budget.unproven_per_host_max:
            return by_group[group][0]
        if len(self._unproven) >= self.budget.unproven_max:
            return max(by_group.values(), key=len)[0]
        return 0


def host_group(host: str) -> str:
    """Return the key of a host: an IPv4 address, an IPv6 /64 network, or the text itself if it is neither."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def descriptors_of(budget: Budget, files_per_proven: int) -> int:
    """Return the maximum number of file descriptors of a listener, including those that its connections open."""
    return budget.unproven_max + 2 * IN_TRANSIT_MAX + budget.proven_max * (1 + files_per_proven)


def share_descriptors(limit: int, wishes: Mapping[str, Wish]) -> dict[str, Budget]:
    """Return the budget of each listener, so that RESERVED_FILES of `limit` remain for everything else.

    As requested if possible. Otherwise each budget is reduced in proportion, but not below a few connections.
    """
    in_transit = 2 * IN_TRANSIT_MAX * len(wishes)
    wanted = sum(wish.descriptors for wish in wishes.values()) - in_transit
    available = limit - RESERVED_FILES - in_transit
    if wanted <= available:
        return {name: wish.budget for name, wish in wishes.items()}

    def share(of: int, least: int) -> int:
        return min(of, max(least, of * max(0, available) // wanted))

    # Budgets at their minimum take descriptors from the others.
    budgets = {
        name: Budget(share(wish.budget.proven_max, _LEAST_PROVEN), share(wish.budget.unproven_max, _LEAST_UNPROVEN))
        for name, wish in wishes.items()
    }
    while True:
        excess = sum(descriptors_of(budgets[name], wish.files_per_proven) for name, wish in wishes.items())
        largest = max(budgets, key=lambda name: max(budgets[name]))
        if excess <= limit - RESERVED_FILES or max(budgets[largest]) <= max(_LEAST_PROVEN, _LEAST_UNPROVEN):
            return budgets
        proven, unproven = budgets[largest]
        budgets[largest] = Budget(proven, unproven - 1) if unproven >= proven else Budget(proven - 1, unproven)


def least_limit(wishes: Mapping[str, Wish]) -> int:
    """Return the minimum limit of open files at which the budgets leave RESERVED_FILES."""
    return RESERVED_FILES + sum(
        descriptors_of(
            Budget(min(_LEAST_PROVEN, wish.budget.proven_max), min(_LEAST_UNPROVEN, wish.budget.unproven_max)),
            wish.files_per_proven,
        )
        for wish in wishes.values()
    )
