"""`walproxy pipeline apply`: the job, or the comparison, until a signal ends it."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from safekeeper.process.credential_files import Reloadable, reload_files, say_changes
from walproxy.cli.pipeline_work.stop_signals import stopped_by_signals
from walproxy.cli.progress import PartsBar
from walproxy.pipeline.cdc.apply.job import ApplyOptions, no_report, run_apply
from walproxy.pipeline.cdc.apply.parallel_copy import CopyProgress
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.lake.location import LakeLocation

__all__ = ["ApplyOptions", "LakeLocation", "apply_until_signal", "copy_bar", "verify_once"]


def apply_until_signal(options: ApplyOptions, *, once: bool) -> None:
    """Follow the source, up to now if `once`, else until SIGTERM or SIGINT; SIGHUP reads HTTP's files again."""
    found = {"the password of HTTP": options.http_access.password, "the certificate of HTTP": options.http_tls}
    files: dict[str, Reloadable] = {name: each for name, each in found.items() if each is not None}
    reload = partial(_reload, files) if files and not once else None
    with stopped_by_signals(reload) as stop, copy_bar(Console(stderr=True)) as on_copy:
        run_apply(options, once=once, stop=stop, on_copy=on_copy)


def verify_once(options: ApplyOptions, *, repair: bool) -> None:
    """Follow up to now and compare all rows with the source; copy tables again that differ if `repair`."""
    with stopped_by_signals() as stop, copy_bar(Console(stderr=True)) as on_copy:
        run_verify(options, repair=repair, stop=stop, on_copy=on_copy)


def _reload(files: dict[str, Reloadable]) -> None:
    say_changes(reload_files(files), files)


@contextlib.contextmanager
def copy_bar(console: Console) -> Iterator[Callable[[CopyProgress], None]]:
    """Yield what shows the copy of a table: a bar on a terminal while it has ranges that are not copied."""
    if not console.is_terminal:
        yield no_report
        return
    with contextlib.ExitStack() as stack:
        bar: PartsBar | None = None
        shown: TableName | None = None

        def show(progress: CopyProgress) -> None:
            nonlocal bar, shown
            if progress.done == 0 or progress.table != shown:
                stack.close()
                bar, shown = None, progress.table
            if bar is None and progress.done < progress.ranges:
                bar = stack.enter_context(PartsBar(console, progress.ranges))
            if bar is not None:
                bar.show(progress.done, f"copying {progress.table}")
            if progress.done == progress.ranges:
                stack.close()
                bar = None

        yield show
