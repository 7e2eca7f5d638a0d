"""The messages of PostgreSQL's output plugin `pgoutput`, as values. pgoutput.py decodes them. Pure."""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn


class Unchanged(Enum):
    """A value that is stored out of line and that an update did not change: the server does not send it."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class Binary(bytes):
    """A value in its type's binary form. The server sends it only to those who ask."""


Value: TypeAlias = bytes | Unchanged | None
"""The text of a value, null, or UNCHANGED."""
Tuple: TypeAlias = tuple[Value, ...]
"""The values of a row. No list: the garbage collector lets go of tuples of bytes, and many of them may be held."""


class Begin(NamedTuple):
    """Everything up to Commit belongs to this transaction. `commit_lsn` is where its commit record begins."""

    commit_lsn: Lsn
    commit_time_us: int
    xid: int


class Commit(NamedTuple):
    """It is committed: the record begins at `commit_lsn` and ends at `end_lsn`."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int


class Origin(NamedTuple):
    """The transaction came by replication from `name`, where it was committed at `commit_lsn`."""

    commit_lsn: Lsn
    name: str


class Column(NamedTuple):
    """A column of a relation. `type_modifier` is -1 for none, as in pg_attribute.atttypmod."""

    name: str
    is_key: bool
    type_oid: int
    type_modifier: int


class Relation(NamedTuple):
    """The columns of a table in the changes that follow.

    `replica_identity` is d(efault), n(othing), f(ull) or i(ndex); with f every column is marked as key.
    """

    xid: int
    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]


class Type(NamedTuple):
    """The name of a type that a later relation uses."""

    xid: int
    oid: int
    schema: str
    name: str


class Insert(NamedTuple):
    """`xid` is 0 outside a piece, here and below."""

    xid: int
    relation: int
    after: Tuple


class Update(NamedTuple):
    """`key` holds the old values of the key's columns if they changed (null elsewhere), `before` the whole old row."""

    xid: int
    relation: int
    key: Tuple | None
    before: Tuple | None
    after: Tuple


class Delete(NamedTuple):
    """One of `key` and `before` is there."""

    xid: int
    relation: int
    key: Tuple | None
    before: Tuple | None


class NotUnderstood(RemoteProtocolError):
    """A message of the plugin is not understood. It is not one table's problem."""


class Rows(NamedTuple):
    """Inserts, updates and deletes, outside a piece, as they came: of whole transactions, or of one that is open.

    Attributes:
        items: LSN and bytes of each, not decoded.
        transactions: those that they belong to, in order.
        starts: of each transaction, the number of its first item.
        end_lsn: where the last commit record ends; None of a transaction that is open.
    """

    items: Sequence[tuple[Lsn, bytes]]
    transactions: Sequence["Begin"]
    starts: Sequence[int]
    end_lsn: Lsn | None


class Truncate(NamedTuple):
    """All rows of these relations are gone."""

    xid: int
    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class LogicalMessage(NamedTuple):
    """A message that was written with pg_logical_emit_message."""

    xid: int
    is_transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


class StreamStart(NamedTuple):
    """A piece of a transaction that is in progress; `is_first` is its first one."""

    xid: int
    is_first: bool


class StreamStop(NamedTuple):
    """The piece ends."""


class StreamCommit(NamedTuple):
    """All pieces of `xid` are committed."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int


class StreamAbort(NamedTuple):
    """`subxid` is rolled back; it is `xid` itself if all is. LSN and time are 0 where the server does not send them."""

    xid: int
    subxid: int
    abort_lsn: Lsn
    abort_time_us: int


class BeginPrepare(NamedTuple):
    """Everything up to Prepare belongs to this transaction, which is prepared under the name `gid`."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time_us: int
    xid: int
    gid: str


class Prepare(NamedTuple):
    """It is prepared."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time_us: int
    xid: int
    gid: str


class StreamPrepare(NamedTuple):
    """All pieces of `xid` are prepared."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time_us: int
    xid: int
    gid: str


class CommitPrepared(NamedTuple):
    """The prepared transaction is committed."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int
    xid: int
    gid: str


class RollbackPrepared(NamedTuple):
    """The prepared transaction is rolled back."""

    prepare_end_lsn: Lsn
    end_lsn: Lsn
    prepare_time_us: int
    rollback_time_us: int
    xid: int
    gid: str


Message: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | StreamPrepare
    | CommitPrepared
    | RollbackPrepared
)
