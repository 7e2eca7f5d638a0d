"""What a safekeeper's shell does when its leader lets it pull WAL from other safekeepers (safekeeper/node/wal_pull.py).

It is more careless than the real one: it never takes back what it has asked for, so what a source has sent reaches the
acceptor however late, under any later leader. It has a source of chance of its own.
"""

import random
from typing import TYPE_CHECKING, Any

from safekeeper.base.lsn import segment_start
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    PeerRead,
    ProposerGreeting,
    PullSource,
    PullWal,
    ReadResponse,
    Refusal,
)
from tests.simulation.model.network import TO_SAFEKEEPER, Connection
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE

if TYPE_CHECKING:
    from tests.simulation.model.safekeeper import SimSafekeeper
    from tests.simulation.world.world import World

BLOCK_BYTES_MAX = 10_000
IN_FLIGHT = 2
SILENCE_S = 0.7
# Some of what a source has sent is handed over late, and out of order: then the pull stands still until it is ended, so
# only while there are faults.
LATE = 0.05
LATE_S_MAX = 2.0


class SimPuller:
    """The pulls of one safekeeper.

    Attributes:
        name: what the network calls it.
        chance: the source of chance.
    """

    def __init__(self, world: "World", safekeeper: "SimSafekeeper") -> None:
        self.name = safekeeper.name
        self._world = world
        self._safekeeper = safekeeper
        self.chance = random.Random(f"{world.seed} pulls of {safekeeper.id}")
        self._pull: PullWal | None = None
        self._left: list[PullSource] = []
        self._connection: Connection | None = None
        self._asked: dict[int, tuple[PullWal, int]] = {}  # By connection: for which pull, and up to where.
        self._answers = 0

    @property
    def life(self) -> int:
        """The life of the process."""
        return self._safekeeper.life

    def wake(self) -> None:
        """Look whether there is another pull."""
        acceptor = self._safekeeper.acceptor
        pull = acceptor.pull if acceptor is not None else None
        if pull is self._pull:
            return
        self._pull = pull
        if pull is not None:
            self._world.counts.count("pulls begun")
            self._left = list(pull.sources)
            self._next_source(pull)

    def _next_source(self, pull: PullWal) -> None:
        world = self._world
        self._connection = None
        while self._left:
            source = world.safekeepers[self._left.pop(0).safekeeper_id]
            connection = world.network.connect(self, source) if self.chance.random() < 0.9 else None
            if connection is not None:
                self._connection = connection
                greeting = ProposerGreeting(PROTOCOL_VERSION, f"safekeeper-{self._safekeeper.id}", source.id)
                world.network.send(connection, TO_SAFEKEEPER, greeting)
                assert self._safekeeper.acceptor is not None  # it has just begun, or has just been answered
                self._asked[connection.number] = pull, self._safekeeper.acceptor.write_lsn
                self._answers = 0
                world.clock.after(SILENCE_S, self._watch, connection, self._answers)
                for _ in range(IN_FLIGHT):
                    self._ask(connection)
                return
        world.counts.count("pulls without a source left")
        self._safekeeper.pull_failed(pull, "no source is left")

    def _ask(self, connection: Connection) -> None:
        pull, begin_lsn = self._asked[connection.number]
        if begin_lsn >= pull.end_lsn:
            return
        # A read ends with its segment at the latest.
        segment_end_lsn = segment_start(begin_lsn, SEGMENT_SIZE) + SEGMENT_SIZE
        end_lsn = min(pull.end_lsn, begin_lsn + self.chance.randint(1, BLOCK_BYTES_MAX), segment_end_lsn)
        self._asked[connection.number] = pull, end_lsn
        request = PeerRead(pull.leader_id, end_lsn, begin_lsn, end_lsn)
        self._world.note(self.name, "asks a member", request, connection.number)
        self._world.network.send(connection, TO_SAFEKEEPER, request)

    def _watch(self, connection: Connection, answers: int) -> None:
        if connection is not self._connection:
            return
        if self._answers == answers:
            self._try_another(connection)
        else:
            self._world.clock.after(SILENCE_S, self._watch, connection, self._answers)

    def received(self, connection: Connection, message: Any) -> None:
        """A source has answered."""
        self._world.note(self.name, "gets from a member", message, connection.number)
        if isinstance(message, Refusal):
            self._world.counts.count("pulls refused by a source")
            self._try_another(connection)
        elif isinstance(message, ReadResponse) and connection.number in self._asked:
            pull, _ = self._asked[connection.number]
            self._answers += 1
            content = (self.life, pull, message.begin_lsn, bytes(message.payload))
            if self.chance.random() < LATE and not self._world.is_healing:
                self._world.clock.after(LATE_S_MAX * self.chance.random(), self._hand_over, *content)
            else:
                self._hand_over(*content)
            if connection is self._connection and pull is self._pull:
                self._ask(connection)

    def _hand_over(self, life: int, pull: PullWal, begin_lsn: int, payload: bytes) -> None:
        if life == self.life:
            self._safekeeper.pulled(pull.leader_id, begin_lsn, payload)

    def disconnected(self, connection: Connection) -> None:
        """A source is gone."""
        self._try_another(connection)

    def _try_another(self, connection: Connection) -> None:
        if connection is self._connection and self._pull is not None and self._safekeeper.acceptor is not None:
            self._next_source(self._pull)
