"""Changes as rows of Arrow, in batches of bounded size.

Two shapes. For several tables at once, values are the text that PostgreSQL prints, by column:

    commit_lsn, commit_time, xid, sequence, lsn, kind, schema, table, relation,
    key, before, after   maps from column to text; null where there is none
    unchanged            columns of `after` that the server did not send: out of line, and not touched by the update
    message_prefix, message

For one table, its columns have their types and stand behind `_commit_lsn`, `_commit_time`, `_xid`, `_sequence`, `_lsn`,
`_kind`, `_key_before` (of an update that changed the key: the old key), `_unchanged` and `_other` (columns that the
table got after the query was started). A deleted row shows its key, or all of it with a full replica identity.

`commit_lsn` is where the commit record begins; (commit_lsn, sequence) orders all changes and tells them apart.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from safekeeper.errors import ConfigurationError
from safekeeper.pgwire.backend import POSTGRES_EPOCH_US
from walproxy.pipeline.cdc.changes import Change
from walproxy.pipeline.cdc.column_types import to_arrow
from walproxy.pipeline.cdc.pgoutput import UNCHANGED, Relation, Tuple, Value
from walproxy.pipeline.cdc.publication import TableName

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_TIME: Final = pa.timestamp("us", tz="UTC")
_BATCH_ROWS: Final = 8192
_BATCH_BYTES: Final = 8 << 20

CHANGES_SCHEMA: Final = pa.schema(
    [
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("commit_time", _TIME, nullable=False),
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("schema", pa.string()),
        pa.field("table", pa.string()),
        pa.field("relation", pa.int64()),
        pa.field("key", _TEXTS),
        pa.field("before", _TEXTS),
        pa.field("after", _TEXTS),
        pa.field("unchanged", pa.list_(pa.string())),
        pa.field("message_prefix", pa.string()),
        pa.field("message", pa.binary()),
    ]
)
_TYPED_PREFIX: Final = (
    pa.field("_commit_lsn", pa.int64(), nullable=False),
    pa.field("_commit_time", _TIME, nullable=False),
    pa.field("_xid", pa.int64(), nullable=False),
    pa.field("_sequence", pa.int64(), nullable=False),
    pa.field("_lsn", pa.int64(), nullable=False),
    pa.field("_kind", pa.string(), nullable=False),
    pa.field("_key_before", _TEXTS),
    pa.field("_unchanged", pa.list_(pa.string())),
    pa.field("_other", _TEXTS),
)
_PLACE_COLUMNS: Final = 6  # those of a change's place, which both shapes begin with


class TypedTable(NamedTuple):
    """One table whose changes are read with types: its name, and its columns at the start."""

    table: TableName
    columns: tuple[pa.Field, ...]


def typed_schema(typed: TypedTable) -> pa.Schema:
    """Return the columns of the changes of one table.

    Raises:
        ConfigurationError: a column of the table has a name that begins those of ours.
    """
    ours = {field.name for field in _TYPED_PREFIX}
    for column in typed.columns:
        if column.name in ours:
            raise ConfigurationError(
                f"{typed.table} has a column {column.name!r}, which has a meaning of its own in typed rows: read the "
                "changes without the option table"
            )
    return pa.schema([*_TYPED_PREFIX, *typed.columns])


def change_batches(changes: Iterable[Change]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of all tables as batches of CHANGES_SCHEMA.

    Raises:
        SourceRefused: a value is no text.
    """
    return _batches(_TextRows(), changes)


def typed_batches(changes: Iterable[Change], typed: TypedTable) -> Iterator[pa.RecordBatch]:
    """Yield the changes of one table as batches of `typed_schema`.

    Raises:
        SourceRefused: a value cannot be one of its column's type.
    """
    return _batches(_TypedRows(typed), changes)


class _Rows(Protocol):
    def add(self, change: Change) -> int: ...  # about how many bytes it took

    def batch(self) -> pa.RecordBatch: ...


def _batches(rows: _Rows, changes: Iterable[Change]) -> Iterator[pa.RecordBatch]:
    count = size = 0
    for change in changes:
        added = rows.add(change)
        if added:
            count += 1
            size += added
        if count >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield rows.batch()
            count = size = 0
    if count:
        yield rows.batch()


class _Places:
    """The columns that say where a change stands."""

    def __init__(self) -> None:
        self._columns: tuple[list[object], ...] = tuple([] for _ in range(_PLACE_COLUMNS))

    def add(self, change: Change) -> None:
        transaction = change.transaction
        time_us = transaction.commit_time_us + POSTGRES_EPOCH_US
        place = (transaction.commit_lsn, time_us, transaction.xid, change.sequence, change.lsn, change.kind)
        for column, value in zip(self._columns, place, strict=True):
            column.append(value)

    def take(self) -> list[pa.Array]:
        types = CHANGES_SCHEMA.types[:_PLACE_COLUMNS]
        arrays = [pa.array(column, data_type) for column, data_type in zip(self._columns, types, strict=True)]
        for column in self._columns:
            column.clear()
        return arrays


class _Maps:
    """A column of maps from names to texts."""

    def __init__(self) -> None:
        self._offsets: list[int | None] = []
        self._names: list[str] = []
        self._values: list[Value] = []

    def add(self, names: Iterable[str], values: Iterable[Value]) -> None:
        self._offsets.append(len(self._names))
        self._names.extend(names)
        self._values.extend(values)

    def add_null(self) -> None:
        self._offsets.append(None)

    def take(self, what: str) -> pa.Array:
        offsets = pa.array([*self._offsets, len(self._names)], pa.int32())
        values = to_arrow(self._values, pa.string(), what)
        array = pa.MapArray.from_arrays(offsets, pa.array(self._names, pa.string()), values)
        self._offsets, self._names, self._values = [], [], []
        return array


class _TextRows:
    """Rows of CHANGES_SCHEMA."""

    def __init__(self) -> None:
        self._places = _Places()
        self._relations: list[Relation | None] = []
        self._keys, self._befores, self._afters = _Maps(), _Maps(), _Maps()
        self._unchanged: list[list[str] | None] = []
        self._prefixes: list[str | None] = []
        self._messages: list[bytes | None] = []

    def add(self, change: Change) -> int:
        self._places.add(change)
        relation, old, after = change.relation, change.old, change.after
        self._relations.append(relation)
        names = [column.name for column in relation.columns] if relation is not None else []
        unchanged = None
        if relation is None or (old is None and after is None):
            self._keys.add_null()
        else:
            key = _key_columns(relation)
            row = after if old is None else old
            assert row is not None
            self._keys.add([names[index] for index in key], [row[index] for index in key])
        if old is None or change.old_is_key:
            self._befores.add_null()
        else:
            self._befores.add(names, old)
        if after is None:
            self._afters.add_null()
        elif UNCHANGED in after:
            unchanged = [name for name, value in zip(names, after, strict=True) if value is UNCHANGED]
            sent = [index for index, value in enumerate(after) if value is not UNCHANGED]
            self._afters.add([names[index] for index in sent], [after[index] for index in sent])
        else:
            self._afters.add(names, after)
        self._unchanged.append(unchanged)
        message = change.message
        self._prefixes.append(message.prefix if message is not None else None)
        self._messages.append(message.content if message is not None else None)
        return _size(old) + _size(after) + (len(message.content) if message is not None else 0) + 1

    def batch(self) -> pa.RecordBatch:
        relations = self._relations
        arrays = [
            *self._places.take(),
            pa.array([each.schema if each is not None else None for each in relations], pa.string()),
            pa.array([each.name if each is not None else None for each in relations], pa.string()),
            pa.array([each.oid if each is not None else None for each in relations], pa.int64()),
            self._keys.take("a key"),
            self._befores.take("a row"),
            self._afters.take("a row"),
            pa.array(self._unchanged, pa.list_(pa.string())),
            pa.array(self._prefixes, pa.string()),
            pa.array(self._messages, pa.binary()),
        ]
        self._relations, self._unchanged, self._prefixes, self._messages = [], [], [], []
        return pa.RecordBatch.from_arrays(arrays, schema=CHANGES_SCHEMA)


class _TypedRows:
    """Rows of one table. Changes of other tables, and messages, are passed over."""

    def __init__(self, typed: TypedTable) -> None:
        self._typed = typed
        self._schema = typed_schema(typed)
        self._places = _Places()
        self._keys, self._others = _Maps(), _Maps()
        self._unchanged: list[list[str] | None] = []
        self._values: list[list[Value]] = [[] for _ in typed.columns]
        self._relation: Relation | None = None
        self._positions: list[int | None] = []
        self._other_positions: list[int] = []

    def add(self, change: Change) -> int:
        relation = change.relation
        if relation is None or (relation.schema, relation.name) != self._typed.table:
            return 0
        if relation is not self._relation:
            self._look_at(relation)
        self._places.add(change)
        names = [column.name for column in relation.columns]
        old, after = change.old, change.after
        if old is not None and after is not None and _key_differs(relation, change):
            key = _key_columns(relation)
            self._keys.add([names[index] for index in key], [old[index] for index in key])
        else:
            self._keys.add_null()
        row = after if after is not None else old
        for values, position in zip(self._values, self._positions, strict=True):
            values.append(row[position] if row is not None and position is not None else None)
        unchanged = None
        if after is not None and UNCHANGED in after:
            unchanged = [name for name, value in zip(names, after, strict=True) if value is UNCHANGED]
        self._unchanged.append(unchanged)
        if row is None or not self._other_positions:
            self._others.add_null()
        else:
            sent = [index for index in self._other_positions if row[index] is not UNCHANGED]
            self._others.add([names[index] for index in sent], [row[index] for index in sent])
        return _size(row) + 1

    def batch(self) -> pa.RecordBatch:
        columns = [
            to_arrow(values, field.type, f"{self._typed.table}.{field.name}")
            for values, field in zip(self._values, self._typed.columns, strict=True)
        ]
        arrays = [
            *self._places.take(),
            self._keys.take("a key"),
            pa.array(self._unchanged, pa.list_(pa.string())),
            self._others.take("a row"),
            *columns,
        ]
        self._unchanged, self._values = [], [[] for _ in self._typed.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _look_at(self, relation: Relation) -> None:
        """Find the columns of the query in the relation as it is now."""
        where = {column.name: index for index, column in enumerate(relation.columns)}
        self._positions = [where.pop(field.name, None) for field in self._typed.columns]
        self._other_positions = sorted(where.values())
        self._relation = relation


def _key_columns(relation: Relation) -> list[int]:
    return [index for index, column in enumerate(relation.columns) if column.is_key]


def _key_differs(relation: Relation, change: Change) -> bool:
    """The server sends only the old key if it changed; with a full identity it sends the old row always."""
    if change.old_is_key:
        return True
    if change.old is None or change.after is None:
        return False
    pairs = zip(change.old, change.after, strict=True)
    return any(new is not UNCHANGED and new != old for old, new in pairs)


def _size(row: Tuple | None) -> int:
    return 0 if row is None else sum(len(value) for value in row if isinstance(value, bytes))
