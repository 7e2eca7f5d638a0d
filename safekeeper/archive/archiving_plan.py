"""What the archive lacks of a safekeeper's log, and what is to be archived next.

    begin_lsn                  archived_lsn              end_lsn
        |-----------|-----------|- - - -|- - - - - -|- - - -|
        | segment   | segment   | being uploaded    | open  |

A segment is archived when it is complete and readable, under the name that it has in the present log: that of the
timeline of its last byte. Before anything of a timeline goes its history file. The open segment's bytes are archived as
a partial file, whenever that is asked for.

What is in the archive is remembered by name. So when the log goes back and on along another timeline, it is seen which
of its files are there, and archived_lsn goes back with it: a file of the timeline that was left is none of this log,
even where their bytes are the same.

Pure.
"""

from collections.abc import Collection

from safekeeper.archive.objects import (
    HISTORY_FOLDER,
    ArchivedFile,
    history_file,
    partial_file,
    segment_file,
    wal_folder,
)
from safekeeper.consensus.learning import ReadableLog
from safekeeper.lsn import Lsn, segment_start
from safekeeper.timelines import tli_of_byte


class ArchivingPlan:
    """What the archive has of one log, as far as is known.

    Attributes:
        archived_lsn: all bytes of the log that are kept here and lie below are in the archive.
    """

    def __init__(self, log: ReadableLog, history_tlis: Collection[int], segment_size: int) -> None:
        """Begin with an archive that has nothing. `follow` says what the arguments are."""
        self._segment_size = segment_size
        self._archived: set[ArchivedFile] = set()  # Whole segments and history files.
        self._partials: dict[tuple[int, Lsn], Lsn] = {}  # By timeline and start of the segment: the longest one's end.
        self._log = log
        self._history_tlis: list[int] = []
        self._whole_lsn: Lsn = 0  # All segments of the log from its beginning up to here are in the archive.
        self.archived_lsn: Lsn = 0
        self.follow(log, history_tlis)

    def follow(self, log: ReadableLog, history_tlis: Collection[int]) -> None:
        """The log is now this one.

        Args:
            log: what can be read of it.
            history_tlis: the timelines whose history files are at hand.
        """
        before, self._log = self._log, log
        wanted = (*(tli for tli, _ in log.lineage), log.tli)
        self._history_tlis = [tli for tli in wanted if tli in history_tlis]
        if log.end_lsn < before.end_lsn or (log.tli, log.lineage) != (before.tli, before.lineage):
            self._whole_lsn = 0
        if log.begin_lsn > before.begin_lsn:
            self._archived = {f for f in self._archived if f.kind == "history" or f.end_lsn > log.begin_lsn}
            self._partials = {key: end_lsn for key, end_lsn in self._partials.items() if end_lsn > log.begin_lsn}
        self._advance()

    def folders(self) -> list[str]:
        """Return the folders of the archive that files of this log lie in."""
        log, size = self._log, self._segment_size
        starts = range(log.begin_lsn, log.end_lsn, size) if log.begin_lsn else ()
        return [HISTORY_FOLDER, *sorted({wal_folder(self._segment_at(lsn).tli, lsn, size) for lsn in starts})]

    def found(self, file: ArchivedFile) -> None:
        """The archive has `file`, with a receipt."""
        if file.kind == "partial":
            key = (file.tli, file.begin_lsn)
            self._partials[key] = max(file.end_lsn, self._partials.get(key, 0))
        else:
            self._archived.add(file)
        self._advance()

    def is_of_this_log(self, file: ArchivedFile) -> bool:
        """Whether the file belongs to the log as it is now."""
        if file.kind == "history":
            return file.tli in self._history_tlis
        log = self._log
        return log.begin_lsn <= file.begin_lsn and file.end_lsn <= log.end_lsn and self._tli_of(file) == file.tli

    def next_file(self, under_way: Collection[ArchivedFile], *, with_partial: bool) -> ArchivedFile | None:
        """Return what is to be archived next, None if there is nothing to begin with now.

        Args:
            under_way: what is being uploaded.
            with_partial: the open segment is wanted, too.
        """
        histories = [history_file(tli) for tli in self._history_tlis]
        missing = [file for file in histories if file not in self._archived]
        if missing:
            # What follows on that timeline has to wait for it.
            return next((file for file in missing if file not in under_way), None)
        log, size = self._log, self._segment_size
        # A segment and a partial of it go one after the other: the segment removes its partials.
        busy = {file.begin_lsn for file in under_way}
        begin_lsn = max(self._whole_lsn, log.begin_lsn)
        while log.begin_lsn and begin_lsn + size <= log.end_lsn:
            file = self._segment_at(begin_lsn)
            if file not in self._archived and begin_lsn not in busy:
                return file
            begin_lsn += size
        return self._next_partial(under_way) if with_partial else None

    def _next_partial(self, under_way: Collection[ArchivedFile]) -> ArchivedFile | None:
        log, size = self._log, self._segment_size
        begin_lsn = segment_start(log.end_lsn, size)
        if begin_lsn == log.end_lsn or any(file.kind == "partial" for file in under_way):
            return None
        file = partial_file(self._last_tli(), begin_lsn, log.end_lsn, size)
        has_lsn = self._partials.get((file.tli, begin_lsn), 0)
        return file if has_lsn < log.end_lsn and self._segment_at(begin_lsn) not in self._archived else None

    def _advance(self) -> None:
        log, size = self._log, self._segment_size
        if not log.begin_lsn or not log.end_lsn:
            self.archived_lsn = 0
            return
        self._whole_lsn = max(self._whole_lsn, log.begin_lsn)
        while self._whole_lsn < log.end_lsn and self._segment_at(self._whole_lsn) in self._archived:
            self._whole_lsn += size
        partial_lsn = 0
        if log.end_lsn - self._whole_lsn < size:
            partial_lsn = self._partials.get((self._last_tli(), self._whole_lsn), 0)
        # A whole segment of the parent may be there that reaches beyond a fork.
        self.archived_lsn = min(max(self._whole_lsn, partial_lsn), log.end_lsn)

    def _segment_at(self, begin_lsn: Lsn) -> ArchivedFile:
        last_lsn = min(begin_lsn + self._segment_size, self._log.end_lsn) - 1
        return segment_file(tli_of_byte(self._log.tli, self._log.lineage, last_lsn), begin_lsn, self._segment_size)

    def _last_tli(self) -> int:
        return tli_of_byte(self._log.tli, self._log.lineage, self._log.end_lsn - 1)

    def _tli_of(self, file: ArchivedFile) -> int:
        return tli_of_byte(self._log.tli, self._log.lineage, file.end_lsn - 1)
