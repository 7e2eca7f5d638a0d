"""Decides which part of a safekeeper's log is archived next.

    begin_lsn                  archived_lsn              end_lsn
        |-----------|-----------|- - - -|- - - - - -|- - - -|
        | segment   | segment   | being uploaded    | open  |

A segment is archived when it is complete and readable, under its name in the present log: that of the timeline of its
last byte. A timeline's history file is archived before its WAL. The open segment is archived as a partial file on
request.

The archive's content is remembered by file name. When the log is cut, archived_lsn goes back with it: files beyond the
new end no longer count, and a file of the abandoned timeline does not belong to this log, even if their bytes are the
same. If the log reaches such a file again, its content is compared.

Pure.
"""

from collections.abc import Collection

from safekeeper.acceptor.readable import ReadableLog
from safekeeper.archive.objects import (
    HISTORY_FOLDER,
    ArchivedFile,
    history_file,
    partial_file,
    segment_file,
    wal_folder,
)
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.base.timelines import tli_of_byte


class ArchivingPlan:
    """The known part of the archive's content for one log.

    Attributes:
        archived_lsn: all retained bytes of the log below it are archived.
    """

    def __init__(self, log: ReadableLog, history_tlis: Collection[int], segment_size: int) -> None:
        """Begin with an empty archive. `follow` describes the arguments."""
        self._segment_size = segment_size
        self._archived: set[ArchivedFile] = set()  # Whole segments and history files.
        self._partials: dict[tuple[int, Lsn], Lsn] = {}  # By timeline and start of the segment: the longest one's end.
        self._log = log
        self._history_tlis: list[int] = []
        self._whole_lsn: Lsn = 0  # All segments of the log from its beginning up to here are in the archive.
        self.archived_lsn: Lsn = 0
        self.follow(log, history_tlis)

    def follow(self, log: ReadableLog, history_tlis: Collection[int]) -> None:
        """Set the present log.

        Args:
            log: the readable log.
            history_tlis: the timelines whose history files are available.
        """
        before, self._log = self._log, log
        wanted = (*(tli for tli, _ in log.lineage), log.tli)
        self._history_tlis = [tli for tli in wanted if tli in history_tlis]
        went_back = log.end_lsn < before.end_lsn
        if went_back or (log.tli, log.lineage) != (before.tli, before.lineage):
            self._whole_lsn = 0
        if went_back or log.begin_lsn > before.begin_lsn:
            lsns = range(log.begin_lsn + 1, log.end_lsn + 1)
            self._archived = {f for f in self._archived if f.kind == "history" or f.end_lsn in lsns}
            self._partials = {key: end_lsn for key, end_lsn in self._partials.items() if end_lsn in lsns}
        self._advance()

    def folders(self) -> list[str]:
        """Return the archive's folders that contain files of this log."""
        log, size = self._log, self._segment_size
        starts = range(log.begin_lsn, log.end_lsn, size) if log.begin_lsn else ()
        return [HISTORY_FOLDER, *sorted({wal_folder(self._segment_at(lsn).tli, lsn, size) for lsn in starts})]

    def found(self, file: ArchivedFile) -> None:
        """Record that the archive has `file`, with a receipt."""
        if file.kind != "history" and file.end_lsn <= self._log.begin_lsn:
            return  # It is no longer retained here.
        if file.kind == "partial":
            key = (file.tli, file.begin_lsn)
            self._partials[key] = max(file.end_lsn, self._partials.get(key, 0))
        else:
            self._archived.add(file)
        self._advance()

    def next_file(self, under_way: Collection[ArchivedFile], *, with_partial: bool) -> ArchivedFile | None:
        """Return the next file to archive, None if no upload can start now.

        Args:
            under_way: the files that are being uploaded.
            with_partial: include the open segment.
        """
        histories = [history_file(tli) for tli in self._history_tlis]
        missing = [file for file in histories if file not in self._archived]
        if missing:
            # WAL of that timeline waits for it.
            return next((file for file in missing if file not in under_way), None)
        log, size = self._log, self._segment_size
        # A segment and its partial are uploaded one after the other: the segment removes its partials.
        busy = {file.begin_lsn for file in under_way}
        begin_lsn = max(self._whole_lsn, log.begin_lsn)
        while begin_lsn + size <= log.end_lsn:
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
        whole = self._segment_at(begin_lsn)
        has_lsn = self._partials.get((whole.tli, begin_lsn), 0)
        if has_lsn >= log.end_lsn or whole in self._archived:
            return None
        return partial_file(whole.tli, begin_lsn, log.end_lsn, size)

    def _advance(self) -> None:
        log, size = self._log, self._segment_size
        self._whole_lsn = max(self._whole_lsn, log.begin_lsn)
        while self._whole_lsn < log.end_lsn and self._segment_at(self._whole_lsn) in self._archived:
            self._whole_lsn += size
        partial_lsn = 0
        if self._whole_lsn < log.end_lsn:
            partial_lsn = self._partials.get((self._segment_at(self._whole_lsn).tli, self._whole_lsn), 0)
        self.archived_lsn = min(max(self._whole_lsn, partial_lsn), log.end_lsn)

    def _segment_at(self, begin_lsn: Lsn) -> ArchivedFile:
        """Return the segment under its name in this log: that of the timeline of its last readable byte."""
        last_lsn = min(begin_lsn + self._segment_size, self._log.end_lsn) - 1
        return segment_file(tli_of_byte(self._log.tli, self._log.lineage, last_lsn), begin_lsn, self._segment_size)
