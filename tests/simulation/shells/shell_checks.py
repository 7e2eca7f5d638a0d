"""Where the checkers observe a real safekeeper, and how long its threads and its disk take.

Something leaves the shell here: a message at the socket, a write at the storage, an effect on the data folder, the end
of an event at the node's readers. `RealSafekeeper` (real_safekeeper.py) starts, connects and ends the process.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from safekeeper.acceptor.effects import (
    Effect,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    ReadWal,
    ResetWal,
    RestoreWal,
    SetWalAside,
    TruncateWal,
)
from safekeeper.base.errors import StorageFailed
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import (
    AcceptorMessage,
    PreVoteResponse,
    ProposerMessage,
    Refusal,
    TailPreVoteRequest,
)
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import ProposerListener
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_work import Flush, Preparation, Removal
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.checks.violation import Violation
from tests.simulation.model.network import TO_PROXY, Connection
from tests.simulation.model.safekeeper import SimSafekeeper
from tests.simulation.model.virtual_disk import VirtualCrash
from tests.simulation.shells.shell_disk import ShellDisk
from tests.simulation.shells.shell_seams import (
    ShellLoop,
    VirtualTransport,
    Watched,
    running_shell,
)
from tests.simulation.shells.shell_watch import ShellWatch

if TYPE_CHECKING:
    pass


QUICK_FLUSH_S = 0.002


class ObservedFolder(DataFolder):
    """A data folder whose work the checkers observe."""

    def __init__(self, *args: Any) -> None:
        self._shell = running_shell()
        super().__init__(*args)

    def perform(self, effect: Effect) -> Any:
        return self._shell.performing(effect, partial(super().perform, effect))

    def _open_storage(self, control: ControlState) -> WalStorage:
        storage = super()._open_storage(control)
        self._shell.observe(storage)
        return storage


class ObservedShell(SimSafekeeper):
    """A real safekeeper that the checkers observe.

    Attributes:
        disk: its disk.
        chance: the source of chance of its threads and sockets.
        loop: the loop of its present life.
        node: of its present life.
        watch: what is compared in its present life.
    """

    disk: ShellDisk
    chance: random.Random
    loop: ShellLoop
    node: Node | None
    watch: ShellWatch | None
    _listener: ProposerListener
    _watched: Watched
    _storage: WalStorage | None
    _flush_takes_s: float  # On the loop's thread, in this life so far.
    _is_quick: bool
    _is_in_thread: bool

    def handles(self, connection: int | None, message: ProposerMessage, now: float) -> None:
        """The acceptor handles a message, or goes on with it: meanwhile the peer may have ended the connection."""
        if self._handled is not None and self._handled[1] is message:
            return
        self._remember_leader()
        self._handled, self._refuses = (connection or 0, message, now), False
        if connection not in self._listener._connections:
            with self._watched:
                raise Violation(
                    "NothingAfterClose", f"{self.name} handles {message} of a connection that it has closed"
                )

    def event_ended(self) -> None:
        """The node has handled an event."""
        if self.node is None or self.acceptor is None or self.disk.fs.is_down:
            return
        self._remember_leader()
        self.puller.wake()
        with self._watched:
            if self.watch is not None:
                self.watch.event_ended()
            truth = self.world.truths.of_folder(self)
            truth.readers.on_handled(self)
            truth.truncate.on_handled(self)
            if self.world.archive is not None:
                truth.archive.on_handled(self)
        if self.readers:
            readable_lsn = self.acceptor.readable_lsn
            for standby in self.readers:
                if standby.received_lsn != readable_lsn:
                    self.world.counts.count("readers sent WAL")
                    standby.wake()

    def may_send(self, message: AcceptorMessage, connection: Connection) -> bool:
        """Check a message that leaves the process; return False if the process is dead."""
        if self.disk.fs.is_down or (self.effects_left is not None and self._dies_here()):
            return False
        self._count_sent(message)
        self._refuses = self._refuses or isinstance(message, Refusal)
        with self._watched:
            if self.watch is not None:
                self.watch.sent(connection, message)
            truth = self.world.truths.of_folder(self)
            handled = self._handled[1] if self._handled is not None else None
            if isinstance(handled, TailPreVoteRequest) and isinstance(message, PreVoteResponse) and message.granted:
                live = self._live_leader()
                truth.on_tail_granted(self, handled.proposer_id, live not in ("", handled.proposer_id))
            truth.on_acceptor_sends(self, message)
        return True

    def send(self, connection: Connection, message: AcceptorMessage) -> None:
        """A message has left the socket."""
        if not self.disk.fs.is_down:
            self.world.note(self.name, "sends", message, connection.number)
            self.world.network.send(connection, TO_PROXY, message)

    def observe(self, storage: WalStorage) -> None:
        """Look on at the writes of a storage."""
        self._storage = storage
        append, forget_below, flush_now = storage.append, storage.forget_below, storage.flush_now

        def observed_append(begin_lsn: Lsn, data: bytes | memoryview) -> None:
            self._require_alive()
            payload = bytes(data)
            self.world.note(self.name, "writes", begin_lsn, payload)
            try:
                self.disk.writing(payload, partial(append, begin_lsn, payload))
            except StorageFailed as error:
                self._storage_failed(error)
                raise
            if self.watch is not None:
                self.watch.performed = begin_lsn, payload
            with self._watched:
                self.world.truths.of_folder(self).on_write(self, begin_lsn, payload)

        def observed_forget_below(lsn: Lsn) -> Removal | None:
            self._require_alive()
            removal = forget_below(lsn)
            self.world.counts.count("old WAL removed", int(self.disk.begin_lsn < lsn))
            self.disk.trimmed(lsn)
            if self.watch is not None:
                self.watch.performed = lsn
            return removal

        def observed_flush_now() -> Lsn:
            try:
                flush_lsn = flush_now()
            except StorageFailed as error:
                self._storage_failed(error)
                raise
            if not self._is_in_thread:
                self._flush_took(self._flush_s() * self.chance.random())
            return flush_lsn

        storage.flush_now = observed_flush_now  # type: ignore[method-assign]
        storage.append = observed_append  # type: ignore[method-assign]
        storage.forget_below = observed_forget_below  # type: ignore[method-assign]

    def performing(self, effect: Effect, perform: Callable[[], Any]) -> Any:
        """An effect is carried out on the data folder."""
        self._require_alive()
        self.world.note(self.name, "does", effect)
        was_in_thread, self._is_in_thread = self._is_in_thread, True
        try:
            result = self._performing(effect, perform)
        finally:
            self._is_in_thread = was_in_thread
        if self.dies_after and type(effect).__name__ == self.dies_after:
            self.dies_after, self.effects_left = "", 1
        self._require_alive()
        if self.watch is not None:
            self.watch.performed = effect
        return result

    def _storage_failed(self, error: StorageFailed) -> None:
        """What the loop's thread did with the storage has failed."""
        if self.watch is not None and not self._is_in_thread:
            self.watch.failed(error)

    def job_failed(self, token: Any, error: Exception) -> None:
        """What another thread did for the node has failed, and the loop is informed of it."""
        is_of_the_log = isinstance(token, Flush | Preparation | Removal | Effect)
        if self.watch is not None and is_of_the_log and isinstance(error, StorageFailed):
            self.watch.failed(error)

    def transport_of(self, number: int) -> VirtualTransport | None:
        """Return the socket of a connection of the listener, None if it has none of this number."""
        connection = self._listener._connections.get(number) if self.node is not None else None
        if connection is None:
            return None
        assert isinstance(connection._transport, VirtualTransport)
        return connection._transport

    def _performing(self, effect: Effect, perform: Callable[[], Any]) -> Any:
        world, disk = self.world, self.disk
        if isinstance(effect, TruncateWal):
            world.counts.count("truncations", int(effect.lsn < disk.write_lsn))
            disk.truncating(effect.lsn, effect.tli, perform)
        elif isinstance(effect, ResetWal):
            world.counts.count("logs begun again")
            disk.resetting(effect.base_lsn, perform)
        elif isinstance(effect, SetWalAside):
            perform()
            disk.set_aside(effect.label)
            for standby in list(self.readers):
                standby.log_is_gone()
        elif isinstance(effect, RestoreWal):
            self._storage = None
            restored_lsn = perform()
            disk.restored(effect.label, self._storage)
            with self._watched:
                world.truths.on_cut(self)
            return restored_lsn
        # Records are those of synthetic_wal.py.
        elif isinstance(effect, FindRecords):
            return disk.find_records(effect.lsn)
        elif isinstance(effect, FindRecordEnd):
            return disk.find_records(effect.lsn)[0]
        elif isinstance(effect, FindTimedRecord):
            return disk.find_timed_record(effect.begin_lsn, effect.end_lsn)
        else:
            world.counts.count("reads from peers", int(isinstance(effect, ReadWal)))
            return perform()
        with self._watched:
            world.truths.on_cut(self)
        return None

    def _persisted(self, before: ControlState | None) -> None:
        """Another control state is durable."""
        control = self.disk.reported = self.disk.control
        assert control is not None
        with self._watched:
            if before is not None and before.incarnation != control.incarnation:
                self.world.checker.on_new_incarnation(self, before.incarnation)
            if control.base_lsn is not None and before is not None and before.wal_begin_lsn:
                self.world.counts.count("members that skipped WAL")
            self.world.truths.on_persist(self, before)

    def _dies_here(self) -> bool:
        """Die at an effect: nothing that the process does afterwards has an effect; then it is gone."""
        assert self.effects_left is not None
        self.effects_left -= 1
        if self.effects_left > 0:
            return False
        self.effects_left = None
        self.disk.fs.stop()
        self.world.clock.after(0.0, self._is_killed, self.life, self.dies_of_power_cut)
        return True

    def _is_killed(self, life: int, power_cut: bool) -> None:
        if life == self.life:
            self.crash(power_cut)

    def _require_alive(self) -> None:
        if self.disk.fs.is_down or (self.effects_left is not None and self._dies_here()):
            raise VirtualCrash

    def job_takes_s(self, token: Any) -> float:
        """Return how long a thread takes for a job."""
        if isinstance(token, Flush):
            return self.chance.random() * self._flush_s()
        if self.chance.random() < self.world.profile.slow_effect:
            return self.chance.random() * self.flush_delay_s
        return 0.0

    def _flush_s(self) -> float:
        is_slowed = self.flush_delay_s > self.world.profile.flush_delay_s
        return QUICK_FLUSH_S if self._is_quick and not is_slowed else self.flush_delay_s

    def _flush_took(self, took_s: float) -> None:
        """A flush on the loop's thread has returned: meanwhile it did nothing else."""
        self._flush_takes_s += took_s
        if took_s > QUICK_FLUSH_S:
            self.loop.suspend(took_s)

    def monotonic(self) -> float:
        """Return the time that has passed for the node."""
        return self.world.clock.now + self._flush_takes_s
