"""What every table promises, in each format: rows once, all or none, and nothing lost when it is tidied up."""

import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import write_deltalake

from safekeeper.base.errors import ConfigurationError
from tests.unit.table_rows import (
    RECORDS,
    SMALL,
    Table,
    any_row,
    folder_of,
    lsns_of,
    open_table,
    path_of,
    records,
    small,
    tree,
    written,
)
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.lake.compaction import Replacement
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import find_names
from walproxy.pipeline.lake.position import After, Batch, TableMoved
from walproxy.pipeline.schemas import VIEWS, arrow_schema


@pytest.fixture(params=TABLE_FORMATS)
def table_format(request: pytest.FixtureRequest) -> TableFormat:
    return request.param


@pytest.fixture
def table(tmp_path: Path, table_format: TableFormat) -> Iterator[Table]:
    with open_table(tmp_path, "rows", table_format, SMALL) as opened:
        yield opened


def late(table: Table, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Open the table once more; its next commit learns only when it fails what others commit from now on."""
    other = again(table)
    known, load = [other._load()], other._load
    monkeypatch.setattr(other, "_load", lambda: known.pop() if known else load())
    return other


def again(table: Table) -> Table:
    """Open the table once more, as another process would."""
    return open_table(folder_of(table).parent, table.name)


def test_rows_and_batches_are_there_for_whoever_opens_the_table(table: Table) -> None:
    assert table.last_batch("me") is None
    assert table.commit("me", 0, [written(table, range(5)), written(table, range(5, 9))], {"end_lsn": "0/9"})
    with again(table) as other:
        assert lsns_of(other) == list(range(9))
        assert other.to_arrow().schema == SMALL
        assert (other.last_batch("me"), other.last_batch("you")) == (0, None)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_comes_back_as_it_was_written(tmp_path: Path, table_format: TableFormat, view: str) -> None:
    schema = arrow_schema(view)
    rows = records(range(12)) if view == "records" else any_row(schema)
    with open_table(tmp_path, view, table_format, schema) as table:
        file = table.new_file().write([rows])
        assert file is not None
        assert table.commit("me", 0, [file])
        assert table.to_arrow() == pa.Table.from_batches([rows])


def test_a_batch_that_comes_again_is_recognised_and_its_files_are_removed(table: Table) -> None:
    table.commit("me", 0, [written(table, [1])])
    table.commit("me", 1, [written(table, [2])])
    for batch in (0, 1):
        with again(table) as after_the_crash:
            replayed = written(after_the_crash, [9])
            assert not after_the_crash.commit("me", batch, [replayed])
            assert not path_of(table, replayed).exists()
    assert lsns_of(table) == [1, 2]


def test_committing_the_very_same_files_again_loses_nothing(table: Table) -> None:
    files = [written(table, [1, 2])]
    assert table.commit("me", 0, files)
    assert not table.commit("me", 0, files)
    assert lsns_of(table) == [1, 2]


def test_a_batch_without_rows_counts_as_well(table: Table) -> None:
    assert table.commit("me", 0, [])
    assert not table.commit("me", 0, [])
    assert table.commit("me", 1, [])
    with again(table) as other:
        assert other.last_batch("me") == 1
        assert lsns_of(other) == []


def test_rows_without_a_writer_are_added_each_time(table: Table) -> None:
    assert table.commit(None, None, [written(table, [1])])
    assert table.commit(None, None, [written(table, [1])])
    assert lsns_of(table) == [1, 1]
    with pytest.raises(ConfigurationError, match="has a number exactly if it has a writer"):
        table.commit("me", None, [])


def test_writers_of_different_names_do_not_disturb_each_other(table: Table) -> None:
    with again(table) as other:
        for batch in range(3):
            assert table.commit("me", batch, [written(table, [batch])])
            assert other.commit("you", batch, [written(other, [10 + batch])])
    assert lsns_of(table) == [0, 1, 2, 10, 11, 12]
    assert (table.last_batch("me"), table.last_batch("you")) == (2, 2)


def test_writers_at_the_same_time_lose_nothing_and_double_nothing(table: Table) -> None:
    def write(writer: int) -> None:
        with again(table) as mine:
            for batch in range(3):
                assert mine.commit(f"writer {writer}", batch, [written(mine, [writer * 10 + batch])])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    assert lsns_of(table) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_of_two_processes_that_commit_the_same_batch_one_does(table: Table) -> None:
    barrier = threading.Barrier(2)

    def write(name: int) -> bool:
        with again(table) as mine:
            file = written(mine, [name])
            barrier.wait(20)
            return mine.commit("me", 7, [file])

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(write, range(2)))
    assert sorted(outcomes) == [False, True]
    assert lsns_of(table) == [outcomes.index(True)]


def test_a_batch_continues_the_position_that_its_writer_believes_or_is_refused(table: Table) -> None:
    with again(table) as faster:
        assert faster.commit("me", 150, [written(faster, range(5))], after=After(None))
    for after in (After(None), After(100, hex)):
        late = written(table, range(9))
        there = "none" if after.batch is None else "0x64"
        here = after.show(150)
        with pytest.raises(TableMoved, match=rf"is at position {here}, not {there}: another job writes") as caught:
            table.commit("me", 200, [late], after=after)
        assert "\n" not in str(caught.value)
        assert not path_of(table, late).exists()
    with pytest.raises(TableMoved, match="is at position 150, not 100"):
        table.commit("me", 120, [], after=After(100))
    assert not table.commit("me", 150, [written(table, range(5))], after=After(100)), "it is in already"
    assert table.commit("me", 200, [written(table, [5])], after=After(150))
    assert lsns_of(table) == list(range(6))


def test_a_batch_that_was_decided_by_an_older_position_is_refused_in_the_last_moment_as_well(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit("me", 3, [written(table, [0])])
    with late(table, monkeypatch) as slower:
        table.commit("me", 4, [written(table, [1])])
        file = written(slower, [1, 2])
        with pytest.raises(TableMoved):
            slower.commit("me", 5, [file], after=After(3))
        assert not path_of(table, file).exists()
    assert lsns_of(table) == [0, 1]


def test_jobs_that_race_for_one_table_add_each_row_once(table: Table) -> None:
    end, moved = 24, []

    def write(step: int) -> None:
        with again(table) as mine:
            while (last := mine.last_batch("me") or 0) < end:
                until = min(last + step, end)
                try:
                    mine.commit("me", until, [written(mine, range(last, until))], after=After(last or None))
                except TableMoved:
                    moved.append(step)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, (1, 2, 3)))
    assert lsns_of(table) == list(range(end))
    assert moved


def test_a_task_gets_its_place_by_pickle_and_each_attempt_a_file_of_its_own(table: Table) -> None:
    place = pickle.loads(pickle.dumps(table.new_file("part-3")))
    first, second = place.write([small([1])]), place.write([small([1])])
    assert first is not None
    assert second is not None
    assert first.path != second.path
    assert path_of(table, first).name.startswith("part-3-")
    assert (first.rows, first.bytes) == (1, path_of(table, first).stat().st_size)
    with pytest.raises(ConfigurationError, match="cannot begin with '_part'"):
        table.new_file("_part")
    before = tree(folder_of(table))
    assert place.write([]) is None
    assert place.write([small([])]) is None
    assert tree(folder_of(table)) == before


def test_what_is_not_committed_is_not_read_and_can_be_discarded(table: Table) -> None:
    table.commit("me", 0, [written(table, [1])])
    files = [written(table, [2]), written(table, [3])]
    assert lsns_of(table) == [1]
    table.discard(files)
    assert not any(path_of(table, file).exists() for file in files)


def test_discarding_leaves_what_is_part_of_the_table(table: Table) -> None:
    table.commit("me", 0, [written(table, [1])])
    table.discard([])
    for live in table.live_files():
        table.discard([written(table, [2])._replace(path=live.path)])
    assert lsns_of(table) == [1]


def test_a_filter_opens_only_files_that_can_match(table: Table) -> None:
    for batch in range(3):
        table.commit("me", batch, [written(table, range(batch * 10, batch * 10 + 10))])
    for live in table.live_files():
        assert live.rows == 10
        if live.bounds["lsn"] != (10, 19):
            path_of(table, live).unlink()
    found = table.to_arrow(["lsn"], (ds.field("lsn") >= 12) & (ds.field("lsn") < 20))
    assert sorted(found["lsn"].to_pylist()) == list(range(12, 20))


def test_a_filter_for_nulls_finds_them(tmp_path: Path, table_format: TableFormat) -> None:
    schema = pa.schema([pa.field("lsn", pa.int64(), False), pa.field("origin", pa.int64())])
    with open_table(tmp_path, "rows", table_format, schema) as table:
        for batch, origins in enumerate([[None, 5], [6, 7]]):
            file = table.new_file().write([pa.record_batch([[batch, batch], pa.array(origins)], schema=schema)])
            assert file is not None
            table.commit("me", batch, [file])
        assert table.to_arrow(["lsn"], ds.field("origin").is_null())["lsn"].to_pylist() == [0]
        assert table.to_arrow(["lsn"], ds.field("origin") > 5)["lsn"].to_pylist() == [1, 1]


def test_other_columns_are_refused_by_name_and_nothing_is_written(table: Table) -> None:
    before = tree(folder_of(table))
    for schema, complaint in [
        (pa.schema([SMALL.field(0)]), "column 'word' is missing"),
        (SMALL.append(pa.field("more", pa.int64())), "column 'more' is not in the table"),
        (SMALL.set(1, pa.field("word", pa.int64())), "column 'word' is of type int64, in the table it is string"),
        (SMALL.set(0, pa.field("lsn", pa.int64())), "column 'lsn' may be null, in the table it may not"),
        (pa.schema([SMALL.field(1), SMALL.field(0)]), "column 'word' is in the place of the table's 'lsn'"),
    ]:
        with pytest.raises(ConfigurationError, match=complaint):
            open_table(folder_of(table).parent, table.name, table.format, schema)
    assert tree(folder_of(table)) == before


def test_a_difference_within_nested_columns_is_found(tmp_path: Path, table_format: TableFormat) -> None:
    open_table(tmp_path, "records", table_format, RECORDS).close()
    blocks = RECORDS.field("blocks").type.value_type
    fewer = pa.list_(pa.struct([blocks.field(index) for index in range(3)]))
    with pytest.raises(ConfigurationError, match="column 'blocks' is of type"):
        open_table(tmp_path, "records", table_format, RECORDS.set(15, pa.field("blocks", fewer, False)))


def test_a_file_with_other_columns_is_not_committed(table: Table) -> None:
    other = pa.schema([pa.field("lsn", pa.int64(), False), pa.field("word", pa.int32())])
    file = table.new_file()._replace(schema=other).write([pa.record_batch([[1], [2]], schema=other)])
    assert file is not None
    with pytest.raises(ConfigurationError, match=r"does not fit the table .* column 'word' is of type int32"):
        table.commit("me", 0, [written(table, [1]), file])
    assert lsns_of(table) == []
    assert table.last_batch("me") is None


def test_a_file_that_is_not_what_the_task_wrote_is_not_committed(table: Table) -> None:
    file = written(table, [1])
    with pytest.raises(ConfigurationError, match="has 1 rows, its task wrote 2"):
        table.commit("me", 0, [file._replace(rows=2)])
    path_of(table, file).write_bytes(path_of(table, file).read_bytes()[:-3])
    with pytest.raises(ConfigurationError, match=r"does not have .* bytes: write it again"):
        table.commit("me", 0, [file])
    with pytest.raises(ConfigurationError, match="is not a Parquet file, or is truncated"):
        table.commit("me", 0, [file._replace(bytes=file.bytes - 3)])
    path_of(table, file).unlink()
    with pytest.raises(ConfigurationError, match=r"is missing: write it again$"):
        table.commit("me", 0, [file])
    with pytest.raises(ConfigurationError, match="is not a new file of the table"):
        table.commit("me", 0, [file._replace(path=str(folder_of(table).parent / "some.parquet"))])
    assert table.last_batch("me") is None


def test_another_format_than_that_of_the_table_is_refused(table: Table) -> None:
    other = next(each for each in TABLE_FORMATS if each != table.format)
    with pytest.raises(ConfigurationError, match=f"has the format {table.format}, not {other}"):
        open_table(folder_of(table).parent, table.name, other, SMALL)


def test_columns_that_a_format_does_not_have_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    schemas: dict[TableFormat, pa.Schema] = {
        "iceberg": pa.schema([pa.field("lsn", pa.int64()), pa.field("odd", pa.duration("s"))]),
        "delta": pa.schema([pa.field("lsn", pa.int64()), pa.field("odd", pa.duration("s"))]),
    }
    for table_format, schema in schemas.items():
        with pytest.raises(ConfigurationError, match="cannot have such a column"):
            open_table(tmp_path, "odd", table_format, schema)
    assert tree(tmp_path) == set()


def test_what_is_there_and_is_no_table_of_ours_is_left_alone(tmp_path: Path, table_format: TableFormat) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "beach.jpg").write_text("blue")
    write_deltalake(tmp_path / "theirs", pa.table({"lsn": [1]}))
    before = tree(tmp_path)
    theirs = "another program made" if table_format == "delta" else "has the format delta, not iceberg"
    for name, complaint in [("file", "is a file"), ("photos", "such as beach.jpg"), ("theirs", theirs)]:
        with pytest.raises(ConfigurationError, match=complaint):
            open_table(tmp_path, name, table_format, SMALL)
    assert tree(tmp_path) == before


def test_a_table_that_is_missing_is_made_only_if_it_may_be(tmp_path: Path) -> None:
    for arguments in [{"create": False}, {"table_format": "delta"}, {}]:
        with pytest.raises(ConfigurationError, match="has no table 'rows'"):
            open_table(tmp_path, "rows", **arguments)  # type: ignore[arg-type]
    for name in ("", "_hidden", ".hidden", "a/b", "..", "a b"):
        with pytest.raises(ConfigurationError, match="cannot be the name of a table"):
            open_table(tmp_path, name, "delta", SMALL)
    for path, table_format in [("50%", "delta"), ("what?", "iceberg")]:
        with pytest.raises(ConfigurationError, match="misinterpret: name another folder"):
            open_table(tmp_path / path, "rows", table_format, SMALL)  # type: ignore[arg-type]
    assert tree(tmp_path) == set()


def test_tables_are_found_by_path_and_by_url(tmp_path: Path, table_format: TableFormat) -> None:
    folder = tmp_path / "two words"
    open_table(folder, "b", table_format, SMALL).close()
    open_table(folder.as_uri(), "a", "delta", SMALL).close()
    found = [find_names(LakeLocation.parse(place)) for place in (folder, folder.as_uri())]
    assert found == [["a", "b"], ["a", "b"]]
    assert [open_table(folder, name).format for name in found[0]] == ["delta", table_format]
    assert find_names(LakeLocation.parse(tmp_path / "nowhere")) == []


def test_compaction_makes_few_sorted_files_of_many(table: Table) -> None:
    for batch, begin in enumerate([40, 0, 20, 60, 10, 50, 30, 70]):
        table.commit("me", batch, [written(table, range(begin, begin + 10))])
    before = table.live_files()
    planned = table.compact(dry_run=True)
    assert (planned.files_removed, planned.files_added, planned.rows) == (8, 1, 80)
    assert len(table.live_files()) == 8
    reported: list[tuple[int, int]] = []
    done = table.compact(progress=lambda *progress: reported.append(progress))
    total = sum(file.bytes for file in before)
    assert reported == [(total, total)]
    (after,) = table.live_files()
    assert done == (8, 1, 80, total, after.bytes)
    assert table.to_arrow(["lsn"])["lsn"].to_pylist() == list(range(80))
    assert after.bounds["lsn"] == (0, 79)
    assert table.compact().files_removed == 0
    with again(table) as other:
        assert other.last_batch("me") == 7
        assert other.commit("me", 8, [written(other, [80])])
    assert lsns_of(table) == list(range(81))


@pytest.mark.parametrize(
    "files", [[[3, 5, 9], [4, 8]], [[5, 3, 4], [9, 8]], [[3, 4], [4, 5], [8, 9]]], ids=["overlap", "mess", "order"]
)
def test_compaction_sorts_rows(table: Table, files: list[list[int]]) -> None:
    for batch, lsns in enumerate(files):
        table.commit("me", batch, [written(table, lsns)])
    table.compact()
    assert table.to_arrow(["lsn"])["lsn"].to_pylist() == sorted(lsn for lsns in files for lsn in lsns)


def test_files_that_are_large_enough_are_left_alone(table: Table) -> None:
    for batch in range(4):
        table.commit("me", batch, [written(table, range(batch * 10, batch * 10 + 10))])
    size = table.live_files()[0].bytes
    assert table.compact(size).files_removed == 0
    assert table.compact(size * 2 + 100)[:2] == (4, 2)
    assert lsns_of(table) == list(range(40))
    with pytest.raises(ConfigurationError, match="files of 0 bytes"):
        table.compact(0)


def test_who_has_begun_to_read_goes_on_until_old_states_are_removed(table: Table) -> None:
    for batch in range(3):
        table.commit("me", batch, [written(table, [batch])])
    begun = table.live_files()
    table.compact()
    table.expire(3600)
    assert all(path_of(table, file).exists() for file in begun)
    assert table.expire(0, dry_run=True).files >= 3
    assert all(path_of(table, file).exists() for file in begun)
    assert table.expire(0).files >= 3
    assert not any(path_of(table, file).exists() for file in begun)
    assert table.expire(0).files <= 2
    assert lsns_of(table) == [0, 1, 2]
    with again(table) as other:
        assert other.last_batch("me") == 2
        assert other.commit("me", 3, [written(other, [3])])
        assert not other.commit("me", 2, [])
    assert lsns_of(table) == [0, 1, 2, 3]


def test_commits_and_compactions_at_once_lose_nothing_and_double_nothing(table: Table) -> None:
    done = threading.Event()

    def write(writer: int) -> None:
        with again(table) as mine:
            for batch in range(6):
                assert mine.commit(f"writer {writer}", batch, [written(mine, [writer * 10 + batch])])

    def compact() -> None:
        with again(table) as mine:
            while not done.is_set():
                mine.compact()
                found = lsns_of(mine)
                assert len(set(found)) == len(found)

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, writer) for writer in range(2)]
        compaction = pool.submit(compact)
        try:
            for writer in writers:
                writer.result(60)
        finally:
            done.set()
        compaction.result(60)
    assert lsns_of(table) == [*range(6), *range(10, 16)]


def test_of_two_compactions_at_once_the_slower_one_changes_nothing(table: Table) -> None:
    for batch in range(4):
        table.commit("me", batch, [written(table, [batch])])
    seen, merged = table.live_files(), written(table, range(4))
    with again(table) as faster:
        assert faster.compact().files_removed == 4
    assert table._replaced([Replacement(seen, merged)]).files_removed == 0
    assert not path_of(table, merged).exists()
    assert lsns_of(table) == [0, 1, 2, 3]


def test_a_batch_that_another_process_commits_in_the_last_moment_is_recognised_as_well(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with late(table, monkeypatch) as slower:
        table.commit("me", 4, [written(table, [1])])
        file = written(slower, [1])
        assert not slower.commit("me", 4, [file])
        assert not path_of(table, file).exists()
    assert lsns_of(table) == [1]


@pytest.mark.parametrize("table_format", ["iceberg", "delta"], indirect=True)
@pytest.mark.parametrize("rows", [0, 1])
def test_what_was_decided_by_an_older_state_of_the_table_is_not_committed(table: Table, rows: int) -> None:
    table.commit("me", 0, [written(table, [1])])
    with again(table) as late:
        late.last_batch("me")
        known = late._load()
        table.commit("you", 0, [written(table, [2])])
        files = [late._checked(written(late, [3]))] * rows
        assert not late._commit(known, Batch("me", 1), files, {})
    assert lsns_of(table) == [1, 2]
    assert table.last_batch("me") == 0


def test_files_of_killed_tasks_are_removed_once_they_are_old(table: Table) -> None:
    table.commit("me", 0, [written(table, [1])])
    old, young = written(table, [2]), written(table, [3])
    long_ago = time.time() - 2 * 86400
    os.utime(path_of(table, old), (long_ago, long_ago))
    assert table.remove_orphans(86400, dry_run=True) == (1, old.bytes, 0)
    assert path_of(table, old).exists()
    assert table.remove_orphans(86400) == (1, old.bytes, 0)
    assert not path_of(table, old).exists()
    assert table.commit("me", 1, [young])
    for live in table.live_files():
        os.utime(path_of(table, live), (long_ago, long_ago))
    assert table.remove_orphans(86400).files == 0
    assert lsns_of(table) == [1, 3]


def test_former_files_are_no_orphans(table: Table) -> None:
    for batch in range(2):
        table.commit("me", batch, [written(table, [batch])])
    begun = table.live_files()
    table.compact()
    long_ago = time.time() - 2 * 86400
    for path in folder_of(table).rglob("*"):
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    table.remove_orphans(0)
    assert all(path_of(table, file).exists() for file in begun)
    assert lsns_of(table) == [0, 1]
