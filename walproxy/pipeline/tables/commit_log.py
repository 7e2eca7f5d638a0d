"""The log of a table of plain Parquet: which files make up the table, and what each writer committed last.

    _walproxy/commits/0000000000000017.json   entry 17: files added and removed
    _walproxy/checkpoint.json                 what all entries up to some number amount to

An entry is written under a temporary name, synced, and given its number by a link, which fails if the number is taken.
From then on it counts, and its changes are carried out (parquet_table.py). No process writes an entry before the
previous one was carried out, so only the newest may be unfinished.

Entries are found by counting on from the checkpoint: their folder is never listed, so that opening a table takes the
same time after a million commits.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from safekeeper.base.errors import StorageFailed
from walproxy.pipeline.tables.disk import TEMPORARY_SUFFIX, Disk, replace_durably

ENTRIES_PER_CHECKPOINT: Final = 50
_VERSION: Final = 1


class LoggedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of the table.

    Attributes:
        name: within the folder of its generation.
        bounds: the least and the greatest value of columns of 64-bit integers.
    """

    name: str
    rows: int
    bytes: int
    bounds: dict[str, tuple[int, int]] = {}


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of the table.

    Attributes:
        time: seconds since 1970.
        generation: of the folder that the files are in, once the entry is carried out.
        add: files that come from the staging folder.
        remove: names of files that are no longer part of the table.
    """

    version: int
    number: int
    time: float
    operation: Literal["create", "append", "compact"]
    generation: int
    add: list[LoggedFile] = []
    remove: list[str] = []
    writer: str | None = None
    batch: int | None = None
    properties: dict[str, str] = {}


class State(msgspec.Struct):
    """The sum of the entries up to `number`.

    Attributes:
        files: the table's files by name.
        batches: each writer's last batch.
    """

    version: int = _VERSION
    number: int = -1
    generation: int = 0
    files: dict[str, LoggedFile] = {}
    batches: dict[str, int] = {}

    def apply(self, entry: Entry) -> None:
        """Go on by one entry."""
        self.number = entry.number
        self.generation = entry.generation
        for name in entry.remove:
            del self.files[name]
        for file in entry.add:
            self.files[file.name] = file
        if entry.writer is not None and entry.batch is not None:
            self.batches[entry.writer] = entry.batch


_Kind = TypeVar("_Kind", Entry, State)


class CommitLog:
    """The log in a folder, and what it amounts to as far as it was read. Not thread-safe.

    Attributes:
        folder: of the entries.
        state: what the entries read so far amount to.
        newest: the last of them; None before the first, or if a checkpoint holds it.
        replaced: the files that the newest removed.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self.folder = folder / "commits"
        self._checkpoint = folder / "checkpoint.json"
        self._since_checkpoint = 0
        self._known_checkpoint: tuple[int, int, int] | None = None
        self.state = State()
        self.newest: Entry | None = None
        self.replaced: list[LoggedFile] = []

    def create(self) -> None:
        """Make the folder of the entries, unless it is there. Raises OSError."""
        self._disk.make_folder(self.folder)
        self._disk.sync_folder(self.folder.parent)

    def forget(self) -> None:
        """Read everything again the next time: a step failed, and the state on disk is not known."""
        self.state, self.newest, self._since_checkpoint, self._known_checkpoint = State(), None, 0, None

    def refresh(self) -> None:
        """Read what was written since. Raises OSError, StorageFailed."""
        for entry in self.unread():
            self.replaced = [self.state.files[name] for name in entry.remove]
            self.state.apply(entry)
            self.newest = entry
            self._since_checkpoint += 1

    def unread(self) -> Iterator[Entry]:
        """Yield the entries after the state, each to be applied before the next is requested."""
        if self.state.number < 0:
            self._load_checkpoint()
        while True:
            entry = self._read(self.state.number + 1)
            if entry is not None:
                yield entry
            elif not self._load_checkpoint():
                return

    def append(self, entry: Entry) -> bool:
        """Write an entry durably; False if its number is taken. Raises OSError."""
        path = self._path(entry.number)
        # A name of its own: one that a crash left may be a second name of an entry that counts.
        temporary = path.with_name(f"{path.name}-{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        self._disk.write(temporary, msgspec.json.encode(entry) + b"\n")
        try:
            self._disk.link(temporary, path)
        except FileExistsError:
            self._disk.unlink(temporary)
            return False
        self.sync()
        self._disk.unlink(temporary)
        return True

    def sync(self) -> None:
        """Make durable that the entries which were read are there. Raises OSError."""
        self._disk.sync_folder(self.folder)

    def checkpoint(self, *, now: bool = False) -> bool:
        """Write down what the state is, if that is worth it by now. Raises OSError."""
        if not now and self._since_checkpoint < ENTRIES_PER_CHECKPOINT:
            return False
        replace_durably(self._disk, self._checkpoint, msgspec.json.encode(self.state))
        self._since_checkpoint = 0
        return True

    def passed(self) -> Iterator[Path]:
        """Yield the entries that the checkpoint on disk makes superfluous. Raises OSError, StorageFailed."""
        try:
            content = self._checkpoint.read_bytes()
        except FileNotFoundError:
            return
        number = _decoded(self._checkpoint, content, State).number
        for path in self.folder.iterdir():
            if path.suffix == ".json" and path.stem.isdecimal() and int(path.stem) <= number:
                yield path

    def _load_checkpoint(self) -> bool:
        """Go on to the checkpoint, if it is ahead; entries below it may have been removed."""
        try:
            with self._checkpoint.open("rb") as file:
                status = os.fstat(file.fileno())
                signature = status.st_ino, status.st_mtime_ns, status.st_size
                if signature == self._known_checkpoint:  # With 6,000 files it takes 20 ms to decode.
                    return False
                content = file.read()
        except FileNotFoundError:
            return False
        state = _decoded(self._checkpoint, content, State)
        self._known_checkpoint = signature
        if state.number <= self.state.number:
            return False
        self.state, self.newest, self._since_checkpoint = state, None, 0
        return True

    def _read(self, number: int) -> Entry | None:
        path = self._path(number)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        return _decoded(path, content, Entry)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:016d}.json"


def _decoded(path: Path, content: bytes, kind: type[_Kind]) -> _Kind:
    try:
        decoded = msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise StorageFailed(f"{path} is damaged: {error}; restore it from a copy") from None
    if decoded.version != _VERSION:
        raise StorageFailed(f"{path} is of version {decoded.version}, this program reads version {_VERSION}")
    return decoded
