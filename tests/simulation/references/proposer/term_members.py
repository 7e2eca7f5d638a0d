"""What the leader of a term knows of each safekeeper (docs/design/protocol.md, steps 5 to 7)."""

from dataclasses import dataclass
from math import inf

from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import ArchiveAssignment, PullWal


@dataclass
class Member:
    """What a safekeeper was sent in this term, and has answered.

    Attributes:
        folder: its data folder.
        is_connected: whether `Elected` was sent on a connection that is open.
        follows: whether it has answered the last `Elected` (5.8).
        has_adopted: whether it has adopted the term, on this connection or before (7.7).
        sent_lsn, write_lsn, flush_lsn: see 7.5, 7.7.
        last_begin_lsn: where the last append with WAL begins.
        overtaken_lsn: where the read began that was under way for it when WAL of an ended pull came before (6.9).
        adopted_end_lsn: the end of its log when it adopted the term.
        wal_begin_lsn: where its WAL begins, as reported on this connection; 0 before.
        skips_to_lsn: the base_lsn of the `Elected` by which it skips WAL, 0 if it does not.
        sent_commit_lsn, sent_sequence: of the last message to it.
        answered_at, answered_sequence: of its last answer.
        generation, sent_generation: the membership that it has on disk, and that of the last `Elected`.
        has_readers: as it has answered last.
        refuses: it has refused WAL, or `Elected`, and no append has succeeded since.
        is_doubted: its connection was closed with WAL in flight, and no append has succeeded since.
        pull: the last `PullWal` that it has not answered.
        assignment: the last `ArchiveAssignment` to it on this connection.
    """

    folder: Identity
    is_connected: bool = True
    follows: bool = False
    has_adopted: bool = False
    sent_lsn: int = 0
    write_lsn: int = 0
    flush_lsn: int = 0
    last_begin_lsn: int = 0
    overtaken_lsn: int = -1
    adopted_end_lsn: int = 0
    wal_begin_lsn: int = 0
    skips_to_lsn: int = 0
    sent_commit_lsn: int = 0
    sent_sequence: int = 0
    answered_at: float = -inf
    answered_sequence: int = -1
    generation: int = 0
    sent_generation: int = 0
    has_readers: bool = False
    refuses: bool = False
    is_doubted: bool = False
    pull: PullWal | None = None
    assignment: ArchiveAssignment | None = None
