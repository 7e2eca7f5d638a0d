"""How a copy of a source gets into its table, by mode: one commit, with the position of the copy.

| mode | a table that has rows already |
|---|---|
| mirror | has the rows of the copy in place of all others |
| append | is added a row RESET and the rows of the copy |
| soft-delete | has the rows of the copy, and those that the copy does not have, marked as deleted |

In the latter two modes nothing is lost: columns stay, also those that the source has no longer, and get types that hold
the old values and the new ones, text if no other does. If that changes the type of a column, all rows are written
again, in the same commit.

A copy into a table with deleted rows compares its keys with those of the table: both are in memory meanwhile.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position, key_filter
from walproxy.pipeline.cdc.apply.held_changes import mark_live, marked
from walproxy.pipeline.cdc.apply.modes import (
    COMMIT_LSN,
    COMMIT_TIME,
    COPY,
    COPY_SEQUENCE,
    OP,
    RESET,
    RESET_SEQUENCE,
    SEQUENCE,
    mode_of,
    own_columns,
)
from walproxy.pipeline.cdc.column_types import common_type, printed
from walproxy.pipeline.choices import FollowingMode
from walproxy.pipeline.lake.parquet_files import DataFile


class CopyPlan(NamedTuple):
    """The columns of a copy.

    Attributes:
        schema: those of the source, with the types that they get.
        as_text: further ones that are text, because the table has values of another type.
        before: the position that the table has, None if there is no table yet.
    """

    schema: pa.Schema
    as_text: frozenset[str]
    before: Position | None


def plan_copy(following: FollowingTable, mode: FollowingMode, fields: Sequence[pa.Field]) -> CopyPlan:
    """Decide which types the columns of a copy get.

    Args:
        fields: the columns of the source, with the types that they have by themselves.

    Raises:
        ConfigurationError: the table was made in another mode.
        StorageFailed, ArchiveError.
    """
    before = following.position()
    if before is None:
        return CopyPlan(pa.schema(fields), frozenset(), None)
    known = following.schema()
    made_in = mode_of(known.names)
    if made_in not in (mode, mode_of([field.name for field in fields])):
        raise ConfigurationError(
            f"{following.location} was made with --mode {made_in}, not {mode}: name another folder, or add --mode "
            f"{made_in}"
        )
    if mode == "mirror":
        return CopyPlan(pa.schema(fields), frozenset(), before)
    united = [
        field.with_type(common_type(known.field(field.name).type, field.type)) if field.name in known.names else field
        for field in fields
    ]
    as_text = {new.name for old, new in zip(fields, united, strict=True) if old.type != new.type == pa.string()}
    return CopyPlan(pa.schema(united), frozenset(as_text), before)


class Copy(NamedTuple):
    """A copy of a source.

    Attributes:
        plan: its columns.
        key: the columns that identify rows.
        rows: with the columns of the plan; an iterator is read once.
        position: of the copy.
        unix_us: when it was taken.
        files: the same rows, if they are in files of the table's location that its format takes; else None.
    """

    plan: CopyPlan
    key: Sequence[str]
    rows: Iterable[pa.RecordBatch]
    position: Position
    unix_us: int
    files: Sequence[DataFile] | None = None


def put_copy(
    following: FollowingTable, mode: FollowingMode, copy: Copy, *, require_only_job: Callable[[], None]
) -> None:
    """Make the table, or put a copy into the one that exists. Arguments and errors as `FollowingTable.replace`."""
    if copy.files is not None:
        following.replace_by_files(copy.plan.schema, copy.files, copy.position, require_only_job=require_only_job)
        return
    own, before = own_columns(mode), copy.plan.before
    schema, rows = pa.schema([*own, *copy.plan.schema]), _with_own_columns(copy, mode)
    if before is not None and mode != "mirror":
        schema = _united(following.schema(), schema)
        if mode == "append":
            rows = itertools.chain(_reset(copy, schema), _aligned(rows, schema))
            require_only_job()
            if _has_types(following, schema):
                following.add_columns([field for field in schema if field.name not in following.schema().names])
                following.append(rows, copy.position, expected=before)
                return
            rows = itertools.chain(_old_rows(following, schema), rows)
        else:
            rows = _with_gone(following, _aligned(rows, schema), schema, copy)
    following.replace(schema, rows, copy.position, require_only_job=require_only_job)


def _with_own_columns(copy: Copy, mode: FollowingMode) -> Iterator[pa.RecordBatch]:
    for batch in copy.rows:
        rows = pa.Table.from_batches([batch])
        if mode == "append":
            rows = _placed(rows, COPY, copy, COPY_SEQUENCE)
        elif mode == "soft-delete":
            rows = marked(rows, [None] * rows.num_rows)
        yield from rows.to_batches()


def _placed(rows: pa.Table, operation: str, copy: Copy, sequence: int) -> pa.Table:
    values = {OP: operation, COMMIT_LSN: copy.position.lsn, COMMIT_TIME: copy.unix_us, SEQUENCE: sequence}
    own = own_columns("append")
    arrays = [pa.repeat(pa.scalar(values.get(field.name), field.type), rows.num_rows) for field in own]
    return pa.table([*arrays, *rows.columns], pa.schema([*own, *rows.schema]))


def _reset(copy: Copy, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the row after which nothing older is what the source has."""
    empty_row = pa.table([pa.nulls(1, field.type) for field in copy.plan.schema], copy.plan.schema)
    return _aligned(_placed(empty_row, RESET, copy, RESET_SEQUENCE).to_batches(), schema)


def _united(known: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """Return the columns of a table with the types that are wanted, and those that it does not have yet."""
    fields = [wanted.field(field.name) if field.name in wanted.names else field for field in known]
    return pa.schema([*fields, *(field for field in wanted if field.name not in known.names)])


def _has_types(following: FollowingTable, schema: pa.Schema) -> bool:
    """Return whether the columns that a table has have these types, or get them without their values being written."""
    return all(
        field.type == schema.field(field.name).type or following.widen(field.name, schema.field(field.name).type)
        for field in following.schema()
    )


def _aligned(rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows with the columns of a schema, null where they have none, and of its types."""
    for batch in rows:
        names = batch.schema.names
        arrays = [
            _converted(batch.column(names.index(field.name)), field.type)
            if field.name in names
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _converted(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    if values.type == data_type:
        return values
    return printed(values) if pa.types.is_string(data_type) else values.cast(data_type)


def _old_rows(following: FollowingTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return all rows of a table, as it is at the call, with the columns of a schema."""
    return _aligned(following.batches(following.schema().names), schema)


def _with_gone(
    following: FollowingTable, rows: Iterable[pa.RecordBatch], schema: pa.Schema, copy: Copy
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a copy, and then those of the table whose keys it does not have, marked as deleted."""
    key = copy.key if set(copy.key) <= set(following.schema().names) else ()
    old_rows = _old_rows(following, schema)
    old_keys = list(following.batches(list(key))) if key else []
    key_schema = pa.schema([schema.field(name) for name in key])

    def result() -> Iterator[pa.RecordBatch]:
        copied = [key_schema.empty_table()]
        for batch in rows:
            copied.append(pa.Table.from_batches([batch]).select(key))
            yield batch
        gone = None
        if key:
            old = pa.Table.from_batches(_aligned(old_keys, key_schema), key_schema)
            gone = key_filter(old, pa.concat_tables(copied), keep_matches=False)
        for batch in old_rows:
            table = pa.Table.from_batches([batch])
            if gone is not None:
                # The key may be another one than it was: rows without a value in it are not those of the copy.
                nameless = table.filter(_has_null(table.select(key)))
                table = pa.concat_tables([key_filter(table, gone, keep_matches=True), nameless])
            yield from mark_live(table, copy.unix_us).to_batches()

    return result()


def _has_null(rows: pa.Table) -> pa.ChunkedArray:
    """Return of each row whether it has a null."""
    return functools.reduce(pc.or_, (column.is_null() for column in rows.columns))
