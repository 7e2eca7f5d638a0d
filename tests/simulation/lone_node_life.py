"""The life of a lone node: its process starts, works, is killed or drains, and is compared after each step.

What happens to it is in lone_node.py; threads and sockets are those of lone_node_process.py.
"""

import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import ResetWal
from safekeeper.base.errors import StorageFailed, StorageFull
from safekeeper.base.lsn import LSN_MAX
from safekeeper.net.admission import Budget
from safekeeper.node import node as node_module
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import ProposerListener
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.filesystem import Space
from tests.simulation.counts import Counts
from tests.simulation.disk import ModelDisk
from tests.simulation.listener_reference import ListenerReference
from tests.simulation.lone_elections import LoneElections
from tests.simulation.lone_messages import SAFEKEEPER_ID
from tests.simulation.lone_node_process import LoneWorker, ObservedFolder, Process, log_state
from tests.simulation.lone_node_socket import LoneSocket
from tests.simulation.lone_node_space import LinesLog, SpaceReference
from tests.simulation.lone_orders import LoneOrders
from tests.simulation.lone_wal import LoneWal
from tests.simulation.shell_reader import Watcher
from tests.simulation.shell_seams import SILENT
from tests.simulation.trace import shown
from tests.simulation.violation import Violation
from tests.simulation.virtual_disk import VirtualFileSystem

DIRECTORY = Path("/machine/data")
BUDGET = Budget(3, 4)
TIMEOUTS_S = (0.5, 5.0)
SECRET = SimpleNamespace(value=b"the secret of the cluster", origin="")
UNLIMITED_BYTES = 1 << 40
TRACE_LINES = 60
STARTS_MAX = 20


class Sleeper:
    """A reader that is informed of appends only from a position on, which is the present end or none.

    Attributes:
        wakes_at_lsn: see LogReaders.
        seen: what it was informed of last.
    """

    def __init__(self, node: Node) -> None:
        self.wakes_at_lsn = LSN_MAX
        self.seen: tuple[Any, ...] = ()
        self._node = node

    def update(self) -> None:
        """See LogReaders."""
        self.seen = log_state(self._node.acceptor)


class NodeLife(LoneElections, LoneWal, LoneOrders):
    """A node, its disk, its peers, and the events that happen to it.

    Attributes:
        counts: how many steps were compared.
        process: the present one.
        space_log: what it has logged of disk space.
        name, loop: see Watcher.
    """

    name = "S1"

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(f"{seed} lone node"))
        self.counts = Counts()
        self.process: Process
        self.fs = VirtualFileSystem(self.rng)
        self.disk = SimpleNamespace(fs=self.fs)
        self.fs.make_directory(DIRECTORY.parent)
        self._bytes = ModelDisk(self.rng)
        self._trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_LINES)
        self._secret = SECRET if self._chance(0.2) else None
        self._now_s = 100.0
        self._sockets: dict[int, LoneSocket] = {}
        self._drain: Any = None
        self._shortage = self.rng.choice((0.0, 0.0, 0.1, 0.9))  # Of descriptors, where segments are prepared.
        self._pace = self.rng.choice((0.3, 0.6, 0.8))  # How often something happens that leads on.
        self._silent_steps = 0
        self._troubles, self._had_trouble = 0, False
        self.space_log = LinesLog()

    @property
    def loop(self) -> Any:
        """The loop of the present process."""
        return self.process.loop

    @property
    def _acceptor(self) -> Acceptor:  # type: ignore[override]
        return self._reference.acceptor

    def trace(self) -> list[str]:
        """Return what happened last, a line each."""
        return [" ".join(map(shown, happened)) for happened in self._trace]

    def _happened(self) -> None:
        """Compare what the node has done with what it must do."""
        self._reference.loop_ran()
        self._reference.compare(self._node, self._listener, self._sockets)
        self._greeted = [number for number in self._greeted if number in self._reference.peers]
        sleeper, write_lsn = self._sleeper, self._acceptor.write_lsn
        before, self._log = self._log, log_state(self._node.acceptor)
        has_missed = sleeper.wakes_at_lsn <= write_lsn and before != self._log != sleeper.seen
        # The leader is part of what each reader must know, wherever it waits.
        has_missed = has_missed or (before[-2:] != self._log[-2:] and sleeper.seen[-2:] != self._log[-2:])
        if has_missed and self._reference.is_between_events:
            raise Violation("ReadersKnow", "a reader is not informed of the position that it waits for")
        sleeper.wakes_at_lsn = self.rng.choice((LSN_MAX, write_lsn, write_lsn + 800))
        self.counts.count("steps of a lone node")

    def _note(self, *what: Any) -> None:
        self._trace.append(what)

    # ------------------------------------------------------------------ the process

    def _start(self) -> None:
        for _ in range(STARTS_MAX):
            self.process = process = Process(self.rng, self._bytes, self._now_s, self._has_trouble)
            ObservedFolder.process = process
            try:
                with process.loop.running():
                    self._boot(process)
            except (StorageFailed, StorageFull) as error:
                self._note("does not start:", error)
                self._end()
                continue
            self._note("starts")
            self._happened()
            return
        raise AssertionError("no start succeeds")

    def _boot(self, process: Process) -> None:
        before = self._bytes.durable_lsn
        folder = ObservedFolder.open(self.fs, DIRECTORY, SAFEKEEPER_ID, "folder-0")
        self._adopt(folder)
        is_healthy = not self.fs.shows_lost_pages and not self._had_trouble
        # Nothing is claimed of a log whose reset is not finished: it may begin below the one before it.
        counts = folder.storage is not None and folder.control.base_lsn is None
        if counts and is_healthy and self._bytes.durable_lsn < before:
            raise AssertionError(f"WAL up to {before} was durable, and is gone")
        self._reference = reference = ListenerReference(
            process, folder.control, folder.flush_lsn, self._bytes, BUDGET, TIMEOUTS_S
        )
        process.seen.clear()
        if self._chance(0.1):
            self._note("no space for what a start stores")
            self.fs.capacity_bytes = self.fs.used_bytes()
        self._node = node = Node(folder, process.loop)
        process.acceptor = node.acceptor
        node.disk_space.free_warning_bytes = self.rng.choice((0, 1 << 20))
        self._space = SpaceReference()
        if node.disk_space.is_low:
            raise AssertionError("there is little space, and nothing was measured")
        reference.start()
        self._adopt(folder)
        process.started()
        greeting_s, idle_s = TIMEOUTS_S
        self._listener = ProposerListener(
            node, budget=BUDGET, greeting_timeout_s=greeting_s, idle_timeout_s=idle_s, secret=self._secret
        )
        self._listener._log = SILENT
        node.attach(self._listener)
        node.attach_readers(Watcher(self, node))
        self._sleeper = Sleeper(node)
        node.attach_readers(self._sleeper)
        self._sleeper.update()
        self._log = log_state(node.acceptor)
        self._listener._watch_again()
        reference.watch()
        node.failed.add_done_callback(lambda failed: failed.exception())
        process.event_ended()
        if self._chance(0.5):
            node._average_flush_s = reference.average_s = 0.0  # Its disk was quick so far.
        self._troubles, self._had_trouble = self.fs.troubles, False

    def _adopt(self, folder: DataFolder) -> None:
        """Take the bytes that a start has found."""
        storage, disk = folder.storage, self._bytes
        disk.drop()
        if storage is not None and not storage.is_empty:
            disk.begin_lsn, disk.durable_lsn = storage.begin_lsn, storage.flush_lsn
            short, self.fs.short = self.fs.short, 0  # The model lacks no descriptors.
            disk.wal = bytearray(storage.read(storage.begin_lsn, storage.flush_lsn))
            self.fs.short = short

    def event_ended(self) -> None:
        """See Watcher."""
        self.process.event_ended()

    def _has_trouble(self) -> bool:
        """Return whether the disk has failed or refused something since the start."""
        return self.fs.troubles > self._troubles or self.fs.shows_lost_pages

    def _end(self) -> None:
        """End the process."""
        self._had_trouble = self.fs.troubles != self._troubles
        self.fs.kill()
        self.fs.capacity_bytes, self.fs.short = UNLIMITED_BYTES, 0
        self.fs._fail_at = self.fs._full_at = None
        self._sockets.clear()
        self._greeted.clear()
        self._drain = None
        self._silent_steps = 0

    def _kill(self) -> None:
        self._note("is killed")
        self._now_s = self.process.loop.now + 1.0
        self._end()
        self._start()

    def _stop(self, *, is_last: bool = False) -> None:
        """Stop as the process does at SIGTERM; start again unless it is the last time."""
        if self._drain is not None:
            return
        self._note("drains")
        with self.loop.running():
            self._drain = self.loop.create_task(self._node.drain())
        self._reference.drain()
        self._happened()
        for _ in range(12):
            if self._drain.done() or self._reference.has_failed:
                break
            self._work()
        if self._drain.done() != (self._reference.drained == 3):
            raise AssertionError(f"a drain has ended: {self._drain.done()}, {self._reference.drained}")
        if self._drain.done():
            self._require_drained()
            with self.loop.running():
                self._listener.stop_accepting()
                self._listener.close_all()
                self._node.stop()
            self._reference.closes_all()
            self._happened()
            if not all(worker.is_stopped for worker in self.process.workers.values()):
                raise AssertionError("a thread was not stopped")
            self._require_closed()
            if not is_last:
                self._kill()

    def _require_drained(self) -> None:
        storage, acceptor = self._node.folder.storage, self._node.acceptor
        is_durable = storage is None or storage.write_lsn == storage.flush_lsn
        control = self._node.folder.control
        is_stored = (control.commit_lsn, control.truncate_lsn) == (acceptor.commit_lsn, acceptor.truncate_lsn)
        if not is_durable or not (is_stored or self._node.disk_space.lacking):
            raise AssertionError("a drained node leaves WAL that is not durable, or positions that are not stored")

    def _require_closed(self) -> None:
        """Check that no file stays open: those of members who have read were closed with their connections."""
        while any(each.has_jobs or each.has_results for each in self.process.workers.values()):
            self._work()
        try:
            self._node.folder.close()
        except StorageFailed:
            # The removal of a segment failed once the node no longer looked at what its threads do.
            if not self._has_trouble():
                raise
        if self.fs.open_files and not self._has_trouble():
            raise AssertionError(f"{self.fs.open_files} files were not closed")

    # ------------------------------------------------------------------ threads and time

    def _work(self) -> None:
        """Let a thread do something, or the loop learn of it."""
        workers = [each for each in self.process.workers.values() if each.has_jobs or each.has_results]
        if not workers:
            return
        worker = self.rng.choice(workers)
        if worker.has_jobs and (not worker.has_results or self._chance(0.3)):
            self._do_job(worker)
            if self._chance(0.4):
                return
        self._return_job(worker)

    def _do_job(self, worker: LoneWorker) -> None:
        if worker.name != "disk" and self._chance(self._shortage):
            self.fs.short = max(self.fs.short, 1)
        if self._chance(0.01 if worker.name == "disk" else 0.03):
            self.fs.fail_in(1)
        with self.loop.running():
            token, error = self.process.work(worker)
        self._note(worker.name, "has done", token, error or "")
        is_broken = self._has_trouble()
        if error is not None and not (
            isinstance(error, StorageFailed | StorageFull) and (is_broken or worker.name == "peer reader")
        ):
            raise AssertionError("a thread fails on a healthy disk") from error
        if isinstance(token, ResetWal) and isinstance(error, StorageFull):
            self._adopt(self._node.folder)  # The log is as it was, or empty.
        self._reference.worked(token, error)
        self._happened()

    def _return_job(self, worker: LoneWorker) -> None:
        self.space_log.lines.clear()
        with self.loop.running():
            token, result, error = worker.deliver()
        self._note(worker.name, "reports", token)
        self._reference.returned(token, result, error)
        self._happened()
        if token is None and error is None:
            self._require_measured(result)

    def _require_measured(self, space: Space) -> None:
        """Check that a measurement counts, and what was logged of it."""
        disk_space = self._node.disk_space
        if disk_space.space != space:
            raise AssertionError("the space on the disk is not what was measured")
        expected = self._space.lines(self.loop.now, space.free_bytes, disk_space.free_warning_bytes)
        if self.space_log.lines != expected:
            raise AssertionError(f"logs {self.space_log.lines}, not {expected}")

    def _pass_time(self) -> None:
        until_s = self.loop.now + self.rng.choice((0.0, 0.0005, 0.001, 0.002, 0.05, 0.3, 1.5))
        if self._chance(0.1):
            until_s += 6.0
        if len(self.loop.pending()) > 1:
            # A flush that runs is reported at this interval.
            until_s = min(until_s, self.loop.now + self.rng.choice((0.5, 1.0, 3.0)) * node_module.REPORT_WRITE_AFTER_S)
        self._note("until", until_s)
        while (pending := self.loop.pending()) and pending[0] <= until_s:
            with self.loop.running():
                self.loop.expire()
            self._reference.expire()
            self._happened()
        self.loop.now = max(self.loop.now, until_s)
