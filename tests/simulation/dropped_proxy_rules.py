"""Rules of the proxy's shell, each left out: for bugs.py, in runs with real proxies."""

from collections.abc import Callable
from typing import Any

from safekeeper.base.lsn import Lsn
from safekeeper.net.safekeeper_connection import SafekeeperConnection
from walproxy.postgres.replication_protocol import TimelineEnd
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proposer.actions import Action, StartReplication, StopReplication
from walproxy.proxy.primary_feed import PrimaryFeed
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.safekeeper_link import SafekeeperLink

_connect = PrimaryFeed._connect
_copy = PrimaryFeed._copy
_report = PrimaryFeed.report
_execute_rare = Proxy._execute_rare
_wal_received = Proxy.wal_received
_send_status = ReplicationConnection.send_status


def report_what_is_received(proxy: Proxy, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
    """Report WAL to PostgreSQL as soon as it is in the window."""
    _wal_received(proxy, begin_lsn, chunks)
    if proxy.status.flush_lsn:
        end_lsn = proxy.window.end_lsn
        proxy.feed.report(end_lsn, end_lsn, end_lsn)


def report_positions_only(feed: PrimaryFeed, *positions: Lsn, **options: bool) -> None:
    """Keep the last positions where the proposer knows none."""
    if any(positions):
        _report(feed, *positions, **options)


async def connect_with_positions(feed: PrimaryFeed) -> None:
    """Report the positions of the last connection on the next one, before its WAL is verified."""
    positions = feed._positions
    await _connect(feed)
    if not any(feed._positions):
        feed._positions = positions


def close_with_what_is_received(feed: PrimaryFeed) -> None:
    """Report what was received when the proxy stops."""
    connection = feed._connection
    if feed.streams and connection is not None and any(feed._positions):
        feed._positions = (connection.received_lsn,) * 3
    feed._send_status()
    feed._close()


def keep_the_older_status(connection: ReplicationConnection, *positions: Lsn, reply_requested: bool = False) -> None:
    """Let the status update that waits for the socket win over the next one."""
    waiting = connection._waiting_status
    _send_status(connection, *positions, reply_requested=reply_requested)
    if waiting is not None:
        connection._waiting_status = waiting


async def copy_with_streams_between(
    feed: PrimaryFeed, connection: ReplicationConnection, begin_lsn: Lsn, tli: int, request: StartReplication
) -> TimelineEnd:
    """Count two COPYs of one request, and what is between them, as one."""
    end = await _copy(feed, connection, begin_lsn, tli, request)
    feed.streams = tli != request.tli
    return end


def give_up_and_read_on(connection: SafekeeperConnection, reason: str) -> None:
    """Close a connection, and handle what was received on it."""
    if not connection._given_up:
        connection._given_up = True
        connection.reason = reason
        if connection.is_open:
            connection.is_open = False
            connection._lost()


def lose_silently(link: SafekeeperLink) -> None:
    """Handle the end of a connection without a word to the owner."""
    link._connection = None


def stream_on(proxy: Proxy, action: Action) -> None:
    """Let the COPY go on that is to be closed."""
    if not isinstance(action, StopReplication):
        _execute_rare(proxy, action)


def start_without_emptying(proxy: Proxy, action: Action) -> None:
    """Keep the checksums of an earlier stream."""
    digest = proxy._digest
    _execute_rare(proxy, action)
    if isinstance(action, StartReplication) and digest is not None:
        proxy._digest = digest


def trim_what_is_sent(proxy: Proxy) -> None:
    """Drop all WAL of which each member was sent something."""
    if proxy.window.evict(proxy.window.end_lsn, proxy.window.end_lsn):
        proxy.proposer.wal_evicted(proxy.window.begin_lsn)
    if proxy.feed.is_paused and not proxy._stopping:
        proxy.feed.resume()


def trim_without_a_word(proxy: Proxy) -> None:
    """Do not tell the proposer what the window no longer contains."""
    wal_evicted: Callable[[Lsn], Any] = proxy.proposer.wal_evicted
    proxy.proposer.wal_evicted = lambda begin_lsn: None  # type: ignore[method-assign]
    try:
        _trim_window(proxy)
    finally:
        proxy.proposer.wal_evicted = wal_evicted  # type: ignore[method-assign]


_trim_window = Proxy._trim_window


def stay_paused(proxy: Proxy) -> None:
    """Read no more of the primary once the window was full."""
    is_paused = proxy.feed.is_paused
    _trim_window(proxy)
    if is_paused:
        proxy.feed.pause()


def take_what_is_refused(feed: PrimaryFeed, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
    """Hand on what follows the bytes that have refused a primary."""
    start = feed._start
    assert start is not None
    if begin_lsn < start.begin_lsn:
        begin_lsn, chunks = feed._take_checked(begin_lsn, chunks, start.begin_lsn)
    if feed._link_check is not None:
        begin_lsn, chunks = feed._take_unlinked(feed._link_check, start.begin_lsn, chunks)
    if chunks:
        feed._owner.wal_received(begin_lsn, chunks)


def drop_no_requests(feed: PrimaryFeed) -> None:
    """Serve what was requested of an earlier connection."""
