"""`walproxy pipeline cdc status --to DIR|URL`: the tables that `apply` keeps there."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime

import click

from safekeeper.base.errors import WalproxyError
from walproxy.pipeline.cdc.apply.status_files import read_status
from walproxy.pipeline.lake.location import LakeLocation


def show_tables(location: str, lake_options: Mapping[str, str]) -> None:
    """Print what the job of a location has reported of its tables.

    Raises:
        WalproxyError: there is no report, or a table is quarantined.
    """
    status = read_status(LakeLocation.parse(location, lake_options))
    age_s = max(time.time() - status.time, 0)
    click.echo(f"tables: followed up to {status.position}, reported {age_s:.0f} s ago")
    quarantined = 0
    for name, table in status.tables.items():
        if table.state == "quarantined":
            quarantined += 1
            since = datetime.fromtimestamp(table.since or 0, UTC)
            click.echo(f"{name}: quarantined since {since:%Y-%m-%d %H:%M:%S} UTC: {table.reason}")
        elif table.state == "copying":
            click.echo(f"{name}: being copied, {table.ranges_done} of {table.ranges} ranges")
        else:
            click.echo(f"{name}: following, at {table.position}")
    if quarantined:
        raise WalproxyError(f"{quarantined} of {len(status.tables)} tables are quarantined: see above")
