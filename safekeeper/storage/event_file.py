"""The files of a safekeeper's events: `events`, and `events.old` before it.

Each line is one event as JSON. Lines are appended without a sync, so a power failure may lose the newest ones, and may
leave a line torn; lines that cannot be read are skipped. When `events` exceeds EVENT_FILE_BYTES_MAX it replaces
`events.old`, so that the two never have more than twice that size and one batch.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from safekeeper.base.events import KeptEvent
from safekeeper.storage.filesystem import FileSystem, read_whole

EVENT_FILE_NAME = "events"
OLD_EVENT_FILE_NAME = "events.old"
EVENT_FILE_BYTES_MAX = 512 << 10


class EventFile:
    """The files in one data folder. Not thread-safe. Every method raises StorageFailed, `append` StorageFull too."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._path = directory / EVENT_FILE_NAME
        self._old_path = directory / OLD_EVENT_FILE_NAME

    def load(self) -> list[KeptEvent]:
        """Return the events, the oldest first."""
        found: list[KeptEvent] = []
        for path in (self._old_path, self._path):
            if self._fs.exists(path):
                found += _events(read_whole(self._fs, path))
        return found

    def append(self, events: Iterable[KeptEvent]) -> None:
        """Append events. After an error some of them may be in the file: the same ones may be appended again."""
        lines = b"".join(msgspec.json.encode(kept) + b"\n" for kept in events)
        file = self._fs.open(self._path) if self._fs.exists(self._path) else self._fs.create(self._path)
        try:
            size = file.size()
            if size > EVENT_FILE_BYTES_MAX:
                file.close()
                self._fs.rename(self._path, self._old_path)
                file, size = self._fs.create(self._path), 0
            if size and file.pread(1, size - 1) != b"\n":
                lines = b"\n" + lines  # The last line is torn.
            file.pwrite(lines, size)
        finally:
            file.close()


def _events(content: bytes) -> Iterator[KeptEvent]:
    for line in content.split(b"\n"):
        try:
            yield msgspec.json.decode(line, type=KeptEvent)
        except msgspec.MsgspecError:
            continue  # Torn, or damaged: the others count.
