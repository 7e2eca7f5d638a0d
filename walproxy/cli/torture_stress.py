"""`walproxy torture` without --soak: stress-test a cluster, and keep its folder if a guarantee was violated."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.cli.progress import SecondsBar
from walproxy.lab.torture.run import RunOptions, Stressed, stress


class StressBar(SecondsBar):
    """A bar on a terminal, and a line for each bout of faults everywhere."""

    def show(self, passed_s: float, what: str) -> None:
        """Show the progress; without a terminal only the lines show it."""
        if self._console.is_terminal:
            super().show(passed_s, escape(what))

    def tell(self, passed_s: float, line: str) -> None:
        """Print a line with the time of its event."""
        self._console.print(f"{passed_s:7.1f} s  {line}", markup=False, soft_wrap=True)


def stress_and_keep(make_plan: Callable[[Path], RunOptions], console: Console) -> tuple[Stressed, Path | None]:
    """Stress-test a cluster; return the record, and the folder with data, logs and history if a guarantee was violated.

    Args:
        make_plan: returns the plan for a folder.

    Raises:
        ConfigurationError: the test cannot begin.
        WalproxyError: the test could not be completed; the message contains the folder, which is kept.
    """
    directory = Path(tempfile.mkdtemp(prefix="walproxy-torture-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user under root.
    keeps = False
    try:
        plan = make_plan(directory / "cluster")
        with StressBar(console, plan.seconds) as bar:
            stressed = stress(plan, bar)
        if not stressed.run.violations:
            return stressed, None
        keeps = True
        (directory / "run.json").write_bytes(msgspec.json.encode(stressed.run))
        return stressed, directory
    except ConfigurationError:
        raise  # Nothing has begun.
    except WalproxyError as error:
        keeps = True
        raise WalproxyError(f"{error}; the data up to then is in {directory}") from error
    finally:
        if not keeps:
            shutil.rmtree(directory, ignore_errors=True)
