"""One table that follows its source: which changes it takes, and how it follows changes of the source's definition.

| at the source | here |
|---|---|
| ADD COLUMN, null in old rows | the column is added |
| another length of varchar, varchar to text | nothing |
| a larger precision of numeric, no row rewritten | the column is widened; copied again where the format cannot |
| DROP COLUMN | the column stays: it keeps its values, and is null in rows that are written from then on |
| anything else that fingerprint.py detects | the table is copied again |

The catalogs are compared before the changes of a step are taken, and may be newer than those. So each layout that the
changes themselves announce is compared with the known columns too.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint, compare
from walproxy.pipeline.cdc.apply.following import FollowingTable, Merge, Position
from walproxy.pipeline.cdc.apply.job_file import KnownTable
from walproxy.pipeline.cdc.apply.net_changes import Key, NetChanges
from walproxy.pipeline.cdc.apply.net_columns import NetColumns, combine
from walproxy.pipeline.cdc.changes import Change, ChangedRows
from walproxy.pipeline.cdc.column_types import arrow_type, bytes_to_arrow, to_arrow
from walproxy.pipeline.cdc.messages import UNCHANGED, Begin, Relation, Tuple, Value
from walproxy.pipeline.cdc.published_tables import PublishedTable
from walproxy.pipeline.cdc.server import SourceRefused

_FULL_IDENTITY: Final = "f"
_TRUNCATES_MAX: Final = 1000

_XIDS: Final = 1 << 32

TypeOf = Callable[[int, int], pa.DataType]
"""The Arrow type for OID and modifier of a type; of a domain that of its base type."""


class Catalogs(Protocol):
    """Questions to the source about a new partition. Both raise SourceUnavailable."""

    def is_empty(self, oid: int) -> bool:
        """Return whether a relation has no page."""

    def insert_lsn(self) -> Lsn:
        """Return the end of the WAL."""


class _NewPartition(NamedTuple):
    """A partition that was not known at the look before.

    Attributes:
        creator: the transaction that created it as a partition; None if it was attached, and was empty then.
        seen_lsn: what committed beyond it came after the partition was found.
    """

    creator: int | None
    seen_lsn: Lsn

    def may_have_lost_rows(self, first: Begin) -> bool:
        """Return whether it may have had rows that went unseen, if `first` is the first transaction with rows of it.

        TRUNCATE within the creating transaction leaves no trace; other changes would have given it another file. The
        creator may be a subtransaction, whose xid is larger than that of the transaction.
        """
        if first.commit_lsn >= self.seen_lsn:
            return False
        return self.creator is None or (self.creator - first.xid) % _XIDS < _XIDS // 2


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


def known_of(
    table: PublishedTable, as_text: Sequence[str], bad_text: Sequence[str], *, bad_as_null: bool
) -> KnownTable:
    """Return what is to be remembered of a source table.

    Raises:
        SourceRefused: its rows cannot be identified, though updates and deletes of them are sent.
    """
    if table.replica_identity == _FULL_IDENTITY and not table.key:
        raise SourceRefused(
            f"{table.table} has a full replica identity and no primary key, so equal rows are indistinguishable: give "
            "it a primary key, or name the other tables with --table"
        )
    return KnownTable(
        list(table.key), list(as_text), sorted(bad_text), bad_as_null=bad_as_null, fingerprint=table.fingerprint
    )


class Target:
    """One table that follows.

    Attributes:
        position: that of the table.
        known: its source, as it was when a change of its definition was followed last.
        copy_reason: why it must be copied again, None if it need not; changes are not taken then.
        following: the table in the folder.
    """

    def __init__(
        self,
        following: FollowingTable,
        known: KnownTable,
        fingerprint: Fingerprint,
        type_of: TypeOf,
        position: Position,
    ) -> None:
        self.table = following.table
        self.position = position
        self.known = known
        self.copy_reason: str | None = None
        self._fingerprint = fingerprint
        self._awaited: frozenset[int] = frozenset()  # transactions that must turn out to have truncated the table
        self._seen: Fingerprint | None = None  # accepted once they have
        self._truncated_by: set[int] = set()
        self._new_partitions: dict[int, _NewPartition] = {}
        self._labels: Mapping[str, Set[str]] = {}
        self.following = following
        self._type_of = type_of
        self._schema = following.schema()
        self._relation: Relation | None = None
        self._net = NetChanges(())
        self._rows: list[ChangedRows] = []  # those after what `_net` has

    @property
    def source_oid(self) -> int:
        """OID of the source table."""
        return self._fingerprint.oid

    def look(self, now: PublishedTable, source: Catalogs) -> None:
        """Compare the source's catalogs with what is known: follow what can be followed, else set `copy_reason`.

        Raises:
            SourceUnavailable, StorageFailed, StorageFull.
        """
        if self.copy_reason is not None:
            return
        verdict = compare(self._fingerprint, now.fingerprint, now.evidence)
        reason = verdict.copy_reason
        if reason is None and set(now.key) != set(self.known.key):
            reason = "its key changed"
        if reason is None and not all(source.is_empty(oid) for oid in verdict.brought):
            reason = "a partition was attached"
        if reason is None and (verdict.brought or verdict.born):
            seen_lsn = source.insert_lsn()
            for oid in verdict.brought | verdict.born:
                creator = now.fingerprint.partitions[oid] if oid in verdict.born else None
                self._new_partitions[oid] = _NewPartition(creator, seen_lsn)
        if reason is None:
            reason = self._follow_columns(now, verdict.added, verdict.changed)
        if reason is not None:
            self.copy_reason = reason
            return
        self._awaited, self._seen, self._labels = verdict.writers, now.fingerprint, now.labels
        self.settle(is_current=False)

    def settle(self, *, is_current: bool) -> None:
        """Accept a rewritten file if the stream has shown that a TRUNCATE wrote it.

        Args:
            is_current: all changes were taken that can have been made before the catalogs were read.
        """
        if self._seen is None or self.copy_reason is not None:
            return
        if self._awaited <= self._truncated_by:
            gone = self._fingerprint.columns.keys() - self._seen.columns.keys()
            dropped = sorted({*self.known.dropped, *gone})
            self._fingerprint, self._seen = self._seen, None
            self.known = msgspec.structs.replace(self.known, fingerprint=self._fingerprint, dropped=dropped)
            if len(self._truncated_by) > _TRUNCATES_MAX:
                self._truncated_by.clear()  # An unexplained file costs a copy.
        elif is_current:
            self.copy_reason = "its rows were rewritten"

    def must_be_copied(self, reason: str) -> None:
        """Take no further changes, and hold none."""
        self.copy_reason = reason
        self._begin_anew()

    def take(self, change: Change) -> None:
        """Take the next change, unless the table has it.

        Raises:
            BadValue: a value of an earlier change cannot be one of its column's type.
            RemoteProtocolError: the change cannot be.
            StorageFailed, StorageFull, SourceUnavailable.
        """
        if change.kind == "truncate":
            self._truncated_by.add(change.transaction.xid)
        place = Position(change.transaction.commit_lsn, change.sequence)
        if place < self.position or self.copy_reason is not None:
            return
        assert change.relation is not None  # messages are not for tables
        if change.partition is not None:
            self.copy_reason = self._partition_problem(change.transaction, change.partition)
            if self.copy_reason is not None:
                return
        if change.relation is not self._relation:
            self._look_at(change.relation, place)
            if self.copy_reason is not None:
                return
        if change.kind == "truncate":
            self._rows.clear()
        self._decode_rows()
        self._net.add(change)

    def take_rows(self, rows: ChangedRows) -> None:
        """Take the next changes of rows, but for those that the table has. Raises as `take`."""
        rows = rows.beginning_at(*self.position)
        if self.copy_reason is not None or not rows.indices:
            return
        transaction, sequence = rows.place(rows.indices[0])
        if rows.partition is not None:
            self.copy_reason = self._partition_problem(transaction, rows.partition)
        if self.copy_reason is None and rows.relation is not self._relation:
            self._look_at(rows.relation, Position(transaction.commit_lsn, sequence))
        if self.copy_reason is None:
            self._rows.append(rows)

    def _decode_rows(self) -> None:
        """Have the rows that are held taken one by one. Raises RemoteProtocolError."""
        for rows in self._rows:
            for change in rows.changes():
                self._net.add(change)
        self._rows.clear()

    def flush(self, position: Position) -> bool:
        """Put what is held into the table, whose position it becomes; False if there is nothing.

        Raises:
            RemoteProtocolError: a change cannot be, or a value that was not sent is not in the table either.
            BadValue: a value cannot be one of its column's type.
            SourceRefused: a label of an enum was renamed since.
            TableMoved: another job writes to the table.
            StorageFailed, StorageFull.
        """
        if not (self._net or self._rows) or self.copy_reason is not None:
            return False
        self.following.merge(self._merge(), self.known.key, position, expected=self.position)
        self.position = position
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        names = [column.name for column in self._relation.columns] if self._relation is not None else []
        self._net = NetChanges(tuple(names.index(name) for name in self.known.key) if names else ())
        self._rows.clear()

    def _look_at(self, relation: Relation, place: Position) -> None:
        """Compare the layout of the changes that follow with the known columns."""
        before = self._relation
        if before is None or before._replace(xid=0) != relation._replace(xid=0):
            self.flush(place)
            self.copy_reason = self._identity_problem(relation) or self._layout_problem(relation)
            if self.copy_reason is not None:
                return
            self._relation = relation
            self._begin_anew()
        self._relation = relation

    def _identity_problem(self, relation: Relation) -> str | None:
        key = {column.name for column in relation.columns if column.is_key}
        if relation.replica_identity == _FULL_IDENTITY:
            return None if self.known.key else "its replica identity changed"
        return None if key == set(self.known.key) else "its key changed"

    def _partition_problem(self, transaction: Begin, partition: Relation) -> str | None:
        """Return why rows of a partition cannot be followed: what the catalogs no longer show."""
        name = f"{partition.schema}.{partition.name}"
        seen = self._fingerprint if self._seen is None else self._seen
        if partition.oid not in seen.partitions and partition.oid not in self._fingerprint.partitions:
            return f"its partition {name} came and went"
        new = self._new_partitions.get(partition.oid)
        if new is not None and new.may_have_lost_rows(transaction):
            return f"its partition {name} was filled before it was known"
        key = {column.name for column in partition.columns if column.is_key}
        if self.known.key and partition.replica_identity != _FULL_IDENTITY and key != set(self.known.key):
            return f"its partition {name} had another replica identity"
        return None

    def _layout_problem(self, relation: Relation) -> str | None:
        """Columns are sent in the order of their numbers: names that changed places for a while are out of order.

        A known column that is missing was added later, or had another name: the latter if a column with a larger number
        is there, and possibly if an unknown one is the last.
        """
        last = 0
        is_last_known = True
        for column in relation.columns:
            if column.name not in self._schema.names:
                return f"its changes have an unknown column {column.name}"
            known = self._fingerprint.columns.get(column.name)
            is_last_known = known is not None
            if known is not None:
                if known.number <= last:
                    return "its columns were renamed for a while"
                last = known.number
            if column.name not in self._text:
                sent = self.following.storable(self._type_of(column.type_oid, column.type_modifier))
                if not _holds(self._schema.field(column.name).type, sent):
                    return f"its column {column.name} was of another type"
        sent_names = {column.name for column in relation.columns}
        missing = [known.number for name, known in self._fingerprint.columns.items() if name not in sent_names]
        if missing and (min(missing) < last or not is_last_known):
            return "its columns were renamed for a while"
        return None

    @property
    def _text(self) -> list[str]:
        return [*self.known.as_text, *self.known.bad_text]

    def _follow_columns(self, now: PublishedTable, added: Sequence[str], changed: Sequence[str]) -> str | None:
        """Add and widen columns; return why the table must be copied instead, if it must."""
        fields = {field.name: field for field in fields_of(now, type(self.following), self._text)}
        for name in added:
            if name in self.known.dropped:
                return f"a column {name} was dropped, and another one of that name was added"
        for name in changed:
            if fields[name].type == self._schema.field(name).type:
                continue
            if not self.following.widen(name, fields[name].type):
                return f"its column {name} is of another type"
        # A column that was added here before a crash, and not noted, is there already, and null.
        new = [fields[name] for name in added if name not in self._schema.names]
        if new:
            self.following.add_columns(new)
        if new or changed:
            self._schema = self.following.schema()
        return None

    def _merge(self) -> Merge:
        """Return what is held, as tables."""
        assert self._relation is not None  # something is held
        combined = None
        names = [column.name for column in self._relation.columns]
        if self._rows and not self._net.rows and not self._net.appended:
            messages = [data for rows in self._rows for _, data in rows.items]
            combined = combine(messages, len(names), [names.index(name) for name in self.known.key])
        if combined is None:
            self._decode_rows()
            return self._merge_of_net(self._relation)
        merge = self._merge_of_columns(combined, names)
        if not len(combined.left):
            return merge
        self._rows = _picked(self._rows, combined.left.tolist())
        self._decode_rows()
        left = self._merge_of_net(self._relation)
        upserts, deleted = [merge.upserts, left.upserts], [merge.deleted, left.deleted]
        return Merge(merge.truncated, pa.concat_tables(upserts), pa.concat_tables(deleted))

    def _merge_of_net(self, relation: Relation) -> Merge:
        kept = {key: row for key, row in self._net.rows.items() if row is not None}
        rows = [*kept.values(), *self._net.appended]
        homes = {number: self._net.homes[key] for number, key in enumerate(kept) if key in self._net.homes}
        where = {column.name: index for index, column in enumerate(relation.columns)}
        columns = {}
        for field in self._schema:
            index = where.get(field.name)
            values: list[Value] = [None] * len(rows) if index is None else [row[index] for row in rows]
            if field.name in self._labels:
                self._check_labels(field.name, values)
            bad_as_null = self.known.bad_as_null and field.name not in self.known.key
            columns[field.name] = to_arrow(values, field.type, f"{self.table}.{field.name}", bad_as_null=bad_as_null)
        upserts = self._completed(pa.table(columns, self._schema), rows, homes, where)
        gone = [key for key, row in self._net.rows.items() if row is None]
        return Merge(self._net.truncated, upserts, self._keys(gone))

    def _merge_of_columns(self, combined: NetColumns, names: Sequence[str]) -> Merge:
        columns = []
        for field in self._schema:
            if field.name not in names:
                columns.append(pa.nulls(len(combined.rows), field.type))
                continue
            texts = combined.texts(names.index(field.name))
            if field.name in self._labels:
                self._check_labels(field.name, texts.unique().to_pylist())
            bad_as_null = self.known.bad_as_null and field.name not in self.known.key
            columns.append(bytes_to_arrow(texts, field.type, f"{self.table}.{field.name}", bad_as_null=bad_as_null))
        upserts = pa.table(columns, self._schema)
        key = pa.schema([self._schema.field(name) for name in self.known.key])
        gone = [
            bytes_to_arrow(combined.gone_keys(number), field.type, f"{self.table}.{field.name}")
            for number, field in enumerate(key)
        ]
        return Merge(self._net.truncated, upserts, pa.table(gone, key))

    def _check_labels(self, column: str, values: Iterable[Value]) -> None:
        """See that the type of a column has these labels still. Raises SourceRefused."""
        for value in set(values):
            if isinstance(value, bytes) and (label := value.decode(errors="replace")) not in self._labels[column]:
                raise SourceRefused(f"its column {column} had the label {label!r}, which its type has not")

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
        """Fill in values that were not sent, from the table: `homes` has for each such row where it is."""
        if not homes:
            return upserts
        missing = [name for name, index in where.items() if any(rows[number][index] is UNCHANGED for number in homes)]
        wanted = self._keys(list(homes.values()))
        found = self.following.lookup(wanted, missing)
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


def _picked(held: Iterable[ChangedRows], numbers: Sequence[int]) -> list[ChangedRows]:
    """Return some of all changes that are held, by their numbers, which ascend."""
    found, begin, first = [], 0, 0
    for rows in held:
        end = begin + len(rows.indices)
        last = bisect_left(numbers, end, first)
        if first < last:
            found.append(rows.picked(number - begin for number in numbers[first:last]))
        begin, first = end, last
    return found


def _holds(held: pa.DataType, sent: pa.DataType) -> bool:
    """Return whether a column of the first type holds every value of the second, from their text."""
    if held == sent:
        return True
    both_decimal = pa.types.is_decimal(held) and pa.types.is_decimal(sent)
    return both_decimal and bool(held.scale == sent.scale and held.precision >= sent.precision)


def _tuples(rows: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
