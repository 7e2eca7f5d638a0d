"""Iceberg and Delta: what their own libraries see, and what does not grow without end."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyiceberg.catalog.sql import SqlCatalog

from safekeeper.base.errors import ConfigurationError, StorageFailed
from tests.unit.table_rows import (
    RECORDS,
    SMALL,
    folder_of,
    lsns_of,
    open_table,
    path_of,
    records,
    small,
    tree,
    written,
)
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake import delta, iceberg, parquet_files
from walproxy.pipeline.lake.catalog import CATALOG_NAME, NAMESPACE
from walproxy.pipeline.lake.iceberg import IcebergLake


def test_the_library_of_delta_reads_the_table_and_knows_the_batch(tmp_path: Path) -> None:
    with open_table(tmp_path, "records", "delta", RECORDS) as table:
        for batch, begin in enumerate((0, 10)):
            file = table.new_file().write([records(range(begin, begin + 10))])
            assert file is not None
            table.commit("me", batch, [file], {"end_lsn": "0/14"})
        table.compact()
    opened = DeltaTable(str(tmp_path / "records"))
    assert sorted(opened.to_pyarrow_dataset().to_table(["lsn"])["lsn"].to_pylist()) == list(range(20))
    assert opened.to_pyarrow_dataset().count_rows(ds.field("lsn") >= 15) == 5
    assert opened.transaction_version("me") == 1
    compacted, second, first, created = opened.history()
    assert compacted["walproxy.operation"] == "compact"
    assert (second["walproxy.writer"], second["walproxy.batch"], second["walproxy.end_lsn"]) == ("me", "1", "0/14")
    assert (first["walproxy.batch"], created["operation"]) == ("0", "CREATE TABLE")


def test_the_library_of_delta_finds_rows_by_every_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are missing in the log count there as limits that no value is within."""
    monkeypatch.setattr(parquet_files, "ROW_GROUP_ROWS", 1)  # Parquet has limits of `huge` in the last group only.
    long, time = "k" * 40, datetime(2026, 11, 21, 14, 16, 5, 999_999, UTC)
    rows = pa.table(
        {
            "i": pa.array([1, 2, None], pa.int16()),
            "text": ["a", long + "1", None],
            "huge": ["h" * 5000, "h" * 5001, "h"],
            "yes": [True, False, None],
            "time": pa.array([time, time, None], pa.timestamp("us", "UTC")),
            "day": pa.array([time.date(), None, None], pa.date32()),
            "float": [1.5, -2.5, None],
            "none": pa.array([None, None, None], pa.string()),
        }
    )
    with open_table(tmp_path, "t", "delta", rows.schema) as table:
        file = table.new_file().write(rows.to_batches())
        assert file is not None
        table.commit("me", 0, [file])
    found = DeltaTable(str(tmp_path / "t")).to_pyarrow_dataset()
    for matches in (
        ds.field("i") == 2,
        ds.field("text") == long + "1",
        ds.field("huge") == "h" * 5001,
        ds.field("yes") == True,  # noqa: E712
        ds.field("day") == time.date(),
        ds.field("float") < 0,
    ):
        assert found.count_rows(filter=matches) == 1, matches
    assert found.count_rows(filter=ds.field("time") == time) == 2
    assert found.count_rows(filter=ds.field("none").is_null()) == 3
    assert found.count_rows(filter=ds.field("text") > "l") == 0


def test_the_library_of_iceberg_reads_the_table_and_knows_the_batch(tmp_path: Path) -> None:
    with open_table(tmp_path, "records", "iceberg", RECORDS) as table:
        for batch, begin in enumerate((0, 10)):
            file = table.new_file().write([records(range(begin, begin + 10))])
            assert file is not None
            table.commit("me", batch, [file], {"end_lsn": "0/14"})
        table.compact()
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{tmp_path}/iceberg.db", warehouse=str(tmp_path))
    loaded = catalog.load_table(f"{NAMESPACE}.records")
    assert sorted(loaded.scan().to_arrow()["lsn"].to_pylist()) == list(range(20))
    assert loaded.scan("lsn >= 15", selected_fields=("lsn", "blocks")).to_arrow().num_rows == 5
    assert loaded.properties["walproxy.batch.me"] == "1"
    summaries = [snapshot.summary for snapshot in loaded.snapshots()]
    assert [summary["walproxy.batch"] for summary in summaries[:2] if summary] == ["0", "1"]
    assert summaries[1] is not None
    assert (summaries[1]["walproxy.writer"], summaries[1]["walproxy.end_lsn"]) == ("me", "0/14")
    catalog.close()


def test_rows_that_the_library_of_delta_adds_and_changes_are_read_and_compacted(tmp_path: Path) -> None:
    with open_table(tmp_path, "t", "delta", SMALL) as table:
        table.commit("me", 0, [written(table, range(5))])
        write_deltalake(str(folder_of(table)), pa.Table.from_batches([small([7, 8])]), mode="append")
        DeltaTable(str(folder_of(table))).delete("lsn = 3")
        assert lsns_of(table) == [0, 1, 2, 4, 7, 8]
        assert table.compact().rows == 6
        assert table.to_arrow(["lsn"])["lsn"].to_pylist() == [0, 1, 2, 4, 7, 8]


def test_a_file_that_was_added_to_delta_without_statistics_is_counted(tmp_path: Path) -> None:
    with open_table(tmp_path, "t", "delta", SMALL) as table:
        file = written(table, [1, 2, 3])
        action = AddAction(Path(file.path).name, file.bytes, {}, 0, True, "{}")
        DeltaTable(str(folder_of(table))).create_write_transaction([action], "append", Schema.from_arrow(SMALL))
        (live,) = table.live_files()
        assert (live.rows, live.bounds) == (3, {})
        assert table.to_arrow(filter=ds.field("lsn") > 1).num_rows == 2


def test_a_writer_that_slept_while_delta_s_log_was_shortened_goes_on(tmp_path: Path) -> None:
    with open_table(tmp_path, "t", "delta", SMALL) as sleeper, open_table(tmp_path, "t") as busy:
        sleeper.commit("me", 0, [written(sleeper, [0])])
        for batch in range(5):
            busy.commit("you", batch, [written(busy, [10 + batch])])
        busy.expire(0)
        busy.commit("you", 5, [written(busy, [15])])
        busy.expire(0)
        assert len(list((folder_of(busy) / "_delta_log").glob("*.json"))) == 1
        assert sleeper.commit("me", 1, [written(sleeper, [1])])
        assert lsns_of(busy) == [0, 1, *range(10, 16)]
        assert (busy.last_batch("me"), busy.last_batch("you")) == (1, 5)


def test_a_log_of_delta_that_is_shortened_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_table(tmp_path, "t", "delta", SMALL) as table:
        table.commit("me", 0, [written(table, [0])])
        failures, opened = [DeltaError("an entry is gone"), FileNotFoundError("a checkpoint is gone")], DeltaTable

        def late(*arguments: Any, **options: Any) -> DeltaTable:
            if failures:
                raise failures.pop()
            return opened(*arguments, **options)

        monkeypatch.setattr(delta, "DeltaTable", late)
        table._opened = None  # type: ignore[attr-defined]
        assert table.last_batch("me") == 0
        assert failures == []


def test_the_log_of_delta_is_shortened_only_when_old_states_are_removed(tmp_path: Path) -> None:
    with open_table(tmp_path, "t", "delta", SMALL) as table:
        table.expire(0)
        for batch in range(105):
            table.commit("me", batch, [])
        entries = list((folder_of(table) / "_delta_log").glob("*.json"))
        assert len(entries) >= 105
        assert list((folder_of(table) / "_delta_log").glob("*.checkpoint.parquet"))
        assert table.expire(0).versions >= 104
        assert len(list((folder_of(table) / "_delta_log").glob("*.json"))) == 1
    with open_table(tmp_path, "t") as table:
        assert table.last_batch("me") == 104


def test_a_delta_log_that_is_damaged_is_reported_in_one_line(tmp_path: Path) -> None:
    open_table(tmp_path, "t", "delta", SMALL).close()
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(StorageFailed, match="could not open the table") as caught:
        open_table(tmp_path, "t")
    assert "\n" not in str(caught.value)


def test_iceberg_keeps_so_many_snapshots_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MAX", 4)
    with open_table(tmp_path, "t", "iceberg", SMALL) as table:
        assert isinstance(table, IcebergLake)
        for batch in range(7):
            table.commit("me", batch, [written(table, [batch])])
        before = tree(folder_of(table))
        assert table.expire(3600, dry_run=True).versions == 3
        assert tree(folder_of(table)) == before
        assert table.expire(3600).versions == 3
        assert len(table._load().table.snapshots()) == 4
        for snapshot in table._load().table.snapshots():
            assert table._load().table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows >= 4
        assert table.last_batch("me") == 6
        assert lsns_of(table) == list(range(7))
        assert table.remove_orphans(0).files == 0


@pytest.mark.parametrize("tagged", [False, True])
def test_files_that_only_old_snapshots_of_iceberg_need_are_removed(tmp_path: Path, tagged: bool) -> None:
    with open_table(tmp_path, "t", "iceberg", SMALL) as table:
        assert isinstance(table, IcebergLake)
        for batch in range(30):
            table.commit("me", batch, [written(table, [batch])])
            if batch in (7, 20):
                table.compact()
            if batch == 10 and tagged:
                loaded = table._load().table
                snapshot = loaded.current_snapshot()
                assert snapshot is not None
                loaded.manage_snapshots().create_tag(snapshot.snapshot_id, "ten").commit()
        table.expire(0)
        table.remove_orphans(0)
        names = [snapshot.snapshot_id for snapshot in table._load().table.snapshots()]
        assert len(names) == 1 + tagged
        rows = [table._load().table.scan(snapshot_id=name).to_arrow().num_rows for name in names]
        assert sorted(rows) == ([11, 30] if tagged else [30])
        data = {str(path) for path in folder_of(table).glob("*.parquet")}
        live = {str(path_of(table, file)) for file in table.live_files()}
        assert live <= data
        assert len(data - live) == (4 if tagged else 0)
        assert len(list((folder_of(table) / "metadata").glob("snap-*"))) == 1 + tagged


def test_an_iceberg_table_whose_metadata_lost_a_file_is_reported_in_one_line(tmp_path: Path) -> None:
    with open_table(tmp_path, "t", "iceberg", SMALL) as table:
        table.commit("me", 0, [written(table, [0])])
        for path in (folder_of(table) / "metadata").glob("snap-*"):
            path.unlink()
        with pytest.raises(StorageFailed, match=r"could not read the table .*snap-.* is missing"):
            table.live_files()


@pytest.mark.parametrize("pattern", ["snap-*.avro", "*-m0.avro", "00001-*.metadata.json"])
def test_iceberg_metadata_that_are_truncated_are_reported_in_one_line(tmp_path: Path, pattern: str) -> None:
    with open_table(tmp_path, "rows", "iceberg", SMALL) as table:
        table.commit("me", 1, [written(table, [1])])
    (path,) = (tmp_path / "rows" / "metadata").glob(pattern)
    path.write_bytes(path.read_bytes()[:-50])
    with (
        pytest.raises(StorageFailed, match=r"could not (open|read) the table") as caught,
        open_table(tmp_path, "rows") as table,
    ):
        table.live_files()
    assert "\n" not in str(caught.value)


def test_an_iceberg_table_that_was_moved_is_refused(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    open_table(old, "t", "iceberg", SMALL).close()
    old.rename(new)
    with pytest.raises(
        ConfigurationError, match=r"is not where its catalog expects it .*: such a table cannot be moved, move it back"
    ):
        open_table(new, "t")
    shutil.copytree(new, old)
    with pytest.raises(ConfigurationError, match=f"the catalog has the table wal.t at {old}/t, not at {new}/t"):
        open_table(new, "t")


def test_a_catalog_that_is_damaged_is_reported_in_one_line(tmp_path: Path) -> None:
    open_table(tmp_path, "t", "iceberg", SMALL).close()
    (tmp_path / "iceberg.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(StorageFailed, match=r"could not open the catalog of .*: .*not a database"):
        open_table(tmp_path, "t")


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_tables_that_are_made_at_the_same_time_in_one_folder_are_all_there(
    tmp_path: Path, table_format: TableFormat
) -> None:
    def make(number: int) -> list[int]:
        with open_table(tmp_path, f"t{number % 2}", table_format, SMALL) as table:
            table.commit(f"writer {number}", 0, [written(table, [number])])
            return lsns_of(table)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    for number in range(2):
        with open_table(tmp_path, f"t{number}") as table:
            assert lsns_of(table) == [number, number + 2]
