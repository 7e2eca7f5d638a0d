"""One session that streams a slot, on a thread of its own: it receives while tables are written.

The server ends a session that does not reply in time, and a merge may take longer than that. So a thread owns the
connection: it takes what arrives into a queue that is bounded in bytes, replies, and reports the confirmed position.
While the queue is full it receives nothing, so that the server stops sending, and continues to report. Nothing is
decoded here.

    feed.take(timeout_s)   the next messages and positions
    feed.confirm(lsn)      what is below is durable elsewhere: the slot moves there

A server that shuts down waits for this session to confirm everything that it has sent, which may not be for a long
time. But it ends other sessions at once: when it closes the connection `beside`, this session is ended as well.

The slot moves by what is confirmed, never by what was received. What ends the session is raised by `take` and `check`
on the thread of their caller; the queue is of no use then, because the slot is read again from the last position.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

import psycopg

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.server import (
    Connection,
    SourceUnavailable,
    connect,
    one_line_errors,
    one_value,
    patiently,
    server_major,
    server_start,
)
from walproxy.pipeline.cdc.slot import plugin_options, receive_texts_as_stored, slot_error
from walproxy.postgres.logical_replication import WAITING_READER, Item, LogicalStream, end_logical, start_logical
from walproxy.postgres.replication import build_status_update
from walproxy.postgres.replication_protocol import ServerRefused, end_copy
from walproxy.postgres.waiting import wait_blocking

QUEUE_BYTES_MAX: Final = 16 << 20
_ITEM_BYTES: Final = 120
"""Python's overhead for a message, beside its own bytes."""

_REPORT_S: Final = 10.0
_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 5.0
_SILENCE_S: Final = 300.0
"""A server that sends nothing for this time, though it is asked to, is lost."""


class ChangeFeed:
    """The session. Close it: the server has what was confirmed then, if it is there.

    Attributes:
        server_start: of the server that it leads to.

    Args:
        beside: another connection to the server. It is only watched.
        begin_lsn: everything below is durable elsewhere, so that the slot may be moved there.
        queue_bytes_max: of messages that wait to be taken, at most one more read of the socket.

    Raises:
        SourceUnavailable: no connection, or the slot is in use for long.
        SourceRefused: the server refuses.
    """

    def __init__(
        self,
        conninfo: str,
        slot: str,
        publications: Sequence[str],
        begin_lsn: Lsn,
        *,
        beside: Connection,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        self._slot = slot
        self._queue_bytes_max = queue_bytes_max
        self._confirmed_lsn = begin_lsn
        self._changed = threading.Condition()
        self._items: list[Item] = []
        self._held_bytes = 0
        self._failure: Exception | None = None
        self._is_closing = False
        self._is_report_due = True
        self._connection = connect(conninfo, application_name=WAITING_READER, replication=True)
        try:
            self.server_start = server_start(self._connection)
            self._report_s = _report_interval(self._connection)
            with one_line_errors(f"stream slot {slot!r}"):
                self._beside = beside.fileno()
                receive_texts_as_stored(self._connection)
            self._start(publications, begin_lsn)
        except BaseException:
            self._connection.close()
            raise
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"slot {slot}", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> list[Item]:
        """Return what has arrived since the last call, in order; nothing if nothing does for `timeout_s`.

        Raises:
            SourceUnavailable, SourceRefused, RemoteProtocolError: the session is over.
        """
        with self._changed:
            if not self._items and self._failure is None:
                self._changed.wait(timeout_s)
            self._raise_failure()
            items, self._items = self._items, []
            was_full, self._held_bytes = self._is_full(), 0
        if was_full:
            self._wake()
        return items

    def check(self) -> None:
        """See that the session is not over. Raises as `take`."""
        with self._changed:
            self._raise_failure()

    def ask(self) -> None:
        """Request the server's position, which comes with the messages."""
        self._report()

    def confirm(self, lsn: Lsn) -> None:
        """Report that everything below `lsn` is durable elsewhere. Returns before the server has received it."""
        self._confirmed_lsn = max(self._confirmed_lsn, lsn)
        self._report()

    def close(self) -> None:
        """End the session, unless it is closed."""
        if self._is_closing:
            return
        self._is_closing = True
        self._wake()
        self._thread.join()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _start(self, publications: Sequence[str], begin_lsn: Lsn) -> None:
        pgconn = self._connection.pgconn
        options = plugin_options(server_major(self._connection), publications, stream=False, messages=False)

        def begin() -> None:
            try:
                wait_blocking(start_logical(pgconn, self._slot, begin_lsn, options), pgconn, _START_TIMEOUT_S)
            except ServerRefused as refusal:
                raise psycopg_error(refusal) from refusal

        try:
            patiently(begin)
        except TimeoutError:
            raise SourceUnavailable(f"the server did not begin to stream slot {self._slot!r}") from None
        except psycopg.Error as error:
            raise slot_error(error, self._slot) from error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _is_full(self) -> bool:
        return self._held_bytes >= self._queue_bytes_max

    def _report(self) -> None:
        self._is_report_due = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full of bytes that wake it
            self._wake_sender.send(b"w")

    def _run(self) -> None:
        try:
            self._receive()
            self._end()
        except Exception as error:  # raised by `take`
            with self._changed:
                self._failure = self._failure_of(error)
                self._changed.notify_all()
        finally:
            self._connection.close()

    def _failure_of(self, error: Exception) -> Exception:
        if isinstance(error, ServerRefused):
            return slot_error(psycopg_error(error), self._slot)
        if isinstance(error, psycopg.Error):
            return slot_error(error, self._slot)
        if isinstance(error, OSError):
            return SourceUnavailable(f"could not read the changes of slot {self._slot!r}: {error}")
        return error

    def _receive(self) -> None:
        """Receive and report until the session is closed. Raises what ends it."""
        pgconn = self._connection.pgconn
        stream = LogicalStream(pgconn)
        has_waited = True
        reported_at, arrived_at = 0.0, time.monotonic()
        while not self._is_closing:
            now = time.monotonic()
            if self._is_report_due or now - reported_at >= self._report_s:
                self._send_report(reply_requested=True)
                reported_at = now
            is_unsent = pgconn.flush() == 1
            with self._changed:
                is_full = self._is_full()
            if not is_full:
                arrived = stream.read(has_waited)
                if arrived.items:
                    arrived_at = now
                    with self._changed:
                        self._items += arrived.items
                        self._held_bytes += arrived.size + _ITEM_BYTES * len(arrived.items)
                        self._changed.notify_all()
                if arrived.is_over:
                    wait_blocking(end_copy(pgconn), pgconn, _END_TIMEOUT_S)
                    raise SourceUnavailable("the server has shut down")
                if arrived.broken is not None:
                    raise arrived.broken
                if now - arrived_at > _SILENCE_S:
                    raise SourceUnavailable(f"no data from the server for {_SILENCE_S:.0f} s")
                if arrived.reply_requested:
                    self._is_report_due = True
                    continue
                # Waiting lets go of the interpreter, which is expensive while another thread decodes.
                has_waited = arrived.is_drained and not arrived.items
                if not has_waited:
                    continue
            else:
                arrived_at, has_waited = now, True
            self._wait(is_full=is_full, is_unsent=is_unsent, timeout_s=reported_at + self._report_s - now)

    def _send_report(self, *, reply_requested: bool) -> None:
        self._is_report_due = False
        lsn = self._confirmed_lsn
        report = build_status_update(lsn, lsn, lsn, time.time_ns() // 1000, reply_requested)
        self._connection.pgconn.put_copy_data(report)

    def _wait(self, *, is_full: bool, is_unsent: bool, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self._wake_receiver, select.POLLIN)
        poll.register(self._beside, select.POLLRDHUP)
        wanted = (0 if is_full else select.POLLIN) | (select.POLLOUT if is_unsent else 0)
        if wanted:
            poll.register(self._connection.pgconn.socket, wanted)
        ready = dict(poll.poll(max(0.0, timeout_s) * 1000))
        if self._beside in ready:
            raise SourceUnavailable("the server closed the other connection: it may be shutting down")
        with contextlib.suppress(BlockingIOError):
            self._wake_receiver.recv(4096)

    def _end(self) -> None:
        """Report once more, and end the stream in time, so that the slot is free and has moved when this returns.

        If that does not succeed the server notices the end of the connection, and the next session reports.
        """
        self._send_report(reply_requested=False)
        with contextlib.suppress(TimeoutError, psycopg.Error, WalproxyError):
            wait_blocking(end_logical(self._connection.pgconn), self._connection.pgconn, _END_TIMEOUT_S)


def psycopg_error(refusal: ServerRefused) -> psycopg.Error:
    """Return psycopg's exception for an error of a replication command."""
    try:
        return psycopg.errors.lookup(refusal.sqlstate or "")(refusal.message)
    except KeyError:
        return psycopg.OperationalError(refusal.message)


def _report_interval(connection: Connection) -> float:
    """Return how often to report, in seconds: the server ends a session that does not for wal_sender_timeout."""
    query = "SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'"
    timeout_ms = int(one_value(connection, query, doing="read wal_sender_timeout"))
    return min(_REPORT_S, timeout_ms / 3000) if timeout_ms else _REPORT_S
