"""A safekeeper that is the product's own: Node, ProposerListener and DataFolder on a virtual loop, disk and network.

It is a `SimSafekeeper` for all others, which crash it, connect to it, and look at its disk and its acceptor. Inside, no
line of the shell is replaced; threads, sockets and time are (shell_seams.py). The checkers observe where something
leaves the shell: a message at the socket, a write at the storage, an fdatasync at the disk (shell_disk.py), the end of
an event at the node's readers. A node that fails for another reason than its disk is a violation.
"""

import random
from typing import TYPE_CHECKING, Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import DiskLost, StorageFailed, StorageFull
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    PullWal,
)
from safekeeper.net.admission import Budget
from safekeeper.node import node as node_module
from safekeeper.node import segment_files as segment_files_module
from safekeeper.node import wal_writer as wal_writer_module
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import ProposerListener
from safekeeper.peers.codec import encode
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.checks.violation import Violation
from tests.simulation.model.disk import ModelDisk
from tests.simulation.model.network import TO_PROXY, Connection
from tests.simulation.model.virtual_disk import VirtualCrash
from tests.simulation.shells.real_puller import REPLACED_IN_PULLS, RealPuller
from tests.simulation.shells.shell_checks import ObservedFolder, ObservedShell
from tests.simulation.shells.shell_disk import DIRECTORY, ShellDisk
from tests.simulation.shells.shell_reader import Watcher
from tests.simulation.shells.shell_seams import (
    REPLACED_FILES,
    SILENT,
    SILENT_LOGS,
    NodeTime,
    ShellLoop,
    VirtualTransport,
    VirtualWorker,
    Watched,
    running_shell,
)
from tests.simulation.shells.shell_watch import ShellWatch, observed_acceptor

if TYPE_CHECKING:
    from tests.simulation.world.world import World

GREETING_TIMEOUT_S = 1.0
IDLE_TIMEOUT_S = 5.0
# Half of the processes flush on the loop's thread from the start on, until the disk is slow.
QUICK = 0.5
# So many times when it is to write down its positions it ends instead, as by SIGTERM.
DRAINS = 0.02
# So many pull WAL with the product's own code.
REAL_PULLS = 0.5


class RealSafekeeper(ObservedShell):
    """A real safekeeper.

    Attributes:
        disk: its disk.
        chance: the source of chance of its threads and sockets.
        loop: the loop of its present life.
        node, listener: of its present life.
    """

    disk: ShellDisk

    def __init__(self, world: "World", safekeeper_id: int, disk: ModelDisk) -> None:
        self._is_hung = False
        self.chance = random.Random(f"{world.seed} shell of {safekeeper_id}")
        self.loop = ShellLoop(world.clock, self.chance, 0.0, self)
        self.loop.end()
        self._watched = Watched(self)
        self.node: Node | None = None
        self._transports: dict[int, VirtualTransport] = {}
        self._flush_takes_s = 0.0  # On the loop's thread, in this life so far.
        self._is_quick = False
        self._is_in_thread = False
        self._storage: WalStorage | None = None
        self.watch: ShellWatch | None = None
        # Whether its disk had failed before this life, so that the cache may show what is lost; and its troubles.
        self._had_lost_pages, self._troubles = False, 0
        super().__init__(world, safekeeper_id, disk)
        self.real_puller: RealPuller | None = None
        if random.Random(f"{world.seed} real pulls of {safekeeper_id}").random() < REAL_PULLS:
            self.puller = self.real_puller = RealPuller(world, self)

    @property
    def is_hung(self) -> bool:  # type: ignore[override]
        """Whether its process is stopped."""
        return self._is_hung

    @is_hung.setter
    def is_hung(self, is_hung: bool) -> None:
        self._is_hung = is_hung
        if is_hung:
            self.loop.freeze()

    def wake_up(self) -> None:
        """Go on after it hung."""
        self._is_hung = False
        self.loop.go_on()

    def start(self) -> None:
        """Start the process, if it is not running, on whatever the disk holds."""
        if self.acceptor is not None:
            return
        self.life += 1
        self.effects_left = None
        self._handled = self._leader_message = None
        self._is_quick = self.chance.random() < QUICK
        self._flush_takes_s = 0.0
        self._had_lost_pages, self._troubles = self.disk.fs.shows_lost_pages, self.disk.fs.troubles
        self.loop = ShellLoop(self.clock, self.chance, 0.0, self)
        with self.loop.running():
            try:
                self._boot()
            except (VirtualCrash, StorageFailed, StorageFull) as error:
                if isinstance(error, DiskLost):
                    raise Violation("NoHole", f"{self.name} has lost its disk: {error}") from error
                self._require_trouble(error)
                self.world.note(self.name, "does not start", error)
                self.crash()

    def _boot(self) -> None:
        disk = self.disk
        disk.on_persist = self._persisted
        if disk.control is not disk.reported and disk.control is not None:
            # A power cut has kept a state whose store had not returned.
            self._persisted(disk.reported)
        is_new = disk.control is None
        self._is_in_thread = True
        folder = ObservedFolder.open(disk.fs, DIRECTORY, self.id, self.world.incarnation_of(self))
        self.folders += is_new
        disk.opened(folder.control, folder.storage)
        self.world.note(self.name, "starts", folder.control, folder.flush_lsn)
        self.world.truths.on_start(self)
        node_module.Acceptor = observed_acceptor(self.world.acceptor_class, self)  # type: ignore[misc]
        try:
            node = Node(folder, self.loop)
        finally:
            node_module.Acceptor = Acceptor  # type: ignore[misc]
        self._is_in_thread = False
        if self._is_quick:
            node.wal.average_flush_s = 0.0
        self.node = node
        self._listener = ProposerListener(
            node, budget=Budget(100), greeting_timeout_s=GREETING_TIMEOUT_S, idle_timeout_s=IDLE_TIMEOUT_S
        )
        self._listener._log = SILENT
        node.attach(self._listener)
        node.attach_readers(Watcher(self, node))
        if self.real_puller is not None:
            self.real_puller.attach(node)
        node.failed.add_done_callback(self._node_failed)
        self._listener._watch_again()
        self.is_serving = True

    def _node_failed(self, failed: Any) -> None:
        error = failed.exception()
        if not isinstance(error, StorageFailed | StorageFull | VirtualCrash):
            raise error
        self._require_trouble(error)
        self.is_dead(self.life, error)

    def _require_trouble(self, error: BaseException) -> None:
        is_healthy = self.disk.fs.troubles == self._troubles and not self._had_lost_pages
        if is_healthy and not isinstance(error, VirtualCrash):
            raise Violation("HealthyDisk", f"{self.name} fails for its disk, which is healthy: {error}") from error

    def is_dead(self, life: int, error: BaseException) -> None:
        """The process has ended because of its disk."""
        if life == self.life:
            self.world.note(self.name, "fails", error)
            self.world.counts.count("disk errors")
            self.crash(power_cut=self.world.rng.random() < 0.5)

    def crash(self, power_cut: bool = False) -> None:
        """End the process at once."""
        self.loop.end()
        self.node = self.watch = None
        self._is_hung = False
        self._transports.clear()
        if self.real_puller is not None:
            self.real_puller.crashed()
        self.disk.on_persist = None
        super().crash(power_cut)

    def received(self, connection: Connection, message: Any) -> None:
        """A message has arrived."""
        if self.node is None:
            return
        transport = self._transports.get(connection.number)
        if transport is None and connection.number not in self._connections:
            self._connections[connection.number] = connection
            transport = self._transports[connection.number] = VirtualTransport(self, connection)
            self.loop.call_soon(transport.accepted, self._listener.new_protocol)
        self.world.note(self.name, "gets", message, connection.number)
        if transport is not None:
            if self.watch is not None:
                self.watch.arrived(connection, message)
            transport.arrived(b"".join(bytes(buffer) for buffer in encode(message)))

    def disconnected(self, connection: Connection) -> None:
        """The other side has closed, or the connection broke."""
        self._connections.pop(connection.number, None)
        transport = self._transports.get(connection.number)
        if transport is not None:
            transport.ended(self.chance.random() < 0.5)

    def closed(self, connection: Connection) -> None:
        """The listener has closed a connection."""
        self._transports.pop(connection.number, None)
        if self._connections.pop(connection.number, None) is not None and not self.disk.fs.is_down:
            self.world.network.close(connection, TO_PROXY)

    def checkpoint(self) -> None:
        """It is time to write down the lazy positions, or to stop."""
        if self.node is None:
            return
        if not self.world.is_healing and self.chance.random() < DRAINS:
            self.world.note(self.name, "gets SIGTERM")
            self.loop.run_task(self._drain(self.node), self._drained)
        else:
            self.loop.call_soon(self.node.checkpoint)

    async def _drain(self, node: Node) -> None:
        """Stop as the process does: afterwards all WAL is durable, and the positions are stored."""
        await node.drain()
        storage, lacking = node.folder.storage, node.disk_space.lacking
        is_durable = storage is None or storage.flush_lsn == storage.write_lsn == self.disk.durable_lsn
        positions = [(each.commit_lsn, each.truncate_lsn) for each in (node.acceptor, node.folder.control)]
        if node.ready or not is_durable or (positions[0] != positions[1] and not lacking):
            raise Violation("DrainedIsDurable", f"{self.name} ends with {positions}, and with WAL that is not durable")

    def _drained(self, task: Any) -> None:
        if task.cancelled():
            return
        if task.exception() is not None:
            self.loop.failure = self.loop.failure or task.exception()
            return
        self.world.counts.count("safekeepers that drained")
        self.crash()

    def archive_reported(self, archived_lsn: Lsn, problem: str, archive_id: str) -> None:
        """Its archiver has news."""
        if self.node is not None:
            self.loop.call_soon(self.node.archive_reported, archived_lsn, problem, archive_id)

    def trim(self, request: TrimRequest) -> None:
        """It is time to remove what is no longer needed."""
        if self.node is not None:
            self.loop.call_soon(self.node.trim, lambda: request)

    def pulled(self, leader_id: LeaderId, begin_lsn: Lsn, payload: bytes) -> None:
        """WAL has arrived that was asked of another safekeeper."""
        if self.node is not None:
            self.loop.call_soon(self.node.pulled, leader_id, begin_lsn, payload)

    def pull_failed(self, pull: PullWal, problem: str) -> None:
        """No source of a pull is left."""
        if self.node is not None:
            self.loop.call_soon(self.node.pull_failed, pull, problem)

    def readers_changed(self) -> None:
        """A standby has come, gone, or reported something new."""
        if self.node is not None:
            self.loop.call_soon(self._readers_changed, self.node)

    def _readers_changed(self, node: Node) -> None:
        words = tuple(standby.words for standby in self.readers)
        node.readers_changed(bool(words), words)


def _monotonic() -> float:
    return running_shell().monotonic()


REPLACED_IN_SHELLS: tuple[tuple[Any, str, Any], ...] = (
    *REPLACED_FILES,
    *REPLACED_IN_PULLS,
    (node_module, "Worker", VirtualWorker),
    (segment_files_module, "Worker", VirtualWorker),
    (segment_files_module, "monotonic", _monotonic),
    (wal_writer_module, "monotonic", _monotonic),
    (node_module, "time", NodeTime()),
    *SILENT_LOGS,
)
