"""Rules of the proxy's shell, each left out: for planted.py, in runs with real proxies."""

from collections.abc import Callable
from typing import Any

from safekeeper.base.lsn import Lsn
from safekeeper.net.safekeeper_connection import SafekeeperConnection
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proposer.actions import Action, StopReplication
from walproxy.proxy.primary_feed import PrimaryFeed
from walproxy.proxy.proxy import Proxy

_report = PrimaryFeed.report
_execute_rare = Proxy._execute_rare
_trim_window = Proxy._trim_window
_wal_received = Proxy.wal_received
_send_status = ReplicationConnection.send_status


def report_what_is_received(proxy: Proxy, begin_lsn: Lsn, chunks: list[memoryview]) -> None:
    """Report WAL to PostgreSQL as soon as it is in the window."""
    _wal_received(proxy, begin_lsn, chunks)
    if proxy.status.flush_lsn:
        end_lsn = proxy.window.end_lsn
        proxy.feed.report(end_lsn, end_lsn, end_lsn)


def report_positions_only(feed: PrimaryFeed, *positions: Lsn, **options: bool) -> None:
    """Keep the last positions where the proposer has none."""
    if any(positions):
        _report(feed, *positions, **options)


def close_with_what_is_received(feed: PrimaryFeed) -> None:
    """Report what was received when the proxy stops."""
    connection = feed._connection
    if connection is not None and connection.copy is not None and any(connection.positions):
        connection.positions = (connection.receiver.received_lsn,) * 3
    feed._send_status()
    feed._close()


def keep_the_older_status(connection: ReplicationConnection, *positions: Lsn, reply_requested: bool = False) -> None:
    """Let the status update that waits for the socket win over the next one."""
    waiting = connection._waiting_status
    _send_status(connection, *positions, reply_requested=reply_requested)
    if waiting is not None:
        connection._waiting_status = waiting


def give_up_and_read_on(connection: SafekeeperConnection, reason: str) -> None:
    """Close a connection, and handle what was received on it."""
    if not connection._given_up:
        connection._given_up = True
        connection.reason = reason
        if connection.is_open:
            connection.is_open = False
            connection._lost()


def stream_on(proxy: Proxy, action: Action) -> None:
    """Let the COPY go on that is to be closed."""
    if not isinstance(action, StopReplication):
        _execute_rare(proxy, action)


def trim_what_is_sent(proxy: Proxy) -> None:
    """Drop all WAL of which each member was sent something."""
    if proxy.window.evict(proxy.window.end_lsn, proxy.window.end_lsn):
        proxy.proposer.wal_evicted(proxy.window.begin_lsn)
    if proxy.feed.is_paused and not proxy._execution.is_draining:
        proxy.feed.resume()


def trim_silently(proxy: Proxy) -> None:
    """Do not report to the proposer what the window no longer contains."""
    wal_evicted: Callable[[Lsn], Any] = proxy.proposer.wal_evicted
    proxy.proposer.wal_evicted = lambda begin_lsn: None  # type: ignore[method-assign]
    try:
        _trim_window(proxy)
    finally:
        proxy.proposer.wal_evicted = wal_evicted  # type: ignore[method-assign]


def stay_paused(proxy: Proxy) -> None:
    """Read no more of the primary once the window was full."""
    is_paused = proxy.feed.is_paused
    _trim_window(proxy)
    if is_paused:
        proxy.feed.pause()
