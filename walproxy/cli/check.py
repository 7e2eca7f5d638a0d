"""`walproxy check`: the state of a proxy as monitoring plugins report it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from safekeeper.base import settings
from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from walproxy.cli.check_config import CHECK, CheckConfig
from walproxy.cli.configuration import open_cluster_file
from walproxy.cli.proxy_pages import proxy_pages, url_option
from walproxy.proxy.config import ENVIRONMENT_PREFIX
from walproxy.proxy.health_check import CheckLevel, CheckResult, Threshold, Thresholds, judge
from walproxy.proxy.status_client import NoAnswer, fetch_status


@click.command()
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, in one line.")
@settings.click_options(CheckConfig, ENVIRONMENT_PREFIX)
def check(url: str | None, config: Path | None, as_json: bool, **command_line: Any) -> NoReturn:
    """Report the proxy's state as a monitoring plugin does: one line with figures, and an exit code.

    Exit codes: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. They differ from those of the other commands: wrong usage is 3,
    a proxy that does not reply is 2.

    \b
    Examples:
      walproxy check
      walproxy check --url http://10.0.0.9:7667 -c missing_critical=2
      walproxy check -c wait_warning=5 -c wait_critical=30 -c lag_critical=1GiB
      walproxy check --json | jq -r .level
    """
    verdict = _ask(url, config, command_line)
    click.echo(json.dumps(verdict.content()) if as_json else one_line(verdict.line()))
    raise SystemExit(verdict.level.value)


def _thresholds(command_line: Mapping[str, Any], config: Path | None) -> Thresholds:
    file = open_cluster_file(config)
    found = file.values(CHECK) if file is not None else {}
    limits = settings.load(
        CheckConfig, ENVIRONMENT_PREFIX, command_line=command_line, environment=os.environ, file=found
    )
    return Thresholds(
        wait_s=Threshold(limits.wait_warning, limits.wait_critical),
        missing=Threshold(limits.missing_warning, limits.missing_critical),
        lag_bytes=Threshold(limits.lag_warning, limits.lag_critical),
        archive_lag_bytes=Threshold(limits.archive_lag_warning, limits.archive_lag_critical),
    )


def _ask(url: str | None, config: Path | None, command_line: Mapping[str, Any]) -> CheckResult:
    """Return the verdict on the proxy, or UNKNOWN with the reason."""
    try:
        thresholds = _thresholds(command_line, config)
        return judge(proxy_pages(url, config).fetch(fetch_status), thresholds)
    except NoAnswer as error:
        return CheckResult(str(error), [(CheckLevel.CRITICAL, "")])
    except WalproxyError as error:
        return CheckResult(str(error), [(CheckLevel.UNKNOWN, "")])
