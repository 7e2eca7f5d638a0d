"""The decision how an old primary becomes a standby of the new primary. Pure.

    FOLLOW        its WAL is a part of the new primary's: it needs only its settings
    REWIND        it has written WAL after the fork: pg_rewind replaces the pages that this WAL has changed
    BASE_BACKUP   everything else

pg_rewind compares only the numbers of timelines and their begins. Two servers may have taken the same number, and even
at the same position: pg_rewind then finds no difference, or a fork that is too high, and the result is a standby with
pages of another history. Therefore

- a primary that wrote on the number which the new primary has now wrote another history: BASE_BACKUP;
- the WAL directly before the fork is compared byte for byte (`ComparedWal`). Bytes that differ, or cannot be read,
  mean BASE_BACKUP.
"""

from dataclasses import dataclass
from enum import Enum

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.timelines import Lineage
from walproxy.agent.control_data import ControlData


class Way(Enum):
    """How the data folder becomes a standby's."""

    FOLLOW = "follow"
    REWIND = "rewind"
    BASE_BACKUP = "base backup"


class ComparedWal(Enum):
    """The result of comparing the WAL before the fork."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class TimelineLineage:
    """The timeline of a server and its ancestors."""

    tli: int
    lineage: Lineage

    def with_ends(self) -> list[tuple[int, Lsn, Lsn | None]]:
        """Return (TLI, begin, end) of each timeline, the oldest first; the end of the last is None."""
        begins = [0, *(end for _, end in self.lineage)]
        ends: list[Lsn | None] = [*(end for _, end in self.lineage), None]
        tlis = [*(tli for tli, _ in self.lineage), self.tli]
        return list(zip(tlis, begins, ends, strict=True))


@dataclass(frozen=True)
class Fork:
    """The last timeline that two histories share, and where one of them left it.

    Attributes:
        lsn: None if neither has left it: both are on it now.
    """

    tli: int
    lsn: Lsn | None


@dataclass(frozen=True)
class RejoinPlan:
    """What `RejoinRun.run` will do.

    Attributes:
        way: how.
        fork: None if the histories share nothing, or the local one is unknown.
        reason: one line, for the log.
    """

    way: Way
    fork: Fork | None
    reason: str


def find_fork(local: TimelineLineage, source: TimelineLineage) -> Fork | None:
    """Return the fork of two histories; None if they share no timeline."""
    fork = None
    for (tli, begin, end), (other_tli, other_begin, other_end) in zip(
        local.with_ends(), source.with_ends(), strict=False
    ):
        if (tli, begin) != (other_tli, other_begin):
            break
        ends = [each for each in (end, other_end) if each is not None]
        fork = Fork(tli, min(ends) if ends else None)
    return fork


def check_source(control: ControlData, system_id: int, in_recovery: bool) -> None:
    """Check that the new primary is one, and of the same system.

    Raises:
        ConfigurationError: it is not.
    """
    if system_id != control.system_id:
        raise ConfigurationError(
            f"the new primary is of system {system_id}, the data folder of {control.system_id}: nothing was changed"
        )
    if in_recovery:
        raise ConfigurationError("the new primary is a standby in recovery: promote it first; nothing was changed")


def plan_rejoin(
    control: ControlData,
    local: TimelineLineage | None,
    source: TimelineLineage,
    compared: ComparedWal,
    can_rewind: bool,
) -> RejoinPlan:
    """Return how the data folder becomes a standby's.

    Args:
        control: of the stopped local server.
        local: None if its history file cannot be read.
        compared: the WAL before the fork; not used if the histories have no fork.
        can_rewind: pg_rewind is installed.
    """
    if local is None:
        return RejoinPlan(Way.BASE_BACKUP, None, "the history file of the local timeline is missing or damaged")
    fork = find_fork(local, source)
    if fork is None:
        return RejoinPlan(Way.BASE_BACKUP, None, "the two servers share no timeline")
    if local.tli == source.tli and (fork.tli != local.tli or not control.was_standby):
        return RejoinPlan(
            Way.BASE_BACKUP,
            fork,
            f"both servers took timeline {local.tli} for different histories, which pg_rewind does not detect",
        )
    if fork.lsn is None:
        # A standby of this timeline: all of its WAL is the primary's.
        return RejoinPlan(Way.FOLLOW, fork, f"it has followed timeline {local.tli} and continues")
    at = f"the fork at {format_lsn(fork.lsn)} of timeline {fork.tli}"
    if compared is not ComparedWal.EQUAL:
        differs = "differs on the two servers" if compared is ComparedWal.DIFFERENT else "cannot be compared"
        return RejoinPlan(Way.BASE_BACKUP, fork, f"the WAL before {at} {differs}")
    if local.tli == fork.tli and _ends_before(control, fork.lsn):
        return RejoinPlan(Way.FOLLOW, fork, f"its WAL ends before {at}")
    if not control.can_be_rewound:
        return RejoinPlan(Way.BASE_BACKUP, fork, "pg_rewind requires wal_log_hints or data checksums")
    if not can_rewind:
        return RejoinPlan(Way.BASE_BACKUP, fork, "pg_rewind is not installed")
    return RejoinPlan(Way.REWIND, fork, f"it may have written WAL after {at}")


def _ends_before(control: ControlData, fork_lsn: Lsn) -> bool:
    """Return whether the local server certainly has no WAL after the fork, on its timeline."""
    if not control.is_clean:
        return False
    # The checkpoint of a clean shutdown is the last record: if it begins before the fork, it ends there at the latest.
    last = control.min_recovery_lsn if control.was_standby else control.checkpoint_lsn + 1
    return last <= fork_lsn
