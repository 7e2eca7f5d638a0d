"""The relay: what passes, what is held, and that nothing of a stream is ever lost."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from safekeeper.base.errors import RemoteProtocolError, WalproxyError
from tests.waiting import wait_for
from walproxy.lab.testing.relay_control import RelayControl, RelayProcess

DEADLINE_S = 20.0
A_WHILE_S = 0.2


class Echo:
    """A server that sends back what it gets, and keeps it.

    Attributes:
        got: all bytes, of all connections.
    """

    def __init__(self) -> None:
        self.got = bytearray()
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                self.got += data
                connection.sendall(data)


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayControl]:
    with RelayProcess() as process:
        yield process.control


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def through(relay: RelayControl, echo: Echo) -> Iterator[socket.socket]:
    """A connection to the server through the link "server"."""
    port = relay.open("server", "127.0.0.1", echo.port)
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        yield connection


def receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece, f"the connection ended after {len(data)} bytes"
        data += piece
    return bytes(data)


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(A_WHILE_S)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(DEADLINE_S)
    return False


def test_a_link_passes_bytes_both_ways_and_the_end_of_a_connection(through: socket.socket) -> None:
    through.sendall(b"there and back")
    assert receive(through, 14) == b"there and back"
    through.shutdown(socket.SHUT_WR)
    assert through.recv(1) == b""


def test_what_is_held_on_its_way_there_is_not_received_and_arrives_when_it_is_let_go(
    relay: RelayControl, echo: Echo, through: socket.socket
) -> None:
    through.sendall(b"a")
    receive(through, 1)
    relay.hold("server", "to")
    through.sendall(b"held")
    assert is_silent(through)
    assert echo.got == b"a"
    relay.hold("server", "none")
    assert receive(through, 4) == b"held"


def test_what_is_held_on_its_way_back_was_received_all_the_same(
    relay: RelayControl, echo: Echo, through: socket.socket
) -> None:
    through.sendall(b"a")
    receive(through, 1)
    relay.hold("server", "from")
    through.sendall(b"heard")
    wait_for(lambda: echo.got == b"aheard", "it is heard")
    assert is_silent(through)
    relay.hold("server", "none")
    assert receive(through, 5) == b"heard"


def test_much_that_is_held_is_all_there_in_its_order_afterwards(relay: RelayControl, through: socket.socket) -> None:
    sent = bytes(range(251)) * 100_000
    relay.hold("server", "both")
    sending = threading.Thread(target=through.sendall, args=(sent,))
    sending.start()
    sending.join(A_WHILE_S)
    assert sending.is_alive(), "nothing holds the sender back"
    relay.hold("server", "none")
    assert receive(through, len(sent)) == sent
    sending.join(DEADLINE_S)


@pytest.mark.parametrize("direction", ["both", "to", "from"])
def test_a_connection_that_begins_in_a_partition_reaches_the_target_only_behind_it(
    relay: RelayControl, echo: Echo, direction: str
) -> None:
    port = relay.open("later", "127.0.0.1", echo.port)
    relay.hold("later", direction)  # type: ignore[arg-type]
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(b"hello")
        assert is_silent(connection)
        assert echo.connections == 0
        relay.hold("later", "none")
        assert receive(connection, 5) == b"hello"


def test_a_delay_is_taken_both_ways(relay: RelayControl, through: socket.socket) -> None:
    relay.delay("server", 30)
    began_at = time.monotonic()
    through.sendall(b"x")
    receive(through, 1)
    assert time.monotonic() - began_at >= 0.06


def test_a_connection_to_nobody_is_closed(relay: RelayControl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    through = relay.open("nobody", "127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", through), DEADLINE_S) as connection:
        assert connection.recv(1) == b""


def test_an_unknown_link_is_one_clear_line(relay: RelayControl) -> None:
    with pytest.raises(WalproxyError, match="cannot do that: unknown link 'nowhere'"):
        relay.hold("nowhere", "both")


def test_a_relay_that_has_ended_is_one_clear_line() -> None:
    with RelayProcess() as process:
        control = process.control
        assert control.answers()
    assert not control.answers()
    with pytest.raises(RemoteProtocolError, match="does not answer"):
        control.hold("server", "both")
