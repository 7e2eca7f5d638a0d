"""`walproxy failover`: make a standby the primary after the loss of the old one, or cancel that."""

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from safekeeper.base.lsn import format_lsn
from walproxy.cli.configuration import load_connection, server_options
from walproxy.cli.failover_progress import FailoverProgress
from walproxy.cli.failover_survey import print_survey
from walproxy.cli.orders import cancel_agents, carry_out, failover_order, timeout_option, yes_option
from walproxy.failover.failover import Failover, FailoverReport
from walproxy.postgres.hosts import primary_hosts
from walproxy.proxy.config import ConnectionConfig, MembersConfig
from walproxy.proxy.credentials import read_peer_credentials

_Result = TypeVar("_Result")


@click.command()
@click.option(
    "--to", "wanted", default="", metavar="NAME", help="The agent or host to promote; by default the most advanced one."
)
@click.option("--old-is-dead", is_flag=True, help="Seal the old primary off although it, or its proxy, replies.")
@click.option("--dry-run", is_flag=True, help="Show what would be done and lost; change nothing.")
@click.option("--cancel", is_flag=True, help="Let the old primary in again, if no standby was promoted yet.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@yes_option
@timeout_option
@server_options
def failover(
    config: Path | None,
    wanted: str,
    old_is_dead: bool,
    dry_run: bool,
    cancel: bool,
    yes: bool,
    timeout_s: float,
    as_json: bool,
    **command_line: str | None,
) -> None:
    """Promote a standby after the loss of the primary, without the loss of an acknowledged commit.

    Where agents report (walproxy agent), they are given the order, and the command waits for its end. They fail over by
    themselves after dead_after, unless they are paused; while an agent leads, use walproxy switchover. Without agents,
    and with --dry-run, --cancel or --old-is-dead, the command acts by itself:

    Seals the timeline of the old primary on the safekeepers: from then on nothing that it writes is acknowledged, even
    if it comes back. Then waits until a standby has all that may have been acknowledged, promotes it, and waits until
    a walproxy run serves it. Every step can be interrupted: repeat the command, and it goes on where it was.

    --primary names all servers, as for walproxy run. Unless the role is a superuser, it needs these rights:

    \b
      GRANT EXECUTE ON FUNCTION pg_promote TO walproxy;
      GRANT pg_monitor, pg_write_server_files TO walproxy;
      GRANT EXECUTE ON FUNCTION pg_read_binary_file(text, bigint, bigint, boolean) TO walproxy;

    \b
    Examples:
      walproxy failover --dry-run --primary 'host=pg1,pg2,pg3 user=walproxy'
      walproxy failover --to pg2
      walproxy failover --cancel
    """
    if cancel and (wanted or old_is_dead or dry_run):
        raise click.UsageError("--cancel cannot be combined with --to, --old-is-dead or --dry-run")
    acts_itself = cancel or dry_run or old_is_dead
    if not acts_itself and carry_out(
        failover_order(wanted), load_connection(MembersConfig, command_line, config), yes, timeout_s, as_json
    ):
        return
    connection = load_connection(ConnectionConfig, command_line, config)
    hosts = primary_hosts(connection.primary, "the servers'")
    progress = FailoverProgress()

    def make() -> Failover:
        return Failover(connection.safekeepers, hosts, read_peer_credentials(connection), progress)

    if dry_run:
        print_survey(run_to_end(progress, make, Failover.survey), wanted, old_is_dead, as_json)
    elif cancel:
        cancel_agents(connection)
        tli, was_sealed = run_to_end(progress, make, Failover.cancel)
        if as_json:
            click.echo(json.dumps({"tli": tli, "was_sealed": was_sealed}))
        elif was_sealed:
            click.echo(f"timeline {tli} is not sealed any longer: start the old primary and walproxy run")
        else:
            click.echo(f"timeline {tli} of the log is not sealed: nothing is to be cancelled")
    else:
        report = run_to_end(progress, make, lambda run: run.run(wanted, old_is_dead=old_is_dead))
        print_report(report, as_json)


class _Stopped(Exception):
    """A signal has ended the command.

    Attributes:
        number: of the signal.
        remedy: what to do, one line.
    """

    def __init__(self, number: int, remedy: str) -> None:
        super().__init__(number)
        self.number = number
        self.remedy = remedy


def run_to_end(
    progress: FailoverProgress, make: Callable[[], Failover], do: Callable[[Failover], Coroutine[Any, Any, _Result]]
) -> _Result:
    """Return the result of a failover. SIGINT, SIGTERM and SIGHUP end it with one line, what to do next."""
    # The problems of connections are shown as what the failover waits for.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        with progress:
            return asyncio.run(_until_stopped(make, do))
    except _Stopped as stopped:
        click.echo(f"walproxy: interrupted: {stopped.remedy}", err=True)
        raise SystemExit(128 + stopped.number) from None


async def _until_stopped(
    make: Callable[[], Failover], do: Callable[[Failover], Coroutine[Any, Any, _Result]]
) -> _Result:
    received: list[int] = []
    task = asyncio.current_task()
    assert task is not None  # A coroutine of asyncio.run.

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    run = make()
    try:
        return await do(run)
    except asyncio.CancelledError:
        raise _Stopped(received[0], run.remedy()) from None
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await run.close()


def print_report(report: FailoverReport, as_json: bool) -> None:
    """Print the end of a failover."""
    if as_json:
        click.echo(
            json.dumps(
                {
                    "primary": report.primary,
                    "old_tli": report.old_tli,
                    "tli": report.tli,
                    "fork_lsn": format_lsn(report.fork_lsn) if report.fork_lsn else None,
                    "term_before": report.term_before,
                    "term": report.term,
                    "seconds": report.seconds,
                }
            )
        )
        return
    if report.old_tli == report.tli:
        click.echo(f"nothing is to be done: {report.primary} is the primary on timeline {report.tli}")
        return
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report.seconds.items() if name != "all")
    click.echo(
        f"{report.primary} is the primary on timeline {report.tli} in term {report.term} (was {report.old_tli} in "
        f"{report.term_before}), and commits go on, after {report.seconds['all']:.2f} s: {parts}"
    )
    if report.fork_lsn:
        fork = format_lsn(report.fork_lsn)
        click.echo(
            f"what the old primary has above {fork} was never acknowledged: walproxy discarded --pgdata DIR --from "
            f"{fork} lists it. If it has more, make it a standby with pg_rewind; else it can follow as it is"
        )
