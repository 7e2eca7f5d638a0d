"""A safekeeper's data folder: the control file, the WAL, and the lock that refuses a second process.

    DIR/control        the acceptor's durable state (safekeeper/storage/control_file.py)
    DIR/wal/           segment files (safekeeper/storage/)
    DIR/slots          replication slots (safekeeper/serving/slots.py)
    DIR/agents         the settings that agents share (safekeeper/node/agent_registry.py)
    DIR/wal.<cluster>/ WAL that a rebootstrap set aside, for its undo, or for the operator to delete
    DIR/wal.undone-<cluster>/ WAL written between a rebootstrap and its undo, for the operator to delete

`DataFolder.open` detects a folder that can no longer be a member (S8), before any message is sent. `perform` executes
the acceptor's slow effects. It blocks, so a running node calls it in the disk's thread; it uses the storage meanwhile,
so the node uses the storage only when no effect is under way.
"""

from pathlib import Path
from typing import Any

import msgspec

from safekeeper.acceptor.effects import (
    DigestWal,
    Effect,
    Effects,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    FlushWal,
    InspectSetAside,
    Persist,
    ReadWal,
    ResetWal,
    RestoreWal,
    SetWalAside,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.base.errors import (
    ConfigurationError,
    DiskLost,
    LocalProtocolError,
    RemoteProtocolError,
    ResourceShortage,
    StorageFailed,
    StorageFull,
)
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.membership import check_quorum_sizes
from safekeeper.consensus.messages import AgentSettingsVersion
from safekeeper.consensus.term_history import tli_at
from safekeeper.storage.control_file import ControlFile, DataDirectoryLock, StateFile
from safekeeper.storage.event_file import EventFile
from safekeeper.storage.filesystem import TEMPORARY_SUFFIX, FileSystem, Space, sync_names
from safekeeper.storage.recovery import end_of_chain, inspect, names_below
from safekeeper.storage.wal_log import WalStorage
from safekeeper.storage.wal_reading import WalReader
from safekeeper.waldecode.record_search import RecordEndSearch, find_records
from safekeeper.waldecode.timed_records import find_timed_record

WAL_FOLDER = "wal"
AGENTS_FILE_NAME = "agents"
# The file that identifies a folder as PGDATA.
POSTGRESQL_MARK = "PG_VERSION"


class KeptSettings(msgspec.Struct, frozen=True):
    """The content of the file `agents`.

    Attributes:
        cluster_id: the cluster of the agents: another one's settings do not count.
    """

    cluster_id: str
    settings: AgentSettingsVersion


def agents_file(fs: FileSystem, directory: Path) -> StateFile:
    """Return the file `agents` of a data folder."""
    return StateFile(
        fs,
        directory / AGENTS_FILE_NAME,
        magic=b"SAFEAGNT",
        what="file of the agents' settings",
        what_to_do="it is ignored, the agents restore the settings from the other safekeepers",
    )


def missing_wal(control: ControlState, begin_lsn: Lsn, flush_lsn: Lsn, wal_directory: Path) -> str | None:
    """Compare the existing WAL with the control file (S8); return what is lost, None if nothing is.

    Args:
        begin_lsn, flush_lsn: the beginning and the end of the existing WAL, 0 if there is none.
    """
    if control.is_log_pending or not control.wal_begin_lsn:
        return None  # A reset of the log is pending, or nothing was ever written.
    needed_lsn = max(control.wal_begin_lsn, control.commit_lsn, control.truncate_to or 0)
    if flush_lsn < needed_lsn:
        found = f"ends at {format_lsn(flush_lsn)}" if flush_lsn else "is missing"
        difference = f"{found}, but it reached {format_lsn(needed_lsn)}"
    elif begin_lsn > control.wal_begin_lsn:
        difference = f"begins at {format_lsn(begin_lsn)}, but it began at {format_lsn(control.wal_begin_lsn)}"
    else:
        return None
    return (
        f"the WAL in {wal_directory} {difference}: this data folder is no longer a member; "
        "move it away and start with an empty one, which walproxy members replace makes a member"
    )


class DataFolder:
    """An open and locked data folder. Created by `open`.

    Attributes:
        directory: its path.
        control: the control file's content as it is on disk.
        storage: the WAL; None until the segment size is known.
    """

    def __init__(self, fs: FileSystem, directory: Path, lock: DataDirectoryLock, control_file: ControlFile) -> None:
        self._fs = fs
        self._lock = lock
        self._control_file = control_file
        self._wal_directory = directory / WAL_FOLDER
        self._segment_size = 0  # Of the open storage.
        self.directory = directory
        self.control = ControlState(safekeeper_id=0, incarnation="")
        self.storage: WalStorage | None = None
        # For the present log: it is discarded when bytes of the log are removed.
        self._record_end_search: RecordEndSearch | None = None

    @classmethod
    def open(cls, fs: FileSystem, directory: Path, safekeeper_id: int, new_incarnation: str) -> "DataFolder":
        """Open the folder of safekeeper `safekeeper_id`, or create it.

        Args:
            new_incarnation: the random id of the folder if it is new, 32 hexadecimal digits (S8).

        Raises:
            ConfigurationError: it cannot be created, another process uses it, or it belongs to another safekeeper.
            DiskLost: WAL or promises that it must contain are missing (S8).
            StorageFailed: it cannot be read or written, or the disk is full.
            ResourceShortage: no file descriptor was free.
        """
        if not fs.exists(directory.parent):
            raise ConfigurationError(f"{directory.parent} does not exist: create it, or correct --data-dir")
        if fs.exists(directory / POSTGRESQL_MARK):
            raise ConfigurationError(
                f"{directory} is a data folder of PostgreSQL (it has {POSTGRESQL_MARK}): correct --data-dir, a "
                "safekeeper needs a folder of its own"
            )
        fs.make_directory(directory)
        lock = DataDirectoryLock(directory)
        folder = cls(fs, directory, lock, ControlFile(fs, directory))
        try:
            folder._load(safekeeper_id, new_incarnation)
        except ResourceShortage as short:
            folder.close()
            raise ResourceShortage(f"could not start in {directory}: {short}: raise the limit of open files") from short
        except StorageFull as full:
            folder.close()
            raise StorageFailed(f"not enough disk space to start in {directory}: free some space ({full})") from full
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def begin_lsn(self) -> Lsn:
        """The first byte of retained WAL, 0 if there is none."""
        return self.storage.begin_lsn if self.storage is not None else 0

    @property
    def flush_lsn(self) -> Lsn:
        """The end of the durable WAL, 0 if there is none."""
        return self.storage.flush_lsn if self.storage is not None else 0

    @property
    def wal_bytes(self) -> int:
        """The size of the retained WAL in bytes."""
        storage = self.storage  # The disk's thread may be replacing it.
        return storage.write_lsn - storage.begin_lsn if storage is not None else 0

    def space(self) -> Space:
        """Return the space on the folder's disk."""
        return self._fs.space(self.directory)

    def perform(self, effect: Effect) -> Any:
        """Execute `effect` and return its result; see safekeeper/acceptor/effects.py for the meaning of each.

        Raises:
            StorageFull: nothing was changed, it may be retried.
            StorageFailed: the process must end (S12).
        """
        match effect:
            case Persist(control):
                self._control_file.store(control)
                self.control = control
            case ResetWal(base_lsn, tli):
                self._record_end_search = None
                self._storage_for_reset(tli).reset(base_lsn, tli)
            case SetWalAside(label):
                self._record_end_search = None
                self._set_wal_aside(label)
            case InspectSetAside(label, control):
                return self._inspect_set_aside(label, control)
            case RestoreWal(label):
                self._record_end_search = None
                return self._restore_wal(label)
            case WriteWal(begin_lsn, payload):
                self.opened_storage().append(begin_lsn, payload)
            case FlushWal():
                self.opened_storage().flush_now()
            case TruncateWal(lsn, tli):
                self._record_end_search = None
                self.opened_storage().truncate(lsn, tli)
            case TrimWal(lsn):
                self.opened_storage().trim(lsn)
            case ReadWal(begin_lsn, end_lsn):
                return self.opened_storage().read(begin_lsn, end_lsn)
            case DigestWal(begin_lsn, end_lsn):
                return self.opened_storage().page_digests(begin_lsn, end_lsn)
            case FindRecords(lsn):
                storage = self.opened_storage()
                return find_records(storage.read, lsn, storage.begin_lsn, storage.flush_lsn, self._segment_size)
            case FindRecordEnd(lsn):
                storage = self.opened_storage()
                search = self._record_end_search
                if search is None or search.lsn != lsn:
                    search = self._record_end_search = RecordEndSearch(lsn, self._segment_size)
                return search.find(storage.read, storage.flush_lsn)
            case FindTimedRecord(begin_lsn, end_lsn):
                return find_timed_record(self.opened_storage().read, begin_lsn, end_lsn, self._segment_size)
            case _:
                raise LocalProtocolError(f"{type(effect).__name__} cannot be carried out by the disk")
        return None

    def perform_all(self, effects: Effects) -> None:
        """Execute effects that only use the disk, one after the other: at the start, before the event loop runs.

        Raises:
            As `perform`; StorageFull too, if the effects do not handle it.
        """
        try:
            effect = next(effects)
            while True:
                try:
                    result = self.perform(effect)
                except StorageFull as full:
                    effect = effects.throw(full)
                else:
                    effect = effects.send(result)
        except StopIteration:
            return

    def agents_file(self) -> StateFile:
        """Return the file of the settings that agents share."""
        return agents_file(self._fs, self.directory)

    def event_file(self) -> EventFile:
        """Return the files of the kept events."""
        return EventFile(self._fs, self.directory)

    def wal_reader(self) -> WalReader:
        """Return a new reader of the log. Call it only once there is WAL."""
        return WalReader(self._fs, self.control.segment_size, self._segment_path)

    def close(self) -> None:
        """Release all files and the lock. Unflushed WAL may be lost."""
        if self.storage is not None:
            self.storage.close()
            self.storage = None
        self._lock.release()

    def opened_storage(self) -> WalStorage:
        """Return the storage; it exists once a history was adopted."""
        if self.storage is None:
            raise LocalProtocolError("the data folder has no WAL yet")
        return self.storage

    def _segment_path(self, lsn: Lsn) -> Path | None:
        return self.storage.segment_path(lsn) if self.storage is not None else None

    def _load(self, safekeeper_id: int, new_incarnation: str) -> None:
        control = self._control_file.load(ControlState)
        if control is None:
            if self._fs.listdir(self._wal_directory):
                raise DiskLost(
                    f"{self.directory} contains WAL but no control file: the promises of this safekeeper are lost; "
                    "move the folder away and start with an empty one, which walproxy members replace makes a member"
                )
            control = ControlState(safekeeper_id=safekeeper_id, incarnation=new_incarnation)
        if control.membership is not None:
            try:
                check_quorum_sizes(control.membership)
            except RemoteProtocolError as error:
                raise ConfigurationError(f"{self.directory} has a membership that is not valid: {error}") from None
        if control.safekeeper_id != safekeeper_id:
            raise ConfigurationError(
                f"{self.directory} belongs to safekeeper {control.safekeeper_id}, not {safekeeper_id}: "
                "correct --id or --data-dir"
            )
        if control.segment_size and not control.set_aside and not control.restore_from:
            self._secure_removals(control)
            self._open_storage(control)
            self._check_wal(control)
        # After a failed fsync the page cache may differ from the disk: writing the state again makes it durable (S12).
        self._control_file.store(control)
        self.control = control

    def _secure_removals(self, control: ControlState) -> None:
        """Make the position below which WAL is removed durable, if opening the log will remove any (S8, S12).

        After a failed sync it may be in the page cache only. If a power cut then restored the older position, the
        removed segments would count as lost.
        """
        if not names_below(self._fs.listdir(self._wal_directory), control.wal_begin_lsn, control.segment_size):
            return
        try:
            self._control_file.store(control)
        except StorageFull:
            # The removal frees space. The content of the file was synced before its rename: the name remains.
            sync_names(self._fs, self.directory)

    def _open_storage(self, control: ControlState) -> WalStorage:
        self._segment_size = control.segment_size
        tli = max(tli_at(control.history, control.commit_lsn), 1)
        self.storage = WalStorage.open(
            self._fs,
            self._wal_directory,
            segment_size=control.segment_size,
            tli=tli,
            begin_lsn=control.wal_begin_lsn,
        )
        return self.storage

    def _check_wal(self, control: ControlState) -> None:
        lost = missing_wal(control, self.begin_lsn, self.flush_lsn, self._wal_directory)
        if lost is not None:
            raise DiskLost(lost)

    def _storage_for_reset(self, tli: int) -> WalStorage:
        if self.storage is not None and self._segment_size == self.control.segment_size:
            return self.storage
        if self.storage is not None:
            self.storage.close()
            self.storage = None
        return self._open_storage(self.control)

    def _set_wal_aside(self, label: str) -> None:
        """Move each file of the WAL to a folder for WAL set aside. After a crash it can be repeated."""
        if self.storage is not None:
            self.storage.close()
            self.storage = None
        # A crash may have left an unfinished segment. It is not part of the log, and inspection would report it.
        for name in self._fs.listdir(self._wal_directory):
            if name.endswith(TEMPORARY_SUFFIX):
                self._fs.unlink(self._wal_directory / name)
        self._move_files(self._wal_directory, self._folder_aside(label))

    def _inspect_set_aside(self, label: str, control: ControlState) -> str:
        """Return why the WAL that was set aside cannot be restored, empty if it can."""
        directory = self._folder_aside(label)
        if not control.segment_size:
            return ""
        segments, problems = inspect(self._fs, directory, control.segment_size, control.wal_begin_lsn)
        begin_lsn = segments[0].begin_lsn if segments else 0
        # Also a file without WAL that counts: the undo is durable before the log is opened, which would then fail.
        problems += [f"{each.name} {problem}" for each in segments if each.is_damaged for problem in each.problems]
        lost = missing_wal(control, begin_lsn, end_of_chain(segments, control.segment_size), directory)
        if lost is None and not problems:
            return ""
        return f"the WAL that the rebootstrap set aside is incomplete: {'; '.join(filter(None, [lost, *problems]))}"

    def _restore_wal(self, label: str) -> Lsn:
        """Move back the WAL that was set aside, and open it. After a crash it can be repeated."""
        if self.storage is not None:
            self.storage.close()
            self.storage = None
        self._fs.make_directory(self._wal_directory)
        self._move_files(self._folder_aside(label), self._wal_directory)
        if not self.control.segment_size:
            return 0
        storage = self._open_storage(self.control)
        self._check_wal(msgspec.structs.replace(self.control, restore_from=""))
        return storage.flush_lsn

    def _folder_aside(self, label: str) -> Path:
        return self.directory / f"{WAL_FOLDER}.{label}"

    def _move_files(self, source: Path, target: Path) -> None:
        names = self._fs.listdir(source)
        if not names:
            # A process before may have moved all of them, and ended before it synced: a power cut would undo that after
            # the control file has recorded it.
            for directory in (target, source):
                if self._fs.exists(directory):
                    sync_names(self._fs, directory)
            return
        self._fs.make_directory(target)
        with self._fs.hold_directory(target), self._fs.hold_directory(source):
            try:
                # In descending order, so that a crash leaves a log without a gap.
                for name in sorted(names, reverse=True):
                    self._fs.rename(source / name, target / name)
            except StorageFull as full:
                raise StorageFailed(str(full)) from full
            sync_names(self._fs, target)
            sync_names(self._fs, source)
