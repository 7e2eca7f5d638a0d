"""One connection of a replication client: bytes to the session, commands to their handlers, WAL to the socket.

`pgwire.Session` implements the protocol, safekeeper/serving/pg_transport.py the socket; this module implements timeouts
and commands. A command that writes to disk or waits runs as a task; the session accepts no other one meanwhile.

WAL is copied once from the file to the socket: the hub's chunk is passed to the transport as it is. While more than
WRITE_HIGH_WATER_BYTES are unsent, the hub skips this reader (S14), and commands are not read. A reader from which
nothing was received for half the timeout is asked for a reply, and is disconnected after the whole timeout, so that a
dead reader occupies memory and a slot for no longer.
"""

import asyncio
import logging
import secrets
import time
from typing import Protocol

from safekeeper.acceptor.readable import TimelineEnd, refusal_of_start
from safekeeper.base.errors import CommandError
from safekeeper.base.logs import describe_bug
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.net.tls import ServerTls
from safekeeper.net.turns import Turns
from safekeeper.node.node import Node
from safekeeper.pgwire.backend import command_complete, keepalive
from safekeeper.pgwire.commands import (
    CreateSlot,
    DropSlot,
    IdentifySystem,
    ReadSlot,
    Select,
    SetName,
    Show,
    StartReplication,
    TimelineHistory,
)
from safekeeper.pgwire.events import (
    AnswerableCommand,
    Authenticated,
    CommandReceived,
    CommandRefused,
    CopyEnded,
    Event,
    HotStandbyFeedback,
    StartTls,
    StatusUpdate,
    Terminated,
)
from safekeeper.pgwire.session import Session, SessionState
from safekeeper.pgwire.startup import clean_name
from safekeeper.serving.pg_transport import PgTransport
from safekeeper.serving.reader import Reader
from safekeeper.serving.readers import ReaderHub
from safekeeper.serving.replication_commands import (
    CommandResult,
    identify_system,
    read_slot,
    require_wal,
    select,
    session_parameters,
    show,
    slot_created,
    timeline_history,
)
from safekeeper.serving.slots import Slot, Slots
from safekeeper.serving.users import KnownUsers

# A client that has logged in, does not stream, and sends no command for this time is disconnected.
IDLE_SESSION_S = 600.0


class ConnectionOwner(Protocol):
    """The listener's interface that a connection uses.

    Attributes:
        node, hub, slots: the safekeeper's node, all readers, all slots.
        tls, users: TLS, None for plaintext; the users that need a password, None if no user does.
        mock_salt: see pgwire.Session.
        turns: the work for connections that are not logged in.
        greeting_timeout_s, timeout_s: the limits for the login, and for the time without data afterwards.
    """

    node: Node
    hub: ReaderHub
    slots: Slots
    tls: ServerTls | None
    users: KnownUsers | None
    mock_salt: bytes
    turns: Turns
    greeting_timeout_s: float
    timeout_s: float

    def now(self) -> float:
        """Return the event loop's time."""
        ...

    def admit(self, connection: "ReplicationClient", host: str) -> None:
        """Count a new connection; raise if it is refused."""
        ...

    def logged_in(self, connection: "ReplicationClient") -> bool:
        """Count a connection as proven; return whether the limit allows it."""
        ...

    def close_connection(self, connection: "ReplicationClient", reason: str, *, stranger: bool = False) -> None:
        """Close a connection once everything written is sent; log the reason unless it is empty."""
        ...

    def note_refusal(self, line: str) -> None:
        """Log that a command was refused."""
        ...

    def note(self, line: str, *, level: int = logging.INFO) -> None:
        """Log what a client has caused."""
        ...

    def lost(self, connection: "ReplicationClient") -> None:
        """Forget a connection that is closed."""
        ...


class ReplicationClient(PgTransport):
    """One client's connection.

    Attributes:
        number: the connection's number, 0 if it was not admitted.
        user, name: its user and application_name, from the login.
        reader: its stream, None while it does not stream.
        received_at: when bytes were last received, in the loop's time.
    """

    def __init__(self, listener: ConnectionOwner) -> None:
        super().__init__(listener.turns)
        self._listener = listener
        self._pinged = False
        self._ending: TimelineEnd | None = None  # Of the timeline that was streamed last.
        self._task: asyncio.Task[None] | None = None
        self._made_at = listener.now()
        self.number = 0
        self.user = ""
        self.name = ""
        self.reader: Reader | None = None
        self.received_at = self._made_at

    def __str__(self) -> str:
        who = f" ({self.name or 'no application_name'}, user {self.user})" if self.user else ""
        return f"replication connection {self.number} from {self.peer}{who}"

    # The connection.

    def admit(self, host: str) -> Session:
        """See PgTransport."""
        listener = self._listener
        listener.admit(self, host)
        return Session(
            tls=listener.tls is not None,
            users=listener.users.verifiers if listener.users is not None else None,
            password_advice=listener.users.advice if listener.users is not None else "",
            parameters=session_parameters(listener.node.acceptor.control),
            nonce=secrets.token_urlsafe(18),
            mock_salt=listener.mock_salt,
        )

    def on_received(self) -> None:
        """See PgTransport."""
        self.received_at = self._listener.now()
        self._pinged = False

    def broken(self, reason: str) -> None:
        """See PgTransport."""
        self._listener.close_connection(self, reason, stranger=True)

    def left(self, reason: str) -> None:
        """See PgTransport."""
        streamed = self._stop_reader(reason)
        self._listener.close_connection(self, "" if streamed else reason, stranger=not self.user)

    def lost(self) -> None:
        """See PgTransport."""
        if self._task is not None:
            self._task.cancel()
        self._stop_reader("the connection is closed")
        self._listener.lost(self)

    def filled(self, full: bool) -> None:
        """See PgTransport."""
        if not full:
            self.resume_reading()
            if self.reader is not None:
                self._listener.hub.resume(self.reader)
        elif self.reader is not None:
            # The positions that it reported stay in use.
            self._listener.hub.pause(self.reader)
        else:
            self.pause_reading()

    # Events.

    def handle(self, event: Event) -> None:
        """See PgTransport."""
        match event:
            case StatusUpdate():
                self._take_status(event)
            case HotStandbyFeedback(xmin, catalog_xmin):
                if self.reader is not None:
                    self._listener.hub.take_feedback(self.reader, xmin, catalog_xmin)
            case CommandReceived(command):
                self._command(command)
            case CopyEnded():
                self._client_ended_copy()
            case StartTls(data):
                assert self._listener.tls is not None  # The session starts TLS only if the listener has it.
                self.start_tls(self._listener.tls, data)
            case Authenticated():
                self.user, self.name = event.user, event.application_name
                if not self._listener.logged_in(self):
                    self.session.refuse("53300", "sorry, too many clients already", fatal=True)
                    self.flush()
                    self._listener.close_connection(self, "")
                self.turns = None
            case CommandRefused(sqlstate, message):
                self._listener.note_refusal(f"{self} was refused: {message} ({sqlstate})")
            case Terminated():
                self.flush()
                self._listener.close_connection(self, "")

    def _take_status(self, status: StatusUpdate) -> None:
        reader = self.reader
        if reader is None:
            return
        self._listener.hub.take_status(reader, status.write_lsn, status.flush_lsn, status.apply_lsn)
        if reader.slot is not None:
            self._listener.slots.report(reader.slot, min(status.flush_lsn, reader.position_lsn))
        # A client that does not read gets no reply: it could request any number of them.
        if status.reply_requested and not self.is_full:
            self._send_keepalive(reply_requested=False)

    def _send_keepalive(self, *, reply_requested: bool) -> None:
        if self.reader is not None and self.session.state is SessionState.COPY:
            end_lsn = self._listener.hub.readable_end(self.reader)
            self.write(keepalive(end_lsn, time.time_ns() // 1000, reply_requested))

    # Commands.

    def _command(self, command: AnswerableCommand) -> None:
        log, control = self._listener.hub.log(), self._listener.node.acceptor.control
        try:
            match command:
                case IdentifySystem():
                    self._answer(identify_system(log, control))
                case Show(name):
                    self._answer(show(name, log, control))
                case TimelineHistory(tli):
                    self._answer(timeline_history(tli, log, control))
                case ReadSlot(name):
                    self._answer(read_slot(self._listener.slots.find(name), log))
                case Select():
                    self._answer(select(command, self.user, self._listener.slots.find, log, control))
                case SetName(name):
                    self.name = clean_name(name)
                    self.session.complete("SET")
                case _:
                    self._task = asyncio.get_running_loop().create_task(self._carry_out(command))
        except CommandError as error:
            self._refuse(error)

    def _answer(self, answer: CommandResult) -> None:
        self.session.answer(*answer)

    def _refuse(self, error: CommandError) -> None:
        self._listener.note_refusal(f"{self} was refused: {error} ({error.sqlstate})")
        self.session.refuse(error.sqlstate, str(error), detail=error.detail, hint=error.hint)

    async def _carry_out(self, command: AnswerableCommand) -> None:
        try:
            match command:
                case CreateSlot():
                    self._answer(slot_created(await self._create_slot(command)))
                case DropSlot(name, wait):
                    await self._listener.slots.drop(name, connection=self.number, wait=wait)
                    self._listener.note(f"{self} dropped replication slot {name}")
                    self.session.complete("DROP_REPLICATION_SLOT")
                case StartReplication():
                    await self._start_replication(command)
        except CommandError as error:
            self._refuse(error)
        except Exception as error:
            self._listener.note(describe_bug(error), level=logging.ERROR)
            self.session.refuse("XX000", "an unexpected error, which this safekeeper's log describes", fatal=True)
            self.flush()
            self._listener.close_connection(self, "")
        self.flush()

    async def _create_slot(self, command: CreateSlot) -> Slot:
        log = self._listener.hub.log()
        require_wal(log)
        restart_lsn = log.end_lsn if command.reserve_wal else 0
        slot = await self._listener.slots.create(
            command.name, restart_lsn, connection=self.number, temporary=command.temporary
        )
        self._listener.note(f"{self} created {'temporary ' * command.temporary}replication slot {slot.name}")
        return slot

    # Streaming.

    async def _start_replication(self, command: StartReplication) -> None:
        log = self._listener.hub.log()
        require_wal(log)
        tli = command.tli or log.tli
        refusal = refusal_of_start(log, tli, command.begin_lsn)
        if refusal is not None:
            message, detail = refusal
            raise CommandError("XX000", message, detail=detail)
        slot = await self._acquire_slot(command.slot, command.begin_lsn) if command.slot is not None else None
        # If the timeline ends where the client begins, none of it has to be streamed.
        fork = self._listener.hub.log().fork_of(tli)
        if fork is not None and command.begin_lsn >= fork[1]:
            self._release_slot(slot)
            self.session.finish_copy(fork)
            return
        self.session.begin_copy()
        self.flush()
        self._ending = None
        self.reader = Reader(
            self,
            self._listener.node.folder.wal_reader(),
            number=self.number,
            name=self.name,
            tli=tli,
            begin_lsn=command.begin_lsn,
            slot=slot,
        )
        self.reader.paused = self.is_full
        named = f", slot {slot.name}" if slot is not None else ""
        self._listener.note(f"{self} streams timeline {tli} from {format_lsn(command.begin_lsn)}{named}")
        self._listener.hub.start(self.reader)

    async def _acquire_slot(self, name: str, begin_lsn: Lsn) -> Slot:
        slots, log = self._listener.slots, self._listener.hub.log()
        slot = slots.find(name)
        if slot is None:
            # Durable from the start: later positions are written lazily, and a crash may lose them.
            restart_lsn = begin_lsn if log.begin_lsn <= begin_lsn <= log.end_lsn else 0
            slot = await slots.create(name, restart_lsn, connection=self.number)
            self._listener.note(f"{self} named replication slot {name}, which did not exist: created it")
        slots.acquire(slot, self.number)
        return slot

    def _release_slot(self, slot: Slot | None) -> None:
        if slot is not None:
            self._listener.slots.release(slot)

    def end_timeline(self, end: TimelineEnd) -> None:
        """See reader.Client."""
        self._ending = end
        self.session.end_copy()
        self.flush()
        self._stop_reader(f"timeline {end.next_tli} continues at {format_lsn(end.fork_lsn)}")

    def fail(self, sqlstate: str, message: str, *, fatal: bool) -> None:
        """See reader.Client."""
        self.session.refuse(sqlstate, message, fatal=fatal)
        self.flush()
        self._stop_reader(message)
        if fatal:
            self._listener.close_connection(self, "")

    def _client_ended_copy(self) -> None:
        if self.reader is not None:
            log, tli = self._listener.hub.log(), self.reader.tli
            fork = log.fork_of(tli)
            self._ending = TimelineEnd(*fork) if fork is not None else None
            self._stop_reader("the client ended it")
        self._finish_copy()

    def _finish_copy(self) -> None:
        self.session.finish_copy(self._ending)
        self.flush()

    def _stop_reader(self, reason: str) -> bool:
        """End the stream; return whether there was one."""
        reader, self.reader = self.reader, None
        if reader is None:
            return False
        self._listener.hub.stop(reader)
        self._release_slot(reader.slot)
        self._listener.note(f"{self} stopped streaming at {format_lsn(reader.position_lsn)}: {reason}")
        return True

    # Called by the listener.

    def watch(self, now: float) -> None:
        """Close the connection if no data was received within the timeout; request a reply before that."""
        silent_s, timeout_s = now - self.received_at, self._listener.timeout_s
        streams = self.session.state in (SessionState.COPY, SessionState.COPY_ENDING)
        if not self.user and now - self._made_at > self._listener.greeting_timeout_s:
            reason = f"not authenticated within {self._listener.greeting_timeout_s:g} s"
            self._listener.close_connection(self, reason, stranger=True)
        elif self.user and not streams and self._task_is_over and silent_s > IDLE_SESSION_S:
            self.session.refuse("57P05", "terminating connection due to idle-session timeout", fatal=True)
            self.flush()
            self._listener.close_connection(self, f"no command for {IDLE_SESSION_S:g} s")
        elif streams and silent_s > timeout_s:
            self._listener.note(f"closed {self}: no data for {timeout_s:g} s", level=logging.WARNING)
            self.abort()
        elif streams and silent_s > timeout_s / 2 and not self._pinged and not self.is_full:
            self._pinged = True
            self._send_keepalive(reply_requested=True)

    @property
    def _task_is_over(self) -> bool:
        return self._task is None or self._task.done()

    def say_goodbye(self) -> None:
        """End the connection at shutdown; end a stream as PostgreSQL does then, so that clients reconnect elsewhere."""
        if self.reader is not None and self.session.state is SessionState.COPY:
            self.write(command_complete("COPY 0"))
            self._stop_reader("this safekeeper is shutting down")
        else:
            self.session.refuse("57P01", "this safekeeper is shutting down", fatal=True)
            self.flush()
        self.close()
