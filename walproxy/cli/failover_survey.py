"""What `walproxy failover --dry-run` prints."""

import json
from typing import Final

import click

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import format_lsn
from walproxy.failover.candidates import HostLook, missing_bytes, number_for, obstacle
from walproxy.failover.survey import Finished, Plan, Promote, Survey, next_step
from walproxy.proxy.status_table import format_bytes
from walproxy.terminal import FittedTable, TableColumn, output_console

_SERVERS: Final = (
    TableColumn("server"),
    TableColumn("is"),
    TableColumn("timeline", leaves=1),
    TableColumn("has WAL up to", leaves=2),
    TableColumn("lacks", is_right=True),
)


def print_survey(survey: Survey, wanted: str, old_is_dead: bool, as_json: bool) -> None:
    """Print the state of the safekeepers and the servers, and what a failover would do."""
    plan: Plan | None = None
    problem = ""
    try:
        plan = next_step(survey, wanted, old_is_dead=old_is_dead)
    except WalproxyError as error:
        problem = str(error)
    if as_json:
        click.echo(json.dumps(_as_json(survey, plan, problem)))
        return
    log = survey.log
    sealed = f", sealed up to timeline {log.floor}" if survey.is_sealed else ""
    led = "a walproxy run leads" if survey.is_led else "no walproxy run leads"
    click.echo(
        f"the log: timeline {log.log_tli} up to {format_lsn(log.flush_lsn)}, term {log.last_term}{sealed}; "
        f"{survey.replying} of {survey.members} members reply; {led}"
    )
    if survey.problems:
        click.echo(survey.problems)
    _print_servers(survey)
    click.echo(problem or _described(survey, plan))
    if problem and survey.serving is not None and not old_is_dead:
        click.echo(f"if it died now: {_if_it_died(survey, wanted)}")
    if not survey.has_quorum:
        click.echo("no quorum of the members replies: nothing can be sealed before more of them are started")


def _described(survey: Survey, plan: Plan | None) -> str:
    if isinstance(plan, Finished):
        return f"nothing is to be done: {plan.primary.name} is the primary on timeline {plan.primary.tli}"
    if isinstance(plan, Promote):
        return _promotion(survey, plan.best)
    assert plan is not None  # else there is a problem
    return (
        f"{plan.promoted.name} was promoted to timeline {plan.promoted.tli} already: walproxy failover waits "
        "until a walproxy run takes it over"
    )


def _if_it_died(survey: Survey, wanted: str) -> str:
    """Return what a failover would do, or why it could not."""
    try:
        return _described(survey, next_step(survey, wanted, old_is_dead=True))
    except WalproxyError as error:
        return str(error)


def _promotion(survey: Survey, best: HostLook) -> str:
    end = survey.estimated_end()
    lacks, replays = missing_bytes(best, end), max(0, best.reached_lsn - best.replayed_lsn)
    idle = "" if best.receives else " (it is connected to no server that sends WAL)"
    first = [
        f"has received {format_bytes(lacks)}{idle}" if lacks else "",
        f"has replayed {format_bytes(lacks + replays)}" if lacks + replays else "",
    ]
    before = f", when it {' and '.join(filter(None, first))}" if any(first) else ""
    return (
        f"walproxy failover would seal timeline {survey.log.log_tli} and promote {best.name} to timeline "
        f"{number_for(best, end)}{before}\n"
        "no acknowledged commit is lost; what the old primary has above the end of the log is discarded\n"
        "the seal, the promotion and the start of the log on it take about a second together; a walproxy run whose "
        f"--primary names {best.name} has to be running"
    )


def _as_json(survey: Survey, plan: Plan | None, problem: str) -> dict[str, object]:
    log, end, serving = survey.log, survey.estimated_end(), survey.serving
    promoted = plan.promoted.name if plan is not None and not isinstance(plan, Finished | Promote) else None
    return {
        "tli": log.log_tli,
        "term": log.last_term,
        "flush_lsn": format_lsn(log.flush_lsn),
        "floor": log.floor,
        "given": log.given,
        "members": survey.members,
        "replying": survey.replying,
        "has_quorum": survey.has_quorum,
        "is_led": survey.is_led,
        "primary": serving.name if serving is not None else None,
        "would_promote": plan.best.name if isinstance(plan, Promote) else None,
        "promoted": promoted,
        "problem": problem or None,
        "servers": [
            {
                "name": look.name,
                "in_recovery": look.in_recovery,
                "tli": look.tli or None,
                "reached_lsn": format_lsn(look.written_lsn or look.reached_lsn),
                "missing_bytes": missing_bytes(look, end) if look.in_recovery else None,
                "obstacle": (obstacle(look, end) if look != serving else "") or None,
            }
            for look in survey.looks
        ],
    }


def _print_servers(survey: Survey) -> None:
    end, serving = survey.estimated_end(), survey.serving
    table = FittedTable(_SERVERS)
    for look in survey.looks:
        if look.in_recovery is None:
            table.add_row(look.name, "unreachable", "-", "-", "-")
            continue
        lacks = format_bytes(missing_bytes(look, end)) if look.in_recovery else "-"
        reached = format_lsn(look.written_lsn or look.reached_lsn)
        table.add_row(look.name, "standby" if look.in_recovery else "primary", str(look.tli), reached, lacks)
    output_console().print(table)
    for look in survey.looks:
        reason = "" if look == serving else obstacle(look, end)
        if reason:
            click.echo(f"{look.name} {'does not reply: ' if look.in_recovery is None else ''}{reason}")
