"""Messages of committed transactions to changes, each with its relation and its place in its transaction. Pure.

Changes of rows may come together, and not decoded (Rows); they leave as ChangedRows, by relation.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.messages import (
    Begin,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    NotUnderstood,
    Relation,
    Rows,
    Truncate,
    Tuple,
    Update,
)
from walproxy.pipeline.cdc.pgoutput import VERSIONS, decode
from walproxy.pipeline.cdc.transactions import Sent

Kind = Literal["insert", "update", "delete", "truncate", "message"]


_OID_BYTES: Final = 4
# Measured: inserts into five short columns take 16 times the bytes of their messages, updates of a hundred columns with
# their old rows 39 times.
_MESSAGE_BYTES: Final = 130
_VALUE_BYTES: Final = 50


class Change(NamedTuple):
    """One change of one row, of all rows (truncate), or a message.

    Attributes:
        transaction: its xid, when it was committed, and where its commit record begins.
        sequence: number of the change in its transaction, from 0.
        lsn: where the server sent it: of the change's own WAL.
        relation: None for a message.
        old: of an update whose key changed, or with a full identity, and of a delete: the old values.
        old_is_key: of `old` only the columns of the key are known.
        after: of an insert or update: the new values.
        message: of a message.
        size: bytes that the server sent for it.
        partition: of the first change of each partition in a read, if `relation` is an ancestor of it, the partition.
    """

    transaction: Begin
    sequence: int
    lsn: Lsn
    kind: Kind
    relation: Relation | None
    old: Tuple | None = None
    old_is_key: bool = False
    after: Tuple | None = None
    message: LogicalMessage | None = None
    size: int = 0
    partition: Relation | None = None


class ChangedRows(NamedTuple):
    """Changes of rows of one relation, in their order, not decoded.

    Attributes:
        rows: these and those of other relations.
        indices: the numbers of these in `rows.items`, ascending.
        first_sequence: of the first one of `rows`, the number in its transaction.
        partition: as that of the first one's `Change`.
    """

    rows: Rows
    relation: Relation
    indices: Sequence[int]
    first_sequence: int
    partition: Relation | None = None

    @property
    def items(self) -> Sequence[tuple[Lsn, bytes]]:
        """LSN and message of each."""
        items = self.rows.items
        return items if len(self.indices) == len(items) else [items[index] for index in self.indices]

    def place(self, index: int) -> tuple[Begin, int]:
        """Return the transaction of one of `rows.items`, and its number there."""
        number = bisect_right(self.rows.starts, index) - 1
        sequence = index - self.rows.starts[number]
        return self.rows.transactions[number], sequence + self.first_sequence if number == 0 else sequence

    def changes(self) -> Iterator[Change]:
        """Yield them decoded. Raises RemoteProtocolError."""
        partition = self.partition
        for index, (lsn, data) in zip(self.indices, self.items, strict=True):
            message = decode(data, lsn=lsn, version=VERSIONS[-1])
            assert isinstance(message, Insert | Update | Delete)  # by Assembler
            change = _change_of_row(*self.place(index), lsn, self.relation, message, len(data))
            yield change if partition is None else change._replace(partition=partition)
            partition = None

    def picked(self, numbers: Iterable[int]) -> "ChangedRows":
        """Return some of them, by their numbers among these."""
        return self._replace(indices=[self.indices[number] for number in numbers], partition=None)

    def beginning_at(self, commit_lsn: Lsn, sequence: int) -> "ChangedRows":
        """Return those from a place on; there may be none."""

        def lsn_and_sequence(index: int) -> tuple[Lsn, int]:
            transaction, sequence = self.place(index)
            return transaction.commit_lsn, sequence

        first = bisect_left(self.indices, (commit_lsn, sequence), key=lsn_and_sequence)
        return self._replace(indices=self.indices[first:], partition=None) if first else self


class RowsByRelation(NamedTuple):
    """Successive changes of rows, of whole transactions or of one that is open.

    Attributes:
        transaction: the last one.
        end_sequence: number of its next change.
        size: bytes of them.
    """

    transaction: Begin
    parts: Sequence[ChangedRows]
    end_sequence: int
    size: int

    @property
    def held_bytes(self) -> int:
        """About what it costs to hold them and to combine them by columns."""
        counts = ((len(part.indices), len(part.relation.columns)) for part in self.parts)
        return self.size + sum(count * (_MESSAGE_BYTES + _VALUE_BYTES * columns) for count, columns in counts)


class Changes:
    """Turns what `committed` yields into changes: by iteration over all of it, or with `take`, one after the other.

    The server describes the ancestor and then the partition before it sends the first row of a partition as one of the
    ancestor.
    """

    def __init__(self, stream: Iterable[Sent] = ()) -> None:
        self._stream = stream
        self._relations: dict[int, Relation] = {}
        self._transaction: Begin | None = None
        self._sequence = 0
        self._described: list[Relation] = []  # since the last change

    def __iter__(self) -> Iterator[Change]:
        for sent in self._stream:
            yield from self.take(sent)

    def take(self, sent: Sent) -> Sequence[Change]:
        """Return the changes of the next message.

        Raises:
            RemoteProtocolError: they cannot be.
        """
        lsn, message, size = sent
        assert not isinstance(message, Rows)  # for take_rows
        if isinstance(message, Begin):
            self._transaction, self._sequence = message, 0
        elif isinstance(message, Relation):
            self._relations[message.oid] = message
            self._described.append(message)
        elif self._transaction is not None:
            found = self._changes(self._transaction, self._sequence, lsn, message, size)
            if found and self._described:
                if not isinstance(message, Truncate):
                    found = [found[0]._replace(partition=_partition_of(found[0].relation, self._described))]
                self._described = []
            self._sequence += len(found)
            return found
        return ()

    def take_rows(self, sent: Sent) -> RowsByRelation:
        """Return the changes of the next rows, by relation.

        Raises:
            RemoteProtocolError: their relation is not known.
        """
        rows = sent.message
        assert isinstance(rows, Rows)
        items = rows.items
        first_sequence = 0 if rows.end_lsn is not None else self._sequence
        found = []
        for oid, indices in _by_relation(items).items():
            lsn, data = items[indices[0]]
            if len(oid) < _OID_BYTES:
                decode(data, lsn=lsn, version=VERSIONS[-1])  # says that it is cut short
            relation = self._relation(int.from_bytes(oid), lsn)
            partition = _partition_of(relation, self._described) if indices[0] == 0 else None
            found.append(ChangedRows(rows, relation, indices, first_sequence, partition))
        if items:
            self._described = []
        self._sequence = len(items) - rows.starts[-1] + (first_sequence if len(rows.starts) == 1 else 0)
        return RowsByRelation(rows.transactions[-1], found, self._sequence, sent.size)

    def _changes(self, transaction: Begin, sequence: int, lsn: Lsn, message: Message, size: int) -> Sequence[Change]:
        if isinstance(message, Insert | Update | Delete):
            relation = self._relation(message.relation, lsn)
            return (_change_of_row(transaction, sequence, lsn, relation, message, size),)
        if isinstance(message, Truncate):
            return [
                Change(transaction, sequence + index, lsn, "truncate", self._relation(oid, lsn), size=size)
                for index, oid in enumerate(message.relations)
            ]
        if isinstance(message, LogicalMessage):
            return (Change(transaction, sequence, lsn, "message", None, message=message, size=size),)
        return ()  # its end, where it came from, and names of types

    def _relation(self, oid: int, lsn: Lsn) -> Relation:
        relation = self._relations.get(oid)
        if relation is None:
            raise RemoteProtocolError(
                f"the slot sent a change at {format_lsn(lsn)} of relation {oid}, which it has not described"
            )
        return relation


def _change_of_row(
    transaction: Begin, sequence: int, lsn: Lsn, relation: Relation, message: Insert | Update | Delete, size: int
) -> Change:
    if isinstance(message, Insert):
        _check(relation, lsn, message.after)
        return Change(transaction, sequence, lsn, "insert", relation, None, False, message.after, None, size)
    old = message.key if message.before is None else message.before
    _check(relation, lsn, old)
    is_key = message.key is not None
    if isinstance(message, Delete):
        return Change(transaction, sequence, lsn, "delete", relation, old, is_key, None, None, size)
    _check(relation, lsn, message.after)
    return Change(transaction, sequence, lsn, "update", relation, old, is_key, message.after, None, size)


def _check(relation: Relation, lsn: Lsn, values: Tuple | None) -> None:
    if values is not None and len(values) != len(relation.columns):
        raise NotUnderstood(
            f"the slot sent a row of {relation.schema}.{relation.name} at {format_lsn(lsn)} with {len(values)} "
            f"columns, the table has {len(relation.columns)}"
        )


def _by_relation(items: Sequence[tuple[Lsn, bytes]]) -> Mapping[bytes, Sequence[int]]:
    """Return the numbers of the changes of each relation, by its OID as it is in the messages."""
    oids = [data[1:5] for _, data in items]
    if oids and oids.count(oids[0]) == len(oids):
        return {oids[0]: range(len(oids))}
    found: dict[bytes, list[int]] = {}
    for index, oid in enumerate(oids):
        found.setdefault(oid, []).append(index)
    return found


def _partition_of(relation: Relation | None, described: Sequence[Relation]) -> Relation | None:
    """Return the partition that the server described just before a change of a relation, if it did."""
    if relation is None or len(described) < 2:
        return None
    ancestor, partition = described[-2:]
    return partition if ancestor is relation and partition.oid != relation.oid else None
