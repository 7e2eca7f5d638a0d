"""pgbench: its tables made, one run of it, and what it measured."""

import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from safekeeper.base.errors import WalproxyError
from walproxy.postgres.local_server import LocalPostgres

_TPS = re.compile(r"^tps = ([0-9.]+) \(without initial connection time\)", re.MULTILINE)


class Measured(NamedTuple):
    """One run: transactions a second, and the average and the median time of a transaction."""

    tps: float
    average_ms: float
    median_ms: float


def prepare(postgres: LocalPostgres, scale: int) -> None:
    """Make pgbench's tables; these commits wait for no standby."""
    _run(postgres, ["--initialize", "--quiet", "--scale", str(scale)], "local")
    postgres.execute("CHECKPOINT")


def run(postgres: LocalPostgres, clients: int, seconds: int, synchronous_commit: str = "on") -> Measured:
    """Run `pgbench -N` with that many clients, each commit at that level.

    Raises:
        WalproxyError: it failed, or printed what is not understood.
    """
    threads = str(min(clients, os.cpu_count() or 1))
    # Each transaction is written down by pgbench, because it prints averages only.
    with tempfile.TemporaryDirectory(prefix="walproxy-pgbench-") as logs:
        arguments = [
            *("-N", "--no-vacuum", "--client", str(clients), "--jobs", threads, "--time", str(seconds)),
            *("--log", f"--log-prefix={logs}/transactions"),
        ]
        output = _run(postgres, arguments, synchronous_commit)
        times_ms = [time_ms for path in Path(logs).iterdir() for time_ms in parse_log(path.read_text().splitlines())]
    tps = _TPS.search(output)
    if tps is None or not times_ms:
        raise WalproxyError(f"pgbench printed no tps for {postgres.data_directory}: {output[-300:]!r}")
    return Measured(float(tps[1]), statistics.fmean(times_ms), statistics.median(times_ms))


def parse_log(lines: Iterable[str]) -> list[float]:
    """Return the time of each transaction in milliseconds, from the lines that `pgbench --log` writes.

    Source: https://www.postgresql.org/docs/current/pgbench.html (client, number, time in microseconds, ...)
    """
    return [int(line.split()[2]) / 1000 for line in lines]


def _run(postgres: LocalPostgres, arguments: Sequence[str], synchronous_commit: str) -> str:
    environment = {**os.environ, "LC_ALL": "C", "PGOPTIONS": f"-c synchronous_commit={synchronous_commit}"}
    command = [str(postgres.binaries.path("pgbench")), *arguments, postgres.conninfo()]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if answer.returncode != 0:
        raise WalproxyError(f"pgbench failed at {postgres.data_directory}: {answer.stderr.strip()[-300:]!r}")
    return answer.stdout
