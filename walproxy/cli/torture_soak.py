"""What `walproxy torture --soak` does: soaks a cluster of its own, and shows how far it is."""

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
    parent: Path | None,
    console: Console,
) -> Run:
    """Soak a cluster, of processes unless it is to be containers; return what was seen.

    Args:
        parent: where its folder is made; where temporary ones are by default.
        console: for how far it is.

    Raises:
        WalproxyError: it could not be done to the end.
    """
    with tempfile.TemporaryDirectory(prefix="walproxy-soak-", dir=parent) as folder:
        directory = Path(folder)
        directory.chmod(0o755)  # PostgreSQL runs as another user under root.
        chosen = "processes" if engine == "auto" else engine
        with soaked_cluster(directory, safekeepers, major, chosen) as cluster, SecondsBar(console, seconds) as bar:
            return soak(cluster, seconds, load, safekeepers, bar.show)
