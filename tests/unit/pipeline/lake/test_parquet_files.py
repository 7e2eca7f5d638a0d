"""Parquet files as the tables have them: what is written, what footers say, in what schemas differ."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from safekeeper.base.errors import ConfigurationError, StorageFailed
from tests.unit.table_rows import RECORDS, SMALL, records, small
from walproxy.pipeline.lake import parquet_files
from walproxy.pipeline.lake.compaction import order_column, plan
from walproxy.pipeline.lake.parquet_files import (
    Footer,
    LiveFile,
    footer_of,
    normal_schema,
    schema_difference,
    write_parquet,
)


def read_footer(path: str) -> Footer:
    return footer_of(pq.read_metadata(path), pq.read_schema(path), Path(path).stat().st_size)


def test_a_file_has_its_rows_in_order_and_a_footer_that_says_so(tmp_path: Path) -> None:
    path = str(tmp_path / "some.parquet")
    file = write_parquet(path, [records(range(5, 8)), records(range(8, 20))], RECORDS)
    assert file == (path, 15, Path(path).stat().st_size)
    assert pq.read_table(path) == pa.Table.from_batches([records(range(5, 20))])
    footer = read_footer(path)
    assert (footer.schema, footer.rows, footer.bytes) == (RECORDS, 15, file.bytes)
    assert footer.bounds["lsn"] == (5, 19)
    assert footer.nulls["top_xid"] == 3
    assert "blocks" not in footer.bounds


def test_positions_are_stored_as_differences_and_few_values_in_a_dictionary(tmp_path: Path) -> None:
    path = str(tmp_path / "some.parquet")
    write_parquet(path, [records(range(2000))], RECORDS)
    group = pq.read_metadata(path).row_group(0)
    encodings = {group.column(n).path_in_schema: set(group.column(n).encodings) for n in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in encodings["lsn"]
    assert "DELTA_BINARY_PACKED" in encodings["previous_lsn"]
    assert "RLE_DICTIONARY" in encodings["rmgr"]
    assert "RLE_DICTIONARY" in encodings["blocks.list.element.relation"]
    assert "DELTA_BINARY_PACKED" in encodings["blocks.list.element.block"]
    assert "DELTA_BINARY_PACKED" in encodings["xid"]
    assert group.column(0).compression == "ZSTD"


def test_texts_with_a_dictionary_are_written_as_texts(tmp_path: Path) -> None:
    path = str(tmp_path / "some.parquet")
    names = pa.array(["Btree", "Heap", "Heap2", "XLOG"])

    def numbered(numbers: list[int], names: pa.Array = names) -> pa.RecordBatch:
        words = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int16()), names)
        return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), words], names=["lsn", "rmgr"])

    schema = pa.schema([pa.field("lsn", pa.int64(), False), pa.field("rmgr", pa.string(), False)])
    given = pa.schema([schema.field("lsn"), schema.field("rmgr").with_type(numbered([]).schema.field("rmgr").type)])
    batches = [numbered([2, 1]), numbered([], pa.array(["other"])), numbered([1])]
    write_parquet(path, [batch.cast(given) for batch in batches], schema)
    assert pq.read_table(path) == pa.table({"lsn": [2, 1, 1], "rmgr": ["Heap2", "Heap", "Heap"]}, schema)
    column = pq.read_metadata(path).row_group(0).column(1)
    assert set(column.encodings) <= {"PLAIN", "RLE", "RLE_DICTIONARY"}
    assert read_footer(path).schema == schema
    assert read_footer(path).limits["rmgr"] == ("Heap", "Heap2")


def test_many_batches_share_a_row_group_and_one_large_batch_has_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "ROW_GROUP_ROWS", 100)
    path = str(tmp_path / "some.parquet")
    write_parquet(path, [small(range(n * 30, n * 30 + 30)) for n in range(8)], SMALL)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [100, 20, 100, 20]
    write_parquet(path, [small(range(250))], SMALL)
    assert pq.read_metadata(path).num_row_groups == 3
    assert read_footer(path).bounds == {"lsn": (0, 249)}
    monkeypatch.setattr(parquet_files, "ROW_GROUP_BYTES", 1000)
    write_parquet(path, [small(range(n * 40, n * 40 + 40)) for n in range(4)], SMALL)
    assert pq.read_metadata(path).num_row_groups > 1


def test_a_file_that_could_not_be_written_whole_is_removed(tmp_path: Path) -> None:
    def breaks_off() -> Iterator[pa.RecordBatch]:
        yield small([1])
        raise RuntimeError("the task was told to stop")

    with pytest.raises(RuntimeError):
        write_parquet(str(tmp_path / "some.parquet"), breaks_off(), SMALL)
    with pytest.raises(ConfigurationError, match="rows cannot be written: column 'word' is missing"):
        write_parquet(str(tmp_path / "some.parquet"), [small([1]).select(["lsn"])], SMALL)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageFailed, match=r"could not write .*: No such file or directory$"):
        write_parquet(str(tmp_path / "nowhere" / "some.parquet"), [small([1])], SMALL)


def test_names_of_list_elements_make_no_difference(tmp_path: Path) -> None:
    spark = pa.schema([pa.field("words", pa.list_(pa.field("item", pa.struct([pa.field("n", pa.int16())]))))])
    ours = pa.schema([pa.field("words", pa.list_(pa.field("element", pa.struct([pa.field("n", pa.int16())]))))])
    assert normal_schema(spark).equals(ours)
    assert schema_difference(ours, spark) is None
    batch = pa.record_batch([pa.array([[{"n": 1}], None], spark.field(0).type)], schema=spark)
    path = str(tmp_path / "some.parquet")
    write_parquet(path, [batch], ours)
    assert pq.read_table(path).schema.equals(ours)
    assert pq.read_table(path).to_pylist() == batch.to_pylist()


def test_the_order_of_rows_is_that_of_the_first_lsn() -> None:
    assert order_column(RECORDS) == "lsn"
    assert order_column(pa.schema([("xid", pa.int64()), ("begin_lsn", pa.int64()), ("lsn", pa.int64())])) == "begin_lsn"
    assert order_column(pa.schema([("lsn", pa.string()), ("xid", pa.int64())])) is None


def test_small_files_are_merged_in_the_order_of_their_rows_up_to_the_wanted_size() -> None:
    sizes = {1: 30, 2: 10, 3: 60, 4: 20, 5: 45, 6: 40, 7: 5}
    files = [LiveFile(f"/{9 - lsn}", 1, size, {"lsn": (lsn, lsn)}) for lsn, size in reversed(sizes.items())]
    groups = plan(files, 100, "lsn")
    assert [[9 - int(file.path[1:]) for file in group] for group in groups] == [[1, 2, 4], [5, 6, 7]]
    assert plan(files[:1], 100, "lsn") == []
    assert plan(files, 10, "lsn") == []
