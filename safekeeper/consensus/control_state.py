"""The durable state of an acceptor.

It is one small value, replaced as a whole: the control file contains the old or the new one, never a mixture
(safekeeper/storage/control_file.py). `commit_lsn`, `truncate_lsn`, `archived_lsn` and `folders` are written along
with the others and otherwise lazily. An older position only costs work; with older `folders` an older copy of another
member's data folder may not be noticed (S8e).

The contents of PostgreSQL's timeline history files are part of it, so that adopting a history and removing the
timelines that it cuts is one atomic write (docs/design/adr/0002-storage-footers.md).
"""

from typing import NamedTuple

import msgspec

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.term_history import TermHistory

FORMAT_VERSION = 4
# A frame has 64 bits for a term.
TERM_MAX = (1 << 64) - 1


class LeaderId(NamedTuple):
    """The leader of a term, or a candidate: the term and the random id of one proposer *process* (S3).

    Never compare two of them as tuples: `outranks` compares terms only.
    """

    term: int
    proposer_id: str

    def __str__(self) -> str:
        return f"({self.term}, {self.proposer_id[:8]})" if self.term else "(none)"


NOBODY = LeaderId(0, "")


class TliHistory(msgspec.Struct, frozen=True, array_like=True):
    """One of PostgreSQL's timeline history files: `content` is the file `{tli:08X}.history`, byte for byte."""

    tli: int
    content: bytes


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """The durable state of an acceptor.

    Attributes:
        safekeeper_id: the id that the operator gave; never changes in a data folder.
        incarnation: random id of the data folder, 32 hexadecimal digits (S8).
        cluster_id: the cluster whose WAL this is; empty before the bootstrap.
        system_id: PostgreSQL's system identifier, 0 before the bootstrap.
        segment_size: bytes of a WAL segment, 0 before the bootstrap.
        server_version: the primary's version as libpq reports it, e.g. 150018.
        membership: the members, None before the bootstrap.
        promised: the proposer that this acceptor follows; it votes for no other candidate of the same or a lower term
            (S3).
        history: the term history of its WAL.
        forgotten_term: the highest term that was removed from `history`, 0 if none was.
        tli_histories: PostgreSQL's timeline history files of the timelines in `history`.
        truncate_to: set while an adopted history's cut is not yet finished (S5).
        base_lsn: set while the log's new beginning is not yet on disk (S6): all WAL is removed, the log begins here.
        wal_begin_lsn: the first retained byte, 0 if none: it must exist (S8), and WAL below it may be removed.
        set_aside: the old WAL is being moved away by a rebootstrap, or by the undo of one.
        set_aside_as: the name to move it to.
        replaced: the state before a rebootstrap, which an undo restores; None if there was none.
        replaced_wal: the name to which the WAL of `replaced` was moved, empty if there is none.
        restore_from: the WAL with this name is being moved back by an undo.
        commit_lsn: below it every byte is on a quorum; may lag.
        truncate_lsn: below it every byte is on every member; may lag.
        archived_lsn: below it every byte is in the archive `archive_id`; may lag.
        archive_id: random id of the archive that a leader last named, empty before.
        starts: how often the safekeeper was started on this data folder.
        folders: what is known of the other members' data folders (S8e); may lag.
    """

    safekeeper_id: int
    incarnation: str
    cluster_id: str = ""
    system_id: int = 0
    segment_size: int = 0
    server_version: int = 0
    membership: Membership | None = None
    promised: LeaderId = NOBODY
    history: TermHistory = ()
    forgotten_term: int = 0
    tli_histories: tuple[TliHistory, ...] = ()
    truncate_to: Lsn | None = None
    base_lsn: Lsn | None = None
    wal_begin_lsn: Lsn = 0
    set_aside: bool = False
    set_aside_as: str = ""
    replaced: "ControlState | None" = None
    replaced_wal: str = ""
    restore_from: str = ""
    commit_lsn: Lsn = 0
    truncate_lsn: Lsn = 0
    archived_lsn: Lsn = 0
    archive_id: str = ""
    starts: int = 0
    folders: tuple[FolderState, ...] = ()

    @property
    def is_log_pending(self) -> bool:
        """Whether the log of this state is not in place yet: then the files found do not count."""
        return self.set_aside or bool(self.restore_from) or self.base_lsn is not None
