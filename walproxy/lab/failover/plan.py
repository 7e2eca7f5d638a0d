"""The rounds of a run, drawn by a seed. Pure.

    kill postgres             kill -9 of all processes of PostgreSQL; agent and proxy live
    kill host                 kill -9 of agent, proxy and PostgreSQL; the agent is started again later
    kill proxy and postgres   kill -9 of both; the agent lives
    kill agent                kill -9 of the agent alone; it is started again later
    stop host                 SIGSTOP of all processes of the host, SIGCONT later: in the middle of a failover, or after
    stop postgres             SIGSTOP of PostgreSQL, SIGCONT later
    cut off                   the host receives and sends nothing; half of the time its cable is unplugged
    cut off from safekeepers  the same, but clients, and the other hosts, still reach it
    deaf, mute                the host receives nothing; what it sends is lost
    kill host and standby     kill -9 of the host, and of the host of a standby: the other one is left
    kill host and safekeeper  kill -9 of the host, and of a safekeeper
    kill host, lose quorum    kill -9 of the host; while the others fail over, two safekeepers stand still for a while
    guards fail               kill -9 of the host, or of its agent alone, while the fence of each agent fails
    promotion crashes         kill -9 of the host; then of the PostgreSQL that is promoted, before it is a primary
    flapping                  kill -9 of the host, and the network of the others is cut off again and again; or that of
                              the host alone is, which lives
    power loss                kill -9 of all processes of all hosts, half of the time of the safekeepers, too, which
                              lose what they have not synced
    switchover                no fault: an operator moves the primary

Before a fault of the primary's host, the safekeepers are cut off from it for some milliseconds: what it commits locally
meanwhile, no quorum has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

KILL_POSTGRES, KILL_HOST, KILL_BOTH, KILL_AGENT = "kill postgres", "kill host", "kill proxy and postgres", "kill agent"
STOP_HOST, STOP_POSTGRES = "stop host", "stop postgres"
CUT_OFF, CUT_OFF_SAFEKEEPERS, DEAF, MUTE = "cut off", "cut off from safekeepers", "deaf", "mute"
KILL_TWO_HOSTS, KILL_SAFEKEEPER = "kill host and standby", "kill host and safekeeper"
LOSE_QUORUM = "kill host, lose quorum"
FAIL_GUARDS, CRASH_PROMOTION, FLAP = "guards fail", "promotion crashes", "flapping"
POWER_LOSS, SWITCHOVER = "power loss", "switchover"

NETWORK: Final = (CUT_OFF, CUT_OFF_SAFEKEEPERS, DEAF, MUTE, FLAP)
"""The faults that need partitions."""

AGENTS_ONLY: Final = (FAIL_GUARDS, CRASH_PROMOTION)
"""The faults of a promotion by `walproxy agent`: other managers have no part in them."""

LOSSES: Final = (
    *(KILL_HOST, KILL_BOTH, KILL_POSTGRES, STOP_HOST, STOP_POSTGRES, CUT_OFF, CUT_OFF_SAFEKEEPERS, DEAF, MUTE),
    *(KILL_TWO_HOSTS, KILL_SAFEKEEPER),
)
"""The faults that take the primary away while the others live: the gap of a failover is measured with these."""

_LONG: Final = (
    *(KILL_HOST, STOP_HOST, CUT_OFF, CUT_OFF_SAFEKEEPERS, DEAF, MUTE, KILL_AGENT),
    *(KILL_TWO_HOSTS, KILL_SAFEKEEPER),
)
_PROMOTED_WITHIN_S: Final = 5.0  # on a machine that is busy
_WEIGHTS: Final = {
    KILL_HOST: 5,
    KILL_BOTH: 3,
    KILL_POSTGRES: 3,
    STOP_HOST: 4,
    STOP_POSTGRES: 3,
    CUT_OFF: 5,
    CUT_OFF_SAFEKEEPERS: 3,
    DEAF: 2,
    MUTE: 2,
    KILL_AGENT: 2,
    KILL_TWO_HOSTS: 2,
    KILL_SAFEKEEPER: 2,
    LOSE_QUORUM: 2,
    FAIL_GUARDS: 3,
    CRASH_PROMOTION: 3,
    FLAP: 3,
    POWER_LOSS: 2,
}
FAULTS: Final = tuple(_WEIGHTS)
_CUT_MS: Final = (0, 120)
_SHORT: Final = (0.2, 1.0)  # of --dead-after: often no failover follows
_SOON_S: Final = (0.0, 2.0)  # after --dead-after: in the middle of a failover
_LATE_S: Final = (2.0, 8.0)  # after a failover
_DOWN_S: Final = (0.0, 3.0)
_FLAPS: Final = (2.0, 6.0)  # times --dead-after


@dataclass(frozen=True)
class PlannedRound:
    """One round.

    Attributes:
        number: from 1.
        kind: one of the words above.
        cut_ms: how long the safekeepers are cut off from the primary before the fault, 0 for not at all.
        lasts_s: from the fault until it is undone, where there is anything to undo.
        is_variant: of a cut-off, the cable is unplugged; of guards that fail, the agent alone is killed; of flapping,
            the primary's network is cut off and no host is killed; of a power loss, the safekeepers lose theirs, too;
            of a host that is killed or stopped, its network stays cut off from the safekeepers until the end of the
            fault.
        other: of a switchover, the standby that is promoted; of a fault of two, the standby or safekeeper that is the
            other one; from 0.
        then_after_s: from the fault until its second part, where it has one.
    """

    number: int
    kind: str
    cut_ms: int = 0
    lasts_s: float = 0.0
    is_variant: bool = False
    other: int = 0
    then_after_s: float = 0.0

    def takes_away(self, dead_after_s: float) -> bool:
        """Return whether the primary is away for so long that another server must be promoted.

        An agent that lives may be quicker, and start its server again.
        """
        return self.kind in _LONG and self.lasts_s > dead_after_s + _PROMOTED_WITHIN_S

    def __str__(self) -> str:
        parts = [self.kind]
        if self.cut_ms:
            parts.append(f"after {self.cut_ms} ms without safekeepers")
        if self.lasts_s:
            parts.append(f"for {self.lasts_s:.1f} s")
        if self.is_variant:
            parts.append("(variant)")
        return " ".join(parts)


def plan_rounds(
    seed: int,
    count: int,
    dead_after_s: float,
    *,
    kinds: Sequence[str] = FAULTS,
    switchover_every: int = 4,
    standbys: int = 2,
) -> list[PlannedRound]:
    """Return `count` rounds with faults, and a switchover after every few of them.

    Args:
        kinds: the faults to choose from.
        switchover_every: a switchover follows after so many faults; 0 for none.
        standbys: how many a switchover can choose from.
    """
    chance = Random(f"{seed}/rounds")
    # Each kind once, so that none is left out; then by weight.
    drawn = chance.sample(list(kinds), len(kinds))
    drawn += chance.choices(list(kinds), [_WEIGHTS[kind] for kind in kinds], k=max(0, count - len(drawn)))
    planned: list[PlannedRound] = []
    for number, kind in enumerate(drawn[:count], 1):
        planned.append(_plan_fault(chance, len(planned) + 1, kind, dead_after_s))
        if switchover_every and number % switchover_every == 0:
            planned.append(PlannedRound(len(planned) + 1, SWITCHOVER, other=chance.randrange(standbys)))
    return planned


def _plan_fault(chance: Random, number: int, kind: str, dead_after_s: float) -> PlannedRound:
    cut_ms = chance.randint(*_CUT_MS) if kind not in (KILL_AGENT, POWER_LOSS) else 0
    if kind == POWER_LOSS:
        lasts_s = chance.uniform(*_DOWN_S)
    elif kind in (KILL_POSTGRES, KILL_BOTH):
        lasts_s = 0.0
    else:
        shortly = dead_after_s * chance.uniform(*_SHORT)
        soon, late = dead_after_s + chance.uniform(*_SOON_S), dead_after_s + chance.uniform(*_LATE_S)
        lasts_s = chance.choices((shortly, soon, late), (1, 2, 2))[0]
    then_after_s = dead_after_s + chance.uniform(*_SOON_S)
    if kind == LOSE_QUORUM:
        lasts_s = then_after_s + chance.uniform(*_LATE_S)
    if kind == FLAP:
        lasts_s = dead_after_s * chance.uniform(*_FLAPS)
    return PlannedRound(
        number,
        kind,
        cut_ms,
        round(lasts_s, 2),
        is_variant=chance.random() < 0.5,
        other=chance.randrange(6),
        then_after_s=round(then_after_s, 2) if kind == LOSE_QUORUM else 0.0,
    )
