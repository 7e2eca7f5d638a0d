"""`walproxy pipeline maintain`: the work with a bar, and its result as JSON or as a table."""

from typing import Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from walproxy.pipeline.jobs.maintain import Maintained
from walproxy.pipeline.jobs.maintain import maintain as maintain_tables
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.table import RemovedFiles
from walproxy.proxy.status_table import format_bytes
from walproxy.terminal import FittedTable, TableColumn, output_console

__all__ = ["LakeLocation", "maintain_and_print"]

_COLUMNS: Final = (
    TableColumn("table"),
    TableColumn("format", leaves=1),
    TableColumn("merged", is_right=True),
    TableColumn("old states", leaves=3, is_right=True),
    TableColumn("orphans", leaves=2, is_right=True),
    TableColumn("files", is_right=True),
    TableColumn("size", is_right=True),
)


def maintain_and_print(
    location: LakeLocation,
    names: tuple[str, ...],
    target_bytes: int,
    keep_s: float,
    orphans_after_s: float,
    *,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Maintain tables of a location and print what was done; return whether all of it could be done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        done = maintain_tables(
            location,
            names,
            target_bytes=target_bytes,
            keep_s=keep_s,
            orphans_after_s=orphans_after_s,
            dry_run=dry_run,
            progress=lambda name, done, total: bar.update(task, description=name, completed=done, total=total),
        )
    if as_json:
        click.echo(msgspec.json.encode([_as_json(each) for each in done]).decode())
    else:
        _show(done, dry_run)
    for each in done:
        if each.problem is not None:
            click.echo(f"PROBLEM: {each.problem}", err=True)
    return all(each.problem is None for each in done)


def _as_json(each: Maintained) -> dict[str, object]:
    return {
        **each._asdict(),
        "compaction": each.compaction._asdict(),
        "expired": each.expired._asdict(),
        "orphans": each.orphans._asdict(),
    }


def _show(done: list[Maintained], dry_run: bool) -> None:
    console, shown = output_console(), FittedTable(_COLUMNS)
    if dry_run:
        console.print("what would be done, and the files and sizes now:")
    for each in done:
        merged = each.compaction
        shown.add_row(
            each.name,
            each.format or "-",
            f"{merged.files_removed} into {merged.files_added}" if merged.files_removed else "-",
            _removed(each.expired),
            _removed(each.orphans),
            "-" if each.problem is not None else str(each.files),
            "-" if each.problem is not None else format_bytes(each.bytes),
        )
    console.print(shown)


def _removed(removal: RemovedFiles) -> str:
    return f"{removal.files} files, {format_bytes(removal.bytes)}" if removal.files else "-"
