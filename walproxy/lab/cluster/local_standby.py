"""A standby of a local PostgreSQL: copied with pg_basebackup, fed by the server that a connection string names.

A standby takes over its primary's configuration, synchronous_standby_names included: while it is a standby that means
nothing, and from its promotion on its commits wait for the same receivers as its primary's did.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import psycopg

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.postgres.local_server import LocalPostgres

_POLL_S = 0.02


def make_standby(
    primary: LocalPostgres,
    to: Path,
    name: str,
    *,
    feed: str | None = None,
    slot: str | None = None,
    settings: Mapping[str, str] | None = None,
    port: int = 0,
) -> LocalPostgres:
    """Copy the running `primary`; return its standby, not started yet.

    Args:
        primary: what is copied; its WAL need not come from there.
        to: the standby's data folder.
        name: what it calls itself: its application_name where it streams from, and its cluster_name.
        feed: where it streams from, as a connection string of one host or several; from the primary by default.
        slot: a physical slot there, if any.
        settings: added to the primary's.
        port: 0 takes a free one.
    """
    own = {
        "cluster_name": name,
        "hot_standby": "on",
        # With the default of 5 s it would wait before it tries the next host when the first one has gone.
        "wal_retrieve_retry_interval": "200ms",
        "primary_slot_name": slot or "",
        **(settings or {}),
    }
    conninfo = psycopg.conninfo.make_conninfo(feed or primary.conninfo(), application_name=name)
    return primary.base_backup(to, primary_conninfo=conninfo, settings=own, port=port)


def received_lsn(standby: LocalPostgres) -> Lsn:
    """Return the end of the WAL that a standby has received and flushed, 0 if none."""
    return _lsn(standby, "pg_last_wal_receive_lsn()")


def replay_lsn(standby: LocalPostgres) -> Lsn:
    """Return how far a standby has replayed, 0 if nothing."""
    return _lsn(standby, "pg_last_wal_replay_lsn()")


def current_lsn(primary: LocalPostgres) -> Lsn:
    """Return the end of the WAL that a primary has flushed."""
    return _lsn(primary, "pg_current_wal_flush_lsn()")


def wait_until_replayed(standby: LocalPostgres, end_lsn: Lsn, timeout_s: float = 60.0) -> float:
    """Wait until a standby has replayed the WAL below `end_lsn`; return how many seconds that took.

    Raises:
        WalproxyError: it has not within `timeout_s`.
    """
    began_at = time.monotonic()
    while (replayed_lsn := replay_lsn(standby)) < end_lsn:
        if time.monotonic() - began_at > timeout_s:
            raise WalproxyError(
                f"the standby {standby.data_directory} has replayed up to {format_lsn(replayed_lsn)} after "
                f"{timeout_s:g} s, not to {format_lsn(end_lsn)}; its log ends with: {standby.log_tail(5)}"
            )
        time.sleep(_POLL_S)
    return time.monotonic() - began_at


def _lsn(server: LocalPostgres, expression: str) -> Lsn:
    [(text,)] = server.execute(f"SELECT {expression}::text")
    return parse_lsn(text) if text is not None else 0
