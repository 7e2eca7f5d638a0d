"""A pipeline that follows safekeepers under load is killed ten times, and its tables have every record exactly once.

Either of its two processes is killed, Python's or Java's, at a random moment; the same command is started again each
time. How long a commit takes to be in the tables is measured at the end, under load and on a quiet server.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from safekeeper.base.lsn import Lsn, parse_lsn
from tests.integration.cluster.cluster_fixtures import Gated, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.unit.table_rows import open_table
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import decode_piece, plan_pieces

KILLS = int(os.environ.get("WALPROXY_TORTURE_KILLS", "10"))
START_TIMEOUT_S = 120.0
FRESH_S = 5.0
MARKS = 10
TABLES = ("records", "transactions", "relation_volume")


class Pipeline:
    """The command, started again and again with the same options."""

    def __init__(self, source: str, tables: Path, table_format: TableFormat) -> None:
        self.tables = tables
        self._command = [
            *(sys.executable, "-m", "walproxy", "pipeline", "run", source, "--to", str(tables), "--json"),
            *("--format", table_format, "--tables", ",".join(TABLES), "-c", "interval=500ms"),
        ]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait for its first batch."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.next_event()["event"] == "batch"

    def next_event(self) -> dict[str, Any]:
        """Return the next line that it prints."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"it has ended: {self._process.communicate()[1]}")
        event: dict[str, Any] = json.loads(line)
        return event

    def kill(self, victim: str) -> None:
        """Kill it, or the JVM that it has started, which ends it, too."""
        assert self._process is not None
        pid = self._process.pid
        if victim == "java":
            pid = int(subprocess.run(["pgrep", "-P", str(pid)], check=True, capture_output=True, text=True).stdout)
        os.kill(pid, signal.SIGKILL)
        _, errors = self._process.communicate(timeout=60)
        assert errors.count("\n") == (1 if victim == "java" else 0), errors
        self._process = None

    def stop(self) -> Lsn:
        """Stop it in good order; return up to where the tables have the WAL."""
        assert self._process is not None
        self._process.terminate()
        output, errors = self._process.communicate(timeout=60)
        assert (self._process.returncode, errors) == (0, "")
        self._process = None
        return parse_lsn(json.loads(output.splitlines()[-1])["lsn"])

    def close(self) -> None:
        """End it, however it is."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def has(self, lsn: Lsn) -> bool:
        """Whether the table of transactions has the one that ends at `lsn`, or one behind it."""
        with open_table(self.tables, "transactions", create=False) as table:
            return bool(table.to_arrow(["end_lsn"], pc.field("end_lsn") >= lsn).num_rows)


@contextlib.contextmanager
def load(cluster: Gated, rate: int) -> Iterator[None]:
    """Let pgbench write meanwhile, so many transactions a second."""
    pgbench = cluster.postgres.binaries.path("pgbench")
    command = [pgbench, "-n", "-N", "-c", "4", "-T", "36000", "-R", str(rate), cluster.postgres.conninfo()]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def seconds_until_seen(cluster: Gated, pipeline: Pipeline) -> float:
    """Commit, and wait until the commit is in the tables."""
    cluster.postgres.execute("INSERT INTO ledger VALUES (0, 0)")
    began_at = time.monotonic()
    lsn = cluster.primary_flush_lsn()
    wait_for(lambda: pipeline.has(lsn - 1), "the commit is in the tables", 60)
    return time.monotonic() - began_at


@NEWEST
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_ten_kills_of_a_pipeline_lose_and_double_no_record(
    table_format: TableFormat, new_gated: NewGated, tmp_path: Path
) -> None:
    chance = random.Random(table_format)
    cluster = new_gated("-c", "response_timeout=5").start_gated()
    subprocess.run(
        [cluster.postgres.binaries.path("pgbench"), "-q", "-i", "-s", "2", cluster.postgres.conninfo()],
        check=True,
        capture_output=True,
    )
    pipeline = Pipeline(cluster.wal_url(), tmp_path / "tables", table_format)
    try:
        with load(cluster, 100):
            for _ in range(KILLS):
                pipeline.start()
                time.sleep(chance.uniform(0, 3))  # The moment is what is random here.
                pipeline.kill(chance.choice(["python", "python", "java"]))
            pipeline.start()
            while pipeline.next_event()["lag_bytes"] > 100_000:
                pass
            under_load = [seconds_until_seen(cluster, pipeline) for _ in range(MARKS)]
        quiet = [seconds_until_seen(cluster, pipeline) for _ in range(MARKS)]
        end_lsn = pipeline.stop()
    finally:
        pipeline.close()
    assert_has_every_record_once(pipeline.tables, cluster.wal_url(), end_lsn)
    for name, times in (("under load", sorted(under_load)), ("quiet", sorted(quiet))):
        median = times[MARKS // 2]
        print(f"{table_format}, {KILLS} kills, {name}: a commit is seen after {median:.1f} s, at most {times[-1]:.1f}")
        assert median < FRESH_S


def assert_has_every_record_once(tables: Path, source: str, end_lsn: Lsn) -> None:
    wal_input = open_input(source)
    path = wal_input.log_path()
    expected: list[Lsn] = []
    transactions: list[Lsn] = []
    for piece in plan_pieces(path, wal_input.extents(path), None, end_lsn):
        decoded = decode_piece(wal_input, path, piece)
        expected += decoded.lsn.tolist()
        batch = view_batch("transactions", decoded, Piece(piece.begin_lsn, piece.end_lsn), ["lsn"])
        transactions += batch.column("lsn").to_pylist()
    for name, lsns in (("records", expected), ("transactions", transactions)):
        with open_table(tables, name, create=False) as table:
            assert sorted(table.to_arrow(["lsn"])["lsn"].to_pylist()) == lsns, name
    with open_table(tables, "relation_volume", create=False) as table:
        assert sum(table.to_arrow(["records"])["records"].to_pylist()) == len(expected)
    assert len(transactions) > 100
