"""The files of an Iceberg table that follows another: which may have a key, their columns, and their rows."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IntegerType, LongType, StringType


def _small(data_type: pa.DataType) -> pa.DataType:
    """pyiceberg may prefer Arrow's large types."""
    if pa.types.is_large_string(data_type):
        return pa.string()
    if pa.types.is_large_list(data_type) or pa.types.is_list(data_type):
        # The field of the elements has their id in its metadata.
        return pa.list_(data_type.value_field.with_type(_small(data_type.value_type)))
    return pa.binary() if pa.types.is_large_binary(data_type) else data_type


def arrow_schema(table: PyIcebergTable) -> pa.Schema:
    return file_schema(table.metadata)


def file_schema(metadata: TableMetadata) -> pa.Schema:
    """Return the columns of the table's files, with Iceberg's ids."""
    schema = schema_to_pyarrow(metadata.schema())
    return pa.schema([pa.field(field.name, _small(field.type), metadata=field.metadata) for field in schema])


def files_with(table: PyIcebergTable, tasks: Sequence[FileScanTask], keys: pa.Table) -> list[FileScanTask]:
    """Return the files in which one of the keys may be, by the bounds of the key's first column."""
    name = keys.column_names[0]
    field = table.schema().find_field(name)
    if not isinstance(field.field_type, IntegerType | LongType | StringType):
        return list(tasks)
    values = sorted(keys[name].unique().to_pylist())
    found = []
    for task in tasks:
        lower = (task.file.lower_bounds or {}).get(field.field_id)
        upper = (task.file.upper_bounds or {}).get(field.field_id)
        if lower is not None and upper is not None:
            index = bisect_left(values, from_bytes(field.field_type, lower))
            if index == len(values) or values[index] > from_bytes(field.field_type, upper):
                continue
        found.append(task)
    return found


def read_rows(table: PyIcebergTable, tasks: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files with the table's columns as they are now."""
    for task in tasks:
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        yield from scan.to_record_batches([task])


def rows_of(table: PyIcebergTable, tasks: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files with the table's columns and their types, in their order."""
    schema = arrow_schema(table)
    for batch in read_rows(table, tasks):
        yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
