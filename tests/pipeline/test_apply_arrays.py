"""Arrays in tables that follow a real server: lists, or text, and nothing is lost of values that are no lists."""

import itertools
import logging
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.apply_fixtures import compare, options_of, rows_here
from tests.pipeline.logical_server import Source
from walproxy.pipeline.cdc.apply.following import Merge, Position
from walproxy.pipeline.cdc.apply.job import ApplyOptions, TablesQuarantined, run_apply
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.apply.verify import TablesDiffer, run_verify
from walproxy.pipeline.cdc.column_types import arrow_type, is_array
from walproxy.pipeline.cdc.publication import parse_table
from walproxy.pipeline.choices import FOLLOWING_MODES, TABLE_FORMATS, FollowingMode, TableFormat
from walproxy.pipeline.spark_errors import spark_errors

COLUMNS = {
    "numbers": "int[]",
    "words": "text[]",
    "amounts": "numeric(12,2)[]",
    "flags": "boolean[]",
    "raws": "bytea[]",
    "days": "date[]",
    "ats": "timestamptz[]",
    "locals": "timestamp[]",
    "smalls": "smallint[]",
    "doubles": "float8[]",
    "tags": "uuid[]",
    "docs": "jsonb[]",
    "spans": "interval[]",
    "padded": "char(5)[]",
    "frees": "numeric[]",
    "few": "few",
}
NO_LISTS = {"matrix": "int[][]", "moods": "mood[]", "cubes": "cube"}
SETUP = (
    "CREATE TYPE mood AS ENUM ('low', 'high')",
    "CREATE DOMAIN few AS int[] CHECK (cardinality(value) < 9)",
    "CREATE DOMAIN cube AS int[][][]",
    f"CREATE TABLE t (id int PRIMARY KEY, big text[], {', '.join(map(' '.join, (COLUMNS | NO_LISTS).items()))})",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE k (id int[] PRIMARY KEY, v int[])",
    "CREATE TABLE plain (id int PRIMARY KEY)",
)
HOSTILE = (
    r"""ARRAY['NULL', NULL, '', ' ', 'a,b', '{', '}', '"', '\', '\"', E'\n\t\v', '日本', E'\U0001F40E', 'null', """
    "'[0:1]={1}']"
)
ROW = (
    f"{HOSTILE}, '{{1,-2147483648,NULL}}', {HOSTILE}, '{{9999999999.99,NULL,-0.01}}', '{{t,NULL,f}}', "
    r"ARRAY['\x00ff', '\x', NULL]::bytea[], '{0001-01-01,9999-12-31,NULL}', '{2026-11-26 12:00:00.5+01,NULL}', "
    r"'{1582-10-04 01:02:03.000004}', '{-32768,32767}', '{1.5,-0,1e300,NULL}', "
    r"""'{11111111-2222-3333-4444-555555555555,NULL}', ARRAY['{"a": "b\\\\c, {"}', 'null', NULL]::jsonb[], """
    r"'{1 mon 2 days 00:00:03,NULL}', '{a,ab ,\"\"}', '{NaN,1.50,1e50}', '{1,2}', "
    r"'{{1,2},{3,NULL}}', '{low,NULL}', '{{{1}},{{2}}}'"
)
NAMES = f"id, big, {', '.join([*COLUMNS, *NO_LISTS])}"


def insert(number: int, row: str = ROW) -> str:
    return f"INSERT INTO t ({NAMES}) VALUES ({number}, {row})"


STORY = (
    insert(1),
    f"INSERT INTO t ({NAMES}) VALUES (2, ARRAY[repeat('x', 3000), 'y']{', NULL' * 19})",
    f"INSERT INTO t ({NAMES}) VALUES (3{(', ' + repr('{}')) * 20})",
    "INSERT INTO k VALUES ('{1,2}', '{3}'), ('[0:0]={1}', '{}'), ('{{1}}', NULL)",
    "INSERT INTO plain VALUES (1)",
)
CHANGES = (
    'UPDATE t SET numbers = numbers || 7, words = words || \'{"a \\"b\\"",NULL}\' WHERE id <= 2',
    "UPDATE t SET id = id + 1000 WHERE id = 2",
    insert(4),
    "DELETE FROM t WHERE id = 3",
    insert(3),
    "UPDATE k SET v = v || 1 WHERE id = '{1,2}'",
    "UPDATE k SET id = '{9}' WHERE id = '{{1}}'",
    "DELETE FROM k WHERE id = '[0:0]={1}'",
    "ALTER TABLE t ADD later int[], ADD later_matrix int[][]",
    "UPDATE t SET later = '{5,NULL}', later_matrix = '{{5}}' WHERE id = 1",
    "UPDATE t SET id = id + 2000, later = NULL WHERE id = 1002",
    "INSERT INTO plain VALUES (2)",
)
MORE = (
    "TRUNCATE k",
    "INSERT INTO k VALUES ('{}', '{1}')",
    "UPDATE t SET numbers = NULL, big = '{}' WHERE id = 4",
)


def pairs(*often: str, modes: Sequence[FollowingMode] = FOLLOWING_MODES) -> list[Any]:
    """Return each format with each mode; all but `often`, which have each of both, are left to the nights."""
    return [
        pytest.param(*pair, id="-".join(pair), marks=[] if "-".join(pair) in often else [pytest.mark.nightly])
        for pair in itertools.product(TABLE_FORMATS, modes)
    ]


# A table with deleted rows that stay is a mirror to which one column is added.
MODES = ["mirror", "append", pytest.param("soft-delete", marks=pytest.mark.nightly)]


@pytest.fixture
def source(empty: Source) -> Source:
    empty.run(*SETUP)
    empty.publish("t", "k", "plain")
    return empty


def types_of(options: ApplyOptions, table: str = "t") -> dict[str, pa.DataType]:
    schema = rows_here(options.location, options.format, parse_table(table)).schema
    return {field.name: field.type for field in schema}


def values(options: ApplyOptions, column: str, table: str = "t") -> dict[Any, Any]:
    found = rows_here(options.location, options.format, parse_table(table)).to_pylist()
    return {str(row["id"]): row[column] for row in found}


def test_the_types_of_elements_are_those_of_the_catalogs(source: Source) -> None:
    """And what is text although its elements have a comma between them is known."""
    listed = source.rows(
        "SELECT a.oid::int, a.typname, a.typelem::int, e.typdelim FROM pg_type a JOIN pg_type e ON e.typarray = a.oid "
        "WHERE a.oid < 10000 AND a.typelem <> 0 AND e.typtype IN ('b', 'r', 'm') ORDER BY 2"
    )
    assert len(listed) > 60
    for oid, name, element_oid, delimiter in listed:
        if is_array(oid):
            assert delimiter == ",", name
            assert arrow_type(oid, -1, lists=True) == pa.list_(arrow_type(element_oid, -1)), name
    typed = {name for oid, name, element_oid, _ in listed if not pa.types.is_string(arrow_type(element_oid, -1))}
    assert typed <= {name for oid, name, _, _ in listed if is_array(oid)}


@pytest.mark.parametrize(("table_format", "mode"), pairs("iceberg-mirror", "delta-append"))
def test_arrays_are_lists_in_copies_and_in_changes(
    source: Source, tmp_path: Path, table_format: TableFormat, mode: FollowingMode, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(source, tmp_path, table_format, mode=mode)
    source.run(*STORY)
    run_apply(options, once=True)
    caplog.set_level(logging.INFO, "walproxy")
    for chapter in ((), CHANGES, MORE):
        source.run(*chapter)
        run_apply(options, once=True)
        assert [each.is_same for each in run_verify(options, repair=False)] == [True] * 3
        if mode == "mirror":
            compare(source, options.location, table_format, "t", "k", "plain")
    assert "changes, up to" in caplog.text and "copying" not in caplog.text
    types = types_of(options)
    assert {name for name in COLUMNS if not pa.types.is_list(types[name])} == set()
    assert pa.types.is_list(types["later"]) and pa.types.is_list(types["big"])
    assert types["amounts"].value_type == pa.decimal128(12, 2)
    assert {types[name] for name in [*NO_LISTS, "later_matrix"]} == {pa.string()}
    of_key = types_of(options, "k")
    assert of_key["id"] == pa.string() and pa.types.is_list(of_key["v"])
    if mode == "mirror":
        # The array that was not sent, though the key changed twice.
        assert values(options, "big")["3002"] == ["x" * 3000, "y"]
        assert values(options, "matrix")["1"] == "{{1,2},{3,NULL}}"


def test_a_verification_finds_an_element_that_differs(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)
    source.run(*STORY)
    run_apply(options, once=True)
    with closing(following_table(options.location, "delta", parse_table("t"))) as table:
        position = table.position()
        assert position is not None
        rows = table.to_arrow()
        number = rows.schema.get_field_index("words")
        turned = [None if row is None else row[::-1] for row in rows["words"].to_pylist()]
        rows = rows.set_column(number, rows.schema.field(number), pa.array(turned, rows.schema.field(number).type))
        gone = pa.table({"id": pa.array([], pa.int32())})
        table.merge(Merge(False, rows, gone), ["id"], Position(*position), expected=Position(*position))
    with pytest.raises(TablesDiffer, match=r"public\.t"):
        run_verify(options, repair=False)
    assert [each.is_same for each in run_verify(options, repair=True)] == [True] * 3


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_is_no_list_is_not_lost(
    source: Source, tmp_path: Path, mode: FollowingMode, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(source, tmp_path, mode=mode)
    source.run(*STORY)
    run_apply(options, once=True)
    for text in ("{{1,2},{3,4}}", "[0:1]={1,2}"):
        source.run(f"UPDATE t SET numbers = '{text}' WHERE id = 1", "INSERT INTO plain SELECT max(id) + 1 FROM plain")
        with pytest.raises(TablesQuarantined) as raised:
            run_apply(options, once=True)
        assert f"public.t.numbers has the value '{text}', which list<" in str(raised.value)
        assert "name the column among those to be read as text" in str(raised.value)
        compare_present(source, options, "plain")
    # Columns of one job differ: this one becomes text with all that it has, the others remain lists.
    caplog.set_level(logging.INFO, "walproxy")
    as_text = options._replace(on_bad_value="text")
    run_apply(as_text, once=True)
    source.run("UPDATE t SET numbers = '{{{7}}}' WHERE id = 1", "UPDATE t SET words = NULL WHERE id = 1")
    assert [each.is_same for each in run_verify(as_text, repair=False)] == [True] * 3
    types = types_of(as_text)
    assert types["numbers"] == pa.string() and pa.types.is_list(types["words"])
    found = {row["numbers"] for row in rows_here(as_text.location, "delta", parse_table("t")).to_pylist()}
    assert {"{{{7}}}"} <= found if mode != "append" else {"{{{7}}}", "[0:1]={1,2}", "{1,-2147483648,NULL}"} <= found


def compare_present(source: Source, options: ApplyOptions, table: str) -> None:
    if options.mode == "mirror":
        compare(source, options.location, options.format, table)


def test_a_value_that_is_no_list_becomes_null_on_demand(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path, on_bad_value="null")
    source.run(*STORY)
    run_apply(options, once=True)
    source.run("UPDATE t SET numbers = '{{1}}' WHERE id = 1", "UPDATE t SET numbers = '{8}' WHERE id = 3")
    assert [each.is_same for each in run_verify(options, repair=False)] == [True] * 3
    assert values(options, "numbers") == {"1": None, "2": None, "3": [8]}


@pytest.mark.parametrize("mode", MODES)
def test_tables_with_text_keep_it_until_they_are_asked_otherwise(
    source: Source, tmp_path: Path, mode: FollowingMode, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(source, tmp_path, mode=mode, arrays="text")
    source.run(*STORY)
    run_apply(options, once=True)
    caplog.set_level(logging.INFO, "walproxy")
    options = options._replace(arrays=None)
    source.run(*CHANGES)
    run_apply(options, once=True)
    assert [each.is_same for each in run_verify(options, repair=False)] == [True] * 3
    assert "copying" not in caplog.text
    assert set(map(str, types_of(options).values())) <= {
        "string",
        "int32",
        "int64",
        "timestamp[us, tz=UTC]",
        "bool",
    } | {
        str(pa.list_(pa.string())),
        "list<element: string>",
    }
    assert types_of(options)["numbers"] == pa.string()
    run_apply(options._replace(arrays="list"), once=True)
    assert "copying public.t as of" in caplog.text and "its arrays are to be lists" in caplog.text
    assert "copying public.plain" not in caplog.text
    caplog.clear()
    source.run(*MORE)
    run_apply(options, once=True)  # It is what it was told last.
    assert "copying" not in caplog.text
    assert [each.is_same for each in run_verify(options, repair=False)] == [True] * 3
    # Where nothing is lost by a copy, what has been text remains it.
    assert types_of(options)["numbers"] == (pa.list_(pa.int32()) if mode == "mirror" else pa.string())
    run_apply(options._replace(arrays="text"), once=True)
    assert [each.is_same for each in run_verify(options, repair=False)] == [True] * 3
    assert types_of(options)["numbers"] == pa.string()


@pytest.mark.parametrize(
    ("table_format", "mode"), pairs("delta-soft-delete", "iceberg-append", modes=FOLLOWING_MODES[1:])
)
def test_lists_become_text_with_all_their_old_rows(
    source: Source, tmp_path: Path, table_format: TableFormat, mode: FollowingMode
) -> None:
    options = options_of(source, tmp_path, table_format, mode=mode)
    source.run(*STORY)
    run_apply(options, once=True)
    source.run("DELETE FROM t WHERE id = 1", "ALTER TABLE t ALTER numbers TYPE bigint[], ALTER flags TYPE text")
    run_apply(options, once=True)
    assert [each.is_same for each in run_verify(options, repair=False)] == [True] * 3
    types = types_of(options)
    assert types["numbers"] == pa.list_(pa.int64()) and types["flags"] == pa.string()
    run_apply(options._replace(arrays="text"), once=True)
    assert [each.is_same for each in run_verify(options, repair=False)] == [True] * 3
    found = rows_here(options.location, table_format, parse_table("t")).to_pylist()
    [words] = {row["words"] for row in found if row["id"] == 1 and row["words"]}
    [(printed,)] = source.rows(f"SELECT ({HOSTILE})::text")
    assert words == printed
    assert {row["numbers"] for row in found if row["id"] == 1 and row["numbers"]} == {"{1,-2147483648,NULL}"}
    assert {row["flags"] for row in found if row["id"] == 1 and row["flags"]} == {"{t,NULL,f}"}


def test_spark_reads_arrays_as_lists_if_it_is_asked_to(spark: SparkSession, source: Source) -> None:
    source.run(*STORY)
    given = {"conninfo": source.conninfo, "slot": source.slot, "publication": source.publication, "table": "t"}

    def read(**more: str) -> dict[str, Any]:
        with spark_errors():
            frame = spark.read.format("pgcdc").options(**given, **more).load()
            [row] = frame.where("id = 1").collect()
            found: dict[str, Any] = row.asDict()
            return found

    as_lists, as_text = read(arrays="list"), read()
    assert as_lists["numbers"] == [1, -2147483648, None]
    assert as_lists["words"] == [element for (element,) in source.rows(f"SELECT unnest({HOSTILE})")]
    assert as_lists["flags"] == [True, None, False]
    assert as_lists["matrix"] == as_text["matrix"] == "{{1,2},{3,NULL}}"
    assert as_text["numbers"] == "{1,-2147483648,NULL}"
    assert read(arrays="list", textColumns="numbers")["numbers"] == "{1,-2147483648,NULL}"
    source.run("UPDATE t SET numbers = '{{1}}' WHERE id = 1")
    with pytest.raises(Exception, match=r"public\.t\.numbers has the value '\{\{1\}\}'"):
        read(arrays="list")
