"""Parquet files: how they are written, for every table alike, and how a file's footer is read.

A file is on disk when `write_parquet` returns; its name is not until its folder was synced, which is the committer's.
"""

import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.lake.disk import storage_errors

if TYPE_CHECKING:
    import pyarrow.parquet as pq  # Its import takes 40 ms, which a query need not wait for: it reads no footers.

COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1
ROW_GROUP_ROWS: Final = 1 << 18
"""Rows of a row group at most. A reader skips whole row groups by their least and greatest LSN."""

ROW_GROUP_BYTES: Final = 128 << 20
"""A row group is closed when its rows have about this size in memory, however few they are."""


_FILE_BYTES: Final = 256 << 20  # of Arrow, which is several times what is on disk


class DataFile(NamedTuple):
    """A file that was written and is to be committed.

    Attributes:
        path: within the table's folder.
        bytes: its size.
    """

    path: str
    rows: int
    bytes: int


class LiveFile(NamedTuple):
    """A file that is part of a table.

    Attributes:
        path: within the table's folder.
        bounds: the least and the greatest value of columns of 64-bit integers, where known.
    """

    path: str
    rows: int
    bytes: int
    bounds: dict[str, tuple[int, int]]


class Footer(NamedTuple):
    """The content of a file's footer.

    Attributes:
        bounds: the least and the greatest value of each column of 64-bit integers that is not nested.
        nulls: how many values are null, of each column that is not nested.
        limits: the least and the greatest value of each column that is not nested, where Parquet has them.
    """

    schema: pa.Schema
    rows: int
    bytes: int
    bounds: dict[str, tuple[int, int]]
    nulls: dict[str, int]
    limits: dict[str, tuple[Any, Any]]


def write_parquet(path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> DataFile:
    """Write a Parquet file and sync it. A file that could not be written whole is removed.

    Raises:
        ConfigurationError: a batch has other columns.
        StorageFull, StorageFailed.
    """
    try:
        with storage_errors(f"write {path}"), pa.OSFile(path, "wb") as file:
            rows = write_rows(file, batches, schema)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
    return DataFile(path, rows, size)


def write_rows(file: pa.NativeFile, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write the batches as Parquet; return the number of rows.

    Columns of the first batch that are of Arrow's dictionary type, with texts, are written as columns of texts: the
    library takes the dictionary over, and need not look up each text.

    Raises:
        ConfigurationError: a batch has other columns.
    """
    import pyarrow.parquet as pq

    rows = 0
    rest = iter(batches)
    first = list(itertools.islice(rest, 1))
    given = _with_dictionaries(schema, first[0].schema) if first else schema
    # With Arrow's schema in the file, readers that use it would see dictionaries.
    store_schema = given is schema
    with pq.ParquetWriter(file, given, store_schema=store_schema, **_writer_options(schema)) as writer:
        for table in _row_groups(itertools.chain(first, rest), given):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            rows += table.num_rows
    return rows


def _with_dictionaries(schema: pa.Schema, given: pa.Schema) -> pa.Schema:
    """Return the schema with dictionaries of texts where `given` has them; the same object if it has none."""
    numbered = {field.name: field.type for field in given if pa.types.is_dictionary(field.type)}
    fields = [
        field.with_type(numbered[field.name])
        if field.name in numbered and numbered[field.name].value_type == field.type == pa.string()
        else field
        for field in schema
    ]
    return pa.schema(fields, schema.metadata) if numbered else schema


def _writer_options(schema: pa.Schema) -> dict[str, object]:
    """Return how columns are encoded.

    Positions in the log rise in small steps, and so do numbers of transactions and, mostly, of blocks: their
    differences are stored. Of other numbers and of texts a dictionary pays. Measured with a million records of 155 MB
    of WAL, all columns of `records`, on one core, with `xid` and `block` plain: 220 MB of WAL a second and 10.6 MB of
    Parquet. With a dictionary for every column 150 and 15.7 MB, with one for texts only 180 and 13.4 MB, with lz4
    240 and 16.5 MB, with level 3 200 and 10.4 MB. Most of the time goes into the levels of the nested columns: without
    `blocks` it is 570. Sizes of pages and batches make no difference.

    For each GB of WAL, alone, plain `xid` and `block` take 0.15 and 0.19 s of CPU time and 4.0 and 10.1 MB, their
    differences 0.11 and 0.12 s, 3.9 and 6.9 MB.

    BYTE_STREAM_SPLIT takes 0.08 and 0.10 s, 2.3 and 4.8 MB, but is too new for integers to expect it of every
    reader.
    """
    leaves = [leaf for field in schema for leaf in _leaves(field)]
    close = [name for name, type_ in leaves if type_ == pa.int64() and _is_close_to_the_last(name)]
    return {
        "compression": COMPRESSION,
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": [name for name, _ in leaves if name not in close],
        "column_encoding": dict.fromkeys(close, "DELTA_BINARY_PACKED"),
        "write_statistics": True,
    }


def _is_close_to_the_last(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last in ("lsn", "xid", "block") or last.endswith("_lsn")


def _leaves(field: pa.Field, above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield path and type of each column of numbers or texts, as Parquet names them."""
    path = f"{above}{field.name}"
    if pa.types.is_struct(field.type):
        for index in range(field.type.num_fields):
            yield from _leaves(field.type.field(index), f"{path}.")
    elif pa.types.is_list(field.type):
        yield from _leaves(pa.field("element", field.type.value_type), f"{path}.list.")
    elif pa.types.is_map(field.type):
        yield from _leaves(pa.field("key", field.type.key_type), f"{path}.key_value.")
        yield from _leaves(pa.field("value", field.type.item_type), f"{path}.key_value.")
    else:
        yield path, field.type


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of the batches in tables that are worth a row group, the last of what is left."""
    pending: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        if not batch.schema.equals(schema):
            batch = _conformed(batch, schema)
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(pending, schema)
            pending, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(pending, schema)


def parts_of(rows: Iterable[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Divide batches, as they come, into runs that are each worth a file."""
    batches = iter(rows)
    for first in batches:

        def run(batch: pa.RecordBatch = first) -> Iterator[pa.RecordBatch]:
            size = batch.nbytes
            yield batch
            while size < _FILE_BYTES:
                following = next(batches, None)
                if following is None:
                    return
                size += following.nbytes
                yield following

        yield run()


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the very schema of the table; its types may differ in names of list elements only."""
    difference = schema_difference(schema, batch.schema)
    if difference is not None:
        raise ConfigurationError(f"rows cannot be written: {difference}")
    return batch.cast(schema)


def footer_of(metadata: "pq.FileMetaData", schema: pa.Schema, size: int) -> Footer:
    """Return the content of a footer that pyarrow has read."""
    limits: dict[str, tuple[Any, Any]] = {}
    nulls: dict[str, int] = {}
    unknown = set()
    flat = {field.name: field.type for field in schema if not pa.types.is_nested(field.type)}
    for group_number in range(metadata.num_row_groups):
        group = metadata.row_group(group_number)
        for column_number in range(group.num_columns):
            column = group.column(column_number)
            name = column.path_in_schema
            statistics = column.statistics
            if name not in flat:
                continue
            if statistics is not None and statistics.has_null_count:
                nulls[name] = nulls.get(name, 0) + statistics.null_count
            if statistics is not None and statistics.has_min_max:
                low, high = limits.get(name, (statistics.min, statistics.max))
                limits[name] = min(low, statistics.min), max(high, statistics.max)
            elif statistics is None or not statistics.has_null_count or statistics.null_count < group.num_rows:
                unknown.add(name)  # There are values, of which nothing is known.
    limits = {name: both for name, both in limits.items() if name not in unknown}
    bounds = {name: both for name, both in limits.items() if flat[name] == pa.int64()}
    return Footer(schema.remove_metadata(), metadata.num_rows, size, bounds, nulls, limits)


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without metadata, lists' elements named as Parquet names them."""
    return pa.schema([_normal_field(field) for field in schema])


def _normal_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _normal_type(field.type), field.nullable)


def _normal_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_list(data_type):
        element = data_type.value_field
        return pa.list_(pa.field("element", _normal_type(element.type), element.nullable))
    if pa.types.is_struct(data_type):
        return pa.struct([_normal_field(data_type.field(index)) for index in range(data_type.num_fields)])
    return data_type


def schema_difference(wanted: pa.Schema, given: pa.Schema, optional: Collection[str] = ()) -> str | None:
    """Describe in which column `given` differs from the schema `wanted` of a table, None if in none.

    Whether values may be null counts only where the table forbids it.

    Args:
        optional: columns of `given` that the table may lack.
    """
    wanted, given = normal_schema(wanted), normal_schema(given)
    given = pa.schema([field for field in given if field.name in wanted.names or field.name not in optional])
    for field in wanted:
        index = given.get_field_index(field.name)
        if index < 0:
            return f"column {field.name!r} is missing"
        other = given.field(index)
        if other.type != field.type:
            return f"column {field.name!r} is of type {other.type}, in the table it is {field.type}"
        if other.nullable and not field.nullable:
            return f"column {field.name!r} may be null, in the table it may not"
    for field in given:
        if wanted.get_field_index(field.name) < 0:
            return f"column {field.name!r} is not in the table"
    if wanted.names != given.names:
        at = next(index for index, name in enumerate(wanted.names) if given.names[index] != name)
        return f"column {given.names[at]!r} is in the place of the table's {wanted.names[at]!r}"
    return None


def first_line(error: BaseException) -> str:
    """Return the message of a library's error, as one line."""
    return str(error).strip().partition("\n")[0]
