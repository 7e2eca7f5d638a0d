"""Reads the log concurrently with its writer: each reader has its own read-only files.

A reader that catches up needs WAL that may have to be read from the disk. The event loop must not wait for that,
because it acknowledges appends. So `at_hand` returns what is in memory, which for the newest WAL is all of it; `fetch`
reads the rest in a thread.

A reader shares nothing with the storage that writes the log: if a file is renamed, cut or removed meanwhile, a reader
that has it open can still read it. The caller decides which bytes may be read, and whether they are still part of the
log after the read (S7).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from safekeeper.base.errors import LogChanged, StorageFailed
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.storage.filesystem import File, FileSystem
from safekeeper.storage.segment_file import read_exactly, read_pieces


class WalReader:
    """One reader of a log. `at_hand` and `fetch` are for the loop's thread, between the changes of the storage.

    At most one job of `fetch` may run at a time, and only `close` may be called meanwhile.

    Args:
        locate: returns the file of the segment that contains a byte, None if there is none.
    """

    def __init__(self, fs: FileSystem, segment_size: int, locate: Callable[[Lsn], Path | None]) -> None:
        self._fs = fs
        self._segment_size = segment_size
        self._locate = locate
        self._file: File | None = None
        self._path = Path()
        self._begin_lsn: Lsn = 0  # Of the segment that is open.
        self._fetching = False
        self._closed = False

    def at_hand(self, begin_lsn: Lsn, end_lsn: Lsn, *, recent: bool) -> bytes | bytearray:
        """Return as many of the bytes [begin_lsn, end_lsn), from the first one on, as are in memory; maybe none.

        Args:
            end_lsn: in the same segment.
            recent: the bytes were written so recently that they are in memory, even if the system cannot report that.

        Raises:
            StorageFailed: they cannot be read.
        """
        if not self._is_open_at(begin_lsn):
            if not recent:
                return b""  # Opening a file may already have to wait.
            self._open(begin_lsn, self._path_of(begin_lsn))
        assert self._file is not None  # Opened by `_open`.
        length, offset = end_lsn - begin_lsn, begin_lsn - self._begin_lsn
        data = self._file.pread_at_hand(length, offset)
        if data is None:
            return read_exactly(self._file, self._path, length, offset) if recent else b""
        return data

    def fetch(self, begin_lsn: Lsn, end_lsn: Lsn) -> Callable[[], bytes]:
        """Return a job for another thread that returns the bytes [begin_lsn, end_lsn), or raises StorageFailed.

        Call `fetched` when it has returned.
        """
        path = None if self._is_open_at(begin_lsn) else self._path_of(begin_lsn)
        self._fetching = True

        def job() -> bytes:
            if path is not None:
                self._open(begin_lsn, path)
            assert self._file is not None  # It was open, or is now.
            return read_exactly(self._file, self._path, end_lsn - begin_lsn, begin_lsn - self._begin_lsn)

        return job

    def fetched(self) -> None:
        """Release the job, after it has returned."""
        self._fetching = False
        if self._closed:
            self._release()

    def close(self) -> None:
        """Release the file once no job uses it. The next read, if any, opens it again."""
        self._closed = True
        if not self._fetching:
            self._release()

    def _is_open_at(self, lsn: Lsn) -> bool:
        return self._file is not None and self._begin_lsn == segment_start(lsn, self._segment_size)

    def _path_of(self, lsn: Lsn) -> Path:
        path = self._locate(lsn)
        if path is None:
            raise StorageFailed(f"the WAL segment of byte {format_lsn(lsn)} does not exist")
        return path

    def _open(self, lsn: Lsn, path: Path) -> None:
        self._release()
        self._file = self._fs.open(path, read_only=True)
        self._path, self._begin_lsn = path, segment_start(lsn, self._segment_size)

    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class SegmentBytes:
    """The first `size` bytes of a segment, to be read in another thread, more than once.

    A log that is cut is later overwritten in the same file, but the cut is decided first. Therefore bytes read while
    `is_current` returns True belong to the log for which this source was created.

    Args:
        path: the segment's file.
        is_current: returns, in any thread, whether no other log has been adopted since.
    """

    def __init__(self, fs: FileSystem, path: Path, size: int, is_current: Callable[[], bool]) -> None:
        self._fs = fs
        self._path = path
        self._is_current = is_current
        self.size = size

    def pieces(self) -> Iterator[bytes]:
        """Return the bytes, a MiB at a time.

        Raises:
            LogChanged: they may belong to another log.
            StorageFailed: they cannot be read, also because the file was removed or renamed meanwhile.
        """
        file = self._fs.open(self._path, read_only=True)
        try:
            for piece in read_pieces(file, self._path, 0, self.size):
                if not self._is_current():
                    raise LogChanged(f"the log has changed while {self._path} was read")
                yield piece
        finally:
            file.close()
