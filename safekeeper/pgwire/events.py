"""The events that `Session.receive` returns, in the order of the received bytes.

The owner handles each: StartTls begins the handshake, CommandReceived requires an answer, the two position reports go
to the part that tracks standbys, CopyEnded and Terminated end the COPY or the connection. Authenticated and
CommandRefused are for the log, and for limits per user: the session has already replied.
"""

from typing import TypeAlias

import msgspec

from safekeeper.base.lsn import Lsn
from safekeeper.pgwire.commands import (
    CreateSlot,
    DropSlot,
    IdentifySystem,
    ReadSlot,
    Select,
    SetName,
    Show,
    StartReplication,
    TimelineHistory,
)

AnswerableCommand: TypeAlias = (
    IdentifySystem | Show | TimelineHistory | CreateSlot | ReadSlot | DropSlot | StartReplication | Select | SetName
)


class StartTls(msgspec.Struct, frozen=True):
    """The client starts TLS: write the pending output, then pass `data` and everything after it to the handshake.

    `data` is what was received so far of a client that began with TLS without a request (sslnegotiation=direct).
    """

    data: bytes


class Authenticated(msgspec.Struct, frozen=True):
    """The client is authenticated.

    `options` are the settings that it requested, by name in lower case. `application_name` is printable ASCII of at
    most 63 characters, as PostgreSQL would show it.
    """

    user: str
    application_name: str
    options: dict[str, str]


class CommandReceived(msgspec.Struct, frozen=True):
    """The client sent a command and waits for the answer."""

    command: AnswerableCommand


class CommandRefused(msgspec.Struct, frozen=True):
    """The client sent a command that is not supported here; the session has replied with an error."""

    sqlstate: str
    message: str


class StatusUpdate(msgspec.Struct, frozen=True, gc=False):
    """The positions to which the client has written, flushed and replayed WAL; 0 is "not reported"."""

    write_lsn: Lsn
    flush_lsn: Lsn
    apply_lsn: Lsn
    reply_requested: bool


class HotStandbyFeedback(msgspec.Struct, frozen=True, gc=False):
    """The oldest transactions that the standby's queries can still see, as epoch << 32 | xid; 0 is none."""

    xmin: int
    catalog_xmin: int


class CopyEnded(msgspec.Struct, frozen=True):
    """The client sends no more data in this COPY."""


class Terminated(msgspec.Struct, frozen=True):
    """The client sent Terminate, or only a cancel request. Close the connection."""


Event: TypeAlias = (
    StartTls
    | Authenticated
    | CommandReceived
    | CommandRefused
    | StatusUpdate
    | HotStandbyFeedback
    | CopyEnded
    | Terminated
)
