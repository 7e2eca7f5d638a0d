"""Iceberg tables in a real S3 server (moto) with a SQL catalog: rows once, all or none, whatever races or fails."""

import itertools
import re
import sqlite3
import urllib.parse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import OperationalError

from safekeeper.base.errors import ArchiveRefused, ArchiveUnavailable, ConfigurationError, WalproxyError
from tests.integration.archive.archive_fixtures import credentials
from tests.integration.archive.faulty_relay import FaultyRelay, answer
from tests.integration.archive.object_stores import RcloneServer, Server
from tests.pipeline.logical_server import Source
from tests.pipeline.run_without_spark import TABLES, run_segments
from tests.pipeline.small_wal import decoded_rows, small_wal, write_wal
from tests.pipeline.test_lake import race
from tests.unit.table_rows import SMALL, small
from tests.unit.wal_builder import MIB
from walproxy.pipeline.jobs.run import RunConfig
from walproxy.pipeline.lake.iceberg import IcebergLake, table_names
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table
from walproxy.pipeline.lake.parquet_files import DataFile
from walproxy.pipeline.lake.position import After, TableMoved


@pytest.fixture
def location(moto: Server, request: pytest.FixtureRequest, tmp_path: Path) -> LakeLocation:
    """An empty place for tables, with an empty catalog."""
    return located(moto, "iceberg/" + re.sub(r"\W+", "-", request.node.name), tmp_path)


def located(server: Server, prefix: str, folder: Path, endpoint: str = "") -> LakeLocation:
    place = server.place(prefix, endpoint)
    return LakeLocation.parse(place.url, place.options, {"uri": f"sqlite:///{folder / 'catalog.db'}"})


def through(location: LakeLocation, endpoint: str) -> LakeLocation:
    """Return the location as it is reached through a relay."""
    return location._replace(options=tuple(sorted({**dict(location.options), "endpoint": endpoint}.items())))


def opened(location: LakeLocation) -> IcebergLake:
    """Open the table `rows`, as any process would."""
    table = IcebergLake.open(location.below("rows"), SMALL)
    assert table is not None
    return table


def stored(table: IcebergLake, lsns: Any) -> DataFile:
    file = table.new_file().write([small(lsns)])
    assert file is not None
    return file


def lsns_of(location: LakeLocation) -> list[int]:
    with opened(location) as table:
        return sorted(table.to_arrow(["lsn"])["lsn"].to_pylist())


def test_a_snapshot_has_its_batch_and_a_namespace_its_tables(location: LakeLocation) -> None:
    with opened(location) as table:
        assert table.commit("me", 9, [stored(table, range(5))])
        assert table.commit("me", 12, [])
        assert table.commit(None, None, [stored(table, [9])])
        snapshots = table._load().table.snapshots()
        assert [(each.summary or {}).get("walproxy.batch") for each in snapshots] == ["9", "12", None]
    assert table_names(location) == ["rows"]
    assert table_names(location._replace(catalog=(*location.catalog, ("namespace", "other")))) == []


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_commit_to_a_version_that_is_no_longer_the_newest_does_nothing(
    location: LakeLocation, has_rows: bool
) -> None:
    """The catalog demands the snapshot that was read, also of a batch without files (rule X1)."""
    with opened(location) as slower, opened(location) as faster:
        version = slower._load()
        assert faster.commit("me", 150, [stored(faster, range(5))], after=After(None))
        checked = [slower._checked(stored(slower, [7]))] if has_rows else []
        batch: Any = type("Batch", (), {"writer": "me", "number": 200})
        assert not slower._commit(version, batch, checked, {})
        with pytest.raises(TableMoved, match=f"{location}/rows is at position 150, not 100: another job writes"):
            slower.commit("me", 200, [stored(slower, range(9))], after=After(100))
    assert lsns_of(location) == list(range(5))


def test_a_run_needs_no_conditional_puts_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = write_wal(tmp_path / "pg_wal", small_wal(3 * MIB))
    with credentials(), RcloneServer() as rclone:
        location = located(rclone, "iceberg", tmp_path)
        with pytest.raises(ConfigurationError, match="accepts several puts of one object"):
            run_segments(RunConfig(source, location._replace(catalog=()), None, TABLES))
        assert run_segments(RunConfig(source, location, None, TABLES))
        assert run_segments(RunConfig(source, location, None, TABLES)) == 0
        for name in TABLES:
            with open_lake_table(location, name) as table:
                # Not by to_arrow: rclone does not send ranges.
                contents = [location.below(name).store().get(file.path) for file in table.live_files()]
            found = [pq.read_table(pa.BufferReader(content))["lsn"].to_pylist() for content in contents]
            assert sorted(itertools.chain(*found)) == decoded_rows(source, name)["lsn"].to_pylist()


def test_what_is_not_a_table_of_this_program_and_catalog_is_refused_and_left_alone(
    location: LakeLocation, tmp_path: Path
) -> None:
    with opened(location) as table:
        table.commit("me", 1, [stored(table, [1])])
        theirs = location.below("theirs")
        table._catalog.create_table(("wal", "theirs"), SMALL, location=theirs.url)
    refused: list[tuple[LakeLocation, str, Any, Any, str]] = [
        (location, "theirs", None, SMALL, "is an Iceberg table that another program made"),
        (location.below("deeper"), "rows", None, SMALL, r"has the table wal\.rows at s3://.*, not at .*/deeper/rows"),
        (
            location._replace(catalog=(("uri", f"sqlite:///{tmp_path / 'other.db'}"),)),
            "rows",
            None,
            SMALL,
            "has files of a table that this catalog does not have: name its catalog",
        ),
        (location, "rows", None, SMALL.append(pa.field("more", pa.int64())), "column 'more' is not in the table"),
        (location, "rows", "delta", SMALL, "have no catalog: remove iceberg_catalog"),
        (location._replace(catalog=()), "rows", "iceberg", SMALL, "need a catalog: set iceberg_catalog to uri="),
        (location, "none", None, None, "has no table 'none'"),
        (location, "odd", None, pa.schema([pa.field("odd", pa.duration("s"))]), "Iceberg cannot have such a column"),
        (location._replace(catalog=(("type", "none"),)), "rows", None, None, "iceberg_catalog: 'none' is not"),
        (location._replace(catalog=(("name", "x"),)), "rows", None, None, "iceberg_catalog: URI missing"),
        (location._replace(catalog=(("uri", "nonsense://x"),)), "rows", None, None, "iceberg_catalog: "),
    ]
    for place, name, table_format, schema, complaint in refused:
        with pytest.raises(ConfigurationError, match=complaint) as caught:
            open_lake_table(place, name, table_format, schema)
        assert "\n" not in str(caught.value)
    with opened(location) as table:
        changed = table._load().table
        with changed.transaction() as transaction:
            transaction.set_properties({"commit.retry.num-retries": "4"})
        with pytest.raises(
            ConfigurationError, match=r"another program changed the property commit\.retry\.num-retries"
        ):
            table.commit("me", 2, [stored(table, [2])])
    assert lsns_of(location) == [1]


def test_a_commit_whose_outcome_is_unclear_is_in_once(location: LakeLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SqlCatalog.commit_table

    def fail(self: SqlCatalog, *arguments: Any) -> Any:
        commit(self, *arguments)
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        raise OperationalError("COMMIT", {}, Exception("the connection was closed"))

    with opened(location) as table:
        monkeypatch.setattr(SqlCatalog, "commit_table", fail)
        table.commit("me", 2, [stored(table, [1, 2])], after=After(None))
        assert table.commit("me", 3, [stored(table, [3])], after=After(2))
    assert lsns_of(location) == [1, 2, 3]


def test_a_store_or_a_catalog_that_fails_is_one_line_and_nothing_is_committed(
    moto: Server, location: LakeLocation, tmp_path: Path
) -> None:
    with FaultyRelay(moto.endpoint) as relay, opened(through(location, relay.endpoint)) as table:
        file = stored(table, [1])
        for status, code, kind in ((503, "SlowDown", ArchiveUnavailable), (403, "ExpiredToken", ArchiveRefused)):
            for name in (r"\.avro", r"metadata/0.*\.metadata\.json"):
                relay.when("PUT", name, answer(status, code))
                with pytest.raises(kind, match=rf"could not put s3://.*/metadata/.*: {code}") as caught:
                    table.commit("me", 1, [file], after=After(None))
                assert "\n" not in str(caught.value)
                relay.clear()
        assert table.last_batch("me") is None
        assert table.commit("me", 1, [file], after=After(None))
    secret = "postgresql+psycopg://me:very-secret@127.0.0.1:1/lake"
    with pytest.raises(ArchiveUnavailable, match=r"could not open the catalog: .*refused") as caught:
        open_lake_table(location._replace(catalog=(("uri", secret),)), "rows")
    assert "\n" not in str(caught.value)
    assert "very-secret" not in str(caught.value)
    with pytest.raises(ArchiveUnavailable, match=r"could not open the catalog: .*unable to open database file"):
        open_lake_table(location._replace(catalog=(("uri", f"sqlite:///{tmp_path}/no/catalog.db"),)), "rows")


def test_a_locked_catalog_is_one_line_and_the_commit_is_repeated_later(location: LakeLocation, tmp_path: Path) -> None:
    uri = dict(location.catalog)["uri"]
    with opened(location._replace(catalog=(("uri", f"{uri}?timeout=0.1"),))) as table:
        file = stored(table, [1])
        holder = sqlite3.connect(tmp_path / "catalog.db")
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(ArchiveUnavailable, match=r"could not commit to the table .*/rows: database is locked"):
            table.commit("me", 1, [file], after=After(None))
        holder.close()
        assert table.commit("me", 1, [file], after=After(None))
    assert lsns_of(location) == [1]


def test_a_catalog_on_postgresql_may_fail_and_restart_and_jobs_that_race_add_each_row_once(
    location: LakeLocation, empty: Source
) -> None:
    settings = conninfo_to_dict(empty.conninfo)
    query = urllib.parse.urlencode({name: value for name, value in settings.items() if name not in ("user", "dbname")})
    uri = f"postgresql+psycopg://{settings['user']}@/{settings['dbname']}?{query}"
    location = location._replace(catalog=(("uri", uri),))

    def end_connections() -> None:
        empty.asking.execute(
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
            b"pid NOT IN (pg_backend_pid(), %s)" % str(empty.connection.info.backend_pid).encode()
        )

    race(location, 8)
    with opened(location) as table:
        end_connections()  # As a restart does.
        file = stored(table, [8])
        assert table.commit("me", 9, [file], after=After(8))
        file = stored(table, [9])
        empty.server.execute(f"ALTER DATABASE {empty.name} ALLOW_CONNECTIONS false")
        end_connections()
        with pytest.raises(ArchiveUnavailable, match=r"could not read the table .*/rows: .*not .*accepting") as caught:
            table.commit("me", 10, [file], after=After(9))
        assert "\n" not in str(caught.value)
        empty.server.execute(f"ALTER DATABASE {empty.name} ALLOW_CONNECTIONS true")
        assert table.commit("me", 10, [file], after=After(9))
    assert lsns_of(location) == list(range(10))


@pytest.mark.parametrize("name", [r"snap-.*\.avro", r"-m0\.avro", r"00001-.*\.metadata\.json"])
def test_metadata_that_are_damaged_or_lost_are_one_line(location: LakeLocation, name: str) -> None:
    with opened(location) as table:
        table.commit("me", 1, [stored(table, [1])])
    store = location.below("rows").store()
    (key,) = (info.key for info in store.list("metadata") if re.search(name, info.key))
    whole = store.get(key)
    for content in (whole[: len(whole) // 2], b"", b"{}", whole[:-20] + b"?" * 20, None):
        if content is None:
            store.delete([key])
        else:
            store.put(key, content, absent=False)
        with (
            pytest.raises(WalproxyError, match=r"could not (open|read|get) .*rows") as caught,
            opened(location) as table,
        ):
            table.to_arrow()
        assert "\n" not in str(caught.value), content
