"""`walproxy check`: the state of a proxy as monitoring plugins report it."""

import json
from pathlib import Path
from typing import NoReturn

import click

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from walproxy.cli.parameters import DURATION, SIZE
from walproxy.cli.proxy_pages import proxy_options, proxy_pages
from walproxy.proxy.health_check import CheckLevel, CheckResult, Threshold, Thresholds, judge
from walproxy.proxy.status_client import NoAnswer, fetch_status


@click.command()
@proxy_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, in one line.")
@click.option(
    "--wait-warning",
    type=DURATION,
    default="0s",
    show_default=True,
    help="WARNING if commits have waited for this time.",
)
@click.option("--wait-critical", type=DURATION, default="10s", show_default=True, help="CRITICAL for the same.")
@click.option(
    "--missing-warning",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="COUNT",
    help="WARNING if this number of members do not stream.",
)
@click.option(
    "--missing-critical", type=click.IntRange(1), metavar="COUNT", help="CRITICAL for the same.  [default: never]"
)
@click.option(
    "--lag-warning",
    type=SIZE,
    default="64MiB",
    show_default=True,
    help="WARNING if a streaming safekeeper lacks this amount of WAL.",
)
@click.option("--lag-critical", type=SIZE, help="CRITICAL for the same.  [default: never]")
@click.option(
    "--archive-lag-warning",
    type=SIZE,
    default="1GiB",
    show_default=True,
    help="WARNING if this amount of committed WAL is not archived.",
)
@click.option("--archive-lag-critical", type=SIZE, help="CRITICAL for the same.  [default: never]")
def check(
    url: str | None,
    config: Path | None,
    as_json: bool,
    wait_warning: float,
    wait_critical: float,
    missing_warning: int,
    missing_critical: int | None,
    lag_warning: int,
    lag_critical: int | None,
    archive_lag_warning: int,
    archive_lag_critical: int | None,
) -> NoReturn:
    """Report the proxy's state as a monitoring plugin does: one line with figures, and an exit code.

    Exit codes: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. They differ from those of the other commands: wrong usage is 3,
    a proxy that does not reply is 2.

    \b
    Examples:
      walproxy check
      walproxy check --url http://10.0.0.9:7667 --missing-critical 2
      walproxy check --wait-warning 5s --wait-critical 30s --lag-critical 1GiB
      walproxy check --json | jq -r .level
    """
    thresholds = Thresholds(
        wait_s=Threshold(wait_warning, wait_critical),
        missing=Threshold(missing_warning, missing_critical),
        lag_bytes=Threshold(lag_warning, lag_critical),
        archive_lag_bytes=Threshold(archive_lag_warning, archive_lag_critical),
    )
    verdict = _ask(url, config, thresholds)
    click.echo(json.dumps(verdict.content()) if as_json else one_line(verdict.line()))
    raise SystemExit(verdict.level.value)


def _ask(url: str | None, config: Path | None, thresholds: Thresholds) -> CheckResult:
    """Return the verdict on the proxy, or UNKNOWN with the reason."""
    try:
        return judge(proxy_pages(url, config).fetch(fetch_status), thresholds)
    except NoAnswer as error:
        return CheckResult(str(error), [(CheckLevel.CRITICAL, "")])
    except WalproxyError as error:
        return CheckResult(str(error), [(CheckLevel.UNKNOWN, "")])
