"""A world so small that all of it can be looked at: what one real acceptor or one real proposer does next.

Theory of operation. A state machine's future depends on what it is, and on nothing else: neither has a clock here. So
each is kept as a number that stands for its contents, and each step of one is carried out once, by the real code, on
objects that were rebuilt from that number; afterwards it is looked up. What no machine stores (the answers to
greetings, fields that time fills) does not distinguish two machines.

What is small about it: every run campaigns once; the next run is another one. Greetings and pre-votes are exchanged at
once when a run starts: they decide the number of its term and change nothing else. A primary has whatever log the donor
has and goes on with bytes of its own run (S10 is not relied upon here). A connection that is closed is not opened again
by the same run. No standby streams from a safekeeper, nothing is archived, no timeline changes. No data folder is
replaced by an older copy of itself, so starts are not counted, and no states of folders are sent.
"""

import pickle
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    Effect,
    Effects,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    FlushWal,
    Persist,
    ReadWal,
    ResetWal,
    Send,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import AppendResponse, ArchiveReport, FolderStates, VoteRequest, VoteResponse
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from tests.simulation.checks.violation import Violation
from tests.simulation.model.node_effects import flushed_effects, message_effects
from tests.simulation.world.world import World
from walproxy.proposer import campaign, replication
from walproxy.proposer.actions import Action, Disconnect, IdentifyPrimary, SendAppend, SendMessage, StartReplication
from walproxy.proposer.campaign import Campaign
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.liveness import Timing
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.verification import Verification

SEGMENT_SIZE = 1 << 20
BASE_LSN = SEGMENT_SIZE
SAFEKEEPERS = (1, 2, 3)
# Where the members change: the first one is the only member, and is replaced by the second one.
CHANGING = (1, 2)
ENDED = 0
UNBORN = 1
NOTHING = 0
# In the place of a run: a flush takes its time.
SLOW_FLUSH = -1
# In the place of a safekeeper: the operator.
OPERATOR = -1
_SYSTEM_ID, _SERVER_VERSION, _CLUSTER = 7, 150018, "c" * 32
_MEMBERSHIP = Membership(1, tuple(Member(i, f"{i}" * 32) for i in SAFEKEEPERS))
_BEFORE_THE_CHANGE = Membership(1, (Member(1, "1" * 32),))
_AFTER_THE_CHANGE = (Member(2, "2" * 32),)
_TIMING = Timing(vote_grace_s=0.0)
# A run whose process has ended, or has not started yet.
_GONE = pickle.dumps(None)


class _TakenOnTrust(Verification):
    """Believes every primary: its log is the donor's."""

    def begin(self) -> None:
        plan = self.plan
        self._out.append(self._stream.start(StartReplication(plan.start_lsn, plan.tli, plan.start_lsn, plan.tli)))
        self.is_passed = True


class Disk:
    """What a safekeeper has written, a byte a record, from BASE_LSN on if `begun`; below `durable` it is on disk."""

    def __init__(self, control: ControlState, wal: bytes = b"") -> None:
        self.control = control
        self.begun = bool(control.wal_begin_lsn)
        self.wal, self.durable = wal, len(wal)


class Node(NamedTuple):
    """A safekeeper as the checks see it: its control file, its durable bytes, its commit_lsn, whether more is written.

    What it is in full is `blob`.
    """

    blob: bytes
    control: ControlState
    wal: bytes
    commit_lsn: Lsn
    unflushed: bool


class Runner(NamedTuple):
    """A run of a proposer as the checks see it: the term that it leads (None if none), and how far it is."""

    blob: bytes
    leader_id: LeaderId | None
    history: TermHistory
    commit_lsn: Lsn
    received_lsn: Lsn


class Moved(NamedTuple):
    """What a step has made of a machine: its number, what it sends in order, which connections it has closed.

    Messages are numbers, too: those of `Machines.messages`.
    """

    number: int
    sent: tuple[tuple[int, int], ...]
    parted: tuple[int, ...]


def letter(run: int) -> bytes:
    """Return the one byte that every record of a run consists of."""
    return bytes([ord("a") + run])


class Machines:
    """All acceptors and proposers that were ever seen, by number, and what became of them."""

    def __init__(self, runs: int, records: int, changes: bool = False) -> None:
        self.runs = runs
        self.changes = changes
        self.safekeepers = CHANGING if changes else SAFEKEEPERS
        self.end_lsn = BASE_LSN + records
        self.nodes: list[Node] = []
        self.runners: list[Runner] = [Runner(_GONE, None, (), 0, 0)] * (UNBORN + 1)
        self.messages: list[Any] = [None]
        self._words: dict[int, str] = {}
        self._numbers: dict[bytes, int] = {}
        self._numbers_of_messages: dict[Any, int] = {None: NOTHING}
        self._known: dict[tuple[Any, ...], Any] = {}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_contents)

    def _numbered(self, sent: Iterable[tuple[int, Any]]) -> tuple[tuple[int, int], ...]:
        numbered = []
        for who, message in sent:
            number = self._numbers_of_messages.setdefault(message, len(self.messages))
            if number == len(self.messages):
                self.messages.append(message)
            numbered.append((who, number))
        return tuple(numbered)

    def words(self, message: int) -> str:
        """Return a message as a person reads it."""
        if message not in self._words:
            self._words[message] = str(self.messages[message])
        return self._words[message]

    def new_node(self, safekeeper_id: int, promised: LeaderId, history: TermHistory, wal: bytes) -> int:
        """Return a member that has just started on this log; without a history it is empty."""
        membership = _BEFORE_THE_CHANGE if self.changes else _MEMBERSHIP
        if safekeeper_id not in membership.ids():
            return self._restarted(Disk(ControlState(safekeeper_id=safekeeper_id, incarnation=f"{safekeeper_id}" * 32)))
        control = ControlState(
            safekeeper_id=safekeeper_id,
            incarnation=f"{safekeeper_id}" * 32,
            cluster_id=_CLUSTER,
            system_id=_SYSTEM_ID,
            segment_size=SEGMENT_SIZE,
            server_version=_SERVER_VERSION,
            membership=membership,
            promised=promised,
            history=history,
            wal_begin_lsn=BASE_LSN if history else 0,
        )
        return self._restarted(Disk(control, wal))

    def _restarted(self, disk: Disk) -> int:
        flush_lsn = BASE_LSN + disk.durable if disk.begun else 0
        acceptor = World.acceptor_class(disk.control, flush_lsn)
        acceptor.counts_starts = False  # No folder goes back here (S8e).
        _carry_out(acceptor.start(), disk, [], [], None)
        return self._keep_node(acceptor, disk)

    def _keep_node(self, acceptor: Acceptor, disk: Disk) -> int:
        key = b"S" + self._encoder.encode((acceptor, disk))
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            wal, unflushed = disk.wal[: disk.durable], disk.durable < len(disk.wal)
            blob = pickle.dumps((acceptor, disk))
            self.nodes.append(Node(blob, disk.control, wal, acceptor.commit_lsn, unflushed))
        return self._numbers[key]

    def acceptor_receives(self, node: int, run: int, message: int, dies_after: int | None = None) -> Moved | None:
        """A safekeeper gets a message, or nothing: then its flush has returned, or is found to be slow.

        With `dies_after` it dies behind the effect of that number, counted from 0, and starts again on what is on its
        disk; None if there is no such effect.
        """
        key = (node, run, message, dies_after)
        if key not in self._known:
            acceptor, disk = pickle.loads(self.nodes[node].blob)
            self._known[key] = self._acceptor_receives(acceptor, disk, run, self.messages[message], dies_after)
        moved: Moved | None = self._known[key]
        return moved

    def _acceptor_receives(
        self, acceptor: Acceptor, disk: Disk, run: int, message: Any, dies_after: int | None
    ) -> Moved | None:
        sent: list[tuple[int, Any]] = []
        closed: list[int] = []
        if message is not None:
            effects = message_effects(acceptor, run, message, 0.0)
        elif run == SLOW_FLUSH:
            effects = acceptor.report_write()
        else:
            disk.durable = len(disk.wal)
            effects = flushed_effects(acceptor, BASE_LSN + disk.durable)
        lived = _carry_out(effects, disk, sent, closed, dies_after)
        if dies_after is not None:
            if lived:
                return None
            disk.wal = disk.wal[: disk.durable]
            return Moved(self._restarted(disk), self._numbered(sent), ())
        for connection in closed:
            acceptor.disconnected(connection)
        return Moved(self._keep_node(acceptor, disk), self._numbered(sent), tuple(closed))

    def hang_up(self, node: int, run: int) -> int:
        """A run has closed its connection to a safekeeper."""
        key = (node, run, "hang up")
        if key not in self._known:
            acceptor, disk = pickle.loads(self.nodes[node].blob)
            acceptor.disconnected(run)
            self._known[key] = self._keep_node(acceptor, disk)
        return int(self._known[key])

    def crashed(self, node: int, keeps_unflushed: bool) -> int:
        """A safekeeper dies and starts again; what it had only written is on its disk then or is not."""
        key = (node, "crash", keeps_unflushed)
        if key not in self._known:
            _, disk = pickle.loads(self.nodes[node].blob)
            disk.wal = disk.wal if keeps_unflushed else disk.wal[: disk.durable]
            disk.durable = len(disk.wal)
            self._known[key] = self._restarted(disk)
        return int(self._known[key])

    def start(self, run: int, nodes: tuple[int, ...]) -> tuple[Moved, tuple[int, ...]]:
        """A run starts: it greets all, and is about to ask for their votes. The second value: the safekeepers then."""
        key = (run, nodes)
        if key not in self._known:
            self._known[key] = self._start(run, list(nodes))
        started: tuple[Moved, tuple[int, ...]] = self._known[key]
        return started

    def _start(self, run: int, nodes: list[int]) -> tuple[Moved, tuple[int, ...]]:
        config = ProposerConfig(letter(run).decode() * 32, self.safekeepers, takeover=True, timing=_TIMING)
        proposer = World.proposer_class(config)
        todo = proposer.primary_identified(self._identity(), 0.0)
        for safekeeper_id in self.safekeepers:
            todo += proposer.connected(safekeeper_id, 0.0)
        # All greet before any request: the term is above all promises.
        answers: list[tuple[int, Any]] = []
        sent: list[tuple[int, Any]] = []
        while todo or answers:
            for action in todo:
                if isinstance(action, SendMessage):
                    if isinstance(action.message, VoteRequest):
                        sent.append((action.safekeeper_id, action.message))
                        continue
                    ((_, number),) = self._numbered([(0, action.message)])
                    moved = self.acceptor_receives(nodes[action.safekeeper_id - 1], run, number)
                    assert moved is not None  # no machine dies here
                    nodes[action.safekeeper_id - 1] = moved.number
                    answers += [(action.safekeeper_id, self.messages[m]) for _, m in moved.sent]
            todo = proposer.message(*answers.pop(0), 0.0) if answers else []
        return Moved(self._keep_runner(proposer), self._numbered(sent), ()), tuple(nodes)

    def _identity(self) -> PrimaryIdentity:
        return PrimaryIdentity(
            system_id=_SYSTEM_ID,
            tli=1,
            flush_lsn=BASE_LSN + SEGMENT_SIZE - 1,
            segment_size=SEGMENT_SIZE,
            server_version=_SERVER_VERSION,
        )

    def _keep_runner(self, proposer: Proposer) -> int:
        if proposer.campaign is None and proposer.leadership is None:
            return ENDED
        key = b"P" + self._encoder.encode(proposer)
        if key not in self._numbers:
            self._numbers[key] = len(self.runners)
            term, blob = proposer.leadership, pickle.dumps(proposer)
            self.runners.append(
                Runner(blob, term.leader_id, term.elected.history, term.commit_lsn, term.received_lsn)
                if term is not None
                else Runner(blob, None, (), 0, 0)
            )
        return self._numbers[key]

    def proposer_receives(self, runner: int, safekeeper_id: int, message: int) -> Moved:
        """A run gets an answer, or nothing: the connection has ended. From safekeeper 0: its primary has a record more.

        From `OPERATOR`: the members are to change; where that was asked for before, its time to go on has come.
        A run that ends takes its last messages with it: no machine waits for them.
        """
        key = (-runner, safekeeper_id, message)
        if key not in self._known:
            proposer = pickle.loads(self.runners[runner].blob)
            answer = self.messages[message]
            if safekeeper_id == OPERATOR:
                try:
                    actions = proposer.change_members(_AFTER_THE_CHANGE, 0.0)
                except ConfigurationError:
                    actions = []  # Refused until the members follow: nothing has changed, and it is asked again.
            elif not safekeeper_id:
                actions = proposer.wal_received(proposer.leadership.received_lsn + 1, 0.0)
            elif answer is None:
                actions = proposer.disconnected(safekeeper_id, 0.0)
            else:
                actions = proposer.message(safekeeper_id, answer, 0.0)
            self._known[key] = self._follow(proposer, actions)
        moved: Moved = self._known[key]
        return moved

    def _follow(self, proposer: Proposer, actions: list[Action]) -> Moved:
        sent: list[tuple[int, Any]] = []
        parted: list[int] = []
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            if isinstance(action, SendMessage):
                sent.append((action.safekeeper_id, action.message))
            elif isinstance(action, SendAppend):
                assert proposer.leadership is not None  # only a leader feeds
                payload = proposer.config.proposer_id[0].encode() * (action.end_lsn - action.begin_lsn)
                append = msgspec.structs.replace(action.header, payload=payload)
                sent += [(safekeeper_id, append) for safekeeper_id in action.safekeeper_ids]
            elif isinstance(action, IdentifyPrimary):
                todo += proposer.primary_identified(self._identity(), 0.0)
            elif isinstance(action, Disconnect):
                parted.append(action.safekeeper_id)
                todo += proposer.disconnected(action.safekeeper_id, 0.0)
        return Moved(self._keep_runner(proposer), self._numbered(sent), tuple(parted))


def _carry_out(
    effects: Effects, disk: Disk, sent: list[tuple[int, Any]], closed: list[int], dies_after: int | None
) -> bool:
    """Carry out what an acceptor asks for; False if it died on the way."""
    result: Any = None
    done = 0
    while True:
        try:
            effect = effects.send(result)
        except StopIteration:
            return True
        result = _carry_out_one(effect, disk, sent, closed)
        if done == dies_after:
            return False
        done += 1


def _carry_out_one(effect: Effect, disk: Disk, sent: list[tuple[int, Any]], closed: list[int]) -> Any:
    if isinstance(effect, Send):
        message = effect.message
        if isinstance(message, (AppendResponse, VoteResponse)) and message.flush_lsn > BASE_LSN + disk.durable:
            raise Violation("AckImpliesFlushed", f"{message} leaves, {disk.durable} records are durable")
        if not isinstance(message, ArchiveReport | FolderStates):
            sent.append((effect.connection, message))
    elif isinstance(effect, Close):
        closed.append(effect.connection)
    elif isinstance(effect, WriteWal):
        if effect.begin_lsn != BASE_LSN + len(disk.wal):
            raise Violation("LogMatching", f"a write at {effect.begin_lsn}, the WAL ends elsewhere")
        disk.wal += bytes(effect.payload)
    elif isinstance(effect, FlushWal):
        disk.durable = len(disk.wal)
    elif isinstance(effect, Persist):
        disk.control = effect.control
    elif isinstance(effect, TruncateWal):
        disk.wal = disk.wal[: effect.lsn - BASE_LSN]
        disk.durable = len(disk.wal)
    elif isinstance(effect, ResetWal):
        disk.begun, disk.wal, disk.durable = True, b"", 0
    elif isinstance(effect, ReadWal):
        return disk.wal[effect.begin_lsn - BASE_LSN : effect.end_lsn - BASE_LSN]
    elif isinstance(effect, (FindRecords, FindRecordEnd)):
        # Every byte is a record.
        record_end_lsn = effect.lsn + 1 if effect.lsn < BASE_LSN + len(disk.wal) else 0
        return (record_end_lsn, 0, None) if isinstance(effect, FindRecords) else record_end_lsn
    elif isinstance(effect, FindTimedRecord):
        return effect.begin_lsn
    else:
        assert isinstance(effect, TrimWal), f"not part of this world: {effect}"
    return None


def _contents(machine: Any) -> Any:
    """Return what distinguishes two machines of a kind."""
    if isinstance(machine, Proposer):
        connected = [peer.connected for peer in machine.peers.values()]
        return [machine.config.proposer_id, machine.campaign, machine.leadership, machine._stream, connected]
    if isinstance(machine, Campaign):
        return [
            machine.leader_id,
            machine.membership,
            machine.phase,
            sorted(machine.votes.items()),
            sorted(machine.refusals),
        ]
    if isinstance(machine, (Acceptor, Leadership, Disk)):
        fields = {name: value for name, value in vars(machine).items() if name not in _LEFT_OUT}
        return {name: sorted(value.items()) if isinstance(value, dict) else value for name, value in fields.items()}
    raise TypeError(f"{type(machine).__name__} is not part of this world")


_LEFT_OUT = {
    *("_handlers", "archiving", "_standbys", "_out", "_last_header"),
    # They follow from the other fields; time stands still.
    *("rule", "_voters", "_counted", "_with_readers", "_answered_until"),
    # For agents only, and no decision is made from it.
    "healthy_seen_at",
    # What `check` compares with: this world does not ask it.
    *("_checked", "_checked_logs_adopted", "_checked_commit_lsn", "_checked_truncate_lsn"),
}
SWAPS = ((campaign, "Verification", _TakenOnTrust), (replication, "READ_BYTES", 1))


def entry(term: int, records: int) -> HistoryEntry:
    """Return the entry of a term that begins behind so many records."""
    return HistoryEntry(term, BASE_LSN + records, 1)
