"""Tables of both formats in a real S3 server (moto): rows once, all or none, whatever races or fails."""

import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from safekeeper.base.errors import ArchiveRefused, ArchiveUnavailable, ConfigurationError
from tests.integration.archive.faulty_relay import (
    FaultyRelay,
    Forward,
    Request,
    answer,
    drop_the_answer,
    ignore_conditions,
)
from tests.integration.archive.object_stores import RcloneServer, Server
from tests.pipeline.small_wal import Pieces, decoded_rows, small_wal, write_wal
from tests.unit.table_rows import SMALL, small
from tests.unit.wal_builder import MIB
from walproxy.pipeline.choices import TABLE_FORMATS
from walproxy.pipeline.jobs import run as jobs_run
from walproxy.pipeline.jobs.run import RunConfig, Waiting, _Job
from walproxy.pipeline.jobs.run_folder import RunFolder
from walproxy.pipeline.lake.delta import DeltaLake
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import find_names, open_lake_table
from walproxy.pipeline.lake.parquet_files import DataFile
from walproxy.pipeline.lake.position import After, TableMoved
from walproxy.pipeline.lake.probe import require_single_winner
from walproxy.pipeline.lake.state import StateObject
from walproxy.pipeline.lake.table import LakeTable
from walproxy.pipeline.schemas import VIEWS, arrow_schema


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return "lake/" + re.sub(r"\W+", "-", request.node.name)


@pytest.fixture(params=TABLE_FORMATS)
def location(request: pytest.FixtureRequest, moto: Server, prefix: str, tmp_path: Path) -> LakeLocation:
    """An empty place for tables, of each format."""
    catalog = (("uri", f"sqlite:///{tmp_path / 'catalog.db'}"),) if request.param == "iceberg" else ()
    return located(moto, prefix)._replace(catalog=catalog)


def located(server: Server, prefix: str, endpoint: str = "") -> LakeLocation:
    place = server.place(prefix, endpoint)
    return LakeLocation.parse(place.url, place.options)


def opened(location: LakeLocation) -> LakeTable[Any]:
    """Open the table `rows`, as any process would."""
    return open_lake_table(location, "rows", None, SMALL)


def stored(table: LakeTable[Any], lsns: Any) -> DataFile:
    file = table.new_file().write([small(lsns)])
    assert file is not None
    return file


def lsns_of(location: LakeLocation) -> list[int]:
    with opened(location) as table:
        return sorted(table.to_arrow(["lsn"])["lsn"].to_pylist())


def keys_of(location: LakeLocation) -> set[str]:
    return {info.key for info in location.below("rows").store().list() if info.key.endswith(".parquet")}


def test_rows_and_position_are_there_for_each_process_that_opens_the_table(location: LakeLocation) -> None:
    with opened(location) as table, opened(location) as other:
        assert table.last_batch("me") is None
        assert table.commit("me", 9, [stored(table, range(5)), stored(table, range(5, 9))], {"end_lsn": "0/9"})
        assert table.commit("me", 12, [])
        assert lsns_of(location) == list(range(9))
        assert other.to_arrow().schema == SMALL
        assert (other.last_batch("me"), other.last_batch("you")) == (12, None)
        assert sorted((file.rows, file.bounds["lsn"]) for file in other.live_files()) == [(4, (5, 8)), (5, (0, 4))]
        assert other.commit(None, None, [stored(other, [9])])
    assert lsns_of(location) == list(range(10))


def test_a_batch_that_comes_again_is_recognised_and_its_files_are_removed(location: LakeLocation) -> None:
    with opened(location) as table, opened(location) as again:
        files = [stored(table, [1, 2])]
        assert table.commit("me", 2, files)
        before = keys_of(location)
        assert not again.commit("me", 2, [stored(again, [1, 2])], after=After(None))
        assert not again.commit("me", 1, [stored(again, [1])])
        assert not again.commit("me", 2, files), "the very same files are part of the table"
    assert keys_of(location) == before
    assert lsns_of(location) == [1, 2]


def test_a_batch_continues_the_position_that_its_writer_believes_or_is_refused(location: LakeLocation) -> None:
    with opened(location) as slower, opened(location) as faster:
        assert faster.commit("me", 150, [stored(faster, range(5))], after=After(None))
        before = keys_of(location)
        for after in (After(None), After(100)):
            complaint = f"{location}/rows is at position 150, not (none|100): another job writes"
            with pytest.raises(TableMoved, match=complaint):
                slower.commit("me", 200, [stored(slower, range(9))], after=after)
        assert keys_of(location) == before
        assert slower.commit("me", 200, [stored(slower, [5])], after=After(150))
    assert lsns_of(location) == list(range(6))


def race(location: LakeLocation, end: int) -> None:
    """Let jobs add rows up to `end`, in steps of 2 and of 3; one of them at least finds that another was faster."""
    moved = []
    met = threading.Barrier(3, timeout=60)

    def write(step: int) -> None:
        with opened(location) as table:
            last = table.last_batch("me") or 0
            met.wait()
            while last < end:
                until = min(last + step, end)
                try:
                    table.commit("me", until, [stored(table, range(last, until))], after=After(last or None))
                except TableMoved:
                    moved.append(step)
                last = table.last_batch("me") or 0

    with ThreadPoolExecutor(3) as pool:
        # The table then ends at a multiple of 2, or of 3, whoever is first: another's first batch does not fit.
        list(pool.map(write, (2, 3, 3)))
    assert moved


def test_jobs_that_race_for_one_table_create_it_once_and_add_each_row_once(location: LakeLocation) -> None:
    race(location, 12)
    assert lsns_of(location) == list(range(12))


def test_a_file_that_is_not_what_its_task_wrote_is_not_committed(location: LakeLocation) -> None:
    with opened(location) as table:
        file = stored(table, [1])
        store = table.location.store()
        for size in (file.bytes - 1, file.bytes + 1):
            with pytest.raises(ConfigurationError, match=f"does not have {size} bytes"):
                table.commit("me", 0, [file._replace(bytes=size)])
        content = store.get(file.path)
        store.put(file.path, content[:-1] + b"?", absent=False)
        with pytest.raises(ConfigurationError, match="is not a Parquet file, or is truncated"):
            table.commit("me", 0, [file])
        store.delete([file.path])
        with pytest.raises(ConfigurationError, match="is missing: write it again"):
            table.commit("me", 0, [file])
        assert table.last_batch("me") is None


def test_nothing_is_stored_for_no_rows_and_a_file_that_was_given_up_is_removed(location: LakeLocation) -> None:
    with opened(location) as table:
        place = table.new_file("part-3")
    assert place.write([]) is None
    assert place.write([small([])]) is None
    assert keys_of(location) == set()
    file = place.write([small([1])])
    assert file is not None
    assert keys_of(location) == {file.path}
    assert file.path.startswith("part-3-")
    place.remove(file)
    assert keys_of(location) == set()


def test_a_long_footer_is_read_to_its_beginning(moto: Server, prefix: str) -> None:
    names = [f"column_{number:04d}_{'x' * 60}" for number in range(600)]
    schema = pa.schema([pa.field(name, pa.int64()) for name in names])
    location = located(moto, prefix)
    table = DeltaLake.open(location.below("wide"), schema)
    assert table is not None
    file = table.new_file().write([pa.record_batch([[number] for number in range(600)], schema=schema)])
    assert file is not None
    assert table.commit("me", 1, [file])
    assert table.live_files()[0].rows == 1


def test_every_view_comes_back_from_a_store_as_it_was_written(location: LakeLocation) -> None:
    for view in VIEWS:
        with open_lake_table(location, view, None, arrow_schema(view)) as table:
            assert table.schema.equals(arrow_schema(view)), view
    assert find_names(location) == sorted(VIEWS)


def test_a_table_of_another_program_or_with_other_columns_is_refused_and_left_alone(moto: Server, prefix: str) -> None:
    location = located(moto, prefix)
    theirs = location.below("theirs")
    write_deltalake(theirs.url, pa.Table.from_batches([small([1])]), storage_options=theirs.delta_options())
    with pytest.raises(ConfigurationError, match="is a Delta table that another program made"):
        open_lake_table(location, "theirs", "delta", SMALL)
    opened(location)
    other = SMALL.append(pa.field("more", pa.int64()))
    with pytest.raises(ConfigurationError, match="has other columns: column 'more' is not in the table"):
        open_lake_table(location, "rows", "delta", other)
    with pytest.raises(
        ConfigurationError, match=r"need a catalog: set iceberg_catalog to uri=.*, or leave --format out"
    ):
        open_lake_table(location, "rows", "iceberg", SMALL)
    with pytest.raises(ConfigurationError, match="has no table 'none'"):
        open_lake_table(location, "none")
    with pytest.raises(ConfigurationError, match="cannot be the name of a table"):
        open_lake_table(location, "../rows", "delta", SMALL)
    with pytest.raises(ConfigurationError, match="Delta cannot have such a column"):
        open_lake_table(location, "odd", "delta", pa.schema([pa.field("odd", pa.duration("s"))]))
    assert DeltaTable(theirs.url, storage_options=theirs.delta_options()).version() == 0


def test_a_store_in_which_two_puts_of_one_name_succeed_is_refused(moto: Server, prefix: str) -> None:
    store = located(moto, prefix).store()
    require_single_winner(store)
    assert store.list() == []
    with (
        RcloneServer() as rclone,
        pytest.raises(ConfigurationError, match=r"s3://.* accepts several puts of one object"),
    ):
        require_single_winner(located(rclone, prefix).store())


def test_a_store_that_checks_the_condition_and_then_writes_is_refused(moto: Server, prefix: str) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        store = located(moto, prefix, relay.endpoint).store()
        assert store.probe(), "one put after another shows nothing"
        relay.when("PUT", "", ignore_conditions, skip=1, times=5)  # Within the first race, also if a put is repeated.
        with pytest.raises(ConfigurationError, match="accepts several puts of one object"):
            require_single_winner(store)


def fail_from_here(relay: FaultyRelay, *, is_stored: bool) -> Callable[[Request, Forward], Awaitable[web.Response]]:
    """Begin an outage with a request, which the store carries out or not."""

    async def fail(request: Request, forward: Forward) -> web.Response:
        if is_stored:
            await forward(request)
        relay.when("", "", answer(503, "SlowDown"))
        return web.Response(status=503)

    return fail


def test_state_is_replaced_only_by_the_process_that_knows_it(moto: Server, prefix: str) -> None:
    location = located(moto, prefix)
    first, second = (StateObject(location, "_run/run.json") for _ in range(2))
    assert first.read() is None
    first.write(b"1")
    first.write(b"2")
    with pytest.raises(TableMoved, match=r"_run/run\.json was replaced by another job: stop one of the jobs"):
        second.write(b"3")
    assert second.read() == b"2"
    second.write(b"3")
    with pytest.raises(TableMoved):
        first.write(b"4")
    assert StateObject(location, "_run/run.json").read() == b"3"


def test_a_state_whose_reply_was_lost_is_written(moto: Server, prefix: str) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        state = StateObject(located(moto, prefix, relay.endpoint), "_run/run.json")
        for content in (b"1", b"2"):
            relay.when("PUT", r"run\.json", drop_the_answer, times=1)
            state.write(content)
        assert state.read() == b"2"


@pytest.mark.parametrize("before", [(), (b"0",)], ids=["created", "replaced"])
def test_a_state_whose_put_may_have_succeeded_in_an_outage_is_replaced_after_it(
    moto: Server, prefix: str, before: tuple[bytes, ...]
) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        state = StateObject(located(moto, prefix, relay.endpoint), "_run/run.json")
        for content in before:
            state.write(content)
        for is_stored, content in ((True, b"1"), (False, b"2"), (True, b"3")):
            relay.when("PUT", r"run\.json", fail_from_here(relay, is_stored=is_stored), times=1)
            with pytest.raises(ArchiveUnavailable):
                state.write(content)
            relay.clear()
        state.write(b"4")
        other = StateObject(located(moto, prefix), "_run/run.json")
        assert other.read() == b"4"
        relay.when("PUT", r"run\.json", fail_from_here(relay, is_stored=True), times=1)
        with pytest.raises(ArchiveUnavailable):
            state.write(b"5")
        relay.clear()
        assert other.read() == b"5"
        other.write(b"6")
        with pytest.raises(TableMoved):
            state.write(b"7")


def test_a_commit_whose_reply_was_lost_is_in_once(moto: Server, prefix: str) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        table = opened(located(moto, prefix, relay.endpoint))
        relay.when("PUT", r"_delta_log/0+1\.json", drop_the_answer, times=1)
        table.commit("me", 2, [stored(table, [1, 2])], after=After(None))
        assert table.last_batch("me") == 2
        assert table.commit("me", 3, [stored(table, [3])], after=After(2))
    assert lsns_of(located(moto, prefix)) == [1, 2, 3]


def test_a_store_that_fails_or_refuses_is_one_line_and_nothing_is_committed(moto: Server, prefix: str) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        table = opened(located(moto, prefix, relay.endpoint))
        file = stored(table, [1])
        for status, code, kind in ((503, "SlowDown", ArchiveUnavailable), (403, "ExpiredToken", ArchiveRefused)):
            relay.when("PUT", r"_delta_log/0+1\.json", answer(status, code))
            with pytest.raises(kind, match=rf"could not commit to the table s3://.*/rows: {code}") as caught:
                table.commit("me", 1, [file], after=After(None))
            assert "\n" not in str(caught.value)
            relay.clear()
        assert table.last_batch("me") is None
        assert table.commit("me", 1, [file], after=After(None))
    place = moto.place(prefix)
    gone = LakeLocation.parse("s3://no-such-bucket/lake", place.options)
    with pytest.raises(ArchiveRefused, match=r"could not open the table .*: make the bucket"):
        open_lake_table(gone, "rows", None, SMALL)


def test_a_writer_that_slept_goes_on_after_old_entries_of_the_log_were_removed(moto: Server, prefix: str) -> None:
    location = located(moto, prefix)
    sleeper, busy = opened(location), opened(location)
    assert sleeper.commit("me", 0, [stored(sleeper, [0])])
    for batch in range(3):
        assert busy.commit("you", batch, [stored(busy, [10 + batch])])
    log = busy._load().table
    log.create_checkpoint()
    store = location.below("rows").store()
    store.delete([f"_delta_log/{number:020d}.json" for number in range(4)])
    assert sleeper.commit("me", 1, [stored(sleeper, [1])])
    assert lsns_of(location) == [0, 1, 10, 11, 12]


def test_a_log_that_cannot_be_followed_any_longer_is_opened_again(moto: Server, prefix: str) -> None:
    class Stale:
        def update_incremental(self) -> None:
            raise DeltaError("its entries are gone")

    location = located(moto, prefix)
    table: Any = opened(location)
    assert table.commit("me", 1, [stored(table, [0])])
    table._opened = Stale()
    assert table.last_batch("me") == 1
    assert lsns_of(location) == [0]


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_of_two_runs_on_two_machines_the_slower_one_ends_and_each_record_is_there_once(
    moto: Server, prefix: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    catalog = (("uri", f"sqlite:///{tmp_path / 'catalog.db'}"),) if format == "iceberg" else ()
    wal = small_wal(3 * MIB + 200_000)
    source = write_wal(tmp_path / "pg_wal", wal)
    config = RunConfig(source, located(moto, prefix)._replace(catalog=catalog), None, ("records", "transactions"))
    jobs: list[Any] = [
        _Job(config, RunFolder(config.tables_at), lambda event: None, threading.Event()) for _ in range(2)
    ]
    jobs[0].open()
    jobs[1].open()
    middle_lsn = wal.records[len(wal.records) // 2].start_lsn
    jobs[0]._batch(Pieces(source, None, middle_lsn), 0)
    with pytest.raises(TableMoved, match=r"/records is at position [0-9A-F]+/[0-9A-F]+, not none: another job writes"):
        jobs[1]._batch(Pieces(source, None, None), 0)
    jobs[0]._batch(Pieces(source, jobs[0].lsn, None), 1)
    for job in jobs:
        job.close()
    for name in config.tables:
        with open_lake_table(config.tables_at, name) as table:
            assert sorted(table.to_arrow(["lsn"])["lsn"].to_pylist()) == decoded_rows(source, name)["lsn"].to_pylist()
    other = write_wal(tmp_path / "other", small_wal(2 * MIB, system_id=8))
    with pytest.raises(ConfigurationError, match=r"tables in s3://.* hold is of the system 7, and .* has the WAL of 8"):
        _Job(config._replace(source=other), RunFolder(config.tables_at), lambda event: None, threading.Event()).open()


@pytest.mark.parametrize("lost", [r"records/_delta_log/0+1\.json", r"_run/run\.json"], ids=["commit", "state"])
def test_a_run_waits_during_an_outage_and_knows_then_that_its_commit_is_in(
    moto: Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jobs_run, "_RETRY_S_MIN", 0.01)
    source = write_wal(tmp_path / "pg_wal", small_wal(3 * MIB))
    with FaultyRelay(moto.endpoint) as relay:
        events: list[Any] = []

        def report(event: Any) -> None:
            events.append(event)
            if isinstance(event, Waiting):
                relay.clear()

        config = RunConfig(source, located(moto, prefix, relay.endpoint), None, ("records", "transactions"))
        job: Any = _Job(config, RunFolder(config.tables_at), report, threading.Event())
        (tmp_path / "cache").mkdir()
        job.open()

        def stream(_spark: None) -> None:
            # After the outage the batches are cut differently.
            whole = Pieces(source, None, None)
            for number, batch in enumerate([whole] if events else whole.one_by_one()):
                job._batch(batch, number)

        monkeypatch.setattr(job, "_stream", stream)
        relay.when("PUT", lost, fail_from_here(relay, is_stored=True), times=1)
        job.work(None)
    waiting = next(event for event in events if isinstance(event, Waiting))
    assert re.match(r"could not .* s3://.*/(records|_run/run\.json): .*SlowDown", waiting.reason)
    for name in config.tables:
        with open_lake_table(located(moto, prefix), name) as table:
            assert sorted(table.to_arrow(["lsn"])["lsn"].to_pylist()) == decoded_rows(source, name)["lsn"].to_pylist()
