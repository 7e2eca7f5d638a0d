"""The process of a lone acceptor: its disk, its connections, and the ends of both.

Part of acceptor.py.
"""

import random
from collections import deque
from typing import Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    DigestWal,
    Effect,
    Effects,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    FlushWal,
    InspectSetAside,
    Persist,
    ReadWal,
    ResetWal,
    RestoreWal,
    Send,
    ServeRead,
    SetWalAside,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.base.errors import RemoteProtocolError, StorageFull
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import PeerRead, Refusal
from safekeeper.node.node import INCLUDES_FLUSH
from tests.simulation.lone.corrupted_states import check_acceptor
from tests.simulation.lone.elections import LoneElections
from tests.simulation.lone.messages import SAFEKEEPER_ID
from tests.simulation.lone.orders import LoneOrders
from tests.simulation.lone.wal import LoneWal
from tests.simulation.model.disk import ModelDisk
from tests.simulation.model.node_effects import flushed_effects, message_effects
from tests.simulation.references.acceptor.checker import ReferenceChecker
from tests.simulation.references.acceptor.readers import check_readers
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.trace import shown

TRACE_LINES = 40
_TAKES_SPACE = (WriteWal, Persist, TruncateWal, ResetWal)


class Died(Exception):
    """The process ends between two effects."""


class LoneProcess(LoneElections, LoneWal, LoneOrders):
    """An acceptor, its disk, and the events that happen to it.

    Attributes:
        counts: how many events were compared.
        requested: the effects that the acceptor has requested: their names, and the codes of refusals.
    """

    def __init__(self, seed: int, history_entries_max: int) -> None:
        super().__init__(random.Random(f"{seed} lone acceptor"))
        self.counts = Counts()
        self._trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_LINES)
        self.requested: set[str] = set()
        self._entries_max = history_entries_max
        self._disk = ModelDisk(self.rng)
        self._disk.persist(ControlState(safekeeper_id=SAFEKEEPER_ID, incarnation="folder-0"))
        self._now_s = 0.0
        self._flush: Any = None
        self._effects_left = 0
        self._closing: list[int] = []  # Their end is reported to the acceptor soon.
        # How often an effect lacks disk space, or a file descriptor, although the one before did not.
        self._lacks = self.rng.choice((0.0, 0.0, 0.01, 0.06))
        self._reads: list[PeerRead] = []  # Those that were taken, and are not answered yet.

    def trace(self) -> list[str]:
        """Return what happened last, a line each."""
        return [" ".join(map(shown, happened)) for happened in self._trace]

    def _start(self) -> None:
        control, end_lsn = self._disk.open()
        assert control is not None  # it was written at the beginning
        self._flush = None
        self._effects_left = 0
        self._greeted.clear()
        self._closing.clear()
        self._reads.clear()
        self._acceptor = Acceptor(control, end_lsn)
        self._checker = ReferenceChecker("S1", self._acceptor, end_lsn, self._disk, self._entries_max, self.counts)
        self._run(self._acceptor.start(), "start")

    def _run(self, effects: Effects, event: str, *arguments: Any) -> None:
        """Execute the effects of an event; the process may die on the way, and is then started again."""
        self._trace.append((event, *arguments))
        watched = self._checker.watch(effects, event, *arguments)
        result: Any = None
        error: StorageFull | None = None
        try:
            while True:
                effect = watched.send(result) if error is None else watched.throw(error)
                result = error = None
                self._die_here()
                try:
                    result = self._execute(effect)
                except StorageFull as full:
                    error = full
                self._die_here()
        except StopIteration:
            self._acceptor.check()
            if self._chance(0.1):
                check_acceptor(self.rng, self._acceptor)
        except StorageFull:
            self._trace.append(("the disk is full",))
        except RemoteProtocolError as broken:
            self._trace.append(("broken:", broken))
            self._close(arguments[0])
        except Died:
            self._crash()

    def _die_here(self) -> None:
        if self._effects_left:
            self._effects_left -= 1
            if not self._effects_left:
                raise Died

    def _crash(self) -> None:
        self._trace.append(("the process ends",))
        self._disk.crash(power_cut=self.rng.random() < 0.5)
        self._disk.full = self._disk.full and self.rng.random() < 0.5
        self._start()

    def _execute(self, effect: Effect) -> Any:
        disk = self._disk
        self.requested.add(type(effect).__name__)
        if isinstance(effect, _TAKES_SPACE) and self._chance(self._lacks):
            raise StorageFull("no space left for this one")
        if isinstance(effect, INCLUDES_FLUSH):
            self._flush = None
        match effect:
            case Send(_, Refusal() as refusal):
                self.requested.add(refusal.code)
            case Close(connection, _):
                if connection in self._greeted:
                    self._greeted.remove(connection)
                self._closing.append(connection)
            case WriteWal(begin_lsn, payload):
                disk.write(begin_lsn, bytes(payload))
            case FlushWal():
                disk.flush_all(None)
            case Persist(control):
                disk.persist(control)
            case TruncateWal(lsn, tli):
                disk.truncate(lsn, tli)
            case ResetWal(base_lsn, tli):
                disk.reset(base_lsn, tli)
            case TrimWal(lsn):
                disk.trim(lsn)
            case SetWalAside(label):
                disk.set_aside(label)
            case InspectSetAside(label, control):
                return disk.inspect_set_aside(label, control)
            case RestoreWal(label):
                return disk.restore(label)
            case ReadWal(begin_lsn, end_lsn):
                return disk.read(begin_lsn, end_lsn)
            case DigestWal(begin_lsn, end_lsn):
                return disk.digests(begin_lsn, end_lsn)
            case FindRecords(lsn):
                return disk.find_records(lsn)
            case FindRecordEnd(lsn):
                return disk.find_records(lsn)[0]
            case ServeRead(_, request):
                self._reads.append(request)
            case FindTimedRecord(begin_lsn, end_lsn):
                return disk.find_timed_record(begin_lsn, end_lsn)
        return None

    def _send(self, message: Any, connection: int | None = None) -> None:
        number = connection if connection is not None else self._connection()
        if self._chance(0.003):
            number = self._connections + 1  # It has not greeted.
        self._run(
            message_effects(self._acceptor, number, message, self._now_s), "message", number, message, self._now_s
        )

    def _close(self, connection: int) -> None:
        if connection in self._greeted:
            self._greeted.remove(connection)
        self._acceptor.disconnected(connection)
        self._checker.disconnected(connection)

    def _connect(self) -> int:
        self._connections += 1
        return self._connections

    def _happens(self, event: str, *arguments: Any) -> None:
        self._run(getattr(self._acceptor, event)(*arguments), event, *arguments)

    def _time_passes_for_reads(self) -> None:
        if self._reads and self._chance(0.5):
            request = self._reads.pop(0)
            self._checker.serves(request, self._acceptor.serves(request))

    def _greet(self, well: bool = False) -> None:
        super()._greet(well)
        if not self._greeted:
            self._disk.full = False  # Else a log that waits for room refuses each greeting.

    def _disconnect(self) -> None:
        self._close(self._connection(leader=0.3))

    def _flushed(self) -> None:
        if self._flush is None:
            self._flush = self._disk.start_flush()
        if self._flush is None or self._chance(0.4):
            return
        if self._chance(0.2):
            self._run(self._acceptor.report_write(), "write_reported")
        else:
            flush, self._flush = self._flush, None
            flush_lsn = self._disk.finish_flush(flush)
            self._run(flushed_effects(self._acceptor, flush_lsn), "flushed", flush_lsn)

    def _readers(self) -> None:
        super()._readers()
        check_readers(self.rng, self._acceptor)

    def _fill_disk(self) -> None:
        self._disk.full = not self._disk.full and self._chance(0.5)

    def _die(self) -> None:
        if self._chance(0.5):
            self._effects_left = self.rng.randint(1, 12)
        else:
            self._crash()
