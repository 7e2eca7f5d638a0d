"""One data folder beside a model, driven by random operations, faults and damage: states that clusters seldom reach.

Theory of operation. Operations are those of a safekeeper: they record each decision in the control file before it is
executed, and clear it afterwards, and repeat what is pending after a restart. What the model (folder_model.py)
has is compared after each of them. Meanwhile the disk crashes, fails, lacks space or descriptors, and writes parts
only; an error without such a cause is a violation. Before some starts files are damaged, lost or added
(folder_damage.py); then the start must report what references/folder.py makes of these bytes, must not remove WAL
if it refuses, and the folder goes on from a copy that was made before.

One seed decides everything. Bytes are random: nothing here decodes records.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from safekeeper.acceptor.effects import (
    FlushWal,
    InspectSetAside,
    TrimWal,
    WriteWal,
)
from safekeeper.base.errors import LocalProtocolError, StorageFull
from safekeeper.base.events import Event, KeptEvent
from safekeeper.base.lsn import format_lsn, segment_start
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.messages import AgentSettingsVersion
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.storage import data_folder as data_folder_module
from safekeeper.storage.data_folder import KeptSettings
from safekeeper.storage.disk_work import Flush
from tests.simulation.lone.folder_damage import require_not_found
from tests.simulation.lone.folder_model import DIRECTORY, Log, require, require_absent
from tests.simulation.lone.folder_process import FolderProcess
from tests.simulation.references.folder import (
    FoundLog,
    is_wal_missing,
    log_of,
)
from tests.simulation.seeds.counts import Counts
from tests.simulation.shells.shell_seams import NoLock
from tests.simulation.world.world import SimulationFailed

STEPS = 36


def drive(seed: int, steps: int = STEPS) -> Counts:
    """Let random operations happen to a data folder; return what they reached.

    Raises:
        SimulationFailed: something that must hold did not.
    """
    lone = LoneFolder(seed)
    replaced = data_folder_module.DataDirectoryLock
    data_folder_module.DataDirectoryLock = NoLock  # type: ignore[assignment, misc]
    try:
        lone.run(steps)
    except Exception as error:
        raise SimulationFailed(error, lone.trace()) from error
    finally:
        data_folder_module.DataDirectoryLock = replaced  # type: ignore[misc]
    return lone.counts


class LoneFolder(FolderProcess):
    """A data folder, and the operations on it."""

    def run(self, steps: int) -> None:
        """Do so many random operations."""
        require_not_found(self.fs)
        self._restart()
        weights: Counter[Callable[[], None]] = Counter(
            {
                self._append: 30,
                self._flush_now: 8,
                self._flush_step: 25,
                self._prepare_step: 14,
                self._truncate: 5,
                self._trim: 5,
                self._remove: 8,
                self._store_positions: 4,
                self._reset: 1,
                self._set_aside: 2,
                self._restore: 4,
                self._read_concurrently: 6,
                self._refused: 3,
                self._share_settings: 2,
                self._keep_events: 2,
                self._break_disk: 8,
                self._stop: 2,
                self._die: 3,
            }
        )
        for step in self.rng.choices(list(weights), list(weights.values()), k=steps):
            self._guard(step)
        self._guard(self._stop)

    def _store_positions(self) -> None:
        log = self._log
        if log is not None:
            commit_lsn = self.rng.randint(max(self._control.commit_lsn, log.begin_lsn), log.acked_lsn)
            self._persist(commit_lsn=commit_lsn, promised=LeaderId(self._control.promised.term + 1, "x"))

    def _append(self) -> None:
        log, storage = self._log, self._open_folder.storage
        if log is None or storage is None:
            return
        size = self.rng.choice((1, 100, 500, 1500, log.size, log.size, 3 * log.size))
        data = self.rng.randbytes(self.rng.choice((size, self.rng.randint(1, size))))
        before, operations = log.end_lsn, self.fs.operations
        room = log.tail_lsn + log.size - before
        self._note(f"append {len(data)} at {format_lsn(before)}")
        log.write(data)
        try:
            if self._chance(0.2):
                self._open_folder.perform(WriteWal(before, data))
            else:
                storage.append(before, memoryview(data) if self._chance(0.2) else data)
        except StorageFull:
            del log.data[before - log.begin_lsn :]
            log.tlis = {start: tli for start, tli in log.tlis.items() if start < max(before, log.begin_lsn + 1)}
            require(storage.write_lsn == before, "an append without space has moved the write position")
            raise
        if len(data) <= room:
            require(self.fs.operations - operations <= 2, "an append within a segment does more than to write")

    def _flush_now(self) -> None:
        log, storage = self._log, self._open_folder.storage
        if log is not None and storage is not None and self._flush is None:
            self._note("flush_now")
            if self._chance(0.04):
                self.fs.fail_in(1, only="write")
            if self._chance(0.5):
                self._open_folder.perform(FlushWal())
            else:
                require(storage.flush_now() == log.end_lsn, "flush_now returns another position than the end")
            log.acked_lsn = log.end_lsn

    def _flush_step(self) -> None:
        """Begin a flush, execute it in another thread, or count it."""
        log, storage, flush = self._log, self._open_folder.storage, self._flush
        if log is None or storage is None:
            return
        if flush is None:
            self._flush = flush = storage.start_flush()
            require((flush is None) == (log.acked_lsn == log.end_lsn), "a flush begins without WAL, or with WAL none")
            require(flush is None or flush.end_lsn == log.end_lsn, "a flush ends elsewhere than the WAL")
        elif not flush.done:
            self._note(f"flush to {format_lsn(flush.end_lsn)} runs")
            if self._chance(0.3):
                self.fs.during_fdatasync = self._meanwhile
            elif self._chance(0.05):
                # Of the syncs that fail most are of other files.
                self.fs.fail_in(1, only="sync")
            try:
                flush.run()
            finally:
                self.fs.during_fdatasync = None
        else:
            storage.finish_flush(flush)
            log.acked_lsn, self._flush = flush.end_lsn, None

    def _meanwhile(self) -> None:
        """The loop's thread goes on while another one waits for its fdatasync."""
        require(self._open_folder.opened_storage().start_flush() is None, "a flush begins while another one runs")
        try:
            self._append()
        except StorageFull:
            self._note("full meanwhile")

    def _prepare_step(self) -> None:
        """Begin the preparation of a segment, execute it, or take it over."""
        log, storage, preparation = self._log, self._open_folder.storage, self._preparation
        if log is None or storage is None:
            return
        if preparation is None:
            is_due = log.end_lsn - log.tail_lsn > log.size // 2 and not self._model.has_prepared(log)
            self._preparation = storage.prepare_ahead()
            require((self._preparation is not None) == is_due, f"a segment is prepared at another time: {is_due}")
        elif self._chance(0.6):
            begun_lsn = log.tail_lsn
            preparation.run()
            if begun_lsn == log.tail_lsn and self._model.has_prepared(log):
                self._model.check_prepared(log)
        else:
            storage.finish_preparation(preparation)
            self._preparation = None

    def _truncate(self) -> None:
        log = self._log
        if log is None or self._flush is not None:
            return
        lsn = self.rng.randint(log.begin_lsn, log.end_lsn)
        borders = (segment_start(lsn, log.size), log.end_lsn, log.acked_lsn, log.begin_lsn, log.tail_lsn)
        lsn = max(log.begin_lsn, self.rng.choice((lsn, *borders)))
        if lsn > log.acked_lsn:
            self._flush_now()  # As the acceptor does: a cut that is pending states that the WAL reaches up to it.
        last = self._control.history[-1]
        entry = HistoryEntry(last.term + 1, lsn, last.tli + self.rng.randrange(2))
        kept = tuple(each for each in self._control.history if each.start_lsn < lsn)
        commit_lsn = min(self._control.commit_lsn, lsn)
        self._persist(history=(*kept, entry), truncate_to=lsn, commit_lsn=commit_lsn)
        self._finish()

    def _trim(self) -> None:
        log, storage = self._log, self._open_folder.storage
        if log is None or storage is None:
            return
        highest_lsn = segment_start(max(log.begin_lsn, log.acked_lsn - 1), log.size)
        lowest_lsn = min(log.begin_lsn + self.rng.choice((0, log.size, log.size)), highest_lsn)
        lsn = self.rng.randrange(lowest_lsn, highest_lsn + 1, log.size)
        if self._chance(0.1):
            # A start then finds the new position, which a power cut may take back.
            self.fs.fail_in(1, only="sync folder")
        self._persist(wal_begin_lsn=lsn)
        log.trim(lsn)
        if self._chance(0.4):
            self._open_folder.perform(TrimWal(lsn))
            self._removals.clear()
            low = [name for name in self._model.files() if name not in log.names() and int(name[16:], 16) < 0]
            require(not low, "files below the beginning were not removed")
        else:
            removal = storage.forget_below(lsn)
            if removal is not None:
                self._removals.append(removal)

    def _remove(self) -> None:
        """Let another thread remove the files of old segments."""
        if self._removals and self._open_folder.storage is not None:
            removal = self._removals.pop(0)
            if self._chance(0.1):
                self.fs.fail_in(1, only="remove")
            if self._chance(0.6):
                self._truncate()  # Meanwhile: a cut waits for the removal, or does it.
            removal.run()
            self._open_folder.storage.finish_removal(removal)

    def _reset(self) -> None:
        if self._flush is None and self._control.segment_size and not self._model.is_pending:
            self._begin_log(self._control.segment_size)

    def _set_aside(self) -> None:
        log = self._log
        if log is None or self._flush is not None:
            return
        if log.tail_lsn == log.begin_lsn and self._chance(0.7):
            self._append()  # A log of several segments can be damaged in more ways.
            self._flush_now()
        self._labels += 1
        label, old = f"c{self._labels}", self._control
        self._going_aside = {label: (old, log)}
        self._persist(set_aside=True, set_aside_as=label, commit_lsn=0, wal_begin_lsn=0, truncate_to=None)
        self._finish()
        self.counts.count("logs set aside in a lone folder")
        self._begin_log(self.rng.choice((4096, 8192, 16384)))

    def _restore(self) -> None:
        labels = [label for label in self._aside if self.fs.shown_contents(DIRECTORY / f"wal.{label}")]
        if not labels or self._model.is_pending or self._flush is not None:
            return
        label = self.rng.choice(labels)
        control, log = self._aside[label]
        for _ in range(3):
            self._require_inspected(label, control, log)
        self._labels += 1
        undone = f"undone-{self._labels}"
        wanted = msgspec.structs.replace(
            control, set_aside=True, set_aside_as=undone, restore_from=label, promised=self._control.promised
        )
        self._persist(**{name: getattr(wanted, name) for name in wanted.__struct_fields__})
        self._finish()

    def _require_inspected(self, label: str, control: ControlState, log: Log) -> None:
        """Compare what an inspection of WAL that was set aside reports with what is there."""
        if self._chance(0.5):
            control = msgspec.structs.replace(control, commit_lsn=log.end_lsn + self.rng.choice((-1, 0, 1)))
        if self._chance(0.1):
            label = "of-which-an-operator-has-deleted-the-files"
        directory = DIRECTORY / f"wal.{label}"
        damaged = self._damage.of_copy(directory) if self._chance(0.5) else None
        is_unlisted = self._chance(0.1)
        if is_unlisted:
            self.fs.fail_read_in(1)
        try:
            found = log_of(self.fs.shown_contents(directory), control.segment_size, control.wal_begin_lsn)
            is_lost = not isinstance(found, FoundLog) or is_wal_missing(control, found)
            troubles = self.fs.troubles
            reported = self._open_folder.perform(InspectSetAside(label, control))
            self._note(f"inspected {label}: {reported}")
            require("error" in reported or not is_unlisted, f"{label} cannot be listed, which is not reported")
            if not self.fs.shows_lost_pages and self.fs.troubles == troubles:
                require(bool(reported) or not is_lost, f"{label} is incomplete, and reported as complete")
                require(not reported or damaged is not None or is_lost, f"{label} is complete: {reported}")
        finally:
            if damaged is not None:
                damaged()

    def _read_concurrently(self) -> None:
        """Read as members and standbys do: with files of their own, at one moment or begun and ended at two."""
        log = self._log
        if log is None or not log.data:
            return
        if self._reader is None or self._chance(0.2):
            if self._reader is not None:
                self._reader.close()
            self._reader, self._cuts = self._open_folder.wal_reader(), 0
        if self._cuts:
            return  # Its file may be of the log before.
        reader = self._reader
        if self._chance(0.1):
            require_absent(reader, log.tail_lsn + 2 * log.size)
            return
        begin_lsn = self.rng.randrange(log.begin_lsn, log.end_lsn)
        end_lsn = self.rng.randint(begin_lsn, min(log.end_lsn, segment_start(begin_lsn, log.size) + log.size))
        expected = log.bytes_of(begin_lsn, end_lsn)
        if self._chance(0.5):
            is_recent = self._chance(0.5)
            data = reader.at_hand(begin_lsn, end_lsn, recent=is_recent)
            require(expected.startswith(data), "a reader gets other bytes than were written")
            return
        job = reader.fetch(begin_lsn, end_lsn)
        is_closed = self._chance(0.2)
        if is_closed:
            reader.close()
            self._reader = None
        try:
            data = job()
        finally:
            reader.fetched()
        require(data == expected, "a reader fetches other bytes than were written")

    def _refused(self) -> None:
        """Ask for what cannot be done: it is refused, and changes nothing."""
        log, storage = self._log, self._open_folder.storage
        if log is None or storage is None:
            return
        beyond, between = log.end_lsn + 1, log.begin_lsn + 1
        tail_lsn = segment_start(max(log.acked_lsn - 1, log.begin_lsn), log.size)
        wishes: list[Callable[[], object]] = [
            lambda: storage.append(beyond, b"x"),
            lambda: storage.append(log.end_lsn - 1, b"x"),
            lambda: storage.read(log.begin_lsn - 1, log.end_lsn),
            lambda: storage.read(log.begin_lsn, beyond),
            lambda: storage.read(between + 1, between),
            lambda: storage.truncate(beyond, log.tli),
            lambda: storage.truncate(log.begin_lsn - 1, log.tli),
            lambda: storage.forget_below(between),
            lambda: storage.forget_below(segment_start(log.end_lsn, log.size) + log.size),
            lambda: storage.reset(0, log.tli),
            lambda: storage.reset(between, log.tli),
        ]
        if self._flush is None:
            other = Flush([], log.end_lsn, storage._fail)
            wishes += [lambda: storage.finish_flush(other)]
        else:
            flush = self._flush
            wishes += [
                storage.flush_now,
                lambda: storage.truncate(tail_lsn, log.tli),
                lambda: storage.reset(log.size, 1),
            ]
            wishes += [flush.run] if flush.done else [lambda: storage.finish_flush(flush)]
        for wish in self.rng.sample(wishes, 3):
            try:
                wish()
            except LocalProtocolError:
                continue
            raise AssertionError("the storage does what cannot be asked of it")

    def _stop(self) -> None:
        """Close the folder, as a process that ends by itself does once no thread works for it."""
        if self._flush is not None:
            return
        self._note("stop")
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._preparation is not None and self._open_folder.storage is not None:
            self._open_folder.storage.finish_preparation(self._preparation)
        self._open_folder.close()
        require(self.fs.open_files == 0, f"{self.fs.open_files} files were not closed")
        self._restart()

    def _die(self) -> None:
        self._note("the process ends")
        self._restart()

    def _share_settings(self) -> None:
        """Store what agents share: afterwards it is durable."""
        self._is_other_file = True
        before = self._settings[-1]
        counter = before.settings.counter + 1 if before is not None else 1
        new = KeptSettings(
            self.rng.choice(("cluster", "other")), AgentSettingsVersion(counter, "author", self.rng.randbytes(20))
        )
        self._settings = (*self._settings, new)
        try:
            self._open_folder.agents_file().store(new)
        except StorageFull:
            self._settings = self._settings[:-1]
            raise
        self._settings = (new,)

    def _keep_events(self) -> None:
        """Append events, which are not synced."""
        self._is_other_file = True
        seq = self._events[-1].seq + 1 if self._events else 1
        event = Event("x-1", seq, "disk-full", "safekeeper 3", "text", {})
        batch = [KeptEvent(number, event) for number in range(seq, seq + self.rng.randint(1, 3))]
        self._events += batch
        self._open_folder.event_file().append(batch)
        found = self._open_folder.event_file().load()
        is_found = found[-len(batch) :] == batch and all(each in self._events for each in found)
        require(is_found, "events that were appended are not found")
