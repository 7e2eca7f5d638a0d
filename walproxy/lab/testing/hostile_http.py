"""Clients that use the HTTP listeners of our daemons as badly as a stranger can. A process of its own, loopback only.

    python walproxy/lab/testing/hostile_http.py pipelined 60 20 127.0.0.1:8071 127.0.0.1:8081

That number of connections to each address for that many seconds; a connection that is closed is opened again after
RECONNECT_S, or at once if its kind is connects. The last line of the output is JSON: connections opened, connections
that failed, bytes sent, bytes read.
It needs the standard library alone, so that it also runs beside the daemons of another version.

    pipelined   1,700 requests for /metrics in one write of 63 kB, and again when all answers are read
    sequential  a request for /metrics when the last answer is read
    slow        a request, one byte of it at a time, never complete
    half-open   half a request, and nothing more
    opening     a connection that is closed at once
    connects    the same, opened again at once, without a pause
    streams     a request for /live, whose frames are never read
    headers     a request with 50 kB of header lines, again and again
    handshakes  the first message of a TLS handshake, and again
"""

import asyncio
import ipaddress
import json
import random
import socket
import ssl
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

RECONNECT_S = 0.5
CONNECTIONS_MAX = 2000
SECONDS_MAX = 3600.0
_PIPELINED = 1700
_SLOW_S = 0.02
_READ_BYTES = 256 << 10
_RESET = struct.pack("ii", 1, 0)

_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TLS.check_hostname, _TLS.verify_mode = False, ssl.CERT_NONE

Target = tuple[str, int]


class Counts:
    """What the clients have done."""

    def __init__(self) -> None:
        self.opened = self.failed = self.sent_bytes = self.read_bytes = 0


class Hostile:
    """One connection after the other of one kind, to one address, until the deadline."""

    def __init__(self, kind: str, target: Target, deadline: float, counts: Counts) -> None:
        self._use: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] = {
            "pipelined": self._pipeline,
            "sequential": self._ask,
            "slow": self._drip,
            "half-open": self._half_open,
            "opening": self._open_only,
            "connects": self._open_only,
            "streams": self._stream,
            "headers": self._send_headers,
            "handshakes": self._shake_hands,
        }[kind]
        self._pause_s = 0.0 if kind == "connects" else RECONNECT_S
        self._target = target
        self._deadline = deadline
        self._counts = counts

    async def run(self) -> None:
        """Connect again and again until the deadline."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                # Not all at the same moment: 1,000 SYNs at once measure the kernel.
                await asyncio.sleep(random.random() * RECONNECT_S)
                while True:
                    await self._connect_and_use()
                    await asyncio.sleep(self._pause_s)

    async def _connect_and_use(self) -> None:
        try:
            reader, writer = await asyncio.open_connection(*self._target, limit=_READ_BYTES)
        except OSError:
            self._counts.failed += 1
            return
        self._counts.opened += 1
        if not self._pause_s:
            # Reset when it is closed: else its port is not free again for a minute, and 28,000 connections are all.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        try:
            await self._use(reader, writer)
        except OSError:
            pass  # The daemon has closed it, which is what it should do.
        finally:
            writer.transport.abort()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        self._counts.sent_bytes += len(data)
        await writer.drain()

    async def _read_until_closed(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_READ_BYTES):
            self._counts.read_bytes += len(data)

    async def _read_answers(self, reader: asyncio.StreamReader, number: int) -> None:
        for _ in range(number):
            header = await self._until(reader, b"\r\n\r\n")
            size = int(header.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            try:
                self._counts.read_bytes += len(await reader.readexactly(size))
            except asyncio.IncompleteReadError as end:
                raise ConnectionError("closed") from end

    async def _until(self, reader: asyncio.StreamReader, end: bytes) -> bytes:
        try:
            return await reader.readuntil(end)
        except asyncio.IncompleteReadError as closed:
            raise ConnectionError("closed") from closed

    async def _pipeline(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._send(writer, b"GET /metrics HTTP/1.1\r\nHost:[::1]\r\n\r\n" * _PIPELINED)
            await self._read_answers(reader, _PIPELINED)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._send(writer, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await self._read_answers(reader, 1)

    async def _drip(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Slow: 1\r\n" * 6000:
            await self._send(writer, bytes((byte,)))
            if reader.at_eof():
                return
            await asyncio.sleep(_SLOW_S)

    async def _half_open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._send(writer, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        await self._read_until_closed(reader)

    async def _open_only(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await self._send(writer, b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        # That it was closed is noticed by writing alone: nothing is read.
        while not writer.transport.is_closing():
            await asyncio.sleep(1)
            await self._send(writer, b"\r\n")

    async def _send_headers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"a:b\r\n" * 10_000 + b"\r\n"
        while True:
            await self._send(writer, request)
            await self._read_answers(reader, 1)

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outgoing = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            _TLS.wrap_bio(ssl.MemoryBIO(), outgoing, server_side=False).do_handshake()
        await self._send(writer, outgoing.read())
        self._counts.read_bytes += len(await reader.read(_READ_BYTES))


async def attack(kind: str, connections: int, seconds: float, targets: Sequence[Target]) -> Counts:
    """Keep that number of connections of a kind to each target, for that long."""
    counts = Counts()
    deadline = asyncio.get_running_loop().time() + seconds
    everyone = [Hostile(kind, target, deadline, counts) for target in targets for _ in range(connections)]
    await asyncio.gather(*(each.run() for each in everyone))
    return counts


def main() -> None:
    """Read the command line, attack, print the counts."""
    kind, connections, seconds, *written = sys.argv[1:]
    targets = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in written)]
    if not all(ipaddress.ip_address(host).is_loopback for host, _ in targets):
        sys.exit("only addresses of this machine are attacked: 127.0.0.1:PORT")
    if int(connections) > CONNECTIONS_MAX or float(seconds) > SECONDS_MAX:
        sys.exit(f"at most {CONNECTIONS_MAX} connections, for at most {SECONDS_MAX:g} s")
    began_at = time.monotonic()
    counts = asyncio.run(attack(kind, int(connections), float(seconds), targets))
    print(json.dumps({**vars(counts), "seconds": round(time.monotonic() - began_at, 1)}))


if __name__ == "__main__":
    main()
