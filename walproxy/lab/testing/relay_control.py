"""Start a relay (walproxy/lab/testing/relay.py) and send it commands. Everything blocks."""

import socket
import subprocess
import sys
from types import TracebackType
from typing import Self

import msgspec

from safekeeper.base.errors import RemoteProtocolError, WalproxyError
from walproxy.lab.testing.relay import Answer, Delay, Direction, Hold, Open, Order, Ping
from walproxy.postgres.local_server import end_with_parent

_ANSWER_TIMEOUT_S = 10.0


class RelayControl:
    """Tells a relay what to do; blocks until it is done. Each method raises WalproxyError if that cannot be."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port

    def answers(self) -> bool:
        """Return whether the relay is there."""
        try:
            self._order(Ping())
        except RemoteProtocolError:
            return False
        return True

    def open(self, name: str, target_host: str, target_port: int, port: int = 0) -> int:
        """Open a link; return the port where it begins. The target need not be there yet."""
        return self._order(Open(name, target_host, target_port, port)).port

    def hold(self, name: str, direction: Direction) -> None:
        """Hold what passes a link in these directions, and in no other."""
        self._order(Hold(name, direction))

    def delay(self, name: str, delay_ms: float) -> None:
        """Let what comes from now on pass later by this delay."""
        self._order(Delay(name, delay_ms))

    def _order(self, order: Order) -> Answer:
        try:
            with socket.create_connection(self._address, _ANSWER_TIMEOUT_S) as connection:
                connection.sendall(msgspec.json.encode(order) + b"\n")
                with connection.makefile("rb") as lines:
                    answer = msgspec.json.decode(lines.readline(), type=Answer)
        except (OSError, msgspec.DecodeError) as error:
            raise RemoteProtocolError(f"the relay at port {self._address[1]} does not answer: {error}") from error
        if answer.problem:
            raise WalproxyError(f"the relay at port {self._address[1]} cannot do that: {answer.problem}")
        return answer


class RelayProcess:
    """A relay on this machine's loopback interface, a process of its own; it ends with the block.

    Attributes:
        control: for commands to it.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "walproxy.lab.testing.relay"]
        self._process = subprocess.Popen(
            [*end_with_parent("KILL"), *command],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for us: the links are needed for the clean-up.
        )
        assert self._process.stdout is not None  # a pipe, as requested
        port = self._process.stdout.readline()
        if not port:
            raise WalproxyError(f"the relay has ended with code {self._process.wait()}")
        self.control = RelayControl("127.0.0.1", int(port))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        with self._process:
            pass

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid
