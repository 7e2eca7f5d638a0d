"""`walproxy pipeline run`: tables of WAL, kept up to date."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from safekeeper import logs
from safekeeper.lsn import Lsn, format_lsn
from walproxy.cli.parameters import DURATION, KEY_VALUES, LSN, SIZE
from walproxy.pipeline.jobs.run import DEFAULT_TABLES, BatchDone, Finished, Report, RunConfig, Waiting
from walproxy.pipeline.jobs.run import run as run_job
from walproxy.pipeline.tables import FORMATS, TableFormat
from walproxy.pipeline.tables.table_folder import local_folder


def _tables(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.option("--to", required=True, metavar="DIR", help="The folder of the tables.")
@click.option(
    "--format",
    "table_format",
    type=click.Choice(FORMATS),
    default="parquet",
    show_default=True,
    help="What new tables are.",
)
@click.option(
    "--tables",
    default=",".join(DEFAULT_TABLES),
    callback=_tables,
    metavar="NAME,...",
    help="Which tables; by default all but blocks.",
)
@click.option("--once", is_flag=True, help="End when what is there now is in the tables.")
@click.option("--interval", default="1s", show_default=True, type=DURATION, help="Look for WAL so often.")
@click.option(
    "--max-bytes-per-trigger",
    default="256MB",
    show_default=True,
    type=SIZE,
    help="A batch has so much WAL at most.",
)
@click.option("--start", type=LSN, help="Where new tables begin; by default where the WAL begins.")
@click.option(
    "--timeline", type=click.IntRange(1), metavar="TLI", help="Stay on it; by default promotions are followed."
)
@click.option("--allow-gaps", is_flag=True, help="Pass over WAL that is missing.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where Spark keeps its notes, made anew at each start; by default in the folder of the tables.",
)
@click.option("--cores", type=click.IntRange(1), metavar="N", help="How many cores to use; by default all.")
@click.option("--memory", default="1g", show_default=True, metavar="SIZE", help="Memory of Spark's JVM.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line for each batch.")
@click.option(
    "--archive-options",
    default="",
    type=KEY_VALUES,
    help="Settings of the archive's store, as obstore calls them, e.g. endpoint and region.",
)
def run(
    source: str,
    to: str,
    table_format: TableFormat,
    tables: tuple[str, ...],
    once: bool,
    interval: float,
    max_bytes_per_trigger: int,
    start: Lsn | None,
    timeline: int | None,
    allow_gaps: bool,
    checkpoint: Path | None,
    cores: int | None,
    memory: str,
    as_json: bool,
    archive_options: Mapping[str, str],
) -> None:
    """Write WAL into tables, and go on as it grows: every record exactly once, whatever is killed when.

    SOURCE is s3://, gs:// or az:// and what follows, a folder, or safekeeper://HOST:PORT,HOST:PORT. The tables know how
    far they are; the same command goes on there. After SIGTERM the batch that runs is finished.

    \b
    Examples:
      walproxy pipeline run s3://bucket/main --to tables --once
      walproxy pipeline run safekeeper://sk1:5462,sk2:5462 --to tables --format iceberg --interval 1s
      walproxy pipeline run /mnt/archive --to tables --tables transactions,relation_volume --start 5/40000000
    """
    logs.configure(lambda: "walproxy pipeline run", "warning")
    options = {f"archive.{name}": value for name, value in archive_options.items()}
    if timeline is not None:
        options["timeline"] = str(timeline)
    if allow_gaps:
        options["allowGaps"] = "true"
    config = RunConfig(
        source,
        local_folder(to),
        table_format,
        tables,
        tuple(options.items()),
        once=once,
        interval_s=interval,
        batch_bytes_max=max_bytes_per_trigger,
        start=start,
        checkpoint=checkpoint.absolute() if checkpoint is not None else None,
        cores=cores,
        memory=memory,
    )
    stop = threading.Event()
    with _stopped_by_signals(stop), _reporter(as_json, once) as report:
        run_job(config, report, stop)


@contextlib.contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT, and end the process at the second."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _reporter(as_json: bool, once: bool) -> Iterator[Report]:
    """Yield what prints the progress: JSON, a bar on a terminal, or a line for each batch."""
    console = Console(stderr=True)
    if as_json:
        yield lambda event: click.echo(msgspec.json.encode(_as_json(event)).decode())
    elif not (once and console.is_terminal):
        yield lambda event: click.echo(_told(event), err=isinstance(event, Waiting))
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            yield _Bar(bar).report


class _Bar:
    """A bar of the WAL that was there when the run began."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting Spark", total=None)
        self._done = 0

    def report(self, event: BatchDone | Waiting | Finished) -> None:
        """Show an event."""
        if isinstance(event, BatchDone):
            self._done += event.end_lsn - event.begin_lsn
            where = f"up to {format_lsn(event.end_lsn)}"
            self._bar.update(self._task, description=where, completed=self._done, total=self._done + event.lag_bytes)
        else:
            self._bar.console.print(_told(event), markup=False, highlight=False)


def _told(event: BatchDone | Waiting | Finished) -> str:
    match event:
        case Waiting(reason):
            return f"waiting: {reason}"
        case Finished(lsn, 0, _):
            return f"nothing new: the tables have the WAL up to {format_lsn(lsn)}"
        case Finished(lsn, batches, rows):
            return f"the tables have the WAL up to {format_lsn(lsn)}: {rows} rows in {batches} batches"
        case BatchDone():
            speed = (event.end_lsn - event.begin_lsn) / max(event.seconds, 1e-3) / (1 << 20)
            added = ", ".join(f"{name} {count}" for name, count in event.rows.items())
            return (
                f"{format_lsn(event.begin_lsn)} to {format_lsn(event.end_lsn)} in {event.seconds:.2f} s "
                f"({speed:.0f} MiB/s), {event.lag_bytes} bytes behind; rows: {added}"
            )


def _as_json(event: BatchDone | Waiting | Finished) -> dict[str, Any]:
    match event:
        case Waiting(reason):
            return {"event": "waiting", "reason": reason}
        case Finished(lsn, batches, rows):
            return {"event": "finished", "lsn": format_lsn(lsn), "batches": batches, "rows": rows}
        case BatchDone():
            return {
                "event": "batch",
                "begin_lsn": format_lsn(event.begin_lsn),
                "lsn": format_lsn(event.end_lsn),
                "available_lsn": format_lsn(event.available_lsn),
                "lag_bytes": event.lag_bytes,
                "rows": event.rows,
                "seconds": round(event.seconds, 3),
            }
