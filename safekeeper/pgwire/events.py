"""What a client did, as `Session.receive` tells it. The order is that of the bytes.

The shell acts on each: StartTls begins the handshake, CommandReceived wants an answer, the two positions' messages go
to the part that tracks standbys, CopyEnded and Terminated end things. Authenticated and CommandRefused are for the log,
and for limits that hold by user: the session has already answered.
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
    """The client wants TLS now: write what is to be sent, then hand `data` and what follows to the handshake.

    `direct` is a client that began with TLS and asked nothing (sslnegotiation=direct); `data` is what it sent of it.
    """

    direct: bool
    data: bytes = b""


class Authenticated(msgspec.Struct, frozen=True):
    """The client is let in.

    `options` are the settings that it asked for, by name in lower case. `application_name` is printable ASCII of at
    most 63 characters, as PostgreSQL would show it.
    """

    user: str
    application_name: str
    options: dict[str, str]


class CommandReceived(msgspec.Struct, frozen=True):
    """The client asks, and waits for an answer."""

    command: AnswerableCommand


class CommandRefused(msgspec.Struct, frozen=True):
    """The client asked for what cannot be had here, and has been told so."""

    sqlstate: str
    message: str


class StatusUpdate(msgspec.Struct, frozen=True, gc=False):
    """How far the client has written, made durable and replayed what it got; 0 is "nothing said"."""

    write_lsn: Lsn
    flush_lsn: Lsn
    apply_lsn: Lsn
    reply_requested: bool


class HotStandbyFeedback(msgspec.Struct, frozen=True, gc=False):
    """The oldest transactions that the standby's queries can still see, as epoch << 32 | xid; 0 is none."""

    xmin: int
    catalog_xmin: int


class CopyEnded(msgspec.Struct, frozen=True):
    """The client will send no more in this COPY."""


class Terminated(msgspec.Struct, frozen=True):
    """The client has said good-bye, or wanted no more than to cancel something. Close the connection."""


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
