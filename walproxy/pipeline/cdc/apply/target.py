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

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint, compare, followed_change
from walproxy.pipeline.cdc.apply.following import FollowingTable, Position
from walproxy.pipeline.cdc.apply.held_changes import HeldChanges, KeptRows, Layout, NetRows
from walproxy.pipeline.cdc.apply.history import HistoryRows
from walproxy.pipeline.cdc.apply.job_file import KnownTable
from walproxy.pipeline.cdc.apply.modes import own_columns, require_other_names
from walproxy.pipeline.cdc.apply.row_arrays import RowArrays
from walproxy.pipeline.cdc.apply.source_columns import fields_of, text_arrays
from walproxy.pipeline.cdc.changes import Change, ChangedRows
from walproxy.pipeline.cdc.column_types import holds
from walproxy.pipeline.cdc.messages import Begin, Relation
from walproxy.pipeline.cdc.published_tables import PublishedTable
from walproxy.pipeline.choices import FollowingMode

_log = logging.getLogger(__name__)

_FULL_IDENTITY: Final = "f"
_TRUNCATES_MAX: Final = 1000

_XIDS: Final = 1 << 32

_HELD: Final[Mapping[FollowingMode, type[HeldChanges]]] = {
    "mirror": NetRows,
    "append": HistoryRows,
    "soft-delete": KeptRows,
}

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


class TargetTable:
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
        type_of: TypeOf,
        position: Position,
        mode: FollowingMode = "mirror",
    ) -> None:
        self.table = following.table
        self.position = position
        self.known = known
        self.copy_reason: str | None = None
        self._awaited: frozenset[int] = frozenset()  # transactions that must turn out to have truncated the table
        self._seen: Fingerprint | None = None  # accepted once they have
        self._truncated_by: set[int] = set()
        self._new_partitions: dict[int, _NewPartition] = {}
        self._labels: Mapping[str, Set[str]] = {}
        self.following = following
        self._type_of = type_of
        self._mode = mode
        self._schema = self._columns_of_source()
        self._relation: Relation | None = None
        self._begin_anew()

    @property
    def source_oid(self) -> int:
        """OID of the source table."""
        return self.known.fingerprint.oid

    def look(self, now: PublishedTable, source: Catalogs) -> None:
        """Compare the source's catalogs with what is known: follow what can be followed, else set `copy_reason`.

        Raises:
            SourceUnavailable, StorageFailed, StorageFull.
        """
        if self.copy_reason is not None:
            return
        verdict = compare(self.known.fingerprint, now.fingerprint, now.evidence)
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
            gone = self.known.fingerprint.columns.keys() - self._seen.columns.keys()
            dropped = sorted({*self.known.dropped, *gone})
            types = {field.name: str(field.type) for field in self._schema}
            change = followed_change(self.known.fingerprint, self._seen, types)
            if change is not None:
                # The job's file has the new definition later: a crash loses no line, and may repeat one.
                _log.info("%s follows a change of its definition: %s", self.table, change)
            self.known = msgspec.structs.replace(self.known, fingerprint=self._seen, dropped=dropped)
            self._seen = None
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
        self._held.add(change)

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
            self._held.add_rows(rows)

    def flush(self, position: Position) -> bool:
        """Put what is held into the table, whose position it becomes; False if there is nothing.

        Raises:
            RemoteProtocolError: a change cannot be, or a value that was not sent is not in the table either.
            BadValue: a value cannot be one of its column's type.
            SourceRefused: a label of an enum was renamed since.
            TableMoved: another job writes to the table.
            StorageFailed, StorageFull.
        """
        if not self._held or self.copy_reason is not None:
            return False
        arrays = RowArrays(self.following, self._schema, self.known, self._labels, self.position)
        self._held.put_into(arrays, position)
        self.position = position
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        names = [column.name for column in self._relation.columns] if self._relation is not None else []
        key = tuple(names.index(name) for name in self.known.key) if names else ()
        self._held = _HELD[self._mode](Layout(names, key))

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
            return None if self.known.key or self.known.is_full else "its replica identity changed"
        return None if key == set(self.known.key) else "its key changed"

    def _partition_problem(self, transaction: Begin, partition: Relation) -> str | None:
        """Return why rows of a partition cannot be followed: what the catalogs no longer show."""
        name = f"{partition.schema}.{partition.name}"
        seen = self.known.fingerprint if self._seen is None else self._seen
        if partition.oid not in seen.partitions and partition.oid not in self.known.fingerprint.partitions:
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
            known = self.known.fingerprint.columns.get(column.name)
            is_last_known = known is not None
            if known is not None:
                if known.number <= last:
                    return "its columns were renamed for a while"
                last = known.number
            if column.name not in self._text:
                sent = self.following.storable(self._type_of(column.type_oid, column.type_modifier))
                if not self._takes(self._schema.field(column.name).type, sent):
                    return f"its column {column.name} was of another type"
        sent_names = {column.name for column in relation.columns}
        missing = [known.number for name, known in self.known.fingerprint.columns.items() if name not in sent_names]
        if missing and (min(missing) < last or not is_last_known):
            return "its columns were renamed for a while"
        return None

    def _takes(self, held: pa.DataType, sent: pa.DataType) -> bool:
        """Return whether a column may get values of a type. Only where types are united may it be a smaller integer."""
        return held == sent or (holds(held, sent) and (self._mode != "mirror" or pa.types.is_decimal(sent)))

    def _columns_of_source(self) -> pa.Schema:
        """Return the columns of the table, without those that the mode adds."""
        return pa.schema(list(self.following.schema())[len(own_columns(self._mode)) :])

    @property
    def _text(self) -> list[str]:
        return [*self.known.as_text, *self.known.bad_text]

    def _follow_columns(self, now: PublishedTable, added: Sequence[str], changed: Sequence[str]) -> str | None:
        """Add and widen columns; return why the table must be copied instead, if it must."""
        if self.known.lists and (texts := text_arrays(now).intersection(added)):
            self.known = msgspec.structs.replace(self.known, bad_text=sorted({*self.known.bad_text, *texts}))
        listed = fields_of(now, type(self.following), self._text, lists=self.known.lists)
        fields = {field.name: field for field in listed}
        require_other_names(self.table, added, self._mode)
        for name in added:
            if name in self.known.dropped:
                return f"a column {name} was dropped, and another one of that name was added"
        for name in changed:
            if holds(self._schema.field(name).type, fields[name].type):
                continue
            if not self.following.widen(name, fields[name].type):
                return f"its column {name} is of another type"
        # A column that was added here before a crash, and not noted, is there already, and null.
        new = [fields[name] for name in added if name not in self._schema.names]
        if new:
            self.following.add_columns(new)
        if new or changed:
            self._schema = self._columns_of_source()
        return None
