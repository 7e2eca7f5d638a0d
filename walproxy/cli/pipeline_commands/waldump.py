"""`walproxy pipeline waldump`: records of the log as text, as JSON, or summed up."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from safekeeper import logs
from safekeeper.errors import ConfigurationError
from safekeeper.lsn import (
    LSN_MAX,
    Lsn,
    format_lsn,
    parse_segment_name,
)
from walproxy.cli.parameters import KEY_VALUES, LSN, Parameter
from walproxy.pipeline.input.wal_input import open_input
from walproxy.pipeline.jobs.waldump import Done, Scan, format_as_json
from walproxy.pipeline.jobs.waldump_selection import (
    FORKS,
    Relation,
    Selection,
    Stats,
    rmgr_names,
    rmid_of,
    stats_table,
)
from walproxy.pipeline.jobs.waldump_text import format_records
from walproxy.recovery.sources import SourceCorrupt

_Result = TypeVar("_Result")


def _relation(value: str) -> Relation:
    words = value.split("/")
    if len(words) != 3 or not all(word.isascii() and word.isdecimal() for word in words):
        raise ValueError("write tablespace/database/file by their numbers, for example 1663/5/16384")
    return Relation(*map(int, words))


class _Waldump(click.Command):
    """Takes the value of --stats only where it is attached, as pg_waldump does: the next word may be the path."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, ["--stats=rmgr" if word in ("-z", "--stats") else word for word in args])


@click.command(cls=_Waldump)
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
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="No more than that many.")
@click.option(
    "-z",
    "--stats",
    type=click.Choice(["rmgr", "record"]),
    metavar="[=record]",
    help="Counts and sizes instead, by resource manager or, with --stats=record, by operation.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for more at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line for each record.")
@click.option("--allow-gaps", is_flag=True, help="Pass over WAL that is missing.")
@click.option(
    "--archive-options",
    default="",
    type=KEY_VALUES,
    help="Settings of the archive's store, as obstore calls them, e.g. endpoint and region.",
)
def waldump(
    path: str,
    start: Lsn | None,
    end: Lsn | None,
    timeline: int | None,
    rmgr: tuple[str, ...],
    xid: int | None,
    relation: Relation | None,
    block: int | None,
    fork: str | None,
    fullpage: bool,
    limit: int | None,
    stats: str | None,
    follow: bool,
    as_json: bool,
    allow_gaps: bool,
    archive_options: Mapping[str, str],
) -> None:
    """Show records of the WAL, as pg_waldump does, from an archive, from safekeepers, or from a folder of segments.

    PATH is s3://, gs:// or az:// and what follows, a folder, a segment in one, or safekeeper://HOST:PORT,HOST:PORT. All
    conditions must hold.

    \b
    Examples:
      walproxy pipeline waldump s3://bucket/main --start 5/40000000 --limit 100
      walproxy pipeline waldump /mnt/archive --relation 1663/5/16384 --block 7
      walproxy pipeline waldump safekeeper://sk1:5462,sk2:5462 --follow --rmgr Transaction
      walproxy pipeline waldump /var/lib/postgresql/17/main/pg_wal --stats=record
    """
    if "list" in rmgr:
        click.echo("\n".join(rmgr_names()))
        return
    if block is not None and relation is None:
        raise click.UsageError("--block needs --relation")
    if follow and stats:
        raise click.UsageError("--follow and --stats exclude each other")
    if start is not None and end is not None and start >= end:
        raise click.UsageError(f"nothing lies between --start {format_lsn(start)} and --end {format_lsn(end)}")
    logs.configure(lambda: "walproxy pipeline waldump", "warning")
    end_must_be_there = end is not None
    if Path(path).is_file():
        path, timeline, start, end = _segment(Path(path), timeline, start, end)
    selection = Selection(
        begin_lsn=start or 0,
        end_lsn=LSN_MAX if end is None else end,
        rmids=frozenset(map(rmid_of, rmgr)) if rmgr else None,
        xid=xid,
        relation=relation,
        fork=FORKS.index(fork) if fork is not None else None,
        block=block,
        full_page=fullpage,
    )
    wal = open_input(path, archive_options)
    scan = Scan(
        wal,
        selection,
        tli=timeline,
        limit=limit,
        allow_gaps=allow_gaps,
        follow=follow,
        end_must_be_there=end_must_be_there,
    )
    if stats:
        _print_stats(scan, by_operation=stats == "record", as_json=as_json)
        return
    for done in _with_progress(scan, scan.run(format_as_json if as_json else format_records), sys.stdout.isatty()):
        sys.stdout.buffer.write(done.result)
        sys.stdout.buffer.flush()


def _segment(
    path: Path, timeline: int | None, start: Lsn | None, end: Lsn | None
) -> tuple[str, int | None, Lsn | None, Lsn | None]:
    """Return the folder of a segment and what there is to read, if that is not said otherwise."""
    segment_size = open_input(str(path.parent)).origin().segment_size
    named = parse_segment_name(path.name, segment_size)
    if named is None:
        raise ConfigurationError(f"{path} is no segment of WAL: name one, or the folder that it lies in")
    tli, begin_lsn = named
    return str(path.parent), timeline or tli, start or begin_lsn, end or begin_lsn + segment_size


def _print_stats(scan: Scan, by_operation: bool, as_json: bool) -> None:
    stats = Stats()
    begin_lsn = end_lsn = 0
    damage = None
    try:
        for done in _with_progress(scan, scan.run(_summed_up), False):
            begin_lsn = begin_lsn or done.first_lsn
            end_lsn = done.last_end_lsn or end_lsn
            stats.merge(done.result)
        end_lsn = end_lsn or begin_lsn
    except SourceCorrupt as error:
        damage = error  # The sums of what lies before it are shown first.
    if as_json:
        rows = stats.by_operation() if by_operation else stats.by_rmgr()
        content = {
            "begin_lsn": format_lsn(begin_lsn),
            "end_lsn": format_lsn(end_lsn),
            "rows": [row._asdict() for row in rows],
            "total": stats.total()._asdict(),
        }
        click.echo(msgspec.json.encode(content).decode())
    else:
        click.echo(f"WAL statistics between {format_lsn(begin_lsn)} and {format_lsn(end_lsn)}:")
        click.echo(stats_table(stats, by_operation), nl=False)
    if damage is not None:
        raise damage


def _summed_up(decoded: Any, selected: Any) -> Stats:
    stats = Stats()
    stats.add(decoded, selected)
    return stats


def _with_progress(scan: Scan, results: Iterable[Done[_Result]], is_seen: bool) -> Iterable[Done[_Result]]:
    """Pass results on; how far the scan is stands on stderr, if that is a terminal and the result is not seen there."""
    console = Console(stderr=True)
    columns = (TextColumn("reading WAL"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=is_seen or not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        for done in results:
            bar.update(task, total=scan.planned_bytes, advance=done.piece.end_lsn - done.piece.begin_lsn)
            yield done
