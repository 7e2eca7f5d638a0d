"""One table that follows its source: which changes it takes, and how it follows changes of the source's columns.

| at the source | here |
|---|---|
| ADD COLUMN, null in old rows | the column is added |
| ADD COLUMN with a default, RENAME COLUMN, another key | the table is copied again: nothing says what old rows have |
| DROP COLUMN | the column stays: it keeps its values, and is null in rows that are written from then on |
| another type of a column | refused |
| DROP TABLE and CREATE TABLE, RENAME TABLE | refused |

Columns come with the first change after they were changed; until then nothing is seen here.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from safekeeper.errors import RemoteProtocolError
from safekeeper.lsn import format_lsn
from walproxy.pipeline.cdc.apply.following import FollowingTable, Merge, Position
from walproxy.pipeline.cdc.apply.job_file import KnownTable
from walproxy.pipeline.cdc.apply.net_changes import Key, NetChanges
from walproxy.pipeline.cdc.changes import Change
from walproxy.pipeline.cdc.column_types import arrow_type, to_arrow
from walproxy.pipeline.cdc.messages import UNCHANGED, Relation, Tuple, Value
from walproxy.pipeline.cdc.publication import PublishedTable, TableName, base_type, published_tables
from walproxy.pipeline.cdc.server import Connection, SourceRefused

_FULL_IDENTITY: Final = "f"


class Catalogs:
    """Asks the server what its catalogs say now; answers about types are kept."""

    def __init__(self, connection: Connection, publications: Sequence[str]) -> None:
        self._connection = connection
        self._publications = publications
        self._types: dict[tuple[int, int], pa.DataType] = {}

    def type_of(self, type_oid: int, type_modifier: int) -> pa.DataType:
        """Return the Arrow type for a type, of a domain that of the type below."""
        key = (type_oid, type_modifier)
        if key not in self._types:
            self._types[key] = arrow_type(*base_type(self._connection, *key))
        return self._types[key]

    def published(self) -> dict[TableName, PublishedTable]:
        """Return the tables of the publications."""
        return {each.table: each for each in published_tables(self._connection, self._publications)}


def fields_of(table: PublishedTable, following: type[FollowingTable], as_text: Sequence[str]) -> list[pa.Field]:
    """Return the columns that a following table has for those of its source."""
    return [
        pa.field(
            column.name,
            pa.string()
            if column.name in as_text
            else following.storable(arrow_type(column.type_oid, column.type_modifier)),
        )
        for column in table.columns
    ]


def known_of(table: PublishedTable, as_text: Sequence[str]) -> KnownTable:
    """Return what is to be remembered of a source table.

    Raises:
        SourceRefused: its rows cannot be told apart, though updates and deletes of them are sent.
    """
    if table.replica_identity == _FULL_IDENTITY and not table.key:
        raise SourceRefused(
            f"{table.table} has a full replica identity and no primary key, so equal rows cannot be told apart: give "
            "it a primary key, or name the other tables with --table"
        )
    columns = {column.name: column.number for column in table.columns}
    return KnownTable(table.oid, table.file_number, list(table.key), columns, list(as_text))


class Target:
    """One table that follows.

    Attributes:
        position: that of the table.
        known: its source, as it was when something was done about its columns last.
        copy_reason: why it must be copied again, None if it need not; changes are not taken then.
    """

    def __init__(self, following: FollowingTable, known: KnownTable, catalogs: Catalogs, position: Position) -> None:
        self.table = following.table
        self.position = position
        self.known = known
        self.copy_reason: str | None = None
        self._following = following
        self._catalogs = catalogs
        self._schema = following.schema()
        self._relation: Relation | None = None
        self._net = NetChanges(())

    @property
    def size(self) -> int:
        """Bytes of changes that are held."""
        return self._net.size

    def take(self, change: Change) -> None:
        """Take the next change, unless the table has it.

        Raises:
            SourceRefused: the table cannot follow its source any more.
            RemoteProtocolError: the change cannot be.
            StorageFailed, StorageFull, SourceUnavailable.
        """
        place = Position(change.transaction.commit_lsn, change.sequence)
        if place < self.position or self.copy_reason is not None:
            return
        assert change.relation is not None  # messages are not for tables
        if change.relation is not self._relation:
            self._look_at(change.relation, place)
            if self.copy_reason is not None:
                return
        self._net.add(change)

    def flush(self, position: Position) -> bool:
        """Put what is held into the table, whose position it becomes; False if there is nothing.

        Raises:
            RemoteProtocolError: a value that was not sent is not in the table either.
            SourceRefused: a value cannot be one of its column's type.
            StorageFailed, StorageFull.
        """
        if not self._net or self.copy_reason is not None:
            return False
        self._following.merge(self._merge(), self.known.key, position)
        self.position = position
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        names = [column.name for column in self._relation.columns] if self._relation is not None else []
        self._net = NetChanges(tuple(names.index(name) for name in self.known.key) if names else ())

    def _look_at(self, relation: Relation, place: Position) -> None:
        """Follow the columns of the source."""
        before = self._relation
        if before is None or before._replace(xid=0) != relation._replace(xid=0):
            self.flush(place)
            self._check_identity(relation)
            if self.copy_reason is None:
                self._check_columns(relation)
            if self.copy_reason is not None:
                return
            self._relation = relation
            self._begin_anew()
        self._relation = relation

    def _check_identity(self, relation: Relation) -> None:
        if relation.oid != self.known.oid:
            raise self._refused(relation, "it is another table than the one that was copied")
        key = {column.name for column in relation.columns if column.is_key}
        if relation.replica_identity == _FULL_IDENTITY:
            if not self.known.key:
                self.copy_reason = "its replica identity changed"
        elif key != set(self.known.key):
            self.copy_reason = "its key changed"

    def _check_columns(self, relation: Relation) -> None:
        new = []
        for column in relation.columns:
            data_type = pa.string()
            if column.name not in self.known.as_text:
                data_type = self._following.storable(self._catalogs.type_of(column.type_oid, column.type_modifier))
            if column.name not in self._schema.names:
                new.append(pa.field(column.name, data_type))
            elif self._schema.field(column.name).type != data_type:
                raise self._refused(
                    relation,
                    f"its column {column.name} is of another type now, which is kept as {data_type}, not "
                    f"{self._schema.field(column.name).type}",
                )
        # A column of our table that its source did not have when it was looked at last came back, or is half added.
        new += [
            self._schema.field(column.name)
            for column in relation.columns
            if column.name in self._schema.names and column.name not in self.known.columns
        ]
        if new:
            self._add(new)

    def _add(self, new: list[pa.Field]) -> None:
        published = self._catalogs.published().get(self.table)
        if published is None:
            self.copy_reason = "it is not in the publication any more"
            return
        last = max(self.known.columns.values(), default=0)
        plain = {column.name for column in published.columns if column.is_plain and column.number > last}
        if published.file_number != self.known.file_number or any(field.name not in plain for field in new):
            self.copy_reason = "columns were added or renamed, with values in old rows"
            return
        self._following.add_columns(new)
        self._schema = self._following.schema()
        self.known = known_of(published, self.known.as_text)

    def _refused(self, relation: Relation, reason: str) -> SourceRefused:
        return SourceRefused(
            f"{relation.schema}.{relation.name} cannot be followed any more: {reason}; copy it anew with --copy-again "
            f"{self.table}"
        )

    def _merge(self) -> Merge:
        """Return what is held, as tables."""
        assert self._relation is not None  # something is held
        kept = {key: row for key, row in self._net.rows.items() if row is not None}
        rows = [*kept.values(), *self._net.appended]
        homes = {number: self._net.homes[key] for number, key in enumerate(kept) if key in self._net.homes}
        where = {column.name: index for index, column in enumerate(self._relation.columns)}
        columns = {}
        for field in self._schema:
            index = where.get(field.name)
            values: list[Value] = [None] * len(rows) if index is None else [row[index] for row in rows]
            columns[field.name] = to_arrow(values, field.type, f"{self.table}.{field.name}")
        upserts = self._completed(pa.table(columns, self._schema), rows, homes, where)
        gone = [key for key, row in self._net.rows.items() if row is None]
        return Merge(self._net.truncated, upserts, self._keys(gone))

    def _keys(self, keys: Sequence[Key]) -> pa.Table:
        schema = pa.schema([self._schema.field(name) for name in self.known.key])
        arrays = [
            to_arrow([key[index] for key in keys], field.type, f"{self.table}.{field.name}")
            for index, field in enumerate(schema)
        ]
        return pa.table(arrays, schema)

    def _completed(
        self, upserts: pa.Table, rows: Sequence[Tuple], homes: dict[int, Key], where: dict[str, int]
    ) -> pa.Table:
        """Fill in values that were not sent, from the table: `homes` says for which rows, and where they are."""
        if not homes:
            return upserts
        missing = [name for name, index in where.items() if any(rows[number][index] is UNCHANGED for number in homes)]
        wanted = self._keys(list(homes.values()))
        found = self._following.lookup(wanted, missing)
        at = {key: number for number, key in enumerate(_tuples(found.select(self.known.key)))}
        source_of: dict[int, int] = {}
        for number, key in zip(homes, _tuples(wanted), strict=True):
            if key not in at:
                raise RemoteProtocolError(
                    f"{self.table} has no row {key} at {format_lsn(self.position.lsn)}, though it was updated: copy it "
                    f"again with --copy-again {self.table}"
                )
            source_of[number] = at[key]
        for name in missing:
            column = upserts[name].combine_chunks()
            known = found[name].combine_chunks().cast(column.type)
            indices = [
                len(column) + source_of[number] if row[where[name]] is UNCHANGED else number
                for number, row in enumerate(rows)
            ]
            filled = pa.concat_arrays([column, known]).take(pa.array(indices, pa.int64()))
            upserts = upserts.set_column(upserts.schema.get_field_index(name), self._schema.field(name), filled)
        return upserts


def _tuples(rows: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
