"""Which standby a failover promotes (protocol, step 13). Pure.

Only a standby on the log's timelines that has every complete record of the log may be promoted. Of several the one that
has received the most comes first; while none has everything, all of them are looked at, and the first that gets there
is chosen.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.timelines import Lineage
from walproxy.failover.log_end import LogEnd

# Of a role that is no superuser, to look at WAL that a standby has received and cannot replay.
READ_RIGHT = "EXECUTE ON FUNCTION pg_read_binary_file(text, bigint, bigint, boolean)"


# A switchover to a standby that is further behind would prolong the time without commits.
LAG_BYTES_MAX = 64 << 20


class NoCandidate(WalproxyError):
    """No server can be promoted, or the named one cannot. One line says why."""


@dataclass(frozen=True)
class HostLook:
    """A server as a failover has found it.

    Attributes:
        name: HOST:PORT.
        in_recovery: whether it is a standby; None if it does not reply.
        tli: the timeline that it writes, or receives and replays.
        received_lsn, replayed_lsn: of a standby, 0 for nothing since its start.
        complete_lsn: where the last complete record ends of what it has received; 0 if that was not looked at.
        written_lsn: of a primary.
        receives: a standby's walreceiver runs.
        places_files: the role may place files in its pg_wal.
        problem: why it does not reply, one line.
        hindrance: why the command cannot promote it although it replies, one line: a setting, a right of the role.
        is_paused: a standby's replay is paused: a promotion ends that if there is no other problem.
        replay_problem: why a promotion would fail, or end with less WAL than it has received, one line.
        lineage: of a standby that receives nothing, the ancestors of its timeline, if its history file was read.
    """

    name: str
    in_recovery: bool | None = None
    system_id: int = 0
    tli: int = 0
    received_lsn: Lsn = 0
    replayed_lsn: Lsn = 0
    complete_lsn: Lsn = 0
    written_lsn: Lsn = 0
    receives: bool = True
    places_files: bool = True
    problem: str = ""
    hindrance: str = ""
    is_paused: bool = False
    replay_problem: str = ""
    lineage: Lineage = ()

    @property
    def reached_lsn(self) -> Lsn:
        """The end of its WAL."""
        return max(self.received_lsn, self.replayed_lsn)

    @property
    def kept_lsn(self) -> Lsn:
        """The end of the WAL that a promotion would keep, at most: an incomplete record is overwritten."""
        return self.complete_lsn or self.reached_lsn


def obstacle(look: HostLook, end: LogEnd) -> str:
    """Return why a server cannot be promoted as it is, whatever it receives; empty if it can."""
    if look.in_recovery is None:
        return look.problem
    if look.system_id != end.system_id:
        return f"belongs to another system, {look.system_id}, not {end.system_id}"
    if not look.in_recovery:
        return f"is a primary on timeline {look.tli}, not a standby"
    left_lsn = end.left_lsn(look.tli)
    if look.tli > end.tli and not has_gone_ahead(look, end):
        return (
            f"is on timeline {look.tli}, to which the log has not gone on: it is being promoted (then repeat the "
            "command), or follows a server that was"
        )
    if left_lsn is None and look.tli < end.tli:
        return f"is on timeline {look.tli}, which is not part of the log: make it a standby again with pg_rewind"
    if left_lsn is not None and look.tli != end.tli and look.kept_lsn > left_lsn:
        # Without a walreceiver the timeline is that of the last restartpoint, which may be an earlier one.
        perhaps = "" if look.receives else "connect it to the safekeepers, which shows whether that is so, or "
        if look.receives and not look.complete_lsn and look.replayed_lsn <= left_lsn:
            perhaps = f"GRANT pg_monitor and {READ_RIGHT}, which shows whether a complete record is there, or "
        return (
            f"has WAL of timeline {look.tli} up to {format_lsn(look.reached_lsn)}, and the log left that timeline at "
            f"{format_lsn(left_lsn)}: {perhaps}make it a standby again with pg_rewind"
        )
    if look.replay_problem or look.hindrance:
        return look.replay_problem or look.hindrance
    if tlis_to_pass_over(look, number_for(look, end)) and not look.places_files:
        return (
            f"has to pass over timeline {end.given}, and the role may not write files there: GRANT pg_monitor, "
            "pg_write_server_files"
        )
    return ""


def has_gone_ahead(look: HostLook, end: LogEnd) -> bool:
    """Return whether a standby has left the log's timeline, at its end, for one that the log does not have (13.8).

    Its promotion was begun, and it crashed: it is a standby on the timeline for which it has the history file.
    """
    line = dict(look.lineage)
    if end.is_estimate:
        return end.tli in line
    return line.get(end.tli, 0) >= end.records_end_lsn and all(line.get(tli) == lsn for tli, lsn in end.lineage)


def missing_bytes(look: HostLook, end: LogEnd) -> int:
    """Return how much of the log's complete records a standby lacks."""
    return max(0, end.records_end_lsn - _log_end_of(look, end))


def _log_end_of(look: HostLook, end: LogEnd) -> Lsn:
    """Return how far a standby has the log. Beyond the point where the log left its timeline it has other WAL."""
    left_lsn = None if look.tli == end.tli else end.left_lsn(look.tli)
    return look.reached_lsn if left_lsn is None else min(look.reached_lsn, left_lsn)


def has_everything(look: HostLook, end: LogEnd) -> bool:
    """Return whether a standby has every commit that may have been acknowledged."""
    return not obstacle(look, end) and not missing_bytes(look, end)


def lost_since(look: HostLook, end: LogEnd) -> str:
    """Return why a standby that had everything is not promoted after all; empty if it still has.

    Its settings and rights were checked before, and do not count: an agent makes it read-only until commits succeed.
    """
    changed = dataclasses.replace(look, hindrance="", places_files=True)
    if reason := obstacle(changed, end):
        return reason
    missing = missing_bytes(changed, end)
    return f"lacks {missing} bytes that it had: it was set up again" if missing else ""


def choose(looks: Sequence[HostLook], end: LogEnd, wanted: str = "") -> HostLook:
    """Return the standby to promote, or to wait for.

    Args:
        looks: in the user's order, which decides among equals.
        wanted: the name of the only one to consider, "" for any.

    Raises:
        NoCandidate: none can be promoted as it is.
    """
    considered = [look for look in looks if wanted in ("", look.name)]
    able = [look for look in considered if not obstacle(look, end)]
    if not able:
        raise NoCandidate(
            f"no standby can be promoted: {'; '.join(f'{look.name} {obstacle(look, end)}' for look in considered)}"
            if considered
            else "no standby can be promoted: --primary names no other server"
        )
    return max(able, key=lambda look: _log_end_of(look, end))


def resolve(names: Sequence[str], wanted: str) -> str:
    """Return the name, HOST:PORT, of the server that an operator calls HOST or HOST:PORT.

    Raises:
        NoCandidate: none is called that, or several are.
    """
    found = [name for name in names if wanted in (name, name.rpartition(":")[0].strip("[]"))]
    if not found:
        raise NoCandidate(f"{wanted} is none of the servers: {', '.join(names)}")
    if len(found) > 1:
        raise NoCandidate(f"{wanted} is ambiguous, name the port: {', '.join(found)}")
    return found[0]


def number_for(look: HostLook, end: LogEnd, *others: int) -> int:
    """Return the number to hand out for a promotion of this standby.

    Args:
        others: the highest timelines that are in use elsewhere.
    """
    return 1 + max(end.given, look.tli, *others)


def tlis_to_pass_over(look: HostLook, number: int) -> range:
    """Return the numbers that a promotion of this standby to `number` must not take.

    It takes the first one above its own for which it finds no history file.
    """
    return range(look.tli + 1, number)
