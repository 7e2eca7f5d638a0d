"""One connection of a replication client: bytes to the session, commands to whoever answers them, WAL to the socket.

The conversation is `pgwire.Session`'s; here are the socket, TLS around it, the clock, and what a command does. A
command that changes something on disk, or has to wait, is a task; the session takes no other one meanwhile.

WAL goes from the file to the socket in one copy: the hub's chunk is handed to the transport as it is. With more than
WRITE_HIGH_WATER_BYTES unsent the hub passes this reader over (S14), and commands are not read. Whoever streams and says
nothing for half the timeout is asked for a word, and is closed at the full one: a dead reader holds no memory and no
slot for longer.
"""

import asyncio
import logging
import secrets
import socket
import time
from typing import TYPE_CHECKING, cast

from safekeeper.consensus.learning import TimelineEnd, refusal_of_start
from safekeeper.errors import CommandError, RemoteProtocolError
from safekeeper.logs import describe_bug
from safekeeper.lsn import format_lsn
from safekeeper.pgwire.backend import command_complete, keepalive
from safekeeper.pgwire.commands import (
    CreateSlot,
    DropSlot,
    IdentifySystem,
    ReadSlot,
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
from safekeeper.pgwire.session import Session, State
from safekeeper.reader import Reader
from safekeeper.replication_commands import (
    Answer,
    identify_system,
    read_slot,
    require_wal,
    session_parameters,
    show,
    slot_created,
    timeline_history,
)
from safekeeper.slots import Slot
from safekeeper.tls import TlsChannel

if TYPE_CHECKING:
    from safekeeper.replication_door import ReplicationDoor

WRITE_HIGH_WATER_BYTES = 1 << 20
WRITE_LOW_WATER_BYTES = 256 << 10
# A peer whose host has vanished is noticed after idle + count * interval seconds, also when nothing is sent.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

_log = logging.getLogger(__name__)


class ReplicationConnection(asyncio.Protocol):
    """One client.

    Attributes:
        number: the connection's number, 0 if it was not admitted.
        peer: where it comes from, for the log.
        user, name: what it calls itself once it is let in.
        reader: its stream, None while it has none.
        heard_at: when bytes came last, in the loop's time.
    """

    def __init__(self, door: "ReplicationDoor") -> None:
        self._door = door
        self._transport: asyncio.Transport
        self._session: Session
        self._channel: TlsChannel | None = None
        self._open = False
        self._writing_paused = False
        self._pinged = False
        self._ending: TimelineEnd | None = None  # Of the timeline that was streamed last.
        self._task: asyncio.Task[None] | None = None
        self._made_at = 0.0
        self.number = 0
        self.peer = ""
        self.user = ""
        self.name = ""
        self.reader: Reader | None = None
        self.heard_at = 0.0

    def __str__(self) -> str:
        who = f" ({self.name or 'no application_name'}, user {self.user})" if self.user else ""
        return f"connection {self.number} from {self.peer}{who}"

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unknown peer"
        self.heard_at = self._made_at = self._door.now()
        if not self._door.admit(self, peer[0] if peer else ""):
            self._transport.abort()
            return
        self._open = True
        _set_socket_options(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        self._session = Session(
            tls=self._door.tls is not None,
            users=self._door.users.verifiers if self._door.users is not None else None,
            parameters=session_parameters(self._door.node.acceptor.control),
            nonce=secrets.token_urlsafe(18),
            mock_salt=self._door.mock_salt,
        )

    def data_received(self, data: bytes) -> None:
        if not self._open:
            return
        self.heard_at = self._door.now()
        self._pinged = False
        try:
            self._receive(data)
        except RemoteProtocolError as error:
            self._flush()
            self._door.close_connection(self, str(error), stranger=True)

    def eof_received(self) -> bool:
        if self._open:
            reason = self._session.explain_eof()
            streamed = self._stop_reader(reason)
            self._door.close_connection(self, "" if streamed else reason, stranger=not self.user)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        if self._task is not None:
            self._task.cancel()
        self._stop_reader("the connection is gone")
        self._door.lost(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self.reader is not None:
            self._door.hub.pause(self.reader)
        else:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self.reader is not None:
            self._door.hub.resume(self.reader)
        elif self._open:
            self._transport.resume_reading()

    # Bytes.

    def _receive(self, data: bytes) -> None:
        channel = self._channel
        if channel is not None:
            established = channel.established
            try:
                data = channel.receive(data)
            finally:
                self._transport.write(channel.take_outgoing())
            if channel.established and not established:
                shown = channel.peer_certificate() is not None
                only_user = (channel.peer_common_name or "") if shown else None
                self._session.tls_started(channel.server_certificate_der, only_user)
            if not channel.established:
                return
        for event in self._session.receive(data):
            self._handle(event)
        self._flush()

    def write(self, *buffers: bytes | memoryview) -> None:
        """See reader.Client."""
        if not self._open:
            return
        if self._channel is None:
            self._transport.writelines(buffers)
        else:
            self._channel.send(*buffers)
            self._transport.write(self._channel.take_outgoing())

    def _flush(self) -> None:
        """Send what the session has to say."""
        output = self._session.take_output()
        if output and (self._channel is None or self._channel.established):
            self.write(output)

    # Events.

    def _handle(self, event: Event) -> None:
        match event:
            case StatusUpdate():
                self._take_status(event)
            case HotStandbyFeedback(xmin, catalog_xmin):
                if self.reader is not None:
                    self._door.hub.take_feedback(self.reader, xmin, catalog_xmin)
            case CommandReceived(command):
                self._command(command)
            case CopyEnded():
                self._client_ended_copy()
            case StartTls(_, data):
                self._start_tls(data)
            case Authenticated():
                self._let_in(event)
            case CommandRefused(sqlstate, message):
                self._door.note_refusal(f"{self} was refused: {message} ({sqlstate})")
            case Terminated():
                self._flush()
                self._door.close_connection(self, "")

    def _start_tls(self, data: bytes) -> None:
        assert self._door.tls is not None  # The session asks for it only then.
        self._flush()
        self._channel = self._door.tls.channel()
        if data:
            self._receive(data)

    def _let_in(self, event: Authenticated) -> None:
        """Take down who it is. A client certificate, which is demanded or not asked for, must be that user's."""
        certificate = self._channel.peer_certificate() if self._channel is not None else None
        if self._channel is not None and certificate and self._channel.peer_common_name != event.user:
            self._session.take_output()  # It has not been let in yet.
            message = f'the common name of the client certificate is not "{event.user}", the user'
            self._session.refuse("28000", message, fatal=True)
            raise RemoteProtocolError(message)
        self.user, self.name = event.user, event.application_name

    def _take_status(self, status: StatusUpdate) -> None:
        reader = self.reader
        if reader is None:
            return
        self._door.hub.take_status(reader, status.write_lsn, status.flush_lsn, status.apply_lsn)
        if reader.slot is not None:
            self._door.slots.report(reader.slot, min(status.flush_lsn, reader.position_lsn))
        # To a client that does not read, nothing is said that it could ask for without end.
        if status.reply_requested and not self._writing_paused:
            self._send_keepalive(reply_requested=False)

    def _send_keepalive(self, *, reply_requested: bool) -> None:
        if self.reader is not None and self._session.state is State.COPY:
            end_lsn = self._door.hub.readable_end(self.reader)
            self.write(keepalive(end_lsn, time.time_ns() // 1000, reply_requested))

    # Commands.

    def _command(self, command: AnswerableCommand) -> None:
        log, control = self._door.hub.log(), self._door.node.acceptor.control
        try:
            match command:
                case IdentifySystem():
                    self._answer(identify_system(log, control))
                case Show(name):
                    self._answer(show(name, log, control))
                case TimelineHistory(tli):
                    self._answer(timeline_history(tli, log, control))
                case ReadSlot(name):
                    self._answer(read_slot(self._door.slots.find(name), log))
                case _:
                    self._task = asyncio.get_running_loop().create_task(self._carry_out(command))
        except CommandError as error:
            self._refuse(error)

    def _answer(self, answer: Answer) -> None:
        self._session.answer(*answer)

    def _refuse(self, error: CommandError) -> None:
        self._door.note_refusal(f"{self} was refused: {error} ({error.sqlstate})")
        self._session.refuse(error.sqlstate, str(error), detail=error.detail, hint=error.hint)

    async def _carry_out(self, command: AnswerableCommand) -> None:
        try:
            match command:
                case CreateSlot():
                    self._answer(slot_created(await self._create_slot(command)))
                case DropSlot(name, wait):
                    await self._door.slots.drop(name, connection=self.number, wait=wait)
                    _log.info("%s dropped replication slot %s", self, name)
                    self._session.complete("DROP_REPLICATION_SLOT")
                case StartReplication():
                    await self._start_replication(command)
        except CommandError as error:
            self._refuse(error)
        except Exception as error:
            _log.error("%s", describe_bug(error))
            self._session.refuse("XX000", "an unexpected error, which this safekeeper's log describes", fatal=True)
            self._flush()
            self._door.close_connection(self, "")
        self._flush()

    async def _create_slot(self, command: CreateSlot) -> Slot:
        log = self._door.hub.log()
        require_wal(log)
        restart_lsn = log.end_lsn if command.reserve_wal else 0
        slot = await self._door.slots.create(
            command.name, restart_lsn, connection=self.number, temporary=command.temporary
        )
        _log.info("%s created %sreplication slot %s", self, "temporary " * command.temporary, slot.name)
        return slot

    # Streaming.

    async def _start_replication(self, command: StartReplication) -> None:
        log = self._door.hub.log()
        require_wal(log)
        tli = command.tli or log.tli
        refusal = refusal_of_start(log, tli, command.begin_lsn)
        if refusal is not None:
            message, detail = refusal
            raise CommandError("XX000", message, detail=detail)
        slot = await self._acquire_slot(command.slot) if command.slot is not None else None
        # Nothing has to be streamed of a timeline that ends where the client begins.
        fork = self._door.hub.log().fork_of(tli)
        if fork is not None and command.begin_lsn >= fork[1]:
            self._release_slot(slot)
            self._session.finish_copy(fork)
            return
        self._session.begin_copy()
        self._flush()
        self._ending = None
        self.reader = Reader(
            self,
            self._door.node.folder.wal_reader(),
            number=self.number,
            name=self.name,
            tli=tli,
            begin_lsn=command.begin_lsn,
            slot=slot,
        )
        self.reader.paused = self._writing_paused
        _log.info(
            "%s streams timeline %d from %s%s",
            self,
            tli,
            format_lsn(command.begin_lsn),
            f", slot {slot.name}" if slot is not None else "",
        )
        self._door.hub.start(self.reader)

    async def _acquire_slot(self, name: str) -> Slot:
        slots = self._door.slots
        slot = slots.find(name)
        if slot is None:
            slot = await slots.create(name, 0, connection=self.number)
            _log.info("%s named replication slot %s, which was not there: created it", self, name)
        slots.acquire(slot, self.number)
        return slot

    def _release_slot(self, slot: Slot | None) -> None:
        if slot is not None:
            self._door.slots.release(slot)

    def end_timeline(self, end: TimelineEnd) -> None:
        """See reader.Client."""
        self._ending = end
        self._session.end_copy()
        self._flush()
        self._stop_reader(f"timeline {end.next_tli} goes on at {format_lsn(end.fork_lsn)}")
        if self._session.client_copy_done:
            self._finish_copy()

    def fail(self, sqlstate: str, message: str, *, fatal: bool) -> None:
        """See reader.Client."""
        self._session.refuse(sqlstate, message, fatal=fatal)
        self._flush()
        self._stop_reader(message)
        if fatal:
            self._door.close_connection(self, "")

    def _client_ended_copy(self) -> None:
        if self.reader is not None:
            log, tli = self._door.hub.log(), self.reader.tli
            fork = log.fork_of(tli)
            self._ending = TimelineEnd(*fork) if fork is not None else None
            self._stop_reader("the client has ended it")
        self._finish_copy()

    def _finish_copy(self) -> None:
        self._session.finish_copy(self._ending)
        self._flush()

    def _stop_reader(self, reason: str) -> bool:
        """End the stream, if there is one; return whether there was."""
        reader, self.reader = self.reader, None
        if reader is None:
            return False
        self._door.hub.stop(reader)
        self._release_slot(reader.slot)
        _log.info("%s streams no more, at %s: %s", self, format_lsn(reader.position_lsn), reason)
        return True

    # What the door calls.

    def watch(self, now: float) -> None:
        """Close the connection if its client has been silent for too long; ask for a word before that."""
        silent_s, timeout_s = now - self.heard_at, self._door.timeout_s
        streams = self._session.state in (State.COPY, State.COPY_ENDING)
        if not self.user and now - self._made_at > self._door.greeting_timeout_s:
            reason = f"not let in within {self._door.greeting_timeout_s:g} s"
            self._door.close_connection(self, reason, stranger=True)
        elif streams and silent_s > timeout_s:
            _log.warning("%s is closed: silent for %g s", self, timeout_s)
            self.abort()
        elif streams and silent_s > timeout_s / 2 and not self._pinged and not self._writing_paused:
            self._pinged = True
            self._send_keepalive(reply_requested=True)

    def say_goodbye(self) -> None:
        """End the conversation because the process ends: a stream as PostgreSQL ends it then, for others to go on."""
        if self.reader is not None and self._session.state is State.COPY:
            self.write(command_complete("COPY 0"))
            self._stop_reader("this safekeeper stops")
        else:
            self._session.refuse("57P01", "this safekeeper stops", fatal=True)
            self._flush()
        self.close()

    def close(self) -> None:
        """Close after what was written; nothing that comes is looked at any more."""
        if self._open:
            self._open = False
            if self._channel is not None:
                self._channel.close()
                self._transport.write(self._channel.take_outgoing())
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._open = False
        self._transport.abort()


def _set_socket_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
