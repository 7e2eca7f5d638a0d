"""`walproxy pipeline apply`: tables that follow the tables of a database."""

import logging
import signal
import threading
from datetime import timedelta
from types import FrameType

import click

from safekeeper import logs
from safekeeper.errors import ConfigurationError
from walproxy.cli.parameters import DURATION, SIZE
from walproxy.pipeline.cdc.apply.following import FORMATS, FollowingFormat
from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
from walproxy.pipeline.cdc.publication import parse_table
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.tables.table_folder import local_folder


@click.command()
@click.option(
    "--primary", envvar="WALPROXY_PRIMARY", required=True, metavar="CONNINFO", help="The primary, and its database."
)
@click.option("--slot", required=True, metavar="NAME", help="The logical slot, for this job alone.")
@click.option("--publication", "publications", required=True, multiple=True, metavar="NAME", help="Can be repeated.")
@click.option("--to", "folder", required=True, metavar="FOLDER", help="Where the tables are.")
@click.option(
    "--format",
    "table_format",
    type=click.Choice(FORMATS),
    default="delta",
    show_default=True,
    help="What new tables are.",
)
@click.option(
    "--table", "tables", multiple=True, metavar="SCHEMA.NAME", help="Follow this one; can be repeated. All without it."
)
@click.option(
    "--text-column",
    "as_text",
    multiple=True,
    metavar="SCHEMA.TABLE.COLUMN",
    help="Keep this column as PostgreSQL prints it; can be repeated.",
)
@click.option("--once", is_flag=True, help="End when everything that is on the quorum now is in the tables.")
@click.option("--interval", type=DURATION, default="5s", show_default=True, help="Look for changes so often.")
@click.option(
    "--status", metavar="SOURCE", help="Who knows what is on a quorum: walproxy's URL, standby:NAME, or none."
)
@click.option("--max-bytes", type=SIZE, default="256MB", show_default=True, help="WAL that one step reads.")
@click.option("--memory", type=SIZE, default="128MB", show_default=True, help="Changes that are held at once.")
@click.option("--keep", type=DURATION, default="1d", show_default=True, help="How long old states can be read.")
@click.option("--copy-again", multiple=True, metavar="SCHEMA.NAME", help="Copy this table again; can be repeated.")
@click.option("--start-over", is_flag=True, help="Copy all tables again, with a new slot if it is gone.")
def apply(
    primary: str,
    slot: str,
    publications: tuple[str, ...],
    folder: str,
    table_format: FollowingFormat,
    tables: tuple[str, ...],
    as_text: tuple[str, ...],
    once: bool,
    interval: float,
    status: str | None,
    max_bytes: int,
    memory: int,
    keep: float,
    copy_again: tuple[str, ...],
    start_over: bool,
) -> None:
    """Keep tables as the tables of a database are.

    The first time the tables are copied; then every change is merged into them, exactly once, and only when it is on
    the quorum. Each table of the source becomes one here, called SCHEMA.NAME. Stop the job at any time, with kill -9
    too, and start it again. Publication and slot: `walproxy pipeline cdc create`; a slot that is missing is made.

    \b
    Examples:
      walproxy pipeline apply --primary "host=db1 dbname=shop" --slot lake --publication lake --to /lake/shop
      walproxy pipeline apply ... --to /lake/shop --format iceberg --once
    """
    logs.configure(lambda: "walproxy pipeline apply", "warning")
    logging.getLogger("walproxy").setLevel(logging.INFO)
    for name in as_text:
        if name.count(".") < 2:
            raise ConfigurationError(f"--text-column: {name!r} is no column: write schema.table.column")
    SafeLsn(status)
    options = ApplyOptions(
        primary,
        slot,
        publications,
        local_folder(folder),
        table_format,
        frozenset(parse_table(table) for table in tables),
        frozenset(as_text),
        frozenset(parse_table(table) for table in copy_again),
        start_over,
        status,
        interval,
        max_bytes,
        memory,
        timedelta(seconds=keep),
    )
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # A second Ctrl-C does not wait for the step.
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    run_apply(options, once=once, stop=stop)
