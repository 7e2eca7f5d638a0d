"""The actions that the proposer returns: its shell executes them in this order."""

from dataclasses import dataclass
from enum import Enum

import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import AppendRequest, ProposerMessage
from safekeeper.waldecode.records import LogTail


class Level(Enum):
    """The level of a note: ERROR requires an operator, INFO reports a change of state."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class SendMessage(msgspec.Struct, frozen=True, gc=False):
    """Send `message` to a safekeeper on its present connection."""

    safekeeper_id: int
    message: ProposerMessage


class SendAppend(msgspec.Struct, frozen=True, gc=False):
    """Send `header` and the WAL [begin_lsn, end_lsn) out of the window; an empty range is a heartbeat.

    Attributes:
        safekeeper_ids: the members to send it to. Those with equal positions are in one action, so that the shell
            encodes the frame once.
        header: the append without its payload, at the time of the event.
    """

    safekeeper_ids: list[int]
    header: AppendRequest
    end_lsn: Lsn

    @property
    def begin_lsn(self) -> Lsn:
        """Where the WAL begins."""
        return self.header.begin_lsn


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to a safekeeper and reconnect, with a growing pause."""

    safekeeper_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to a safekeeper at this address, too: --safekeepers lacks it, or lists it at another one."""

    safekeeper_id: int
    address: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection to a safekeeper for good: it was removed, and --safekeepers lacks it. No event follows."""

    safekeeper_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class IdentifyPrimary:
    """Identify the primary again: the answer must be newer than the votes."""


@dataclass(frozen=True, slots=True)
class StartReplication:
    """Stream from the primary (S10); on a new connection if the present one is closed.

    First the bytes [check_begin_lsn, begin_lsn) of timeline `check_tli`, whose page checksums go back to the proposer
    (`primary_checked`); they do not enter the window. Then the WAL from `begin_lsn` on, of timeline `tli`: in the
    same COPY if the timelines are equal, else in a second one. An empty range to check is not reported.

    Attributes:
        resumes: the window continues at its end; otherwise it is emptied and begins at `begin_lsn`.
        previous_record_lsn, log_tail: set when the primary no longer has the segment to check: the first record that
            is received must link to this one, the last of the log, or the primary is refused (`primary_refused`). No
            WAL is passed on before that is known.
    """

    check_begin_lsn: Lsn
    check_tli: int
    begin_lsn: Lsn
    tli: int
    resumes: bool = False
    previous_record_lsn: Lsn | None = None
    log_tail: LogTail | None = None


@dataclass(frozen=True, slots=True)
class EmptyWindow:
    """Empty the window: a tail term begins, and no primary sends WAL behind `begin_lsn` in it."""

    begin_lsn: Lsn


@dataclass(frozen=True, slots=True)
class StopReplication:
    """Close the replication connection; reconnect, and identify the primary."""

    reason: str


@dataclass(frozen=True, slots=True)
class RefusePrimary:
    """Close the connection to this primary, accept nothing more of it, and try another host before this one.

    In place of `Finish`, where there are several hosts. When all of them are refused, the feed ends the process.
    """

    reason: str


class ReportStatus(msgspec.Struct, frozen=True, gc=False):
    """Report the quorum's positions to PostgreSQL (S1). All 0: they are not known in this term yet."""

    write_lsn: Lsn
    flush_lsn: Lsn
    apply_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log.

    Attributes:
        event: the id of the event to which it belongs, empty if it belongs to none.
        term: of that event.
    """

    level: Level
    text: str
    event: str = ""
    term: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """End the process: it is fenced, or the primary or the configuration is refused."""

    error: WalproxyError


Action = (
    SendMessage
    | SendAppend
    | Disconnect
    | Dial
    | HangUp
    | IdentifyPrimary
    | StartReplication
    | EmptyWindow
    | StopReplication
    | RefusePrimary
    | ReportStatus
    | Note
    | Finish
)
