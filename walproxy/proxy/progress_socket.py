"""The socket on which a proxy reports its progress to the agent that has started it.

By these reports the agent decides whether it leads. So they do not pass through the HTTP listener: clients that connect
faster than it accepts connections would make a proxy that works appear to hang. The agent creates a pair of sockets,
passes one of them to the process, and its number in the environment. No other process can open it.

    started   a packet of the proxy, without a request: its interpreter has started
    request   a packet of the agent, of one byte
    reply     a packet of the proxy for each request, in their order: {"state": "streaming", "commit_lsn": "0/5A3C9F8"}
"""

import asyncio
import logging
import socket
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import RateLimit, describe_bug

PROGRESS_SOCKET: Final = "WALPROXY_PROGRESS_SOCKET"
PACKET_BYTES_MAX: Final = 4096

_log = logging.getLogger(__name__)


class ProgressSocket:
    """The proxy's end. On the event loop's thread, which runs already.

    Args:
        inherited: the socket.
        progress: returns what is reported.
    """

    def __init__(self, inherited: socket.socket, progress: Callable[[], Any]) -> None:
        inherited.setblocking(False)
        self._socket = inherited
        self._progress = progress
        self._failures = RateLimit(lines=3, interval_s=60)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(inherited, self._reply)
        self._send(b"started")

    def close(self) -> None:
        """Stop reporting. Closing twice is harmless."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _reply(self) -> None:
        try:
            request = self._socket.recv(PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if not request:
            self.close()  # The agent has ended.
            return
        try:
            reply = msgspec.json.encode(self._progress())
        except Exception as bug:
            # It must not end the process, as an error in a callback does.
            reply = b"{}"
            more = self._failures.admit()
            if more is not None:
                _log.error("could not report the progress to the agent: %s%s", describe_bug(bug), more)
        self._send(reply)

    def _send(self, packet: bytes) -> None:
        try:
            self._socket.send(packet)
        except OSError:
            self.close()  # The agent has ended, or has not read many replies.


def inherited_socket(environment: MutableMapping[str, str]) -> socket.socket | None:
    """Return the socket that the agent has passed to this process, None without an agent; remove it from `environment`.

    Raises:
        ConfigurationError: the variable is set, and does not name a socket.
    """
    number = environment.pop(PROGRESS_SOCKET, None)
    if number is None:
        return None
    try:
        inherited = socket.socket(fileno=int(number))
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{PROGRESS_SOCKET}={number} is not the number of an open socket: unset it, it is for the agent alone"
        ) from None
    inherited.set_inheritable(False)
    return inherited
