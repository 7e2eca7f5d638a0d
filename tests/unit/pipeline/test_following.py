"""Tables that follow, in both formats: rows and position change together, and merges are what they should be."""

import random
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from safekeeper.base.errors import ConfigurationError, StorageFailed, StorageFull, WalproxyError
from walproxy.pipeline.cdc.apply import following
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint, Heap, SentColumn
from walproxy.pipeline.cdc.apply.following import (
    FollowingTable,
    Merge,
    Position,
    folder_name,
    key_filter,
    library_errors,
    unused_name,
)
from walproxy.pipeline.cdc.apply.job_file import Job, KnownTable, Quarantined, job_state, only_job, read_job, write_job
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.position import TableMoved

SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("a b", pa.string()), pa.field("n", pa.decimal128(10, 2))])
NAME = TableName("public", "t")
Rows = dict[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(params=["delta", "iceberg"])
def new_table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A function that opens the same table each time."""
    opened: list[FollowingTable] = []

    def make(name: TableName = NAME) -> FollowingTable:
        opened.append(following_table(LakeLocation.parse(tmp_path), request.param, name))
        return opened[-1]

    yield make
    for table in opened:
        table.close()


def rows_of(*ids: int, a: str = "x") -> pa.Table:
    listed = [{"id": number, "a b": a, "n": Decimal("1.50")} for number in ids]
    return pa.Table.from_pylist(listed, SCHEMA)


def content(table: FollowingTable) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: (row["id"] is None, row["id"] or 0))


def merge(upserts: pa.Table, *deleted: int, truncated: bool = False) -> Merge:
    return Merge(truncated, upserts, pa.table({"id": pa.array(deleted, pa.int32())}))


def test_a_table_begins_with_a_copy_and_knows_its_position(new_table: Any) -> None:
    table = new_table()
    assert table.position() is None
    assert not table.is_foreign()
    table.replace(SCHEMA, rows_of(1, 2).to_batches(), Position(0x1_0000_0000, 3))
    for each in (table, new_table()):
        assert each.position() == Position(0x1_0000_0000, 3)
        assert each.schema().equals(SCHEMA)
        assert content(each) == rows_of(1, 2).to_pylist()


def test_a_copy_may_be_empty_and_may_be_made_again_with_other_columns(new_table: Any) -> None:
    table = new_table()
    table.replace(SCHEMA, [], Position(1, 0))
    assert content(table) == []
    other = pa.schema([pa.field("id", pa.int64()), pa.field("z", pa.timestamp("us", "UTC"))])
    listed = [{"id": 5, "z": datetime(2024, 2, 29, tzinfo=UTC)}]
    table.replace(other, pa.Table.from_pylist(listed, other).to_batches(), Position(2, 0))
    assert table.schema().equals(other)
    assert content(table) == listed
    wider = pa.schema([*other, pa.field("new", pa.string())])
    table.replace(wider, pa.Table.from_pylist([{"id": 6}], wider).to_batches(), Position(3, 0))
    assert content(table) == [{"id": 6, "z": None, "new": None}]


def test_a_merge_changes_rows_and_position_at_once(new_table: Any) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(1, 2, 3).to_batches(), Position(1, 0))
    table.merge(merge(rows_of(2, 9, a="y"), 3, 77), ["id"], Position(2, 5), expected=Position(1, 0))
    assert content(table) == [*rows_of(1).to_pylist(), *rows_of(2, 9, a="y").to_pylist()]
    assert new_table().position() == Position(2, 5)
    table.merge(merge(rows_of(), 1, 2, 9), ["id"], Position(3, 0), expected=Position(2, 5))
    assert content(table) == []
    assert table.position() == Position(3, 0)


def test_a_truncate_removes_all_rows_and_new_ones_stay(new_table: Any) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(1, 2).to_batches(), Position(1, 0))
    table.merge(merge(rows_of(5), truncated=True), ["id"], Position(2, 0), expected=Position(1, 0))
    assert content(table) == rows_of(5).to_pylist()
    table.merge(merge(rows_of(), truncated=True), ["id"], Position(3, 0), expected=Position(2, 0))
    assert content(table) == []
    assert table.position() == Position(3, 0)


def test_a_merge_that_changes_no_row_moves_the_position(new_table: Any) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    # A row that was inserted and deleted within a step; and nothing at all.
    table.merge(merge(rows_of(), 77), ["id"], Position(2, 0), expected=Position(1, 0))
    assert new_table().position() == Position(2, 0)
    table.merge(merge(rows_of()), ["id"], Position(3, 0), expected=Position(2, 0))
    table.merge(merge(rows_of(2)), ["id"], Position(4, 0), expected=Position(3, 0))
    assert content(table) == rows_of(1, 2).to_pylist()


def test_without_a_key_rows_are_added(new_table: Any) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    for lsn in (2, 3):
        table.merge(Merge(False, rows_of(1), pa.table({})), [], Position(lsn, 0), expected=Position(lsn - 1, 0))
    assert content(table) == rows_of(1, 1, 1).to_pylist()
    assert table.position() == Position(3, 0)


def test_new_columns_are_null_in_old_rows_and_come_once(new_table: Any) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    for _ in range(2):
        table.add_columns([pa.field("new", pa.int64())])
    wider = pa.schema([*SCHEMA, pa.field("new", pa.int64())])
    assert table.schema().equals(wider)
    row = pa.Table.from_pylist([{"id": 2, "new": 7}], wider)
    table.merge(merge(row), ["id"], Position(2, 0), expected=Position(1, 0))
    assert [(row["id"], row["new"]) for row in content(table)] == [(1, None), (2, 7)]
    found = table.lookup(pa.table({"id": pa.array([1, 2], pa.int32())}), ["new"])
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [(1, None), (2, 7)]


def test_rows_are_looked_up_by_their_key(new_table: Any) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(*range(100)).to_batches(), Position(1, 0))
    table.merge(merge(rows_of(5, a="y")), ["id"], Position(2, 0), expected=Position(1, 0))
    found = table.lookup(pa.table({"id": pa.array([5, 6, 200], pa.int32())}), ["a b"])
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [(5, "y"), (6, "x")]


def test_two_writers_do_not_both_succeed(new_table: Any) -> None:
    first = new_table()
    first.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    second = new_table()
    beside = threading.Thread(
        target=lambda: second.merge(merge(rows_of(2)), ["id"], Position(2, 0), expected=Position(1, 0))
    )

    def slowly() -> Iterator[pa.RecordBatch]:
        # While the first one writes, the second one commits.
        beside.start()
        beside.join()
        yield from rows_of(7).to_batches()

    with pytest.raises(StorageFailed, match="could not write"):
        first.replace(SCHEMA, slowly(), Position(2, 0))
    assert content(new_table()) == rows_of(1, 2).to_pylist()


MERGES = {
    "merged": (merge(rows_of(7)), ["id"]),
    "added": (Merge(False, rows_of(7), pa.table({})), []),
    "truncated": (merge(rows_of(7), truncated=True), ["id"]),
}


@pytest.mark.parametrize("kind", MERGES)
def test_a_merge_continues_the_position_that_its_job_believes_or_is_refused(new_table: Any, kind: str) -> None:
    table, faster = new_table(), new_table()
    table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    faster.merge(merge(rows_of(2)), ["id"], Position(2, 0), expected=Position(1, 0))
    with pytest.raises(TableMoved, match="is at position 0/2/0, not 0/1/0: another job writes to it") as caught:
        table.merge(*MERGES[kind], Position(3, 0), expected=Position(1, 0))
    assert "\n" not in str(caught.value)
    assert content(table) == rows_of(1, 2).to_pylist()
    assert table.position() == Position(2, 0)


@pytest.mark.parametrize("kind", MERGES)
def test_a_merge_that_was_decided_by_an_older_position_is_not_committed(
    new_table: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, faster = new_table(), new_table()
    table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    module = sys.modules[type(table)._merge.__module__]
    compare = module.require_position  # type: ignore[attr-defined]

    def then_another_job_commits(*positions: Any) -> None:
        compare(*positions)
        monkeypatch.setattr(module, "require_position", compare)
        faster.merge(merge(rows_of(2)), ["id"], Position(2, 0), expected=Position(1, 0))

    monkeypatch.setattr(module, "require_position", then_another_job_commits)
    with pytest.raises(TableMoved, match="is at position 0/2/0, not 0/1/0"):
        table.merge(*MERGES[kind], Position(3, 0), expected=Position(1, 0))
    assert content(new_table()) == rows_of(1, 2).to_pylist()
    assert new_table().position() == Position(2, 0)


def test_a_table_that_vanished_has_no_other_job(new_table: Any) -> None:
    table = new_table()
    table.replace(SCHEMA, rows_of(1).to_batches(), Position(1, 0))
    shutil.rmtree(table.location.folder)
    with pytest.raises(StorageFailed):
        table.merge(merge(rows_of(2)), ["id"], Position(2, 0), expected=Position(1, 0))


def test_a_table_of_somebody_else_is_known_as_such(new_table: Any, tmp_path: Path) -> None:
    table = new_table()
    if "Delta" in type(table).__name__:
        from deltalake import write_deltalake

        write_deltalake(str(table.location.folder), rows_of(1))
    else:
        from walproxy.pipeline.lake.catalog import open_catalog

        catalog = open_catalog(table.location)
        catalog.create_namespace("public")
        catalog.create_table(("public", "t"), SCHEMA, location=str(table.location.folder))
        catalog.close()
    assert table.is_foreign()
    assert table.position() is None


@pytest.mark.parametrize("key", [["id"], []])
def test_small_files_and_old_versions_do_not_pile_up(
    new_table: Any, monkeypatch: pytest.MonkeyPatch, key: list[str]
) -> None:
    table, most, merges = new_table(), 3, 6
    monkeypatch.setattr(sys.modules[type(table)._merge.__module__], "SMALL_FILES_MAX", most)
    table.replace(SCHEMA, [], Position(1, 0))
    for number in range(merges):
        table.merge(merge(rows_of(number)), key, Position(2 + number, 0), expected=Position(1 + number, 0))
    table.tidy(timedelta(0))
    left = [path for path in table.location.folder.rglob("*.parquet") if "_delta_log" not in path.parts]
    assert 0 < len(left) <= most
    assert content(table) == rows_of(*range(merges)).to_pylist()
    assert table.position() == Position(merges + 1, 0)


LONG = "\U0010ffff" * 100
KEYS = {
    "one": (("id",), lambda chance: {"id": chance.randrange(30)}),
    "two": (
        ("k", "id"),
        lambda chance: {"id": chance.randrange(6), "k": chance.choice(["", "b'", "ü\\", LONG + "1", LONG + "2"])},
    ),
    "odd": (
        ("d", "t"),
        lambda chance: {
            "d": Decimal(chance.randrange(3)) + Decimal("0.12"),
            "t": datetime(2024, 1, 1, microsecond=chance.randrange(5), tzinfo=UTC),
        },
    ),
}
WIDE = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("k", pa.string()),
        pa.field("d", pa.decimal128(38, 2)),
        pa.field("t", pa.timestamp("us", "UTC")),
        pa.field("v", pa.int32()),
        pa.field("b", pa.binary()),
    ]
)


@pytest.mark.parametrize("kind", KEYS)
def test_merges_leave_the_rows_that_they_should(new_table: Any, kind: str) -> None:
    key, draw = KEYS[kind]
    chance = random.Random(kind)
    table, model = new_table(), Rows()

    def some(count: int) -> Rows:
        drawn = (draw(chance) for _ in range(count))
        return {tuple(row[name] for name in key): row for row in drawn}

    def as_table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema)

    table.replace(WIDE, [], Position(0, 0))
    key_schema = pa.schema([WIDE.field(name) for name in key])
    for number in range(1, 9):
        upserts = {at: {**row, "v": number, "b": b"\x00"} for at, row in some(8).items()}
        deleted = {at: row for at, row in some(4).items() if at not in upserts}
        table.merge(
            Merge(False, as_table(upserts.values(), WIDE), as_table(deleted.values(), key_schema)),
            key,
            Position(number, 0),
            expected=Position(number - 1, 0),
        )
        model = {at: row for at, row in {**model, **upserts}.items() if at not in deleted}
        found = {tuple(row[name] for name in key): row for row in table.to_arrow().to_pylist()}
        assert found == {at: {**dict.fromkeys(WIDE.names), **row} for at, row in model.items()}
        assert table.to_arrow().num_rows == len(model)
    wanted = some(5)
    looked_up = table.lookup(as_table(wanted.values(), key_schema), ["v"]).to_pylist()
    assert {tuple(row[name] for name in key): row["v"] for row in looked_up} == {
        at: model[at]["v"] for at in wanted if at in model
    }


def test_rows_are_chosen_by_their_key_in_order() -> None:
    rows = pa.table({"a": [3, 1, 2, 1], "b": ["x", "y", "x", "z"]})
    keys = pa.table({"b": ["x", "z"], "a": [2, 1]})
    assert key_filter(rows, keys, keep_matches=True).to_pydict() == {"a": [2, 1], "b": ["x", "z"]}
    assert key_filter(rows, keys, keep_matches=False).to_pydict() == {"a": [3, 1], "b": ["x", "y"]}


def test_rows_are_found_by_a_key_of_any_name() -> None:
    rows = pa.table({"_row": [3, 1, 2], "v": ["c", "a", "b"]})
    keys = pa.table({"_row": [2, 3]})
    assert key_filter(rows, keys, keep_matches=True).to_pydict() == {"_row": [3, 2], "v": ["c", "b"]}
    assert key_filter(rows, keys, keep_matches=False).to_pydict() == {"_row": [1], "v": ["a"]}
    assert unused_name("_x", ["a", "_X", "_x_"]) == "_x__"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Exception("External error: Duplicate field name\nmore"), StorageFailed),
        (KeyError(), StorageFailed),
        (Exception("Generic LocalFileSystem error: No space left on device (os error 28)"), StorageFull),
        (Exception("(sqlite3.OperationalError) database or disk is full"), StorageFull),
    ],
)
def test_what_a_library_raises_is_one_line_and_a_full_disk_is_distinguished(
    tmp_path: Path, error: Exception, kind: type[WalproxyError]
) -> None:
    with pytest.raises(kind, match=r"^could not write it: .") as raised, library_errors("write it", tmp_path / "no"):
        raise error
    assert "\n" not in str(raised.value)


def test_a_file_system_without_space_is_full_whatever_the_library_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_FULL_BYTES", 1 << 62)
    with pytest.raises(StorageFull), library_errors("write it", tmp_path):
        raise ValueError("unable to open database file")
    with pytest.raises(ConfigurationError), library_errors("write it", tmp_path):
        raise ConfigurationError("our own errors stay as they are")


def test_different_tables_have_different_folders() -> None:
    names = [("a.b", "c"), ("a", "b.c"), ("a b", "c"), ("a_b", "c"), ("ü", "c"), ("a~20b", "c"), ("..", "c")]
    folders = {folder_name(TableName(*name)) for name in names}
    assert len(folders) == len(names)
    assert not any("/" in folder or folder.startswith("..") for folder in folders)


def test_a_job_comes_back_as_it_was_noted_and_runs_once(tmp_path: Path) -> None:
    location = LakeLocation.parse(tmp_path).below("new")
    assert read_job(job_state(location)) is None
    heaps, columns = {16384: Heap(16385, 0)}, {"id": SentColumn(1, 23, -1), "ü": SentColumn(3, 1043, 9)}
    fingerprint = Fingerprint(16384, ["publication 1:2"], 5, heaps, {16390: 7}, columns, {"label 3": 8})
    known = KnownTable(["id"], fingerprint, ["ü"])
    quarantined = {"public.bad": Quarantined("it is bad", 1.5)}
    job = Job(7, "db", "s", ["p"], "delta", 0x1_0000_0000, {"public.t": known}, quarantined=quarantined)
    with only_job(location):
        write_job(job_state(location), job)
        assert read_job(job_state(location)) == job
        with pytest.raises(Exception, match="another job writes"), only_job(location):
            pass
    (tmp_path / "new" / "_walproxy_apply" / "job.json").write_text("{}")
    with pytest.raises(Exception, match=r"job\.json is damaged"):
        read_job(job_state(location))
    for version in (3, 5):
        (tmp_path / "new" / "_walproxy_apply" / "job.json").write_text(f'{{"version": {version}}}')
        with pytest.raises(ConfigurationError, match=rf"is of version {version}, this program reads version 4$"):
            read_job(job_state(location))
