"""The demo from its first process to its last: a folder, the steps in order, how they went, and cleaning up."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.logs import one_line
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.demo.left_running import commands_to_look
from walproxy.lab.demo.loss_steps import safekeeper_options
from walproxy.lab.demo.stage import DemoStage, Step, StepFailed
from walproxy.lab.demo.standby_steps import PROXY_OPTIONS, STANDBY
from walproxy.lab.demo.steps import STEPS
from walproxy.lab.demo.view import View
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries
from walproxy.postgres.patience import BUSY_SLOWDOWN, load_text, slowdown

# Everything that is compared at the end must still be in pg_wal; the demo writes a few hundred MiB at most.
_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "wal_keep_size": "16GB",
    "max_wal_size": "4GB",
}


@dataclass
class StoryOutcome:
    """The outcome of the story.

    Attributes:
        seen: what each step that held saw.
        failure: why the step after those did not hold, empty if all held.
        verdict: one word for a failure: `FAILED`, or `TOO SLOW` where a busy machine is enough to explain it.
        duration_s: of all steps together.
    """

    seen: list[str] = field(default_factory=list)
    failure: str = ""
    verdict: str = ""
    duration_s: float = 0.0

    @property
    def failed_step(self) -> int:
        """The number of the step that did not hold, from 1; 0 if all held."""
        return len(self.seen) + 1 if self.failure else 0


def run_story(
    binaries: ServerBinaries, clients: int, keep: Path | None, console: Console, steps: Sequence[Step] = STEPS
) -> bool:
    """Tell the story; return whether every step held.

    Args:
        binaries: which PostgreSQL.
        clients: how many commit at the same time.
        keep: a new or empty folder to work in and to leave everything running in; None takes a temporary one.
        console: to print to.
        steps: the first of all steps, or all.

    Raises:
        ConfigurationError: the folder cannot be used.
    """
    directory = _make_directory(keep)
    files_stay = keep is not None
    outlives_us = keep is not None
    postgres = LocalPostgres(binaries, directory / "postgres", settings=_SETTINGS, outlives_us=outlives_us)
    cluster = LocalCluster(
        directory,
        postgres,
        candidates=[STANDBY],
        outlives_us=outlives_us,
        safekeeper_options=safekeeper_options(directory),
    )
    cluster.proxies = [cluster.make_proxy("walproxy", *PROXY_OPTIONS)]
    processes_stay = False
    try:
        stage = DemoStage(cluster, clients, report=_report_path(directory, files_stay))
        outcome = play(stage, steps, console)
        console.print(summary(outcome, steps, stage))
        if outcome.failure:
            files_stay = True
            console.print(f"Step {outcome.failed_step} {outcome.verdict}: {outcome.failure}", style="bold red")
            console.print(f"Logs and data are in {directory}")
        else:
            console.print(f"All {len(outcome.seen)} steps held, in {outcome.duration_s:.0f} s.", style="bold green")
        if not outcome.failure and keep is not None:
            processes_stay = True
            console.print(commands_to_look(cluster), soft_wrap=True, markup=False)
    finally:
        if not processes_stay:
            cluster.close()
        if not files_stay:
            shutil.rmtree(directory)
    return not outcome.failure


def play(stage: DemoStage, steps: Sequence[Step], console: Console) -> StoryOutcome:
    """Play the steps up to the first that does not hold. The processes are left as they are then."""
    outcome = StoryOutcome()
    begin = time.monotonic()
    with View(console, stage.cluster, stage.history) as view:
        stage.notify = lambda line: view.print_line(Text(f"    {line}", style="yellow"))
        for number, step in enumerate(steps, 1):
            view.print_line(Text(f"{number:2}. {step.title}", style="bold"))
            try:
                seen = step.act(stage)
            except (WalproxyError, psycopg.Error) as error:
                outcome.verdict, outcome.failure = _judged(error)
                view.print_line(Text(f"    {outcome.verdict}: {outcome.failure}", style="bold red"))
                break
            outcome.seen.append(seen)
            view.print_line(Text(f"    {seen}", style="green"))
    outcome.duration_s = time.monotonic() - begin
    return outcome


def _judged(error: Exception) -> tuple[str, str]:
    """Return the verdict on a step that an error has ended, and the reason."""
    reason = one_line(str(error))
    if isinstance(error, StepFailed):
        return "FAILED", f"a guarantee does not hold: {reason}"
    if slowdown() >= BUSY_SLOWDOWN:
        return "TOO SLOW", f"this machine is too busy ({load_text()}), which shows nothing of the guarantee: {reason}"
    return "FAILED", reason


def summary(outcome: StoryOutcome, steps: Sequence[Step], stage: DemoStage) -> Table:
    """Return all steps with what was seen."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("step", "", "seen"):
        table.add_column(name, overflow="fold")
    for number, step in enumerate(steps, 1):
        if number <= len(outcome.seen):
            result, seen = Text("held", style="green"), outcome.seen[number - 1]
        elif number == outcome.failed_step:
            result, seen = Text(outcome.verdict, style="bold red"), outcome.failure
        else:
            result, seen = Text("not run"), ""
        table.add_row(f"{number:2}. {step.title}", result, Text(seen))
    table.caption = (
        f"{len(stage.history.acknowledged):,} transfers acknowledged, {len(stage.history.in_doubt)} in doubt"
    )
    return table


def _report_path(directory: Path, files_stay: bool) -> Path:
    """Return where the report goes: beside everything else, or to where it is when all of that is removed."""
    if files_stay:
        return directory / "report.html"
    return directory.with_name(f"{directory.name.replace('demo', 'report')}.html")


def _make_directory(keep: Path | None) -> Path:
    """Return an empty folder that the server's user can enter, also when that is not us."""
    if keep is None:
        directory = Path(tempfile.mkdtemp(prefix="walproxy-demo-"))
    else:
        directory = keep.absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise ConfigurationError(f"{directory} is not empty: name another folder with --keep, or remove it")
        except OSError as error:
            raise ConfigurationError(f"could not use {directory}: {error.strerror}: correct --keep") from None
    if os.geteuid() == 0:
        directory.chmod(0o755)
    return directory
