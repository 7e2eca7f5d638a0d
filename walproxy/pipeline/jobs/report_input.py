"""The input of a report: the tables of a folder, and the range of WAL in them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.pipeline.schemas import arrow_schema, spark_ddl
from walproxy.pipeline.tables import find_tables, open_table

USED_TABLES: Final = (
    "records",
    "transactions",
    "transaction_volume",
    "relation_volume",
    "page_versions",
    "tuple_stats",
)
_SMALL_ROWS: Final = 200_000
_SMALL_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


class Position(NamedTuple):
    """An end of the range that is looked at: a time in microseconds since 1970, or an LSN."""

    time_us: int | None
    lsn: Lsn | None


def parse_position(text: str) -> Position:
    """Return the position that a text has: an LSN, or a time of ISO 8601.

    Raises:
        ConfigurationError: it is neither.
    """
    if "/" in text:
        return Position(None, parse_lsn(text))
    try:
        time = datetime.fromisoformat(text).astimezone()  # One without a zone is of this machine's.
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is neither an LSN like 16/B374D848 nor a time like 2026-11-21T14:16:05+01:00"
        ) from None
    return Position(round(time.timestamp() * 1_000_000), None)


class FoundTables(NamedTuple):
    """Tables of a folder that a report can use, and how many rows they have together."""

    folder: Path
    names: list[str]
    rows: int

    @property
    def are_small(self) -> bool:
        """Whether they are too small for the preparations that make Spark, and Java, fast."""
        return self.rows < _SMALL_ROWS


def look_for_tables(folder: Path) -> FoundTables:
    """Return which tables there are.

    Raises:
        ConfigurationError: there are none.
        StorageFailed: one cannot be read.
    """
    names = [found.name for found in find_tables(folder) if found.name in USED_TABLES]
    if not names:
        raise ConfigurationError(
            f"{folder} has none of the tables that a report needs ({', '.join(USED_TABLES)}): "
            "walproxy pipeline run writes them; correct --tables"
        )
    rows = 0
    for name in names:
        with open_table(folder, name, schema=arrow_schema(name), create=False) as table:
            rows += sum(file.rows for file in table.live_files())
    return FoundTables(folder, names, rows)


def read_tables(spark: SparkSession, found: FoundTables) -> dict[str, DataFrame]:
    """Return the tables as Spark reads them.

    Raises:
        StorageFailed: one cannot be read.
    """
    return {name: table_frame(spark, found.folder, name) for name in found.names}


def table_frame(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    """Return a table as it is now, whatever its format.

    Raises:
        ConfigurationError: there is no such table.
        StorageFailed: it cannot be read.
    """
    with open_table(folder, name, create=False) as table:
        schema = spark_ddl(table.schema).replace(" NOT NULL", "")  # Spark does not trust files with that.
        paths = [Path(file.path).as_uri() for file in table.live_files()]
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*paths)


@contextmanager
def suited_settings(spark: SparkSession, found: FoundTables) -> Iterator[None]:
    """Let Spark ask small tables without the preparations that large ones are worth.

    Compiling each query, and cutting it for many tasks, took two thirds of the CPU time of a small report.
    """
    settings = _SMALL_SETTINGS if found.are_small else {}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))


def empty_table(spark: SparkSession, name: str) -> DataFrame:
    """Return a table without rows."""
    return spark.createDataFrame(arrow_schema(name).empty_table())
