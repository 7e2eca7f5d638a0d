"""Texts of values to the columns of a table: what every mode does with the rows that a table is given."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import pyarrow as pa

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import format_lsn
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position
from walproxy.pipeline.cdc.apply.job_file import KnownTable
from walproxy.pipeline.cdc.apply.net_changes import Key
from walproxy.pipeline.cdc.column_types import bytes_to_arrow, to_arrow
from walproxy.pipeline.cdc.messages import UNCHANGED, Tuple, Value
from walproxy.pipeline.cdc.server import SourceRefused

Lookup = Callable[[pa.Table, Sequence[str]], pa.Table]
"""Returns columns of the rows that a table has under some keys, with the columns of the key."""


class RowArrays(NamedTuple):
    """Builds the columns of a table.

    Attributes:
        following: the table.
        schema: its columns, without those that the mode adds.
        known: its source.
        labels: of each column of an enum, the labels that the type has.
        position: of the table, before what is built.
    """

    following: FollowingTable
    schema: pa.Schema
    known: KnownTable
    labels: Mapping[str, Set[str]]
    position: Position

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key."""
        return pa.schema([self.schema.field(name) for name in self.known.key])

    def from_rows(self, names: Sequence[str], rows: Sequence[Tuple]) -> pa.Table:
        """Return rows whose values have the columns `names`; what was not sent is null, and other columns are.

        Raises:
            BadValue: a value cannot be one of its column's type.
            SourceRefused: a label is not of its type, or a text is not UTF-8.
        """
        where = {name: index for index, name in enumerate(names)}
        columns = {}
        for field in self.schema:
            index = where.get(field.name)
            values: list[Value] = [None] * len(rows) if index is None else [row[index] for row in rows]
            if field.name in self.labels:
                self._check_labels(field.name, values)
            name, bad_as_null = self._column(field.name), self._is_null_if_bad(field.name)
            columns[field.name] = to_arrow(values, field.type, name, bad_as_null=bad_as_null)
        return pa.table(columns, self.schema)

    def from_texts(self, names: Sequence[str], count: int, texts: Callable[[int], pa.Array]) -> pa.Table:
        """Return rows by columns: `texts` gives the values of one of `names`, by its number. Raises as `from_rows`."""
        columns = []
        for field in self.schema:
            if field.name not in names:
                columns.append(pa.nulls(count, field.type))
                continue
            found = texts(names.index(field.name))
            if field.name in self.labels:
                self._check_labels(field.name, found.unique().to_pylist())
            name, bad_as_null = self._column(field.name), self._is_null_if_bad(field.name)
            columns.append(bytes_to_arrow(found, field.type, name, bad_as_null=bad_as_null))
        return pa.table(columns, self.schema)

    def keys(self, keys: Sequence[Key]) -> pa.Table:
        """Return keys as a table of the columns of the key. Raises BadValue."""
        schema = self.key_schema
        arrays = [
            to_arrow([key[index] for key in keys], field.type, self._column(field.name))
            for index, field in enumerate(schema)
        ]
        return pa.table(arrays, schema)

    def key_texts(self, texts: Callable[[int], pa.Array]) -> pa.Table:
        """Return keys by columns: `texts` gives the values of a column, by its number in the key. Raises BadValue."""
        schema = self.key_schema
        arrays = [
            bytes_to_arrow(texts(number), field.type, self._column(field.name)) for number, field in enumerate(schema)
        ]
        return pa.table(arrays, schema)

    def completed(
        self,
        table: pa.Table,
        names: Sequence[str],
        rows: Sequence[Tuple],
        homes: Mapping[int, Key],
        lookup: Lookup,
    ) -> pa.Table:
        """Fill in values that were not sent.

        Args:
            table: what `from_rows` made of `rows`.
            homes: for the numbers of such rows the key under which the table has the values.

        Raises:
            RemoteProtocolError: the table does not have them.
        """
        if not homes:
            return table
        where = {name: index for index, name in enumerate(names)}
        missing = [name for name, index in where.items() if any(rows[number][index] is UNCHANGED for number in homes)]
        wanted = self.keys(list(homes.values()))
        found = lookup(wanted, missing)
        at = {key: number for number, key in enumerate(tuples_of(found.select(self.known.key)))}
        source_of: dict[int, int] = {}
        for number, key in zip(homes, tuples_of(wanted), strict=True):
            if key not in at:
                table_name = self.following.table
                raise RemoteProtocolError(
                    f"{table_name} has no row {key} at {format_lsn(self.position.lsn)}, though it was updated: copy it "
                    f"again with --copy-again {table_name}"
                )
            source_of[number] = at[key]
        for name in missing:
            column = table[name].combine_chunks()
            known = found[name].combine_chunks().cast(column.type)
            indices = [
                len(column) + source_of[number] if number in source_of and row[where[name]] is UNCHANGED else number
                for number, row in enumerate(rows)
            ]
            filled = pa.concat_arrays([column, known]).take(pa.array(indices, pa.int64()))
            table = table.set_column(table.schema.get_field_index(name), self.schema.field(name), filled)
        return table

    def _column(self, name: str) -> str:
        return f"{self.following.table}.{name}"

    def _is_null_if_bad(self, name: str) -> bool:
        return self.known.bad_as_null and name not in self.known.key

    def _check_labels(self, column: str, values: Iterable[Value]) -> None:
        """See that the type of a column has these labels still. Raises SourceRefused."""
        for value in set(values):
            if isinstance(value, bytes) and (label := value.decode(errors="replace")) not in self.labels[column]:
                raise SourceRefused(f"its column {column} had the label {label!r}, which its type has not")


def tuples_of(rows: pa.Table) -> list[tuple[object, ...]]:
    """Return the rows of a table as tuples."""
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
