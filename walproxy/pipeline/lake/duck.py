"""SQL over the tables of a location, by DuckDB in this process: neither Java nor an extension of DuckDB.

DuckDB reads each table as an Arrow dataset, whose files delta-rs finds and fetches: it gets only the columns that the
statement names, and only the files whose bounds can match. Nothing else can be read or written: access to files and
URLs is off, and the configuration is locked.

Besides the tables there are `lsn('5/40000000')`, `lsn_text(lsn)` and the view `transaction_sizes`, as for Spark
(`jobs/query.py`).
"""

from typing import Final

import duckdb
import pyarrow as pa

from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.lake.delta import DeltaLake
from walproxy.pipeline.lake.errors import lake_error
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.statement import TRANSACTION_SIZES, needed_by
from walproxy.pipeline.tables.parquet_files import first_line

_MACROS: Final = (
    """CREATE MACRO lsn(text) AS
        (('0x' || split_part(text, '/', 1))::BIGINT << 32) + ('0x' || split_part(text, '/', 2))::BIGINT""",
    "CREATE MACRO lsn_text(lsn) AS printf('%X/%X', lsn >> 32, lsn & 4294967295)",
)
# The order of the events is explained where the same view is made for Spark, in jobs/query.py.
_TRANSACTION_SIZES_VIEW: Final = f"""
CREATE VIEW {TRANSACTION_SIZES} AS
WITH finished AS (SELECT * FROM transactions WHERE outcome <> 'prepare'),
members AS (
    SELECT unnest(list_prepend(xid, subxids)) AS member_xid, lsn AS finish_lsn, lsn AS position, 1 AS step,
        0 AS records, 0 AS wal_bytes, 0 AS image_bytes, NULL::BIGINT AS first_lsn
    FROM finished
),
events AS (
    SELECT * FROM members
    UNION ALL
    SELECT xid, NULL, last_lsn, 0, records, wal_bytes, image_bytes, first_lsn FROM transaction_volume WHERE xid <> 0
),
owned AS (
    SELECT step, records, wal_bytes, image_bytes, first_lsn, first_value(finish_lsn IGNORE NULLS) OVER (
        PARTITION BY member_xid ORDER BY position, step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
    ) AS finish_lsn FROM events
),
sizes AS (
    SELECT finish_lsn, sum(records)::BIGINT AS records, sum(wal_bytes)::BIGINT AS wal_bytes,
        sum(image_bytes)::BIGINT AS image_bytes, min(first_lsn) AS first_lsn
    FROM owned WHERE finish_lsn IS NOT NULL GROUP BY finish_lsn
)
SELECT finished.*, sizes.first_lsn, sizes.records, sizes.wal_bytes, sizes.image_bytes
FROM finished JOIN sizes ON sizes.finish_lsn = finished.lsn
"""


def query(location: LakeLocation, statement: str, *, cores: int | None = None, memory: str | None = None) -> pa.Table:
    """Return what a statement about the tables of a location in an object store returns.

    Args:
        cores, memory: of DuckDB; None for its own defaults.

    Raises:
        ConfigurationError: it is wrong, or there are no tables.
        ArchiveError, StorageFailed: a table cannot be read.
    """
    existing = [name for name in sorted(location.store().entries()[0]) if not name.startswith("_")]
    if not existing:
        raise ConfigurationError(f"{location} has no tables: walproxy pipeline run writes some")
    needed = needed_by(statement, existing)
    limits = {"threads": cores, "memory_limit": memory}
    settings: dict[str, str | bool | int | float | list[str]] = {
        "python_enable_replacements": False,
        **{name: value for name, value in limits.items() if value is not None},
    }
    try:
        with duckdb.connect(config=settings) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for name in needed.tables:
                table = DeltaLake.open(location.below(name))
                if table is not None:
                    connection.register(name, table.dataset())
            for macro in _MACROS:
                connection.execute(macro)
            if needed.has_sizes:
                connection.execute(_TRANSACTION_SIZES_VIEW)
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            found = connection.sql(statement)
            return _with_plain_sums(found.to_arrow_table()) if found is not None else pa.table({})
    except duckdb.Error as error:
        raise _failure(error, location) from error


def _failure(error: duckdb.Error, location: LakeLocation) -> Exception:
    failure = lake_error(error, f"read the tables in {location}", location)
    # A statement that is wrong has nothing to do with the store.
    return ConfigurationError(first_line(error)) if isinstance(failure, StorageFailed) else failure


def _with_plain_sums(result: pa.Table) -> pa.Table:
    """Return the result with sums, for which DuckDB has 128 bits, as numbers of 64 bits where they fit."""
    for index, field in enumerate(result.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            try:
                plain = result.column(index).cast(pa.int64())
            except pa.ArrowInvalid:  # One of them does not fit.
                continue
            result = result.set_column(index, field.name, plain)
    return result
