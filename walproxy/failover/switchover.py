"""`walproxy switchover`: move the primary to a standby while everything works (step 13).

The old primary is brought to rest first, by a command that stops it, or over SQL: new sessions are read-only by default
and all sessions are ended. Neither is a fence; the seal is. What it wrote before is drained: the standby has it before
the timeline is sealed, so the time without commits is that of the seal and of the promotion.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager

from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import format_lsn
from walproxy.failover.candidates import HostLook, choose, is_named
from walproxy.failover.failover import Failover, FailoverRefused, Report, Show
from walproxy.failover.server import APPLICATION_NAME, Server
from walproxy.postgres.bounded_sql import BoundedConnection, bounded_connection, quoted
from walproxy.postgres.hosts import PrimaryHost
from walproxy.postgres.problems import PrimaryProblem, ServerProblem

_POLL_S = 0.05
_STOP_TIMEOUT_S = 120.0
_DRAIN_TIMEOUT_S = 30.0
_SQL_TIMEOUT_S = 10.0
# A standby that is further behind would prolong the time without commits.
_LAG_BYTES_MAX = 64 << 20


async def switch_over(
    failover: Failover, hosts: Sequence[PrimaryHost], wanted: str, show: Show, *, stop_command: str = ""
) -> Report:
    """Move the primary to the standby `wanted`.

    Args:
        stop_command: stops the old primary cleanly (fast mode), run by the shell; "" brings it to rest over SQL.

    Raises:
        FailoverRefused: there is no primary that replies, the standby is far behind or cannot be promoted.
        WalproxyError: a step failed. Before the seal the old primary is writable again; the message says so.
    """
    survey = await failover.survey()
    old = survey.living_primary
    if old is None:
        raise FailoverRefused("the primary of the log does not reply: use walproxy failover")
    if is_named(old, wanted):
        raise FailoverRefused(f"{old.name} is the primary already (timeline {old.tli})")
    chosen = choose([look for look in survey.looks if look is not old], survey.estimated_end(), wanted)
    lag_bytes = old.written_lsn - chosen.reached_lsn
    if lag_bytes > _LAG_BYTES_MAX:
        raise FailoverRefused(
            f"{chosen.name} is {lag_bytes} bytes behind {old.name}, and commits would wait for it: try again when it "
            "has caught up"
        )
    servers = {host.name: Server(host) for host in hosts}
    primary = next(host for host in hosts if host.name == old.name)
    began_at = time.monotonic()
    async with _at_rest(primary, stop_command, show):
        show.step(f"waiting until {chosen.name} has everything that {old.name} has written")
        await _drained(servers[old.name], servers[chosen.name], old)
    report = await failover.run(wanted, old_is_dead=True)
    report.seconds["all"] = round(time.monotonic() - began_at, 3)
    if not stop_command:
        await asyncio.to_thread(_forget_read_only, primary, show)
    return report


@contextlib.asynccontextmanager
async def _at_rest(primary: PrimaryHost, stop_command: str, show: Show) -> AsyncIterator[None]:
    """Bring the old primary to rest; let it go on if the block fails."""
    if stop_command:
        show.step(f"stopping {primary.name}")
        await _run(stop_command)
        yield
        return
    show.step(f"ending all sessions of {primary.name}; new ones are read-only")
    await asyncio.to_thread(_set_read_only, primary, True)
    try:
        yield
    except BaseException:
        await asyncio.to_thread(_set_read_only, primary, False)
        show.step(f"{primary.name} takes writes again")
        raise


async def _run(command: str) -> None:
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise WalproxyError(f"{command!r} has not ended within {_STOP_TIMEOUT_S:g} s") from None
    if process.returncode != 0:
        lines = output.decode(errors="replace").strip().splitlines() or ["no output"]
        raise WalproxyError(f"{command!r} failed with exit code {process.returncode}: {lines[-1]}")


async def _drained(old: Server, chosen: Server, seen: HostLook) -> None:
    """Wait until the standby has what the old primary has written."""
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    while True:
        now, standby = await asyncio.gather(asyncio.to_thread(old.look), asyncio.to_thread(chosen.look))
        if now.in_recovery is False:
            seen = now
        if standby.reached_lsn >= seen.written_lsn > 0:
            return
        if time.monotonic() > deadline:
            problem = standby.problem or f"it has {format_lsn(standby.reached_lsn)}"
            raise WalproxyError(
                f"{standby.name} has not received {format_lsn(seen.written_lsn)} within {_DRAIN_TIMEOUT_S:g} s: "
                f"{problem}"
            )
        await asyncio.sleep(_POLL_S)


def _set_read_only(primary: PrimaryHost, value: bool) -> None:
    """Make new sessions read-only and end the present ones, or undo that."""
    with _connection(primary) as connection:
        doing = f"make {primary.name} {'read-only' if value else 'writable'}"
        change = "SET default_transaction_read_only = on" if value else "RESET default_transaction_read_only"
        connection.rows(f"ALTER SYSTEM {change}", doing)
        connection.rows("SELECT pg_reload_conf()", doing)
        if not value:
            return
        # Only sessions that began after the reload have the new default, and only the settings of a new one show it.
        deadline = time.monotonic() + _SQL_TIMEOUT_S
        while not _new_sessions_are_read_only(primary):
            if time.monotonic() > deadline:
                raise WalproxyError(f"{primary.name} has not reloaded its configuration: see its log")
            time.sleep(_POLL_S)
        sql = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            f"AND NOT starts_with(application_name, {quoted('walproxy')})"
        )
        while connection.value(sql, doing) != "0":
            if time.monotonic() > deadline:
                raise WalproxyError(f"sessions of {primary.name} have not ended within {_SQL_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)


def _forget_read_only(primary: PrimaryHost, show: Show) -> None:
    """Let the old primary be writable after its next start; until then its sessions stay read-only."""
    try:
        with _connection(primary) as connection:
            connection.rows("ALTER SYSTEM RESET default_transaction_read_only", "undo a setting")
    except (PrimaryProblem, ServerProblem) as error:
        show.step(f"on {primary.name}, run ALTER SYSTEM RESET default_transaction_read_only: {error}")


def _new_sessions_are_read_only(primary: PrimaryHost) -> bool:
    with _connection(primary) as connection:
        return connection.value("SHOW default_transaction_read_only", "read a setting") == "on"


def _connection(primary: PrimaryHost) -> AbstractContextManager[BoundedConnection]:
    return bounded_connection(
        make_conninfo(primary.conninfo, target_session_attrs="any"),
        whose=primary.name,
        timeout_s=_SQL_TIMEOUT_S,
        application_name=APPLICATION_NAME,
    )
