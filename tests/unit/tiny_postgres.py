"""A server that logs clients of libpq in and replies to simple queries with texts, to see when and how they connect."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

Row = tuple[str | None, ...]


class TinyPostgres:
    """The server. A query without an answer is not replied to.

    Attributes:
        conninfo: its connection string, while it listens.
        logins: the parameters of each login, also of one that was refused.
        refused: how many of them were refused.
        refuse: return (SQLSTATE, message) to refuse a login, None to accept it.
        queries: what was executed, but for empty queries.
        clients: the connections that are open.
    """

    def __init__(self, version: str = "13.0", answers: Mapping[str, Row] | None = None) -> None:
        self.conninfo = ""
        self.logins: list[dict[str, str]] = []
        self.refused = 0
        self.refuse: Callable[[dict[str, str]], tuple[str, str] | None] = lambda parameters: None
        self.queries: list[str] = []
        self.clients: list[asyncio.StreamWriter] = []
        self._version = version
        self._answers = answers or {}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["TinyPostgres"]:
        """Listen for the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            self.conninfo = f"host=127.0.0.1 port={port} user=walproxy sslmode=disable gssencmode=disable"
            yield self
        finally:
            server.close()
            for client in list(self.clients):
                client.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            words = (await reader.readexactly(size - 4))[4:].rstrip(b"\0").decode().split("\0")
            parameters = dict(zip(words[::2], words[1::2], strict=True))
            self.logins.append(parameters)
            refusal = self.refuse(parameters)
            if refusal is not None:
                self.refused += 1
                writer.write(_error(*refusal))
            else:
                self.clients.append(writer)
                writer.write(self._welcome())
                await self._reply(reader, writer)
        if writer in self.clients:
            self.clients.remove(writer)
        writer.close()

    def _welcome(self) -> bytes:
        settings = {"server_version": self._version, "client_encoding": "UTF8", "integer_datetimes": "on"}
        shown = b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in settings.items())
        return _message(b"R", bytes(4)) + shown + _message(b"K", bytes(8)) + _READY

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (kind := await reader.readexactly(1)) != b"X":
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            text = (await reader.readexactly(size - 4)).rstrip(b"\0").decode()
            assert kind == b"Q", kind
            if not text:
                writer.write(_message(b"I") + _READY)
                continue
            self.queries.append(text)
            row = self._answers.get(text)
            if row is not None:
                writer.write(_row(row) + _message(b"C", b"SELECT 1\0") + _READY)


def _message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


def _error(sqlstate: str, text: str) -> bytes:
    fields = (("S", "FATAL"), ("V", "FATAL"), ("C", sqlstate), ("M", text))
    return _message(b"E", b"".join(f"{name}{value}\0".encode() for name, value in fields) + b"\0")


def _row(row: Row) -> bytes:
    columns = b"".join(b"c\0" + struct.pack(">ihihih", 0, 0, 25, -1, -1, 0) for _ in row)
    values = [value.encode() if value is not None else None for value in row]
    fields = b"".join(struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each for each in values)
    count = struct.pack(">h", len(row))
    return _message(b"T", count + columns) + _message(b"D", count + fields)


_READY = _message(b"Z", b"I")
