"""Runs of the job that makes tables of WAL, timed: in this process's Spark session, or in a process of its own.

`python -m walproxy.lab.bench.wal_runs WARM_UP WAL TABLES` is that process: it makes tables of the folder WARM_UP until
Spark has started and compiled everything, then of WAL, and prints an ApartRun as JSON.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from threading import Event

import click
import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from walproxy.lab.process_resources import memory_of


class ApartRun(msgspec.Struct, frozen=True):
    """A run in a process of its own.

    Attributes:
        seconds: of its batches.
        driver_bytes, jvm_bytes: the most memory that the driver's Python and its JVM had (VmHWM).
    """

    seconds: float
    driver_bytes: int
    jvm_bytes: int


def write_tables(wal: Path, tables: Path, names: Sequence[str] = ()) -> float:
    """Make new tables of a folder of WAL, and remove them; return the seconds of the batches.

    Args:
        names: of the tables; those that the command makes by default if empty.

    Raises:
        WalproxyError: the job failed.
    """
    from walproxy.pipeline.choices import DEFAULT_TABLES
    from walproxy.pipeline.jobs.run import BatchDone, RunConfig, run
    from walproxy.pipeline.lake.location import LakeLocation

    batches: list[float] = []

    def note(event: object) -> None:
        if isinstance(event, BatchDone):
            batches.append(event.seconds)

    try:
        run(
            RunConfig(str(wal), LakeLocation.parse(tables), None, tuple(names) or DEFAULT_TABLES, once=True),
            note,
            Event(),
        )
    finally:
        rmtree(tables, ignore_errors=True)
    return sum(batches)


def write_tables_apart(warm_up: Path, wal: Path, tables: Path) -> ApartRun:
    """Make all tables of a folder of WAL in a process of its own, which is warm when it begins.

    Raises:
        WalproxyError: it failed.
    """
    command = [sys.executable, "-m", "walproxy.lab.bench.wal_runs", str(warm_up), str(wal), str(tables)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise WalproxyError(f"making tables of {wal} failed: {one_line(answer.stderr[-500:])}")
    return msgspec.json.decode(answer.stdout, type=ApartRun)


def _main(warm_up: Path, wal: Path, tables: Path) -> None:
    from walproxy.pipeline.spark_session import spark_session

    with spark_session("walproxy bench", memory="1g", quick=True):
        write_tables(warm_up, tables)
        seconds = write_tables(wal, tables)
        pid = os.getpid()
        run = ApartRun(seconds, memory_of(pid).peak_bytes, max(memory_of(java).peak_bytes for java in _javas_of(pid)))
    click.echo(msgspec.json.encode(run).decode())


def _javas_of(pid: int) -> list[int]:
    """Return the JVMs among the children of a process and their children."""
    found = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        name = Path(f"/proc/{child}/comm").read_text().strip()
        found += [child] if name == "java" else _javas_of(child)
    return found


if __name__ == "__main__":
    _main(*map(Path, sys.argv[1:]))
