"""Decides what a reader may be sent next (S7); no other module does.

A reader reads the log of one timeline from a position on. It receives only WAL that is committed and on disk here, on
timelines that are committed too: `ReadableLog` is a view of the acceptor that ends there.

    begin_lsn        fork                 end_lsn        write_lsn
        |--------------|---------------------|- - - - - - - -|
        | an ancestor  | tli                 |  not readable |

An ancestor's timeline ends at its fork: the reader is sent the timeline that continues there. Its bytes below the fork
are the descendant's too, so the position in the log is all that is needed to read them.

The end goes back in one case only: a new timeline begins below it (S9). A reader that was sent more than that waits
until the new timeline is committed, and is then sent its fork, as PostgreSQL does. It cannot continue on the old
timeline, whose bytes may have been replaced.

Pure. Source of the rules for timelines: https://www.postgresql.org/docs/current/protocol-replication.html
"""

from typing import NamedTuple, TypeAlias

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.timelines import Lineage, parse_timeline_history
from safekeeper.consensus.control_state import ControlState


class ReadableLog(NamedTuple):
    """The log as readers see it.

    Attributes:
        begin_lsn: the first retained byte, 0 if there is no WAL.
        end_lsn: where readers must stop, 0 while nothing is committed.
        tli: the timeline of the end, 0 if there is no WAL.
        lineage: the ancestors of `tli`.
    """

    begin_lsn: Lsn
    end_lsn: Lsn
    tli: int
    lineage: Lineage

    def fork_of(self, tli: int) -> tuple[int, Lsn] | None:
        """Return (the next timeline, its fork) for an ancestor; None if `tli` is not one."""
        for index, (ancestor, fork_lsn) in enumerate(self.lineage):
            if ancestor == tli:
                following = self.lineage[index + 1][0] if index + 1 < len(self.lineage) else self.tli
                return following, fork_lsn
        return None


class SendRange(NamedTuple):
    """The bytes [begin_lsn, end_lsn) may be sent."""

    begin_lsn: Lsn
    end_lsn: Lsn


class NothingToSend(NamedTuple):
    """There is nothing to send yet."""


class TimelineEnd(NamedTuple):
    """The reader's timeline has ended: `next_tli` continues from `fork_lsn`."""

    next_tli: int
    fork_lsn: Lsn


class Removed(NamedTuple):
    """The bytes [begin_lsn, end_lsn) may be sent, but are no longer retained here."""

    begin_lsn: Lsn
    end_lsn: Lsn


class Gone(NamedTuple):
    """The reader cannot continue here: what it was sent is not, or no longer, part of this log."""


Step: TypeAlias = SendRange | NothingToSend | TimelineEnd | Removed | Gone

_WAIT = NothingToSend()
_GONE = Gone()


def next_step(log: ReadableLog, tli: int, position_lsn: Lsn, retreated_to_lsn: Lsn | None = None) -> Step:
    """Return the next step for a reader of `tli` at `position_lsn`.

    Args:
        retreated_to_lsn: the lowest readable end since it went back below what this reader was sent, None if it
            never did. The reader's bytes above it are no longer part of any log.
    """
    end_lsn = log.end_lsn
    if tli != log.tli:
        fork = log.fork_of(tli)
        if fork is None:
            return _GONE
        if position_lsn >= fork[1]:
            return TimelineEnd(*fork)
        end_lsn = min(end_lsn, fork[1])
    if retreated_to_lsn is not None:
        return _WAIT if end_lsn <= retreated_to_lsn else _GONE
    if position_lsn >= end_lsn:
        return _WAIT
    if position_lsn < log.begin_lsn:
        return Removed(position_lsn, min(end_lsn, log.begin_lsn))
    return SendRange(position_lsn, end_lsn)


def refusal_of_start(log: ReadableLog, tli: int, begin_lsn: Lsn) -> tuple[str, str] | None:
    """Return why a reader cannot start at `begin_lsn` of `tli`: message and detail as in PostgreSQL.

    None if it can. A position that is not readable yet is allowed: the reader will wait.
    """
    if tli == log.tli:
        return None
    fork = log.fork_of(tli)
    if fork is None:
        return f"requested timeline {tli} is not in this server's history", ""
    _, fork_lsn = fork
    if begin_lsn > fork_lsn:
        return (
            f"requested starting point {format_lsn(begin_lsn)} on timeline {tli} is not in this server's history",
            f"This server's history forked from timeline {tli} at {format_lsn(fork_lsn)}.",
        )
    return None


def lineage_of(control: ControlState, tli: int) -> Lineage:
    """Return the ancestors of `tli`: from its history file if it exists, else from the term history.

    Raises:
        RemoteProtocolError: the history file is not valid.
    """
    for file in control.tli_histories:
        if file.tli == tli:
            return parse_timeline_history(tli, file.content)
    lineage: list[tuple[int, Lsn]] = []
    before_tli = 0
    for entry in control.history:
        if entry.tli > tli:
            break
        if before_tli and entry.tli != before_tli:
            lineage.append((before_tli, entry.start_lsn))
        before_tli = entry.tli
    return tuple(lineage)
