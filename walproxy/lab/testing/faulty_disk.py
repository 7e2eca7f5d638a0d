"""A safekeeper on a disk with faults: `python -m walproxy.lab.testing.faulty_disk [--volatile] CONTROL_FILE run
OPTIONS`.

What follows CONTROL_FILE is what follows `safekeeper`. The control file has, as JSON, the disk's present faults,
e.g. {"fsync_ms": 20}; it is read at each call (2 us), so a fault begins and ends without a restart. As long as it
is missing or empty, nothing changes.

    fsync_ms   each fdatasync returns that much later
    held       no fdatasync returns
    full       no room: files cannot be made, nor made longer, and the free space is 0

A full disk leaves what is written over: that has its blocks, as on any file system that does not copy on write.
With --volatile what was written is in this process's memory alone until its fdatasync has returned: kill -9 is a power
cut then, and a program that replies before the fdatasync loses what it has acknowledged. Names of files are durable at
once.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

import safekeeper.cli
from safekeeper.base.command import run_command
from safekeeper.base.errors import ConfigurationError, StorageFull
from safekeeper.storage.filesystem import FileSystem, RealFile, RealFileSystem, Space, is_shortage
from walproxy.lab.testing.unsynced import UnsyncedWrites

_POLL_S = 0.005
_LONGEST_BYTES = 4096


class DiskFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The faults of a disk: how much longer an fdatasync takes, whether none returns, whether there is no room."""

    fsync_ms: float = 0.0
    held: bool = False
    full: bool = False


def write_faults(control_file: Path, faults: DiskFaults) -> None:
    """Put `faults` into a control file, at once: a reader sees all of it or what was there before."""
    new = control_file.with_name(control_file.name + ".new")
    new.write_bytes(msgspec.json.encode(faults))
    new.replace(control_file)


class _Control:
    """The control file as it is now."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._content = b""
        self._faults = DiskFaults()

    def faults(self) -> DiskFaults:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._faults
        except OSError as error:
            if is_shortage(error):
                return self._faults  # As they were: a process without descriptors is no fault of its disk.
            raise
        try:
            content = os.read(descriptor, _LONGEST_BYTES)
        finally:
            os.close(descriptor)
        # An empty one is being written, by a program that cannot do it in one step.
        if content and content != self._content:
            try:
                self._faults = msgspec.json.decode(content, type=DiskFaults)
            except msgspec.DecodeError as error:
                raise ConfigurationError(f"{self._path} does not describe the faults of a disk: {error}") from error
            self._content = content
        return self._faults

    def wait_for_disk(self) -> None:
        """Return when an fdatasync may begin."""
        time.sleep(self.faults().fsync_ms / 1000)
        while self.faults().held:
            time.sleep(_POLL_S)


class FaultyFile(RealFile):
    """A file on a disk with faults. Without `unsynced` the operating system keeps what was written."""

    __slots__ = ("_control", "_unsynced")

    def __init__(self, path: Path, flags: int, control: _Control) -> None:
        super().__init__(path, flags)
        self._control = control
        self._unsynced: UnsyncedWrites | None = None

    def identity(self) -> tuple[int, int]:
        """Return what distinguishes this file from all others, whatever its name."""
        facts = os.fstat(self._descriptor)
        return facts.st_dev, facts.st_ino

    def keep_in(self, unsynced: UnsyncedWrites) -> None:
        """Let what is written be in `unsynced` until it is synced."""
        self._unsynced = unsynced

    def pwrite(self, data: bytes, offset: int) -> None:
        if self._control.faults().full and offset + len(data) > self.size():
            raise StorageFull(f"could not write {self._path}: No space left on device")
        if self._unsynced is None:
            super().pwrite(data, offset)
        else:
            self._unsynced.add(data, offset)

    def pread(self, length: int, offset: int) -> bytes:
        on_disk = super().pread(length, offset)
        return on_disk if self._unsynced is None else self._unsynced.over(on_disk, offset, length)

    def pread_at_hand(self, length: int, offset: int) -> bytearray | None:
        if self._unsynced is None:
            return super().pread_at_hand(length, offset)
        return bytearray(self.pread(length, offset))

    def fdatasync(self) -> None:
        self._control.wait_for_disk()
        if self._unsynced is None:
            super().fdatasync()
            return
        writes = self._unsynced.all()
        for offset, data in writes:
            super().pwrite(data, offset)
        super().fdatasync()
        self._unsynced.forget(len(writes))

    def size(self) -> int:
        return max(super().size(), 0 if self._unsynced is None else self._unsynced.end())


class FaultyDisk(RealFileSystem):
    """The operating system's files, on a disk that has the faults in `control_file`.

    Args:
        volatile: what was written is lost with this process until it is synced.
    """

    def __init__(self, control_file: Path, volatile: bool = False) -> None:
        super().__init__()
        self._control = _Control(control_file)
        self._unsynced: dict[tuple[int, int], UnsyncedWrites] | None = {} if volatile else None

    def create(self, path: Path) -> FaultyFile:
        if self._control.faults().full:
            raise StorageFull(f"could not create {path}: No space left on device")
        file = self._file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if self._unsynced is not None:
            # It may be an old file, or have the place on the disk of one that was removed.
            self._unsynced[file.identity()] = UnsyncedWrites()
            file.keep_in(self._unsynced[file.identity()])
        return file

    def open(self, path: Path, *, read_only: bool = False) -> FaultyFile:
        return self._file(path, os.O_RDONLY if read_only else os.O_RDWR)

    def rename(self, old: Path, new: Path) -> None:
        self._forget(new)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._forget(path)
        super().unlink(path)

    def space(self, directory: Path) -> Space:
        space = super().space(directory)
        return space._replace(free_bytes=0) if self._control.faults().full else space

    def _file(self, path: Path, flags: int) -> FaultyFile:
        file = FaultyFile(path, flags, self._control)
        if self._unsynced is not None:
            file.keep_in(self._unsynced.setdefault(file.identity(), UnsyncedWrites()))
        return file

    def _forget(self, path: Path) -> None:
        """The file that has this name now loses it: it will not be read under another one."""
        if self._unsynced is not None and path.exists():
            facts = path.stat()
            self._unsynced.pop((facts.st_dev, facts.st_ino), None)


def run_safekeeper(make_disk: Callable[[Path, bool], FileSystem] = FaultyDisk) -> None:
    """Run the safekeeper that this process's arguments describe, on what `make_disk` returns, and exit.

    Args:
        make_disk: of the control file, and whether it is volatile.
    """

    @click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
    @click.option("--volatile", is_flag=True)
    @click.argument("control_file", type=click.Path(path_type=Path))
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def command(volatile: bool, control_file: Path, words: tuple[str, ...]) -> None:
        disk = make_disk(control_file, volatile)
        with safekeeper.cli.cli.make_context("safekeeper", list(words), obj=disk) as context:
            safekeeper.cli.cli.invoke(context)

    run_command(command, "safekeeper")


if __name__ == "__main__":
    run_safekeeper()
