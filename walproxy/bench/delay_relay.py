"""A network that takes its time: `python -m walproxy.bench.delay_relay MS LISTEN_PORT TARGET_PORT`.

Passes TCP connections on, each byte MS milliseconds later, both ways. How much is under way is not bounded but by what
the ends send. The loop waits with select(), whose timeouts are of microseconds; those of epoll are of milliseconds.
"""

import asyncio
import selectors
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from safekeeper.errors import WalproxyError
from walproxy.local_postgres import end_with_parent, free_port

_CHUNK_BYTES = 1 << 18
_START_TIMEOUT_S = 10.0


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Write what is read, in its order, each piece when its time has come; then the end."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        while True:
            due, piece = await pieces.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if not piece:
                return
            writer.write(piece)

    writing = asyncio.create_task(write())
    try:
        piece = b"-"
        while piece:
            piece = await reader.read(_CHUNK_BYTES)
            pieces.put_nowait((loop.time() + delay_s, piece))
        await writing
    except ConnectionError:
        pass  # The other end is told by closing its connection.
    finally:
        writing.cancel()
        writer.close()


async def _serve(delay_s: float, listen_port: int, target_port: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port, limit=_CHUNK_BYTES)
        except ConnectionError:
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, far_writer, delay_s), _pass_on(far_reader, writer, delay_s))

    server = await asyncio.start_server(connect, "127.0.0.1", listen_port, limit=_CHUNK_BYTES)
    await server.serve_forever()


class DelayRelays:
    """Relays of one delay, each a process of its own; they end with the block."""

    def __init__(self, delay_ms: float) -> None:
        self._delay_ms = delay_ms
        self._processes = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._processes.close()

    def through(self, target_port: int) -> int:
        """Return a port whose connections lead to `target_port`, which need not be there yet.

        Raises:
            WalproxyError: the relay does not start.
        """
        listen_port = free_port()
        arguments = [str(self._delay_ms), str(listen_port), str(target_port)]
        process = subprocess.Popen([*end_with_parent("KILL"), sys.executable, "-m", __name__, *arguments])
        self._processes.callback(process.wait)
        self._processes.callback(process.kill)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _listens(listen_port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise WalproxyError(f"the relay to port {target_port} does not listen at port {listen_port}")
            time.sleep(0.02)
        return listen_port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _main() -> None:
    delay_ms, listen_port, target_port = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_serve(delay_ms / 1000, listen_port, target_port))


if __name__ == "__main__":
    _main()
