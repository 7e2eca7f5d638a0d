"""A replication client that does what the test says: one blocking connection to a safekeeper's replication listener."""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from safekeeper.base.lsn import format_lsn, parse_lsn
from walproxy.postgres.replication import (
    Keepalive,
    XLogData,
    build_hot_standby_feedback,
    build_status_update,
    parse_copy_message,
)

DEADLINE_S = 20.0
PROTOCOL_3_0 = 3 << 16


class ServerError(Exception):
    """The server said so. `fields` are those of its ErrorResponse, by code."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(f"{fields['S']} {fields['C']}: {fields['M']}")
        self.fields = fields

    @property
    def sqlstate(self) -> str:
        return self.fields["C"]


@dataclass
class Reply:
    """What came for one command, up to ReadyForQuery."""

    columns: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)

    @property
    def row(self) -> list[str | None]:
        (row,) = self.rows
        return row


class CopyDone:
    """The server has ended its direction of the COPY."""


@dataclass
class Received:
    """The WAL that came in one stream, checked to be without a gap."""

    begin_lsn: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def end_lsn(self) -> int:
        return self.begin_lsn + len(self.data)


class ReplicationClient:
    """Connected and let in when made, unless `startup` is False."""

    def __init__(
        self,
        port: int,
        *,
        name: str = "standby1",
        user: str = "replicator",
        startup: bool = True,
        receive_buffer: int = 0,
        **parameters: str,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.parameters: dict[str, str] = {}
        self._buffer = bytearray()
        if startup:
            self.start_up({"user": user, "replication": "true", "application_name": name, **parameters})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.socket.close()

    # Messages.

    def start_up(self, parameters: dict[str, str]) -> None:
        """Send the startup packet and wait until commands may come."""
        body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
        self.socket.sendall(struct.pack(">II", len(body) + 8, PROTOCOL_3_0) + body)
        for kind, body in self.messages():
            if kind == "S":
                name, value = body.split(b"\0")[:2]
                self.parameters[name.decode()] = value.decode()
            elif kind == "Z":
                return

    def send(self, kind: bytes, body: bytes = b"") -> None:
        self.socket.sendall(kind + struct.pack(">I", len(body) + 4) + body)

    def receive(self) -> tuple[str, bytes]:
        """Return the next message.

        Raises:
            ServerError: it is an error.
            EOFError: the server has closed the connection.
        """
        while len(self._buffer) < 5 or len(self._buffer) < 1 + int.from_bytes(self._buffer[1:5]):
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._buffer += data
        end = 1 + int.from_bytes(self._buffer[1:5])
        kind, body = chr(self._buffer[0]), bytes(self._buffer[5:end])
        del self._buffer[:end]
        if kind == "E":
            raise ServerError({part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part})
        return kind, body

    def messages(self) -> Iterator[tuple[str, bytes]]:
        while True:
            yield self.receive()

    def is_closed(self) -> bool:
        """Wait until the server closes the connection; False if anything comes instead."""
        try:
            self.receive()
        except EOFError:
            return True
        return False

    # Commands.

    def query(self, text: str) -> Reply:
        """Send a command and return what comes for it.

        Raises:
            ServerError: the server refuses; the next command may come.
        """
        self.send(b"Q", text.encode() + b"\0")
        return self.reply()

    def reply(self) -> Reply:
        """Return what comes up to ReadyForQuery."""
        reply = Reply()
        try:
            for kind, body in self.messages():
                if kind == "Z":
                    return reply
                _read_reply(reply, kind, body)
        except ServerError as error:
            if error.fields["S"] != "FATAL":
                assert self.receive()[0] == "Z"
            raise
        raise AssertionError

    def start(self, begin_lsn: int, tli: int | None = 1, slot: str = "") -> Received:
        """Begin to stream."""
        self.send_start(begin_lsn, tli, slot)
        try:
            kind, _ = self.receive()
        except ServerError:
            assert self.receive()[0] == "Z"
            raise
        assert kind == "W", kind
        return Received(begin_lsn)

    def send_start(self, begin_lsn: int, tli: int | None = 1, slot: str = "") -> None:
        text = "START_REPLICATION" + (f' SLOT "{slot}"' if slot else "") + f" {format_lsn(begin_lsn)}"
        self.send(b"Q", (text + (f" TIMELINE {tli}" if tli is not None else "")).encode() + b"\0")

    # In COPY.

    def receive_copy(self) -> XLogData | Keepalive | CopyDone:
        """Return the next message of the COPY."""
        kind, body = self.receive()
        if kind == "c":
            return CopyDone()
        assert kind == "d", (kind, body)
        return parse_copy_message(memoryview(body))

    def receive_wal(self, received: Received, end_lsn: int) -> bytes:
        """Receive up to `end_lsn` exactly; return all that `received` holds."""
        while received.end_lsn < end_lsn:
            message = self.receive_copy()
            if isinstance(message, XLogData):
                assert message.begin_lsn == received.end_lsn
                assert received.end_lsn + len(message.payload) <= message.server_end_lsn
                received.data += message.payload
        assert received.end_lsn == end_lsn
        return bytes(received.data)

    def report(self, write_lsn: int, flush_lsn: int, apply_lsn: int, *, reply: bool = False) -> None:
        update = build_status_update(write_lsn, flush_lsn, apply_lsn, 1_700_000_000_000_000, reply)
        self.send(b"d", update)

    def report_xmin(self, xmin: int, epoch: int) -> None:
        self.send(b"d", build_hot_standby_feedback(1_700_000_000_000_000, xmin, epoch))

    def ping(self) -> Keepalive:
        """Ask for a word and return it; nothing else may come before it."""
        self.report(0, 0, 0, reply=True)
        answer = self.receive_copy()
        assert isinstance(answer, Keepalive), answer
        return answer

    def end_copy(self) -> Reply:
        """End our direction of the COPY and return what follows the server's."""
        self.send(b"c")
        while not isinstance(message := self.receive_copy(), CopyDone):
            assert isinstance(message, Keepalive | XLogData)
        return self.reply()

    def identify(self) -> tuple[int, int]:
        """Return the server's (TLI, end of WAL)."""
        row = self.query("IDENTIFY_SYSTEM").row
        assert row[1] is not None and row[2] is not None
        return int(row[1]), parse_lsn(row[2])


def _read_reply(reply: Reply, kind: str, body: bytes) -> None:
    position = 2
    if kind == "T":
        for _ in range(int.from_bytes(body[:2])):
            end = body.index(b"\0", position)
            reply.columns.append(body[position:end].decode())
            reply.types.append(int.from_bytes(body[end + 7 : end + 11]))
            position = end + 19
    elif kind == "D":
        row: list[str | None] = []
        for _ in range(int.from_bytes(body[:2])):
            length = int.from_bytes(body[position : position + 4], signed=True)
            position += 4
            row.append(body[position : position + length].decode() if length >= 0 else None)
            position += max(0, length)
        reply.rows.append(row)
    elif kind == "C":
        reply.tags.append(body[:-1].decode())
    else:
        raise AssertionError(f"unexpected {kind!r}")
