"""The effects that the acceptor requests from its shell.

The acceptor's handlers are generators: each `yield` passes one effect to the shell, which executes it *before* it
resumes the handler. So a reply that follows a `Persist` in the code cannot be sent before the state is on disk (S2).
The shell resumes with the effect's result, or throws `StorageFull` into the handler if nothing was changed. Any other
failure ends the process (S12), and the handler never continues.
"""

from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import AcceptorMessage, AgentExchange, EventExchange, PeerRead


class Send(msgspec.Struct, frozen=True):
    """Send `message` on `connection`; dropped if that is closed."""

    connection: int
    message: AcceptorMessage


class Close(msgspec.Struct, frozen=True):
    """Close `connection` once everything sent on it is written; `reason` is for the log."""

    connection: int
    reason: str


class WriteWal(msgspec.Struct, frozen=True):
    """Write WAL at the write position to the operating system. May throw `StorageFull`: then nothing was written."""

    begin_lsn: Lsn
    payload: bytes | memoryview


class FlushWal(msgspec.Struct, frozen=True):
    """Flush all WAL that was written, and return only then."""


class Persist(msgspec.Struct, frozen=True):
    """Replace the control file. May throw `StorageFull`: then the old one is unchanged."""

    control: ControlState


class TruncateWal(msgspec.Struct, frozen=True):
    """Cut the WAL at `lsn`; what follows belongs to timeline `tli`. Repeatable."""

    lsn: Lsn
    tli: int


class ResetWal(msgspec.Struct, frozen=True):
    """Remove all WAL and begin again at `base_lsn`, a segment start. Repeatable."""

    base_lsn: Lsn
    tli: int


class TrimWal(msgspec.Struct, frozen=True):
    """Remove the segments that end at or below `lsn`, a segment start. Repeatable."""

    lsn: Lsn


class SetWalAside(msgspec.Struct, frozen=True):
    """Rename the folder's WAL so that it is kept for the operator. Repeatable."""

    label: str


class InspectSetAside(msgspec.Struct, frozen=True):
    """Return why the WAL of `control` that was set aside under `label` cannot be restored, empty if it can."""

    label: str
    control: ControlState


class RestoreWal(msgspec.Struct, frozen=True):
    """Move the WAL that was set aside under `label` back, and return its end, 0 if there is none. Repeatable."""

    label: str


class ReadWal(msgspec.Struct, frozen=True):
    """Return the bytes [begin_lsn, end_lsn)."""

    begin_lsn: Lsn
    end_lsn: Lsn


class ServeRead(msgspec.Struct, frozen=True):
    """Read the range of `request`, while other events continue, and answer it on `connection` (`ReadResponse`).

    Only if the acceptor still `serves` the request after the read: otherwise the bytes may be those of another log. The
    shell refuses a request whose WAL cannot be read.
    """

    connection: int
    request: PeerRead


class ServeAgent(msgspec.Struct, frozen=True):
    """Answer an agent on `connection` (`AgentView`), while other events continue. Changes nothing of the acceptor."""

    connection: int
    exchange: AgentExchange


class ServeEvents(msgspec.Struct, frozen=True):
    """Keep the events of `connection`'s peer and answer it (`EventPage`). Changes nothing of the acceptor."""

    connection: int
    exchange: EventExchange


class DigestWal(msgspec.Struct, frozen=True):
    """Return the CRC-32C of each page of [begin_lsn, end_lsn), as a tuple of int."""

    begin_lsn: Lsn
    end_lsn: Lsn


class FindRecords(msgspec.Struct, frozen=True):
    """Return (end of the record that begins at `lsn`, start of the last record below `lsn`, LogTail or None).

    0 stands for unknown. The tail is that of the log cut at `lsn`, a segment's start; None for any other position.
    """

    lsn: Lsn


class FindRecordEnd(msgspec.Struct, frozen=True):
    """Return the end of the first complete record after `lsn`, 0 if the log does not yet contain all of it.

    `lsn` is a fork, or a segment's start: a record that continues there from before counts.
    `lsn` itself if the WAL there cannot be decoded: as with `FindRecords`, undecodable WAL counts as complete.
    """

    lsn: Lsn


class FindTimedRecord(msgspec.Struct, frozen=True):
    """Return the start of a timed record in [begin_lsn, end_lsn), in the newest segment there that has one.

    0 if there is none. `begin_lsn` is a segment's start.
    """

    begin_lsn: Lsn
    end_lsn: Lsn


Effect = (
    Send
    | Close
    | WriteWal
    | FlushWal
    | Persist
    | TruncateWal
    | ResetWal
    | TrimWal
    | SetWalAside
    | InspectSetAside
    | RestoreWal
    | ReadWal
    | ServeRead
    | ServeAgent
    | ServeEvents
    | DigestWal
    | FindRecords
    | FindRecordEnd
    | FindTimedRecord
)
_Result = TypeVar("_Result")
EffectsThen = Generator[Effect, Any, _Result]
Effects = EffectsThen[None]
