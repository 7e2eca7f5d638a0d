"""The two ways to wait for what a replication conversation waits for: on the event loop, and blocking.

Both resume the conversation when its socket is ready, and return its answer. What the conversation raises passes. The
connection is asked for its socket only to wait: once libpq has read its end, there is none, and the rest is in libpq.
"""

import asyncio
import select
import time
from typing import Protocol, TypeVar

from walproxy.postgres.replication_protocol import Conversation, SocketEvent

_Answer = TypeVar("_Answer")


class LibpqConnection(Protocol):
    """The used part of libpq's connection."""

    @property
    def socket(self) -> int:
        """The number of its socket. Raises psycopg.Error if the connection is lost."""
        ...


async def wait_on_loop(conversation: Conversation[_Answer], connection: LibpqConnection) -> _Answer:
    """Have a conversation on the running event loop, and return its answer. The caller limits the time."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            wanted = next(conversation)
            add, remove = (
                (loop.add_reader, loop.remove_reader)
                if wanted is SocketEvent.READ
                else (loop.add_writer, loop.remove_writer)
            )
            ready, socket = asyncio.Event(), connection.socket
            add(socket, ready.set)
            try:
                await ready.wait()
            finally:
                remove(socket)
    except StopIteration as end:
        answer: _Answer = end.value
        return answer


def wait_blocking(conversation: Conversation[_Answer], connection: LibpqConnection, timeout_s: float) -> _Answer:
    """Have a conversation and return its answer.

    Args:
        timeout_s: for all of it.

    Raises:
        TimeoutError: it is over.
    """
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            wait_until_ready(connection, next(conversation), deadline)
    except StopIteration as end:
        answer: _Answer = end.value
        return answer


def wait_until_ready(connection: LibpqConnection, wanted: SocketEvent, deadline: float) -> None:
    """Block until the socket is ready, or has an error, which the next use of it shows.

    Args:
        deadline: by time.monotonic().

    Raises:
        TimeoutError: it was not ready by then.
    """
    poll = select.poll()
    poll.register(connection.socket, select.POLLIN if wanted is SocketEvent.READ else select.POLLOUT)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
