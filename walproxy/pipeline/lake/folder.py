"""A folder of tables with the methods of an object store that a table needs: `ObjectStore` is for archives.

A file is on disk, with its name, when `put` returns. Files have the permissions that the umask gives them.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from safekeeper.archive.objects import ObjectInfo
from safekeeper.base.errors import ObjectMissing
from walproxy.pipeline.lake.disk import make_folder, storage_errors, sync_folder


class FolderStore:
    """The files below a folder, by their paths in it.

    Every method raises StorageFailed, and StorageFull if the disk is full.

    Attributes:
        url: the absolute path of the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self._folder = folder

    def put(self, key: str, data: bytes | memoryview | Iterable[bytes], *, absent: bool) -> bool:
        """Store a file, durably; False if `absent` and it exists."""
        path = self._folder / key
        pieces = [data] if isinstance(data, bytes | memoryview) else data
        with storage_errors(f"write {path}"):
            make_folder(path.parent)
            try:
                with path.open("xb" if absent else "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
            except FileExistsError:
                return False
            sync_folder(path.parent)
        return True

    def get(self, key: str) -> bytes:
        """Return the content of a file. Raises ObjectMissing."""
        with self._reading(key) as path:
            return path.read_bytes()

    def part(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of a file, fewer only if it ends before. Raises ObjectMissing."""
        with self._reading(key) as path, path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def list(self, folder: str = "") -> list[ObjectInfo]:
        """Return all files below `folder`, by key; none if it does not exist."""
        with storage_errors(f"list {self._folder / folder}"):
            return sorted(self._walk(self._folder / folder))

    def _walk(self, folder: Path) -> Iterator[ObjectInfo]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(Path(entry.path))
                continue
            with contextlib.suppress(FileNotFoundError):  # It is removed meanwhile.
                status = entry.stat(follow_symlinks=False)
                yield ObjectInfo(os.path.relpath(entry.path, self._folder), status.st_size, status.st_mtime)

    def entries(self, folder: str = "") -> tuple[set[str], set[str]]:
        """Return the names of the folders and of the files directly in `folder`; none if it does not exist."""
        found: tuple[set[str], set[str]] = set(), set()
        with storage_errors(f"list {self._folder / folder}"):
            try:
                entries = list(os.scandir(self._folder / folder))
            except FileNotFoundError:
                return found
            for entry in entries:
                found[0 if entry.is_dir() else 1].add(entry.name)
        return found

    def delete(self, keys: Iterable[str]) -> None:
        """Remove files; those that do not exist are ignored."""
        for key in keys:
            with storage_errors(f"remove {self._folder / key}"):
                (self._folder / key).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[Path]:
        path = self._folder / key
        with storage_errors(f"read {path}"):
            try:
                yield path
            except (FileNotFoundError, NotADirectoryError) as error:
                raise ObjectMissing(f"{path} is missing") from error
