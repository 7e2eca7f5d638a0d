"""The old primary of a switchover is brought to rest over SQL: its sessions are ended, and new ones are read-only.

That is no fence: a session may set itself to read-write, and a superuser's may remain. The seal is the fence; this only
lets clients give up the old server, and its WAL come to an end.

The setting is removed from postgresql.auto.conf as soon as it is in force, without another reload. So it lasts until
the next reload or start of the server, also if the command dies.
"""

import time
from collections.abc import Callable

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn
from walproxy.failover.server import Server, plain
from walproxy.postgres.bounded_sql import BoundedConnection, quoted
from walproxy.postgres.problems import PrimaryProblem, ServerProblem

SETTING = "default_transaction_read_only"
_POLL_S = 0.05
_TIMEOUT_S = 10.0
_RIGHTS = "; see walproxy switchover --help for the rights that the role needs, or stop the server with --stop-command"
_MAY_REST = """
SELECT pg_has_role('pg_read_all_stats', 'USAGE') AND pg_has_role('pg_signal_backend', 'USAGE')
  AND has_function_privilege('pg_reload_conf()', 'EXECUTE')
"""
# Those that are read-only may reconnect all the time. A role that is not a superuser must not end a superuser's
# session; its commits wait, as all do after the seal.
_END_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND backend_start <= %s::timestamptz
  AND ((SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
    OR usesysid NOT IN (SELECT oid FROM pg_roles WHERE rolsuper))
"""


class NothingChanged(WalproxyError):
    """The server is as it was. One line says why."""


def bring_to_rest(old: Server) -> Lsn:
    """Make new sessions read-only, and end the present ones; return the end of the WAL.

    Raises:
        NothingChanged: the role has too few rights, or the server does not reply.
        WalproxyError: the server does not do it in time, or is lost.
    """
    doing = f"bring {old.name} to rest"
    is_changed = False
    try:
        with old.connection(3 * _TIMEOUT_S) as connection:
            if connection.value(_MAY_REST, doing) != "t":
                raise NothingChanged(f"cannot {doing}: the role may not end sessions or reload settings{_RIGHTS}")
            connection.rows(f"ALTER SYSTEM SET {SETTING} = on", doing)
            is_changed = True
            connection.rows("SELECT pg_reload_conf()", doing)
            # Only sessions that began after the reload have the new default, and only a new one shows it.
            _until(lambda: _in_new_session(old) == "on", f"{old.name} has not reloaded its settings: see its log")
            since = connection.value("SELECT clock_timestamp()", doing)
            connection.rows(f"ALTER SYSTEM RESET {SETTING}", doing)
            _end_sessions(connection, since or "", old.name)
    except (PrimaryProblem, ServerProblem) as error:
        kind = WalproxyError if is_changed else NothingChanged
        raise kind(f"{plain(error)}{'' if is_changed else _RIGHTS}") from None
    look = old.look()
    if look.in_recovery is not False:
        raise WalproxyError(f"{old.name} is lost: {look.problem or 'it is a standby now'}")
    return look.written_lsn


def let_go_on(old: Server) -> None:
    """Let new sessions write again.

    Raises:
        WalproxyError: the server does not reply.
    """
    doing = f"let {old.name} take writes again"
    try:
        with old.connection(_TIMEOUT_S) as connection:
            connection.rows(f"ALTER SYSTEM RESET {SETTING}", doing)
            connection.rows("SELECT pg_reload_conf()", doing)
    except (PrimaryProblem, ServerProblem) as error:
        raise WalproxyError(plain(error)) from None


def _end_sessions(connection: BoundedConnection, since: str, name: str) -> None:
    sql = _END_SESSIONS % quoted(since)
    _until(lambda: connection.value(sql, f"end the sessions of {name}") == "0", f"sessions of {name} have not ended")


def _in_new_session(old: Server) -> str | None:
    with old.connection(_TIMEOUT_S) as connection:
        return connection.value(f"SHOW {SETTING}", "read a setting")


def _until(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise WalproxyError(f"{problem} (within {_TIMEOUT_S:g} s)")
        time.sleep(_POLL_S)
