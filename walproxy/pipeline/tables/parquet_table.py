"""A table of plain Parquet: a folder that any reader of Parquet reads, with commits that happen exactly once.

    NAME/data -> _walproxy/generations/000001   a symbolic link; readers take NAME/data/*.parquet
    NAME/_walproxy/generations/000001/          the table's files
    NAME/_walproxy/staged/                      files that are being written
    NAME/_walproxy/commits, checkpoint.json     the log (commit_log.py)

A commit, under the table's lock: sync the staged files' folder; write the log's entry (the batch counts from here);
rename the files into the generation's folder; sync that. A process that ends in between leaves an entry that is not
carried out. The next process that opens the table carries it out: a file that is no longer staged has been moved
already.

A compaction puts fewer, larger files in the place of many. In a plain folder no order of renames does that without a
moment in which a reader sees rows twice or not at all. So there is a new folder, the next generation: hard links to the
files that stay, and the new ones. Then the link `data` is replaced in one step. A reader that lists `data/` sees the
files before or those after. One that listed it before and opens a file after may find it gone, and must list again; it
never counts rows twice. `live_files` names files in the folder of their generation, which stays until `expire`.

A reader of `data/` sees the files of one batch appear one after the other; a reader of `live_files` sees whole batches
only.
"""

import contextlib
import errno
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.tables.commit_log import CommitLog, Entry, LoggedFile
from walproxy.pipeline.tables.disk import TEMPORARY_SUFFIX, Disk, storage_errors
from walproxy.pipeline.tables.parquet_files import LiveFile, first_line
from walproxy.pipeline.tables.table import Batch, CheckedFile, Removal, Table, remove_files, unused_since
from walproxy.pipeline.tables.table_folder import LOCK_FILE, OWN_FOLDER

DATA_LINK: Final = "data"
STAGED_SUFFIX: Final = ".staged"
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EROFS, errno.EPERM})


class ParquetTable(Table):
    """A table of plain Parquet.

    Args:
        disk: carries out the steps; a test stops the world between them.
    """

    format: ClassVar[TableFormat] = "parquet"
    _suffix: ClassVar[str] = f".parquet{STAGED_SUFFIX}"

    def __init__(self, folder: Path, schema: pa.Schema, disk: Disk | None = None) -> None:
        super().__init__(folder, schema)
        self._disk = disk if disk is not None else Disk()
        self._own = folder / OWN_FOLDER
        self._log = CommitLog(self._disk, self._own)
        self._carried_out = -1  # Up to which entry we know that everything was carried out.

    @property
    def _new_files(self) -> Path:
        return self._own / "staged"

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
        except pa.ArrowException as error:
            raise ConfigurationError(f"Parquet cannot have such a column: {first_line(error)}") from error

    def prepare(self) -> None:
        with storage_errors(f"create the table {self.folder}"):
            self._log.refresh()
            if self._log.state.number >= 0:
                return
            with self._exclusively():
                self._create()

    def _create(self) -> None:
        if self._log.state.number < 0:
            self._log.create()
            self._disk.make_folder(self._new_files)
            self._disk.sync_folder(self._own)
            self._write(Entry(1, 0, time.time(), "create", 1))

    def last_batch(self, writer: str) -> int | None:
        with storage_errors(f"read the table {self.folder}"):
            self._log.refresh()
        return self._log.state.batches.get(writer)

    def _append(self, batch: Batch | None, files: Sequence[CheckedFile], properties: dict[str, str]) -> bool | None:
        with self._exclusively():
            state = self._log.state
            if batch is not None and batch.is_in(state.batches.get(batch.writer), self.folder):
                return False
            if files:
                self._disk.sync_folder(self._new_files)
            entry = Entry(
                version=1,
                number=state.number + 1,
                time=time.time(),
                operation="append",
                generation=state.generation,
                add=[_logged(file) for file in files],
                writer=batch.writer if batch is not None else None,
                batch=batch.number if batch is not None else None,
                properties=properties,
            )
            return True if self._write(entry) else None

    def _settle(self) -> None:
        with self._exclusively():
            pass

    def live_files(self) -> list[LiveFile]:
        with storage_errors(f"read the table {self.folder}"):
            self._log.refresh()
            newest = self._log.newest
            if newest is not None and not self._is_visible(newest):
                try:
                    with self._exclusively():  # It is carried out by now.
                        pass
                except OSError as error:
                    if error.errno not in _READ_ONLY:
                        raise
                    return self._without(newest)
            state = self._log.state
            return self._located(state.generation, state.files.values())

    def _is_visible(self, entry: Entry) -> bool:
        """Say whether the files of the newest entry are where they belong."""
        if entry.number <= self._carried_out:
            return True
        folder = self._generation(entry.generation)
        if entry.operation == "append":
            return all((folder / file.name).exists() for file in entry.add)
        link = self.folder / DATA_LINK
        return link.is_symlink() and link.readlink().name == folder.name

    def _without(self, newest: Entry) -> list[LiveFile]:
        """Return the files before the newest entry, which is not carried out, and which we may not carry out."""
        added = {file.name for file in newest.add}
        files = [file for file in self._log.state.files.values() if file.name not in added]
        generation = newest.generation - (newest.operation == "compact")
        return self._located(generation, [*files, *self._log.replaced])

    def _located(self, generation: int, files: Iterable[LoggedFile]) -> list[LiveFile]:
        folder = self._generation(generation)
        return [LiveFile(f"{folder}/{file.name}", file.rows, file.bytes, dict(file.bounds)) for file in files]

    def _replace(self, old: Sequence[LiveFile], new: Sequence[CheckedFile]) -> bool:
        with self._exclusively():
            state = self._log.state
            remove = [Path(file.path).name for file in old]
            if any(name not in state.files for name in remove):
                return False
            self._disk.sync_folder(self._new_files)
            entry = Entry(
                version=1,
                number=state.number + 1,
                time=time.time(),
                operation="compact",
                generation=state.generation + 1,
                add=[_logged(file) for file in new],
                remove=remove,
            )
            return self._write(entry)

    def expire(self, keep_s: float, *, dry_run: bool = False) -> Removal:
        with storage_errors(f"remove old states of the table {self.folder}"), self._exclusively():
            current = self._log.state.generation
            folders = [
                folder
                for folder in self._generation(current).parent.iterdir()
                if folder.name.isdecimal() and int(folder.name) < current and unused_since(folder, keep_s)
            ]
            inodes = {path.stat().st_ino for path in self._generation(current).iterdir()}
            removed = Removal(versions=len(folders))
            for folder in folders:
                paths = list(folder.iterdir())
                only_there = [path for path in paths if path.stat().st_ino not in inodes]
                removed = removed.plus(remove_files(only_there, dry_run=dry_run))
                if not dry_run:
                    remove_files(path for path in folder.iterdir())
                    folder.rmdir()
            if not dry_run:
                self._log.checkpoint(now=True)
            entries = [path for path in self._log.passed() if unused_since(path, keep_s)]
            return removed.plus(remove_files(entries, dry_run=dry_run))

    def _orphans(self, older_than_s: float) -> Iterator[Path]:
        with self._exclusively():
            for folder in (self._new_files, self._log.folder, self._own):
                for path in folder.iterdir():
                    temporary = path.suffix == TEMPORARY_SUFFIX or folder == self._new_files
                    if temporary and not path.is_symlink() and unused_since(path, older_than_s):
                        yield path

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the table's lock, know its log, and have its newest entry carried out."""
        with self._disk.locked(self._own / LOCK_FILE):
            try:
                self._log.refresh()
                newest = self._log.newest
                if newest is not None and newest.number > self._carried_out:
                    self._log.sync()
                    self._carry_out(newest)
                yield
            except BaseException:
                self._log.forget()
                raise

    def _write(self, entry: Entry) -> bool:
        """Write the next entry and carry it out; False if its number is taken, which only a lost lock can cause."""
        if not self._log.append(entry):
            return False
        self._log.refresh()
        self._carry_out(entry)
        self._log.checkpoint()
        return True

    def _carry_out(self, entry: Entry) -> None:
        """Carry out an entry, or what is left of it."""
        folder = self._generation(entry.generation)
        if entry.operation == "append":
            for file in entry.add:
                self._move(file.name, folder)
            if entry.add:
                self._disk.sync_folder(folder)
        else:
            self._begin_generation(entry)
        self._carried_out = entry.number

    def _move(self, name: str, folder: Path) -> None:
        with contextlib.suppress(FileNotFoundError):  # It is there already.
            self._disk.rename(self._new_files / f"{name}{STAGED_SUFFIX}", folder / name)

    def _begin_generation(self, entry: Entry) -> None:
        folder = self._generation(entry.generation)
        self._disk.make_folder(folder)
        self._disk.sync_folder(folder.parent)
        self._disk.sync_folder(self._own)
        for file in entry.add:
            self._move(file.name, folder)
        added = {file.name for file in entry.add}
        before = self._generation(entry.generation - 1)
        for name in self._log.state.files.keys() - added:
            with contextlib.suppress(FileExistsError):
                self._disk.link(before / name, folder / name)
        self._disk.sync_folder(folder)
        link = self._own / f"{DATA_LINK}.new"
        self._disk.unlink(link)
        self._disk.symlink(f"{OWN_FOLDER}/generations/{folder.name}", link)
        self._disk.rename(link, self.folder / DATA_LINK)
        self._disk.sync_folder(self.folder)
        if entry.operation == "compact":
            self._disk.touch(before)  # Its age is that of its end.

    def _generation(self, number: int) -> Path:
        return self._own / "generations" / f"{number:06d}"


def _logged(file: CheckedFile) -> LoggedFile:
    footer = file.footer
    return LoggedFile(file.path.name.removesuffix(STAGED_SUFFIX), footer.rows, footer.bytes, footer.bounds)
