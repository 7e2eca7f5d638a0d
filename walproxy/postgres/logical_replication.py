"""The client's side of a logical replication stream, without waiting: its begin, what arrives, its end.

As `replication_protocol` for the physical one: commands are generators for the shells of `waiting`, the stream is a
`LogicalStream` whose owner waits for the socket. Messages of the output plugin are passed on as bytes. A server also
sends its position: every transaction whose commit record begins below it was sent before.

No clock, no socket, no thread: only what libpq has read already, and what it is given to send.
Source: https://www.postgresql.org/docs/current/protocol-logical-replication.html

All functions raise
    ServerRefused: the server answered with an error.
    RemoteProtocolError: the answer cannot be parsed (S11).
    psycopg.Error: the connection broke.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
import psycopg
from psycopg import pq

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.postgres.replication import TAG_XLOG_DATA, XLOG_DATA, XLOG_DATA_SIZE, Keepalive, parse_copy_message
from walproxy.postgres.replication_protocol import IDLE_PASSES_TLS, Conversation, SocketEvent, end_copy, run_command

WAITING_READER: Final = "walproxy apply"
"""application_name of a session whose reader shows nothing before the quorum has it (S7a)."""

Item: TypeAlias = tuple[Lsn, bytes]
"""(LSN, message of the plugin), where the LSN may be 0; or (position of the server, nothing)."""


def start_logical(pgconn: pq.abc.PGconn, slot: str, begin_lsn: Lsn, options: Mapping[str, str]) -> Conversation[None]:
    """Begin to stream a slot: transactions whose commit record begins at or beyond `begin_lsn` and its own position.

    Args:
        options: of the output plugin.
    """
    words = ", ".join(f"{_identifier(name)} {_literal(value)}" for name, value in options.items())
    command = f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL {format_lsn(begin_lsn)} ({words})"
    for result in (yield from run_command(pgconn, command)):
        if result.status == pq.ExecStatus.COPY_BOTH:
            return
    raise RemoteProtocolError("PostgreSQL answered START_REPLICATION without a stream")


class ArrivedItems(msgspec.Struct, frozen=True, gc=False):
    """The result of one `LogicalStream.read`.

    Attributes:
        items: messages and positions in the order of the server.
        size: bytes of them.
        reply_requested: the server requests a status update.
        is_over: the server has ended the stream.
        broken: the connection broke after these items.
        is_drained: the socket shows when more arrives; if not, `read` again before waiting for it.
    """

    items: list[Item]
    size: int
    reply_requested: bool
    is_over: bool
    broken: psycopg.Error | None
    is_drained: bool


class LogicalStream:
    """What one START_REPLICATION sends."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._is_tls = bool(pgconn.ssl_in_use)
        self._idle_passes = 0

    def read(self, has_waited: bool) -> ArrivedItems:
        """Take all complete messages that have arrived; it may be none.

        Args:
            has_waited: the socket became readable since the last call, or may have.
        """
        broken: psycopg.Error | None = None
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            broken = error  # What arrived before is still there to be taken.
        get_copy_data = self._pgconn.get_copy_data
        items: list[Item] = []
        arrived_bytes = 0
        reply_requested = False
        while True:
            size, data = get_copy_data(1)
            if size <= 0:
                break
            arrived_bytes += size
            if size > XLOG_DATA_SIZE and data[0] == TAG_XLOG_DATA:
                items.append((XLOG_DATA.unpack_from(data)[1], bytes(data[XLOG_DATA_SIZE:])))
                continue
            message = parse_copy_message(data)
            assert isinstance(message, Keepalive)  # the other kind was taken above
            items.append((message.server_end_lsn, b""))
            reply_requested = reply_requested or message.reply_requested
        is_drained = True
        if self._is_tls:
            self._idle_passes = 0 if items else (0 if has_waited else self._idle_passes) + 1
            is_drained = self._idle_passes >= IDLE_PASSES_TLS
        return ArrivedItems(items, arrived_bytes, reply_requested, size == -1, broken, is_drained)


def end_logical(pgconn: pq.abc.PGconn) -> Conversation[None]:
    """End a stream: the server has every status update, and has released the slot, when it answers.

    What it has sent meanwhile is discarded.
    """
    pgconn.put_copy_end()
    while pgconn.flush() == 1:
        yield SocketEvent.WRITE
    while True:
        size, _ = pgconn.get_copy_data(1)
        if size == -1:
            break
        if size == 0:
            yield SocketEvent.READ
            pgconn.consume_input()
    yield from end_copy(pgconn)


def _identifier(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
