"""The replication client: libpq's connection on the event loop.

psycopg makes the connection (TLS, SCRAM, service and password files, several hosts); what is sent then and what the
answers mean is in `replication_protocol`. Commands are awaited one after the other. Inside COPY each wake-up hands over
all WAL that libpq holds, as one list of views into libpq's own buffers: nothing is copied, nothing is queued. The only
waiting output is the newest status update and the newest hot standby feedback.

    connection = await ReplicationConnection.connect(conninfo)
    identity = await connection.identify()
    await connection.ensure_slot("walproxy")
    await connection.start_replication("walproxy", begin_lsn, identity.tli)
    end = await connection.stream(on_wal, on_keepalive)      # returns at the end of the TLI

Backpressure is `pause_reading`: the socket is not read, so PostgreSQL's pings are not seen and a broken connection is
noticed only on `resume_reading`; `send_status` works all the time, which is what keeps the walsender alive.

Every failure is a PrimaryProblem; what breaks the protocol is a RemoteProtocolError. After either, `close`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeAlias

import psycopg

from safekeeper.base.errors import ConfigurationError, LocalProtocolError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from safekeeper.base.settings import slot_name
from safekeeper.base.timelines import parse_timeline_history
from walproxy.postgres.command_connection import CommandConnection
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_error
from walproxy.postgres.replication import (
    PrimaryFacts,
    build_hot_standby_feedback,
    build_status_update,
    parse_segment_size,
)
from walproxy.postgres.replication_protocol import (
    TimelineEnd,
    WalStream,
    end_copy,
    identify_system,
    read_timeline_history,
    start_replication,
)
from walproxy.postgres.sql import read_slot
from walproxy.postgres.sql_walsender import urgent_sql

logger = logging.getLogger(__name__)

OnWal: TypeAlias = Callable[[Lsn, list[memoryview]], None]
"""Called with the LSN of the first byte and read-only chunks that follow each other without a gap."""

OnKeepalive: TypeAlias = Callable[[Lsn, bool], None]
"""Called with how far the walsender has sent, and whether it asks for a status update now."""

_XID_MAX = (1 << 32) - 1
_PASSES_MAX = 16  # per wake-up, so that a fast server does not keep the loop to itself


class ReplicationConnection(CommandConnection):
    """One physical replication connection. Made by `connect`; for one task at a time.

    Attributes:
        received_lsn: the end of what was handed over in this stream.
        server_end_lsn: how far the primary's WAL reached, by its last message; ahead of `received_lsn` while the
            walsender catches up.
        last_message_s: the event loop's time of the last message, or since when messages are read again.
    """

    def __init__(self, connection: psycopg.AsyncConnection, conninfo: str, timeout_s: float) -> None:
        super().__init__(connection, conninfo, timeout_s)
        self.received_lsn: Lsn = 0
        self.server_end_lsn: Lsn = 0
        self.last_message_s = self._loop.time()
        self._paused = False
        self._ended: asyncio.Future[None] | None = None  # of the COPY that `stream` reads
        self._wal_stream: WalStream | None = None  # the same COPY
        self._skipped: TimelineEnd | None = None  # START at the end of a TLI: there is nothing to stream
        self._output_blocked = False
        self._waiting_status: tuple[Lsn, Lsn, Lsn, bool] | None = None
        self._waiting_feedback: tuple[int, int] | None = None
        self._on_wal: OnWal | None = None
        self._on_keepalive: OnKeepalive | None = None

    def close(self) -> None:
        """Close the connection. A `stream` that runs ends with a PrimaryProblem. Closing twice is fine."""
        self._forget_socket()
        super().close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # Commands.

    async def identify(self) -> PrimaryFacts:
        """Ask the primary for its identity and how it is set up.

        Raises:
            PrimaryProblem: an error, or no answer.
            RemoteProtocolError: the answer makes no sense.
        """
        system_id, tli, flush_lsn = await self._ask(identify_system(self._pgconn), "identify PostgreSQL")
        history = await self.timeline_history(tli)
        server_version = self._pgconn.server_version
        if server_version >= 140000:
            in_recovery = await self._show("in_hot_standby") == "on"
        else:
            doing = "ask whether PostgreSQL is a standby"
            async with urgent_sql(self._conninfo, doing, self._timeout_s, server_version=server_version) as value:
                in_recovery = await value("SELECT pg_is_in_recovery()::text") == "true"
        return PrimaryFacts(
            system_id=system_id,
            tli=tli,
            flush_lsn=flush_lsn,
            segment_size=parse_segment_size(await self._show("wal_segment_size")),
            server_version=server_version,
            in_recovery=in_recovery,
            timeline_history=history,
            lineage=parse_timeline_history(tli, history),
            wal_level=await self._show("wal_level"),
            fsync=await self._show("fsync") == "on",
        )

    async def timeline_history(self, tli: int) -> bytes:
        """Return the content of the history file of `tli`, empty for TLI 1, which has none."""
        if tli == 1:
            return b""
        return await self._ask(read_timeline_history(self._pgconn, tli), f"read the history of TLI {tli}")

    async def has_slot(self, name: str) -> bool:
        """Return whether there is a slot `name`, without an SQL session, which the role need not be allowed.

        Raises:
            ConfigurationError: no slot can have this name.
            PrimaryProblem: it is a logical slot, or, before PostgreSQL 15, no slot is free to try it with.
        """
        _check_slot_name(name)
        if self._reads_slots:
            return (await self._read_slot(name))[0] is not None
        doing = f'look for slot "{name}"'
        try:
            # Without RESERVE_WAL it holds nothing back; a session that ends takes it along.
            await self._command(f'CREATE_REPLICATION_SLOT "{name}" TEMPORARY PHYSICAL', doing)
        except PrimaryProblem as problem:
            if problem.sqlstate == "42710":  # duplicate_object
                return True
            raise
        await self._command(f'DROP_REPLICATION_SLOT "{name}"', doing)
        return False

    async def still_has_slot(self, name: str) -> bool:
        """Return whether slot `name` is still there, as `has_slot`, at no cost to the server's log.

        Before PostgreSQL 15 that takes an SQL session; a slot that cannot be looked up counts as present.
        """
        if self._reads_slots:
            return await self.has_slot(name)
        try:
            return await read_slot(self._conninfo, name, timeout_s=self._timeout_s) is not None
        except PrimaryProblem as problem:
            logger.debug("could not look up the slot: %s", problem)
            return True

    async def slot_restart_lsn(self, name: str) -> Lsn | None:
        """Return from where on slot `name` retains WAL, None if it retains none or that cannot be looked up."""
        if self._reads_slots:
            _, restart_lsn, *_ = await self._read_slot(name)
            return parse_lsn(restart_lsn) if restart_lsn else None
        try:
            slot = await read_slot(self._conninfo, name, timeout_s=self._timeout_s)
        except PrimaryProblem as problem:
            logger.debug("could not look up the slot: %s", problem)
            return None
        return slot.restart_lsn if slot is not None else None

    async def ensure_slot(self, name: str) -> bool:
        """Make the physical slot `name` unless it is there, and return whether it was made.

        A new slot holds the WAL back from the last checkpoint's redo pointer on.

        Raises:
            ConfigurationError: no slot can have this name.
            PrimaryProblem: it is a logical slot, or no slot is free.
        """
        _check_slot_name(name)
        doing = f'create slot "{name}"'
        # Asking first keeps an error message per connection out of the server's log.
        if self._reads_slots and await self.has_slot(name):
            return False
        try:
            await self._command(f'CREATE_REPLICATION_SLOT "{name}" PHYSICAL RESERVE_WAL', doing)
        except PrimaryProblem as problem:
            if problem.sqlstate == "42710":  # duplicate_object
                return False
            if problem.kind is ProblemKind.NO_FREE_SLOT and await self._show("max_replication_slots") == "0":
                advice = "set max_replication_slots = 10 and restart PostgreSQL"
                raise PrimaryProblem(
                    ProblemKind.NO_REPLICATION, f"cannot {doing}: max_replication_slots is 0; {advice}"
                ) from None
            raise
        return True

    @property
    def _reads_slots(self) -> bool:
        """Whether the server has READ_REPLICATION_SLOT."""
        return self._pgconn.server_version >= 150000

    async def _read_slot(self, name: str) -> list[str | None]:
        """Return the type, restart_lsn and its TLI of slot `name`; None each without it."""
        return await self._row(f'READ_REPLICATION_SLOT "{name}"', f'use slot "{name}"')

    async def drop_slot(self, name: str) -> None:
        """Drop the slot `name`; one that is missing is fine.

        Raises:
            PrimaryProblem: it is in use, or cannot be dropped.
        """
        try:
            await self._command(f'DROP_REPLICATION_SLOT "{name}"', f'drop slot "{name}"')
        except PrimaryProblem as problem:
            if problem.kind is not ProblemKind.SLOT_MISSING:
                raise

    async def idle_slot_timeout(self) -> str:
        """Return idle_replication_slot_timeout, "0" for none and where it does not exist."""
        return await self._show("idle_replication_slot_timeout") if self._pgconn.server_version >= 180000 else "0"

    async def start_replication(self, slot: str | None, begin_lsn: Lsn, tli: int) -> None:
        """Ask for the WAL of `tli` from `begin_lsn` on; `stream` then takes it.

        A position that the primary cannot serve is often refused only inside the stream.

        Raises:
            PrimaryProblem: the slot is in use (SLOT_IN_USE) or not usable, or the primary has no such TLI.
        """
        if slot is not None:
            _check_slot_name(slot)
        doing = f"stream TLI {tli} from {format_lsn(begin_lsn)}" + (f' with slot "{slot}"' if slot else "")
        self.received_lsn = self.server_end_lsn = begin_lsn
        self._skipped = await self._ask(start_replication(self._pgconn, begin_lsn, tli, slot), doing)
        self._in_copy = self._skipped is None

    # The stream.

    async def stream(self, on_wal: OnWal, on_keepalive: OnKeepalive) -> TimelineEnd:
        """Hand over WAL until the TLI ends; then another `start_replication` may follow.

        The callbacks run on the event loop, at most one of each per wake-up, WAL first. What they raise ends the
        stream and is raised here.

        Raises:
            PrimaryProblem: an error, the end of the connection (LOST) or a clean shutdown (SHUT_DOWN).
            RemoteProtocolError: a message that is not understood, or WAL that does not continue where the last ended.
        """
        if self._skipped is not None:
            return self._skipped
        if self._broken is not None:
            raise problem_of_error("stream WAL", None, self._broken)
        if not self._in_copy or self._ended is not None:
            raise LocalProtocolError("stream() needs a start_replication() of its own")
        self._on_wal, self._on_keepalive = on_wal, on_keepalive
        self._ended = self._loop.create_future()
        self._wal_stream = WalStream(self._pgconn, self.received_lsn)
        try:
            if not self._paused:
                self._watch()
            await self._ended
            self._stop_watching()
            return await self._end_of_copy()
        except BaseException:
            self._broken = self._broken or "the stream was broken off"
            raise
        finally:
            self._stop_watching()
            self._in_copy = False
            self._ended = self._wal_stream = self._on_wal = self._on_keepalive = None
            self._waiting_status = self._waiting_feedback = None

    def pause_reading(self) -> None:
        """Stop reading the socket: PostgreSQL's walsender blocks once the network's buffers are full."""
        if not self._paused:
            self._paused = True
            if self._socket >= 0:
                self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if self._ended is not None and not self._ended.done():
                self._watch()

    def _watch(self) -> None:
        # A connection that waited for a request, or was not read, was not silent.
        self.last_message_s = self._loop.time()
        self._loop.add_reader(self._socket, self._on_readable)
        # libpq may hold messages already, and the socket does not show those.
        self._loop.call_soon(self._on_readable)

    def send_status(self, write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn, *, reply_requested: bool = False) -> None:
        """Report to PostgreSQL up to where its WAL is written, durable and replayed; it cannot be taken back (S1).

        Never blocks: when the socket takes no more, only the newest update is kept for later. Once the connection
        broke, which its task may not have seen yet, nothing is sent.

        Raises:
            LocalProtocolError: there is no stream, or a position is beyond the WAL received.
        """
        if self._broken is not None:
            return
        if not self._in_copy:
            raise LocalProtocolError("a status update needs a stream")
        if max(write_lsn, flush_lsn, apply_lsn) > self.received_lsn:
            raise LocalProtocolError(
                f"a status update of {format_lsn(write_lsn)}, {format_lsn(flush_lsn)}, {format_lsn(apply_lsn)} "
                f"would go beyond the WAL received, {format_lsn(self.received_lsn)}"
            )
        if not self._output_blocked:
            self._put(build_status_update(write_lsn, flush_lsn, apply_lsn, time.time_ns() // 1000, reply_requested))
            return
        if self._waiting_status is not None:
            reply_requested = reply_requested or self._waiting_status[3]
        self._waiting_status = (write_lsn, flush_lsn, apply_lsn, reply_requested)

    def send_hot_standby_feedback(self, xmin: int, catalog_xmin: int) -> None:
        """Hold back vacuum on the primary for the standbys' oldest transactions, 64 bits each; 0: no longer.

        Waits and is replaced as a status update is.

        Raises:
            LocalProtocolError: there is no stream.
        """
        if self._broken is not None:
            return
        if not self._in_copy:
            raise LocalProtocolError("hot standby feedback needs a stream")
        self._waiting_feedback = (xmin, catalog_xmin)
        if not self._output_blocked:
            self._send_waiting_feedback()

    def _send_waiting_status(self) -> None:
        if self._waiting_status is None:
            return
        write_lsn, flush_lsn, apply_lsn, reply_requested = self._waiting_status
        self._waiting_status = None
        self._put(build_status_update(write_lsn, flush_lsn, apply_lsn, time.time_ns() // 1000, reply_requested))

    def _send_waiting_feedback(self) -> None:
        if self._waiting_feedback is None:
            return
        xmin, catalog_xmin = self._waiting_feedback
        self._waiting_feedback = None
        xid, epoch = xmin & _XID_MAX, xmin >> 32
        catalog_xid, catalog_epoch = catalog_xmin & _XID_MAX, catalog_xmin >> 32
        self._put(build_hot_standby_feedback(time.time_ns() // 1000, xid, epoch, catalog_xid, catalog_epoch))

    def _put(self, message: bytes) -> None:
        if self._ended is not None and self._ended.done():
            return
        try:
            self._pgconn.put_copy_data(message)
            blocked = self._pgconn.flush() == 1
        except psycopg.Error as error:
            self._break(str(error))
            return
        if blocked or self._output_blocked:
            self._watch_output(blocked)

    def _flush_output(self) -> None:
        try:
            blocked = self._pgconn.flush() == 1
        except psycopg.Error as error:
            self._break(str(error))
            return
        self._watch_output(blocked)

    def _watch_output(self, blocked: bool) -> None:
        """Have libpq's remaining output sent as soon as the socket takes it."""
        if blocked and not self._output_blocked:
            self._loop.add_writer(self._socket, self._on_writable)
        elif self._output_blocked and not blocked:
            self._loop.remove_writer(self._socket)
        self._output_blocked = blocked

    def _on_writable(self) -> None:
        self._flush_output()
        if not self._output_blocked:
            self._send_waiting_status()
        if not self._output_blocked:
            self._send_waiting_feedback()
        # While its output was blocked libpq read the socket on its own, so as not to deadlock with the server.
        if not self._paused:
            self._on_readable()

    def _on_readable(self) -> None:
        wal_stream = self._wal_stream
        if wal_stream is None or self._ended is None or self._ended.done() or self._paused:
            return
        try:
            for passes in range(_PASSES_MAX):
                arrived = wal_stream.read(not passes)
                # Handed over here and not by a method: measured, a call less pays for the object that `read` returns.
                if arrived.server_end_lsn is not None:
                    self.server_end_lsn = arrived.server_end_lsn
                    self.last_message_s = self._loop.time()
                    if arrived.chunks and self._on_wal is not None:
                        begin_lsn, self.received_lsn = self.received_lsn, arrived.end_lsn
                        self._on_wal(begin_lsn, arrived.chunks)
                    if arrived.sent_lsn is not None and self._on_keepalive is not None:
                        self._on_keepalive(arrived.sent_lsn, arrived.reply_requested)
                if arrived.is_over:
                    self._ended.set_result(None)
                    return
                if arrived.broken is not None:
                    self._break(str(arrived.broken))
                    return
                if arrived.is_drained or self._paused:
                    return
            self._loop.call_soon(self._on_readable)
        except psycopg.Error as error:
            self._break(str(error))
        except Exception as error:  # raised by `stream`, which these callbacks belong to
            self._stop_watching()
            if not self._ended.done():
                self._ended.set_exception(error)

    async def _end_of_copy(self) -> TimelineEnd:
        """Find out why the COPY ended, and answer the end of a TLI."""
        if self._broken is not None:
            raise problem_of_error("stream WAL", None, self._broken)
        timeline_end = await self._have(end_copy(self._pgconn), "stream WAL", "end the stream")
        if timeline_end is None:
            raise PrimaryProblem(ProblemKind.SHUT_DOWN, "PostgreSQL has shut down; waiting for it")
        return timeline_end

    def _break(self, reason: str) -> None:
        """The connection is gone: end the stream."""
        self._broken = reason
        self._forget_socket()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _forget_socket(self) -> None:
        """Its number may soon be another connection's."""
        self._stop_watching()
        self._socket = -1

    def _stop_watching(self) -> None:
        if self._socket >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._output_blocked = False


def _check_slot_name(name: str) -> None:
    try:
        slot_name(name)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
