"""What the leader of a term knows of each safekeeper, and of the archive (docs/design/protocol.md, steps 5 to 7, 9).

Part of the reference of the proposer (proposer.py).
"""

from dataclasses import dataclass, field
from math import inf

from safekeeper.consensus.membership import Identity
from safekeeper.consensus.messages import ArchiveAssignment, ArchiveReport, FolderStates, PullWal


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
        told_commit_lsn, told_sequence: of the last message to it.
        told_at, waiting_since: when anything was sent to it last; since when an answer is awaited, None if none is.
        waiting_before: the same before this tick.
        answered_at, answered_sequence: of its last answer.
        generation, told_generation: the membership that it has on disk, and that of the last `Elected`.
        has_readers: as it has answered last.
        refuses: it has refused WAL, or `Elected`, and no append has succeeded since.
        is_doubted: its connection was closed with WAL in flight, and no append has succeeded since.
        pull: the last `PullWal` that it has not answered.
        pull_moved_at: when that was sent, or the member has advanced since.
        pull_problem: whether it was ended because it did not advance.
        pull_allowed_at, fetch_allowed_at: when the next one may begin; that of fetches is an upper limit.
        told_folders: 11.3, on this connection.
        told_archive: the last `ArchiveAssignment` on this connection.
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
    told_commit_lsn: int = 0
    told_sequence: int = 0
    told_at: float = -inf
    waiting_since: float | None = None
    waiting_before: float | None = None
    answered_at: float = -inf
    answered_sequence: int = -1
    generation: int = 0
    told_generation: int = 0
    has_readers: bool = False
    refuses: bool = False
    is_doubted: bool = False
    pull: PullWal | None = None
    pull_moved_at: float = 0.0
    pull_problem: bool = False
    pull_allowed_at: float = -inf
    fetch_allowed_at: float = -inf
    told_folders: FolderStates | None = None
    told_archive: ArchiveAssignment | None = None

    def is_fed(self, window_begin_lsn: int) -> bool:
        """Whether it follows, accepts WAL and is sent that of the window."""
        takes = self.follows and not (self.refuses or self.is_doubted)
        return takes and self.pull is None and self.sent_lsn >= window_begin_lsn


@dataclass
class Archive:
    """9.2.

    Attributes:
        archiver, archived_lsn, archive_id: the archiver, and the progress that it has reported.
        reports: the last ones of the safekeepers that are connected.
        heard: the last ones of all, also of those that are not.
        gone_at, problem_since, moved_at: when each one was disconnected last, since when it reports a problem, and when
            it has reported another archived_lsn or was named.
        is_hidden: whether another archiver may have been named while nobody followed, who would have been told.
        was_named: whether another archiver was named in this tick.
        rests_until: until when one that was replaced is not named again, if there is another one.
    """

    archiver: int = 0
    archived_lsn: int = 0
    archive_id: str = ""
    reports: dict[int, ArchiveReport] = field(default_factory=dict)
    heard: dict[int, ArchiveReport] = field(default_factory=dict)
    gone_at: dict[int, float] = field(default_factory=dict)
    problem_since: dict[int, float] = field(default_factory=dict)
    moved_at: dict[int, float] = field(default_factory=dict)
    is_hidden: bool = False
    was_named: bool = False
    rests_until: dict[int, float] = field(default_factory=dict)
