"""What a real node does with its acceptor's effects and with its peers' messages, compared with what it must do.

Theory of operation. `observed_acceptor` stands between Node and Acceptor. Whatever Node asks of the acceptor passes a
`ShellWatch`, which compares it with the reference (references/acceptor), as for a simulated safekeeper: so the
messages of a real shell are those that the reference requires. Node must then have executed each effect when it resumes
the acceptor: the message has left on the connection it is for, the WAL is with the storage, the file is with the disk.
Answers that the acceptor returns without an effect must leave at once. Messages are handled in the order in which they
arrived on their connection, none twice and none left out. Reads for members are answered in their order, with the bytes
of the disk. Readers get each state before the next message is handled. After a failed write, sync or removal the node
handles and sends nothing (S12).
"""

from collections import defaultdict, deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    Effect,
    Effects,
    Send,
    ServeAgent,
    ServeEvents,
    ServeRead,
    TrimWal,
    WriteWal,
)
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import StorageFull
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.messages import (
    AcceptorMessage,
    AppendRequest,
    AppendResponse,
    PeerRead,
    ProposerMessage,
    PullWal,
    ReadResponse,
    Refusal,
    RefusalCode,
    Standby,
)
from tests.simulation.checks.violation import Violation
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from tests.simulation.references.acceptor.checker import ReferenceChecker

if TYPE_CHECKING:
    from tests.simulation.model.network import Connection
    from tests.simulation.shells.real_safekeeper import RealSafekeeper

_published = attrgetter("write_lsn", "flush_lsn", "commit_lsn", "readable_lsn", "leader", "leader_connection")


def observed_acceptor(kind: type[Acceptor], shell: "RealSafekeeper") -> type[Acceptor]:
    """Return the acceptor of a shell, which passes all that it is asked for to a `ShellWatch`."""

    class Observed(kind):  # type: ignore[valid-type, misc]
        def __init__(self, control: ControlState, flush_lsn: Lsn) -> None:
            super().__init__(control, flush_lsn)
            shell.acceptor = self
            self._watch = shell.watch = ShellWatch(shell, self, flush_lsn)

        def start(self) -> Effects:
            return self._watch.effects(super().start(), "start")

        def receive(self, connection: int, message: ProposerMessage, now: float) -> Effects:
            self._watch.handles(connection, message, now)
            return self._watch.effects(super().receive(connection, message, now), "message", connection, message, now)

        def accepts(self, connection: int, message: AppendRequest) -> bool:
            self._watch.asked = connection, message
            is_accepted: bool = super().accepts(connection, message)
            return is_accepted

        def wrote(self, message: AppendRequest, now: float) -> AppendResponse | None:
            if self._watch.is_inside:
                return super().wrote(message, now)  # type: ignore[no-any-return]
            connection = self._watch.asked[0]
            self._watch.handles(connection, message, now)

            def effects() -> Effects:
                if message.payload:
                    yield WriteWal(message.begin_lsn, message.payload)
                answer = super(Observed, self).wrote(message, now)
                if answer is not None:
                    yield Send(connection, answer)

            return self._watch.answer(effects(), "message", connection, message, now)

        def flushed(self, flush_lsn: Lsn) -> AppendResponse | None:
            if self._watch.is_inside:
                return super().flushed(flush_lsn)  # type: ignore[no-any-return]

            def effects() -> Effects:
                answer = super(Observed, self).flushed(flush_lsn)
                if answer is not None and self.leader_connection is not None:
                    yield Send(self.leader_connection, answer)

            return self._watch.answer(effects(), "flushed", flush_lsn)

        def no_room(self, connection: int, full: StorageFull) -> Effects:
            if self._watch.is_inside:
                return super().no_room(connection, full)  # type: ignore[no-any-return]
            message, now = self._watch.asked[1], shell.loop.time()
            self._watch.handles(connection, message, now)

            def effects() -> Effects:
                try:
                    yield WriteWal(message.begin_lsn, message.payload)
                except StorageFull:
                    yield from super(Observed, self).no_room(connection, full)

            return self._watch.refused(effects(), full, "message", connection, message, now)

        def disconnected(self, connection: int) -> None:
            super().disconnected(connection)
            self._watch.disconnected(connection)

        def report_write(self) -> Effects:
            return self._watch.effects(super().report_write(), "write_reported")

        def readers_changed(self, has_readers: bool, standbys: tuple[Standby, ...]) -> Effects:
            effects = super().readers_changed(has_readers, standbys)
            return self._watch.effects(effects, "readers_changed", has_readers, standbys)

        def archive_reported(self, archived_lsn: Lsn, problem: str, archive_id: str = "") -> Effects:
            news = archived_lsn, problem, archive_id
            return self._watch.effects(super().archive_reported(*news), "archive_reported", *news)

        def trim(self, request: TrimRequest) -> Effects:
            return self._watch.effects(super().trim(request), "trim", request)

        def pulled(self, leader_id: LeaderId, begin_lsn: Lsn, payload: bytes | memoryview) -> Effects:
            wal = leader_id, begin_lsn, bytes(payload)
            if shell.real_puller is not None:
                shell.real_puller.passed_on(begin_lsn, wal[2])
            return self._watch.effects(super().pulled(*wal), "pulled", *wal)

        def pull_failed(self, pull: PullWal, problem: str) -> Effects:
            if shell.real_puller is not None:
                shell.real_puller.given_up(pull)
            return self._watch.effects(super().pull_failed(pull, problem), "pull_failed", pull, problem)

        def checkpoint(self) -> Effects:
            return self._watch.effects(super().checkpoint(), "checkpoint")

        def serves(self, request: PeerRead) -> bool:
            is_served: bool = super().serves(request)
            self._watch.serves(request, is_served)
            return is_served

    return Observed


class ShellWatch:
    """What one life of a real safekeeper has received, sent and executed.

    Attributes:
        is_inside: whether the acceptor runs at this moment: what it calls of itself is not asked for by the node.
        asked: the append that the acceptor was last asked to accept, with its connection.
        performed: the last order to the disk or the storage.
    """

    def __init__(self, shell: "RealSafekeeper", acceptor: Acceptor, flush_lsn: Lsn) -> None:
        self.is_inside = False
        self.asked: tuple[int, AppendRequest]
        self.performed: object = None
        self._shell = shell
        self._acceptor = acceptor
        self._reference: ReferenceChecker | None = None
        world = shell.world
        if world.has_reference:
            self._reference = ReferenceChecker(
                shell.name, acceptor, flush_lsn, shell.disk, world.history_entries_max, world.counts
            )
        self._arrived: defaultdict[int, deque[Any]] = defaultdict(deque)  # By the network's connection: not handled.
        self._sent: tuple[int, AcceptorMessage] | None = None  # The last message, and the network's connection.
        self._owed: tuple[int, AcceptorMessage] | None = None
        self._sends: AcceptorMessage | None = None
        self._reads: defaultdict[int, deque[PeerRead]] = defaultdict(deque)  # By the network's connection.
        self._published: object = None
        self._failed: BaseException | None = None

    def effects(self, effects: Effects, event: str, *arguments: Any) -> Effects:
        """Pass on the effects of an event, and check that each was executed."""
        if self.is_inside:
            yield from effects
            return
        self._begin()
        watched = self._reference.watch(effects, event, *arguments) if self._reference is not None else effects
        result: Any = None
        error: StorageFull | None = None
        while True:
            effect = self._resumed(watched, result, error)
            if effect is None:
                return
            result = error = None
            sent, self._sent, self.performed = self._sent, None, None
            transport = self._transport_of(effect)
            try:
                result = yield effect
            except StorageFull as full:
                error = full
            if error is None and not self._is_dead():
                self._require_executed(effect, transport)
            self._sent = self._sent or sent

    def answer(self, effects: Effects, event: str, *arguments: Any) -> AppendResponse | None:
        """Return the answer of an event that has no other effect, after it was compared; it must be sent at once."""
        self._begin()
        watched = self._reference.watch(effects, event, *arguments) if self._reference is not None else effects
        answer: AppendResponse | None = None
        while (effect := self._resumed(watched, None, None)) is not None:
            if isinstance(effect, Send):
                assert isinstance(effect.message, AppendResponse)
                answer, connection = effect.message, self._network_connection(effect.connection)
                self._owed, self._sent = (connection, answer) if connection else None, None
        return answer

    def refused(self, effects: Effects, full: StorageFull, event: str, *arguments: Any) -> Effects:
        """Pass on the effects of an append for which there was no space."""
        self._begin()
        watched = self._reference.watch(effects, event, *arguments) if self._reference is not None else effects
        self._resumed(watched, None, None)
        effect = self._resumed(watched, None, full)
        while effect is not None:
            result = yield effect
            effect = self._resumed(watched, result, None)

    def _resumed(self, effects: Effects, result: Any, error: StorageFull | None) -> Effect | None:
        """Return the next effect, None at the end."""
        self.is_inside = True
        try:
            return effects.send(result) if error is None else effects.throw(error)
        except StopIteration:
            return None
        except (Violation, AssertionError) as violation:
            self._fail(violation)
            raise
        finally:
            self.is_inside = False

    def handles(self, connection: int, message: ProposerMessage, now: float) -> None:
        """The acceptor is about to handle a message of a connection of the listener."""
        if self.is_inside:
            return
        self._shell.handles(connection, message, now)
        transport = self._shell.transport_of(connection)
        arrived = self._arrived[transport.connection.number] if transport is not None else None
        if not arrived or arrived.popleft() != message:
            self._violate("MessagesInOrder", f"handles {message}, which is not the next message of its connection")
        # Of a process that a crash ends at this moment, nothing more is recorded.
        is_informed = self._shell.disk.fs.is_down or self._published == _published(self._acceptor)
        if type(message) is not AppendRequest and not is_informed:
            self._violate("ReadersKnow", f"handles {message} before its readers have the state before it")

    def disconnected(self, connection: int) -> None:
        """The acceptor was informed of the end of a connection."""
        if self._reference is not None:
            self._guarded(self._reference.disconnected, connection)

    def serves(self, request: PeerRead, is_served: bool) -> None:
        """The acceptor has decided whether a member receives what was read for it."""
        if self._reference is not None:
            self._guarded(self._reference.serves, request, is_served)

    def arrived(self, connection: "Connection", message: ProposerMessage) -> None:
        """A message has reached the socket."""
        self._arrived[connection.number].append(message)

    def sent(self, connection: "Connection", message: AcceptorMessage) -> None:
        """A message leaves on a connection."""
        if self._failed is not None or self._shell_has_failed():
            self._violate("FailedIsSilent", f"sends {message} after its disk has failed (S12)")
        self._sent = connection.number, message
        if message is self._sends or not self._reads[connection.number]:
            return
        if isinstance(message, ReadResponse):
            self._require_read(self._reads[connection.number].popleft(), message)
        elif isinstance(message, Refusal) and message.code == RefusalCode.RANGE:
            self._reads[connection.number].popleft()

    def event_ended(self) -> None:
        """The node has given its readers the present state."""
        self._settle()
        self._published = _published(self._acceptor)

    def failed(self, error: BaseException) -> None:
        """The storage has failed: the node must end."""
        self._failed = error

    def _begin(self) -> None:
        """The node asks for something: what it owes was sent before, and it has not failed."""
        self._settle()
        if self._failed is not None or self._shell_has_failed():
            self._violate("FailedIsSilent", f"goes on after its disk has failed: {self._failed} (S12)")

    def _settle(self) -> None:
        owed, self._owed = self._owed, None
        if owed is not None and owed != self._sent and not self._is_dead():
            self._violate("EffectsExecuted", f"does not send {owed[1]}, but {self._sent}")

    def _transport_of(self, effect: Effect) -> int:
        """Return the network's connection that an effect is for, 0 for none that is open."""
        if not isinstance(effect, Send | ServeRead):
            return 0
        connection = self._network_connection(effect.connection)
        if isinstance(effect, Send):
            self._sends = effect.message
        elif connection:
            self._reads[connection].append(effect.request)
        return connection

    def _require_executed(self, effect: Effect, connection: int) -> None:
        self._sends = None
        if isinstance(effect, Send):
            if connection and self._sent != (connection, effect.message):
                self._violate("EffectsExecuted", f"sends {self._sent}, not {effect.message}")
        elif isinstance(effect, Close):
            if self._network_connection(effect.connection):
                self._violate("EffectsExecuted", f"does not close connection {effect.connection}")
        elif isinstance(effect, WriteWal):
            if self.performed != (effect.begin_lsn, bytes(effect.payload)):
                self._violate("EffectsExecuted", "does not write the WAL of an event")
        elif isinstance(effect, TrimWal):
            if self.performed is not effect and self.performed != effect.lsn:
                self._violate("EffectsExecuted", "does not remove old WAL")
        elif not isinstance(effect, ServeRead | ServeAgent | ServeEvents) and self.performed is not effect:
            self._violate("EffectsExecuted", f"does not execute {effect}")

    def _require_read(self, request: PeerRead, response: ReadResponse) -> None:
        end_lsn = min(request.end_lsn, segment_start(request.begin_lsn, SEGMENT_SIZE) + SEGMENT_SIZE)
        is_answer = (response.request_id, response.begin_lsn) == (request.request_id, request.begin_lsn)
        disk = self._shell.disk
        wal = disk.wal[request.begin_lsn - disk.begin_lsn : end_lsn - disk.begin_lsn]
        if not is_answer or bytes(response.payload) != wal:
            self._violate("ReadsOfMembers", f"answers {request} with {response}")

    def _network_connection(self, number: int) -> int:
        """Return the number that the network has for an open connection of the listener, 0 if there is none."""
        transport = self._shell.transport_of(number)
        return transport.connection.number if transport is not None and not transport.is_closing() else 0

    def _is_dead(self) -> bool:
        return self._shell.watch is not self or self._shell.disk.fs.is_down

    def _shell_has_failed(self) -> bool:
        node = self._shell.node
        return not self._is_dead() and node is not None and node.failed.done()

    def _guarded(self, compare: Any, *arguments: Any) -> None:
        try:
            compare(*arguments)
        except Violation as violation:
            self._fail(violation)
            raise

    def _violate(self, invariant: str, text: str) -> None:
        violation = Violation(invariant, f"{self._shell.name} {text}")
        self._fail(violation)
        raise violation

    def _fail(self, violation: BaseException) -> None:
        """Let the run fail, whatever the shell does with the error."""
        if self._shell.loop.failure is None:
            self._shell.loop.failure = violation
