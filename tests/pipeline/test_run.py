"""The run job: its tables have every record once, whatever was there before and whatever dies."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from tests.pipeline.formats import MOSTLY_ICEBERG
from tests.pipeline.small_wal import Pieces, add_transactions, decoded_rows, small_wal, table_rows, write_wal
from tests.unit.table_rows import open_table
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.jobs import run_folder
from walproxy.pipeline.jobs.run import BatchDone, RunConfig, RunEnd, Waiting, _Job, run
from walproxy.pipeline.jobs.run_folder import RunFolder
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.position import TableMoved
from walproxy.pipeline.schemas import VIEWS

Event = BatchDone | Waiting | RunEnd
START_TIMEOUT_S = 120.0


@pytest.fixture
def wal() -> WalBuilder:
    return small_wal(3 * MIB + 200_000)


@pytest.fixture
def folder(wal: WalBuilder, tmp_path: Path) -> str:
    return write_wal(tmp_path / "pg_wal", wal)


def once(folder: str, tables: Path, *names: str, **further: object) -> list[Event]:
    """Run until everything is in the tables."""
    events: list[Event] = []
    config = RunConfig(folder, LakeLocation.parse(tables), None, names or VIEWS, once=True, **further)  # type: ignore[arg-type]
    run(config, events.append, threading.Event())
    return events


def rows_of(tables: Path, name: str) -> Counter[str]:
    with open_table(tables, name, create=False) as table:
        return rows(table.to_arrow())


def rows(table: pa.Table) -> Counter[str]:
    return Counter(json.dumps(row, default=str) for row in table.to_pylist())


def lsns_of(tables: Path, name: str) -> list[Lsn]:
    with open_table(tables, name, create=False) as table:
        return sorted(table.to_arrow(["lsn"])["lsn"].to_pylist())


def finished(events: list[Event]) -> RunEnd:
    assert isinstance(events[-1], RunEnd)
    return events[-1]


def test_the_tables_have_the_rows_of_the_decoder_and_go_on_where_they_are(
    spark: SparkSession, folder: str, wal: WalBuilder, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    first = once(folder, tables, batch_bytes_max=MIB)
    assert [type(event) for event in first] == [BatchDone, BatchDone, BatchDone, RunEnd]
    end_lsn = finished(first).lsn
    for view in VIEWS:
        assert rows_of(tables, view) == rows(table_rows(folder, view, end_lsn=end_lsn)), view
    assert once(folder, tables) == [RunEnd(end_lsn, 0, 0)]
    write_wal(Path(folder), add_transactions(wal, 5 * MIB, seed=2))
    second = once(folder, tables)
    expected = decoded_rows(folder, "records", end_lsn=finished(second).lsn)["lsn"].to_pylist()
    assert lsns_of(tables, "records") == expected
    assert finished(second).rows > 0


def test_a_table_that_is_new_is_filled_from_the_beginning_while_the_others_wait(
    spark: SparkSession, folder: str, wal: WalBuilder, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    begin = wal.records[10].start_lsn
    once(folder, tables, "records", start=begin)
    write_wal(Path(folder), add_transactions(wal, 5 * MIB, seed=2))
    end_lsn = finished(once(folder, tables, "records", "blocks", "transaction_volume", batch_bytes_max=700_000)).lsn
    lsns = [record.start_lsn for record in wal.records if record.start_lsn < end_lsn]
    assert lsns_of(tables, "records") == lsns[10:]
    assert set(lsns_of(tables, "blocks")) == {record.start_lsn for record in wal.records if record.rmid == 10} & set(
        lsns
    )
    with open_table(tables, "transaction_volume", create=False) as table:
        assert sum(table.to_arrow()["records"].to_pylist()) == len(lsns)


def test_tables_of_another_system_and_those_of_another_run_are_left_alone(
    spark: SparkSession, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path / "tables"
    once(folder, tables, "records")
    before = rows_of(tables, "records")
    other = write_wal(tmp_path / "other", small_wal(3 * MIB, system_id=8))
    with pytest.raises(
        ConfigurationError, match=r"tables in .* hold is of the system 7, and .* has the WAL of 8: name"
    ):
        once(other, tables, "records")
    with pytest.raises(ConfigurationError, match=r"beginning at 1/0 would leave a gap; leave --start out"):
        once(folder, tables, "records", start=1 << 32)
    monkeypatch.setattr(run_folder, "_LOCK_TIMEOUT_S", 0.2)
    with (tables / "_run" / "lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            ConfigurationError, match=r"another run writes to the tables in .* \(process \d+\): stop it"
        ):
            once(folder, tables, "records")
    assert rows_of(tables, "records") == before


def test_a_session_leaves_the_handler_of_sigint_to_the_program(spark: SparkSession) -> None:
    assert getattr(signal.getsignal(signal.SIGINT), "__module__", None) != SparkContext.__module__


@contextlib.contextmanager
def process(folder: str, tables: Path | str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, with a process group of its own; its output is that of --json."""
    command = [sys.executable, "-m", "walproxy", "pipeline", "run", folder, "--to", str(tables), "--json", *options]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def next_event(started: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return the next line of a command; if it has ended, fail with what it has written to stderr."""
    assert started.stdout is not None
    line = started.stdout.readline()
    assert line, started.communicate()[1]
    event: dict[str, Any] = json.loads(line)
    return event


SLOW_START = """
import os, sys, time
if "python_streaming_source_runner" in " ".join(sys.orig_argv):
    try:
        os.mkdir(os.environ["STARTED"])
    except FileExistsError:
        pass
    else:
        time.sleep(15)
"""


@pytest.mark.nightly
def test_a_run_goes_on_after_a_process_of_spark_that_started_too_late(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SLOW_START)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    with process(folder, tmp_path / "tables", "--tables", "records", "--once") as started:
        events = [json.loads(line) for line in started.communicate()[0].splitlines()]
    assert started.returncode == 0
    assert "did not start within 10 s" in events[0]["reason"]
    assert (events[0]["event"], events[-1]["event"]) == ("waiting", "finished")
    assert (tmp_path / "started").is_dir()
    assert rows_of(tmp_path / "tables", "records") == rows(decoded_rows(folder, "records"))


@pytest.mark.nightly
def test_a_run_that_is_killed_loses_and_doubles_nothing_and_one_that_is_stopped_ends_well(
    folder: str, wal: WalBuilder, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    options = ("--tables", "records,transactions", "-c", "interval=100ms", "-c", "max_bytes_per_trigger=64kB")
    with process(folder, tables, *options) as killed:
        lines = [next_event(killed) for _ in range(3)]
        killed.kill()
    assert [line["event"] for line in lines] == ["batch"] * 3
    with process(folder, tables, *options, "-c", "max_bytes_per_trigger=1MB") as stopped:
        while (line := next_event(stopped))["lag_bytes"] > 100_000:
            assert line["event"] == "batch"
        os.killpg(stopped.pid, signal.SIGTERM)  # A Ctrl-C comes to all of the group, too.
        output, errors = stopped.communicate(timeout=START_TIMEOUT_S)
        assert (stopped.returncode, errors) == (0, "")
    last = json.loads(output.splitlines()[-1])
    assert last["event"] == "finished"
    expected = decoded_rows(folder, "records", end_lsn=parse_lsn(last["lsn"]))
    assert lsns_of(tables, "records") == expected["lsn"].to_pylist()
    assert rows_of(tables, "transactions") == rows(decoded_rows(folder, "transactions", end_lsn=parse_lsn(last["lsn"])))


class QueryInABatch:
    """A query that behaves as Spark's: it calls for a batch when it is being stopped, and waits until that returns."""

    def __init__(self, job: _Job, stop: threading.Event) -> None:
        self.is_stopped = False
        self._job = job
        self._stop = stop

    def awaitTermination(self, timeout: float) -> bool:
        self._stop.set()
        return False

    def stop(self) -> None:
        batch = threading.Thread(target=self._job._batch, args=(None, 2), daemon=True)
        batch.start()
        batch.join(START_TIMEOUT_S / 4)
        self.is_stopped = not batch.is_alive()


def test_a_batch_that_is_called_for_while_the_stream_is_stopped_does_not_block_the_stop(
    folder: str, tmp_path: Path
) -> None:
    stop = threading.Event()
    place = LakeLocation.parse(tmp_path)
    job = _Job(RunConfig(folder, place, None), RunFolder(place), lambda event: None, stop)
    query: Any = QueryInABatch(job, stop)
    job._wait(query)
    assert query.is_stopped


@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
def test_of_two_runs_without_a_lock_the_slower_one_ends_and_each_record_is_there_once(
    folder: str, wal: WalBuilder, tmp_path: Path, table_format: TableFormat
) -> None:
    tables = tmp_path / "tables"
    config = RunConfig(folder, LakeLocation.parse(tables), table_format, ("records",))
    (tables / "_run").mkdir(parents=True)
    jobs: list[Any] = [
        _Job(config, RunFolder(config.tables_at), lambda event: None, threading.Event()) for _ in range(2)
    ]
    for job in jobs:
        job.open()
    middle_lsn = wal.records[len(wal.records) // 2].start_lsn
    jobs[0]._batch(Pieces(folder, None, middle_lsn), 0)
    with pytest.raises(TableMoved, match=r"records is at position [0-9A-F]+/[0-9A-F]+, not none: another job writes"):
        jobs[1]._batch(Pieces(folder, None, None), 0)
    jobs[0]._batch(Pieces(folder, jobs[0].lsn, None), 1)
    for job in jobs:
        job.close()
    assert lsns_of(tables, "records") == decoded_rows(folder, "records")["lsn"].to_pylist()


@pytest.mark.nightly
def test_a_run_whose_jvm_hangs_ends_within_its_time_and_loses_nothing(
    folder: str, wal: WalBuilder, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    options = (
        "--tables",
        "records",
        "-c",
        "interval=100ms",
        "-c",
        "max_bytes_per_trigger=1MB",
        "-c",
        "drain_timeout=1s",
    )
    with process(folder, tables, *options) as started:
        lines = [next_event(started)]
        (java,) = map(int, Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split())
        os.kill(java, signal.SIGSTOP)
        started.send_signal(signal.SIGINT)
        output, errors = started.communicate(timeout=START_TIMEOUT_S)
    lines += map(json.loads, output.splitlines())
    assert started.returncode == 0
    assert lines[-1]["event"] == "finished"
    (line,) = errors.splitlines()
    assert line.endswith("the next run repeats an unfinished batch: Spark did not end within 1 s, and was killed")
    expected = decoded_rows(folder, "records", end_lsn=parse_lsn(lines[-1]["lsn"]))
    assert lsns_of(tables, "records") == expected["lsn"].to_pylist()
