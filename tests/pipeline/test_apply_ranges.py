"""Copies of large tables in ranges, by several sessions: rows of one position, whatever happens meanwhile."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from safekeeper.base.errors import ConfigurationError
from tests.integration.archive.object_stores import Server
from tests.pipeline.apply_fixtures import ApplyProcess, compare, options_of, rows_here
from tests.pipeline.formats import MOSTLY_DELTA, MOSTLY_ICEBERG
from tests.pipeline.logical_server import Source, client, logical_server, wait_until
from tests.torture.majors import all_servers
from walproxy.cli.pipeline_commands.cdc import cdc
from walproxy.pipeline.cdc.apply import table_copy
from walproxy.pipeline.cdc.apply.copy_ranges import CopyRange
from walproxy.pipeline.cdc.apply.copy_state import CopyStateFile
from walproxy.pipeline.cdc.apply.copying import copied_rows
from walproxy.pipeline.cdc.apply.job import ApplyOptions, TablesQuarantined, run_apply
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.apply.parallel_copy import CopyProgress
from walproxy.pipeline.cdc.apply.status_files import metrics_text, read_status
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.server import Connection
from walproxy.pipeline.cdc.slot import create_slot
from walproxy.pipeline.cdc.slot_stream import Stopped
from walproxy.pipeline.choices import TABLE_FORMATS, FollowingMode, TableFormat
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.postgres.local_server import LocalPostgres

NAME = TableName("public", "big")
RANGE_BYTES = 128 << 10
ROWS = 12_000
SETUP = (
    "CREATE TABLE big (id int PRIMARY KEY, v text, far text, note bytea)",
    "ALTER TABLE big ALTER far SET STORAGE EXTERNAL",
    rf"""INSERT INTO big SELECT i, 'v\t' || i || E'\t\n\\', CASE WHEN i % 500 = 0 THEN repeat('x', 3000) || i END,
        decode(lpad(to_hex(i), 8, '0'), 'hex') FROM generate_series(1, {ROWS}) i""",
    # Space in early ranges, into which updates move rows of later ranges.
    "DELETE FROM big WHERE id BETWEEN 1000 AND 3000",
    "VACUUM big",
)
WRITES = (
    "UPDATE big SET v = v || '!' WHERE id % 100 = 7",
    "UPDATE big SET v = 'far stays' WHERE id % 1000 = 0",
    "DELETE FROM big WHERE id % 97 = 0",
    "INSERT INTO big SELECT coalesce(max(id), 0) + 1, 'new' FROM big",
    "UPDATE big SET id = -id WHERE id % 1000 = 1",
)


@pytest.fixture(scope="module")
def old_server() -> Iterator[LocalPostgres]:
    with logical_server(15) as made:
        yield made


def filled(source: Source) -> Source:
    source.run(*SETUP)
    source.publish("big")
    return source


@pytest.fixture
def source(empty: Source) -> Source:
    return filled(empty)


def ranged(source: Source, place: Path | LakeLocation, table_format: TableFormat, **more: Any) -> ApplyOptions:
    return options_of(source, place, table_format, copy_range_bytes=RANGE_BYTES, **more)


class Watch:
    """Notes the progress of copies, and calls something when so many ranges are done for the first time."""

    def __init__(self, at: int = 0, action: Callable[[], object] = lambda: None) -> None:
        self.seen: list[CopyProgress] = []
        self._at = at
        self._action: Callable[[], object] | None = action

    def __call__(self, progress: CopyProgress) -> None:
        self.seen.append(progress)
        if self._action is not None and progress.done >= self._at:
            action, self._action = self._action, None
            action()


class Reads:
    """Counts the ranges that are read, and calls something before one is, with the session that does."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, before: Callable[[int, Connection], None] | None = None
    ) -> None:
        self.count = 0
        self._before = before
        self._lock = threading.Lock()
        self._real = copied_rows
        monkeypatch.setattr(table_copy, "copied_rows", self._rows)

    def _rows(self, connection: Connection, *words: Any) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self.count += 1
            number = self.count
        if self._before is not None:
            self._before(number, connection)
        yield from self._real(connection, *words)


def stopped_after(options: ApplyOptions, ranges: int) -> int:
    """Run a job that is asked to end when it has copied so many ranges; return how many its state has.

    The last range of the table is not read: else the copy might be complete before the job looks.
    """
    stop = threading.Event()
    rows = table_copy.TableCopy._rows

    def held_back(copy: table_copy.TableCopy, session: Connection, each: CopyRange) -> Iterator[pa.RecordBatch]:
        if each.end is None:
            assert stop.wait(60)
            raise Stopped("the copy is over")
        yield from rows(copy, session, each)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table_copy.TableCopy, "_rows", held_back)
        run_apply(options, once=True, stop=stop, on_copy=Watch(ranges, stop.set))
    with closing(following_table(options.location, options.format, NAME)) as table:
        state = CopyStateFile(options.location, table).read()
    assert state is not None and state.done >= ranges
    return state.done


def files_of_copies(options: ApplyOptions) -> list[Path]:
    folder = options.location.folder
    assert folder is not None
    return [*folder.rglob("copy-*.parquet"), *folder.glob("_walproxy_apply/copies/*.json")]


@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
@pytest.mark.parametrize("sessions", [1, 3])
def test_a_copy_in_ranges_has_the_rows_of_one_position_while_others_write(
    source: Source, tmp_path: Path, table_format: TableFormat, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ranged(source, tmp_path, table_format, copy_sessions=sessions)
    following = following_table(options.location, table_format, NAME)
    at_copy = source.rows("SELECT count(*), sum(id) FROM big")

    def write(number: int, connection: Connection) -> None:
        if number == 2:
            source.run(*WRITES)
            with closing(following_table(options.location, table_format, NAME)) as table:
                assert table.position() is None, "no reader sees a part of the copy"

    reads = Reads(monkeypatch, write)
    watch = Watch()
    stop = threading.Event()
    real_commit = table_copy.TableCopy.commit

    def look_and_commit(copy: table_copy.TableCopy, note: Callable[[], None]) -> None:
        with closing(following_table(options.location, table_format, NAME)) as table:
            assert table.position() is None
        stop.set()  # The job ends after the copy, before it follows.
        real_commit(copy, note)

    with monkeypatch.context() as patched:
        patched.setattr(table_copy.TableCopy, "commit", look_and_commit)
        run_apply(options, once=True, stop=stop, on_copy=watch)
    copied = rows_here(options.location, table_format, NAME)
    ids = copied["id"].to_pylist()
    assert [(len(ids), sum(ids))] == at_copy
    assert reads.count == watch.seen[-1].ranges >= 6
    assert [each.done for each in watch.seen] == sorted({each.done for each in watch.seen})
    following.close()
    run_apply(options, once=True)
    compare(source, options.location, table_format, "big")
    assert all(each.is_same for each in run_verify(options, repair=False))


@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_on_postgres_15_too(old_server: LocalPostgres, tmp_path: Path, table_format: TableFormat) -> None:
    with closing(Source(old_server)) as source:
        filled(source)
        options = ranged(source, tmp_path, table_format)
        assert stopped_after(options, 2) >= 2
        source.run(*WRITES)
        run_apply(options, once=True)
        compare(source, options.location, table_format, "big")
        assert all(each.is_same for each in run_verify(options, repair=False))


@pytest.mark.nightly
@pytest.mark.parametrize("major", [13, 14, 16, 17])
def test_on_every_major(major: int, tmp_path: Path) -> None:
    """PostgreSQL 13 would read all blocks for each range, so that a partition is the least that a session reads."""
    if major not in all_servers():
        pytest.skip(f"no PostgreSQL {major} on this machine: make majors")
    with logical_server(major, all_servers()) as server, closing(Source(server)) as source:
        source.run(
            *SETUP,
            "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
            *(
                f"CREATE TABLE p{number} PARTITION OF parts FOR VALUES FROM ({number}000) TO ({number + 1}000)"
                for number in range(3)
            ),
            "INSERT INTO parts SELECT i, repeat('p', 300) || i FROM generate_series(0, 2999) i",
            """CREATE PUBLICATION "my pub" FOR TABLE big, parts WITH (publish_via_partition_root = true)""",
        )
        create_slot(source.connection, source.slot)
        options = ranged(source, tmp_path, "delta", copy_sessions=1)
        parts = TableName("public", "parts")
        tables = options._replace(tables=frozenset({parts}))
        stop = threading.Event()

        def stop_at_the_third(number: int, connection: Connection) -> None:
            if number == 3:
                stop.set()
                connection.execute("SELECT pg_sleep(60)")  # It is cancelled.

        with pytest.MonkeyPatch.context() as patched:
            Reads(patched, stop_at_the_third)
            run_apply(tables, once=True, stop=stop)
        source.run("UPDATE parts SET v = 'w' WHERE id = 1", *WRITES)
        watch = Watch()
        with pytest.MonkeyPatch.context() as patched:
            reads = Reads(patched)
            run_apply(tables, once=True, on_copy=watch)
        total = watch.seen[-1].ranges
        assert total == 3 if major == 13 else total >= 6
        # One of the two that were copied has changed.
        assert reads.count == total - 1
        watch = Watch()
        run_apply(options, once=True, on_copy=watch)
        of_big = {each.ranges for each in watch.seen if each.table == NAME}
        assert of_big == {0} if major == 13 else min(of_big) >= 6
        source.run("UPDATE big SET v = v || '?' WHERE id % 90 = 7", "DELETE FROM parts WHERE id % 7 = 0")
        run_apply(options, once=True)
        compare(source, options.location, "delta", "big", "parts")
        assert all(each.is_same for each in run_verify(options, repair=False))


CHANGES = {
    "nothing": ((), 0),
    "a row elsewhere on its page": (("UPDATE big SET v = 'w' WHERE id = 10",), 1),
    "a row that goes": (("DELETE FROM big WHERE id = 10",), 1),
    "a row in the place of another one": (("DELETE FROM big WHERE id = 10", "INSERT INTO big VALUES (0, 'other')"), 1),
    "what was rolled back": (("BEGIN; UPDATE big SET v = 'w' WHERE id < 100; DELETE FROM big; ROLLBACK",), 0),
    "rows that are locked": (("SELECT count(*) FROM (SELECT FROM big FOR UPDATE) locked",), 0),
    "frozen rows": (("VACUUM FREEZE big",), 0),
    "a subtransaction": (("BEGIN; SAVEPOINT one; UPDATE big SET v = 'w' WHERE id = 10; RELEASE one; COMMIT",), 1),
}


@pytest.mark.parametrize("changes", CHANGES)
def test_a_copy_continues_with_the_ranges_that_have_not_changed(
    source: Source, tmp_path: Path, changes: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    statements, changed = CHANGES[changes]
    # The last page has space, so that rows of the first range only move there.
    table_format = TABLE_FORMATS[len(changes) % 2]
    options = ranged(source, tmp_path, table_format, copy_sessions=1)
    found = stopped_after(options, 4)
    source.run(*statements)
    caplog.set_level(logging.INFO)
    reads = Reads(monkeypatch)
    watch = Watch()
    run_apply(options, once=True, on_copy=watch)
    total = watch.seen[-1].ranges
    assert f"{found} of {total} ranges had been copied before, and {changed} of them had changed" in caplog.text
    assert reads.count == total - found + changed
    compare(source, options.location, table_format, "big")
    assert len(files_of_copies(options)) == total
    source.run(*WRITES)
    run_apply(options, once=True)
    compare(source, options.location, table_format, "big")


def test_a_copy_that_is_stopped_again_and_again_reads_each_range_once(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ranged(source, tmp_path, "delta", copy_sessions=1)
    reads = Reads(monkeypatch)
    watch = Watch()
    for ranges in (2, 1, 4, 5):
        stopped_after(options, ranges)
    run_apply(options, once=True, on_copy=watch)
    # The range that is being read when the job is to stop is read again.
    assert watch.seen[-1].ranges <= reads.count <= watch.seen[-1].ranges + 4
    compare(source, options.location, "delta", "big")


def test_what_no_longer_fits_is_read_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = ranged(source, tmp_path, "delta", copy_sessions=1)
    stopped_after(options, 3)
    files_of_copies(options)[0].unlink()
    assert stopped_after(options, 4) >= 4
    for statement in (
        "ALTER TABLE big ADD COLUMN more int",
        "VACUUM FULL big",
        """ALTER PUBLICATION "my pub" SET TABLE big WHERE (id > 0)""",
    ):
        source.run(statement)
        before = set(files_of_copies(options))
        reads = Reads(monkeypatch)
        stopped_after(options, 1)
        assert reads.count >= 1
        assert before & set(files_of_copies(options)) <= set(files_of_copies(options)[-1:]), "the old files are gone"
    run_apply(options, once=True)
    compare(source, options.location, "delta", "big")
    assert "had been copied before" not in caplog.text


@pytest.mark.parametrize("mode", ["append", "soft-delete"])
@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
def test_the_other_modes_copy_in_ranges_and_continue(
    source: Source, tmp_path: Path, table_format: TableFormat, mode: FollowingMode, caplog: pytest.LogCaptureFixture
) -> None:
    options = ranged(source, tmp_path, table_format, mode=mode)
    stopped_after(options, 3)
    source.run("UPDATE big SET v = 'w' WHERE id = 10")
    caplog.set_level(logging.INFO)
    run_apply(options, once=True)
    assert "ranges had been copied before" in caplog.text
    rows = rows_here(options.location, table_format, NAME)
    assert rows.num_rows == source.rows("SELECT count(*) FROM big")[0][0]
    if mode == "append":
        assert len(set(rows["_commit_lsn"].to_pylist())) == 1, "all rows have the position of the whole copy"
    assert not files_of_copies(options)
    source.run(*WRITES)
    assert all(each.is_same for each in run_verify(options, repair=False))


def test_a_range_whose_session_is_lost_is_read_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = ranged(source, tmp_path, "delta")

    def terminate(number: int, connection: Connection) -> None:
        if number in (2, 5):
            source.rows(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)")

    reads = Reads(monkeypatch, terminate)
    watch = Watch()
    run_apply(options, once=True, on_copy=watch)
    assert caplog.text.count("the range is read again") == 2
    assert reads.count == watch.seen[-1].ranges + 2
    compare(source, options.location, "delta", "big")


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.nightly)])
def test_a_job_that_is_killed_in_its_first_copy_ends_with_the_rows_of_the_source(
    empty: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    empty.run(
        "CREATE TABLE big (id int PRIMARY KEY, v text, far text)",
        "ALTER TABLE big ALTER far SET STORAGE EXTERNAL",
        """INSERT INTO big SELECT i, repeat(md5(i::text), 4), CASE WHEN i % 50 = 0 THEN repeat('x', 4000) || i END
           FROM generate_series(1, 150000) i""",
    )
    empty.publish("big")
    options = options_of(empty, tmp_path, table_format)
    folder = options.location.folder
    assert folder is not None
    state = folder / "_walproxy_apply" / "copies" / "public.big.json"
    over = threading.Event()

    def write() -> None:
        with closing(Writer(empty)) as writer:
            while not over.is_set():
                writer.write()

    thread = threading.Thread(target=write)
    thread.start()
    kills = 0
    words = ["-c", "copy_range_size=1MB", "--once"]
    try:
        for _ in range(3):
            kills += killed_in_copy(ApplyProcess(empty, folder, table_format, words), state)
    finally:
        over.set()
        thread.join()
    last = ApplyProcess(empty, folder, table_format, words)
    assert last.wait() == 0, last.log.read_text()
    assert kills and "ranges had been copied before" in last.log.read_text(), last.log.read_text()
    compare(empty, folder, table_format, "big")
    assert all(each.is_same for each in run_verify(options, repair=False))


def killed_in_copy(job: ApplyProcess, state: Path) -> bool:
    """Kill a job some time after it has copied a range; return whether it was still running."""
    before = state.read_bytes() if state.exists() else b""
    wait_until(lambda: not job.is_running or (state.exists() and state.read_bytes() != before))
    kill_at = time.monotonic() + random.random()
    wait_until(lambda: not job.is_running or time.monotonic() > kill_at)
    was_running = job.is_running
    job.kill9()
    return was_running


class Writer:
    """Another session, which updates, moves, deletes and inserts rows."""

    def __init__(self, source: Source) -> None:
        self._connection = client(source.conninfo)

    def write(self) -> None:
        number = random.randrange(1, 150_000)
        for statement in (
            f"UPDATE big SET v = 'w' WHERE id BETWEEN {number} AND {number + 20}",
            f"DELETE FROM big WHERE id = {number + 30}",
            f"INSERT INTO big VALUES ({number + 30}, 'again') ON CONFLICT DO NOTHING",
            f"DELETE FROM big WHERE id = {-number - 40}",
            f"UPDATE big SET id = -id WHERE id = {number + 40}",
        ):
            self._connection.execute(statement.encode())

    def close(self) -> None:
        self._connection.close()


def test_partitions_children_filters_and_tables_without_a_key(
    empty: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.run(
        "CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF parts FOR VALUES FROM (0) TO (5000)",
        # The columns of a partition may be in another order.
        "CREATE TABLE p2 (v text, gone int, id int NOT NULL)",
        "ALTER TABLE p2 DROP gone",
        "ALTER TABLE parts ATTACH PARTITION p2 FOR VALUES FROM (5000) TO (9000)",
        "CREATE TABLE p3 PARTITION OF parts FOR VALUES FROM (9000) TO (10000) PARTITION BY RANGE (id)",
        "CREATE TABLE p31 PARTITION OF p3 FOR VALUES FROM (9000) TO (10000)",
        "INSERT INTO parts SELECT i, repeat('p', 50) || i FROM generate_series(0, 9999) i",
        "CREATE TABLE log (x int, y text)",
        "INSERT INTO log SELECT i % 10, repeat('l', 60) FROM generate_series(1, 9000) i",
        "CREATE TABLE child (z int) INHERITS (log)",
        "INSERT INTO child SELECT i, 'child', i FROM generate_series(1, 5000) i",
        "CREATE TABLE few (id int PRIMARY KEY, v text)",
        "INSERT INTO few SELECT i, repeat('s', 60) FROM generate_series(1, 9000) i",
        """CREATE PUBLICATION "my pub" FOR TABLE parts, ONLY log, few WHERE (id % 2 = 0)
           WITH (publish_via_partition_root = true)""",
    )
    reads = Reads(monkeypatch)
    watch = Watch()
    options = ranged(empty, tmp_path, "delta")
    run_apply(options, once=True, on_copy=watch)
    compare(empty, options.location, "delta", "parts")
    found = {name: rows_here(options.location, "delta", TableName("public", name)) for name in ("log", "few")}
    assert found["log"].num_rows == 9000
    assert sorted(found["few"]["id"].to_pylist()) == list(range(2, 9001, 2))
    totals = {each.table.name: each.ranges for each in watch.seen}
    assert reads.count == sum(totals.values()) and min(totals.values()) >= 5


def test_a_partition_without_a_right_to_it_is_read_through_its_table(empty: Source, tmp_path: Path) -> None:
    empty.run(
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF parts FOR VALUES FROM (0) TO (10000)",
        "INSERT INTO parts SELECT i, repeat('p', 50) || i FROM generate_series(0, 9999) i",
        """CREATE PUBLICATION "my pub" FOR TABLE parts WITH (publish_via_partition_root = true)""",
        f"CREATE ROLE {empty.name} LOGIN REPLICATION",
        f"GRANT SELECT ON parts TO {empty.name}",
    )
    watch = Watch()
    options = ranged(empty, tmp_path, "delta")
    options = options._replace(conninfo=empty.server.conninfo(dbname=empty.name, user=empty.name))
    try:
        run_apply(options, once=True, on_copy=watch)
        assert [each.ranges for each in watch.seen] == [0]
        compare(empty, options.location, "delta", "parts")
        empty.run(f"GRANT SELECT ON p1 TO {empty.name}")
        run_apply(options._replace(start_over=True), once=True, on_copy=watch)
        assert watch.seen[-1].ranges >= 5
        compare(empty, options.location, "delta", "parts")
    finally:
        empty.run(f"DROP OWNED BY {empty.name}", f"DROP ROLE {empty.name}")


def test_a_value_that_cannot_be_stored_quarantines_the_table_or_makes_its_column_text(
    empty: Source, tmp_path: Path
) -> None:
    empty.run(
        "CREATE TABLE big (id int PRIMARY KEY, at date, v text)",
        "INSERT INTO big SELECT i, '2024-01-01', repeat('v', 60) FROM generate_series(1, 9000) i",
        "UPDATE big SET at = 'infinity' WHERE id = 8000",
    )
    empty.publish("big")
    options = ranged(empty, tmp_path, "delta")
    with pytest.raises(TablesQuarantined, match=r"public\.big\.at has the value 'infinity'"):
        run_apply(options, once=True)
    run_apply(options._replace(on_bad_value="text"), once=True)
    compare(empty, options.location, "delta", "big")
    watch = Watch()
    run_apply(options._replace(on_bad_value="null", start_over=True), once=True, on_copy=watch)
    found = rows_here(options.location, "delta", TableName("public", "big")).to_pylist()
    assert [row["id"] for row in found if row["at"] is None] == [8000]
    assert len(files_of_copies(options)) >= watch.seen[-1].ranges  # The table's, and those of its former state.


@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_a_copy_into_an_object_store_continues(
    source: Source,
    tmp_path: Path,
    moto: Server,
    table_format: TableFormat,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = moto.place(f"ranges-{table_format}-{source.name}")
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if table_format == "iceberg" else {}
    options = ranged(source, LakeLocation.parse(place.url, place.options, catalog), table_format)
    stopped_after(options, 3)
    source.run(*WRITES[1:2])
    caplog.set_level(logging.INFO)
    run_apply(options, once=True)
    assert "ranges had been copied before" in caplog.text
    compare(source, options.location, table_format, "big")
    keys = [info.key for info in options.location.store().list() if "copies" in info.key]
    assert not keys


def test_the_status_shows_how_many_ranges_are_copied(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ranged(source, tmp_path, "delta", copy_sessions=1)
    shown: list[str] = []

    def look(number: int, connection: Connection) -> None:
        if number == 1:
            status = read_status(options.location)
            words = ["status", "--primary", source.conninfo, "--slot", source.slot, "--to", str(options.location)]
            shown.append(CliRunner().invoke(cdc, words).output)
            shown.append(metrics_text(status).decode())

    Reads(monkeypatch, look)
    watch = Watch()
    run_apply(options, once=True, on_copy=watch)
    total = watch.seen[-1].ranges
    assert f"public.big: being copied, 0 of {total} ranges" in shown[0]
    assert f'walproxy_apply_copy_ranges{{table="public.big"}} {total}\n' in shown[1]
    assert 'walproxy_apply_copy_ranges_done{table="public.big"} 0\n' in shown[1]
    assert "walproxy_apply_copy_ranges{" not in metrics_text(read_status(options.location)).decode()


def test_more_sessions_than_the_server_permits_are_refused(source: Source, tmp_path: Path) -> None:
    limit = int(source.rows("SHOW max_connections")[0][0])
    with pytest.raises(ConfigurationError, match=r"copy_sessions \d+: the server permits \d+ connections.*at most"):
        run_apply(ranged(source, tmp_path, "delta", copy_sessions=limit), once=True)
