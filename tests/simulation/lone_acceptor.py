"""One acceptor beside its reference, driven by random messages: states that clusters seldom reach.

Theory of operation. In a cluster most messages fit the state that a proposer has just received. Here they are drawn
from the state of the acceptor: histories that continue the log, fork off anywhere, give up WAL or have forgotten
terms; leaders that are elected, deposed, or elected again; positions at, below and above each border; full disks, and
processes that die between any two effects. There is no proposer and no other member, so these need not be the
messages of any cluster; the reference (reference_acceptor.py) states what the acceptor must do nevertheless. Two
rules hold, because otherwise all histories would be forged: a term is won once (S3), and its history continues a part
of another one.

Some messages break the protocol: the acceptor must refuse those that the reference refuses.

The bytes are those of `ModelDisk`, the time is drawn, and one seed decides everything.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

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
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import RemoteProtocolError, StorageFull
from safekeeper.consensus.control_state import ControlState, LeaderId, TliHistory
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    AgentExchange,
    AppendRequest,
    ArchiveAssignment,
    Bootstrap,
    ChangeMembers,
    DigestRequest,
    Elected,
    EventExchange,
    FolderIsOlder,
    FolderStates,
    MembersAnswer,
    PeerRead,
    PreVoteRequest,
    ProposerGreeting,
    PullSource,
    PullWal,
    ReadRequest,
    Reconfigure,
    Refusal,
    Standby,
    TailPreVoteRequest,
    TailRequest,
    VoteRequest,
)
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from safekeeper.node.node import INCLUDES_FLUSH
from tests.simulation.bends import Bends
from tests.simulation.counts import Counts
from tests.simulation.disk import ModelDisk
from tests.simulation.node_effects import flushed_effects, message_effects
from tests.simulation.reference_checker import ReferenceChecker
from tests.simulation.synthetic_wal import SEGMENT_SIZE, make_record
from tests.simulation.trace import shown
from tests.simulation.world import SimulationFailed, history_entries_max, small_frames

EVENTS = 100
FIRST_LSN = 4 * SEGMENT_SIZE
SAFEKEEPER_ID = 1
SYSTEM_ID = 77
RUNS = ("run-a", "run-b", "run-c")
CLUSTERS = ("cluster-a", "cluster-b")
ARCHIVES = ("", "archive-a", "archive-b")
TRACE_LINES = 40


def drive(seed: int, events: int = EVENTS) -> Counts:
    """Let random events happen to an acceptor; return how many were compared.

    Raises:
        SimulationFailed: it does something else than the reference.
    """
    entries_max = history_entries_max(seed)
    with small_frames(entries_max, Bends()):
        lone = LoneAcceptor(seed, entries_max)
        try:
            lone.run(events)
        except Exception as error:
            raise SimulationFailed(error, lone.trace()) from error
    return lone.counts


class Died(Exception):
    """The process ends between two effects."""


class LoneAcceptor:
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
        self._won: dict[int, Elected] = {}  # By term.
        self._lost: set[int] = set()  # The terms that others have won, and forgotten.
        self._timed = self.rng.choice((0.0, 0.3, 0.8))  # The share of records that bear a time.
        self._record = b""  # What is left of the record that appends are in, and where it goes on.
        self._record_lsn = 0
        self._sequence = 0
        self._requests = 0
        self._reads: list[PeerRead] = []  # Those that were taken, and are not answered yet.

    def run(self, events: int) -> None:
        """Let so many events happen.

        Raises:
            Violation: the acceptor does something else than the reference.
        """
        kinds: dict[Callable[[], None], int] = {
            self._append: 60,
            self._flushed: 20,
            self._elected: 22,
            self._vote: 10,
            self._pre_vote: 8,
            self._greet: 5,
            self._disconnect: 3,
            self._bootstrap: 8,
            self._reconfigure: 4,
            self._relay: 2,
            self._folders: 4,
            self._pull: 8,
            self._pulled: 12,
            self._read: 8,
            self._archive: 8,
            self._trim: 8,
            self._readers: 4,
            self._checkpoint: 3,
            self._exchange: 1,
            self._fill_disk: 4,
            self._die: 5,
        }
        self._start()
        for kind in self.rng.choices(list(kinds), list(kinds.values()), k=events):
            self._now_s += self.rng.choice((0.0, 0.01, 0.3, 0.6, 1.0))
            while not self._greeted:
                self._greet(well=True)
            kind()

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
        if isinstance(effect, INCLUDES_FLUSH):
            self._flush = None
        match effect:
            case Send(_, Refusal() as refusal):
                self.requested.add(refusal.code)
            case Close(connection, _):
                if connection in self._greeted:
                    self._greeted.remove(connection)
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

    def _connection(self, leader: float = 0.8) -> int:
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
        if promised.term and self._chance(0.85):
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

    # ------------------------------------------------------------------ elections

    def _greet(self, well: bool = False) -> None:
        self._connections += 1
        is_well = well or self._chance(0.9)
        message = ProposerGreeting(
            self.rng.choice((5, 5, 5, 4) if is_well else (3, 5, 6)),
            self.rng.choice(RUNS),
            SAFEKEEPER_ID if is_well else self.rng.choice((SAFEKEEPER_ID, 2)),
            self.rng.choice((None, SYSTEM_ID) if is_well else (SYSTEM_ID, 78)),
            self.rng.choice((None, SEGMENT_SIZE) if is_well else (SEGMENT_SIZE, 2 * SEGMENT_SIZE)),
        )
        self._greeted.append(self._connections)
        self._send(message, self._connections)
        if not self._greeted:
            self._disk.full = False  # Else a log that waits for room refuses each greeting.

    def _disconnect(self) -> None:
        self._close(self._connection(leader=0.3))

    def _pre_vote(self) -> None:
        run = self.rng.choice(RUNS)
        is_tail = self._chance(0.5)
        self._send(
            TailPreVoteRequest(run) if is_tail else PreVoteRequest(run, self._chance(0.2)), self._connection(0.2)
        )

    def _vote(self) -> None:
        promised = self._acceptor.control.promised
        leader_id = LeaderId(max(1, promised.term + self.rng.choice((-1, 0, 0, 1, 1, 2))), self.rng.choice(RUNS))
        if self._chance(0.2) and promised.term:
            leader_id = promised
        own = self._acceptor.control.membership
        asked = own if own is not None and self._chance(0.8) else self._membership(self.rng.choice((0, promised.term)))
        if self._chance(0.15):
            message = VoteRequest(leader_id, asked.generation)
        else:
            message = VoteRequest(leader_id, asked.generation, self._cluster(), asked)
        self._send(message, self._connection(0.2))

    def _elected(self) -> None:
        promised = self._acceptor.control.promised
        term = max(1, promised.term + self.rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 2, -1)))
        if term in self._lost:
            return
        won = self._won.get(term)
        if won is None:
            won = self._won[term] = self._win(term)
        message = msgspec.structs.replace(
            won,
            base_lsn=self._base_lsn(won.history[-1].start_lsn),
            commit_lsn=self.rng.choice(
                (0, 0, 0, won.history[-1].start_lsn, max(won.history[-1].start_lsn, self._position()))
            ),
            settled_lsn=self.rng.choice((0, won.history[-1].start_lsn, self._position())),
            cluster_id=self._cluster(),
            membership=self._elected_membership(term),
        )
        if self._chance(0.02):
            message = msgspec.structs.replace(message, **self._forgery(message))
        self._send(message, self._connection(0.4))

    def _elected_membership(self, term: int) -> Membership:
        own = self._acceptor.control.membership
        if own is not None and self._chance(0.85):
            return msgspec.structs.replace(own, author=max(own.author, term))
        return self._membership(self.rng.choice((term, term, term, term - 1, 0)))

    def _base_lsn(self, start_lsn: int) -> int:
        begin_lsn = self._acceptor.control.wal_begin_lsn or FIRST_LSN
        if self._chance(0.03):
            return self.rng.choice((0, begin_lsn + 1))
        end_lsn = max(self._acceptor.flush_lsn, start_lsn)
        near = (end_lsn // SEGMENT_SIZE + self.rng.choice((-1, 0, 0, 1))) * SEGMENT_SIZE
        return max(SEGMENT_SIZE, begin_lsn if self._chance(0.7) else near)

    def _forgery(self, message: Elected) -> dict[str, Any]:
        """Return fields with which a message breaks the protocol, or is another server's."""
        last = message.history[-1]
        return self.rng.choice(
            (
                {"history": (*message.history, msgspec.structs.replace(last, term=last.term + 1))},
                {"history": (*message.history[:-1], msgspec.structs.replace(last, tli=0))},
                {"history": (msgspec.structs.replace(last, start_lsn=last.start_lsn + 1), last)},
                {"history": (msgspec.structs.replace(last, term=last.term + 1), last)},
                {"history": (msgspec.structs.replace(last, term=last.term - 1, tli=last.tli + 1), last)},
                {"system_id": SYSTEM_ID + 1},
                {"segment_size": 2 * SEGMENT_SIZE},
            )
        )

    def _win(self, term: int) -> Elected:
        """Draw the log of a term: another log, cut anywhere, and continued."""
        control = self._acceptor.control
        logs = [(control.history, control.forgotten_term)] * 3
        logs += [(won.history, won.forgotten_term) for won in list(self._won.values())[-4:]]
        history, forgotten = self.rng.choice(logs)
        history = tuple(entry for entry in history if entry.term < term)
        history, forgotten = ((), 0) if self._chance(0.02) else (history, min(forgotten, term - 1))
        start_lsn = self._acceptor.write_lsn if self._chance(0.4) else self._position()
        if self._chance(0.1):
            start_lsn = max(1, control.wal_begin_lsn - self.rng.choice((1, 5000)))
        kept = tuple(entry for entry in history if entry.start_lsn <= start_lsn)
        if self._chance(0.7):
            kept = tuple(entry for entry in kept if entry.start_lsn < start_lsn)
        if not kept:
            start_lsn = max(start_lsn, FIRST_LSN) // SEGMENT_SIZE * SEGMENT_SIZE
            forgotten = 0
        gives_up = any(entry.gives_up for entry in history if entry not in kept) or self._chance(0.1)
        tli = (kept[-1].tli if kept else 1) + int(self._chance(0.2))
        floor = max((kept[-1].floor if kept else 0), self.rng.choice((0, 0, 0, tli - 1)))
        kept, forgotten = self._forget(kept, forgotten)
        if kept and kept[-1].term < term - 1 not in self._won and self._chance(0.5):
            # A term that this acceptor never adopted has ended the log, and was forgotten since.
            kept, forgotten = self._without(kept, len(kept)), term - 1
            self._lost.add(term - 1)
        return Elected(
            leader_id=LeaderId(term, self._winner(term)),
            cluster_id=control.cluster_id or CLUSTERS[0],
            system_id=SYSTEM_ID,
            segment_size=SEGMENT_SIZE,
            server_version=150000 + self.rng.randrange(2),
            membership=self._membership(term),
            history=(*kept, HistoryEntry(term, start_lsn, tli, gives_up, floor)),
            tli_histories=(TliHistory(tli, b"1\t0/4000\n"),) if tli > 1 else (),
            base_lsn=0,
            commit_lsn=0,
            forgotten_term=forgotten,
        )

    def _winner(self, term: int) -> str:
        promised = self._acceptor.control.promised
        return promised.proposer_id if promised.term == term and self._chance(0.8) else self.rng.choice(RUNS)

    def _forget(self, history: TermHistory, forgotten: int) -> tuple[TermHistory, int]:
        """Leave out old entries, as proposers do: the first of each timeline and those that give up WAL stay."""
        if not self._chance(0.25) or len(history) < 2:
            return history, forgotten
        kept = self._without(history, self.rng.choice((len(history), self.rng.randrange(1, len(history) + 1))))
        return kept, max([forgotten, *(entry.term for entry in history if entry not in kept)])

    def _without(self, history: TermHistory, count: int) -> TermHistory:
        return tuple(
            entry
            for index, entry in enumerate(history)
            if index >= count or index == 0 or entry.gives_up or history[index - 1].tli != entry.tli
        )

    # ------------------------------------------------------------------ WAL

    def _wal(self, count: int) -> bytes:
        """Return the next bytes of records; a record that was cut is not continued."""
        rng, lsn = self.rng, self._acceptor.write_lsn
        wal = self._record if self._record_lsn == lsn else b""
        while len(wal) < count:
            size = rng.choice((40, 300, 300, 3000, 3000, 2 * SEGMENT_SIZE))
            wal += make_record(size, lsn + len(wal), rng, is_timed=self._chance(self._timed))
        if self._chance(0.4):
            count = len(wal)
        self._record, self._record_lsn = wal[count:], lsn + count
        return wal[:count]

    def _append(self) -> None:
        acceptor, rng = self._acceptor, self.rng
        own = acceptor.control.membership
        payload = self._wal(rng.choice((1, 50, 500, 3000, SEGMENT_SIZE))) if self._chance(0.75) else b""
        begin_lsn = acceptor.write_lsn if payload or self._chance(0.7) else self._position()
        if self._chance(0.02):
            begin_lsn += rng.choice((-1, 1))
        commit_lsn = rng.choice(
            (0, acceptor.commit_lsn, acceptor.flush_lsn, begin_lsn + len(payload), self._position())
        )
        truncate_lsn = rng.choice(
            (0, 0, acceptor.truncate_lsn, commit_lsn, commit_lsn // 2, commit_lsn + int(self._chance(0.02)))
        )
        self._sequence += rng.choice((0, 1, 1))
        message = AppendRequest(
            self._leader_id(),
            (own.generation if own is not None else 1) + int(self._chance(0.02)),
            begin_lsn,
            commit_lsn,
            min(truncate_lsn, commit_lsn + 1),
            self._sequence,
            self._chance(0.7),
            payload,
        )
        self._send(message, self._connection(0.97))

    def _flushed(self) -> None:
        if self._flush is None:
            self._flush = self._disk.start_flush()
        elif self._chance(0.2):
            self._run(self._acceptor.report_write(), "write_reported")
        else:
            flush, self._flush = self._flush, None
            flush_lsn = self._disk.finish_flush(flush)
            self._run(flushed_effects(self._acceptor, flush_lsn), "flushed", flush_lsn)

    def _pull(self) -> None:
        self._requests += 1
        acceptor = self._acceptor
        sources = (PullSource(2, "h:2"),) if self._chance(0.8) else ()
        if acceptor.pull is not None and self._chance(0.3):
            pull = acceptor.pull if self._chance(0.7) else msgspec.structs.replace(acceptor.pull)
            self._run(acceptor.pull_failed(pull, "no source"), "pull_failed", pull, "no source")
            return
        end_lsn = self.rng.choice((acceptor.write_lsn + 5000, self._position()))
        self._send(PullWal(self._leader_id(), self._requests, end_lsn, 0, sources))

    def _pulled(self) -> None:
        acceptor = self._acceptor
        begin_lsn = acceptor.write_lsn if self._chance(0.8) else self._position()
        content = self._leader_id(), begin_lsn, self._wal(self.rng.choice((100, 4000)))
        self._run(acceptor.pulled(*content), "pulled", *content)

    def _read(self) -> None:
        self._requests += 1
        leader_id, begin_lsn, end_lsn = self._leader_id(), self._position(), self._position()
        if self._chance(0.9):
            begin_lsn, end_lsn = sorted((begin_lsn, end_lsn))
        if self._chance(0.6):
            begin_lsn = max(begin_lsn, self._acceptor.control.wal_begin_lsn)
            end_lsn = max(begin_lsn, min(end_lsn, self._acceptor.flush_lsn))
        kind = self.rng.randrange(4)
        if kind == 0:
            self._send(ReadRequest(leader_id, self._requests, begin_lsn, end_lsn))
        elif kind == 1:
            self._send(DigestRequest(leader_id, self._requests, begin_lsn, end_lsn, self._chance(0.5)))
        elif kind == 2:
            self._send(TailRequest(leader_id, self._requests, begin_lsn))
        else:
            request = PeerRead(leader_id, self._requests, begin_lsn, end_lsn)
            self._send(request, self._connection(0.2))
        if self._reads and self._chance(0.5):
            request = self._reads.pop(0)
            self._checker.serves(request, self._acceptor.serves(request))

    # ------------------------------------------------------------------ members, folders, archive, readers, the disk

    def _bootstrap(self) -> None:
        control = self._acceptor.control
        own, replaced = control.membership, control.replaced
        is_undo = self._chance(0.6 if replaced is not None else 0.1)
        replaces = self._chance(0.4)
        cluster_id = self.rng.choice((*CLUSTERS, control.cluster_id))
        if replaced is not None and is_undo and self._chance(0.85):
            cluster_id = replaced.cluster_id
        membership = self._membership(author=self.rng.choice((0, control.promised.term + 1, control.promised.term + 1)))
        if own is not None and self._chance(0.8):
            membership = msgspec.structs.replace(membership, generation=own.generation + self.rng.choice((1, 1, 0)))
        if own is not None and not is_undo and self._chance(0.1):
            membership, cluster_id = own, control.cluster_id
        self._send(
            Bootstrap(
                cluster_id or CLUSTERS[0],
                SYSTEM_ID,
                SEGMENT_SIZE,
                150000,
                membership,
                replaces,
                is_undo,
                self._chance(0.6),
            ),
            self._connection(0.2),
        )

    def _reconfigure(self) -> None:
        leader_id, own = self._leader_id(), self._acceptor.control.membership
        author = leader_id.term if self._chance(0.95) else 0
        membership = self._membership(author)
        if own is not None and self._chance(0.3):
            membership = msgspec.structs.replace(own, author=author)
        self._send(Reconfigure(leader_id, membership), self._connection(0.95))

    def _relay(self) -> None:
        if self._chance(0.5):
            self._send(ChangeMembers(0, CLUSTERS[0], 1, (Member(2, "folder-of-2"),)), self._connection(0.2))
        else:
            self._send(MembersAnswer(self.rng.randrange(self._connections + 2), "no"))

    def _folders(self) -> None:
        control, rng = self._acceptor.control, self.rng
        states = tuple(
            FolderState(number, incarnation, rng.randrange(4), rng.randrange(4), self._position())
            for number, incarnation in (
                (1, control.incarnation), (2, "folder-of-2"), (3, "folder-of-3"), (3, "folder-of-2")
            )
            if self._chance(0.6)
        )  # fmt: skip
        if self._chance(0.85):
            self._send(FolderStates(self._cluster(), states))
        elif self._chance(0.3):
            known = FolderState(SAFEKEEPER_ID, control.incarnation if self._chance(0.7) else "folder-x", 9, 9, 9)
            self._send(FolderIsOlder(self._leader_id(), known))

    def _archive(self) -> None:
        rng, acceptor = self.rng, self._acceptor
        if self._chance(0.5):
            archiver = rng.choice((0, SAFEKEEPER_ID, SAFEKEEPER_ID, 2))
            archived_lsn = rng.choice((0, acceptor.commit_lsn, self._position()))
            self._send(ArchiveAssignment(self._leader_id(), archiver, archived_lsn, rng.choice(ARCHIVES)))
        else:
            report = (
                rng.choice((0, acceptor.commit_lsn, self._position())),
                rng.choice(("", "", "down")),
                rng.choice(ARCHIVES),
            )
            self._run(acceptor.archive_reported(*report), "archive_reported", *report)

    def _trim(self) -> None:
        rng = self.rng
        request = TrimRequest(
            wanted_lsn=rng.choice((None, None, self._position())),
            keep_bytes=rng.choice((0, 0, SEGMENT_SIZE, 3 * SEGMENT_SIZE)),
            limit_bytes=rng.choice((None, 2 * SEGMENT_SIZE, 4 * SEGMENT_SIZE, 4 * SEGMENT_SIZE + 1)),
            has_archive=self._chance(0.5),
        )
        self._run(self._acceptor.trim(request), "trim", request)

    def _readers(self) -> None:
        standbys = tuple(Standby(name, self.rng.randrange(3)) for name in ("R1", "R2") if self._chance(0.5))
        has_readers = bool(standbys) or self._chance(0.3)
        self._run(self._acceptor.readers_changed(has_readers, standbys), "readers_changed", has_readers, standbys)

    def _checkpoint(self) -> None:
        self._run(self._acceptor.checkpoint(), "checkpoint")

    def _exchange(self) -> None:
        cluster_id = self.rng.choice((*CLUSTERS, self._acceptor.control.cluster_id))
        message = AgentExchange(cluster_id, "agent") if self._chance(0.5) else EventExchange(cluster_id)
        self._send(message, self._connection(0.2))

    def _fill_disk(self) -> None:
        self._disk.full = not self._disk.full and self._chance(0.5)

    def _die(self) -> None:
        if self._chance(0.5):
            self._effects_left = self.rng.randint(1, 12)
        else:
            self._crash()
