"""The same rows and types, whoever reads the tables: DuckDB, Polars, pyiceberg, deltalake and Spark.

The readers use nothing of walproxy but the name of the folder or the URL, as any program does. What they read how:

- deltalake and pyiceberg read their own format; Polars reads both, by a reader of its own.
- DuckDB's extensions `delta` and `iceberg` are downloads for one version of DuckDB, and their wheels are for others
  than the one in use. So DuckDB reads the live files, which deltalake or pyiceberg lists, with its own reader of
  Parquet; in an object store, where it would need one more extension, the dataset of deltalake, or one of pyarrow.
- No jar of Delta or Iceberg for this Spark is on a package index, nor one that reads S3. So Spark reads the live files
  in a folder, with its own reader of Parquet.

Expected are the decoder's rows and PostgreSQL's.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as PyIcebergTable
from pyspark.sql import SparkSession

from tests.integration.archive.object_stores import Place, Server
from tests.pipeline.apply_fixtures import compare, options_of, rows_here
from tests.pipeline.logical_server import Source
from tests.pipeline.run_without_spark import run_segments
from tests.pipeline.small_wal import decoded_rows, small_wal, table_rows, write_wal
from tests.unit.wal_builder import MIB
from walproxy.pipeline.cdc.apply.job import run_apply
from walproxy.pipeline.cdc.publication import parse_table
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.jobs.run import RunConfig
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.schemas import VIEWS

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module", autouse=True)
def polars_lists_files_by_pyiceberg() -> Iterator[None]:
    """Without its own extension, which is new, Polars plans with pyiceberg, and warns of that unless it is told to."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        yield


def plain(data_type: pa.DataType) -> pa.DataType:
    """Return one type for all in which Arrow can keep the same values: libraries choose between them."""
    if pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type):
        return pa.string()
    if pa.types.is_large_binary(data_type) or pa.types.is_binary_view(data_type):
        return pa.binary()
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return pa.timestamp(data_type.unit, "UTC")  # The zone is how a reader prints it.
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return pa.list_(pa.field("element", plain(data_type.value_type)))
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in data_type])
    return data_type


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain(field.type)) for field in schema])


def in_iceberg(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a column in an Iceberg table, which has no integers of 16 bits: its files may have them."""
    if data_type == pa.int16():
        return pa.int32()
    if pa.types.is_list(data_type):
        return pa.list_(pa.field("element", in_iceberg(data_type.value_type)))
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(field.name, in_iceberg(field.type)) for field in data_type])
    return data_type


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


class Reader(NamedTuple):
    """A program that reads a table.

    Attributes:
        read: returns all its rows.
        stored: the type of a column in the table, by that in its files, for a program that reads these.
    """

    name: str
    read: Callable[[], pa.Table]
    stored: Callable[[pa.DataType], pa.DataType] = plain


def assert_equal(expected: pa.Table, readers: Sequence[Reader]) -> None:
    schema = plain_schema(expected.schema)
    wanted = rows(expected.cast(schema))
    for reader in readers:
        found = reader.read()
        assert found.schema.names == schema.names, reader.name
        types = {
            name: (reader.stored(plain(found.schema.field(name).type)), schema.field(name).type)
            for name in schema.names
        }
        assert {name: pair for name, pair in types.items() if pair[0] != pair[1]} == {}, reader.name
        assert rows(found.cast(schema)) == wanted, reader.name


def files_by_duckdb(files: Sequence[str]) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.read_parquet([*files], union_by_name=True).to_arrow_table()


def dataset_by_duckdb(dataset: ds.Dataset) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.from_arrow(dataset).to_arrow_table()


def files_by_spark(spark: SparkSession, files: Sequence[str]) -> pa.Table:
    return spark.read.option("mergeSchema", "true").parquet(*files).toArrow()


def delta_readers(uri: str, spark: SparkSession, options: dict[str, str] | None = None) -> list[Reader]:
    """Return all readers of a Delta table: in a folder without `options`, in an object store with them."""
    table = DeltaTable(uri, storage_options=options)
    readers = [
        Reader("deltalake", table.to_pyarrow_table),
        Reader("Polars", lambda: pl.scan_delta(uri, storage_options=options).collect().to_arrow()),
    ]
    if options is not None:
        dataset = table.to_pyarrow_dataset()
        return [*readers, Reader("DuckDB", lambda: dataset_by_duckdb(dataset))]
    files = table.file_uris()
    return [
        *readers,
        Reader("DuckDB", lambda: files_by_duckdb(files)),
        Reader("Spark", lambda: files_by_spark(spark, files)),
    ]


def stored_iceberg_readers(location: LakeLocation, identifier: tuple[str, str]) -> list[Reader]:
    """Return all readers of an Iceberg table in an object store, with pyiceberg's own client of it."""
    options = dict(location.options)
    files = {"s3.endpoint": options["endpoint"], "s3.region": options["region"]}
    catalog = SqlCatalog("walproxy", **dict(location.catalog), **files)
    table: PyIcebergTable = catalog.load_table(identifier)
    catalog.close()
    paths = [task.file.file_path.removeprefix("s3://") for task in table.scan().plan_files()]
    s3 = pyarrow.fs.S3FileSystem(endpoint_override=options["endpoint"], region=options["region"])
    dataset = ds.dataset(paths, ds.dataset(paths[-1:], format="parquet", filesystem=s3).schema, "parquet", s3)
    of_polars = {"endpoint": options["endpoint"], "region": options["region"], "allow_http": "true"}
    return [
        Reader("pyiceberg", lambda: table.scan().to_arrow()),
        Reader("Polars", lambda: pl.scan_iceberg(table, storage_options=of_polars).collect().to_arrow()),
        Reader("DuckDB", lambda: dataset_by_duckdb(dataset), in_iceberg),
    ]


def iceberg_readers(folder: Path, identifier: tuple[str, str], spark: SparkSession) -> list[Reader]:
    """Return all readers of an Iceberg table in a folder, which has the catalog of its tables."""
    catalog = SqlCatalog("walproxy", uri=f"sqlite:///{folder / 'iceberg.db'}", warehouse=str(folder))
    table: PyIcebergTable = catalog.load_table(identifier)
    files = [task.file.file_path for task in table.scan().plan_files()]
    catalog.close()
    return [
        Reader("pyiceberg", lambda: table.scan().to_arrow()),
        Reader("Polars", lambda: pl.scan_iceberg(table).collect().to_arrow()),
        Reader("DuckDB", lambda: files_by_duckdb(files), in_iceberg),
        Reader("Spark", lambda: files_by_spark(spark, files), in_iceberg),
    ]


NESTED = tuple(view for view in VIEWS if view != "blocks")
"""The tables with the block references in a column of `records`."""


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_wal(tmp_path_factory.mktemp("readers") / "pg_wal", small_wal(2 * MIB + 200_000))


def test_delta_tables_of_wal_are_equal_in_every_reader(spark: SparkSession, segments: str, tmp_path: Path) -> None:
    run_segments(RunConfig(segments, LakeLocation.parse(tmp_path), "delta", NESTED))
    for view in NESTED:
        assert_equal(decoded_rows(segments, view), delta_readers(str(tmp_path / view), spark))


def test_iceberg_tables_of_wal_are_equal_in_every_reader(spark: SparkSession, segments: str, tmp_path: Path) -> None:
    run_segments(RunConfig(segments, LakeLocation.parse(tmp_path), "iceberg", NESTED))
    for view in NESTED:
        wanted = decoded_rows(segments, view)
        fields = [pa.field(field.name, in_iceberg(plain(field.type))) for field in wanted.schema]
        assert_equal(wanted.cast(pa.schema(fields)), iceberg_readers(tmp_path, ("wal", view), spark))


def test_delta_tables_of_wal_in_s3_are_equal_in_every_reader(spark: SparkSession, segments: str, moto: Server) -> None:
    place = moto.place("readers")
    location = LakeLocation.parse(place.url, place.options)
    run_segments(RunConfig(segments, location, "delta", VIEWS))
    options = {**place.options, "allow_http": "true"}
    for view in VIEWS:
        assert_equal(table_rows(segments, view), delta_readers(f"{place.url}/{view}", spark, options))


def test_iceberg_tables_of_wal_in_s3_are_equal_in_every_reader(segments: str, moto: Server, tmp_path: Path) -> None:
    place = moto.place("iceberg-readers")
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"}
    location = LakeLocation.parse(place.url, place.options, catalog)
    run_segments(RunConfig(segments, location, "iceberg", VIEWS))
    for view in VIEWS:
        wanted = table_rows(segments, view)
        fields = [pa.field(field.name, in_iceberg(plain(field.type))) for field in wanted.schema]
        assert_equal(wanted.cast(pa.schema(fields)), stored_iceberg_readers(location, ("wal", view)))


KINDS = """
    CREATE TABLE kinds (id bigint PRIMARY KEY, small smallint, number int, amount numeric(12,2), wide numeric(38,10),
        free numeric, single real, double double precision, word text, code varchar(5), padded char(5), raw bytea,
        at timestamp, at_zone timestamptz, day date, yes boolean, list int[], doc json, docb jsonb, tag uuid,
        span interval, matrix int[][], words text[], smalls smallint[], amounts numeric(12,2)[], raws bytea[],
        ats timestamptz[], locals timestamp[], days date[], flags boolean[], doubles double precision[], tags uuid[])
"""
VALUES = (
    "1, 32767, 2147483647, 9999999999.99, 9999999999999999999999999999.9999999999, 1.5e50, 0.5, 0.1, 'word', 'code', "
    "'pad', '\\x00ff', '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999999+00', '9999-12-31', true, "
    "'{1,NULL,3}', '{\"a\":  1}', '{\"a\":  1}', '11111111-2222-3333-4444-555555555555', '1 month 2 days 3.000004 s', "
    "'{{1,2},{3,4}}', '{NULL,\"NULL\",\"a, b\",\"\",é}', '{32767}', '{9999999999.99,NULL}', '{\\\\x00ff}', "
    "'{2026-11-26 12:00:00.5+01}', '{0001-01-01 00:00:00}', '{1582-10-04}', '{t,f}', '{Infinity,-0}', "
    "'{11111111-2222-3333-4444-555555555555,NULL}'",
    "-9223372036854775808, -32768, -2147483648, -9999999999.99, -0.0000000001, 'NaN', '-Infinity', 'Infinity', "
    "'', '', '', '', '0001-01-01', '0001-01-01 00:00:00+00', '0001-01-01', false, '{}', 'null', '[]', "
    "'00000000-0000-0000-0000-000000000000', '-1 year'" + ", '{}'" * 11,
    "9223372036854775807, 0, 0, 0, 0, 0, '-0', '-0', E'\\u00e9\\u4e2d\\U0001f600 \"q\" \\\\ \\n', 'ab', 'ab ', "
    "'\\x', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999+00', '1582-10-04', NULL, "
    "'{-2147483648}', '\"text\"', '{\"z\": null, \"a\": [1.50]}', NULL, '0'" + ", '{NULL}'" * 11,
    "0" + ", NULL" * 31,
)
STORY = (
    *(f"INSERT INTO kinds VALUES ({values})" for values in VALUES),
    "CREATE TABLE log (x real, y double precision)",
    "INSERT INTO log VALUES ('NaN', 'NaN'), (1, 2)",
)
CHANGES = (
    "INSERT INTO kinds (id, word) SELECT i, 'w' || i FROM generate_series(100, 199) i",
    "UPDATE kinds SET id = id + 1000, at_zone = '2026-11-26 12:00:00.5+01' WHERE id % 10 = 3 AND id > 99",
    "DELETE FROM kinds WHERE id % 10 = 7 AND id > 99",
    "UPDATE kinds SET at = '2026-03-29 02:30:00' WHERE id = 0",
    "ALTER TABLE kinds ADD COLUMN later numeric(5,1)",
    "INSERT INTO kinds (id, later) VALUES (5000, 1234.5)",
    "INSERT INTO log VALUES ('Infinity', 'NaN')",
)


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
@pytest.mark.parametrize("is_stored", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["folder", "s3"])
def test_tables_that_follow_are_equal_in_every_reader(
    spark: SparkSession, empty: Source, tmp_path: Path, moto: Server, table_format: TableFormat, is_stored: bool
) -> None:
    empty.run(KINDS, *STORY)
    empty.publish("kinds", "log")
    place = moto.place(f"follow-{table_format}") if is_stored else Place(str(tmp_path))
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if is_stored and table_format == "iceberg" else {}
    options = options_of(empty, LakeLocation.parse(place.url, place.options, catalog), table_format)
    run_apply(options, once=True)
    empty.run(*CHANGES)
    run_apply(options, once=True)
    compare(empty, options.location, table_format, "kinds")
    for name in ("kinds", "log"):
        expected = rows_here(options.location, table_format, parse_table(name))
        assert_equal(expected, readers_of(options.location, name, spark))


def readers_of(location: LakeLocation, name: str, spark: SparkSession) -> list[Reader]:
    """Return all readers of a table that follows."""
    if location.catalog:
        return stored_iceberg_readers(location, ("public", name))
    if location.folder is None:
        options = {**dict(location.options), "allow_http": "true"}
        return delta_readers(f"{location}/public.{name}", spark, options)
    if (location.folder / "iceberg.db").exists():
        return iceberg_readers(location.folder, ("public", name), spark)
    return delta_readers(str(location.folder / f"public.{name}"), spark)
