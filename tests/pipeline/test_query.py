"""The tables of a folder, asked with SQL, whatever their format."""

import csv
import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click.testing
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from safekeeper.base.errors import ConfigurationError, StorageFailed, WalproxyError
from tests.pipeline.formats import MOSTLY_DELTA, MOSTLY_ICEBERG
from tests.pipeline.report_story import make_night, views_of, write_tables
from tests.unit.table_rows import open_table
from walproxy.cli.pipeline_commands.query import query as command
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.duck import FolderTables, QueryFailed, literal, query
from walproxy.pipeline.schemas import COLUMNS, arrow_schema

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "pipeline.md"
TIME = datetime(2026, 11, 21, 14, 16, 5, 123456, tzinfo=UTC)
EMPTY: dict[pa.DataType, Any] = {
    pa.int16(): 0,
    pa.int32(): 0,
    pa.int64(): 0,
    pa.bool_(): False,
    pa.string(): "",
    pa.timestamp("us", tz="UTC"): TIME,
}


def row(view: str, **values: Any) -> dict[str, Any]:
    """A row of a view, with what is not given as empty as it can be."""
    empty = {c.name: None if c.nullable else EMPTY.get(c.type, []) for c in COLUMNS[view]}
    return {**empty, **values}


def write(folder: Path, view: str, *rows: dict[str, Any], table_format: TableFormat = "delta", name: str = "") -> None:
    with open_table(folder, name or view, table_format, arrow_schema(view)) as table:
        file = table.new_file().write([pa.RecordBatch.from_pylist(list(rows), arrow_schema(view))])
        table.commit(None, None, [file] if file is not None else [])


def end(lsn: int, xid: int, *subxids: int, outcome: str = "commit") -> dict[str, Any]:
    return row("transactions", lsn=lsn, end_lsn=lsn + 5, xid=xid, subxids=list(subxids), outcome=outcome)


def volume(xid: int, first_lsn: int, last_lsn: int, wal_bytes: int) -> dict[str, Any]:
    return row("transaction_volume", xid=xid, first_lsn=first_lsn, last_lsn=last_lsn, records=1, wal_bytes=wal_bytes)


def rows_of(folder: Path, statement: str, **limits: int) -> list[dict[str, Any]]:
    with query(FolderTables(folder), statement, **limits) as result:
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def test_the_wal_of_a_transaction_is_that_of_its_subtransactions_up_to_its_end(tmp_path: Path) -> None:
    write(
        tmp_path,
        "transactions",
        end(100, 7, 8, 9),
        end(150, 20, outcome="abort"),  # a subtransaction that was rolled back to a savepoint
        end(200, 19),
        end(300, 30, outcome="prepare"),
        end(400, 30, 31, outcome="commit_prepared"),
        end(900, 7, 9),  # four billion transactions later
    )
    write(
        tmp_path,
        "transaction_volume",
        volume(7, 10, 40, 1),
        volume(7, 60, 100, 2),  # its commit is the last of its records
        volume(8, 20, 30, 4),
        volume(9, 35, 90, 8),
        volume(19, 110, 200, 16),
        volume(20, 120, 150, 32),
        volume(30, 210, 300, 64),
        volume(31, 220, 230, 128),
        volume(7, 850, 900, 256),
        volume(9, 860, 870, 512),
        volume(9, 950, 960, 1024),  # goes on
        volume(0, 1, 990, 2048),  # of no transaction
    )
    found = rows_of(tmp_path, "SELECT * FROM transaction_sizes ORDER BY lsn")
    columns = ("lsn", "xid", "first_lsn", "records", "wal_bytes")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (100, 7, 10, 4, 1 + 2 + 4 + 8),
        (150, 20, 120, 1, 32),
        (200, 19, 110, 1, 16),
        (400, 30, 210, 2, 64 + 128),
        (900, 7, 850, 2, 256 + 512),
    ]


@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_tables_of_every_format_are_read_and_lsns_converted(tmp_path: Path, table_format: TableFormat) -> None:
    lsn = 0x1_0000_2000
    write(tmp_path, "transactions", end(lsn, 1), end(lsn + 1, 2), table_format=table_format)
    write(tmp_path, "tuple_stats", table_format=table_format)  # without a row
    statement = """
        SELECT lsn_text(lsn) AS text, lsn('FFFF/FFFFFFFF') AS high, time, (SELECT count(*) FROM tuple_stats) AS others
        FROM transactions WHERE lsn < lsn('1/2001')
    """
    high = 0xFFFF_FFFF_FFFF
    assert rows_of(tmp_path, statement) == [{"text": "1/2000", "high": high, "time": TIME, "others": 0}]


@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
def test_only_files_that_are_part_of_the_table_are_read(tmp_path: Path, table_format: TableFormat) -> None:
    folder = tmp_path / "it's [1]"
    for lsn in (1, 2):
        write(folder, "transactions", end(lsn, lsn), table_format=table_format)
    with open_table(folder, "transactions", create=False) as table:
        never_committed = table.new_file().write([pa.RecordBatch.from_pylist([end(3, 3)], table.schema)])
        table.compact()
        assert len(table.live_files()) == 1
    assert never_committed is not None
    replaced = [path for path in folder.rglob("*.parquet*") if path.is_file()]
    assert len(replaced) >= 3
    assert rows_of(folder, "SELECT count(*) AS number, max(lsn) AS last FROM transactions") == [
        {"number": 2, "last": 2}
    ]


def test_blocks_are_the_references_of_records_unless_there_is_such_a_table(tmp_path: Path) -> None:
    views = views_of(make_night())
    write_tables(tmp_path, {"records": views["records"]}, files=1)
    columns = [column.name for column in COLUMNS["blocks"]]
    with query(FolderTables(tmp_path), "SELECT * FROM blocks ORDER BY lsn, block_id") as result:
        assert result.columns == columns
        assert [dict(zip(columns, each, strict=True)) for each in result.rows] == views["blocks"]
    write(tmp_path, "blocks", row("blocks", block=7))
    assert rows_of(tmp_path, "SELECT block FROM blocks") == [{"block": 7}]


def test_the_questions_of_the_guide_have_answers(tmp_path: Path) -> None:
    write_tables(tmp_path, views_of(make_night()))
    section = GUIDE.read_text().partition("\n## Questions\n")[2].partition("\n## ")[0]
    questions = [part.strip() for part in section.split("```")[1].partition("\n")[2].split(";") if part.strip()]
    assert len(questions) >= 4
    answers = [rows_of(tmp_path, question.replace("16384", "20001")) for question in questions]
    assert [question for question, answer in zip(questions, answers, strict=True) if not answer] == []


def printed(*arguments: str, text: str | None = None) -> str:
    result = click.testing.CliRunner().invoke(command, arguments, input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_prints_for_people_and_for_programs(tmp_path: Path) -> None:
    write(tmp_path, "transactions", end(0x5_0000_0000, 1, 2, 3), end(0x5_0000_0010, 4))
    ask = ["SELECT lsn, xid, time, subxids, gid FROM transactions ORDER BY lsn;", "--tables", str(tmp_path)]
    shown = printed(*ask)
    assert shown.splitlines() == [
        "  lsn | xid | time                             | subxids | gid",
        "------+-----+----------------------------------+---------+-----",
        "  5/0 |   1 | 2026-11-21 14:16:05.123456+00:00 | [2,3]   |",
        " 5/10 |   4 | 2026-11-21 14:16:05.123456+00:00 | []      |",
    ]
    lines = printed(*ask[1:], "--json", text=ask[0]).splitlines()
    assert [json.loads(line)["subxids"] for line in lines] == [[2, 3], []]
    assert json.loads(lines[0])["lsn"] == 0x5_0000_0000
    [_, first, _] = csv.reader(io.StringIO(printed(*ask, "--csv")))
    assert (first[0], first[3], first[4]) == (str(0x5_0000_0000), "[2,3]", "")


def test_sums_are_numbers_and_every_type_is_printed(tmp_path: Path) -> None:
    write(tmp_path, "transactions", end(1, 1))
    statement = """
        SELECT sum(lsn) AS sum, 1.50::DECIMAL(5, 2) AS price, true AS yes, 'a"b,c' AS text, 'ab'::BLOB AS bytes,
            INTERVAL 1 DAY AS day, {'a': 1} AS pair, MAP {'k': [1]} AS map, NULL AS nothing FROM transactions
    """
    [line] = printed(statement, "--tables", str(tmp_path), "--json").splitlines()
    assert json.loads(line)["sum"] == 1
    assert json.loads(line)["map"] == {"k": [1]}
    [_, values] = csv.reader(io.StringIO(printed(statement, "--tables", str(tmp_path), "--csv")))
    assert values[:4] == ["1", "1.50", "true", 'a"b,c']
    assert '{"a":1}' in printed(statement, "--tables", str(tmp_path))


def test_a_limited_memory_suffices_for_a_sort_of_more(tmp_path: Path) -> None:
    write(tmp_path, "transactions", end(1, 1))
    statement = "SELECT max(md5) FROM (SELECT md5(range::text) AS md5 FROM range(1000000) ORDER BY md5 LIMIT 900000)"
    assert rows_of(tmp_path, statement, memory_bytes=60 << 20, threads=1)
    with pytest.raises(QueryFailed, match="set a larger query_memory"):
        rows_of(tmp_path, "SELECT len(list(md5(range::text))) FROM range(1000000)", memory_bytes=20 << 20, threads=1)


def test_a_wrong_question_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^.* has no tables: walproxy pipeline run writes some$"):
        rows_of(tmp_path, "SELECT 1")
    write(tmp_path, "transactions", end(1, 1))
    write(tmp_path, "transactions", end(1, 1), name="a-b.c")
    for statement, problem in (
        ("SELECT nothing FROM transactions", r'"nothing" not found in FROM clause'),
        ("SELECT * FROM records", r"has no table records, but a-b.c, transactions"),
        ("SELEC", r'syntax error at or near "SELEC"'),
        ("SELECT 1; SELECT 2", r"one SQL statement is needed, not 2"),
        ("-- nothing", r"one SQL statement is needed, not 0"),
        (
            "SELECT CASE WHEN range = 99999 THEN 'x' ELSE '1' END::INT FROM range(100000)",
            r"Could not convert string 'x'",
        ),
    ):
        with pytest.raises(ConfigurationError, match=problem) as raised:
            rows_of(tmp_path, statement)
        assert "\n" not in str(raised.value)
    assert {row["name"] for row in rows_of(tmp_path, "SHOW TABLES")} == {"a-b.c", "transactions"}
    assert rows_of(tmp_path, 'SELECT count(*) AS n FROM "a-b.c"') == [{"n": 1}]
    assert capfd.readouterr().err == ""


def test_a_statement_reads_and_writes_nothing_but_the_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "tables", tmp_path / "outside"
    write(folder, "transactions", end(1, 1))
    outside.write_text("secret")
    (live,) = folder.glob("transactions/**/*.parquet")
    copy = f"WITH a AS (COPY (SELECT 1) TO '{folder}/copy.csv') FROM a"
    tree = duckdb.execute("SELECT json_serialize_sql($1)", [copy]).fetchall()[0][0]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for statement in (
        f"SELECT * FROM read_text('{outside}')",
        f"SELECT * FROM read_text('{folder}/../outside')",
        "SELECT * FROM 's3://bucket/file.parquet'",
        f"COPY transactions TO '{folder}/copy.csv'",
        f"EXPLAIN ANALYZE COPY transactions TO '{folder}/copy.csv'",
        f"EXPLAIN (ANALYZE, FORMAT json) COPY transactions TO '{folder}/copy.csv'",
        f"EXPLAIN /* */ ANALYZE COPY transactions TO '{folder}/copy.csv'",
        f"EXPLAIN (ANALYZE, FORMAT json /* ) SELECT 1 --*/ ) COPY transactions TO '{folder}/copy.csv'",
        f"COPY (PIVOT transactions ON outcome USING count(*)) TO '{folder}/copy.csv'",
        f"WITH a AS (COPY transactions TO '{folder}/copy.csv') PIVOT transactions ON outcome USING count(*)",
        f"WITH a AS (COPY transactions TO '{folder}/copy.csv') SELECT 1",
        f"(WITH a AS (COPY transactions TO '{live}' (USE_TMP_FILE false)) FROM a)",
        f"EXPLAIN ANALYZE WITH a AS (COPY transactions TO '{folder}/copy.csv') SELECT 1",
        f"FROM (WITH a AS (COPY transactions TO '{folder}/copy.csv') SELECT 1)",
        f"SELECT 1 FROM system.main.JSON_execute_serialized_sql({literal(tree)})",
        f"FROM query({literal(f'FROM json_execute_serialized_sql({literal(tree)})')})",
        f"ATTACH '{folder}/other.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "CREATE TABLE t AS SELECT 1",
    ):
        with pytest.raises(WalproxyError, match=r"only queries are possible|disabled by configuration|Parser Error"):
            rows_of(folder, statement)
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before, statement
    for statement in (
        "EXPLAIN ANALYZE SELECT * FROM transactions",
        "explain (analyze, format json) WITH RECURSIVE a AS (SELECT 1 UNION FROM transactions SELECT 1) FROM a; -- all",
        "PIVOT transactions ON outcome IN ('commit') USING count(*)",
        "DESCRIBE transactions",
        "VALUES (1) UNION ALL (SELECT 2)",
    ):
        assert rows_of(folder, statement)


def test_a_file_that_is_gone_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, "transactions", end(1, 1), table_format="delta")
    for path in tmp_path.glob("transactions/*.parquet"):
        path.unlink()
    with pytest.raises(StorageFailed, match=re.escape(str(tmp_path))):
        rows_of(tmp_path, "SELECT * FROM transactions")


def test_query_and_report_import_neither_spark_nor_plotly() -> None:
    code = "import sys; import walproxy.cli.pipeline_work.{}; print(*sys.modules)"
    for command_name, too_slow in (
        ("query", {"rich", "psycopg", "pyiceberg", "pandas", "obstore"}),
        ("report", {"pyiceberg"}),
    ):
        found = subprocess.run(
            [sys.executable, "-c", code.format(command_name)], capture_output=True, text=True, check=True
        )
        modules = set(found.stdout.split())
        imported = {name.partition(".")[0] for name in modules}
        assert "duckdb" in imported
        assert command_name == "report" or "pyarrow.parquet" not in modules
        assert imported & ({"pyspark", "py4j", "plotly"} | too_slow) == set()


def test_rows_are_exported_as_one_plain_file_that_appears_whole(tmp_path: Path) -> None:
    tables, file = tmp_path / "tables", tmp_path / "export.parquet"
    write_tables(tables, views_of(make_night()))
    file.write_text("what was there before")

    def export(statement: str) -> click.testing.Result:
        return click.testing.CliRunner().invoke(command, [statement, "--tables", str(tables), "--parquet", str(file)])

    twice = export("SELECT lsn, end_lsn AS lsn FROM records")
    assert isinstance(twice.exception, ConfigurationError)
    assert str(twice.exception) == "the column lsn occurs twice: name one of them with AS"
    broken = export("SELECT CASE WHEN lsn > 0 THEN error('no') END AS word FROM records")
    assert isinstance(broken.exception, WalproxyError)
    assert file.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) in ([tables, file], [file, tables])

    done = export("FROM records")
    expected = rows_of(tables, "FROM records ORDER BY lsn")
    assert done.output == f"{file}: {len(expected)} rows, {file.stat().st_size} bytes\n"
    found = pq.read_table(file)
    assert found.sort_by("lsn").to_pylist() == expected
    assert export("FROM records WHERE lsn < 0").exit_code == 0
    assert pq.read_table(file).num_rows == 0
    both = click.testing.CliRunner().invoke(command, ["FROM records", "--tables", "x", "--json", "--parquet", "y"])
    assert both.exit_code == 2
