"""The transactions of the tail of an old primary's WAL: what no quorum has. Pure.

`TailReader` takes the records of the tail, in order, and yields nothing until the end: a commit may be followed by what
shows that a transaction was prepared earlier. Records before the fork may come first; they show which transactions were
open at the fork, and what those had written. `LookBack` takes the records of earlier WAL, in pieces of any order, for
the transactions that began before what the reader has seen.

A transaction is complete if all of its records were seen. The transaction ids of a RUNNING_XACTS record prove that: no
id at or above its next one was assigned before it (GetRunningTransactionData holds XidGenLock until it is written).

Rows are those of the heap: inserted, updated and deleted by the transaction and its committed subtransactions. Indexes
count as WAL only. Rows of TOAST tables and catalogs are counted as rows of these. What rewrites a table writes pages,
not rows.
"""

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from safekeeper.base.lsn import Lsn
from safekeeper.waldecode import transaction_end
from safekeeper.waldecode.format import RM_LOGICAL_MESSAGE, RM_XACT, RMGR_INFO_MASK
from safekeeper.waldecode.record_body import RecordBody, RelationLocator, malformed, parse_body
from safekeeper.waldecode.records import Record
from safekeeper.waldecode.transaction_end import TransactionEnd, parse_assignment, parse_transaction_end

RM_STORAGE, RM_STANDBY, RM_HEAP2, RM_HEAP, RM_SEQUENCE = 2, 8, 9, 10, 15
BODY_RMIDS: Final = frozenset({RM_XACT, RM_STORAGE, RM_STANDBY, RM_HEAP2, RM_HEAP, RM_SEQUENCE, RM_LOGICAL_MESSAGE})
"""The resource managers whose records are passed with their bodies."""

TRANSACTIONS_MAX: Final = 100_000

_RUNNING_XACTS: Final = 0x10
# xl_running_xacts: xcnt, subxcnt, subxid_overflow, nextXid, ...
_NEXT_XID_OFFSET, _RUNNING_XACTS_BYTES = 12, 24
# Of info, the operation (XLOG_HEAP_OPMASK).
_HEAP_OPERATION_MASK: Final = 0x70
_INSERT, _DELETE, _UPDATE, _HOT_UPDATE, _MULTI_INSERT = 0x00, 0x10, 0x20, 0x40, 0x50
_COLUMNS: Final = {_INSERT: 0, _UPDATE: 1, _HOT_UPDATE: 1, _DELETE: 2}  # of `RowCounts`
# xl_heap_delete: xmax, offnum, infobits_set, flags; the last one takes back what ON CONFLICT has inserted too early.
_DELETE_FLAGS_OFFSET, _DELETE_IS_SUPER = 7, 0x08
# xl_heap_multi_insert: flags, padding, ntuples.
_NTUPLES_OFFSET: Final = 2
_STORAGE_CREATE: Final = 0x10  # Its main data begins with the relation.
# xl_logical_message: dbId, transactional.
_TRANSACTIONAL_OFFSET: Final = 4
_RELATION: Final = struct.Struct("<III")
_FIRST_NORMAL_OID: Final = 16384  # FirstNormalObjectId
_XID_HALF, _XID_MASK = 1 << 31, (1 << 32) - 1


class Kind(enum.StrEnum):
    """How a transaction ended in the tail."""

    COMMIT = "commit"
    COMMIT_PREPARED = "commit prepared"
    PREPARE = "prepare"
    ROLLBACK_PREPARED = "rollback prepared"
    ABORT = "abort"


class RowCounts(NamedTuple):
    """Numbers of rows."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class DiscardedTransaction:
    """One transaction whose end is in the tail.

    Attributes:
        kind: PREPARE: it was prepared in the tail, and has not ended. ROLLBACK_PREPARED: it was prepared before the
            fork, so the new primary has it still. ABORT: it is not lost; also a rolled back subtransaction.
        gid: of a prepared transaction; empty if the record that contains it was not read.
        time_us: of the end, in microseconds since 2000-01-01 UTC.
        lsn, end_lsn: of the record that ended it.
        first_lsn: of the first of its records that was read. Below the fork, the transaction began before it.
        prepare_lsn: of its PREPARE TRANSACTION, 0 if there is none or it was not read.
        subtransactions: those that committed with it.
        changes_catalogs: it has changed system catalogs: DDL, or statistics of tables.
        messages: its transactional logical messages.
        sequences: those from which it has taken values that the new primary may return again.
        wal_bytes: of its records, those before the fork included.
        rows: by relation.
        dropped: the relations whose files it has removed: DROP, TRUNCATE, or a rewritten table.
        is_complete: False: it may have written more, in WAL that was not read.
    """

    xid: int
    kind: Kind
    gid: str
    time_us: int
    lsn: Lsn
    end_lsn: Lsn
    first_lsn: Lsn
    prepare_lsn: Lsn
    subtransactions: int
    changes_catalogs: bool
    messages: int
    sequences: tuple[RelationLocator, ...]
    wal_bytes: int
    rows: dict[RelationLocator, RowCounts]
    dropped: tuple[RelationLocator, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Tail:
    """What was found in the tail.

    Attributes:
        transactions: in the order of their ends; at most `TRANSACTIONS_MAX`.
        aborted: aborts, of which nothing is lost; as many at most.
        counts: the number of transactions of each kind, listed or not.
        open: transactions with records in the tail and no end: nothing of them was committed. A subtransaction counts
            as one, unless its WAL names the parent.
        messages: logical messages that belong to no transaction.
        created: the relations whose files were made in the tail: another server may use their numbers for others.
    """

    transactions: tuple[DiscardedTransaction, ...]
    aborted: tuple[DiscardedTransaction, ...]
    counts: dict[Kind, int]
    open: int
    messages: int
    created: frozenset[RelationLocator]


def precedes(xid: int, other: int) -> bool:
    """Return whether `xid` was assigned before `other`; ids wrap around."""
    return (xid - other) & _XID_MASK >= _XID_HALF


@dataclass(slots=True)
class _Changes:
    """What one transaction id has written so far."""

    first_lsn: Lsn
    in_tail: bool = False
    wal_bytes: int = 0
    messages: int = 0
    sequences: set[RelationLocator] = field(default_factory=set)
    rows: dict[RelationLocator, list[int]] = field(default_factory=dict)

    def merge(self, other: "_Changes") -> None:
        """Add what a subtransaction, or earlier WAL, has."""
        self.first_lsn = min(self.first_lsn, other.first_lsn)
        self.wal_bytes += other.wal_bytes
        self.messages += other.messages
        self.sequences |= other.sequences
        for relation, rows in other.rows.items():
            mine = self.rows.setdefault(relation, [0, 0, 0])
            for column in range(3):
                mine[column] += rows[column]


@dataclass(slots=True)
class _Ended:
    """A transaction that has ended, or was prepared."""

    kind: Kind
    end: TransactionEnd
    lsn: Lsn
    end_lsn: Lsn
    changes: _Changes
    gid: bytes = b""
    prepare_lsn: Lsn = 0


def _count(changes: _Changes, record: Record, body: RecordBody | None, major: int) -> None:
    """Add a record to what its transaction id has written. Raises WalFormatError if it cannot be read."""
    changes.wal_bytes += record.total_length
    changes.first_lsn = min(changes.first_lsn, record.start_lsn)
    if body is None:
        return
    operation = record.info & _HEAP_OPERATION_MASK
    if record.rmid == RM_HEAP and operation in _COLUMNS:
        column, count = _COLUMNS[operation], 1
        if operation == _DELETE and _byte(record, body, _DELETE_FLAGS_OFFSET, major) & _DELETE_IS_SUPER:
            column, count = 0, -1
    elif record.rmid == RM_HEAP2 and operation == _MULTI_INSERT:
        column = 0
        count = _byte(record, body, _NTUPLES_OFFSET, major) | _byte(record, body, _NTUPLES_OFFSET + 1, major) << 8
    else:
        if record.rmid == RM_SEQUENCE and body.relation is not None:
            changes.sequences.add(body.relation)
        elif record.rmid == RM_LOGICAL_MESSAGE:
            changes.messages += is_transactional(record, body, major)
        return
    if body.relation is None:
        raise malformed(record, major)
    if body.fork == 0:
        changes.rows.setdefault(body.relation, [0, 0, 0])[column] += count


def _byte(record: Record, body: RecordBody, offset: int, major: int) -> int:
    if offset >= len(body.main):
        raise malformed(record, major)
    return body.main[offset]


def _body(record: Record, major: int) -> RecordBody | None:
    return parse_body(record, major) if record.rmid in BODY_RMIDS else None


def _created_relation(record: Record, body: RecordBody, major: int) -> RelationLocator:
    if len(body.main) < _RELATION.size:
        raise malformed(record, major)
    return RelationLocator._make(_RELATION.unpack_from(body.main, 0))


def is_transactional(record: Record, body: RecordBody, major: int) -> bool:
    """Return whether a logical message belongs to its transaction. Raises WalFormatError."""
    return _byte(record, body, _TRANSACTIONAL_OFFSET, major) != 0


def next_xid(record: Record, body: RecordBody | None, major: int) -> int | None:
    """Return the next transaction id of a RUNNING_XACTS record; None of another one. Raises WalFormatError."""
    if body is None or record.rmid != RM_STANDBY or record.info & RMGR_INFO_MASK != _RUNNING_XACTS:
        return None
    if len(body.main) < _RUNNING_XACTS_BYTES:
        raise malformed(record, major)
    return int.from_bytes(body.main[_NEXT_XID_OFFSET : _NEXT_XID_OFFSET + 4], "little")


class TailReader:
    """Reads the tail.

    Args:
        from_lsn: the fork. A record that ends at or below it is not of the tail.
        major: of the PostgreSQL that wrote the WAL.
    """

    def __init__(self, from_lsn: Lsn, major: int) -> None:
        self._from_lsn = from_lsn
        self._major = major
        self._open: dict[int, _Changes] = {}
        self._parents: dict[int, int] = {}
        self._prepared: dict[int, _Ended] = {}  # and not ended
        self._ended: list[_Ended] = []
        self._aborted: list[_Ended] = []
        self._counts = dict.fromkeys(Kind, 0)
        self._messages = 0
        self._created: set[RelationLocator] = set()
        self._next_xid: int | None = None  # of the first RUNNING_XACTS
        self._finished = False

    def add(self, record: Record) -> None:
        """Read the next record.

        Raises:
            WalFormatError: it is not as PostgreSQL writes it.
        """
        in_tail = record.end_lsn > self._from_lsn
        body = _body(record, self._major)
        if self._next_xid is None:
            self._next_xid = next_xid(record, body, self._major)
        if record.xid:
            changes = self._open.get(record.xid)
            if changes is None:
                changes = self._open[record.xid] = _Changes(record.start_lsn)
            changes.in_tail = changes.in_tail or in_tail
            _count(changes, record, body, self._major)
        if body is None:
            return
        if body.top_xid:
            self._parents[record.xid] = body.top_xid
        if record.rmid == RM_XACT:
            self._add_transaction_record(record, body.main, in_tail)
        elif record.rmid == RM_LOGICAL_MESSAGE and in_tail:
            self._messages += not is_transactional(record, body, self._major)
        elif record.rmid == RM_STORAGE and in_tail and record.info & RMGR_INFO_MASK == _STORAGE_CREATE:
            self._created.add(_created_relation(record, body, self._major))

    def _add_transaction_record(self, record: Record, main: bytes, in_tail: bool) -> None:
        if record.info & transaction_end.OPERATION_MASK == transaction_end.ASSIGNMENT:
            top_xid, subxids = parse_assignment(record, main, self._major)
            self._parents |= dict.fromkeys(subxids, top_xid)
            return
        end = parse_transaction_end(record, main, self._major)
        if end is None:
            return
        prepared = self._prepared.pop(end.xid, None)
        changes = prepared.changes if prepared is not None else _Changes(record.start_lsn)
        for xid in (end.xid, *end.subxids):
            written = self._open.pop(xid, None)
            self._parents.pop(xid, None)
            if written is not None:
                changes.merge(written)
        if record.xid != end.xid:
            changes.wal_bytes += record.total_length  # COMMIT PREPARED has no transaction id of its own.
        if end.operation == transaction_end.PREPARE:
            lsn = record.start_lsn
            self._prepared[end.xid] = _Ended(Kind.PREPARE, end, lsn, record.end_lsn, changes, end.gid, lsn)
        elif in_tail:
            self._add_end(record, end, changes, prepared)

    def _add_end(self, record: Record, end: TransactionEnd, changes: _Changes, prepared: _Ended | None) -> None:
        kind = _KINDS[end.operation]
        if kind is Kind.ROLLBACK_PREPARED and prepared is not None and prepared.end_lsn > self._from_lsn:
            kind = Kind.ABORT  # The new primary has nothing of it.
        ended = _Ended(kind, end, record.start_lsn, record.end_lsn, changes, end.gid)
        if prepared is not None:
            ended.gid, ended.prepare_lsn = prepared.gid, prepared.lsn
        self._note(ended)

    def _note(self, ended: _Ended) -> None:
        self._counts[ended.kind] += 1
        kept = self._aborted if ended.kind is Kind.ABORT else self._ended
        if len(kept) < TRANSACTIONS_MAX:
            kept.append(ended)

    def finish(self) -> "LookBack | None":
        """End the tail. Return what needs earlier WAL; None if every transaction is complete."""
        self._finished = True
        for prepared in self._prepared.values():
            if prepared.end_lsn > self._from_lsn:
                self._note(prepared)
        self._ended.sort(key=lambda each: each.lsn)
        missing = [each for each in self._ended if not self._is_complete(each)]
        return LookBack(missing, self._major, self) if missing else None

    def _is_complete(self, ended: _Ended) -> bool:
        return self._next_xid is not None and not precedes(ended.end.xid, self._next_xid)

    def saw_next_xid(self, xid: int) -> None:
        """Note the next transaction id at a point before all WAL that was read until now."""
        self._next_xid = xid

    def tail(self) -> Tail:
        """Return what was found. `finish` was called."""
        assert self._finished
        return Tail(
            tuple(map(self._result, self._ended)),
            tuple(map(self._result, self._aborted)),
            dict(self._counts),
            sum(changes.in_tail for xid, changes in self._open.items() if xid not in self._parents),
            self._messages,
            frozenset(self._created),
        )

    def _result(self, ended: _Ended) -> DiscardedTransaction:
        changes = ended.changes
        return DiscardedTransaction(
            xid=ended.end.xid,
            kind=ended.kind,
            gid=ended.gid.decode(errors="replace"),
            time_us=ended.end.time_us,
            lsn=ended.lsn,
            end_lsn=ended.end_lsn,
            first_lsn=changes.first_lsn,
            prepare_lsn=ended.prepare_lsn,
            subtransactions=len(ended.end.subxids),
            changes_catalogs=ended.end.changes_catalogs,
            messages=changes.messages,
            sequences=tuple(sorted(changes.sequences)),
            wal_bytes=changes.wal_bytes,
            rows={relation: RowCounts(*rows) for relation, rows in sorted(changes.rows.items()) if any(rows)},
            dropped=tuple(sorted(ended.end.dropped)),
            is_complete=self._is_complete(ended),
        )


class LookBack:
    """Reads WAL before that of a `TailReader`, for transactions that began in it. `TailReader.finish` makes it.

    The pieces come in descending order: each ends where the one before began, and its records in ascending order.
    """

    def __init__(self, missing: list[_Ended], major: int, reader: TailReader) -> None:
        self._major = major
        self._reader = reader
        self._missing = missing
        self._by_xid = {xid: each for each in missing for xid in (each.end.xid, *each.end.subxids)}

    def add(self, records: Iterable[Record]) -> None:
        """Read the records of the next piece. Raises WalFormatError as `TailReader.add`."""
        first_next_xid: int | None = None
        for record in records:
            ended = self._by_xid.get(record.xid) if record.xid else None
            if ended is None and record.rmid != RM_STANDBY:
                continue
            body = _body(record, self._major)
            if first_next_xid is None:
                first_next_xid = next_xid(record, body, self._major)
            if ended is None:
                continue
            _count(ended.changes, record, body, self._major)
            if body is not None and record.rmid == RM_XACT:
                end = parse_transaction_end(record, body.main, self._major)
                if end is not None and end.operation == transaction_end.PREPARE:
                    ended.gid, ended.prepare_lsn = end.gid, record.start_lsn
        if first_next_xid is not None:
            self._reader.saw_next_xid(first_next_xid)

    @property
    def is_done(self) -> bool:
        """Whether every transaction is complete."""
        return all(map(self._reader._is_complete, self._missing))


_KINDS: Final = {
    transaction_end.COMMIT: Kind.COMMIT,
    transaction_end.COMMIT_PREPARED: Kind.COMMIT_PREPARED,
    transaction_end.ABORT: Kind.ABORT,
    transaction_end.ABORT_PREPARED: Kind.ROLLBACK_PREPARED,
}


def is_catalog(relation: RelationLocator) -> bool:
    """Return whether a relation is a system catalog, unless that was rewritten by VACUUM FULL."""
    return relation.relfilenode < _FIRST_NORMAL_OID


def relations_of(transactions: Iterable[DiscardedTransaction]) -> Iterator[RelationLocator]:
    """Yield the relations of transactions, some of them repeatedly."""
    for transaction in transactions:
        yield from transaction.rows
        yield from transaction.dropped
        yield from transaction.sequences
