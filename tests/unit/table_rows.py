"""Rows for tables, small and told apart by their LSN."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table
from walproxy.pipeline.lake.parquet_files import DataFile, LiveFile
from walproxy.pipeline.lake.table import LakeTable
from walproxy.pipeline.schemas import arrow_schema

Table: TypeAlias = LakeTable[Any]

RECORDS = arrow_schema("records")
SMALL = pa.schema([pa.field("lsn", pa.int64(), False), pa.field("word", pa.string())])


def open_table(
    folder: Path | str,
    name: str,
    table_format: TableFormat | None = None,
    schema: pa.Schema | None = None,
    *,
    create: bool = True,
    omitted: Collection[str] = (),
) -> Table:
    """Open a table of a folder."""
    location = LakeLocation.parse(folder)
    return open_lake_table(location, name, table_format, schema, create=create, optional=omitted, omitted=omitted)


def folder_of(table: Table) -> Path:
    """Return the folder of a table."""
    return Path(table.location.url)


def path_of(table: Table, file: DataFile | LiveFile) -> Path:
    """Return where a file of a table in a folder is."""
    return folder_of(table) / file.path


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


def tree(folder: Path) -> set[str]:
    """Return all files and folders below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
