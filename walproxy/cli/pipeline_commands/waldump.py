"""`walproxy pipeline waldump`: records of the log as text, as JSON, or summed up."""

from typing import Any

import click

from safekeeper.base import logs
from safekeeper.base.lsn import format_lsn
from walproxy.cli.configuration import PIPELINE
from walproxy.cli.parameters import LSN, Parameter
from walproxy.cli.pipeline_commands.keys import KeyedCommand, archive_options, keys_options
from walproxy.pipeline.pages.relation import FORKS


def _relation(value: str) -> tuple[int, int, int]:
    words = value.split("/")
    if len(words) != 3 or not all(word.isascii() and word.isdecimal() for word in words):
        raise ValueError("write tablespace/database/file by their numbers, for example 1663/5/16384")
    tablespace, database, file = map(int, words)
    return tablespace, database, file


class _Waldump(KeyedCommand):
    """Takes the value of --stats only where it is attached, as pg_waldump does: the next word may be the path."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, ["--stats=rmgr" if word in ("-z", "--stats") else word for word in args])


@click.command(cls=_Waldump, role=PIPELINE)
@click.argument("path")
@click.option("-s", "--start", type=LSN, help="Begin here; by default where the WAL begins.")
@click.option("-e", "--end", type=LSN, help="End here; by default where the WAL ends.")
@click.option("-t", "--timeline", type=click.IntRange(1), metavar="TLI", help="Follow this one, not the newest.")
@click.option(
    "-r", "--rmgr", multiple=True, metavar="NAME", help="Only of this resource manager; repeatable; `list` lists them."
)
@click.option("-x", "--xid", type=click.IntRange(0, 2**32 - 1), metavar="XID", help="Only of this transaction.")
@click.option("-R", "--relation", type=Parameter("T/D/R", _relation), help="Only those that change this relation.")
@click.option(
    "-B", "--block", type=click.IntRange(0, 2**32 - 2), metavar="N", help="Only those that change this block."
)
@click.option("-F", "--fork", type=click.Choice(FORKS), help="Only those that change this fork.")
@click.option("-w", "--fullpage", is_flag=True, help="Only those with a full-page image.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Maximum number of records.")
@click.option(
    "-z",
    "--stats",
    type=click.Choice(["rmgr", "record"]),
    metavar="[=record]",
    help="Counts and sizes instead, by resource manager or, with --stats=record, by operation.",
)
@click.option("-f", "--follow", is_flag=True, help="At the end, wait for more WAL.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line for each record.")
@click.option("--allow-gaps", is_flag=True, help="Skip WAL that is missing.")
@archive_options
@keys_options
def waldump(path: str, **options: Any) -> None:
    """Show records of the WAL, as pg_waldump does, from an archive, from safekeepers, or from a folder of segments.

    PATH is a URL of s3://, gs:// or az://, a folder, a segment in one, or safekeeper://HOST:PORT,HOST:PORT. The archive
    may be one of WAL-G, pgBackRest or Barman. All conditions must hold.

    \b
    Examples:
      walproxy pipeline waldump s3://bucket/main --start 5/40000000 --limit 100
      walproxy pipeline waldump /mnt/archive --relation 1663/5/16384 --block 7
      walproxy pipeline waldump safekeeper://sk1:5462,sk2:5462 --follow --rmgr Transaction
      walproxy pipeline waldump /var/lib/postgresql/17/main/pg_wal --stats=record
      walproxy pipeline waldump /var/lib/pgbackrest/archive/main --rmgr Transaction
    """
    from walproxy.cli.pipeline_work.waldump import Wanted, print_records, rmgr_names

    wanted = Wanted(**options)
    if "list" in wanted.rmgr:
        click.echo("\n".join(rmgr_names()))
        return
    if wanted.block is not None and wanted.relation is None:
        raise click.UsageError("--block requires --relation")
    if wanted.follow and wanted.stats:
        raise click.UsageError("--follow and --stats cannot be combined")
    if wanted.start is not None and wanted.end is not None and wanted.start >= wanted.end:
        start, end = format_lsn(wanted.start), format_lsn(wanted.end)
        raise click.UsageError(f"the range from --start {start} to --end {end} is empty")
    logs.configure(lambda: "walproxy pipeline waldump", "warning")
    print_records(path, wanted)
