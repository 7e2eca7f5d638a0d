"""A connection of a lone node's listener, as the driver delivers its bytes and the reference reads its state."""

import asyncio
from collections import deque
from typing import Any

from safekeeper.peers.codec import ACCEPTOR_AUTHENTICATION, ACCEPTOR_DIALECT, FrameDecoder
from safekeeper.peers.peer_auth import AuthenticationMessage, ProposerSide
from tests.simulation.lone_node_process import Process
from tests.simulation.shell_seams import _Socket
from tests.simulation.violation import Violation


class LoneSocket(asyncio.Transport):
    """A connection of the listener.

    Attributes:
        number: the listener's.
        is_read, is_closed, is_aborted: what the listener has made of it.
        is_slow: the peer reads nothing from the next message on.
        side: the peer's side of the authentication, None if it is over or none is required.
        handshake: what the safekeeper has sent of it, not looked at.
    """

    def __init__(self, process: Process, host: str, side: ProposerSide | None) -> None:
        super().__init__()
        self.number = 0
        self.host = host
        self.is_read = True
        self.is_closed = self.is_aborted = self.is_slow = False
        self.side = side
        self.handshake: deque[AuthenticationMessage] = deque()
        self.protocol: Any
        self._process = process
        self._decoder: FrameDecoder[Any] = FrameDecoder(ACCEPTOR_AUTHENTICATION if side else ACCEPTOR_DIALECT)
        self._incoming = bytearray()
        self._frames: deque[tuple[int, Any]] = deque()  # Where each ends in the stream, and its message.
        self._sent_bytes = self._received_bytes = 0

    def accepted(self, protocol: Any) -> None:
        """The loop has accepted the connection."""
        self.protocol = protocol
        protocol.connection_made(self)
        self.number = protocol.number

    def begin_messages(self) -> None:
        """The authentication is over."""
        self.side = None
        self._decoder.speak(ACCEPTOR_DIALECT)

    @property
    def has_bytes(self) -> bool:
        """Whether something waits in the socket."""
        return bool(self._incoming)

    def send(self, message: Any, frame: bytes, counts_from: int | None = None) -> None:
        """Let the peer send a message; it counts as received with so many bytes of its frame, None for all."""
        self._frames.append((self._sent_bytes + (counts_from or len(frame)), message))
        self._sent_bytes += len(frame)
        self._incoming += frame

    def deliver(self, size: int) -> list[Any]:
        """Let the listener receive up to so many bytes; return the messages that are complete with them."""
        room = self.protocol.get_buffer(-1)
        size = min(size, len(room), len(self._incoming))
        if size <= 0:
            raise Violation("ReadsWithRoom", "the listener reads without room for what it reads")
        room[:size] = self._incoming[:size]
        del self._incoming[:size]
        self._received_bytes += size
        self.protocol.buffer_updated(size)
        messages = []
        while self._frames and self._frames[0][0] <= self._received_bytes:
            messages.append(self._frames.popleft()[1])
        return messages

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.host, 5000
        return _Socket() if name == "socket" else default

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore them: `is_slow` says when there is no room."""

    def pause_reading(self) -> None:
        self._require(self.is_read, "stops reading twice")
        self.is_read = False

    def resume_reading(self) -> None:
        self._require(not self.is_read, "resumes reading twice")
        self.is_read = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._require(not self.is_closed, "writes to a connection that is closed")
        for message in self._decoder.feed(bytes(data)):
            if self.side is not None:
                self.handshake.append(message)
                self._process.saw("handshake", self.number, type(message))
            else:
                self._process.saw("send", self.number, message)
        if self.is_slow:
            self.is_slow = False
            self._process.saw("paused", self.number)
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._process.loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.is_aborted = True
        self.close()

    def _require(self, holds: bool, text: str) -> None:
        if not holds:
            self._process.fail(Violation("ListenerReads", f"connection {self.number} {text}"))
