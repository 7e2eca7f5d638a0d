"""A virtual safekeeper: the real `Acceptor`, its effects carried out on a virtual disk, and crashes in between.

One handler runs at a time. Effects that reach the disk may take time, in which other messages wait; a flush that the
shell began by itself runs beside them. The process can be made to die before or after any effect, and the generator
that was running is then simply dropped, as a crash would drop it.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

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
    ServeAgent,
    ServeRead,
    SetWalAside,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import StorageFailed, StorageFull
from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.messages import (
    HEARTBEAT_TIMEOUT_S,
    AcceptorMessage,
    AppendRequest,
    AppendResponse,
    Elected,
    PeerRead,
    PreVoteResponse,
    PullWal,
    ReadResponse,
    Refusal,
    RefusalCode,
    TailPreVoteRequest,
    VoteResponse,
)
from safekeeper.node.agent_registry import AgentRegistry
from safekeeper.node.node import INCLUDES_FLUSH
from tests.simulation.checks.violation import Violation
from tests.simulation.model.agents_file import new_registry
from tests.simulation.model.disk import ModelDisk
from tests.simulation.model.network import TO_PROXY, Connection
from tests.simulation.model.node_effects import flushed_effects, message_effects
from tests.simulation.model.virtual_disk import VirtualCrash
from tests.simulation.model.wal_pull import SimPuller
from tests.simulation.references.acceptor.checker import ReferenceChecker

if TYPE_CHECKING:
    from tests.simulation.model.standby import SimStandby
    from tests.simulation.shells.real_puller import RealPuller
    from tests.simulation.world.world import World

_DURABLE_EFFECTS = frozenset({FlushWal, Persist, TruncateWal, ResetWal, SetWalAside, RestoreWal})


class SimSafekeeper:
    """One safekeeper's process and its disk.

    Attributes:
        life: grows at every crash and start; what belongs to an older life is void.
        acceptor: the state machine of the present life, None while the process is down.
        is_serving: whether it accepts connections.
        effects_left: the process dies at this effect from now on, None for never.
        dies_after: the process dies right after the next effect of this name, empty for never.
        flush_delay_s: how long an fdatasync may take.
        folders: how many data folders it has had: each has an incarnation of its own.
        put_away: a data folder that its operator has exchanged for another one, None if there is none.
        restored: the incarnations of which an older copy was put in the place of the folder.
        is_hung: whether it takes what arrives and handles none of it, until it wakes up.
        away_until_s: it is not started before.
        readers: the standbys that stream from it.
        clock: its machine's.
        reference: what compares the acceptor with the reference, None if nothing does.
    """

    def __init__(self, world: "World", safekeeper_id: int, disk: ModelDisk) -> None:
        self.world = world
        self.id = safekeeper_id
        self.name = f"S{safekeeper_id}"
        self.disk = disk
        self.life = 0
        self.acceptor: Acceptor | None = None
        self.is_serving = False
        self.effects_left: int | None = None
        self.dies_after = ""
        self.dies_of_power_cut = False
        self.flush_delay_s = world.profile.flush_delay_s
        self.folders = 0
        self.put_away: ModelDisk | None = None
        self.restored: set[str] = set()
        self.away_until_s = 0.0
        self.is_hung = False
        self.readers: list[SimStandby] = []
        self.clock = world.new_clock()
        self.puller: SimPuller | RealPuller = SimPuller(world, self)
        self.reference: ReferenceChecker | None = None
        self._registry: AgentRegistry | None = None
        self._read_until_s = 0.0
        self._inbox: deque[tuple[str, Any, Any]] = deque()
        self._task: Effects | None = None
        self._connections: dict[int, Connection] = {}
        self._flush: Any = None
        self._flush_is_due = False
        # What is handled, since when, whether it is refused; and the last message of a leader that was not.
        self._handled: tuple[int, Any, float] | None = None
        self._refuses = False
        self._leader_message: tuple[int, LeaderId, float] | None = None

    def start(self) -> None:
        """Start the process, if it is not running, on whatever the disk holds."""
        if self.acceptor is not None:
            return
        self.life += 1
        self.effects_left = None
        self._handled = self._leader_message = None
        try:
            control, flush_lsn = self.disk.open()
            if control is None:
                control = ControlState(safekeeper_id=self.id, incarnation=self.world.incarnation_of(self))
                self.folders += 1
                self.disk.persist(control)
        except (VirtualCrash, StorageFailed, StorageFull) as error:
            self.world.note(self.name, "does not start", error)
            self.crash()
            return
        lacks_wal = control.wal_begin_lsn and not flush_lsn
        if lacks_wal and not control.is_log_pending:
            raise AssertionError(f"{self.name}: the control file records WAL that is not there")
        begins_late = flush_lsn and self.disk.begin_lsn > control.wal_begin_lsn
        if begins_late and not control.is_log_pending:
            raise Violation("NoHole", f"{self.name}: the WAL begins above what the control file records")
        self.acceptor = self.world.acceptor_class(control, flush_lsn)
        if self.world.has_reference:
            entries_max, counts = self.world.history_entries_max, self.world.counts
            self.reference = ReferenceChecker(self.name, self.acceptor, flush_lsn, self.disk, entries_max, counts)
        self.world.note(self.name, "starts", control, flush_lsn)
        self._registry = new_registry(self, self._answer_agent) if self.world.agents is not None else None
        self.world.truths.on_start(self)
        self._inbox.append(("start", None, None))
        self._pump()

    def crash(self, power_cut: bool = False) -> None:
        """End the process at once; with a power cut, what is not durable is at the disk's mercy."""
        self.world.note(self.name, "crashes", "power cut" if power_cut else "killed")
        self.life += 1
        self.acceptor = None
        self.is_serving = False
        self.is_hung = False
        self._task = None
        self._inbox.clear()
        self._flush = None
        self._flush_is_due = False
        self.world.counts.count("power cuts" if power_cut else "safekeepers killed")
        written_lsn = self.disk.write_lsn
        self.disk.crash(power_cut)
        if self.disk.write_lsn < written_lsn:
            self.world.counts.count("unsynced WAL lost")
        silent = power_cut and self.world.rng.random() < 0.5
        for connection in self._connections.values():
            self.world.network.break_connection(connection, silent)
        self._connections.clear()
        readers, self.readers = self.readers, []
        for standby in readers:
            standby.lost_connection()
        self.world.truths.on_crash(self)
        self.world.safekeeper_died(self)

    def wake_up(self) -> None:
        """Go on after it hung: everything that arrived meanwhile is handled now, late."""
        self.is_hung = False
        self._pump()

    def wipe(self) -> None:
        """Lose the disk: what starts next is a new incarnation (S8). The process must be down."""
        self.world.note(self.name, "loses its disk")
        self.disk.wipe()
        self.world.counts.count("members wiped")
        self.world.checker.on_wipe(self)

    def exchange_folder(self) -> None:
        """Go on with the data folder that was put away, else with an empty one. The process must be down."""
        following = self.put_away or self.world.new_disk()
        self.world.note(self.name, "exchanges its folder", following.control or "an empty one")
        self.disk, self.put_away = following, self.disk
        self.world.counts.count("folders exchanged")

    def restore_folder(self, snapshot: ModelDisk) -> None:
        """Go on with an older copy of the data folder. The process must be down."""
        control = snapshot.control
        assert control is not None  # by the caller: it is the same folder
        self.world.note(self.name, "restores an older folder", control)
        self.disk = snapshot
        self.restored.add(control.incarnation)
        self.world.counts.count("folders restored")

    def folder_of(self, incarnation: str) -> ModelDisk | None:
        """Return the data folder with this incarnation, None if it is lost: also if an older copy is in its place."""
        if incarnation in self.restored:
            return None
        disks = (self.disk, self.put_away)
        return next((disk for disk in disks if disk and disk.control and disk.control.incarnation == incarnation), None)

    def _dies_here(self) -> bool:
        assert self.effects_left is not None  # by the callers: it is asked for at every effect, and seldom set
        self.effects_left -= 1
        if self.effects_left > 0:
            return False
        self.effects_left = None
        self.crash(self.dies_of_power_cut)
        return True

    def received(self, connection: Connection, message: Any) -> None:
        """A message has arrived."""
        if connection.number not in self._connections:
            self._connections[connection.number] = connection
        self._inbox.append(("message", connection, message))
        self._pump()

    def disconnected(self, connection: Connection) -> None:
        """The other side has closed, or the connection broke."""
        self._inbox.append(("end", connection, None))
        self._pump()

    def checkpoint(self) -> None:
        """It is time to write down the lazy positions."""
        if self.acceptor is not None:
            self._inbox.append(("checkpoint", None, None))
            self._pump()

    def archive_reported(self, archived_lsn: Lsn, problem: str, archive_id: str) -> None:
        """Its archiver has news."""
        if self.acceptor is not None:
            self._inbox.append(("archive", None, (archived_lsn, problem, archive_id)))
            self._pump()

    def trim(self, request: TrimRequest) -> None:
        """It is time to remove what is no longer needed."""
        if self.acceptor is not None:
            self._inbox.append(("trim", None, request))
            self._pump()

    def pulled(self, leader_id: LeaderId, begin_lsn: Lsn, payload: bytes) -> None:
        """WAL has arrived that was asked of another safekeeper."""
        if self.acceptor is not None:
            self._inbox.append(("pulled", None, (leader_id, begin_lsn, payload)))
            self._pump()

    def pull_failed(self, pull: PullWal, problem: str) -> None:
        """No source of a pull is left."""
        if self.acceptor is not None:
            self._inbox.append(("pull failed", None, (pull, problem)))
            self._pump()

    def readers_changed(self) -> None:
        """A standby has come, gone, or reported something new."""
        if self.acceptor is not None:
            self._inbox.append(("learners", None, None))
            self._pump()

    def _pump(self) -> None:
        while self.acceptor is not None and self._task is None and self._inbox and not self.is_hung:
            kind, connection, content = self._inbox.popleft()
            acceptor, now = self.acceptor, self.clock.now
            if kind == "message":
                if connection.number in self._connections:
                    self.world.note(self.name, "gets", content, connection.number)
                    self._handled, self._refuses = (connection.number, content, now), False
                    effects = message_effects(acceptor, connection.number, content, now)
                    self._run(effects, "message", connection.number, content, now)
            elif kind == "end":
                if self._connections.pop(connection.number, None) is not None:
                    self._disconnect(acceptor, connection)
            elif kind == "closed":
                self._disconnect(acceptor, connection)
            elif kind == "flushed":
                if content is self._flush:
                    self._flush = None
                    try:
                        flush_lsn = self.disk.finish_flush(content[0])
                    except (StorageFailed, VirtualCrash) as failure:
                        self.world.note(self.name, "fails", failure)
                        self.world.counts.count("disk errors")
                        self.crash(power_cut=self.world.rng.random() < 0.5)
                        return
                    self._run(flushed_effects(acceptor, flush_lsn), "flushed", flush_lsn)
            elif kind == "report_write":
                self._run(acceptor.report_write(), "write_reported")
            elif kind == "checkpoint":
                self._run(acceptor.checkpoint(), "checkpoint")
            elif kind == "archive":
                self._run(acceptor.archive_reported(*content), "archive_reported", *content)
            elif kind == "trim":
                self._run(acceptor.trim(content), "trim", content)
            elif kind == "pulled":
                write_lsn = acceptor.write_lsn
                self._run(acceptor.pulled(*content), "pulled", *content)
                self.world.counts.count("WAL pulled" if acceptor.write_lsn > write_lsn else "WAL pulled without use")
            elif kind == "pull failed":
                self._run(acceptor.pull_failed(*content), "pull_failed", *content)
            elif kind == "learners":
                words = tuple(standby.words for standby in self.readers)
                self._run(acceptor.readers_changed(bool(words), words), "readers_changed", bool(words), words)
            else:
                self._run(acceptor.start(), "start")
                self.is_serving = self.acceptor is not None

    def _disconnect(self, acceptor: Acceptor, connection: Connection) -> None:
        acceptor.disconnected(connection.number)
        if self._registry is not None:
            self._registry.disconnected(connection.number)
        if self.reference is not None:
            self.reference.disconnected(connection.number)

    def _run(self, effects: Effects, event: str, *arguments: Any) -> None:
        """Execute the effects of a handler, beside the reference's method `event`."""
        self._task = self.reference.watch(effects, event, *arguments) if self.reference is not None else effects
        self._resume(self.life, None)

    def _resume_later(self, life: int, result: Any) -> None:
        if life == self.life:
            self._resume(life, result)
            self._pump()

    def _resume(self, life: int, result: Any) -> None:
        task, world = self._task, self.world
        assert task is not None  # by the callers
        error: StorageFull | None = None
        while True:
            try:
                effect = task.throw(error) if error is not None else task.send(result)
            except StopIteration:
                break
            except StorageFull as full:
                self.world.note(self.name, "is full", full)
                self.world.counts.count("full disks met")
                break
            error = result = None
            if self.effects_left is not None and self._dies_here():
                return
            try:
                result = self._execute(effect)
            except StorageFull as full:
                error = full
                continue
            except (StorageFailed, VirtualCrash) as failure:
                self.world.note(self.name, "fails", failure)
                self.world.counts.count("disk errors")
                self.crash(power_cut=self.world.rng.random() < 0.5)
                return
            if self.dies_after and type(effect).__name__ == self.dies_after:
                self.dies_after, self.effects_left = "", 1
            if self.effects_left is not None and self._dies_here():
                return
            if type(effect) in _DURABLE_EFFECTS:
                delay_s = world.durable_effect_delay_s(self)
                if delay_s:
                    world.clock.after(delay_s, self._resume_later, life, result)
                    return
        self._task = None
        self._remember_leader()
        assert self.acceptor is not None  # its event has just ended
        self.acceptor.check()
        self.puller.wake()
        if self.acceptor is None:
            return  # it was killed as it asked another member
        truth = world.truths.of_folder(self)
        truth.readers.on_handled(self)
        truth.truncate.on_handled(self)
        if world.archive is not None:
            truth.archive.on_handled(self)
        if self.readers and self.acceptor is not None:
            readable_lsn = self.acceptor.readable_lsn
            for standby in self.readers:
                if standby.received_lsn != readable_lsn:
                    world.counts.count("readers sent WAL")
                    standby.wake()
        if self._flush_is_due and self._flush is None:
            if world.is_bent(world.profile.bends.flush_later):
                delay_s = world.profile.bends.late_s * world.bend_chance.random()
                world.clock.after(delay_s, self._begin_due_flush, self.life)
            else:
                self._begin_flush()

    def _begin_due_flush(self, life: int) -> None:
        if life == self.life and self._flush_is_due and self._flush is None and self._task is None:
            self._begin_flush()

    def _remember_leader(self) -> None:
        """Note the time of the leader's last message, if the message that was handled was taken."""
        handled, self._handled = self._handled, None
        if handled is not None and isinstance(handled[1], (AppendRequest, Elected)) and not self._refuses:
            self._leader_message = handled[0], handled[1].leader_id, handled[2]

    def _live_leader(self) -> str:
        """Return the run of the leader with a message within the heartbeat timeout, empty if there is none."""
        acceptor, message = self.acceptor, self._leader_message
        assert acceptor is not None and self._handled is not None  # it handles a message
        if message is None or message[:2] != (acceptor.leader_connection, acceptor.leader):
            return ""
        return message[1].proposer_id if self._handled[2] - message[2] < HEARTBEAT_TIMEOUT_S else ""

    def _execute(self, effect: Effect) -> Any:
        world, disk = self.world, self.disk
        if isinstance(effect, Send):
            message = effect.message
            world.note(self.name, "sends", message, effect.connection)
            self._count_sent(message)
            self._refuses = self._refuses or isinstance(message, Refusal)
            handled = self._handled[1] if self._handled is not None else None
            if isinstance(handled, TailPreVoteRequest) and isinstance(message, PreVoteResponse) and message.granted:
                live = self._live_leader()
                is_needless = live not in ("", handled.proposer_id)
                world.truths.of_folder(self).on_tail_granted(self, handled.proposer_id, is_needless)
            world.truths.of_folder(self).on_acceptor_sends(self, message)
            connection = self._connections.get(effect.connection)
            if connection is not None:
                world.network.send(connection, TO_PROXY, message)
            return None
        world.note(self.name, "does", effect)
        under_way: Any = None
        if isinstance(effect, INCLUDES_FLUSH):
            # As the node does it: its end is no longer an event.
            under_way, self._flush = self._flush, None
            if under_way is not None and not isinstance(effect, FlushWal):
                disk.finish_flush(under_way[0])
        if isinstance(effect, Close):
            connection = self._connections.pop(effect.connection, None)
            if connection is not None:
                world.network.close(connection, TO_PROXY)
                # The acceptor gets it as any other lost connection: later.
                self._inbox.append(("closed", connection, None))
        elif isinstance(effect, WriteWal):
            payload = bytes(effect.payload)
            disk.write(effect.begin_lsn, payload)
            world.truths.of_folder(self).on_write(self, effect.begin_lsn, payload)
            self._flush_is_due = True
        elif isinstance(effect, FlushWal):
            disk.flush_all(under_way[0] if under_way is not None else None)
        elif isinstance(effect, Persist):
            before = disk.control
            disk.persist(effect.control)
            if before is not None and before.incarnation != effect.control.incarnation:
                world.checker.on_new_incarnation(self, before.incarnation)
            if effect.control.base_lsn is not None and before is not None and before.wal_begin_lsn:
                world.counts.count("members that skipped WAL")
            world.truths.on_persist(self, before)
        elif isinstance(effect, TruncateWal):
            world.counts.count("truncations", int(effect.lsn < disk.write_lsn))
            disk.truncate(effect.lsn, effect.tli)
            world.truths.on_cut(self)
        elif isinstance(effect, ResetWal):
            world.counts.count("logs begun again")
            disk.reset(effect.base_lsn, effect.tli)
            world.truths.on_cut(self)
        elif isinstance(effect, TrimWal):
            world.counts.count("old WAL removed", int(disk.begin_lsn < effect.lsn))
            disk.trim(effect.lsn)
        elif isinstance(effect, SetWalAside):
            disk.set_aside(effect.label)
            world.truths.on_cut(self)
            for standby in list(self.readers):
                standby.log_is_gone()
        elif isinstance(effect, InspectSetAside):
            return disk.inspect_set_aside(effect.label, effect.control)
        elif isinstance(effect, RestoreWal):
            restored_lsn = disk.restore(effect.label)
            world.truths.on_cut(self)
            return restored_lsn
        elif isinstance(effect, ReadWal):
            world.counts.count("reads from peers")
            return disk.read(effect.begin_lsn, effect.end_lsn)
        elif isinstance(effect, ServeRead):
            request = effect.request
            payload = bytes(disk.read(request.begin_lsn, request.end_lsn))
            # The reads of one connection are done one after the other.
            done_at_s = world.clock.now + self.puller.chance.random() * self.flush_delay_s
            done_at_s = self._read_until_s = max(done_at_s, self._read_until_s)
            world.clock.after(done_at_s - world.clock.now, self._served, self.life, effect.connection, request, payload)
        elif isinstance(effect, ServeAgent):
            assert self._registry is not None  # the world has agents
            self._registry.serve(effect.connection, effect.exchange)
        elif isinstance(effect, DigestWal):
            return disk.digests(effect.begin_lsn, effect.end_lsn)
        elif isinstance(effect, FindRecordEnd):
            return disk.find_records(effect.lsn)[0]
        elif isinstance(effect, FindTimedRecord):
            return disk.find_timed_record(effect.begin_lsn, effect.end_lsn)
        else:
            assert isinstance(effect, FindRecords)
            return disk.find_records(effect.lsn)
        return None

    def _served(self, life: int, number: int, request: PeerRead, payload: bytes) -> None:
        """Answer a member, if the log still has what was read (6.7)."""
        connection, acceptor = self._connections.get(number), self.acceptor
        if life != self.life or connection is None or acceptor is None:
            return
        answer: AcceptorMessage = ReadResponse(request.request_id, request.begin_lsn, payload)
        is_served = acceptor.serves(request)
        if self.reference is not None:
            self.reference.serves(request, is_served)
        if not is_served:
            answer = Refusal(RefusalCode.RANGE, "the log has changed", acceptor.control.promised)
        self.world.counts.count("reads served to members", int(isinstance(answer, ReadResponse)))
        self.world.network.send(connection, TO_PROXY, answer)

    def _answer_agent(self, number: int, message: AcceptorMessage) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            self.world.network.send(connection, TO_PROXY, message)

    def _count_sent(self, message: AcceptorMessage) -> None:
        counts = self.world.counts
        if isinstance(message, AppendResponse):
            counts.count("appends answered")
        elif isinstance(message, PreVoteResponse):
            counts.count("pre-votes granted" if message.granted else "pre-votes refused")
        elif isinstance(message, VoteResponse):
            counts.count("votes granted" if message.granted else "votes refused")
        elif isinstance(message, Refusal):
            counts.count("messages refused")

    def _begin_flush(self) -> None:
        self._flush_is_due = False
        snapshot = self.disk.start_flush()
        if snapshot is None:
            return
        flush = self._flush = (snapshot,)
        delay_s = self.world.rng.random() * self.flush_delay_s
        self.world.clock.after(delay_s, self._flush_returned, self.life, flush)
        if delay_s > 0.01:
            self.world.clock.after(0.005, self._flush_takes_its_time, self.life, flush)

    def _flush_returned(self, life: int, flush: Any) -> None:
        if life == self.life and flush is self._flush:
            self._inbox.appendleft(("flushed", None, flush))
            self._pump()
            if self._flush is None and self._flush_is_due and self._task is None and self.acceptor is not None:
                self._begin_flush()

    def _flush_takes_its_time(self, life: int, flush: Any) -> None:
        if life == self.life and flush is self._flush:
            self._inbox.append(("report_write", None, None))
            self._pump()
