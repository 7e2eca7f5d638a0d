"""The log of one safekeeper: append, flush, cut and read, over many segment files.

    begin_lsn          flush_lsn        write_lsn
        |------------------|----------------|
        | durable          | in the OS      |

Appends are written to the operating system at once, on the loop's thread. A flush is created as a snapshot on the
loop's thread (`start_flush`), executed in the disk's thread (`Flush.run`) while appends continue, and taken over on the
loop's thread (`finish_flush`): flush_lsn cannot advance before the fdatasync has returned (S2). One flush runs at a
time, segment by segment, slot and fdatasync, so that a slot is written only after the fdatasync of the one before it,
and the last slot of a segment is durable before the first one of the next (detail b). `segment_file` describes the
footers, `recovery` how they are read after a restart.

Files are prepared completely before bytes are appended to them: half a segment ahead and in the disk's thread if the
node calls `prepare_ahead`, otherwise when an append needs them. If there is no disk space for that, StorageFull is
raised and nothing has been written. The same holds in every call for a lack of file descriptors, ResourceShortage: each
change opens its files before its first step. After a failed write or fdatasync of live WAL (S12) every call raises
StorageFailed.

Cuts and resets are decided by the control file (S5, S6), which records the decision before and clears it after. So
`truncate` and `reset` may be interrupted anywhere, and are called again after the restart with the same arguments.
"""

from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from safekeeper.base.errors import LocalProtocolError, ResourceShortage, StorageFailed, StorageFull
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.storage.disk_work import Flush, Preparation, Removal
from safekeeper.storage.filesystem import FileSystem, sync_names
from safekeeper.storage.recovery import NamedSegment, drop_segments, recover
from safekeeper.storage.segment_file import (
    SegmentFile,
    create_segment,
    open_segment,
)

DIGEST_PAGE_BYTES = 8192
_DIGEST_READ_BYTES = 1 << 20
_OPEN_FOR_READING_MAX = 8


class WalStorage:
    """The WAL in one folder. Loop thread only, except `Flush.run` and `Preparation.run`. Created by `open`.

    begin_lsn, write_lsn and flush_lsn are 0 while there is no WAL at all (`is_empty`).
    """

    def __init__(self, fs: FileSystem, directory: Path, segment_size: int, tli: int) -> None:
        self._fs = fs
        self._directory = directory
        self._segment_size = segment_size
        self._failure: str | None = None
        self._tli = tli  # Of the segments to be prepared.
        self._tlis: dict[Lsn, int] = {}  # Start of each segment of the log: the TLI in its name.
        self._writing: list[SegmentFile] = []  # Ascending; all that are not completely flushed, and the tail.
        self._prepared: list[SegmentFile] = []  # Ascending; complete, empty, directly after the tail.
        self._reading: dict[Lsn, SegmentFile] = {}  # By start: older segments, kept open for further reads.
        self._flush: Flush | None = None
        self._preparation: Preparation | None = None
        self._removals: list[Removal] = []  # Running, or not started yet.
        self.begin_lsn: Lsn = 0
        self.write_lsn: Lsn = 0
        self.flush_lsn: Lsn = 0

    @classmethod
    def open(cls, fs: FileSystem, directory: Path, *, segment_size: int, tli: int, begin_lsn: Lsn = 0) -> "WalStorage":
        """Open the WAL in `directory`, which is created if necessary, after a shutdown or a crash.

        Args:
            directory: contains segment files; other files in it do not end in `.new`.
            segment_size: bytes, a power of two; must not change.
            tli: the timeline in the names of segments that are prepared from now on.
            begin_lsn: WAL below it was being removed.

        Raises:
            DiskLost, StorageFailed, StorageFull: as `recovery.recover`.
        """
        storage = cls(fs, directory, segment_size, tli)
        log = recover(fs, directory, segment_size, begin_lsn)
        if log.tail is not None:
            storage._start_at(log.tail, log.segments)
        return storage

    @property
    def is_empty(self) -> bool:
        """Whether there is no WAL, not even an empty segment."""
        return not self._tlis

    @property
    def tli(self) -> int:
        """The TLI in the names of new segments."""
        return self._tli

    def append(self, begin_lsn: Lsn, data: bytes | memoryview) -> None:
        """Write `data` at `begin_lsn` to the operating system. It is durable after a flush.

        Raises:
            LocalProtocolError: `begin_lsn` is not write_lsn (S6), or there is no WAL to append to: reset first.
            StorageFull: no disk space for the segments needed. Nothing was written.
            StorageFailed: a write failed, now or before (S12).
        """
        if self._failure is not None or begin_lsn != self.write_lsn or not self._writing:
            raise self._refusal(f"an append at {format_lsn(begin_lsn)}")
        # The CRC function accepts read-only bytes only.
        if type(data) is not bytes:
            data = bytes(data)
        tail = self._writing[-1]
        if begin_lsn + len(data) > tail.end_lsn:
            self._append_across(data)
            return
        self._write(tail, data)

    def start_flush(self) -> Flush | None:
        """Return a snapshot of what is not durable, to be `run` in another thread and passed to `finish_flush`.

        None if everything is durable, or while a flush is under way: then call again when it is finished.
        """
        self._require_working()
        if self._flush is not None or self.flush_lsn == self.write_lsn:
            return None
        slots = []
        for segment in self._writing:
            slot = segment.take_slot()
            if slot is not None:
                slots.append((segment, slot))
        self._flush = Flush(slots, self.write_lsn, self._fail)
        return self._flush

    def finish_flush(self, flush: Flush) -> None:
        """Record what `flush` made durable.

        Raises:
            LocalProtocolError: its `run` has not returned, or it is not the flush under way.
        """
        self._require_working()
        if flush is not self._flush or not flush.done:
            raise LocalProtocolError(f"the flush to {format_lsn(flush.end_lsn)} has not been carried out")
        self._flush = None
        self.flush_lsn = flush.end_lsn
        self._close_flushed()

    def flush_now(self) -> Lsn:
        """Make everything written durable before returning; return its end.

        Raises:
            LocalProtocolError: a flush is under way in another thread.
            StorageFailed: it did not become durable, or a write failed before (S12).
        """
        self._require_no_flush()
        flush = self.start_flush()
        if flush is not None:
            flush.run()
            self.finish_flush(flush)
        return self.flush_lsn

    def prepare_ahead(self) -> Preparation | None:
        """Return the preparation of the next segment if it is time: to be `run`, then passed to `finish_preparation`.

        None if the present segment is less than half full, or the next one exists or is being prepared. After a
        StorageFull it is returned again at once; the caller decides how long to wait.
        """
        if self._failure is not None:
            self._require_working()
        if self._prepared or self._preparation is not None or not self._writing:
            return None
        tail = self._writing[-1]
        if tail.write_lsn - tail.begin_lsn <= self._segment_size // 2:
            return None
        begin_lsn, tli = tail.end_lsn, self._tli
        self._preparation = Preparation(lambda: self._create(tli, begin_lsn))
        return self._preparation

    def finish_preparation(self, preparation: Preparation) -> None:
        """Take over the segment that `preparation` created, unless it created none or an append has done so."""
        if preparation is self._preparation:
            self._preparation = None
            segment = preparation.take()
            if segment is not None:
                self._prepared.append(segment)

    def truncate(self, lsn: Lsn, tli: int) -> None:
        """Cut the log at `lsn`, durably, and continue on `tli`. Everything below `lsn` is durable afterwards, too.

        The segment that contains `lsn` is renamed to the new TLI, as PostgreSQL names the first file after a fork: its
        bytes up to the fork are the parent's. On a segment's border that is the next one, still to be prepared, and the
        last one keeps its name. `lsn` may be write_lsn: then only the TLI changes.

        The control file records the decision before, and clears it durably *before the first append* (detail f): a
        truncation that is repeated later would cut WAL acknowledged since.

        Raises:
            LocalProtocolError: `lsn` is outside [begin_lsn, write_lsn], or a flush is under way.
            ResourceShortage: nothing was changed; call again.
            StorageFailed: a step failed (S12).
        """
        self._require_no_flush()
        if self.is_empty or not self.begin_lsn <= lsn <= self.write_lsn:
            raise self._refusal(f"a cut at {format_lsn(lsn)}")
        if lsn > self.flush_lsn:
            # The empty slot of a cut covers everything below it.
            self.flush_now()
        begin_lsn = max(self.begin_lsn, segment_start(lsn - 1, self._segment_size))  # Of the segment of byte lsn - 1.
        end_lsn = begin_lsn + self._segment_size
        try:
            with self._fs.hold_directory(self._directory):
                is_open = any(segment.begin_lsn < end_lsn for segment in self._writing)
                reopened = None if is_open else self._open(begin_lsn)
                try:
                    self._cut(begin_lsn, reopened, lsn, tli)
                except ResourceShortage as error:
                    raise self._fail(error) from error
        except ResourceShortage:
            raise
        except (StorageFailed, StorageFull) as error:
            raise self._fail(error) from error

    def forget_below(self, lsn: Lsn) -> Removal | None:
        """Let the log begin at `lsn`, a segment start below the tail's; return the removal of the WAL below.

        None if there is none. It is to be `run` in another thread, then passed to `finish_removal`. The control file
        records before that the log begins at `lsn`: files that a crash leaves or restores are removed by `open`.

        Raises:
            LocalProtocolError: `lsn` is not such a position.
        """
        self._require_working()
        if lsn <= self.begin_lsn:
            return None
        if self.is_empty or lsn % self._segment_size or lsn > self._writing[0].begin_lsn:
            raise self._refusal(f"a removal of WAL below {format_lsn(lsn)}")
        paths = []
        for begin_lsn in range(self.begin_lsn, lsn, self._segment_size):
            opened = self._reading.pop(begin_lsn, None)
            if opened is not None:
                opened.close()
            paths.append(NamedSegment(begin_lsn, self._tlis.pop(begin_lsn)).path(self._directory, self._segment_size))
        self.begin_lsn = lsn
        removal = Removal(self._fs.unlink, paths)
        self._removals.append(removal)
        return removal

    def finish_removal(self, removal: Removal) -> None:
        """Record that `removal` is done."""
        if removal in self._removals:
            self._removals.remove(removal)

    def trim(self, lsn: Lsn) -> None:
        """Remove the segments that end at or below `lsn` before returning; see `forget_below`.

        Raises:
            StorageFailed: a file could not be removed (S12).
        """
        self.forget_below(lsn)
        self._finish_removals()

    def reset(self, base_lsn: Lsn, tli: int) -> None:
        """Remove all WAL, durably, and begin an empty log at `base_lsn`, the start of a segment of `tli`.

        Raises:
            LocalProtocolError: `base_lsn` is 0 or not the start of a segment, or a flush is under way.
            StorageFull: no disk space for the first segment. The log is empty; call again.
            ResourceShortage: nothing was changed, or the log is empty; call again.
            StorageFailed: a step failed (S12).
        """
        self._require_no_flush()
        if base_lsn == 0 or base_lsn != segment_start(base_lsn, self._segment_size):
            raise LocalProtocolError(f"{format_lsn(base_lsn)} is not the start of a segment: a log cannot begin there")
        try:
            with self._fs.hold_directory(self._directory):
                self._drop_from(0)
        except ResourceShortage:
            raise
        except (StorageFailed, StorageFull) as error:
            raise self._fail(error) from error
        self.begin_lsn = self.write_lsn = self.flush_lsn = 0
        self._tli = tli
        first = self._create(tli, base_lsn)
        self._start_at(first, [NamedSegment(base_lsn, tli)])

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return the bytes [begin_lsn, end_lsn), durable or not; the caller decides who may receive them (S7).

        Raises:
            LocalProtocolError: the range is not within [begin_lsn, write_lsn].
            StorageFailed: they cannot be read.
        """
        if self._failure is not None or not self.begin_lsn <= begin_lsn <= end_lsn <= self.write_lsn:
            raise self._refusal(f"a read of [{format_lsn(begin_lsn)}, {format_lsn(end_lsn)})")
        pieces = [
            self._segment_at(piece_begin).read(piece_begin, piece_end)
            for piece_begin, piece_end in _aligned_pieces(begin_lsn, end_lsn, self._segment_size)
        ]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def segment_path(self, lsn: Lsn) -> Path | None:
        """Return the file of the segment that contains byte `lsn`, None if there is none. For readers that open it
        themselves: their open file keeps its content when the log is cut or continues on another timeline.
        """
        begin_lsn = segment_start(lsn, self._segment_size)
        tli = self._tlis.get(begin_lsn)
        return None if tli is None else NamedSegment(begin_lsn, tli).path(self._directory, self._segment_size)

    def page_digests(self, begin_lsn: Lsn, end_lsn: Lsn, page_size: int = DIGEST_PAGE_BYTES) -> list[int]:
        """Return the CRC-32C of each piece of [begin_lsn, end_lsn) between multiples of `page_size` bytes.

        The first and the last piece may be shorter than a page. Raises as `read` does.
        """
        digests = []
        chunk_bytes = page_size * max(1, _DIGEST_READ_BYTES // page_size)
        for chunk_begin, chunk_end in _aligned_pieces(begin_lsn, end_lsn, chunk_bytes):
            data = self.read(chunk_begin, chunk_end)
            for page_begin, page_end in _aligned_pieces(chunk_begin, chunk_end, page_size):
                digests.append(google_crc32c.value(data[page_begin - chunk_begin : page_end - chunk_begin]))
        return digests

    def close(self) -> None:
        """Release all files. Unflushed WAL may be lost. No flush may be under way."""
        self._finish_removals()
        self._cancel_preparation()
        self._close_from(0)

    # Private parts.

    def _close_flushed(self) -> None:
        while len(self._writing) > 1 and self._writing[0].end_lsn <= self.flush_lsn:
            self._writing.pop(0).close()

    def _write(self, segment: SegmentFile, data: bytes) -> None:
        try:
            segment.append(data)
        except (StorageFailed, StorageFull) as error:
            # The file was allocated completely, so this is no lack of space; and the write may be torn.
            raise self._fail(error) from error
        self.write_lsn = segment.write_lsn

    def _append_across(self, data: bytes) -> None:
        """Append data that does not fit into the tail. All segments are prepared before any byte is written."""
        self._prepare_up_to(self.write_lsn + len(data))
        begin_lsn = self.write_lsn
        for piece_begin, piece_end in _aligned_pieces(begin_lsn, begin_lsn + len(data), self._segment_size):
            if piece_begin == self._writing[-1].end_lsn:
                segment = self._prepared.pop(0)
                self._writing.append(segment)
                self._tlis[segment.begin_lsn] = segment.tli
            self._write(self._writing[-1], data[piece_begin - begin_lsn : piece_end - begin_lsn])

    def _prepare_up_to(self, end_lsn: Lsn) -> None:
        if self._preparation is not None:
            self._preparation.run()
            self.finish_preparation(self._preparation)
        while (last := (self._prepared or self._writing)[-1]).end_lsn < end_lsn:
            self._prepared.append(self._create(self._tli, last.end_lsn))

    def _create(self, tli: int, begin_lsn: Lsn) -> SegmentFile:
        """Create a segment file completely. Also called from the disk's thread."""
        try:
            return create_segment(
                self._fs, self._directory, tli=tli, begin_lsn=begin_lsn, segment_size=self._segment_size
            )
        except StorageFailed as error:
            raise self._fail(error) from error

    def _cut(self, begin_lsn: Lsn, reopened: SegmentFile | None, lsn: Lsn, tli: int) -> None:
        """Cut at `lsn`, in the segment at `begin_lsn`, which is `reopened` if it was not open. Opens nothing."""
        self._drop_from(begin_lsn + self._segment_size)
        if reopened is not None:
            self._writing = [reopened]
        last = self._writing[-1]
        last.cut(lsn)
        if lsn < last.end_lsn and last.tli != tli:
            path = NamedSegment(begin_lsn, tli).path(self._directory, self._segment_size)
            self._fs.rename(last.path, path)
            sync_names(self._fs, self._directory)
            last.path, last.tli = path, tli
            self._tlis[begin_lsn] = tli
        self._tli = tli
        self.write_lsn = self.flush_lsn = lsn

    def _drop_from(self, lsn: Lsn) -> None:
        """Close and remove all segments that start at `lsn` or above, the prepared ones too, durably."""
        self._finish_removals()  # After this the removed names may be used for other files.
        self._cancel_preparation()
        doomed = [NamedSegment(start, tli) for start, tli in self._tlis.items() if start >= lsn]
        doomed += [NamedSegment(segment.begin_lsn, segment.tli) for segment in self._prepared]
        self._close_from(lsn)
        drop_segments(self._fs, self._directory, doomed, self._segment_size)
        for start in [start for start in self._tlis if start >= lsn]:
            del self._tlis[start]

    def _close_from(self, lsn: Lsn) -> None:
        for segment in self._reading.values():
            segment.close()
        self._reading = {}
        for segment in self._writing + self._prepared:
            if segment.begin_lsn >= lsn:
                segment.close()
        self._writing = [segment for segment in self._writing if segment.begin_lsn < lsn]
        self._prepared = []

    def _finish_removals(self) -> None:
        try:
            for removal in self._removals:
                removal.run()
        except (StorageFailed, StorageFull) as error:
            raise self._fail(error) from error
        self._removals = []

    def _cancel_preparation(self) -> None:
        if self._preparation is not None:
            self.finish_preparation(self._preparation)

    def _start_at(self, tail: SegmentFile, segments: list[NamedSegment]) -> None:
        self._tlis = {segment.begin_lsn: segment.tli for segment in segments}
        self._writing = [tail]
        self.begin_lsn = segments[0].begin_lsn
        self.write_lsn = self.flush_lsn = tail.write_lsn

    def _segment_at(self, lsn: Lsn) -> SegmentFile:
        """Return the open file of the segment that contains byte `lsn`."""
        begin_lsn = segment_start(lsn, self._segment_size)
        for segment in self._writing:
            if segment.begin_lsn == begin_lsn:
                return segment
        older = self._reading.get(begin_lsn)
        if older is None:
            if len(self._reading) == _OPEN_FOR_READING_MAX:
                self._reading.pop(next(iter(self._reading))).close()
            older = self._reading[begin_lsn] = self._open(begin_lsn)
        return older

    def _open(self, begin_lsn: Lsn) -> SegmentFile:
        return open_segment(
            self._fs,
            self._directory,
            tli=self._tlis[begin_lsn],
            begin_lsn=begin_lsn,
            segment_size=self._segment_size,
        )

    def _require_working(self) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure)

    def _require_no_flush(self) -> None:
        self._require_working()
        if self._flush is not None:
            raise LocalProtocolError(f"a flush to {format_lsn(self._flush.end_lsn)} is not finished: finish it first")

    def _refusal(self, wish: str) -> StorageFailed | LocalProtocolError:
        if self._failure is not None:
            return StorageFailed(self._failure)
        if self.is_empty:
            return LocalProtocolError(f"the log is empty, and cannot serve {wish}: reset it to a base first")
        held = f"[{format_lsn(self.begin_lsn)}, {format_lsn(self.write_lsn)})"
        return LocalProtocolError(f"{wish} is outside of the WAL, {held}")

    def _fail(self, error: StorageFailed | StorageFull) -> StorageFailed:
        """Refuse everything from now on. Also called from the disk's thread: one assignment."""
        if self._failure is None:
            self._failure = f"{error}; the safekeeper must be restarted"
        return StorageFailed(self._failure)


def _aligned_pieces(begin_lsn: Lsn, end_lsn: Lsn, size: int) -> Iterator[tuple[Lsn, Lsn]]:
    """Yield [begin_lsn, end_lsn) in pieces that end at the multiples of `size`."""
    while begin_lsn < end_lsn:
        piece_end = min(end_lsn, begin_lsn - begin_lsn % size + size)
        yield begin_lsn, piece_end
        begin_lsn = piece_end
