"""What `walproxy torture` does without --soak: stresses a cluster, and keeps its folder if a promise was broken."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.cli.progress import SecondsBar
from walproxy.lab.torture.run import Plan, Stressed, stress


class StressBar(SecondsBar):
    """A bar on a terminal; a line for each bout of faults, with or without one."""

    def show(self, passed_s: float, what: str) -> None:
        """Show how far it is; without a terminal the lines say it."""
        if self._console.is_terminal:
            super().show(passed_s, escape(what))

    def tell(self, passed_s: float, line: str) -> None:
        """Print a line, with the time of what it tells of."""
        self._console.print(f"{passed_s:7.1f} s  {line}", markup=False, soft_wrap=True)


def stress_and_keep(
    make_plan: Callable[[Path], Plan], parent: Path | None, console: Console
) -> tuple[Stressed, Path | None]:
    """Beat a cluster; return what was seen, and the folder with data, logs and history if a promise was broken.

    Args:
        make_plan: returns what to do in a folder.
        parent: where that folder is made; where temporary ones are by default.

    Raises:
        ConfigurationError: it cannot be begun.
        WalproxyError: it could not be done to the end; the folder stays, and is named.
    """
    directory = Path(tempfile.mkdtemp(prefix="walproxy-torture-", dir=parent))
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
        raise WalproxyError(f"{error}; what there is by then stays in {directory}") from error
    finally:
        if not keeps:
            shutil.rmtree(directory, ignore_errors=True)
