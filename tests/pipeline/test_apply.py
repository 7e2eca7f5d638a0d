"""Tables that follow a database: whatever happens to either side, the rows are the same in the end."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError, WalproxyError
from tests.pipeline.apply_fixtures import (
    PGBENCH_TABLES,
    ApplyProcess,
    compare,
    make_bench,
    options_of,
    pgbench,
    rows_here,
    start_bench,
)
from tests.pipeline.logical_server import Source, client, wait_until
from walproxy.pipeline.cdc.apply import copying as copying_module
from walproxy.pipeline.cdc.apply import job as job_module
from walproxy.pipeline.cdc.apply.delta import DeltaFollowing
from walproxy.pipeline.cdc.apply.job import ApplyOptions, opened_job, run_apply
from walproxy.pipeline.cdc.apply.job_file import only_job
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.change_feed import ChangeFeed
from walproxy.pipeline.cdc.publication import TableName, parse_table
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.cdc.server import Connection, SourceRefused, SourceUnavailable
from walproxy.pipeline.cdc.slot import drop_slot, usable_slot
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.lake.location import LakeLocation

SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, big text, n numeric(12,2), at timestamptz)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE u (a text, b date, c smallint, PRIMARY KEY (b, a))",
    "CREATE TABLE log (x int, y text)",
    "INSERT INTO t SELECT i, 'v' || i, repeat('x', 3000) || i, i * 1.5, now() FROM generate_series(1, 200) i",
    "INSERT INTO u SELECT 'k' || i, '2024-01-01'::date + i, i FROM generate_series(1, 50) i",
    "INSERT INTO log VALUES (1, 'copied'), (1, 'copied')",
)
TABLES = ("t", "u", "log")


@pytest.fixture
def source(empty: Source) -> Source:
    empty.run(*SETUP)
    empty.publish(*TABLES)
    return empty


STORY: tuple[tuple[str, ...], ...] = (
    (),
    (
        "UPDATE t SET v = 'w' WHERE id <= 10",
        "UPDATE t SET id = id + 1000 WHERE id BETWEEN 5 AND 8",
        "DELETE FROM t WHERE id BETWEEN 20 AND 30",
        "UPDATE t SET id = 201, v = 'z' WHERE id = 200",
        "INSERT INTO t VALUES (200, 'again', NULL, NULL, NULL)",
        "UPDATE u SET c = -1 WHERE a = 'k5'",
        "UPDATE u SET a = 'q6' WHERE a = 'k6'",
        "INSERT INTO log SELECT 2, 'l' FROM generate_series(1, 50)",
    ),
    (
        "TRUNCATE u, log",
        "INSERT INTO u VALUES ('only', '2000-01-01', 0)",
        "UPDATE t SET v = 'before' WHERE id = 60",
        "ALTER TABLE t ADD COLUMN plain int",
        "UPDATE t SET plain = 5, v = 'p' WHERE id = 50",
        "UPDATE t SET big = NULL WHERE id = 51",
    ),
    ("ALTER TABLE t RENAME COLUMN plain TO simple", "UPDATE t SET v = 's' WHERE id = 61"),
    ("ALTER TABLE t ADD COLUMN filled int DEFAULT 7, DROP COLUMN at", "UPDATE t SET v = 'd' WHERE id = 52"),
    ("ALTER TABLE t RENAME COLUMN v TO w", "UPDATE t SET w = 'r' WHERE id = 53"),
    (
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, w)",
        "INSERT INTO t (id, w) VALUES (54, 'another')",
        "UPDATE t SET w = 'k', big = 'small' WHERE id = 54 AND w <> 'another'",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "INSERT INTO u VALUES ('x', '2000-01-01', 1)",
        "UPDATE u SET a = 'y', c = 3 WHERE a = 'x'",
        "CREATE TABLE late (id bigint PRIMARY KEY)",
        "INSERT INTO late VALUES (1)",
        'ALTER PUBLICATION "my pub" ADD TABLE late',
        "INSERT INTO late VALUES (2)",
    ),
)


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_tables_follow_changes_of_rows_and_of_columns(
    source: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    options = options_of(source, tmp_path, table_format)
    for chapter in STORY:
        source.run(*chapter)
        end_lsn = source.end_lsn()
        run_apply(options, once=True)
        compare(source, options.location, table_format, *TABLES)
        assert usable_slot(source.connection, source.slot)[1] >= end_lsn
    compare(source, options.location, table_format, "late")


def test_a_column_that_is_dropped_keeps_its_old_values(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)
    run_apply(options, once=True)
    source.run("ALTER TABLE t DROP COLUMN n", "UPDATE t SET v = 'd' WHERE id = 2", "INSERT INTO t VALUES (999)")
    run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)
    found = rows_here(options.location, "delta", TableName("public", "t")).to_pylist()
    values = {row["id"]: row["n"] for row in found}
    assert (values[1], values[2], values[999]) == (Decimal("1.50"), None, None)


class Crash(BaseException):
    """The end of the process, as far as the job can tell."""


def crash_once(function: Callable[..., Any], at_call: int = 1, *, after: bool = False) -> Callable[..., Any]:
    """Return the function, which ends everything at one of its calls: before it has done anything, or after all."""
    calls = 0

    def crashing(*words: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at_call and not after:
            raise Crash
        result = function(*words, **named)
        if calls == at_call:
            raise Crash
        return result

    return crashing


@pytest.mark.parametrize("crash_at", ["merge 1", "merge 2", "merge 3", "merged 2", "note", "noted", "slot", "moved"])
def test_a_crash_at_any_point_of_a_step_loses_nothing_and_repeats_nothing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: str
) -> None:
    # So little is held at once that a transaction is applied in several commits.
    options = options_of(source, tmp_path, memory_bytes=5000)
    run_apply(options, once=True)
    source.run(
        "INSERT INTO log SELECT i, 'l' FROM generate_series(1, 100) i",
        "WITH moved AS (UPDATE t SET id = id + 1000 RETURNING id) INSERT INTO log SELECT id, 'm' FROM moved",
        "UPDATE u SET c = c + 1",
    )
    what, _, call = crash_at.partition(" ")
    with monkeypatch.context() as patched:
        if what in ("merge", "merged"):
            crashing = crash_once(DeltaFollowing.merge, int(call), after=what == "merged")
            patched.setattr(DeltaFollowing, "merge", crashing)
        elif what in ("note", "noted"):
            # The first note is that of the start.
            patched.setattr(job_module, "write_job", crash_once(job_module.write_job, 2, after=what == "noted"))
        else:
            patched.setattr(ChangeFeed, "confirm", crash_once(ChangeFeed.confirm, after=what == "moved"))
        with pytest.raises(Crash):
            run_apply(options, once=True)
    source.run("UPDATE t SET v = 'after'", "INSERT INTO log VALUES (7, 'after')")
    run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)


MIDDLES = {
    "too much to be held": ("INSERT INTO log SELECT i, 'l' FROM generate_series(1, 1000) i",),
    "another layout": (
        "BEGIN; INSERT INTO log VALUES (8, 'before'); ALTER TABLE log ADD z int; INSERT INTO log VALUES (8, 'z'); "
        "COMMIT",
    ),
}


@pytest.mark.parametrize("middle", MIDDLES)
def test_no_part_of_a_transaction_is_shown_before_the_quorum_has_all_of_its_commit_record(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, middle: str
) -> None:
    options = options_of(source, tmp_path, memory_bytes=5000 if middle == "too much to be held" else 1 << 20)
    run_apply(options, once=True)
    source.begin_lsn = usable_slot(source.connection, source.slot)[1]
    source.run("INSERT INTO log VALUES (7, 'whole')", *MIDDLES[middle])
    commit_lsn = source.changes()[-1].transaction.commit_lsn
    quorum_lsn = commit_lsn + 8

    def wait_for(self: SafeLsn, connection: Connection, lsn: int, timeout_s: float) -> None:
        if lsn > quorum_lsn:
            raise SourceUnavailable("the quorum has the beginning of the record only")

    with monkeypatch.context() as patched:
        patched.setattr(SafeLsn, "read", lambda self, connection: quorum_lsn)
        patched.setattr(SafeLsn, "wait_for", wait_for)
        with pytest.raises(SourceUnavailable, match="the beginning of the record only"):
            run_apply(options, once=True)
    shown = rows_here(options.location, "delta", TableName("public", "log")).to_pylist()
    assert {row["y"] for row in shown} <= {"copied", "whole"}
    run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)


def test_a_column_that_was_added_before_a_crash_is_not_mistaken_for_a_later_one(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(source, tmp_path)
    with (
        monkeypatch.context() as patched,
        only_job(options.location),
        opened_job(options, first=True, ends=True) as job,
    ):
        job.copy_missing()
        source.run("ALTER TABLE u ADD plain int", "UPDATE u SET plain = 5 WHERE a = 'k5'")
        patched.setattr(job_module.ApplyJob, "_flush", crash_once(job_module.ApplyJob._flush, after=True))
        with pytest.raises(Crash):
            job.step()
    source.run("ALTER TABLE u DROP plain", "ALTER TABLE u ADD plain int")
    run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_a_crash_in_the_first_copy_begins_it_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: TableFormat
) -> None:
    options = options_of(source, tmp_path, table_format)
    kind = type(following_table(LakeLocation.parse(tmp_path), table_format, TableName("public", "t")))
    with monkeypatch.context() as patched:
        patched.setattr(kind, "replace_by_files", crash_once(kind.replace_by_files, 2))
        with pytest.raises(Crash):
            run_apply(options, once=True)
    source.run("INSERT INTO log VALUES (2, 'between')", "DELETE FROM t WHERE id = 1", "TRUNCATE u")
    run_apply(options, once=True)
    compare(source, options.location, table_format, *TABLES)


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.nightly)])
def test_a_job_that_is_killed_under_load_ends_with_the_rows_of_the_source(
    empty: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    make_bench(empty)
    empty.publish()
    folder = tmp_path / "lake"
    load = start_bench(empty, 60, "--rate=200")
    try:
        job = ApplyProcess(empty, folder, table_format)
        job.wait_for_steps(1)
        empty.run("ALTER TABLE pgbench_tellers ADD COLUMN extra int", "UPDATE pgbench_tellers SET extra = tid")
        job.kill9()
        steps = job.log.read_text().count(" changes, up to ")
        job = ApplyProcess(empty, folder, table_format)
        job.wait_for_steps(steps + 1)
        load.kill()
        assert job.stop() == 0, job.log.read_text()
    finally:
        load.kill()
        load.wait()
        job.kill9()
    pgbench(empty, "--transactions=20", "--no-vacuum")
    last = ApplyProcess(empty, folder, table_format, ["--once"])
    assert last.wait() == 0, last.log.read_text()
    assert empty.rows("SELECT count(*) > 20 FROM pgbench_history") == [(True,)]
    compare(empty, folder, table_format, *PGBENCH_TABLES)


def test_a_server_that_is_away_is_waited_for_and_a_job_ends_when_it_is_asked_to(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_module, "_RETRY_S", 0.1)
    options = options_of(source, tmp_path, interval_s=0.05)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(run_apply, options, once=False, stop=stop)
        try:
            wait_until(lambda: job.done() or usable_slot(source.connection, source.slot)[1] > source.begin_lsn)
            source.connection.close()
            source.server.stop("fast")
            wait_until(lambda: job.done() or "retrying in" in caplog.text)
            source.server.start()
            source.connection = client(source.conninfo)
            source.run("DELETE FROM t WHERE id < 100")
            end_lsn = source.end_lsn()
            wait_until(lambda: job.done() or usable_slot(source.connection, source.slot)[1] >= end_lsn)
        finally:
            stop.set()
        job.result(60)
    compare(source, options.location, "delta", *TABLES)


def refused(options: ApplyOptions, says: str, kind: type[WalproxyError] = SourceRefused) -> None:
    with pytest.raises(kind, match=says) as raised:
        run_apply(options, once=True)
    assert "\n" not in str(raised.value)


def test_a_table_of_another_type_or_another_table_of_the_name_is_copied_again(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)
    run_apply(options, once=True)
    source.run("ALTER TABLE t ALTER v TYPE int USING 5", "UPDATE t SET v = 6 WHERE id = 1")
    source.run("DROP TABLE u", "CREATE TABLE u (a int PRIMARY KEY)", 'ALTER PUBLICATION "my pub" ADD TABLE u')
    source.run("INSERT INTO u VALUES (1)")
    run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)


def test_a_lost_slot_means_to_start_over(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)
    run_apply(options, once=True)
    drop_slot(source.connection, source.slot)
    source.run("DELETE FROM t WHERE id = 3")
    refused(options, "slot .* is missing: changes since .* may be lost.*--start-over")
    run_apply(options._replace(start_over=True), once=True)
    compare(source, options.location, "delta", *TABLES)


def test_what_cannot_work_is_refused_before_anything_is_written(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)
    source.run("ALTER TABLE log REPLICA IDENTITY FULL")
    refused(options, r"1 tables are quarantined.*public\.log has a full replica identity and no primary key.*--table")
    compare(source, options.location, "delta", "t", "u")
    some = options._replace(tables=frozenset([parse_table("t")]))
    run_apply(some, once=True)
    source.run("DELETE FROM log", "DELETE FROM t WHERE id = 3")
    run_apply(some, once=True)
    compare(source, options.location, "delta", "t")
    refused(some._replace(format="iceberg"), "follow the format delta, not iceberg", ConfigurationError)
    source.run("""ALTER PUBLICATION "my pub" SET (publish = 'insert')""")
    refused(some, "does not send all changes")
    refused(some._replace(publications=("other",)), "publication 'other' does not exist")


def test_a_value_that_no_type_of_the_table_holds_can_be_kept_as_text(source: Source, tmp_path: Path) -> None:
    source.run("INSERT INTO u VALUES ('x', 'infinity', 1)")
    options = options_of(source, tmp_path)
    refused(options, r"public\.u\.b has the value 'infinity'.*read as text")
    with_text = options._replace(as_text=frozenset(["public.u.b"]))
    run_apply(with_text, once=True)
    source.run("UPDATE u SET b = '-infinity' WHERE a = 'x'")
    run_apply(with_text, once=True)
    compare(source, options.location, "delta", *TABLES)
    refused(options, "was copied with other columns as text", ConfigurationError)


OF_THE_SITE = {
    "statement_timeout": "1s",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "1s",
    "idle_session_timeout": "1s",
    "transaction_timeout": "1s",
}


def test_timeouts_that_a_site_sets_for_everybody_end_neither_a_copy_nor_a_step(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OF_THE_SITE.items():
        source.server.execute(f"ALTER ROLE postgres IN DATABASE {source.name} SET {name} = '{value}'")
    delays = []

    def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*words: Any, **named: Any) -> Any:
            result = function(*words, **named)
            [(waited,)] = source.server.execute("SELECT clock_timestamp() - statement_timestamp() FROM pg_sleep(1.5)")
            delays.append(waited)
            return result

        return slow

    # Each of these sessions is idle, or in its transaction, for longer than the site's limits.
    monkeypatch.setattr(copying_module, "published_tables", slowly(copying_module.published_tables))
    monkeypatch.setattr(job_module, "opened_job", slowly(job_module.opened_job))
    options = options_of(source, tmp_path)
    run_apply(options, once=True)
    source.run("INSERT INTO t (id, v) VALUES (9001, 'later')")
    run_apply(options, once=True)
    assert delays
    compare(source, options.location, "delta", *TABLES)
