"""A data folder on a virtual disk, in which a test performs effects and starts, one process after the other."""

import random
from pathlib import Path
from typing import Any, Final

import msgspec

from safekeeper.acceptor.effects import FlushWal, Persist, ResetWal, WriteWal
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.data_folder import DataFolder
from tests.simulation.model.virtual_disk import VirtualFileSystem

DIRECTORY: Final = Path("/data/sk")
SIZE: Final = 4096
"""Bytes of a segment. The log begins with the second one."""


class _NoLock:
    """In place of the lock, which is a real file."""

    def release(self) -> None:
        """See DataDirectoryLock."""


def start(fs: VirtualFileSystem) -> DataFolder:
    """Open the folder as a safekeeper does at its start."""
    lock: Any = _NoLock()
    folder = DataFolder(fs, DIRECTORY, lock, ControlFile(fs, DIRECTORY))
    folder._load(1, "a" * 32)
    return folder


def persist(folder: DataFolder, **changes: object) -> ControlState:
    """Change the control state; return it."""
    folder.perform(Persist(msgspec.structs.replace(folder.control, **changes)))
    return folder.control


def folder_with_wal(seed: int, wal: bytes) -> tuple[VirtualFileSystem, DataFolder]:
    """Return a disk, and the folder of a process on it that has committed this WAL from SIZE on."""
    fs = VirtualFileSystem(random.Random(seed))
    fs.make_directory(DIRECTORY)
    folder = start(fs)
    persist(folder, segment_size=SIZE, base_lsn=SIZE, history=(HistoryEntry(1, SIZE, 1),), cluster_id="c")
    folder.perform(ResetWal(SIZE, 1))
    persist(folder, base_lsn=None, wal_begin_lsn=SIZE)
    folder.perform(WriteWal(SIZE, wal))
    folder.perform(FlushWal())
    persist(folder, commit_lsn=SIZE + len(wal))
    return fs, folder
