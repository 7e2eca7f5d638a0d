"""The tables of a folder, asked with SQL, whatever their format."""

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click.testing
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from safekeeper.base.errors import ConfigurationError
from walproxy.cli.pipeline_commands.query import query as command
from walproxy.pipeline.jobs.query import is_small, query
from walproxy.pipeline.schemas import COLUMNS, arrow_schema
from walproxy.pipeline.tables import TableFormat, open_table

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


def write(folder: Path, view: str, *rows: dict[str, Any], table_format: TableFormat = "parquet") -> None:
    with open_table(folder, view, table_format, arrow_schema(view)) as table:
        file = table.new_file().write([pa.RecordBatch.from_pylist(list(rows), arrow_schema(view))])
        table.commit(None, None, [file] if file is not None else [])


def end(lsn: int, xid: int, *subxids: int, outcome: str = "commit") -> dict[str, Any]:
    return row("transactions", lsn=lsn, end_lsn=lsn + 5, xid=xid, subxids=list(subxids), outcome=outcome)


def volume(xid: int, first_lsn: int, last_lsn: int, wal_bytes: int) -> dict[str, Any]:
    return row("transaction_volume", xid=xid, first_lsn=first_lsn, last_lsn=last_lsn, records=1, wal_bytes=wal_bytes)


def test_the_wal_of_a_transaction_is_that_of_its_subtransactions_up_to_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
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
    found = query(spark, tmp_path, "SELECT * FROM transaction_sizes ORDER BY lsn").to_pylist()
    columns = ("lsn", "xid", "first_lsn", "records", "wal_bytes")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (100, 7, 10, 4, 1 + 2 + 4 + 8),
        (150, 20, 120, 1, 32),
        (200, 19, 110, 1, 16),
        (400, 30, 210, 2, 64 + 128),
        (900, 7, 850, 2, 256 + 512),
    ]


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_tables_of_every_format_are_read_and_lsns_converted(
    spark: SparkSession, tmp_path: Path, table_format: TableFormat
) -> None:
    lsn = 0x1_0000_2000
    write(tmp_path, "transactions", end(lsn, 1), end(lsn + 1, 2), table_format=table_format)
    write(tmp_path, "tuple_stats", table_format=table_format)  # without a row
    statement = """
        SELECT lsn_text(lsn) AS text, lsn('FFFF/FFFFFFFF') AS high, time, (SELECT count(*) FROM tuple_stats) AS others
        FROM transactions WHERE lsn < lsn('1/2001')
    """
    high = 0xFFFF_FFFF_FFFF
    assert query(spark, tmp_path, statement).to_pylist() == [
        {"text": "1/2000", "high": high, "time": TIME, "others": 0}
    ]


def test_the_command_prints_for_people_and_for_programs(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "transactions", end(0x5_0000_0000, 1, 2, 3), end(0x5_0000_0010, 4))
    ask = ["SELECT lsn, xid, time, subxids, gid FROM transactions ORDER BY lsn;", "--tables", str(tmp_path)]

    def printed(*arguments: str, text: str | None = None) -> str:
        result = click.testing.CliRunner().invoke(command, arguments, input=text, catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    shown = printed(*ask)
    assert "5/0" in shown
    assert "2026-11-21 14:16:05.123456+00:00" in shown
    lines = printed(*ask[1:], "--json", text=ask[0]).splitlines()
    assert [json.loads(line)["subxids"] for line in lines] == [[2, 3], []]
    assert json.loads(lines[0])["lsn"] == 0x5_0000_0000
    [_, first, _] = csv.reader(io.StringIO(printed(*ask, "--csv")))
    assert (first[0], first[3], first[4]) == (str(0x5_0000_0000), "[2,3]", "")


def test_a_wrong_question_is_one_line(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^.* has no tables: walproxy pipeline run writes some$"):
        is_small(tmp_path)
    write(tmp_path, "transactions", end(1, 1))
    assert is_small(tmp_path)
    for statement, problem in (
        ("SELECT nothing FROM transactions", r"`nothing` cannot be resolved"),
        ("SELECT * FROM records", r"`records` cannot be found"),
        ("SELEC", r"Syntax error at or near 'SELEC'"),
    ):
        with pytest.raises(ConfigurationError, match=problem) as raised:
            query(spark, tmp_path, statement)
        assert "\n" not in str(raised.value)
    assert "transactions" in query(spark, tmp_path, "SHOW TABLES")["tableName"].to_pylist()
    assert capfd.readouterr().err == ""
