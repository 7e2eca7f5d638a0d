"""A network with faults: `python -m walproxy.lab.testing.relay [HOST:PORT]`, a process that TCP connections pass
through.

It listens at HOST:PORT (by default any port of the loopback interface), prints that port, and receives commands there
(walproxy/lab/testing/relay_control.py), one JSON object a line, each answered by one: open a link, which is a port
whose connections lead to a target, or hold or delay what passes a link.

A held direction is what a partition is to TCP: bytes stay where they are, the sender's window fills, the connection
lives, and what was sent arrives when the partition has ended, however late. Nothing is lost in the middle of a stream:
TCP does not do that either. A connection that begins while either direction is held waits, as its first packets would.

A delayed byte passes a number of milliseconds later, both ways. The loop waits with select(), whose timeouts are of
microseconds; those of epoll are of milliseconds.
"""

import asyncio
import contextlib
import selectors
import sys
from typing import Literal

import msgspec

Direction = Literal["both", "to", "from", "none"]
"""The directions that a partition holds: both, those to or from the target, none."""

_CHUNK_BYTES = 1 << 18
_PIECES_UNDER_WAY = 256


class Open(msgspec.Struct, frozen=True, tag="open", forbid_unknown_fields=True):
    """Open the link `name` at `port` (0: any that is free) to `target_host`:`target_port`."""

    name: str
    target_host: str
    target_port: int
    port: int = 0


class Hold(msgspec.Struct, frozen=True, tag="hold", forbid_unknown_fields=True):
    """Hold what passes the link in these directions, and let pass what goes in the others."""

    name: str
    direction: Direction


class Delay(msgspec.Struct, frozen=True, tag="delay", forbid_unknown_fields=True):
    """Let what comes from now on pass the link later by this delay."""

    name: str
    delay_ms: float


class Ping(msgspec.Struct, frozen=True, tag="ping", forbid_unknown_fields=True):
    """Answer."""


Order = Open | Hold | Delay | Ping


class Answer(msgspec.Struct, frozen=True):
    """Done, at this port; or what was wrong."""

    port: int = 0
    problem: str = ""


class _Link:
    """A port, and whether what comes there passes."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = target_host, target_port
        self._passes_to, self._passes_from = asyncio.Event(), asyncio.Event()
        self.delay_s = 0.0
        self.hold("none")

    def hold(self, direction: Direction) -> None:
        """Hold these directions and no other."""
        for passes, held_by in ((self._passes_to, "to"), (self._passes_from, "from")):
            if direction in ("both", held_by):
                passes.clear()
            else:
                passes.set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on to its end."""
        while not (self._passes_to.is_set() and self._passes_from.is_set()):
            await self._passes_to.wait()
            await self._passes_from.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=_CHUNK_BYTES)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._pass_on(reader, far_writer, self._passes_to), self._pass_on(far_reader, writer, self._passes_from)
        )

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        """Write what is read, in its order, each piece when its time has come; then the end."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_UNDER_WAY)

        async def write() -> None:
            while True:
                due, piece = await pieces.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await passes.wait()
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()

        async def read() -> None:
            piece = b"-"
            while piece:
                await passes.wait()
                piece = await reader.read(_CHUNK_BYTES)
                await pieces.put((loop.time() + self.delay_s, piece))

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(write())
                tasks.create_task(read())
        except* OSError:
            pass  # Reset, or no longer reachable: the other end's connection is closed.
        finally:
            writer.close()


class _Relay:
    """All links of a process, and who listens for what to do with them."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._links: dict[str, _Link] = {}
        self._servers: list[asyncio.Server] = []

    async def serve(self, port: int) -> None:
        """Take orders until the process is ended."""
        server = await asyncio.start_server(self._take_orders, self._host, port)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()

    async def _take_orders(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await self._carry_out(line)) + b"\n")
                await writer.drain()

    async def _carry_out(self, line: bytes) -> Answer:
        try:
            order = msgspec.json.decode(line, type=Order)
            if isinstance(order, Open):
                return Answer(port=await self._open(order))
            if isinstance(order, Ping):
                return Answer()
            link = self._links[order.name]
            if isinstance(order, Hold):
                link.hold(order.direction)
            else:
                link.delay_s = order.delay_ms / 1000
            return Answer()
        except KeyError as error:
            return Answer(problem=f"unknown link {error}")
        except (OSError, msgspec.DecodeError) as error:
            return Answer(problem=str(error))

    async def _open(self, order: Open) -> int:
        link = _Link(order.target_host, order.target_port)
        server = await asyncio.start_server(link.connect, self._host, order.port, limit=_CHUNK_BYTES)
        self._servers.append(server)
        self._links[order.name] = link
        port: int = server.sockets[0].getsockname()[1]
        return port


def _main() -> None:
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:0").rpartition(":")
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_Relay(host).serve(int(port)))


if __name__ == "__main__":
    _main()
