"""The process of a lone acceptor: its disk, its connections, and what random values are drawn near.

Part of lone_acceptor.py.
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
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    Elected,
    PeerRead,
    Refusal,
)
from safekeeper.node.node import INCLUDES_FLUSH
from tests.simulation.corrupted_states import check_acceptor
from tests.simulation.counts import Counts
from tests.simulation.disk import ModelDisk
from tests.simulation.node_effects import message_effects
from tests.simulation.reference_checker import ReferenceChecker
from tests.simulation.synthetic_wal import SEGMENT_SIZE
from tests.simulation.trace import shown

FIRST_LSN = 4 * SEGMENT_SIZE
SAFEKEEPER_ID = 1
SYSTEM_ID = 77
RUNS = ("run-a", "run-b", "run-c")
CLUSTERS = ("cluster-a", "cluster-b")
ARCHIVES = ("", "archive-a", "archive-b")
TRACE_LINES = 40
_TAKES_SPACE = (WriteWal, Persist, TruncateWal, ResetWal)


class Died(Exception):
    """The process ends between two effects."""


class LoneProcess:
    """An acceptor, its disk, and the events that happen to it.

    Attributes:
        counts: how many events were compared.
        requested: the effects that the acceptor has requested: their names, and the codes of refusals.
    """

    def __init__(self, seed: int, history_entries_max: int) -> None:
        self.rng = random.Random(f"{seed} lone acceptor")
        self.counts = Counts()
        self._trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_LINES)
        self.requested: set[str] = set()
        self._entries_max = history_entries_max
        self._disk = ModelDisk(self.rng)
        self._disk.persist(ControlState(safekeeper_id=SAFEKEEPER_ID, incarnation="folder-0"))
        self._now_s = 0.0
        self._flush: Any = None
        self._effects_left = 0
        self._connections = 0
        self._greeted: list[int] = []
        self._closing: list[int] = []  # Their end is reported to the acceptor soon.
        self._won: dict[int, Elected] = {}  # By term.
        self._lost: set[int] = set()  # The terms that others have won, and forgotten.
        self._timed = self.rng.choice((0.0, 0.3, 0.8))  # The share of records that bear a time.
        # How often an effect lacks disk space, or a file descriptor, although the one before did not.
        self._lacks = self.rng.choice((0.0, 0.0, 0.01, 0.06))
        self._record = b""  # What is left of the record that appends are in, and where it goes on.
        self._record_lsn = 0
        self._sequence = 0
        self._requests = 0
        self._reads: list[PeerRead] = []  # Those that were taken, and are not answered yet.

    def trace(self) -> list[str]:
        """Return what happened last, a line each."""
        return [" ".join(map(shown, happened)) for happened in self._trace]

    # ------------------------------------------------------------------ the process

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

    # ------------------------------------------------------------------ what is drawn

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _connection(self, leader: float = 0.93) -> int:
        """Draw a connection: mostly the leader's, if there is one."""
        own = self._acceptor.leader_connection
        if own is not None and own in self._greeted and self._chance(leader):
            return own
        return self.rng.choice(self._greeted)

    def _position(self) -> int:
        """Draw a position: near one that means something."""
        acceptor, control = self._acceptor, self._acceptor.control
        anchors = [
            control.wal_begin_lsn or FIRST_LSN,
            acceptor.write_lsn,
            acceptor.flush_lsn,
            acceptor.commit_lsn,
            acceptor.truncate_lsn,
            *(entry.start_lsn for entry in control.history[-3:]),
        ]
        span = max(acceptor.write_lsn - control.wal_begin_lsn, 100)
        anchor = self.rng.choice((*anchors, control.wal_begin_lsn + self.rng.randrange(span)))
        return max(1, anchor + self.rng.choice((0, 0, 0, 0, -1, 1, -300, 300, -SEGMENT_SIZE, SEGMENT_SIZE)))

    def _leader_id(self) -> LeaderId:
        """Draw a leader: mostly the one that is followed or promised."""
        acceptor = self._acceptor
        promised = acceptor.control.promised
        if promised.term and self._chance(0.96):
            return acceptor.leader or promised
        term = max(1, promised.term + self.rng.choice((-1, 0, 0, 1)))
        return LeaderId(term, self.rng.choice(RUNS))

    def _membership(self, author: int) -> Membership:
        """Draw a membership near the own one: this folder is mostly a member."""
        control = self._acceptor.control
        own = control.membership
        generation = (own.generation if own is not None else 1) + self.rng.choice((0, 0, 0, 0, 0, 0, 1, 2, -1))
        here = Member(
            SAFEKEEPER_ID, control.incarnation if self._chance(0.95) else "folder-x", self.rng.choice(("", "h:1"))
        )
        others = tuple(Member(number, f"folder-of-{number}") for number in (2, 3))
        members = tuple(sorted((here, *others))) if self._chance(0.9) else others
        new = tuple(sorted((here, others[0]))) if self._chance(0.15) else ()
        return Membership(max(1, generation), members, new, author)

    def _cluster(self) -> str:
        control = self._acceptor.control
        is_blank = not control.promised.term and not control.history
        is_own = control.cluster_id and self._chance(0.6 if is_blank else 0.97)
        return control.cluster_id if is_own else self.rng.choice(CLUSTERS)
