"""Rules of the safekeeper's shell, each left out: for planted.py, in runs with real safekeepers."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from safekeeper.acceptor.effects import Effect, Persist
from safekeeper.base.errors import StorageFailed
from safekeeper.consensus.control_state import ControlState
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import Connection
from safekeeper.node.wal_writer import WalWriter
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.disk_work import Flush
from safekeeper.storage.filesystem import FileSystem
from safekeeper.storage.recovery import NamedSegment
from safekeeper.storage.segment_file import FooterSlot, SegmentFile

_flushed = WalWriter._flushed
_hand_to_disk = Node._hand_to_disk
_store = ControlFile.store
_load = DataFolder._load


def count_twice(wal: WalWriter, flush: Flush) -> None:
    """Count a flush at its end, also where an effect has included it."""
    if flush is wal._flush:
        _flushed(wal, flush)
    else:
        wal._node.acknowledge(flush.end_lsn)


def swallow_failed_sync(flush: Flush) -> None:
    """Go on after an fdatasync that failed."""
    for segment, slot in flush._slots:
        segment.write_slot(slot)
        with suppress(StorageFailed):
            segment.sync()
    flush.done = True


def swallow_failed_effect(node: Node, effect: Effect, result: Any, error: BaseException | None) -> None:
    """Go on after an effect that failed in the disk's thread."""
    if not node.failed.done():
        node._step(result, None)
        node._handle_events()


def close_and_read_on(connection: Connection, *, abort: bool = False) -> None:
    """Close a connection, and handle what was received on it."""
    if abort:
        connection._transport.abort()
    else:
        connection._transport.close()


def persist_later(node: Node, effect: Effect) -> None:
    """Go on with a control state while it is stored."""
    if not isinstance(effect, Persist):
        _hand_to_disk(node, effect)
        return
    node.folder.control = effect.control
    node.disk.submit(partial(node.folder.perform, effect), lambda token, result, error: None)
    node._step(None, None)


def store_if_other(file: ControlFile, state: msgspec.Struct) -> None:
    """Do not store what can be read: at the start nothing is written."""
    if file.load(type(state)) != state:
        _store(file, state)


def load_any_folder(folder: DataFolder, safekeeper_id: int, new_incarnation: str) -> None:
    """Load a data folder under whichever id it has."""
    control = folder._control_file.load(ControlState)
    _load(folder, control.safekeeper_id if control is not None else safekeeper_id, new_incarnation)


def open_in_place(
    fs: FileSystem, directory: Path, segment: NamedSegment, slot: FooterSlot, segment_size: int
) -> SegmentFile:
    """Go on in the last segment as it is found."""
    path = segment.path(directory, segment_size)
    return SegmentFile(
        fs.open(path),
        path,
        tli=segment.tli,
        begin_lsn=segment.begin_lsn,
        end_lsn=segment.begin_lsn + segment_size,
        write_lsn=slot.end_lsn,
        sequence=slot.sequence,
    )


def sync_no_names(fs: FileSystem, directory: Path) -> None:
    """Let a rename be durable when the system writes it."""
