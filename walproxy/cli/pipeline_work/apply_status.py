"""`walproxy pipeline cdc status --to FOLDER`: the tables that `apply` keeps there."""

import time
from datetime import UTC, datetime

import click

from safekeeper.base.errors import WalproxyError
from walproxy.pipeline.cdc.apply.status_files import read_status
from walproxy.pipeline.tables.table_folder import local_folder


def show_tables(folder: str) -> None:
    """Print what the job of a folder has reported of its tables.

    Raises:
        WalproxyError: there is no report, or a table is quarantined.
    """
    status = read_status(local_folder(folder))
    age_s = max(time.time() - status.time, 0)
    click.echo(f"tables: followed up to {status.position}, reported {age_s:.0f} s ago")
    quarantined = 0
    for name, table in status.tables.items():
        if table.state == "quarantined":
            quarantined += 1
            since = datetime.fromtimestamp(table.since or 0, UTC)
            click.echo(f"{name}: quarantined since {since:%Y-%m-%d %H:%M:%S} UTC: {table.reason}")
        else:
            click.echo(f"{name}: following, at {table.position}")
    if quarantined:
        raise WalproxyError(f"{quarantined} of {len(status.tables)} tables are quarantined: see above")
