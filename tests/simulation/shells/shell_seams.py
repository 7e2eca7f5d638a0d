"""What a real safekeeper has in the simulation instead of threads, sockets and time.

Node, ProposerListener and DataFolder are the product's. A `VirtualWorker` stands for each thread: its jobs are done one
after the other, each at one moment, some time after it was submitted; the loop learns the result later still. Meanwhile
the loop goes on. A `VirtualTransport` stands for a socket: it passes on the bytes of the virtual network's messages in
pieces of any size, keeps those for which there is no room, and at times does not get rid of what is written.
"""

import asyncio
import contextvars
import logging
import random
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

from safekeeper.node import agent_registry, state_log
from safekeeper.node import node as node_module
from safekeeper.node import proposer_listener as listener_module
from safekeeper.peers.codec import ACCEPTOR_DIALECT, Dialect, FrameDecoder
from safekeeper.storage import data_folder as data_folder_module
from safekeeper.storage import disk_space
from tests.simulation.checks.violation import Violation
from tests.simulation.model.clock import Clock, MachineClock
from tests.simulation.model.network import Connection
from tests.simulation.model.virtual_disk import VirtualCrash
from tests.simulation.model.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.shells.real_safekeeper import RealSafekeeper
    from tests.simulation.world.world import World

RESOLUTION_S = 1e-6
WAKES_WITHIN_S = 0.002
# So many reads get a part of what is there, and so many come late, with what has arrived meanwhile.
SPLIT, LATE = 0.15, 0.3
# So often a peer does not read for a while; meanwhile so many bytes fit into the socket.
STALLS, STALLS_S_MAX, SOCKET_BYTES = 0.01, 0.3, 100


def running_shell() -> "RealSafekeeper":
    """Return the safekeeper whose loop runs at this moment."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return cast("RealSafekeeper", loop.owner)


class ShellLoop(VirtualLoop):
    """The loop of a node."""

    def __init__(self, clock: Clock | MachineClock, rng: random.Random, delay_s: float, owner: Any) -> None:
        super().__init__(clock, rng, delay_s, owner)
        self._coroutines: list[Coroutine[Any, Any, Any]] = []

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        self._coroutines.append(coro)
        return super().create_task(coro, name=name, context=context)

    def end(self) -> None:
        """End the process: its coroutines end now, and what they do at their end has no effect."""
        super().end()
        coroutines, self._coroutines = self._coroutines, []
        for coroutine in coroutines:
            if not getattr(coroutine, "cr_running", False):
                coroutine.close()

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        # What is left of a wait may be so little that it is lost in the sum: real time goes on by itself.
        return super().call_later(max(delay, RESOLUTION_S), callback, *args, context=context)

    async def create_connection(self, new_protocol: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect to another safekeeper, to pull WAL from it."""
        shell: RealSafekeeper = self.owner
        assert shell.real_puller is not None
        return await shell.real_puller.connect(new_protocol, host)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """The process ends where its disk decides so; what else a callback raises fails the run."""
        error = context.get("exception")
        if "handle" in context and isinstance(error, VirtualCrash):
            shell: RealSafekeeper = self.owner
            shell.world.clock.after(0.0, shell.is_dead, shell.life, error)
        else:
            super().call_exception_handler(context)


class VirtualWorker:
    """A thread of a node, and its queue."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        assert isinstance(loop, VirtualLoop)
        self.busy_s = 0.0
        self._loop = loop
        self._shell: RealSafekeeper = loop.owner
        self._jobs: deque[tuple[Callable[[], Any], Callable[..., Any], Any]] = deque()

    def submit(self, job: Callable[[], Any], done: Callable[..., Any], token: Any = None) -> None:
        """See Worker."""
        self._jobs.append((job, done, token))
        if len(self._jobs) == 1:
            self._begin()

    def stop(self) -> None:
        """See Worker."""

    def _begin(self) -> None:
        takes_s = self._shell.job_takes_s(self._jobs[0][2])
        # The disk has done it at some moment before the thread goes on.
        done_s = takes_s * self._shell.chance.random()
        self._shell.world.clock.after(done_s, self._work, takes_s - done_s)

    def _work(self, rest_s: float) -> None:
        if self._loop.is_closed():
            return
        job, done, token = self._jobs[0]
        result, error = None, None
        try:
            result = job()
        except VirtualCrash as crash:
            self._shell.is_dead(self._shell.life, crash)
            return
        except Exception as raised:
            if isinstance(raised, Violation | AssertionError):
                raise
            error = raised
        self._shell.world.clock.after(rest_s, self._returned, done, token, result, error)

    def _returned(self, done: Callable[..., Any], token: Any, result: Any, error: BaseException | None) -> None:
        if self._loop.is_closed():
            return
        self._jobs.popleft()
        self._loop.call_soon(done, token, result, error)
        if isinstance(error, Exception):
            self._loop.call_soon(self._shell.job_failed, token, error)
        if self._jobs:
            self._begin()


class _Socket:
    """The socket of a virtual transport, which has options."""

    family = socket.AF_INET

    def setsockopt(self, *_: int) -> None:
        """Set an option."""


class SocketOwner(Protocol):
    """The process that a virtual transport belongs to."""

    world: "World"
    chance: random.Random

    @property
    def loop(self) -> VirtualLoop:
        """The loop of its present life."""

    def may_send(self, message: Any, connection: Connection) -> bool:
        """Check a message that is written to a socket; return False if the process is dead."""

    def send(self, connection: Connection, message: Any) -> None:
        """Send a message that has left the socket."""

    def closed(self, connection: Connection) -> None:
        """Handle a connection that the process has closed."""


class VirtualTransport(asyncio.Transport):
    """A connection of the virtual network, as the real listener sees it, or the real link to a safekeeper.

    Args:
        sends: the messages that the process sends.
    """

    def __init__(self, shell: SocketOwner, connection: Connection, sends: Dialect[Any] = ACCEPTOR_DIALECT) -> None:
        super().__init__()
        self.connection = connection
        self._shell = shell
        self._protocol: asyncio.BufferedProtocol
        self._is_accepted = False
        self._incoming = bytearray()
        self._ends = False
        self._is_reading = True
        self._read_is_due = False
        self._decoder = FrameDecoder(sends)
        self._outgoing: list[Any] = []
        self._outgoing_bytes = 0
        self._is_stalled = False
        self._has_paused_writing = False
        self._is_closing = False
        self._is_lost = False

    # What the network has.

    def accepted(self, new_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """The loop has accepted the connection."""
        self._protocol = cast(asyncio.BufferedProtocol, new_protocol())
        self._is_accepted = True
        self._protocol.connection_made(self)
        self._read_soon()

    def arrived(self, data: bytes) -> None:
        """Bytes have reached the socket."""
        self._incoming += data
        self._read_soon()

    def ended(self, is_reset: bool) -> None:
        """The other side has closed, or the connection broke: then what was not read is lost."""
        self._ends = True
        if is_reset:
            self._incoming.clear()
            self._outgoing.clear()
            self._is_reading = True
        self._read_soon()

    def _read_soon(self) -> None:
        if self._read_is_due or not self._is_reading or self._is_closing or not self._is_accepted:
            return
        self._read_is_due = True
        chance, loop = self._shell.chance, self._shell.loop
        if chance.random() < LATE:
            self._shell.world.clock.after(WAKES_WITHIN_S * chance.random(), loop.call_soon, self._read)
        else:
            loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_is_due = False
        if not self._is_reading or self._is_closing:
            return
        if self._incoming:
            room = cast(memoryview, self._protocol.get_buffer(-1))
            size = min(len(room), len(self._incoming))
            assert size > 0, "the listener reads without room for what it reads"
            if self._shell.chance.random() < SPLIT:
                size = self._shell.chance.randint(1, size)
            room[:size] = self._incoming[:size]
            del self._incoming[:size]
            self._protocol.buffer_updated(size)
            if self._incoming or self._ends:
                self._read_soon()
        elif self._ends:
            self._protocol.eof_received()
            self.close()

    # What the protocol asks for.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return "10.0.0.1", self.connection.number
        return _Socket() if name == "socket" else default

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore them: nothing here is as large."""

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._incoming or self._ends:
            self._read_soon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        for message in self._decoder.feed(bytes(data)):
            if self._shell.may_send(message, self.connection):
                self._outgoing.append(message)
        self._outgoing_bytes += len(data)
        if not self._is_stalled and self._shell.chance.random() < STALLS and not self._shell.world.is_healing:
            self._is_stalled = True
            self._shell.world.counts.count("peers that did not read")
            delay_s = STALLS_S_MAX * self._shell.chance.random()
            self._shell.world.clock.after(delay_s, self._shell.loop.call_soon, self._flows_again)
        if not self._is_stalled:
            self._send_outgoing()
        elif self._outgoing_bytes > SOCKET_BYTES and not self._has_paused_writing:
            self._has_paused_writing = True
            self._shell.world.counts.count("connections that paused writing")
            # As asyncio does it: within `write`.
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _flows_again(self) -> None:
        self._is_stalled = False
        self._send_outgoing()
        if self._has_paused_writing:
            self._has_paused_writing = False
            if not self._is_lost:
                self._protocol.resume_writing()
        if self._is_closing:
            self._lose()

    def _send_outgoing(self) -> None:
        outgoing, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
        for message in outgoing:
            self._shell.send(self.connection, message)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._is_stalled:
                self._lose()

    def abort(self) -> None:
        self._is_closing = True
        self._outgoing.clear()
        self._lose()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._shell.closed(self.connection)
            self._shell.loop.call_soon(self._protocol.connection_lost, None)


class Watched:
    """Makes the run fail with what a checker raises, whatever the shell does with it."""

    def __init__(self, shell: SocketOwner) -> None:
        self._shell = shell

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is not None and self._shell.loop.failure is None:
            self._shell.loop.failure = error


class NoLock:
    """The lock of a data folder: one process uses a virtual disk."""

    def __init__(self, directory: Any) -> None:
        pass

    def release(self) -> None:
        """See DataDirectoryLock."""


class NodeTime:
    """`time` of a node: a shortage of descriptors is not simulated."""

    def sleep(self, _: float) -> None:
        """Pause in the disk's thread."""


# (module, attribute, value) to put in place while the simulation runs; real_safekeeper.py adds those of the node.
REPLACED_FILES: tuple[tuple[Any, str, Any], ...] = ((data_folder_module, "DataDirectoryLock", NoLock),)
SILENT = logging.Logger("silent", logging.CRITICAL + 1)
SILENT_LOGS: tuple[tuple[Any, str, Any], ...] = tuple(
    (module, "_log", SILENT) for module in (agent_registry, disk_space, listener_module, node_module, state_log)
)
