"""Messages of committed transactions to changes, each with its relation and its place in its transaction. Pure.

Changes of rows may come together, and not decoded (Rows); they leave as ChangedRows, by relation.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.messages import (
    Begin,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Rows,
    Truncate,
    Tuple,
    Update,
)
from walproxy.pipeline.cdc.pgoutput import VERSIONS, decode
from walproxy.pipeline.cdc.transactions import Sent

Kind = Literal["insert", "update", "delete", "truncate", "message"]


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
    """Changes of rows of one relation in one transaction, in their order, not decoded.

    Attributes:
        sequences: the number of each in the transaction.
        items: LSN and message of each.
        partition: as that of the first one's `Change`.
    """

    transaction: Begin
    relation: Relation
    sequences: Sequence[int]
    items: Sequence[tuple[Lsn, bytes]]
    size: int
    partition: Relation | None = None

    def changes(self) -> Iterator[Change]:
        """Yield them decoded. Raises RemoteProtocolError."""
        partition = self.partition
        for sequence, (lsn, data) in zip(self.sequences, self.items, strict=True):
            message = decode(data, lsn=lsn, version=VERSIONS[-1])
            assert isinstance(message, Insert | Update | Delete)  # by Assembler.take_rows
            change = _change_of_row(self.transaction, sequence, lsn, self.relation, message, len(data))
            yield change if partition is None else change._replace(partition=partition)
            partition = None

    def beginning_at(self, sequence: int) -> "ChangedRows":
        """Return those whose number is at least `sequence`."""
        if self.sequences[0] >= sequence:
            return self
        first = bisect_left(self.sequences, sequence)
        return self._replace(sequences=self.sequences[first:], items=self.items[first:], partition=None)


class RowsByRelation(NamedTuple):
    """Successive changes of rows of one transaction.

    Attributes:
        end_sequence: number of the next change of the transaction.
    """

    transaction: Begin
    parts: Sequence[ChangedRows]
    end_sequence: int


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

    def take_rows(self, rows: Rows) -> RowsByRelation:
        """Return the changes of the next rows, by relation.

        Raises:
            RemoteProtocolError: their relation is not known.
        """
        items, first = rows.items, self._sequence
        transaction = self._transaction
        assert transaction is not None  # by Assembler.take_rows
        self._sequence += len(items)
        by_relation: dict[bytes, Sequence[int]] = {}
        oids = [data[1:5] for _, data in items]
        if oids.count(oids[0]) == len(oids):
            by_relation[oids[0]] = range(len(items))
        else:
            lists: dict[bytes, list[int]] = {}
            for index, oid in enumerate(oids):
                lists.setdefault(oid, []).append(index)
            by_relation.update(lists)
        found = []
        for oid, indices in by_relation.items():
            relation = self._relation(int.from_bytes(oid), items[indices[0]][0])
            own = items if len(indices) == len(items) else [items[index] for index in indices]
            sequences = range(first, self._sequence) if own is items else [first + index for index in indices]
            partition = _partition_of(relation, self._described) if indices[0] == 0 else None
            size = sum(len(data) for _, data in own)
            found.append(ChangedRows(transaction, relation, sequences, own, size, partition))
        self._described = []
        return RowsByRelation(transaction, found, self._sequence)

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
        raise RemoteProtocolError(
            f"the slot sent a row of {relation.schema}.{relation.name} at {format_lsn(lsn)} with {len(values)} "
            f"columns, the table has {len(relation.columns)}"
        )


def _partition_of(relation: Relation | None, described: Sequence[Relation]) -> Relation | None:
    """Return the partition that the server described just before a change of a relation, if it did."""
    if relation is None or len(described) < 2:
        return None
    ancestor, partition = described[-2:]
    return partition if ancestor is relation and partition.oid != relation.oid else None
