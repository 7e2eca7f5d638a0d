"""`walproxy failover`: make a standby the primary after the loss of the old one, or cancel that."""

import asyncio
import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table

from safekeeper.base import settings
from safekeeper.base.lsn import format_lsn
from walproxy.cli.failover_progress import FailoverProgress
from walproxy.failover.candidates import NoCandidate, choose, missing_bytes, obstacle
from walproxy.failover.config import FailoverConfig
from walproxy.failover.failover import Failover, Report, Survey
from walproxy.postgres.hosts import primary_hosts
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.proxy.credentials import read_peer_credentials
from walproxy.proxy.status_table import format_bytes

_Result = TypeVar("_Result")
EXIT_INTERRUPTED = 130
INTERRUPTED = "interrupted: repeat the command to go on, or run walproxy failover --cancel if no standby was promoted"


@click.command()
@click.option("--to", "wanted", default="", metavar="HOST", help="The standby to promote; else the most advanced one.")
@click.option("--old-is-dead", is_flag=True, help="Seal the old primary off although it, or its proxy, replies.")
@click.option("--dry-run", is_flag=True, help="Show what would be done and lost; change nothing.")
@click.option("--cancel", is_flag=True, help="Let the old primary in again, if no standby was promoted yet.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings.click_options(FailoverConfig, ENVIRONMENT_PREFIX)
def failover(
    config: Path | None,
    wanted: str,
    old_is_dead: bool,
    dry_run: bool,
    cancel: bool,
    as_json: bool,
    **command_line: Any,
) -> None:
    """Promote a standby after the loss of the primary, without the loss of an acknowledged commit.

    Seals the timeline of the old primary on the safekeepers: from then on nothing that it writes is acknowledged, even
    if it comes back. Then waits until a standby has all that may have been acknowledged, promotes it, and waits until
    a walproxy run serves it. Every step can be interrupted: repeat the command, and it goes on where it was.

    --primary names all servers, as for walproxy run. The role must be allowed to execute pg_promote.

    \b
    Examples:
      walproxy failover --dry-run --primary 'host=pg1,pg2,pg3 user=walproxy' \\
          --safekeepers 1=sk1:5454,2=sk2:5454,3=sk3:5454
      walproxy failover --to pg2
      walproxy failover --cancel
    """
    if cancel and (wanted or old_is_dead or dry_run):
        raise click.UsageError("--cancel cannot be combined with other options")
    loaded = load(config, command_line)
    hosts = primary_hosts(loaded.primary, "the servers'")
    progress = FailoverProgress()
    run = Failover(loaded.safekeepers, hosts, read_peer_credentials(loaded), progress)
    if dry_run:
        _print_survey(asyncio.run(run.survey()), wanted, as_json)
    elif cancel:
        survey = asyncio.run(run.cancel())
        click.echo(f"timeline {survey.log.log_tli} is not sealed now: start the old primary and walproxy run")
    else:
        print_report(with_progress(progress, run.run(wanted, old_is_dead=old_is_dead)), as_json)


def load(config: Path | None, command_line: dict[str, Any]) -> FailoverConfig:
    """Return the settings; the file may be that of walproxy run."""
    return settings.load(
        FailoverConfig,
        ENVIRONMENT_PREFIX,
        command_line=command_line,
        environment=os.environ,
        file=config,
        file_of=ProxyConfig,
    )


def with_progress(progress: FailoverProgress, run: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of a failover; an interruption ends the process with what to do next."""
    try:
        with progress:
            return asyncio.run(run)
    except KeyboardInterrupt:
        click.echo(INTERRUPTED, err=True)
        raise SystemExit(EXIT_INTERRUPTED) from None


def print_report(report: Report, as_json: bool) -> None:
    """Print the end of a failover."""
    if as_json:
        click.echo(
            json.dumps(
                {
                    "primary": report.primary,
                    "old_tli": report.old_tli,
                    "tli": report.tli,
                    "fork_lsn": format_lsn(report.fork_lsn),
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
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report.seconds.items())
    click.echo(
        f"{report.primary} is the primary on timeline {report.tli} in term {report.term} (was {report.old_tli} in "
        f"{report.term_before}): commits go on; {parts}"
    )
    click.echo(
        f"what the old primary has above {format_lsn(report.fork_lsn)} reached no quorum: walproxy discarded --pgdata "
        f"DIR --from {format_lsn(report.fork_lsn)} lists it; then make it a standby with pg_rewind"
    )


def _print_survey(survey: Survey, wanted: str, as_json: bool) -> None:
    log, end = survey.log, survey.estimated_end()
    living = survey.living_primary
    promoted = survey.promoted if survey.promoted != living else None
    best, problem = None, ""
    try:
        best = promoted or choose([look for look in survey.looks if look != living], end, wanted)
    except NoCandidate as error:
        problem = str(error)
    if as_json:
        servers = [
            {
                "name": look.name,
                "in_recovery": look.in_recovery,
                "tli": look.tli,
                "reached_lsn": format_lsn(look.written_lsn or look.reached_lsn),
                "obstacle": "" if look == living else obstacle(look, end),
                "missing_bytes": missing_bytes(look, end) if look.in_recovery else None,
            }
            for look in survey.looks
        ]
        click.echo(
            json.dumps(
                {
                    "tli": log.log_tli,
                    "term": log.last_term,
                    "flush_lsn": format_lsn(log.flush_lsn),
                    "floor": log.floor,
                    "replying": survey.replying[0],
                    "members": survey.replying[1],
                    "living_primary": living.name if living is not None else None,
                    "would_promote": best.name if best is not None else None,
                    "problem": problem,
                    "servers": servers,
                }
            )
        )
        return
    sealed = f", sealed up to timeline {log.floor}" if log.floor >= log.log_tli else ""
    click.echo(
        f"the log: timeline {log.log_tli} up to {format_lsn(log.flush_lsn)}, term {log.last_term}{sealed}; "
        f"{survey.replying[0]} of {survey.replying[1]} members reply"
    )
    _print_servers(survey)
    if living is not None:
        click.echo(f"{living.name} is the primary and replies: walproxy switchover moves it")
    if best is None:
        click.echo(problem)
        return
    if promoted is not None:
        click.echo(f"{best.name} was promoted to timeline {best.tli} by an earlier run: walproxy failover goes on")
        return
    lacks = missing_bytes(best, end)
    first = f"it receives {format_bytes(lacks)} first, and " if lacks else ""
    click.echo(
        f"walproxy failover would promote {best.name} to timeline {end.promoted_tli}: {first}no acknowledged commit is "
        "lost; it takes about 2 s from then on"
    )


def _print_servers(survey: Survey) -> None:
    end, living = survey.estimated_end(), survey.living_primary
    console = Console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for name in ("server", "state", "timeline", "has WAL up to", "lacks"):
        table.add_column(name)
    for look in survey.looks:
        if look.in_recovery is None:
            table.add_row(look.name, look.problem, "", "", "")
            continue
        state = "standby" if look.in_recovery else "primary"
        reason = "" if look == living else obstacle(look, end)
        lacks = format_bytes(missing_bytes(look, end)) if look.in_recovery else ""
        reached = format_lsn(look.written_lsn or look.reached_lsn)
        table.add_row(look.name, f"{state}; {reason}" if reason else state, str(look.tli), reached, lacks)
    console.print(table)
