"""A network that takes its time: `python -m walproxy.bench.delay_relay MS TARGET_PORT`.

Prints the port that it listens at, and passes TCP connections on, each byte MS milliseconds later, both ways. How much
is under way is not bounded but by what the ends send. The loop waits with select(), whose timeouts are of microseconds;
those of epoll are of milliseconds.
"""

import asyncio
import selectors
import subprocess
import sys
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from safekeeper.errors import WalproxyError
from walproxy.local_postgres import end_with_parent

_CHUNK_BYTES = 1 << 18


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


async def _serve(delay_s: float, target_port: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port, limit=_CHUNK_BYTES)
        except ConnectionError:
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, far_writer, delay_s), _pass_on(far_reader, writer, delay_s))

    server = await asyncio.start_server(connect, "127.0.0.1", 0, limit=_CHUNK_BYTES)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


class DelayRelays:
    """Relays of one delay, each a process of its own; they end with the block. No delay needs none."""

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
        if not self._delay_ms:
            return target_port
        command = [sys.executable, "-m", __name__, str(self._delay_ms), str(target_port)]
        process = subprocess.Popen([*end_with_parent("KILL"), *command], stdout=subprocess.PIPE, text=True)
        self._processes.enter_context(process)
        self._processes.callback(process.kill)
        assert process.stdout is not None  # a pipe, as asked for
        port = process.stdout.readline()
        if not port:
            raise WalproxyError(f"the relay to port {target_port} has ended with code {process.wait()}")
        return int(port)


def _main() -> None:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_serve(float(sys.argv[1]) / 1000, int(sys.argv[2])))


if __name__ == "__main__":
    _main()
