"""`walproxy switchover`: move the primary to a standby while everything works (step 13).

The old primary is brought to rest first, by a command that stops it, or over SQL: new sessions are read-only by default
and all sessions are ended. Neither is a fence; the seal is. What it wrote before is drained: the standby has it before
the timeline is sealed, so the time without commits is that of the seal and of the promotion.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.failover import rest
from walproxy.failover.attempt import FailoverFailed, StepDisplay
from walproxy.failover.candidates import LAG_BYTES_MAX, HostLook, choose, resolve
from walproxy.failover.failover import Failover, FailoverReport
from walproxy.failover.server import Server
from walproxy.failover.survey import FailoverRefused, Survey
from walproxy.postgres.hosts import PrimaryHost

_POLL_S = 0.05
_STOP_TIMEOUT_S = 120.0
_DRAIN_TIMEOUT_S = 30.0
_OUTPUT_MAX = 300


@dataclass(frozen=True)
class Move:
    """Move the primary: bring the old one to rest, then promote the standby."""

    old: HostLook
    chosen: HostLook


def plan_switchover(survey: Survey, wanted: str) -> Move | None:
    """Return what is to be done; None for what `Failover.run` does alone: nothing, or the rest of an earlier run. Pure.

    Raises:
        FailoverRefused: there is no primary that replies and is served, or the standby is far behind.
        NoCandidate: `wanted` cannot be promoted.
    """
    name = resolve([look.name for look in survey.looks], wanted)
    old = survey.serving
    if survey.is_sealed or (old is not None and old.name == name):
        return None
    if old is None:
        raise FailoverRefused("the primary of the log does not reply: use walproxy failover")
    if not survey.is_led:
        raise FailoverRefused(
            f"no walproxy run serves {old.name}, so its commits wait: start one, or give {old.name} up with walproxy "
            "failover --old-is-dead"
        )
    chosen = choose([look for look in survey.looks if look != old], survey.estimated_end(), name)
    lag_bytes = old.written_lsn - chosen.reached_lsn
    if lag_bytes > LAG_BYTES_MAX:
        raise FailoverRefused(
            f"{name} lacks {lag_bytes} bytes that {old.name} has, and commits would wait for it: repeat the command "
            "when it has caught up"
        )
    return Move(old, chosen)


async def switch_over(
    failover: Failover, hosts: Sequence[PrimaryHost], wanted: str, show: StepDisplay, *, stop_command: str = ""
) -> FailoverReport:
    """Move the primary to the standby `wanted`, HOST or HOST:PORT, or finish that.

    Args:
        stop_command: stops the old primary cleanly (fast mode), run by the shell; "" brings it to rest over SQL.

    Raises:
        FailoverRefused, NoCandidate: nothing was changed.
        WalproxyError: a step failed. Before the seal an old primary that was not stopped is writable again.
    """
    plan = plan_switchover(await failover.survey(), wanted)
    if plan is None:
        return await failover.run(wanted)
    servers = {host.name: Server(host) for host in hosts}
    old, chosen = servers[plan.old.name], servers[plan.chosen.name]
    began_at = time.monotonic()
    if stop_command:
        await _stop(old, stop_command, show)
        try:
            report = await failover.run(chosen.name, old_is_dead=True)
        except WalproxyError as error:
            if failover.is_sealed:
                raise
            raise FailoverFailed(f"{error}; {old.name} is stopped: start it again, or use walproxy failover") from None
    else:
        async with _at_rest(old, failover, show) as written_lsn:
            show.step(f"waiting until {chosen.name} has everything that {old.name} has written")
            await _drained(chosen, written_lsn, show)
            report = await failover.run(chosen.name, old_is_dead=True)
    report.seconds["all"] = round(time.monotonic() - began_at, 3)
    return report


async def _stop(old: Server, command: str, show: StepDisplay) -> None:
    show.step(f"stopping {old.name}")
    await run_command(command)
    look = await asyncio.to_thread(old.look)
    if look.in_recovery is not None:
        raise WalproxyError(f"{command!r} has succeeded, and {old.name} still replies: nothing else was changed")


async def run_command(
    command: str, timeout_s: float = _STOP_TIMEOUT_S, *, name: str = "", environment: Mapping[str, str] | None = None
) -> None:
    """Run a command by the shell; end it with everything that it has started if it takes too long, or at Ctrl-C.

    One that runs as another user by then, by sudo, may not be ended by this one: it goes on.

    Args:
        name: for messages; "" for the command itself.
        environment: variables beside those of this process.

    Raises:
        WalproxyError: it failed, or did not end in time.
    """
    name = name or repr(command)
    starting = asyncio.create_task(
        asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    )
    goes_on = False
    try:
        try:
            async with asyncio.timeout(timeout_s):
                process = await asyncio.shield(starting)
                output, _ = await process.communicate()
        finally:
            process = await starting
            if process.returncode is None:
                goes_on = not _is_killed(process.pid)
                if not goes_on:
                    await process.wait()
    except TimeoutError:
        still = f", and runs still: it may not be killed, process {process.pid}" if goes_on else ""
        raise WalproxyError(f"{name} has not ended within {timeout_s:g} s{still}") from None
    if process.returncode != 0:
        text = " ".join(output.decode(errors="replace").split())[-_OUTPUT_MAX:] or "no output"
        raise WalproxyError(f"{name} failed with exit code {process.returncode}: {text}")


def _is_killed(group: int) -> bool:
    """End the processes of a group; return whether that was permitted."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


@contextlib.asynccontextmanager
async def _at_rest(old: Server, failover: Failover, show: StepDisplay) -> AsyncIterator[Lsn]:
    """Bring the old primary to rest, and yield the end of its WAL; let it go on if the block fails before the seal."""
    show.step(f"ending all sessions of {old.name}; new ones are read-only")
    resting = asyncio.create_task(asyncio.to_thread(rest.bring_to_rest, old))
    try:
        yield await asyncio.shield(resting)
    except rest.NothingChanged:
        raise
    except BaseException:
        await asyncio.wait([resting])  # A thread goes on also if this command is interrupted.
        if not failover.is_sealed:
            try:
                await asyncio.to_thread(rest.let_go_on, old)
                show.step(f"{old.name} takes writes again")
            except WalproxyError as error:
                show.step(f"on {old.name}, run ALTER SYSTEM RESET {rest.SETTING}, and SELECT pg_reload_conf(): {error}")
        raise


async def _drained(chosen: Server, written_lsn: Lsn, show: StepDisplay) -> None:
    """Wait until the standby has what the old primary had written when it was at rest."""
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    while (look := await asyncio.to_thread(chosen.look)).reached_lsn < written_lsn:
        if time.monotonic() > deadline:
            problem = look.problem or f"it has {format_lsn(look.reached_lsn)}"
            raise WalproxyError(
                f"{chosen.name} has not received {format_lsn(written_lsn)} within {_DRAIN_TIMEOUT_S:g} s: {problem}"
            )
        show.waiting(f"{chosen.name} receives WAL", written_lsn - look.reached_lsn)
        await asyncio.sleep(_POLL_S)
