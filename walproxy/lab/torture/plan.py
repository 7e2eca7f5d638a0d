"""Plan the faults of the nemesis: bouts, drawn by chance. Pure.

A bout is a handful of faults that overlap, each with a target of its own, a time at which it begins and one at which it
is undone. After each bout everything is whole again, so nothing stays broken for longer than a bout. There are six
kinds of bouts, because chance alone would seldom bring about what matters most:

    mixed        one to four faults, whatever they are
    outsiders    only what clients and settings of the site do: hostile HTTP, all connections used up, blocked logins,
                 changed timeouts, no synchronous standby, paused replay. Commits go on, and the leader stays
    no quorum    a majority of safekeepers is out of reach for some seconds: nothing may be acknowledged
    crash        PostgreSQL is killed, beside up to two other faults
    fast stop    PostgreSQL is stopped as an operator would, which needs a quorum, and so the proxies
    power cut    all safekeepers and proxies are killed at once, often PostgreSQL with them; what was acknowledged must
                 be on the disks of a quorum then
"""

from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from walproxy.lab.testing.hindrances import (
    GATE_REMOVED,
    HOSTILE_HTTP,
    LOGINS_BLOCKED,
    NO_CONNECTIONS,
    REPLAY_PAUSED,
    SETTINGS_CHANGED,
)

_Choice = TypeVar("_Choice")

KILL, STOP, PAUSE = "kill", "stop", "pause"
CUT_OFF, DEAF, MUTE = "cut off", "deaf", "mute"
SLOW_DISK, FULL_DISK = "slow disk", "full disk"
FLOOD, NO_DESCRIPTORS = "flood", "no descriptors"
POWER_CUT = "power cut"
OUTSIDERS: Final = "outsiders"

POSTGRES: Final = "postgres"
SILENCING: Final = (KILL, STOP, PAUSE, CUT_OFF, DEAF, MUTE)
"""While one of these lasts, no proxy receives an acknowledgement of new WAL from the safekeeper."""

# How often each is chosen, against the others of its row.
_OF_SAFEKEEPERS: Final = {
    KILL: 6,
    PAUSE: 4,
    STOP: 2,
    CUT_OFF: 4,
    DEAF: 3,
    MUTE: 3,
    SLOW_DISK: 4,
    FULL_DISK: 4,
    FLOOD: 3,
    NO_DESCRIPTORS: 3,
    HOSTILE_HTTP: 3,
}
_SILENCING_WEIGHTS: Final = {kind: _OF_SAFEKEEPERS[kind] for kind in SILENCING}
_OF_PROXIES: Final = {KILL: 4, PAUSE: 3, STOP: 2, HOSTILE_HTTP: 2}
_OF_THE_SERVER: Final = {NO_CONNECTIONS: 3, LOGINS_BLOCKED: 3, SETTINGS_CHANGED: 3}
_BY_OUTSIDERS: Final = _OF_THE_SERVER | {GATE_REMOVED: 2}
_SIZES: Final = {1: 30, 2: 35, 3: 25, 4: 10}
_BOUTS: Final = {"mixed": 42, OUTSIDERS: 14, "no quorum": 17, "crash": 10, "fast stop": 6, "power cut": 11}

_BEGINS_WITHIN_S: Final = 2.0
_LASTS_S: Final = (0.5, 6.0)
# Long enough that a proxy looks at the server's settings several times.
_OUTSIDERS_LAST_S: Final = (6.0, 12.0)
_POSTGRES_DOWN_S: Final = (0.0, 1.5)
_NO_QUORUM_WITHIN_S: Final = 0.3
_NO_QUORUM_LASTS_S: Final = (2.5, 5.0)
_SLOW_DISK_MS: Final = (5, 20, 100, 300)


@dataclass(frozen=True)
class PlannedFault:
    """One fault of a bout.

    Attributes:
        kind: one of the words above.
        target: a process.
        after_s: from the bout's beginning on.
        lasts_s: until it is undone.
        fsync_ms: how slow a slow disk is.
    """

    kind: str
    target: str
    after_s: float
    lasts_s: float
    fsync_ms: int = 0

    def __str__(self) -> str:
        detail = f" by {self.fsync_ms} ms" if self.kind == SLOW_DISK else ""
        return f"{self.kind} {self.target}{detail} for {self.lasts_s:.1f} s"


@dataclass(frozen=True)
class Bout:
    """Faults that overlap.

    Attributes:
        kind: which of the six.
        faults: by their beginnings; of a power cut, all begin at 0.
    """

    kind: str
    faults: tuple[PlannedFault, ...]

    def __str__(self) -> str:
        if self.kind == POWER_CUT:
            return f"power cut of {', '.join(fault.target for fault in self.faults)}"
        return "; ".join(str(fault) for fault in self.faults)


@dataclass(frozen=True)
class Targets:
    """The processes of a cluster, by what they are."""

    safekeepers: tuple[str, ...]
    proxies: tuple[str, ...]
    standbys: tuple[str, ...] = ()

    @property
    def quorum(self) -> int:
        """The number of safekeepers that a commit needs."""
        return len(self.safekeepers) // 2 + 1


def plan_bout(chance: Random, targets: Targets) -> Bout:
    """Return the next bout."""
    kind = _choose(chance, _BOUTS)
    if kind == POWER_CUT:
        return plan_power_cut(targets, with_postgres=chance.random() < 0.5)
    if kind == "no quorum":
        faults = _plan_no_quorum(chance, targets)
    elif kind == "crash":
        faults = [_of_postgres(chance, KILL), *_mixed(chance, targets, chance.choice((0, 1, 2)))]
    elif kind == OUTSIDERS:
        faults = _plan_outsiders(chance, targets)
    elif kind == "fast stop":
        faults = [_of_postgres(chance, STOP), *_plan_beside_stop(chance, targets)]
    else:
        faults = _mixed(chance, targets, _choose(chance, _SIZES))
        if chance.random() < 0.3:
            faults.append(_fault(chance, _OF_THE_SERVER, POSTGRES))
    return Bout(kind, tuple(sorted(faults, key=lambda fault: fault.after_s)))


def plan_power_cut(targets: Targets, with_postgres: bool) -> Bout:
    """Return the bout in which all lose their power at once."""
    victims = (*((POSTGRES,) if with_postgres else ()), *targets.safekeepers, *targets.proxies)
    return Bout(POWER_CUT, tuple(PlannedFault(POWER_CUT, victim, 0.0, 0.0) for victim in victims))


def _mixed(chance: Random, targets: Targets, count: int) -> list[PlannedFault]:
    everybody = [*targets.safekeepers, *targets.proxies]
    victims = chance.sample(everybody, min(count, len(everybody)))
    return [_fault(chance, _OF_PROXIES if victim in targets.proxies else _OF_SAFEKEEPERS, victim) for victim in victims]


def _plan_no_quorum(chance: Random, targets: Targets) -> list[PlannedFault]:
    """A majority is silenced at about the same time; a proxy may have its own trouble meanwhile."""
    victims = chance.sample(targets.safekeepers, targets.quorum)
    faults = [
        PlannedFault(
            _choose(chance, _SILENCING_WEIGHTS),
            victim,
            chance.uniform(0.0, _NO_QUORUM_WITHIN_S),
            chance.uniform(*_NO_QUORUM_LASTS_S),
        )
        for victim in victims
    ]
    if chance.random() < 0.3:
        faults.append(_fault(chance, _OF_PROXIES, chance.choice(targets.proxies)))
    return faults


def _plan_outsiders(chance: Random, targets: Targets) -> list[PlannedFault]:
    """At most one fault of the server, beside hostile clients of some daemons, and standbys that do not replay."""
    daemons = chance.sample([*targets.safekeepers, *targets.proxies], chance.choice((0, 1, 2, 4)))
    planned = [(HOSTILE_HTTP, daemon) for daemon in daemons]
    if not daemons or chance.random() < 0.7:
        planned.append((_choose(chance, _BY_OUTSIDERS), POSTGRES))
    if (LOGINS_BLOCKED, POSTGRES) not in planned:
        # A standby replays the lock of blocked logins, and then has no session for the nemesis either.
        planned += [(REPLAY_PAUSED, standby) for standby in targets.standbys if chance.random() < 0.3]
    return [
        PlannedFault(kind, victim, chance.uniform(0.0, _BEGINS_WITHIN_S), chance.uniform(*_OUTSIDERS_LAST_S))
        for kind, victim in planned
    ]


def _plan_beside_stop(chance: Random, targets: Targets) -> list[PlannedFault]:
    """Nothing, or a fault of a minority: PostgreSQL does not stop before its last WAL is safe."""
    if targets.quorum == len(targets.safekeepers) or chance.random() < 0.4:
        return []
    return [_fault(chance, _OF_SAFEKEEPERS, chance.choice(targets.safekeepers))]


def _of_postgres(chance: Random, kind: str) -> PlannedFault:
    return PlannedFault(kind, POSTGRES, chance.uniform(0.0, _BEGINS_WITHIN_S), chance.uniform(*_POSTGRES_DOWN_S))


def _fault(chance: Random, weights: dict[str, int], target: str) -> PlannedFault:
    kind = _choose(chance, weights)
    after_s, lasts_s = chance.uniform(0.0, _BEGINS_WITHIN_S), chance.uniform(*_LASTS_S)
    return PlannedFault(kind, target, after_s, lasts_s, chance.choice(_SLOW_DISK_MS) if kind == SLOW_DISK else 0)


def _choose(chance: Random, weights: dict[_Choice, int]) -> _Choice:
    return chance.choices(list(weights), list(weights.values()))[0]
