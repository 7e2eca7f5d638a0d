"""Changes as rows of Arrow, in batches of bounded size.

Two shapes. For several tables at once, values are the text that PostgreSQL prints, by column:

    commit_lsn, commit_time, xid, sequence, lsn, kind, schema, table, relation,
    key, before, after   maps from column to text; null where there is none
    unchanged            columns of `after` that the server did not send: out of line, and not touched by the update
    message_prefix, message

For one table, its columns have their types and follow `_commit_lsn`, `_commit_time`, `_xid`, `_sequence`, `_lsn`,
`_kind`, `_key_before` (of an update that changed the key: the old key), `_unchanged` and `_other` (columns that the
table got after the query was started). A deleted row shows its key, or all of it with a full replica identity.

`commit_lsn` is where the commit record begins; (commit_lsn, sequence) orders all changes and identifies each.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from safekeeper.pgwire.backend import POSTGRES_EPOCH_US
from walproxy.pipeline.cdc.changes import Change
from walproxy.pipeline.cdc.column_types import to_arrow
from walproxy.pipeline.cdc.messages import UNCHANGED, Relation, Tuple, Value
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
    for part in _parts(changes):
        yield _text_batch(part)


def typed_batches(changes: Iterable[Change], typed: TypedTable) -> Iterator[pa.RecordBatch]:
    """Yield the changes of one table as batches of `typed_schema`; those of other tables, and messages, are left out.

    Raises:
        SourceRefused: a value cannot be one of its column's type.
    """
    schema = typed_schema(typed)
    ours = (change for change in changes if change.relation is not None and _is_of(change.relation, typed.table))
    for part in _parts(ours):
        yield _typed_batch(part, typed, schema)


def _is_of(relation: Relation, table: TableName) -> bool:
    return relation.name == table.name and relation.schema == table.schema


def _parts(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Yield the changes in parts of bounded size."""
    part: list[Change] = []
    size = 0
    for change in changes:
        part.append(change)
        size += change.size
        if size >= _BATCH_BYTES or len(part) >= _BATCH_ROWS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _places(part: list[Change]) -> list[pa.Array]:
    """Return the columns with the changes' positions, which both shapes begin with."""
    transactions = [change.transaction for change in part]
    return [
        pa.array([each.commit_lsn for each in transactions], pa.int64()),
        pa.array([each.commit_time_us + POSTGRES_EPOCH_US for each in transactions], _TIME),
        pa.array([each.xid for each in transactions], pa.int64()),
        pa.array([change.sequence for change in part], pa.int64()),
        pa.array([change.lsn for change in part], pa.int64()),
        pa.array([change.kind for change in part], pa.string()),
    ]


class _Maps:
    """A column of maps from names to texts."""

    def __init__(self) -> None:
        self._offsets: list[int | None] = []
        self._names: list[str] = []
        self._values: list[Value] = []

    def add(self, names: Iterable[str], values: Iterable[Value]) -> None:
        self._offsets.append(len(self._names))
        self._names += names
        self._values += values

    def add_chosen(self, names: Sequence[str], values: Tuple, chosen: Iterable[int]) -> None:
        """Add a map with some of the columns; those that were not sent are left out."""
        self._offsets.append(len(self._names))
        for index in chosen:
            if values[index] is not UNCHANGED:
                self._names.append(names[index])
                self._values.append(values[index])

    def add_null(self) -> None:
        self._offsets.append(None)

    def array(self) -> pa.Array:
        offsets = pa.array([*self._offsets, len(self._names)], pa.int32())
        values = to_arrow(self._values, pa.string(), "a row")
        return pa.MapArray.from_arrays(offsets, pa.array(self._names, pa.string()), values)


class _Layout(NamedTuple):
    """A relation, looked at once.

    Attributes:
        key: positions of the columns of the key.
        every: positions of all columns.
    """

    names: list[str]
    key: list[int]
    every: range

    @classmethod
    def of(cls, relation: Relation) -> "_Layout":
        key = [index for index, column in enumerate(relation.columns) if column.is_key]
        return cls([column.name for column in relation.columns], key, range(len(relation.columns)))


class _Layouts:
    """The layout of each relation. A relation that is described again is another one."""

    def __init__(self) -> None:
        self._relation: Relation | None = None
        self._layout: _Layout | None = None

    def __call__(self, relation: Relation) -> _Layout:
        if relation is not self._relation or self._layout is None:
            self._relation, self._layout = relation, _Layout.of(relation)
        return self._layout


def _unchanged(layout: _Layout, after: Tuple | None) -> list[str] | None:
    if after is None or UNCHANGED not in after:
        return None
    return [name for name, value in zip(layout.names, after, strict=True) if value is UNCHANGED]


def _text_batch(part: list[Change]) -> pa.RecordBatch:
    keys, befores, afters = _Maps(), _Maps(), _Maps()
    unchanged: list[list[str] | None] = []
    layouts = _Layouts()
    for change in part:
        if change.relation is None or change.kind == "truncate":
            for maps in (keys, befores, afters):
                maps.add_null()
            unchanged.append(None)
            continue
        layout, old, after = layouts(change.relation), change.old, change.after
        row = after if old is None else old
        assert row is not None  # all kinds but those above have one of the two
        keys.add_chosen(layout.names, row, layout.key)
        if old is None or change.old_is_key:
            befores.add_null()
        else:
            befores.add(layout.names, old)
        missing = _unchanged(layout, after)
        if after is None:
            afters.add_null()
        elif missing is None:
            afters.add(layout.names, after)
        else:
            afters.add_chosen(layout.names, after, layout.every)
        unchanged.append(missing)
    relations = [change.relation for change in part]
    messages = [change.message for change in part]
    arrays = [
        *_places(part),
        pa.array([each.schema if each is not None else None for each in relations], pa.string()),
        pa.array([each.name if each is not None else None for each in relations], pa.string()),
        pa.array([each.oid if each is not None else None for each in relations], pa.int64()),
        keys.array(),
        befores.array(),
        afters.array(),
        pa.array(unchanged, pa.list_(pa.string())),
        pa.array([each.prefix if each is not None else None for each in messages], pa.string()),
        pa.array([each.content if each is not None else None for each in messages], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGES_SCHEMA)


def _typed_batch(part: list[Change], typed: TypedTable, schema: pa.Schema) -> pa.RecordBatch:
    keys, others = _Maps(), _Maps()
    unchanged: list[list[str] | None] = []
    columns: list[list[Value]] = [[] for _ in typed.columns]
    layouts = _Layouts()
    layout: _Layout | None = None
    for change in part:
        assert change.relation is not None  # by `typed_batches`
        if layouts(change.relation) is not layout:
            layout = layouts(change.relation)
            where = {name: index for index, name in enumerate(layout.names)}
            positions = [where.pop(field.name, None) for field in typed.columns]
            rest = list(where.values())  # what the table got after the start
        row = change.old if change.after is None else change.after
        for values, position in zip(columns, positions, strict=True):
            values.append(row[position] if row is not None and position is not None else None)
        if change.old is not None and change.after is not None and _key_differs(change):
            keys.add_chosen(layout.names, change.old, layout.key)
        else:
            keys.add_null()
        if rest and row is not None and (change.after is not None or not change.old_is_key):
            others.add_chosen(layout.names, row, rest)
        else:
            others.add_null()
        unchanged.append(_unchanged(layout, change.after))
    arrays = [
        *_places(part),
        keys.array(),
        pa.array(unchanged, pa.list_(pa.string())),
        others.array(),
        *(
            to_arrow(values, field.type, f"{typed.table}.{field.name}")
            for values, field in zip(columns, typed.columns, strict=True)
        ),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _key_differs(change: Change) -> bool:
    """The server sends only the old key if it changed; with a full identity it sends the old row always."""
    if change.old_is_key or change.old is None or change.after is None:
        return change.old_is_key
    return any(new is not UNCHANGED and new != old for old, new in zip(change.old, change.after, strict=True))
