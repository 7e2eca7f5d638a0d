"""The real file system, with a disk that can be told to be slow, full or broken."""

import threading
from pathlib import Path

from safekeeper.base.errors import StorageFailed, StorageFull
from safekeeper.storage.filesystem import File, RealFileSystem

DEADLINE_S = 20.0


class FaultyFileSystem(RealFileSystem):
    """Counts and can hold, delay or fail every fdatasync; can have no room for new files, and hold every removal.

    Attributes:
        full: `create` raises StorageFull.
        failing: every fdatasync raises StorageFailed.
        delay_s: how long an fdatasync takes at least.
        cold: no read finds its bytes in memory.
        synced_by: the thread of each fdatasync so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.failing = False
        self.delay_s = 0.0
        self.cold = False
        self.synced_by: list[threading.Thread] = []
        self._may_sync = threading.Event()
        self._may_sync.set()
        self._delay = threading.Event()
        self._may_unlink = threading.Event()
        self._may_unlink.set()

    def hold(self) -> None:
        """Let no fdatasync return from now on."""
        self._may_sync.clear()

    def release(self) -> None:
        """Let them return."""
        self._may_sync.set()

    def hold_removals(self) -> None:
        """Let no removal of a file return from now on."""
        self._may_unlink.clear()

    def release_removals(self) -> None:
        """Let them return."""
        self._may_unlink.set()

    def unlink(self, path: Path) -> None:
        assert self._may_unlink.wait(DEADLINE_S)
        super().unlink(path)

    def create(self, path: Path) -> "FaultyFile":  # type: ignore[override]
        if self.full:
            raise StorageFull(f"could not open {path}: No space left on device")
        return FaultyFile(self, super().create(path))

    def open(self, path: Path, *, read_only: bool = False) -> "FaultyFile":  # type: ignore[override]
        return FaultyFile(self, super().open(path, read_only=read_only))

    def sync(self, file: File) -> None:
        self.synced_by.append(threading.current_thread())
        assert self._may_sync.wait(DEADLINE_S)
        if self.delay_s:
            self._delay.wait(self.delay_s)
        if self.failing:
            raise StorageFailed("could not sync the disk: Input/output error")
        file.fdatasync()


class FaultyFile:
    def __init__(self, fs: FaultyFileSystem, file: File) -> None:
        self._fs = fs
        self._file = file
        self.pwrite = file.pwrite
        self.pread = file.pread
        self.size = file.size
        self.close = file.close

    def pread_at_hand(self, length: int, offset: int) -> bytes | bytearray | None:
        return b"" if self._fs.cold else self._file.pread_at_hand(length, offset)

    def fdatasync(self) -> None:
        self._fs.sync(self._file)
