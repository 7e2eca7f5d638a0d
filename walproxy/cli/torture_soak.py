"""`walproxy torture --soak`: run a steady load on a temporary cluster, and show the progress."""

import tempfile
from pathlib import Path

from rich.console import Console

from walproxy.cli.progress import SecondsBar
from walproxy.lab.testing import EngineName
from walproxy.lab.torture.record import Run
from walproxy.lab.torture.soak import Load, soak
from walproxy.lab.torture.soaked_cluster import soaked_cluster


def soak_and_show(
    seconds: float,
    load: Load,
    safekeepers: int,
    major: int | None,
    engine: EngineName,
    console: Console,
) -> Run:
    """Run a steady load on a cluster, of processes unless containers are chosen; return the record of the run.

    Args:
        console: for the progress.

    Raises:
        WalproxyError: the run could not be completed.
    """
    with tempfile.TemporaryDirectory(prefix="walproxy-soak-") as folder:
        directory = Path(folder)
        directory.chmod(0o755)  # PostgreSQL runs as another user under root.
        chosen = "processes" if engine == "auto" else engine
        with soaked_cluster(directory, safekeepers, major, chosen) as cluster, SecondsBar(console, seconds) as bar:
            return soak(cluster, seconds, load, safekeepers, bar.show)
