"""What clients and settings of a site can do to a cluster, brought about by sessions of a superuser and HTTP clients.

Each is in effect from its creation until `end`. A server that ends meanwhile ends the sessions with it; `end` then only
removes what would outlive the server.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final, Protocol

import psycopg
from psycopg import sql

from walproxy.lab.testing import hostile_http

NO_CONNECTIONS: Final = "no connections"
LOGINS_BLOCKED: Final = "logins blocked"
SETTINGS_CHANGED: Final = "settings changed"
GATE_REMOVED: Final = "gate removed"
REPLAY_PAUSED: Final = "replay paused"
HOSTILE_HTTP: Final = "hostile HTTP"
HINDRANCES: Final = (NO_CONNECTIONS, LOGINS_BLOCKED, SETTINGS_CHANGED, GATE_REMOVED, REPLAY_PAUSED, HOSTILE_HTTP)

# Above what max_connections of a cluster for tests is.
_SESSIONS_MAX = 1000
_CONNECT_S = 10
_HOSTILE_KINDS = ("pipelined", "streams", "headers", "half-open")
_HOSTILE_CONNECTIONS = 20
# They end by themselves if this process dies.
_HOSTILE_S = 120
# A server that was stopped in the meantime has this long to accept connections again.
UNDONE_WITHIN_S: Final = 60.0
_POLL_S = 0.2
# Short limits that a site may set for all its sessions. Those that a server's version lacks are left out.
_LIMITS: Final = {
    "idle_session_timeout": "1s",
    "lock_timeout": "100ms",
    "statement_timeout": "2s",
    "transaction_timeout": "2s",
}


class Hindrance(Protocol):
    """Something that is in effect until its `end`."""

    def end(self, within_s: float = UNDONE_WITHIN_S) -> None:
        """Undo it; return when it is undone.

        Args:
            within_s: for how long a server may refuse connections.

        Raises:
            psycopg.Error: the server does not reply.
        """


class UsedUpConnections:
    """Holds all connections that a server accepts, the reserved ones too."""

    def __init__(self, conninfo: str) -> None:
        self._sessions: list[psycopg.Connection] = []
        # A refusal ends it, for want of connections or because the server ends.
        with contextlib.suppress(psycopg.Error):
            while len(self._sessions) < _SESSIONS_MAX:
                self._sessions.append(_connect(conninfo))

    def end(self, within_s: float = UNDONE_WITHIN_S) -> None:
        for session in self._sessions:
            session.close()


class BlockedLogins:
    """Holds a lock without which no session can begin."""

    def __init__(self, conninfo: str) -> None:
        self._session = _connect(conninfo)
        self._session.autocommit = False
        self._session.execute("LOCK TABLE pg_catalog.pg_authid IN ACCESS EXCLUSIVE MODE")

    def end(self, within_s: float = UNDONE_WITHIN_S) -> None:
        self._session.close()


class ChangedSettings:
    """Sets parameters for all sessions, by ALTER SYSTEM and a reload."""

    def __init__(self, conninfo: str, settings: Mapping[str, str]) -> None:
        self._conninfo = conninfo
        with _connect(conninfo) as session:
            rows = session.execute("SELECT name FROM pg_catalog.pg_settings WHERE name = ANY(%s)", [list(settings)])
            self._names = [str(name) for (name,) in rows]
            for name in self._names:
                statement = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), settings[name])
                session.execute(statement)
            session.execute("SELECT pg_catalog.pg_reload_conf()")

    def end(self, within_s: float = UNDONE_WITHIN_S) -> None:
        with _reconnect(self._conninfo, within_s) as session:
            for name in self._names:
                session.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
            session.execute("SELECT pg_catalog.pg_reload_conf()")


class PausedReplay:
    """Pauses the replay of a standby.

    Its session stays open: replay may have paused while it held the lock of blocked logins, and no other could begin.
    """

    def __init__(self, conninfo: str) -> None:
        self._session = _connect(conninfo)
        self._session.execute("SELECT pg_catalog.pg_wal_replay_pause()")

    def end(self, within_s: float = UNDONE_WITHIN_S) -> None:
        # A standby that was restarted has lost the session, and the pause with it.
        with self._session, contextlib.suppress(psycopg.OperationalError):
            self._session.execute("SELECT pg_catalog.pg_wal_replay_resume()")


class HostileHttp:
    """Clients of an HTTP listener of this machine, of several kinds, in processes of their own."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, hostile_http.__file__]
        self._clients = [
            subprocess.Popen(
                [*command, kind, str(_HOSTILE_CONNECTIONS), str(_HOSTILE_S), f"127.0.0.1:{port}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            for kind in _HOSTILE_KINDS
        ]

    def end(self, within_s: float = UNDONE_WITHIN_S) -> None:
        for client in self._clients:
            client.kill()
            client.wait()


def hinder(kind: str, conninfo: str) -> Hindrance:
    """Bring about one of the kinds above at a server.

    Raises:
        psycopg.Error: the server does not accept it.
    """
    if kind == NO_CONNECTIONS:
        return UsedUpConnections(conninfo)
    if kind == LOGINS_BLOCKED:
        return BlockedLogins(conninfo)
    if kind == SETTINGS_CHANGED:
        return ChangedSettings(conninfo, _LIMITS)
    if kind == GATE_REMOVED:
        return ChangedSettings(conninfo, {"synchronous_standby_names": ""})
    assert kind == REPLAY_PAUSED, kind
    return PausedReplay(conninfo)


def _connect(conninfo: str) -> psycopg.Connection:
    return psycopg.connect(conninfo, autocommit=True, connect_timeout=_CONNECT_S)


def _reconnect(conninfo: str, within_s: float) -> psycopg.Connection:
    """Return a session of a server that may still be starting, or that blocks logins for a moment."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return _connect(conninfo)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
