"""The tables of an object store, asked with SQL by DuckDB."""

import json
import re
from pathlib import Path
from typing import Any, Final

import click.testing
import pyarrow as pa
import pytest

from safekeeper.base.errors import ArchiveRefused, ConfigurationError
from tests.integration.archive.faulty_relay import FaultyRelay, answer
from tests.integration.archive.object_stores import Place, Server
from tests.pipeline.test_query import TIME, end
from walproxy.cli.pipeline_commands.query import query as command
from walproxy.cli.pipeline_work.query import tables_at
from walproxy.pipeline.duck import query
from walproxy.pipeline.lake.duck import LakeTables
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table
from walproxy.pipeline.schemas import arrow_schema

EMPTY: Final = (("uri", "sqlite:///:memory:"),)


@pytest.fixture
def place(moto: Server, request: pytest.FixtureRequest) -> Place:
    return moto.place("query/" + re.sub(r"\W+", "-", request.node.name))


@pytest.fixture
def location(place: Place) -> LakeLocation:
    return LakeLocation.parse(place.url, place.options)


def write(location: LakeLocation, view: str, *rows: dict[str, Any]) -> None:
    schema = arrow_schema(view)
    with open_lake_table(location, view, None, schema) as table:
        file = table.new_file().write([pa.RecordBatch.from_pylist(list(rows), schema)])
        table.commit(None, None, [file] if file is not None else [])


def rows_of(location: LakeLocation, statement: str, **limits: int) -> list[dict[str, Any]]:
    with query(LakeTables(location), statement, **limits) as result:
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def test_lsns_are_converted_and_sums_are_plain_numbers(location: LakeLocation) -> None:
    lsn = 0x1_0000_2000
    write(location, "transactions", end(lsn, 1), end(lsn + 1, 2))
    write(location, "tuple_stats")  # without a row
    statement = """
        SELECT lsn_text(lsn) AS text, lsn('FFFF/FFFFFFFF') AS high, time, (SELECT count(*) FROM tuple_stats) AS others,
            (SELECT sum(xid) FROM transactions) AS sum,
            (SELECT sum(lsn('FFFF/FFFFFFFF') << 15) FROM transactions) AS large
        FROM transactions WHERE lsn < lsn('1/2001')
    """
    (row,) = rows_of(location, statement, threads=1, memory_bytes=1 << 30)
    assert row.pop("large") == 2 * (0xFFFF_FFFF_FFFF << 15), "it does not fit in 64 bits"
    assert row == {"text": "1/2000", "high": 0xFFFF_FFFF_FFFF, "time": TIME, "others": 0, "sum": 3}
    assert type(row["sum"]) is int
    assert {each["name"] for each in rows_of(location, "SHOW TABLES")} >= {"transactions", "tuple_stats"}


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_the_command_prints_json(location: LakeLocation, place: Place, format: str, tmp_path: Path) -> None:
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if format == "iceberg" else {}
    location = LakeLocation.parse(place.url, place.options, catalog)
    write(location, "transactions", end(0x5_0000_0000, 1, 2, 3), end(0x5_0000_0010, 4))
    options = ",".join(f"{name}={value}" for name, value in place.options.items())
    ask = ["SELECT lsn, xid, subxids FROM transactions ORDER BY lsn;", "--tables", place.url]
    ask += ["-c", f"lake_options={options}"]
    if catalog:
        ask += ["-c", f"iceberg_catalog=uri={catalog['uri']}"]
    result = click.testing.CliRunner().invoke(command, [*ask, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"lsn": 0x5_0000_0000, "xid": 1, "subxids": [2, 3]},
        {"lsn": 0x5_0000_0010, "xid": 4, "subxids": []},
    ]
    with pytest.raises(
        ConfigurationError, match="has no Delta table: if it is an Iceberg table" if catalog else "no tables"
    ):
        rows_of(location._replace(catalog=() if catalog else EMPTY), "SELECT lsn FROM transactions")


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC"'),
        ("SELECT * FROM nothing", "has no table nothing, but transactions"),
        ("SELECT nothing FROM transactions", "nothing"),
        ("SELECT * FROM read_csv('/etc/passwd')", "file system operations are disabled"),
        ("COPY transactions TO '/tmp/copy.csv'", "only queries are possible"),
        ("SET enable_external_access = true", "only queries are possible"),
    ],
)
def test_a_statement_that_is_wrong_or_reaches_out_is_one_line(
    location: LakeLocation, statement: str, complaint: str
) -> None:
    write(location, "transactions", end(1, 1))
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        rows_of(location, statement)
    assert "\n" not in str(caught.value)


def test_who_may_not_list_a_store_and_so_is_refused_what_is_missing_reads_its_tables(
    moto: Server, location: LakeLocation
) -> None:
    write(location, "transactions", end(7, 1))
    with FaultyRelay(moto.endpoint) as relay:
        relay.when("GET", r"/_walproxy_apply/", answer(403, "AccessDenied"))
        options = {**dict(location.options), "endpoint": relay.endpoint}
        with query(tables_at(location.url, options, {}), "SELECT count(*) FROM transactions") as result:
            assert list(result.rows) == [(1,)]


def test_a_place_without_tables_and_a_store_that_refuses_are_one_line(moto: Server, location: LakeLocation) -> None:
    with pytest.raises(ConfigurationError, match=f"{location} has no tables: walproxy pipeline run writes some"):
        rows_of(location, "SELECT 1")
    write(location, "transactions", end(1, 1))
    with FaultyRelay(moto.endpoint) as relay:
        through = LakeLocation.parse(location.url, {**dict(location.options), "endpoint": relay.endpoint})
        relay.when("GET", r"\.parquet", answer(403, "AccessDenied"))
        with pytest.raises(ArchiveRefused, match="AccessDenied") as caught:
            rows_of(through, "SELECT count(DISTINCT xid) FROM transactions")
        assert "\n" not in str(caught.value)
