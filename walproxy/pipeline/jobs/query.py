"""Query the tables of a folder with SQL: `walproxy pipeline query`.

Parquet, Iceberg and Delta tables all consist of Parquet files. The table itself reports which ones make it up
now, and Spark reads these files: it needs no library of a table format, and a reader sees whole batches only.

Besides the tables there are

- `lsn('5/40000000')` and `lsn_text(22548578304)`, from PostgreSQL's text of an LSN to the tables' number and back;
- `transaction_sizes`, where there are `transactions` and `transaction_volume`: each commit and abort with the WAL that
  its transaction has written, subtransactions included. Transaction numbers are used again after four billion: a row
  of `transaction_volume` belongs to the first end of its transaction number at or after it. What was rolled back to a
  savepoint has an end of its own.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.schemas import spark_ddl
from walproxy.pipeline.spark_errors import spark_errors
from walproxy.pipeline.statement import TRANSACTION_SIZES, needed_by
from walproxy.pipeline.tables import find_tables, open_table

_SMALL_BYTES: Final = 256 << 20
_FUNCTIONS: Final = {
    "lsn": """lsn(text STRING) RETURNS BIGINT RETURN
        shiftleft(CAST(conv(split_part(text, '/', 1), 16, 10) AS BIGINT), 32)
        + CAST(conv(split_part(text, '/', 2), 16, 10) AS BIGINT)""",
    "lsn_text": """lsn_text(lsn BIGINT) RETURNS STRING RETURN
        concat(hex(shiftrightunsigned(lsn, 32)), '/', hex(lsn & 4294967295))""",
}

# Ends of transactions and rows of volume are laid in one order for each transaction number; each row of volume then
# belongs to the next end. A commit is the last record of its transaction, so that at one LSN the volume comes first.
_TRANSACTION_SIZES_QUERY: Final = """
WITH finished AS (SELECT * FROM transactions WHERE outcome <> 'prepare'),
members AS (
    SELECT explode(concat(array(xid), subxids)) AS member_xid, lsn AS finish_lsn, lsn AS position, 1 AS step,
        0L AS records, 0L AS wal_bytes, 0L AS image_bytes, CAST(NULL AS BIGINT) AS first_lsn
    FROM finished
),
events AS (
    SELECT * FROM members
    UNION ALL
    SELECT xid, NULL, last_lsn, 0, records, wal_bytes, image_bytes, first_lsn FROM transaction_volume WHERE xid <> 0
),
owned AS (
    SELECT step, records, wal_bytes, image_bytes, first_lsn, first_value(finish_lsn) IGNORE NULLS OVER (
        PARTITION BY member_xid ORDER BY position, step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
    ) AS finish_lsn FROM events
),
sizes AS (
    SELECT finish_lsn, sum(records) AS records, sum(wal_bytes) AS wal_bytes, sum(image_bytes) AS image_bytes,
        min(first_lsn) AS first_lsn
    FROM owned WHERE finish_lsn IS NOT NULL GROUP BY finish_lsn
)
SELECT finished.*, sizes.first_lsn, sizes.records, sizes.wal_bytes, sizes.image_bytes
FROM finished JOIN sizes ON sizes.finish_lsn = finished.lsn
"""


def register_tables(spark: SparkSession, folder: Path, names: Iterable[str] | None = None) -> list[str]:
    """Make temporary views of the tables of a folder, as they are now; return their names.

    Args:
        names: only these; all by default.

    Raises:
        ConfigurationError: there are no tables, or not this one.
        StorageFailed: they cannot be read.
    """
    found = [table.name for table in find_tables(folder)]
    if not found:
        raise ConfigurationError(f"{folder} has no tables: walproxy pipeline run writes some")
    wanted = found if names is None else list(names)
    with spark_errors():
        for name in wanted:
            table_frame(spark, folder, name).createOrReplaceTempView(name)
    return wanted


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


def is_small(folder: Path) -> bool:
    """Return whether the tables of a folder are so small that asking them takes Spark no longer than its start.

    Raises:
        ConfigurationError: there are no tables.
        StorageFailed: they cannot be read.
    """
    found = find_tables(folder)
    if not found:
        raise ConfigurationError(f"{folder} has no tables: walproxy pipeline run writes some")
    size = 0
    for name, _ in found:
        with open_table(folder, name, create=False) as table:
            size += sum(file.bytes for file in table.live_files())
    return size < _SMALL_BYTES


def query(spark: SparkSession, folder: Path, statement: str) -> pa.Table:
    """Return what a statement about the tables of a folder returns.

    Only what it names is made known to Spark, because that takes 0.1 to 0.3 s for each table. A statement that names
    nothing, such as SHOW TABLES, finds everything.

    Raises:
        ConfigurationError: it is wrong, or there are no tables.
        StorageFailed: a table cannot be read.
        SparkFailed: it cannot be carried out.
    """
    found = [table.name for table in find_tables(folder)]
    needed = needed_by(statement, found)
    register_tables(spark, folder, needed.tables)
    with spark_errors():
        if needed.has_sizes:
            spark.sql(_TRANSACTION_SIZES_QUERY).createOrReplaceTempView(TRANSACTION_SIZES)
        for name, definition in _FUNCTIONS.items():
            if re.search(rf"\b{name}\s*\(", statement, re.IGNORECASE):
                spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {definition}")
        return spark.sql(statement).toArrow()
