"""Rows for tables, small and told apart by their LSN."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from walproxy.pipeline.schemas import arrow_schema
from walproxy.pipeline.tables import DataFile, Table

RECORDS = arrow_schema("records")
SMALL = pa.schema([pa.field("lsn", pa.int64(), False), pa.field("word", pa.string())])


def small(lsns: Iterable[int]) -> pa.RecordBatch:
    """Return rows of the schema SMALL."""
    lsns = list(lsns)
    return pa.record_batch([lsns, [f"word {lsn % 5}" for lsn in lsns]], schema=SMALL)


def records(lsns: Iterable[int]) -> pa.RecordBatch:
    """Return rows of the view `records`: with no block, one or two."""
    return pa.RecordBatch.from_pylist([_record(lsn) for lsn in lsns], schema=RECORDS)


def _record(lsn: int) -> dict[str, object]:
    row: dict[str, object] = {field.name: lsn % 100 for field in RECORDS}
    block = {field.name: lsn % 7 for field in RECORDS.field("blocks").type.value_type}
    block |= {"has_image": lsn % 2 == 0, "image_applied": False, "will_init": True}
    return row | {
        "lsn": lsn,
        "rmgr": "Heap",
        "operation": f"OP{lsn % 3}",
        "top_xid": lsn if lsn % 4 else None,
        "blocks": [block] * (lsn % 3),
    }


def any_row(schema: pa.Schema) -> pa.RecordBatch:
    """Return one row in which nothing is null that has a type of the views."""
    values = {
        pa.int64(): 1 << 40,
        pa.int32(): -5,
        pa.int16(): 7,
        pa.string(): "text",
        pa.bool_(): True,
        pa.timestamp("us", tz="UTC"): datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        pa.list_(pa.field("element", pa.int64(), True)): [1, None, 3],
    }
    return pa.RecordBatch.from_pylist([{field.name: values.get(field.type) for field in schema}], schema=schema)


def written(table: Table, lsns: Iterable[int]) -> DataFile:
    """Write rows of SMALL into a new file of the table."""
    file = table.new_file().write([small(lsns)])
    assert file is not None
    return file


def lsns_of(table: Table) -> list[int]:
    """Return the LSN of each row of the table, sorted."""
    return sorted(table.to_arrow(["lsn"])["lsn"].to_pylist())


def lsns_in(folder: Path) -> list[int]:
    """Return the LSN of each row that a reader finds who lists a folder, sorted."""
    paths = sorted(folder.glob("*.parquet"))
    return sorted(lsn for path in paths for lsn in pq.ParquetFile(path).read(["lsn"])["lsn"].to_pylist())


def tree(folder: Path) -> set[str]:
    """Return all files and folders below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
