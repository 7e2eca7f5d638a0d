"""Tables in S3 (moto) that follow tables of a database: kills, lost replies, two jobs."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from click.testing import CliRunner

from safekeeper.base.errors import ConfigurationError, StorageFailed
from tests.integration.archive.faulty_relay import FaultyRelay, Forward, Request, answer, drop_the_answer
from tests.integration.archive.object_stores import Server
from tests.pipeline.apply_fixtures import ApplyProcess, compare, options_of
from tests.pipeline.formats import MOSTLY_DELTA
from tests.pipeline.logical_server import Source, wait_until
from walproxy.cli.pipeline_commands.cdc import cdc
from walproxy.pipeline.cdc.apply import delta, iceberg
from walproxy.pipeline.cdc.apply import job as job_module
from walproxy.pipeline.cdc.apply.delta import DeltaFollowing
from walproxy.pipeline.cdc.apply.following import FollowingTable, Merge, Position, no_check
from walproxy.pipeline.cdc.apply.job import ApplyJob, ApplyOptions, opened_job, run_apply
from walproxy.pipeline.cdc.apply.job_file import only_job
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.apply.status_files import read_status
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.position import TableMoved

SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, big text, n numeric(12,2), at timestamptz)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    'CREATE TABLE "Ü b" (a text, b date, PRIMARY KEY (b, a))',
    "CREATE TABLE log (x int, y text)",
    "INSERT INTO t SELECT i, 'v' || i, repeat('x', 3000) || i, i * 1.5, now() FROM generate_series(1, 200) i",
    "INSERT INTO \"Ü b\" SELECT 'k' || i, '2024-01-01'::date + i FROM generate_series(1, 50) i",
    "INSERT INTO log VALUES (1, 'copied'), (1, 'copied')",
)
TABLES = ("t", "Ü b", "log")
CHANGES = (
    "INSERT INTO t VALUES (1000, 'new', NULL, 1, now())",
    "UPDATE t SET v = 'w' WHERE id <= 10",
    "UPDATE t SET id = id + 1000 WHERE id BETWEEN 5 AND 8",
    "DELETE FROM t WHERE id BETWEEN 20 AND 30",
    "UPDATE \"Ü b\" SET a = 'q6' WHERE a = 'k6'",
    "INSERT INTO log SELECT 2, 'l' FROM generate_series(1, 50)",
)
MORE = (
    "TRUNCATE log",
    "ALTER TABLE t ADD COLUMN plain int",
    "UPDATE t SET plain = 5 WHERE id = 50",
    "ALTER TABLE t RENAME COLUMN plain TO simple",
    "UPDATE t SET v = 's' WHERE id = 61",
    "INSERT INTO log VALUES (3, 'later')",
)


def begun(empty: Source, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Return the database as the tests begin with it; jobs keep their locks in `cache`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    empty.run(*SETUP)
    empty.publish(*TABLES)
    return empty


@pytest.fixture
def source(empty: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    return begun(empty, tmp_path / "cache", monkeypatch)


def located(server: Server, source: Source, endpoint: str = "") -> LakeLocation:
    place = server.place(source.name, endpoint)
    return LakeLocation.parse(place.url, place.options)


@pytest.mark.nightly
def test_tables_in_a_store_follow_and_are_verified(moto: Server, source: Source) -> None:
    options = options_of(source, located(moto, source), memory_bytes=100_000)
    for chapter in ((), CHANGES, MORE):
        source.run(*chapter)
        run_apply(options, once=True)
        compare(source, options.location, "delta", *TABLES)
    assert [each.comparison.rows for each in run_verify(options, repair=False)] == [1, 190, 50]


class Killing:
    """A fault that kills the job which sends a request, before or after the store has carried it out."""

    def __init__(self, *, is_done: bool) -> None:
        self.job: ApplyProcess | None = None
        self._is_done = is_done

    async def __call__(self, request: Request, forward: Forward) -> web.Response:
        assert self.job is not None
        if self._is_done:
            await forward(request)
        os.kill(self.job.pid, signal.SIGKILL)
        return web.Response(status=503)


def test_a_job_that_is_killed_at_a_commit_goes_on_where_its_tables_are(
    moto: Server, source: Source, tmp_path: Path
) -> None:
    options = options_of(source, located(moto, source))
    run_apply(options, once=True)
    source.run(*CHANGES)
    with FaultyRelay(moto.endpoint) as relay:
        # log is first, and has its changes; t does not.
        fault = Killing(is_done=True)
        relay.when("PUT", r"/public\.log/_delta_log/0+1\.json", fault)
        words = (source, tmp_path / "lake", "delta", ["--once"])
        fault.job = ApplyProcess(*words, located(moto, source, relay.endpoint).below("lake"))
        assert fault.job.wait() == -signal.SIGKILL
    found = versions(options, "log"), versions(options, "t")
    assert tuple(map(len, found)) == (2, 1), f"{found}; the job's log:\n{fault.job.log.read_text()}"
    source.run(*MORE)
    run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)
    run_verify(options, repair=False)
    with pytest.raises(ConfigurationError, match=r"follow the slot source.*: name another folder"):
        run_apply(options._replace(slot="another"), once=True)
    settings = ",".join("=".join(each) for each in options.location.options)
    to = ["--to", options.location.url, "-c", f"lake_options={settings}"]
    shown = CliRunner().invoke(cdc, ["status", "--primary", source.conninfo, "--slot", source.slot, *to])
    assert shown.exit_code == 0 and "public.log: following" in shown.output, shown.output


def versions(options: ApplyOptions, table: str) -> list[str]:
    found = options.location.below(f"public.{table}/_delta_log").store().list()
    return [each.key for each in found if each.key.endswith(".json")]


@pytest.mark.nightly
def test_a_commit_whose_reply_was_lost_is_in_once_and_nothing_is_copied(moto: Server, source: Source) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        options = options_of(source, located(moto, source, relay.endpoint))
        relay.when("PUT", r"/public\.t/_delta_log/0+0\.json", drop_the_answer, times=1)
        run_apply(options, once=True)
        source.run(*CHANGES)
        for table in ("log", "t"):
            relay.when("PUT", rf"/public\.{table}/_delta_log/0+1\.json", drop_the_answer, times=1)
        relay.when("PUT", r"/job\.json", drop_the_answer, times=1)
        run_apply(options, once=True)
        assert read_status(options.location).copies == 0
        compare(source, options.location, "delta", *TABLES)
        assert len(versions(options, "t")) == 2


@pytest.mark.nightly
def test_a_store_that_does_not_reply_is_waited_for(
    moto: Server, source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_module, "_RETRY_S", 0.1)
    with FaultyRelay(moto.endpoint) as relay, ThreadPoolExecutor(1) as pool:
        options = options_of(source, located(moto, source, relay.endpoint), interval_s=0.1)
        run_apply(options, once=True)
        source.run(*CHANGES)
        relay.when("PUT", r"/_delta_log/0+1\.json", answer(503, "SlowDown"), times=6)
        stop = threading.Event()
        job = pool.submit(run_apply, options, once=False, stop=stop)
        try:
            wait_until(lambda: job.done() or len(versions(options, "t")) == 2)
        finally:
            stop.set()
        job.result()
        assert "SlowDown: as the test says; retrying in" in caplog.text and "quarantined" not in caplog.text
        compare(source, options.location, "delta", *TABLES)


def end_session(source: Source) -> None:
    """End the session that has the slot."""
    source.run(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{source.slot}' "
        "AND active_pid IS NOT NULL"
    )


def follow_elsewhere(source: Source, options: ApplyOptions) -> None:
    """Be a job on another machine that gets the slot, and follows up to now."""

    def follow() -> None:
        end_session(source)
        source.run("INSERT INTO log (x) VALUES (5)")
        with opened_job(options, first=True, ends=True) as job:
            job.copy_missing()
            job.follow_until_now(threading.Event())

    with ThreadPoolExecutor(1) as pool:  # delta-rs does not begin anything in a thread that it calls from.
        pool.submit(follow).result()


INTERRUPTED: dict[str, tuple[type, str, bool, str]] = {
    "with changes in memory": (ApplyJob, "_take", True, "another job writes to it"),
    "before it notes what it has merged": (ApplyJob, "_flush", True, "replaced by another job"),
    "before a copy": (DeltaFollowing, "replace", False, "replaced by another job"),
}


@pytest.mark.parametrize(
    "moment", [pytest.param(each, marks=[pytest.mark.nightly] if "before" in each else []) for each in INTERRUPTED]
)
def test_a_job_whose_slot_another_one_got_is_stopped(
    moto: Server, source: Source, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    options = options_of(source, located(moto, source))
    run_apply(options, once=True)
    source.run(*CHANGES, "ALTER TABLE log ALTER y TYPE bytea USING y::bytea", "INSERT INTO log VALUES (4, 'b')")
    kind, name, is_after, reason = INTERRUPTED[moment]
    with monkeypatch.context() as patched:
        function = getattr(kind, name)

        def interrupted(*words: Any, **named: Any) -> Any:
            patched.setattr(kind, name, function)
            result = function(*words, **named) if is_after else None
            follow_elsewhere(source, options)
            return result if is_after else function(*words, **named)

        patched.setattr(kind, name, interrupted)
        with pytest.raises(TableMoved, match=reason):
            run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)
    source.run("DELETE FROM t WHERE id = 70")
    run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)


def test_a_copy_is_not_committed_over_that_of_another_job(
    moto: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(source, located(moto, source))
    replace = DeltaFollowing.replace_by_files

    def interrupted(
        self: DeltaFollowing, *words: Any, require_only_job: Callable[[], None] = no_check, **named: Any
    ) -> None:
        def note() -> None:
            require_only_job()
            monkeypatch.setattr(DeltaFollowing, "replace_by_files", replace)
            follow_elsewhere(source, options)

        replace(self, *words, require_only_job=note, **named)

    monkeypatch.setattr(DeltaFollowing, "replace_by_files", interrupted)
    with pytest.raises(TableMoved, match="another job writes to it"):
        run_apply(options, once=True)
    compare(source, options.location, "delta", *TABLES)


SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("v", pa.string())])
NAME = TableName("public", "ü \"'`.x")


def rows_of(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int32()), "v": [f"v{number}" for number in ids]}, SCHEMA)


def merge(*ids: int, gone: Sequence[int] = ()) -> Merge:
    return Merge(False, rows_of(*ids), pa.table({"id": pa.array(gone, pa.int32())}))


def ids_in(table: FollowingTable) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


@pytest.fixture(params=MOSTLY_DELTA)
def new_table(moto: Server, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], FollowingTable]]:
    """A function that opens the same table each time."""
    place = moto.place(prefix_of(request))
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if request.param == "iceberg" else {}
    location = LakeLocation.parse(place.url, place.options, catalog)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(following_table(location, request.param, NAME)))


def prefix_of(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "-", request.node.name)


def test_of_two_jobs_that_know_one_version_of_a_table_one_commits(new_table: Callable[[], FollowingTable]) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(1, 2).to_batches(), Position(1, 0))
    slow = new_table()

    def meanwhile() -> None:
        table.merge(merge(3, gone=[1]), ["id"], Position(2, 0), expected=Position(1, 0))

    with pytest.raises(TableMoved, match="is at position 0/2/0, not 0/1/0"):
        slow.replace(SCHEMA, rows_of(9).to_batches(), Position(5, 0), require_only_job=meanwhile)
    for late in (merge(4), merge(gone=[2]), Merge(True, rows_of(4), pa.table({})), Merge(False, rows_of(4), rows_of())):
        with pytest.raises(TableMoved, match="is at position 0/2/0, not 0/1/0"):
            slow.merge(late, [] if late.deleted.num_columns > 1 else ["id"], Position(3, 0), expected=Position(1, 0))
    assert ids_in(new_table()) == [2, 3] and new_table().position() == Position(2, 0)


def test_of_two_jobs_that_create_one_table_one_does(new_table: Callable[[], FollowingTable]) -> None:
    slow, table = new_table(), new_table()

    def meanwhile() -> None:
        table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))

    with pytest.raises(TableMoved, match="is at position 0/1/0, not none"):
        slow.replace(SCHEMA, rows_of(9).to_batches(), Position(5, 0), require_only_job=meanwhile)
    assert ids_in(new_table()) == [1]


def test_a_commit_whose_reply_was_lost_is_in(moto: Server) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        place = moto.place("lost", relay.endpoint)
        table = DeltaFollowing(LakeLocation.parse(place.url, place.options), NAME)
        for version in range(4):
            relay.when("PUT", rf"/_delta_log/0+{version}\.json", drop_the_answer, times=1)
        table.replace(SCHEMA, rows_of(1, 2).to_batches(), Position(1, 0))
        table.merge(merge(3, gone=[1]), ["id"], Position(2, 0), expected=Position(1, 0))
        table.replace(SCHEMA, rows_of(5).to_batches(), Position(3, 0))
        table.add_columns([pa.field("new", pa.int64())])
        assert table.schema().names == ["id", "v", "new"]
        assert ids_in(table) == [5] and table.position() == Position(3, 0)


def test_a_merge_reads_few_entries_of_a_long_log(moto: Server) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        place = moto.place("long", relay.endpoint)
        table = DeltaFollowing(LakeLocation.parse(place.url, place.options), NAME)
        table.replace(SCHEMA, rows_of(1, 2).to_batches(), Position(1, 0))
        for lsn in range(1, 14):
            before = relay.requests("GET", r"/_delta_log/0+\d+\.json")
            table.merge(merge(1), ["id"], Position(lsn + 1, 0), expected=Position(lsn, 0))
        assert relay.requests("GET", r"/_delta_log/0+\d+\.json") - before < 14


def test_a_table_with_a_missing_or_truncated_file_is_damaged_and_its_store_is_not(
    moto: Server, new_table: Callable[[], FollowingTable], request: pytest.FixtureRequest
) -> None:
    table, prefix = new_table(), prefix_of(request)
    table.replace(SCHEMA, rows_of(1, 2).to_batches(), Position(1, 0))
    (key,) = (key for key in moto.keys(prefix) if key.endswith(".parquet"))
    for harm in (lambda: moto.remove(prefix, key), lambda: moto.write(prefix, key, b"short")):
        harm()
        with pytest.raises(StorageFailed, match=r"^could not merge into the (Iceberg )?table s3://[^\n]*$"):
            table.merge(merge(1), ["id"], Position(2, 0), expected=Position(1, 0))
        with pytest.raises(StorageFailed, match=r"^could not read the (Iceberg )?table s3://[^\n]*$"):
            table.lookup(rows_of(1).select(["id"]), ["v"])
    table.replace(SCHEMA, rows_of(7).to_batches(), Position(2, 0))
    assert ids_in(new_table()) == [7]


def test_old_files_and_versions_are_removed_from_a_store(
    moto: Server,
    new_table: Callable[[], FollowingTable],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delta, "SMALL_FILES_MAX", 3)
    monkeypatch.setattr(iceberg, "SMALL_FILES_MAX", 3)
    table, prefix = new_table(), prefix_of(request)
    table.replace(SCHEMA, [], Position(1, 0))
    table.add_columns([pa.field("new", pa.int64())])
    for number in range(5):
        row = rows_of(number).append_column("new", pa.array([number], pa.int64()))
        change = Merge(False, row, rows_of().select(["id"]))
        table.merge(change, ["id"], Position(2 + number, 0), expected=Position(1 + number, 0))
    table.tidy(timedelta(0))
    files = [key for key in moto.keys(prefix) if key.endswith(".parquet") and "_delta_log" not in key]
    assert len(files) == 1
    assert ids_in(new_table()) == [0, 1, 2, 3, 4] and new_table().position() == Position(6, 0)


def test_a_copy_with_columns_of_other_types_has_nothing_of_the_old_ones(
    new_table: Callable[[], FollowingTable],
) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(1, 2).to_batches(), Position(1, 0))
    others = pa.schema([pa.field("id", pa.int32()), pa.field("new", pa.int64()), pa.field("v", pa.binary())])
    row = {"id": 5, "new": 6, "v": b"\xff"}
    table.replace(others, pa.Table.from_pylist([row], others).to_batches(), Position(2, 0))
    assert new_table().to_arrow().to_pylist() == [row]
    table.add_columns([pa.field("w", pa.string())])
    change = Merge(False, pa.Table.from_pylist([{**row, "w": "x"}], table.schema()), rows_of().select(["id"]))
    table.merge(change, ["id"], Position(3, 0), expected=Position(2, 0))
    assert new_table().to_arrow().to_pylist() == [{**row, "w": "x"}]


def test_a_second_job_of_this_machine_is_refused(moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = moto.place("refused")
    location = LakeLocation.parse(place.url, place.options)
    options = ApplyOptions("host=/nowhere", "slot", ("p",), location, "delta")
    another = f"another job writes to {re.escape(location.url)}: stop"
    with only_job(location), pytest.raises(ConfigurationError, match=another):
        run_apply(options, once=True)


def test_iceberg_without_a_catalog_and_a_catalog_without_iceberg_are_refused(
    moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = moto.place("refused")
    location = LakeLocation.parse(place.url, place.options)
    options = ApplyOptions("host=/nowhere", "slot", ("p",), location, "iceberg")
    with pytest.raises(ConfigurationError, match="need a catalog: set iceberg_catalog"):
        run_apply(options, once=True)
    wrong = options._replace(location=location._replace(catalog=(("uri", "sqlite://"),)), format="delta")
    with pytest.raises(ConfigurationError, match="have no catalog: remove iceberg_catalog"):
        run_apply(wrong, once=True)
