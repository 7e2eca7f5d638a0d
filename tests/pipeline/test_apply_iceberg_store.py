"""Iceberg tables in S3 (moto), with a SQL catalog, that follow tables of a database: kills, lost replies, catalogs."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import OperationalError

from safekeeper.base.errors import ArchiveUnavailable, ConfigurationError
from tests.integration.archive.faulty_relay import FaultyRelay, answer
from tests.integration.archive.object_stores import Server
from tests.pipeline.apply_fixtures import ApplyProcess, compare, options_of
from tests.pipeline.logical_server import Source
from tests.pipeline.test_apply_store import CHANGES, MORE, NAME, SCHEMA, TABLES, Killing, begun, merge, rows_of
from walproxy.pipeline.cdc.apply.following import Position
from walproxy.pipeline.cdc.apply.iceberg import IcebergFollowing
from walproxy.pipeline.cdc.apply.job import TablesQuarantined, run_apply
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.lake.location import LakeLocation


@pytest.fixture
def source(empty: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    return begun(empty, tmp_path / "cache", monkeypatch)


def located(server: Server, prefix: str, folder: Path, endpoint: str = "", catalog: str = "catalog") -> LakeLocation:
    place = server.place(prefix, endpoint)
    return LakeLocation.parse(place.url, place.options, {"uri": f"sqlite:///{folder / f'{catalog}.db'}"})


def opened(location: LakeLocation) -> Iterator[IcebergFollowing]:
    with closing(IcebergFollowing(location, NAME)) as table:
        yield table


@pytest.fixture
def table(moto: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[IcebergFollowing]:
    yield from opened(located(moto, f"iceberg-{request.node.name}", tmp_path))


def test_iceberg_tables_in_a_store_follow_and_are_verified_also_after_a_kill(
    moto: Server, source: Source, tmp_path: Path
) -> None:
    options = options_of(source, located(moto, source.name, tmp_path), "iceberg", memory_bytes=100_000)
    run_apply(options, once=True)
    compare(source, options.location, "iceberg", *TABLES)
    source.run(*CHANGES)
    with FaultyRelay(moto.endpoint) as relay:
        # log is first, and has its changes; t has the new metadata, and its catalog does not know of them.
        fault = Killing(is_done=True)
        relay.when("PUT", r"/public\.t/metadata/[^/]*metadata\.json", fault)
        through = located(moto, source.name, tmp_path, relay.endpoint).below("lake")
        fault.job = ApplyProcess(source, tmp_path / "lake", "iceberg", ["--once"], through)
        assert fault.job.wait() == -signal.SIGKILL
    source.run(*MORE)
    run_apply(options, once=True)
    compare(source, options.location, "iceberg", *TABLES)
    assert [each.comparison.rows for each in run_verify(options, repair=False)] == [1, 190, 50]


def test_tables_that_another_catalog_has_are_quarantined_and_stay_as_they_are(
    moto: Server, source: Source, tmp_path: Path
) -> None:
    options = options_of(source, located(moto, source.name, tmp_path), "iceberg")
    run_apply(options, once=True)
    source.run(*CHANGES)
    other = located(moto, source.name, tmp_path, catalog="other").below("lake")
    with pytest.raises(TablesQuarantined, match="has files of a table that this catalog does not have"):
        run_apply(options._replace(location=other), once=True)
    run_apply(options, once=True)
    compare(source, options.location, "iceberg", *TABLES)


def test_a_commit_whose_reply_was_lost_is_in(table: IcebergFollowing, monkeypatch: pytest.MonkeyPatch) -> None:
    done = SqlCatalog.commit_table
    lost = 0

    def commit_table(self: SqlCatalog, *words: Any) -> None:
        nonlocal lost
        done(self, *words)
        lost += 1
        raise OperationalError("COMMIT", None, Exception("server closed the connection unexpectedly"))

    table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    table.replace(SCHEMA, rows_of(1, 2).to_batches(), Position(2, 0))
    table.merge(merge(3, gone=[1]), ["id"], Position(3, 0), expected=Position(2, 0))
    table.add_columns([pa.field("new", pa.decimal128(5, 2))])
    assert table.widen("new", pa.decimal128(7, 2))
    assert lost == 4 and table.position() == Position(3, 0)
    assert table.schema().field("new").type == pa.decimal128(7, 2)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [2, 3]


def test_a_catalog_that_does_not_reply_is_one_line_and_changes_nothing(
    table: IcebergFollowing, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))

    def commit_table(*words: Any) -> None:
        raise OperationalError("COMMIT", None, Exception("could not connect\nto it"))

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", commit_table)
        for change in (
            lambda: table.merge(merge(3), ["id"], Position(2, 0), expected=Position(1, 0)),
            lambda: table.replace(SCHEMA, [], Position(2, 0)),
            lambda: table.add_columns([pa.field("new", pa.int64())]),
        ):
            with pytest.raises(ArchiveUnavailable, match=r"^could not [^\n]*reply of its catalog\)$"):
                change()
    assert table.to_arrow()["id"].to_pylist() == [1] and table.position() == Position(1, 0)


def test_a_store_that_fails_in_a_merge_is_waited_for(moto: Server, tmp_path: Path) -> None:
    with FaultyRelay(moto.endpoint) as relay:
        for table in opened(located(moto, "fails", tmp_path, relay.endpoint)):
            table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
            for method, path in (("GET", r"/data-[^/]*\.parquet"), ("PUT", r"/data-"), ("PUT", r"/metadata/")):
                relay.when(method, path, answer(503, "SlowDown"), times=10)
                with pytest.raises(ArchiveUnavailable, match="SlowDown"):
                    table.merge(merge(1), ["id"], Position(2, 0), expected=Position(1, 0))
                relay.clear()
            table.merge(merge(1, 2), ["id"], Position(2, 0), expected=Position(1, 0))
            assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]


def test_a_table_of_another_location_or_program_is_not_written(moto: Server, tmp_path: Path) -> None:
    for table in opened(located(moto, "one", tmp_path)):
        table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    for other in opened(located(moto, "two", tmp_path)):
        with pytest.raises(
            ConfigurationError, match=r"has the table .* at s3://archive/one/.*, not at s3://archive/tw"
        ):
            other.replace(SCHEMA, rows_of(2).to_batches(), Position(1, 0))
    here = located(moto, "two", tmp_path)
    elsewhere = here._replace(catalog=(*here.catalog, ("namespace", "second")))
    for other in opened(elsewhere):
        other.replace(SCHEMA, rows_of(2).to_batches(), Position(1, 0))
        assert not other.is_foreign()
        with closing(SqlCatalog("walproxy", **dict(elsewhere.catalog))) as catalog:
            assert sorted(catalog.list_namespaces()) == [("public",), ("second_public",)]
