"""What the proposer asks its shell to do: carried out in the order given."""

from dataclasses import dataclass
from enum import Enum

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.messages import AppendRequest, ProposerMessage
from safekeeper.waldecode.records import LogTail


class Level(Enum):
    """How loud a note is: ERROR needs a person, INFO says that the state changed."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send `message` to a safekeeper on its present connection."""

    safekeeper_id: int
    message: ProposerMessage


@dataclass(frozen=True, slots=True)
class SendAppend:
    """Send `header` and the WAL [begin_lsn, end_lsn) out of the window; an empty range is a heartbeat.

    Members that are equally far get the same header, one object, so that the shell encodes the frame once.

    Attributes:
        header: the append without its payload, as it is at the time of the event.
    """

    safekeeper_id: int
    header: AppendRequest
    end_lsn: Lsn

    @property
    def begin_lsn(self) -> Lsn:
        """Where the WAL begins."""
        return self.header.begin_lsn


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to a safekeeper and connect anew, with backoff."""

    safekeeper_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class IdentifyPrimary:
    """Ask the primary who it is, anew: the answer must be younger than the votes."""


@dataclass(frozen=True, slots=True)
class StartReplication:
    """Stream from the primary (S10); on a new connection if the present one does not stand any more.

    First the bytes [check_begin_lsn, begin_lsn) of timeline `check_tli`, whose page checksums go back to the proposer
    (`primary_checked`); nothing of them enters the window. Then `begin_lsn` and what follows, of timeline `tli`: in the
    same COPY if the timelines are equal, else in a second one. An empty range to check is not reported.

    Attributes:
        resumes: the window goes on where it ends; otherwise it is emptied and begins at `begin_lsn`.
        previous_record_lsn, log_tail: set when the segment to check is gone from the primary: the first record that
            arrives must link to this one, our last, or the primary is refused (`primary_refused`). Nothing is handed
            on before that is known.
    """

    check_begin_lsn: Lsn
    check_tli: int
    begin_lsn: Lsn
    tli: int
    resumes: bool = False
    previous_record_lsn: Lsn | None = None
    log_tail: LogTail | None = None


@dataclass(frozen=True, slots=True)
class StopReplication:
    """Close the replication connection; connect anew and identify when that makes sense."""

    reason: str


@dataclass(frozen=True, slots=True)
class RefusePrimary:
    """Close the connection to this primary, take nothing more of it, and try another host; never this one at once.

    In place of `Finish`, where there are several hosts. Whoever finds that every one of them is refused ends the run.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Tell PostgreSQL the quorum's positions (S1). All 0: nothing is known in this term yet."""

    write_lsn: Lsn
    flush_lsn: Lsn
    apply_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Stop for good: fenced, or the primary or the configuration is refused."""

    error: WalproxyError


Action = (
    SendMessage
    | SendAppend
    | Disconnect
    | IdentifyPrimary
    | StartReplication
    | StopReplication
    | RefusePrimary
    | ReportStatus
    | Note
    | Finish
)
