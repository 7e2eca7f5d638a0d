"""`walproxy pipeline maintain`: fewer and larger files, and an end to what is old."""

import sys
from pathlib import Path

import click
import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from safekeeper import logs
from safekeeper.errors import EXIT_FINE, EXIT_UNEXPECTED
from walproxy.cli.parameters import DURATION, SIZE
from walproxy.cli.status import format_bytes
from walproxy.pipeline.jobs.maintain import Maintained
from walproxy.pipeline.jobs.maintain import maintain as maintain_tables
from walproxy.pipeline.tables.table import Removal


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--table", "names", multiple=True, metavar="NAME", help="Only this table; can be given several times.")
@click.option("--target-size", default="128MB", show_default=True, type=SIZE, help="Of new files.")
@click.option("--keep", default="7d", show_default=True, type=DURATION, help="How long old states can be read.")
@click.option(
    "--orphans-after",
    default="1d",
    show_default=True,
    type=DURATION,
    help="When files of killed tasks are removed; longer than any batch takes.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def maintain(
    folder: Path,
    names: tuple[str, ...],
    target_size: int,
    keep: float,
    orphans_after: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Merge small files of tables into large ones, and remove what is old: files, snapshots, entries of logs.

    No row is lost or doubled, and jobs that write to the tables can go on. Run it once an hour beside a job with
    batches of seconds. The exit code is 1 if something could not be done.

    \b
    Examples:
      walproxy pipeline maintain tables
      walproxy pipeline maintain tables --table records --target-size 512MB --keep 2d --dry-run
    """
    logs.configure(lambda: "walproxy pipeline maintain", "warning")
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        done = maintain_tables(
            folder.absolute(),
            names,
            target_bytes=target_size,
            keep_s=keep,
            orphans_after_s=orphans_after,
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
    sys.exit(EXIT_UNEXPECTED if any(each.problem is not None for each in done) else EXIT_FINE)


def _as_json(each: Maintained) -> dict[str, object]:
    return {
        **each._asdict(),
        "compaction": each.compaction._asdict(),
        "expired": each.expired._asdict(),
        "orphans": each.orphans._asdict(),
    }


def _show(done: list[Maintained], dry_run: bool) -> None:
    shown = Table(box=box.SIMPLE_HEAD, title="what would be done" if dry_run else None, title_justify="left")
    for name in ("table", "format"):
        shown.add_column(name, no_wrap=True)
    for name in ("merged", "old states", "orphans", "files now" if dry_run else "files", "size"):
        shown.add_column(name, justify="right")
    for each in done:
        merged = each.compaction
        shown.add_row(
            each.name,
            each.format,
            f"{merged.files_removed} into {merged.files_added}" if merged.files_removed else "-",
            _removed(each.expired),
            _removed(each.orphans),
            "-" if each.problem is not None else str(each.files),
            "-" if each.problem is not None else format_bytes(each.bytes),
        )
    Console(highlight=False).print(shown)


def _removed(removal: Removal) -> str:
    return f"{removal.files} files, {format_bytes(removal.bytes)}" if removal.files else "-"
