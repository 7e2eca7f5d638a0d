"""First copies of several tables at the same time: one position for all, one commit for each, whatever happens."""

import logging
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.apply_fixtures import ApplyProcess, compare, options_of, rows_here
from tests.pipeline.formats import MOSTLY_DELTA
from tests.pipeline.logical_server import Source, client, wait_until
from walproxy.pipeline.cdc.apply import table_copy
from walproxy.pipeline.cdc.apply.following import Position
from walproxy.pipeline.cdc.apply.job import ApplyOptions, TablesQuarantined, run_apply
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.apply.parallel_copy import CopyProgress
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.server import Connection, SourceUnavailable
from walproxy.pipeline.choices import TABLE_FORMATS, FollowingMode, TableFormat

SESSIONS = 3
TIMEOUT_S = 60.0
NAMES = [f"t{number}" for number in range(6)]


@pytest.fixture
def source(empty: Source) -> Source:
    for number, name in enumerate(NAMES):
        empty.run(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text, at date)",
            f"INSERT INTO {name} SELECT i, 'v' || i, '2024-01-01' FROM generate_series(1, {10 * number}) i",
        )
    empty.publish(*NAMES)
    return empty


def change_all(source: Source) -> None:
    for name in NAMES:
        source.run(
            f"UPDATE {name} SET v = v || '!' WHERE id % 3 = 0",
            f"INSERT INTO {name} SELECT coalesce(max(id), 0) + 1000 FROM {name}",
        )


def positions(options: ApplyOptions) -> dict[str, Position]:
    """Return the positions of the tables that are there."""
    found = {}
    for name in NAMES:
        with closing(following_table(options.location, options.format, TableName("public", name))) as table:
            position = table.position()
        if position is not None:
            found[name] = position
    return found


class Reads:
    """Counts how many tables are read at once. The first `count` wait for each other; then an action runs once."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, count: int, action: Callable[[list[Connection]], object]
    ) -> None:
        self.tables: list[str] = []
        self._sessions: list[Connection] = []
        self._lock = threading.Lock()
        self._barrier: threading.Barrier | None = threading.Barrier(count, lambda: action(self._sessions))
        self._real = table_copy.copied_rows
        monkeypatch.setattr(table_copy, "copied_rows", self._rows)

    def _rows(self, session: Connection, relation: Any, condition: Any, table: TableName, *more: Any) -> Any:
        with self._lock:
            self.tables.append(table.name)
            self._sessions.append(session)
            barrier = self._barrier
        if barrier is not None:
            barrier.wait(TIMEOUT_S)
            self._barrier = None
        yield from self._real(session, relation, condition, table, *more)


@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_several_tables_are_copied_at_once_as_of_one_position(
    source: Source, tmp_path: Path, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(source, tmp_path, table_format, copy_sessions=SESSIONS)
    reads = Reads(monkeypatch, SESSIONS, lambda _: change_all(source))
    seen: list[CopyProgress] = []
    run_apply(options, once=True, on_copy=seen.append)
    assert sorted(reads.tables) == NAMES
    assert sorted(each.table.name for each in seen) == NAMES
    assert len({each.lsn for each in seen}) == 1 and {each.ranges for each in seen} == {0}
    compare(source, options.location, table_format, *NAMES)


COMMITTED = 2
PROGRAM = """
import os, signal, sys
from walproxy.pipeline.cdc.apply import table_copy
from walproxy.pipeline.cdc.apply.job import run_apply
from walproxy.pipeline.cdc.apply.options import ApplyOptions
from walproxy.pipeline.lake.location import LakeLocation

conninfo, slot, publication, place, table_format, mode, committed = sys.argv[1:]
commits = []
real_put = table_copy.put_copy

def put(following, mode, copy, *, require_only_job):
    def note():
        require_only_job()
        if len(commits) == int(committed):
            os.kill(os.getpid(), signal.SIGKILL)

    real_put(following, mode, copy, require_only_job=note)
    commits.append(copy)

table_copy.put_copy = put
run_apply(ApplyOptions(conninfo, slot, (publication,), LakeLocation.parse(place), table_format, mode=mode), once=True)
"""
"""Commits copies, and kills itself when the next one is named in the job's file."""


@pytest.mark.parametrize(
    ("table_format", "mode"), [("delta", "append"), pytest.param("iceberg", "mirror", marks=pytest.mark.nightly)]
)
def test_copies_that_were_committed_before_a_kill_are_not_made_again(
    source: Source,
    tmp_path: Path,
    table_format: TableFormat,
    mode: FollowingMode,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = options_of(source, tmp_path, table_format, mode=mode, copy_sessions=SESSIONS)
    # Tables that were quarantined before are no longer so if their copy was committed.
    for name in NAMES:
        source.run(f"INSERT INTO {name} VALUES (0, 'bad', 'infinity')")
    with pytest.raises(TablesQuarantined):
        run_apply(options, once=True)
    for name in NAMES:
        source.run(f"UPDATE {name} SET at = NULL WHERE id = 0")
    words = [source.conninfo, source.slot, source.publication, str(options.location), table_format, mode]
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, str(COMMITTED)], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    committed = positions(options)
    assert len(committed) == COMMITTED and len(set(committed.values())) == 1
    change_all(source)
    caplog.set_level(logging.INFO)
    run_apply(options, once=True)
    copied = {name for name in NAMES if f"copying public.{name} as of" in caplog.text}
    assert copied == set(NAMES) - committed.keys()
    if mode == "mirror":
        compare(source, options.location, table_format, *NAMES)
    else:
        for number, name in enumerate(NAMES):
            rows = rows_here(options.location, table_format, TableName("public", name))["_op"].to_pylist()
            changes = rows.count("insert") + rows.count("update")
            # Of a copy that was made before the changes, they are there beside it.
            assert changes == (0 if name in copied else 1 + (10 * number + 3) // 3), name
            assert rows.count("copy") == 10 * number + 1 + (name in copied)
    assert all(each.is_same for each in run_verify(options, repair=False))


def test_a_table_that_cannot_be_copied_does_not_keep_its_session_from_the_others(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.run(
        "UPDATE t1 SET at = 'infinity'",
        'ALTER PUBLICATION "my pub" DROP TABLE t3',
        'ALTER PUBLICATION "my pub" ADD TABLE t3 WHERE (1 / (id - 20) < 5)',  # It fails in the server.
    )
    options = options_of(source, tmp_path, "delta", copy_sessions=1)
    sessions: list[set[int]] = []
    reads = Reads(monkeypatch, 1, lambda each: sessions.append({id(session) for session in each}))
    with pytest.raises(TablesQuarantined, match=r"2 tables are quarantined.*t1: .*infinity.*t3: .*division"):
        run_apply(options, once=True)
    assert sorted(reads.tables) == NAMES and len({id(session) for session in reads._sessions}) == 1
    good = [name for name in NAMES if name not in ("t1", "t3")]
    assert sorted(positions(options)) == good
    compare(source, options.location, "delta", *good)


def test_a_table_whose_session_is_lost_is_read_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def terminate(sessions: list[Connection]) -> None:
        source.rows(f"SELECT pg_terminate_backend({sessions[0].info.backend_pid}, 10000)")

    options = options_of(source, tmp_path, "delta", copy_sessions=2, mode="append")
    reads = Reads(monkeypatch, 2, terminate)
    run_apply(options, once=True)
    assert caplog.text.count("the range is read again") == 1 and len(reads.tables) == len(NAMES) + 1
    for number, name in enumerate(NAMES):
        assert rows_here(options.location, "delta", TableName("public", name)).num_rows == 10 * number


def test_no_table_is_committed_without_the_session_that_holds_the_locks(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminate(sessions: list[Connection]) -> None:
        own = ", ".join(str(session.info.backend_pid) for session in sessions)
        source.rows(
            f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid NOT IN ({own}) "
            "AND application_name = 'walproxy copy' AND datname = current_database()"
        )
        # Nothing keeps others from it, and the snapshot shows no row of it.
        source.run("ALTER TABLE t5 ALTER id TYPE bigint")

    options = options_of(source, tmp_path, "delta", copy_sessions=2)
    Reads(monkeypatch, 2, terminate)
    # A session that begins to read misses the snapshot, or the one that has it is used first.
    with pytest.raises(SourceUnavailable, match=r"snapshot|terminating connection"):
        run_apply(options, once=True)
    assert not positions(options)
    run_apply(options, once=True)
    compare(source, options.location, "delta", *NAMES)


def test_a_job_that_is_asked_to_stop_begins_no_further_table(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(source, tmp_path, "delta", copy_sessions=2)
    stop = threading.Event()
    reads = Reads(monkeypatch, 2, lambda _: stop.set())
    caplog.set_level(logging.INFO)
    run_apply(options, once=True, stop=stop)
    assert "stopped while tables were copied" in caplog.text
    assert len(reads.tables) < len(NAMES)
    done = positions(options)
    caplog.clear()
    run_apply(options, once=True)
    assert not any(f"copying public.{name} as of" in caplog.text for name in done)
    compare(source, options.location, "delta", *NAMES)


@pytest.mark.nightly
@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_a_job_that_is_killed_again_and_again_in_its_first_copies(
    empty: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    names = [f"many{number}" for number in range(60)]
    for name in names:
        empty.run(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {name} SELECT i, 'v' || i FROM generate_series(1, 200) i",
        )
    empty.publish(*names)
    folder = options_of(empty, tmp_path, table_format).location.folder
    assert folder is not None
    over = threading.Event()

    def write() -> None:
        with closing(client(empty.conninfo)) as connection:
            while not over.is_set():
                name, number = random.choice(names), random.randrange(1, 300)
                for statement in (
                    f"INSERT INTO {name} VALUES ({number}, 'new') ON CONFLICT (id) DO UPDATE SET v = {name}.v || '!'",
                    f"DELETE FROM {name} WHERE id = {number + 1}",
                ):
                    connection.execute(statement.encode())

    thread = threading.Thread(target=write)
    thread.start()
    words = ["-c", "copy_sessions=4", "--once"]
    kills = 0
    try:
        for _ in range(6):
            job = ApplyProcess(empty, folder, table_format, words)
            before = job.log.read_text().count("copying public.")
            wait_until(
                lambda job=job, before=before: (
                    not job.is_running or job.log.read_text().count("copying public.") > before
                )
            )
            kill_at = time.monotonic() + random.random()
            wait_until(lambda job=job, kill_at=kill_at: not job.is_running or time.monotonic() > kill_at)
            kills += job.is_running
            job.kill9()
    finally:
        over.set()
        thread.join()
    last = ApplyProcess(empty, folder, table_format, words)
    assert last.wait() == 0, last.log.read_text()
    assert kills, last.log.read_text()
    compare(empty, folder, table_format, *names)
