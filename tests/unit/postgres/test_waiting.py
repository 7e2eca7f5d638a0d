"""The two waits: the same conversation on the event loop and blocking, over a real socket."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import pytest

from walproxy.postgres.replication_protocol import Conversation, SocketEvent
from walproxy.postgres.waiting import wait_blocking, wait_on_loop

TIMEOUT_S = 5.0


class Number:
    """What is used of a connection."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end.fileno()


class Ends:
    """A socket that is full, its other end, and a conversation that sends a byte and returns the answer."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.settimeout(TIMEOUT_S)
        self.waits: list[SocketEvent] = []
        self._has_waited = threading.Event()
        self.filled = 0
        while (sent := self._send(bytes(1 << 16))) > 0:
            self.filled += sent

    def _send(self, data: bytes) -> int:
        try:
            return self.ours.send(data)
        except BlockingIOError:
            return 0

    def conversation(self) -> Conversation[bytes]:
        while not self._send(b"?"):
            self.waits.append(SocketEvent.WRITE)
            self._has_waited.set()
            yield SocketEvent.WRITE
        while True:
            self.waits.append(SocketEvent.READ)
            yield SocketEvent.READ
            try:
                return self.ours.recv(100)
            except BlockingIOError:
                continue

    def answer(self) -> None:
        """Take everything up to the question, once that waits, and answer it."""
        assert self._has_waited.wait(TIMEOUT_S)
        while not self.theirs.recv(1 << 20).endswith(b"?"):
            pass
        self.theirs.send(b"!")


async def on_loop(ends: Ends) -> bytes:
    async with asyncio.timeout(TIMEOUT_S):
        return await wait_on_loop(ends.conversation(), Number(ends.ours))


def wait_on_a_loop(ends: Ends) -> bytes:
    async def both() -> bytes:
        answer, _ = await asyncio.gather(on_loop(ends), asyncio.to_thread(ends.answer))
        return answer

    return asyncio.run(both())


def wait_in_a_thread(ends: Ends) -> bytes:
    async def both() -> bytes:
        waiting = asyncio.to_thread(wait_blocking, ends.conversation(), Number(ends.ours), TIMEOUT_S)
        answer, _ = await asyncio.gather(waiting, asyncio.to_thread(ends.answer))
        return answer

    return asyncio.run(both())


@pytest.mark.parametrize("wait", [wait_on_a_loop, wait_in_a_thread])
def test_both_wait_until_the_socket_is_writable_and_then_readable(wait: Callable[[Ends], bytes]) -> None:
    ends = Ends()
    with ends.ours, ends.theirs:
        assert wait(ends) == b"!"
        assert SocketEvent.WRITE in ends.waits
        assert ends.waits[-1] is SocketEvent.READ


def fails() -> Conversation[None]:
    yield SocketEvent.WRITE
    raise ValueError("it is so")


def test_what_a_conversation_raises_passes_through_both() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(ValueError, match="it is so"):
            wait_blocking(fails(), Number(ours), TIMEOUT_S)
        with pytest.raises(ValueError, match="it is so"):
            asyncio.run(wait_on_loop(fails(), Number(ours)))


def silent() -> Conversation[None]:
    while True:
        yield SocketEvent.READ


def test_a_blocking_wait_ends_at_its_time_and_one_on_the_loop_leaves_the_socket_alone_when_it_is_cancelled() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            wait_blocking(silent(), Number(ours), 0.05)
        assert time.monotonic() - began >= 0.05

        async def cancelled() -> bool:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await wait_on_loop(silent(), Number(ours))
            return asyncio.get_running_loop().remove_reader(ours.fileno())

        assert asyncio.run(cancelled()) is False


def test_a_socket_that_breaks_counts_as_ready_so_that_libpq_finds_out() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()

    def one_wait() -> Conversation[str]:
        yield SocketEvent.READ
        return "woken"

    with ours:
        assert wait_blocking(one_wait(), Number(ours), TIMEOUT_S) == "woken"
