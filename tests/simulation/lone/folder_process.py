"""The process of a data folder that random operations drive: its starts, its ends, and the faults of its disk.

See folder.py, which has the operations.
"""

import copy
import random
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from safekeeper.acceptor.effects import (
    Persist,
    ResetWal,
    RestoreWal,
    SetWalAside,
    TruncateWal,
)
from safekeeper.base.errors import StorageFailed, StorageFull
from safekeeper.base.events import KeptEvent
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.storage.data_folder import DataFolder, KeptSettings
from safekeeper.storage.disk_work import Flush, Preparation, Removal
from safekeeper.storage.wal_reading import WalReader
from tests.simulation.lone.folder_damage import Damage, inspected
from tests.simulation.lone.folder_model import (
    CONTROL_PATH,
    DIRECTORY,
    WAL_DIRECTORY,
    FolderModel,
    Log,
    require,
    require_absent,
)
from tests.simulation.model.virtual_disk import VirtualCrash, VirtualFileSystem
from tests.simulation.references.folder import (
    FoundLog,
    Start,
    control_of,
    is_segment_name,
    log_of,
    start_in,
    start_of,
    valid_end,
)
from tests.simulation.seeds.counts import Counts

SAFEKEEPER_ID = 3
UNLIMITED_BYTES = 1 << 40
TRACE_LINES = 40
STARTS_MAX = 50


class FolderProcess:
    """A data folder, its disk, and what befalls them.

    Attributes:
        counts: how often each thing happened.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed} lone folder")
        self.fs = VirtualFileSystem(random.Random(f"{seed} lone folder's disk"))
        self.fs.make_directory(DIRECTORY.parent)
        self.counts = Counts()
        self._model = FolderModel(self.fs, self.rng)
        self._damage = Damage(self.fs, self.rng)
        self._size = self.rng.choice((4096, 8192, 16384))
        self._folder: DataFolder | None = None
        self._settings: tuple[KeptSettings | None, ...] = (None,)  # Of the agents: what the file may have.
        self._events: list[KeptEvent] = []
        self._next_control: ControlState | None = None  # Its store has not returned.
        self._aside: dict[str, tuple[ControlState, Log]] = {}
        self._going_aside: dict[str, tuple[ControlState, Log]] = {}
        self._flush: Flush | None = None
        self._preparation: Preparation | None = None
        self._removals: list[Removal] = []
        self._reader: WalReader | None = None
        self._cuts = 0
        self._labels = 0
        self._troubles = 0
        self._is_other_file = False  # Whether the present operation uses neither the log nor the control file.
        self._had_lost_pages = False
        self._trace: deque[str] = deque(maxlen=TRACE_LINES)

    def trace(self) -> list[str]:
        """Return the last operations."""
        return list(self._trace)

    def _guard(self, step: Callable[[], None]) -> None:
        """Do one thing; an error must have a cause, and leaves what it may leave."""
        troubles, self._is_other_file = self.fs.troubles, False
        try:
            step()
            self._model.check(self._open_folder)
        except VirtualCrash:
            self._note("dies")
            self._restart()
        except StorageFull as full:
            self._require_cause(full, troubles)
            self._refill()
        except StorageFailed as error:
            self._require_cause(error, troubles)
            self._restart()

    def _refill(self) -> None:
        """There is space again: what was refused is repeated."""
        self.fs.capacity_bytes, self.fs.short = UNLIMITED_BYTES, 0
        self._next_control = None
        self._model.check_without_log(self._open_folder)
        left = [name for name in self._model.files() if name.endswith(".new")]
        require(not left, f"an operation without space has left {left}")
        try:
            self._finish()
            self._model.check(self._open_folder)
        except VirtualCrash:
            self._restart()
        except (StorageFailed, StorageFull) as error:
            self._require_cause(error, self._troubles)
            self._restart()

    def _require_cause(self, error: Exception, troubles: int) -> None:
        self._note(f"fails: {error}")
        require(self.fs.troubles > troubles or self._had_lost_pages, f"an error although the disk works: {error}")
        if not isinstance(error, StorageFailed) or self._folder is None or not str(error).endswith("be restarted"):
            return
        if self._is_other_file:
            return
        if self._next_control is None:
            self._model.check_failed(self._folder)
            return
        try:
            self._folder.perform(Persist(self._control))
        except StorageFailed:
            return
        raise AssertionError("a control file that has failed is stored again")

    @property
    def _open_folder(self) -> DataFolder:
        assert self._folder is not None
        return self._folder

    @property
    def _control(self) -> ControlState:
        assert self._model.control is not None
        return self._model.control

    @property
    def _log(self) -> Log | None:
        """The log, if operations may use it now."""
        return None if self._model.is_pending else self._model.log

    def _chance(self, of: float) -> bool:
        return self.rng.random() < of

    def _note(self, line: str) -> None:
        self._trace.append(line)

    def _persist(self, **changes: object) -> None:
        control = msgspec.structs.replace(self._control, **changes)
        self._note(f"store {', '.join(changes)}")
        self._next_control = control
        try:
            self._open_folder.perform(Persist(control))
        except StorageFull:
            self._next_control = None
            require(not self.fs.exists(CONTROL_PATH.with_name("control.new")), "an unfinished control file is left")
            raise
        self._model.control, self._next_control = control, None

    def _finish(self) -> None:
        """Execute what is pending by the control file, then record that it is done."""
        folder, control = self._open_folder, self._control
        if control.set_aside:
            self._die_amid_preparation()
            self._forget_work()
            self._die_soon()
            folder.perform(SetWalAside(control.set_aside_as))
            require(not self._model.files(), "files of the WAL were not set aside")
            require(folder.storage is None, "the WAL that was set aside is still open")
            require_absent(folder.wal_reader(), control.segment_size)
            if control.set_aside_as in self._going_aside:
                self._aside[control.set_aside_as] = self._going_aside[control.set_aside_as]
            self._model.log = None
            self._persist(set_aside=False, set_aside_as="")
        if self._control.restore_from:
            self._restore_now(self._control.restore_from)
        control = self._control
        if control.base_lsn is not None:
            self._forget_work()
            tli = self._tli()
            folder.perform(ResetWal(control.base_lsn, tli))
            self._model.log = Log(control.segment_size, control.base_lsn, tli)
            self._cuts += 1
            self._persist(base_lsn=None, wal_begin_lsn=control.base_lsn)
        elif control.truncate_to is not None:
            log = self._model.log
            assert log is not None
            lsn = min(control.truncate_to, folder.opened_storage().write_lsn)
            if self._chance(0.1):
                self.fs.short = 1
            elif self._chance(0.05):
                self.fs.short_of_memory_in(1)
            operations = self.fs.operations
            try:
                folder.perform(TruncateWal(lsn, self._tli()))
            except StorageFull:
                require(self.fs.operations == operations, "a cut that is to be repeated has changed something")
                raise
            self._preparation = None
            log.cut(lsn, self._tli())
            self._cuts += 1
            self._persist(truncate_to=None)

    def _forget_work(self) -> None:
        self._flush = self._preparation = None
        self._removals.clear()
        self._cuts += 1

    def _die_soon(self) -> None:
        """Let the process end, or space lack, in the next steps, which move many files."""
        if self._chance(0.3):
            self.fs.crash_in(self.rng.randint(1, 10))
        elif self._chance(0.1):
            self.fs.full_in(self.rng.randint(1, 6))

    def _die_amid_preparation(self) -> None:
        """Let the process end while another thread still creates a segment of the log that goes."""
        storage = self._open_folder.storage
        preparation = self._preparation or (storage.prepare_ahead() if storage is not None else None)
        if preparation is not None and self._chance(0.5):
            self.fs.crash_in(self.rng.randint(2, 6))
            preparation.run()

    def _tli(self) -> int:
        return self._control.history[-1].tli

    def _begin_log(self, segment_size: int) -> None:
        base_lsn = segment_size * self.rng.randint(1, 300000)
        last = self._control.history[-1] if self._control.history else HistoryEntry(0, 0, 1)
        entry = HistoryEntry(last.term + 1, base_lsn, last.tli + self.rng.randrange(2))
        self._persist(
            segment_size=segment_size,
            history=(entry,),
            base_lsn=base_lsn,
            commit_lsn=0,
            truncate_to=None,
            cluster_id="cluster",
        )
        self._finish()

    def _restore_now(self, label: str) -> None:
        self._forget_work()
        self._die_soon()
        restored_lsn = self._open_folder.perform(RestoreWal(label))
        _, log = self._aside[label]
        require(restored_lsn == self._open_folder.flush_lsn, "the end of restored WAL is not that of the log")
        log.recovered(restored_lsn)
        log.tli = self._recovered_tli()
        self._model.log = log
        self._persist(restore_from="")
        del self._aside[label]
        self.counts.count("logs restored in a lone folder")

    def _recovered_tli(self) -> int:
        """Return the timeline of new segments after a start: that of the byte at the commit position."""
        control = self._control
        older = [entry for entry in control.history if entry.start_lsn <= control.commit_lsn]
        return max((older or control.history[:1])[-1].tli, 1)

    def _break_disk(self) -> None:
        fs, soon = self.fs, self.rng.randint(1, 6)
        kind = self.rng.choice(
            (
                *("crash", "crash", "fail", "sync", "names", "remove", "full", "fill", "short", "memory"),
                *("read", "write", "write"),
            )
        )
        self._note(f"fault: {kind} in {soon}")
        if kind == "crash":
            fs.crash_in(2 * soon)
        elif kind in ("fail", "sync", "names", "remove", "write"):
            only = {"fail": None, "sync": "sync", "names": "sync folder", "remove": "remove", "write": "write"}
            fs.fail_in(soon, only=only[kind])
        elif kind == "full":
            fs.full_in(soon)
        elif kind == "fill":
            fs.capacity_bytes = fs.used_bytes() + self.rng.randint(0, 3 * self._size)
        elif kind == "short":
            fs.short = self.rng.randint(1, 2)
        elif kind == "memory":
            fs.short_of_memory_in(soon)
        else:
            fs.fail_read_in(soon)

    def _restart(self) -> None:
        """End the process or the machine, and start again, until a start succeeds."""
        for _ in range(STARTS_MAX):
            self._end_process()
            if self._chance(0.3):
                self._start_on_damage()
            if self._chance(0.3):
                self._break_disk()
            if self._has_old_files() and self._chance(0.4):
                # There is no space to store first below which position they are removed.
                self.fs.full_in(self.rng.randint(2, 5))
                if self._chance(0.6):
                    self.fs.crash_in(self.rng.randint(8, 18))
            self._had_lost_pages = self.fs.shows_lost_pages
            self._troubles = troubles = self.fs.troubles
            try:
                self._start()
                self._model.check(self._open_folder)
                return
            except VirtualCrash:
                self._note("dies at the start")
            except (StorageFailed, StorageFull) as error:
                self._require_cause(error, troubles)
        raise AssertionError("no start succeeds")

    def _has_old_files(self) -> bool:
        """Return whether there are segments below the beginning of the log: a start removes them."""
        if self._log is None:
            return False
        size, begin_lsn = self._log.size, self._control.wal_begin_lsn
        names = [name for name in self._model.files() if is_segment_name(name)]
        return any((start_in(name, size) or begin_lsn) < begin_lsn for name in names)

    def _end_process(self) -> None:
        self._forget_work()
        self._folder, self._reader = None, None
        if self._chance(0.5):
            self._note("crash")
            self.fs.crash()
        else:
            self._note("kill")
            self.fs.kill()
            if self._chance(0.3):
                self.fs.evict()
            elif self._chance(0.8):
                # The system needs the memory only when the start has begun to read: mostly when it copies.
                self.fs.evict_in(self.rng.choice((2, 3, 3, 4)))
        self.fs.capacity_bytes, self.fs.short = UNLIMITED_BYTES, 0
        self._adopt_control()

    def _adopt_control(self) -> None:
        """Take the control state that the end of the process has left, which is the old one or the new one."""
        found = self.fs.shown_contents(DIRECTORY).get("control")
        if found is not None and self._next_control is not None and control_of(found) == self._next_control:
            # Until a start has succeeded a power cut may still bring back the other one.
            self._model.control, self._next_control = self._next_control, self._model.control

    def _expected(self) -> Start | type[Exception]:
        """Return what a start must make of the files as they are shown."""
        control_file = self.fs.shown_contents(DIRECTORY).get("control")
        return start_of(control_file, self.fs.shown_contents(WAL_DIRECTORY), SAFEKEEPER_ID)

    def _start(self) -> None:
        expected = self._expected()
        if not self._had_lost_pages:
            require(isinstance(expected, Start), "the folder is lost")
        is_new = self._model.control is None
        folder = DataFolder.open(self.fs, DIRECTORY, SAFEKEEPER_ID, "f" * 32)
        self._folder, self._next_control = folder, None
        if is_new:
            self._model.control = ControlState(safekeeper_id=SAFEKEEPER_ID, incarnation="f" * 32)
        require(folder.control == self._model.control, "a start finds another control state than was stored")
        log, storage = self._model.log, folder.storage
        if log is not None and storage is not None and not self._control.is_log_pending:
            if self._control.wal_begin_lsn > log.begin_lsn:
                log.trim(self._control.wal_begin_lsn)
            require(storage.begin_lsn == log.begin_lsn, "the WAL begins elsewhere after a start")
            if self._control.truncate_to is not None:
                log.acked_lsn = min(log.acked_lsn, self._control.truncate_to)
            log.recovered(storage.flush_lsn)
            log.tli = self._recovered_tli()
            if isinstance(expected, Start) and expected.log is not None and not self._had_lost_pages:
                require(expected.log.end_lsn == storage.flush_lsn, "the WAL ends elsewhere than by its footer")
        self._model.check_start(folder)
        self._is_other_file = True
        self._check_other_files(folder)
        self._is_other_file = False
        self._finish()
        if not self._control.segment_size:
            self._begin_log(self._size)

    def _start_on_damage(self) -> None:
        """Start on a damaged folder: the error is that of the reference, and nothing of the WAL is removed by it."""
        if self._model.control is None or self.fs.shows_lost_pages:
            return
        fs, self.fs = self.fs, copy.deepcopy(self.fs, {id(self.fs.rng): self.fs.rng})
        self.counts.count("starts on damaged folders")
        try:
            damage = Damage(self.fs, self.rng).of_folder()
            self._note(f"damaged: {damage}")
            expected, before = self._expected(), self.fs.shown_contents(WAL_DIRECTORY)
            inspected(self.fs, expected, before)
            outcome: object = None
            try:
                folder = DataFolder.open(self.fs, DIRECTORY, SAFEKEEPER_ID, "f" * 32)
                log = expected.log if isinstance(expected, Start) else None
                outcome = folder.control, (folder.begin_lsn, folder.flush_lsn) if log is not None else None
            except Exception as error:
                self._note(f"refused: {error}")
                outcome = type(error)
                after = self.fs.shown_contents(WAL_DIRECTORY)
                gone = [name for name in self._to_be_kept(before) if name not in after]
                require(not gone, f"a start that is refused has removed {gone}")
            wanted: object = expected
            if isinstance(expected, Start):
                log = expected.log
                new = ControlState(safekeeper_id=SAFEKEEPER_ID, incarnation="f" * 32)
                wanted = expected.control or new, (log.begin_lsn, log.end_lsn) if log is not None else None
            if outcome != wanted:
                raise AssertionError(f"a start ends with {outcome}, not {wanted}")
        finally:
            self.fs = fs

    def _to_be_kept(self, files: Mapping[str, bytes]) -> list[str]:
        """Return the segments that a refused start must leave: those of the log, or all with WAL if it is damaged."""
        control = control_of(self.fs.shown_contents(DIRECTORY).get("control", b""))
        if not isinstance(control, ControlState) or not control.segment_size or control.base_lsn is not None:
            return []
        size, begin_lsn = control.segment_size, control.wal_begin_lsn
        log = log_of(files, size, begin_lsn)
        if isinstance(log, FoundLog):
            return list(log.names)
        starts = {name: start_in(name, size) for name in files if is_segment_name(name)}
        return [
            name
            for name, start in starts.items()
            if start is not None and start + size > begin_lsn and (valid_end(files[name], start, size) or 0) > start
        ]

    def _check_other_files(self, folder: DataFolder) -> None:
        """Compare what a start finds in the files that are not of the log; a power cut may take unsynced events."""
        settings = folder.agents_file().load(KeptSettings)
        if not self._had_lost_pages:
            require(settings in self._settings, "the agents' settings are not what was stored")
        self._settings = (settings,)
        if settings is not None:
            folder.agents_file().store(settings)
        events = folder.event_file().load()
        require(all(each in self._events for each in events), "events are found that were not kept")
        require(events == sorted(events, key=lambda kept: kept.seq), "events are found in another order")
        self._events = events
        space = folder.space()
        require(space == (self.fs.capacity_bytes - self.fs.used_bytes(), self.fs.capacity_bytes), "space is wrong")
