"""What a local folder needs beyond what obstore does in it: durability, a listing that bears any name, no leftovers.

obstore writes a file under a temporary name (`name#1`) and renames or links it, but syncs nothing. A segment leaves the
safekeepers because the archive has it, so here it must be on disk first: the file, and every folder on the way to it.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from safekeeper.archive.objects import ObjectInfo

_TEMPORARY = re.compile(r".*#\d+")


class LocalFolder:
    """A local folder that an archive lies in. Every method raises OSError. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: set[Path] = set()  # Folders whose own names are known to be on disk.

    def sync(self, key: str) -> None:
        """Return when the object at `key` is on disk."""
        path = self._root / key
        _sync(path)
        for folder in (path.parent, *path.parent.parents):
            if folder not in self._durable or folder == path.parent:
                _sync(folder)
            if folder == self._root:
                break
        self._durable.update(parent for parent in path.parents if parent.is_relative_to(self._root))

    def list(self, folder: str) -> list[ObjectInfo]:
        """Return all files below `folder` but those that are being written, by key.

        A name that is not Unicode shows its bytes as escapes, so that it can be printed.
        """
        found = []
        for path, status in self._walk(self._root / folder):
            if _TEMPORARY.fullmatch(path) is None:
                key = os.fsencode(os.path.relpath(path, self._root)).decode(errors="backslashreplace")
                found.append(ObjectInfo(key, status.st_size, status.st_mtime))
        return sorted(found)

    def remove_leftovers(self, older_than_s: float) -> int:
        """Remove what killed writers left behind, and return how many files that were."""
        removed = 0
        for path, status in self._walk(self._root):
            if _TEMPORARY.fullmatch(path) is not None and status.st_mtime < time.time() - older_than_s:
                Path(path).unlink(missing_ok=True)
                removed += 1
        return removed

    def _walk(self, folder: Path) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files below `folder`; what vanishes meanwhile is passed over."""
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(Path(entry.path))
            else:
                try:
                    yield entry.path, entry.stat()
                except FileNotFoundError:
                    continue


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
