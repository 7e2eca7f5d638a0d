"""Which standby a failover promotes (protocol, step 13). Pure.

Only a standby on the log's timelines that has every complete record of the log may be promoted. Of several the one that
has received the most comes first; while none has everything, all of them are looked at, and the first that gets there
is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.failover.log_end import LogEnd


class NoCandidate(WalproxyError):
    """No server can be promoted. One line says why for each of them."""


@dataclass(frozen=True)
class HostLook:
    """A server as a failover has found it.

    Attributes:
        name: HOST:PORT.
        in_recovery: whether it is a standby; None if it does not reply.
        tli: the timeline that it writes, or receives and replays.
        received_lsn, replayed_lsn: of a standby, 0 for nothing since its start.
        written_lsn: of a primary.
        problem: why it does not reply, one line.
    """

    name: str
    in_recovery: bool | None = None
    system_id: int = 0
    tli: int = 0
    received_lsn: Lsn = 0
    replayed_lsn: Lsn = 0
    written_lsn: Lsn = 0
    problem: str = ""

    @property
    def reached_lsn(self) -> Lsn:
        """The end of the WAL that a promotion would keep."""
        return max(self.received_lsn, self.replayed_lsn)


def obstacle(look: HostLook, end: LogEnd) -> str:
    """Return why a server cannot be promoted however long one waits, empty if it can."""
    if look.in_recovery is None:
        return look.problem
    if look.system_id != end.system_id:
        return f"belongs to another system, {look.system_id}, not {end.system_id}"
    if not look.in_recovery:
        return f"is no standby: it is a primary on timeline {look.tli}"
    left_lsn = end.left_lsn(look.tli)
    if left_lsn is None:
        return f"is on timeline {look.tli}, and the log is not"
    if look.tli != end.tli and look.reached_lsn > left_lsn:
        return (
            f"has WAL of timeline {look.tli} up to {format_lsn(look.reached_lsn)}, and the log left that timeline at "
            f"{format_lsn(left_lsn)}: make it a standby again with pg_rewind"
        )
    return ""


def missing_bytes(look: HostLook, end: LogEnd) -> int:
    """Return how much of the log's complete records a standby lacks."""
    return max(0, end.records_end_lsn - look.reached_lsn)


def has_everything(look: HostLook, end: LogEnd) -> bool:
    """Return whether a standby has every commit that may have been acknowledged."""
    return not obstacle(look, end) and not missing_bytes(look, end)


def choose(looks: Sequence[HostLook], end: LogEnd, wanted: str = "") -> HostLook:
    """Return the standby to promote, or to wait for.

    Args:
        looks: in the user's order, which decides among equals.
        wanted: only this one is considered; HOST or HOST:PORT.

    Raises:
        NoCandidate: none can be promoted, however long one waits.
    """
    considered = [look for look in looks if not wanted or is_named(look, wanted)]
    if not considered:
        raise NoCandidate(f"{wanted} is none of the servers: {', '.join(look.name for look in looks)}")
    if wanted and len(considered) > 1:
        raise NoCandidate(f"{wanted} is ambiguous: {', '.join(look.name for look in considered)}")
    able = [look for look in considered if not obstacle(look, end)]
    if not able:
        raise NoCandidate(
            f"no standby can be promoted: {'; '.join(f'{look.name} {obstacle(look, end)}' for look in considered)}"
        )
    return max(able, key=lambda look: look.reached_lsn)


def is_named(look: HostLook, name: str) -> bool:
    """Return whether `name`, HOST or HOST:PORT, is that of the server."""
    return name == look.name or name == look.name.rpartition(":")[0]


def tlis_to_reserve(look: HostLook, end: LogEnd) -> range:
    """Return the numbers that a promotion of this standby must not take.

    It takes the first one above its own for which it finds no history file.
    """
    return range(look.tli + 1, end.promoted_tli)
