"""The product's own pulls of WAL in a real safekeeper: WalPuller and its connections, on the virtual network.

Half of the real safekeepers have them; the others have the more careless `SimPuller`. `RealPuller` is the end of the
connections that the process makes, and checks what is asked of the sources: the log from its end on, each byte once,
in the name of the leader, no more at once than allowed, and no faster; that WAL is passed on as a source has sent it;
and that a pull is given up only after each source was tried.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any

from safekeeper.acceptor import pull_sources
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.messages import PeerRead, ProposerGreeting, PullWal, ReadResponse
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.node import wal_pull
from safekeeper.node.node import Node
from safekeeper.peers.codec import PROPOSER_DIALECT, encode
from tests.simulation.checks.violation import Violation
from tests.simulation.model.network import TO_SAFEKEEPER, Connection
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from tests.simulation.model.virtual_loop import VirtualLoop
from tests.simulation.shells.shell_seams import SILENT, VirtualTransport

if TYPE_CHECKING:
    from tests.simulation.shells.real_safekeeper import RealSafekeeper
    from tests.simulation.world.world import World

BLOCK_BYTES, UNFLUSHED_BYTES_MAX = 5000, 12_000
ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S = 0.7, 0.5
SLOW_AFTER_S, SLOW_BYTES_PER_S = 0.15, 60_000
# So often the host of a source answers nothing, instead of refusing the connection.
SILENTLY = 0.3


class RealPuller:
    """The pulls of one real safekeeper.

    Attributes:
        name: what the network calls it.
        world, chance, loop: see SocketOwner.
    """

    def __init__(self, world: "World", safekeeper: "RealSafekeeper") -> None:
        self.name = safekeeper.name
        self.world = world
        self.chance = random.Random(f"{world.seed} pulls of {safekeeper.id}")
        self._safekeeper = safekeeper
        self._transports: dict[int, VirtualTransport] = {}
        self._asked: dict[int, list[PeerRead]] = {}  # By connection: not answered.
        self._next_lsn: dict[int, Lsn] = {}
        self._tried: tuple[PullWal, set[int]] | None = None
        self._received: list[tuple[Lsn, bytes]] = []

    @property
    def life(self) -> int:
        """The life of the process."""
        return self._safekeeper.life

    @property
    def loop(self) -> VirtualLoop:
        """The loop of its present life."""
        return self._safekeeper.loop

    def attach(self, node: Node) -> None:
        """Let a node that starts pull. Call it within its loop."""
        self.crashed()
        puller = wal_pull.WalPuller(node, Credentials())
        node.attach_readers(puller)

    def crashed(self) -> None:
        """The process has ended."""
        for number in self._transports:
            connection = self.world.network.connections.get(number)
            if connection is not None:
                self.world.network.break_connection(connection, silent=False)
        self._transports.clear()
        self._asked.clear()
        self._tried = None
        self._received.clear()

    def wake(self) -> None:
        """See SimPuller: the real one is informed by the node."""

    async def connect(self, new_protocol: Any, host: str) -> Any:
        """Connect to the source that a virtual address names."""
        source = self.world.safekeepers[int(host[1:])]
        pull = self._pull()
        if pull is not None:
            if self._tried is None or self._tried[0] is not pull:
                self._tried = pull, set()
            self._tried[1].add(source.id)
        await asyncio.sleep(self.chance.random() * self.world.network.delay_s)
        connection = self.world.network.connect(self, source)
        if connection is None:
            if self.chance.random() < SILENTLY:
                await self.loop.create_future()
            raise OSError(f"{source.name} cannot be reached")
        transport = VirtualTransport(self, connection, PROPOSER_DIALECT)
        self._transports[connection.number] = transport
        transport.accepted(new_protocol)
        return transport, None

    def received(self, connection: Connection, message: Any) -> None:
        """A source has answered."""
        self.world.note(self.name, "gets from a member", message, connection.number)
        transport = self._transports.get(connection.number)
        if transport is not None:
            if isinstance(message, ReadResponse):
                self._received.append((message.begin_lsn, bytes(message.payload)))
                if self._asked.get(connection.number):
                    self._asked[connection.number].pop(0)
            transport.arrived(b"".join(bytes(buffer) for buffer in encode(message)))

    def disconnected(self, connection: Connection) -> None:
        """A source is gone."""
        transport = self._transports.get(connection.number)
        if transport is not None:
            transport.ended(self.chance.random() < 0.5)

    def may_send(self, message: Any, connection: Connection) -> bool:
        """Check what is asked of a source."""
        if self._safekeeper.disk.fs.is_down:
            return False
        if isinstance(message, ProposerGreeting):
            control = self._safekeeper.acceptor.control if self._safekeeper.acceptor is not None else None
            own = (control.system_id, control.segment_size) if control is not None else None
            greeting = message.safekeeper_id, (message.system_id, message.segment_size)
            self._require(greeting == (connection.safekeeper.id, own), f"greets a source with {message}")
        elif isinstance(message, PeerRead):
            self._check_request(message, connection.number)
        return True

    def send(self, connection: Connection, message: Any) -> None:
        """A message has left the socket."""
        self.world.note(self.name, "asks a member", message, connection.number)
        self.world.network.send(connection, TO_SAFEKEEPER, message)

    def closed(self, connection: Connection) -> None:
        """The process has closed a connection."""
        if self._transports.pop(connection.number, None) is not None and not self._safekeeper.disk.fs.is_down:
            self.world.network.close(connection, TO_SAFEKEEPER)

    def _pull(self) -> PullWal | None:
        acceptor = self._safekeeper.acceptor
        return acceptor.pull if acceptor is not None else None

    def _check_request(self, request: PeerRead, number: int) -> None:
        pull, acceptor = self._pull(), self._safekeeper.acceptor
        if pull is None or acceptor is None:
            return  # The pull has just ended.
        asked = self._asked.setdefault(number, [])
        expected_lsn = self._next_lsn.get(number, acceptor.write_lsn)
        end_of_segment = segment_start(request.begin_lsn, SEGMENT_SIZE) + SEGMENT_SIZE
        self._require(
            request.begin_lsn == expected_lsn
            and request.end_lsn == min(expected_lsn + wal_pull.BLOCK_BYTES, end_of_segment, pull.end_lsn)
            and request.leader_id == pull.leader_id
            and len(asked) < wal_pull.BLOCKS_IN_FLIGHT,
            f"requests {request} of {pull}, of which the next byte is {expected_lsn}, beside {asked}",
        )
        if not asked and number not in self._next_lsn:
            self.world.counts.count("pulls begun")
        asked.append(request)
        self._next_lsn[number] = request.end_lsn

    def passed_on(self, begin_lsn: Lsn, payload: bytes) -> None:
        """WAL is passed to the node."""
        self._require((begin_lsn, payload) in self._received, "passes on WAL that no source has sent")
        self._received.remove((begin_lsn, payload))

    def given_up(self, pull: PullWal) -> None:
        """The node gets the end of its last source."""
        tried = self._tried[1] if self._tried is not None and self._tried[0] is pull else set()
        sources = {source.safekeeper_id for source in pull.sources}
        self._require(pull is not self._pull() or tried == sources, f"gives up a pull from {sources} after {tried}")
        self.world.counts.count("pulls without a source left")

    def _require(self, holds: bool, text: str) -> None:
        if not holds and self.loop.failure is None:
            self.loop.failure = Violation("PullsAsAsked", f"{self.name} {text}")


def _no_bug(error: Exception) -> str:
    """Let the run fail with an error that the product only logs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.failure = loop.failure or error
    return str(error)


REPLACED_IN_PULLS: tuple[tuple[Any, str, Any], ...] = (
    (wal_pull, "BLOCK_BYTES", BLOCK_BYTES),
    (wal_pull, "UNFLUSHED_BYTES_MAX", UNFLUSHED_BYTES_MAX),
    (wal_pull, "ANSWER_TIMEOUT_S", ANSWER_TIMEOUT_S),
    (wal_pull, "CONNECT_TIMEOUT_S", CONNECT_TIMEOUT_S),
    (wal_pull, "describe_bug", _no_bug),
    (wal_pull, "_log", SILENT),
    (pull_sources, "SLOW_AFTER_S", SLOW_AFTER_S),
    (pull_sources, "SLOW_BYTES_PER_S", SLOW_BYTES_PER_S),
)
