"""`walproxy pipeline run`: the job until a signal ends it, and its progress as JSON, a bar, or lines."""

import contextlib
from collections.abc import Iterator
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from safekeeper.base.lsn import format_lsn
from walproxy.cli.pipeline_work.stop_signals import stopped_by_signals
from walproxy.pipeline.jobs.run import BatchDone, Report, RunConfig, RunEnd, Waiting
from walproxy.pipeline.jobs.run import run as run_job
from walproxy.pipeline.lake.location import LakeLocation

__all__ = ["LakeLocation", "RunConfig", "run_and_report"]


def run_and_report(config: RunConfig, *, as_json: bool) -> None:
    """Run the job, print its progress, and finish the present batch at the first SIGTERM or SIGINT."""
    with stopped_by_signals() as stop, _reporter(as_json, config.once) as report:
        run_job(config, report, stop)


@contextlib.contextmanager
def _reporter(as_json: bool, once: bool) -> Iterator[Report]:
    """Yield what prints the progress: JSON, a bar on a terminal, or a line for each batch."""
    console = Console(stderr=True)
    if as_json:
        yield lambda event: click.echo(msgspec.json.encode(_as_json(event)).decode())
    elif not (once and console.is_terminal):
        yield lambda event: click.echo(_line_of(event), err=isinstance(event, Waiting))
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            yield _Bar(bar).report


class _Bar:
    """A bar of the WAL that existed when the run began."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting Spark", total=None)
        self._done = 0

    def report(self, event: BatchDone | Waiting | RunEnd) -> None:
        """Show an event."""
        if isinstance(event, BatchDone):
            self._done += event.end_lsn - event.begin_lsn
            where = f"up to {format_lsn(event.end_lsn)}"
            self._bar.update(self._task, description=where, completed=self._done, total=self._done + event.lag_bytes)
        else:
            self._bar.console.print(_line_of(event), markup=False, highlight=False)


def _line_of(event: BatchDone | Waiting | RunEnd) -> str:
    match event:
        case Waiting(reason):
            return f"waiting: {reason}"
        case RunEnd(lsn, 0, _):
            return f"no new WAL: the tables contain the WAL up to {format_lsn(lsn)}"
        case RunEnd(lsn, batches, rows):
            return f"the tables have the WAL up to {format_lsn(lsn)}: {rows} rows in {batches} batches"
        case BatchDone():
            speed = (event.end_lsn - event.begin_lsn) / max(event.seconds, 1e-3) / (1 << 20)
            added = ", ".join(f"{name} {count}" for name, count in event.rows.items())
            return (
                f"{format_lsn(event.begin_lsn)} to {format_lsn(event.end_lsn)} in {event.seconds:.2f} s "
                f"({speed:.0f} MiB/s), lag {event.lag_bytes} bytes; rows: {added}"
            )


def _as_json(event: BatchDone | Waiting | RunEnd) -> dict[str, Any]:
    match event:
        case Waiting(reason):
            return {"event": "waiting", "reason": reason}
        case RunEnd(lsn, batches, rows):
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
