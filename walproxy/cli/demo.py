"""`walproxy demo`: the whole story on a PostgreSQL of its own."""

import os
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from safekeeper.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError
from walproxy.demo.stage import Stage
from walproxy.demo.story import play, summary
from walproxy.local_cluster import LocalCluster
from walproxy.local_postgres import LocalPostgres, ServerBinaries, find_servers, newest_server

OLDEST_MAJOR = 13
# Everything that is compared at the end must still be in pg_wal; the demo writes a few hundred MiB at most.
_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "wal_keep_size": "16GB",
    "max_wal_size": "4GB",
    "log_checkpoints": "off",
}
_PLAIN_WIDTH = 200


@click.command()
@click.option("--clients", type=click.IntRange(1, 50), default=8, show_default=True, help="Concurrent clients.")
@click.option("--postgres", "major", type=int, metavar="MAJOR", help="Which PostgreSQL, e.g. 15. Default: the newest.")
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Work in DIR and leave everything running.")
def demo(clients: int, major: int | None, keep: Path | None) -> None:
    """Show what walproxy promises, on a PostgreSQL of its own.

    Starts PostgreSQL, three safekeepers, a proxy and a load of bank transfers; kills each of them with kill -9 and
    counts what the clients see; at the end compares the safekeepers' WAL with PostgreSQL's, byte for byte. Takes under
    a minute. The exit code is 0 only if every step held. Nothing is left behind, and nothing outside is touched.

    \b
    Examples:
      walproxy demo
      walproxy demo --keep /tmp/walproxy-demo
    """
    binaries = _choose_server(major)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: clean up, then end
    directory = _make_directory(keep)
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    outlives = keep is not None
    postgres = LocalPostgres(binaries, directory / "postgres", settings=_SETTINGS, outlives_us=outlives)
    cluster = LocalCluster(directory, postgres, outlives_us=outlives)
    stage = Stage(cluster, clients)
    kept = False
    try:
        outcome = play(stage, console)
        console.print(summary(outcome, stage))
        if outcome.failure:
            kept = True
            console.print(f"Step {outcome.failed_step} FAILED: {outcome.failure}\nLogs and data: {directory}")
            sys.exit(EXIT_UNEXPECTED)
        console.print(f"All {len(outcome.seen)} steps held, in {outcome.duration_s:.0f} s.")
        if keep is not None:
            postgres.start()
            cluster.wait_for_state("streaming", proxy=cluster.proxies[-1])
            kept = True
            console.print(_what_runs(cluster))
    finally:
        if not (kept and keep is not None):
            cluster.close()
        if not kept:
            shutil.rmtree(directory)
    sys.exit(EXIT_FINE)
