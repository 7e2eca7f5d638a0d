"""`walproxy pipeline waldump`: the records that are selected, printed one way or another."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import (
    LSN_MAX,
    Lsn,
    format_lsn,
    parse_segment_name,
)
from walproxy.pipeline.input.foreign.roots import segment_of
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.jobs.waldump import Done, Scan, format_as_json
from walproxy.pipeline.jobs.waldump_selection import (
    RelationPath,
    Selection,
    Stats,
    rmgr_names,
    rmid_of,
    stats_table,
)
from walproxy.pipeline.jobs.waldump_text import format_records
from walproxy.pipeline.pages.relation import FORKS
from walproxy.wal_sources.source import SourceCorrupt


@dataclass(frozen=True)
class Wanted:
    """The selected records and the output format, by the names of the command's parameters."""

    start: Lsn | None
    end: Lsn | None
    timeline: int | None
    rmgr: tuple[str, ...]
    xid: int | None
    relation: tuple[int, int, int] | None
    block: int | None
    fork: str | None
    fullpage: bool
    limit: int | None
    stats: str | None
    follow: bool
    as_json: bool
    allow_gaps: bool
    archive_options: Mapping[str, str]


__all__ = ["print_records", "rmgr_names"]

_Result = TypeVar("_Result")


def print_records(path: str, wanted: Wanted) -> None:
    """Print the wanted records of the WAL at `path`."""
    timeline, start, end = wanted.timeline, wanted.start, wanted.end
    if Path(path).is_file():
        path, timeline, start, end = _segment(Path(path), timeline, start, end)
    selection = Selection(
        begin_lsn=start or 0,
        end_lsn=LSN_MAX if end is None else end,
        rmids=frozenset(map(rmid_of, wanted.rmgr)) if wanted.rmgr else None,
        xid=wanted.xid,
        relation=RelationPath(*wanted.relation) if wanted.relation is not None else None,
        fork=FORKS.index(wanted.fork) if wanted.fork is not None else None,
        block=wanted.block,
        full_page=wanted.fullpage,
    )
    scan = Scan(
        open_input(path, wanted.archive_options),
        selection,
        tli=timeline,
        limit=wanted.limit,
        allow_gaps=wanted.allow_gaps,
        follow=wanted.follow,
        end_must_be_there=wanted.end is not None,
    )
    if wanted.stats:
        _print_stats(scan, by_operation=wanted.stats == "record", as_json=wanted.as_json)
        return
    formatted = scan.run(format_as_json if wanted.as_json else format_records)
    for done in _with_progress(scan, formatted, sys.stdout.isatty()):
        sys.stdout.buffer.write(done.result)
        sys.stdout.buffer.flush()


def _segment(
    path: Path, timeline: int | None, start: Lsn | None, end: Lsn | None
) -> tuple[str, int | None, Lsn | None, Lsn | None]:
    """Return the folder of a segment, and its timeline and range as far as the options do not set them."""
    segment_size = open_input(str(path.parent)).origin().segment_size
    file = segment_of(path.name)
    named = parse_segment_name(file.name, segment_size) if file is not None else None
    if named is None:
        raise ConfigurationError(f"{path} is not a segment of WAL: name one, or its folder")
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
        damage = error  # The sums of the WAL before it are shown first.
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
