"""The network between proxies and safekeepers: ordered streams, each of which may stall, break, or lie about it.

A connection is two streams. What is sent on one arrives in order, after a delay, or not at all. A blocked direction
holds what is sent until it is unblocked, so messages can arrive long after their sender has opened another connection.
A broken connection loses what is in flight; each side notices it later, or, if it is broken silently, only when it
gives up waiting. One that its proxy has let go loses nothing: what is in flight arrives, but seconds late, when the
same run may use another connection, or another run may lead.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from safekeeper.peers.codec import ACCEPTOR_DIALECT, PROPOSER_DIALECT, FrameDecoder, encode
from tests.simulation.model.clock import Clock

if TYPE_CHECKING:
    from tests.simulation.model.proxy import SimProxy
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.model.wal_pull import SimPuller
    from tests.simulation.shells.real_puller import RealPuller
    from tests.simulation.world.rebootstrap import Command, Rebootstrap

    Caller = SimProxy | Rebootstrap | Command | SimPuller | RealPuller

TO_SAFEKEEPER, TO_PROXY = 0, 1
_END = object()


class Connection:
    """One connection. Its number is never used again; `closed` has the side that no longer receives.

    Attributes:
        flight: what was sent each way and has not arrived, in order.
        due: how many of these could have arrived, if that way were not held.
    """

    __slots__ = (
        "broken",
        "closed",
        "due",
        "flight",
        "is_let_go",
        "last_at",
        "number",
        "proxy",
        "proxy_life",
        "safekeeper",
        "sk_life",
    )

    def __init__(
        self,
        number: int,
        proxy: "Caller",
        safekeeper: "SimSafekeeper",
    ) -> None:
        self.number = number
        self.proxy = proxy
        self.proxy_life = proxy.life
        self.safekeeper = safekeeper
        self.sk_life = safekeeper.life
        self.broken = False
        self.closed = [False, False]
        self.last_at = [0.0, 0.0]
        self.is_let_go = False
        self.flight: tuple[deque[Any], deque[Any]] = (deque(), deque())
        self.due = [0, 0]


class Network:
    """All connections.

    Attributes:
        delay_s: the longest delay of a message when nothing is wrong.
        uses_wire: whether every message is put into bytes and taken out again (safekeeper/peers/codec.py).
        answers_later_s: returns by how much an answer of a safekeeper leaves later than usual.
        late_messages: how many messages of connections that were let go came late.
        blocked: (proxy's name, safekeeper's id, direction) of the streams that stand still.
    """

    def __init__(self, clock: Clock, rng: random.Random, delay_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self.delay_s = delay_s
        self.uses_wire = False
        self.answers_later_s: Callable[[], float] = float
        self.late_messages = 0
        self._decoders = (FrameDecoder(PROPOSER_DIALECT), FrameDecoder(ACCEPTOR_DIALECT))
        self.blocked: set[tuple[str, int, int]] = set()
        self.connections: dict[int, Connection] = {}
        self._number = 0

    def connect(self, proxy: "Caller", safekeeper: "SimSafekeeper") -> Connection | None:
        """Return a new connection, None if the safekeeper cannot be reached."""
        if not safekeeper.is_serving or any(
            (proxy.name, safekeeper.id, way) in self.blocked for way in (TO_SAFEKEEPER, TO_PROXY)
        ):
            return None
        self._number += 1
        connection = Connection(self._number, proxy, safekeeper)
        self.connections[connection.number] = connection
        return connection

    def send(self, connection: Connection, way: int, message: Any) -> None:
        """Put `message` on its way."""
        if connection.broken:
            return
        if self.uses_wire and message is not _END:
            message = self._through_wire(way, message)
        connection.flight[way].append(message)
        if connection.due[way] or ((self.blocked or connection.is_let_go) and self._is_held(connection, way)):
            connection.due[way] += 1
        else:
            self._let_arrive(connection, way)

    def _let_arrive(self, connection: Connection, way: int) -> None:
        """Let the next one arrive some time, after those before it."""
        last_at = connection.last_at
        arrives_at = self._clock.now + self._rng.random() * self.delay_s
        if way == TO_PROXY:
            arrives_at += self.answers_later_s()
        if arrives_at < last_at[way]:
            arrives_at = last_at[way]
        last_at[way] = arrives_at
        self._clock.at(arrives_at, self._arrive, connection, way)

    def _is_held(self, connection: Connection, way: int) -> bool:
        if connection.is_let_go and way == TO_SAFEKEEPER:
            return True
        return (connection.proxy.name, connection.safekeeper.id, way) in self.blocked

    def _through_wire(self, way: int, message: Any) -> Any:
        frame = b"".join(bytes(buffer) for buffer in encode(message))
        (received,) = self._decoders[way].feed(frame)
        if received != message:
            raise AssertionError(f"{message} comes out of its bytes as {received}")
        return received

    def close(self, connection: Connection, by: int) -> None:
        """One side closes: the other notices it after everything that was sent. `by` is the way in which it sent."""
        connection.closed[1 - by] = True
        self.send(connection, by, _END)

    def let_go(self, connection: Connection, late_s: float) -> None:
        """The proxy is gone, or listens no more: what it has sent arrives, so late, and then the end."""
        if not connection.broken:
            connection.closed[TO_PROXY] = True
            connection.is_let_go = True
            self.send(connection, TO_SAFEKEEPER, _END)
            self._clock.after(late_s, self._arrive_late, connection)

    def _arrive_late(self, connection: Connection) -> None:
        connection.is_let_go = False
        self.late_messages += max(0, connection.due[TO_SAFEKEEPER] - 1)
        self._let_due_arrive(connection, TO_SAFEKEEPER)

    def break_connection(self, connection: Connection, silent: bool) -> None:
        """Lose what is in flight. Unless it is silent, each side notices it some time, if it can be reached."""
        if connection.broken:
            return
        connection.broken = True
        del self.connections[connection.number]
        for way in (TO_SAFEKEEPER, TO_PROXY) if not silent else ():
            if (connection.proxy.name, connection.safekeeper.id, way) not in self.blocked:
                self._clock.after(self._rng.random() * self.delay_s, self._hand_over, connection, way, _END)

    def unblock(self, proxy_name: str, safekeeper_id: int, way: int) -> None:
        """Let a direction flow again: what was held comes late."""
        self.blocked.discard((proxy_name, safekeeper_id, way))
        for connection in list(self.connections.values()):
            if connection.proxy.name == proxy_name and connection.safekeeper.id == safekeeper_id:
                self._let_due_arrive(connection, way)

    def _let_due_arrive(self, connection: Connection, way: int) -> None:
        if connection.broken or ((self.blocked or connection.is_let_go) and self._is_held(connection, way)):
            return
        due, connection.due[way] = connection.due[way], 0
        for _ in range(due):
            self._let_arrive(connection, way)

    def unblock_all(self) -> None:
        """Heal every partition."""
        for blocked in sorted(self.blocked):
            self.unblock(*blocked)

    def _arrive(self, connection: Connection, way: int) -> None:
        if connection.broken:
            return
        if (self.blocked or connection.is_let_go) and self._is_held(connection, way):
            connection.due[way] += 1
            return
        message = connection.flight[way].popleft()
        if message is _END:
            connection.broken = True
            del self.connections[connection.number]
        self._hand_over(connection, way, message)

    def _hand_over(self, connection: Connection, way: int, message: Any) -> None:
        if connection.closed[way]:
            return
        if way == TO_SAFEKEEPER:
            safekeeper = connection.safekeeper
            if safekeeper.life != connection.sk_life:
                # The host answers for a process that is gone: the connection is reset.
                self.break_connection(connection, silent=False)
            elif message is _END:
                safekeeper.disconnected(connection)
            else:
                safekeeper.received(connection, message)
        else:
            proxy = connection.proxy
            if proxy.life != connection.proxy_life:
                self.break_connection(connection, silent=False)
            elif message is _END:
                proxy.disconnected(connection)
            else:
                proxy.received(connection, message)
