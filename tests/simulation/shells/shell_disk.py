"""The virtual disk of a real safekeeper, and what is known of it: its bytes, not what the safekeeper believes.

`ShellDisk` is the model that the checkers read. What was written is recorded as the storage gets it.
What is durable is read from the disk itself, whenever it has synced something: the control file under its durable name,
and the segments, each up to its newest slot that matches its durable bytes. So a safekeeper that skips an fdatasync, or
the sync of a folder, or takes one that failed for one that succeeded, cannot deceive a checker.
"""

import copy
import random
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import msgspec

from safekeeper.base.errors import StorageFull
from safekeeper.base.lsn import Lsn, format_lsn, parse_segment_name, segment_start
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.term_history import tli_at
from safekeeper.storage.control_file import CONTROL_FILE_NAME
from safekeeper.storage.data_folder import WAL_FOLDER
from safekeeper.storage.segment_file import FOOTER_BYTES, SLOT_BYTES, FooterSlot
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.checks.violation import Violation
from tests.simulation.model.disk import ModelDisk, StorageDisk
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from tests.simulation.model.virtual_disk import Content

DIRECTORY = Path("/machine/data")
_WAL_DIRECTORY = DIRECTORY / WAL_FOLDER
_CONTROL_PATH = DIRECTORY / CONTROL_FILE_NAME
_HEADER_BYTES, _CRC_BYTES = 16, 4
UNLIMITED_BYTES = 1 << 40


class ShellDisk(StorageDisk):
    """The disk of a real safekeeper.

    Attributes:
        on_persist: called with the control state before, when another one is durable.
        reported: the state that it was last called about.
    """

    def __init__(self, rng: random.Random) -> None:
        self.on_persist: Callable[[ControlState | None], None] | None = None
        self.reported: ControlState | None = None
        self._segments: dict[Lsn, Content] = {}
        self._segments_of = -1  # The count of the disk's durable changes of names that they are of.
        self._cut_lsn: Lsn | None = None  # of a cut that is under way, or failed: what is above it is not claimed
        super().__init__(rng)
        self._watch()

    @property
    def full(self) -> bool:  # type: ignore[override]
        """Whether there is no room for anything new."""
        return self._full

    @full.setter
    def full(self, full: bool) -> None:
        self._full = full
        self.fs.capacity_bytes = self.fs.used_bytes() if full else UNLIMITED_BYTES

    def wipe(self) -> None:
        super().wipe()
        self.fs.make_directory(DIRECTORY.parent)
        self._control_content: object = None
        self.reported = None
        self._cut_lsn = None

    def duplicate(self) -> ModelDisk:
        on_persist, self.on_persist = self.on_persist, None
        try:
            twin = copy.deepcopy(self, {id(self.rng): self.rng})
        finally:
            self.on_persist = on_persist
        twin._watch()
        twin.full, twin.fs.short = False, 0
        twin.crash(power_cut=True)
        return twin

    def open(self) -> tuple[ControlState | None, Lsn]:
        """Let the storage recover, as a safekeeper that starts on a snapshot would."""
        control = self.control
        if control is not None and control.segment_size:
            tli = max(tli_at(control.history, control.commit_lsn), 1)
            begin_lsn = control.wal_begin_lsn
            self.opened(
                control,
                WalStorage.open(self.fs, _WAL_DIRECTORY, segment_size=SEGMENT_SIZE, tli=tli, begin_lsn=begin_lsn),
            )
        return control, self.durable_lsn

    def crash(self, power_cut: bool) -> None:
        super().crash(power_cut)
        if power_cut:
            self.control, _ = self._durable_control()

    def _watch(self) -> None:
        self.fs.on_durable = self._look

    def _look(self) -> None:
        """Something has become durable: look what."""
        before = self.control
        control, is_new = self._durable_control()
        if is_new:
            self.control = control
            if self.on_persist is not None and control != before:
                self.on_persist(before)
        if self._cut_lsn is None:
            self.durable_lsn = max(self.durable_lsn, self._durable_end(self.durable_lsn))

    def _durable_control(self) -> tuple[ControlState | None, bool]:
        """Return the control state that a power cut leaves at least, and whether it has changed."""
        content = self.fs.durable_content(_CONTROL_PATH)
        if content is self._control_content:
            return self.control, False
        self._control_content = content
        if content is None:
            return None, True
        data = bytes(content.durable)
        if google_crc32c.value(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
            raise Violation("DurableBeforeSaid", "the control file has its name, and not its content")
        return msgspec.msgpack.decode(data[_HEADER_BYTES:-_CRC_BYTES], type=ControlState), True

    def _durable_end(self, from_lsn: Lsn) -> Lsn:
        """Return the end of the WAL that is durable, of which that below `from_lsn` is known to be."""
        if not self.begin_lsn:
            return 0
        segments, lsn = self._durable_segments(), from_lsn
        while (content := segments.get(segment_start(lsn, SEGMENT_SIZE))) is not None:
            end_lsn = min(_valid_end(content.durable, segment_start(lsn, SEGMENT_SIZE)), self.write_lsn)
            if end_lsn <= lsn or not self._has_bytes(content, lsn, end_lsn):
                break
            lsn = end_lsn
            if lsn % SEGMENT_SIZE:
                break
        return lsn

    def _has_bytes(self, content: Content, begin_lsn: Lsn, end_lsn: Lsn) -> bool:
        """Return whether these bytes of a segment are on the disk as they were written."""
        offset = begin_lsn % SEGMENT_SIZE
        written = self.wal[begin_lsn - self.begin_lsn : end_lsn - self.begin_lsn]
        return content.durable[offset : offset + end_lsn - begin_lsn] == written

    def _durable_segments(self) -> dict[Lsn, Content]:
        """Return the segments that have a durable name, by their start."""
        if self._segments_of != self.fs.names_made_durable:
            self._segments_of, self._segments = self.fs.names_made_durable, {}
            for path, content in self.fs.durable_contents(_WAL_DIRECTORY):
                parsed = parse_segment_name(path.name, SEGMENT_SIZE)
                if parsed is not None:
                    self._segments[parsed[1]] = content
        return self._segments

    def opened(self, control: ControlState | None, storage: WalStorage | None) -> None:
        """Compare what a safekeeper has found at its start with what must be there, and with what is durable by now."""
        if control != self.control:
            raise Violation(
                "StartIsDurable", "a safekeeper starts with a control state that a power cut may take (S12)"
            )
        if storage is None:
            is_moved = self.control is not None and (self.control.set_aside or bool(self.control.restore_from))
            if self.begin_lsn and self.control is not None and self.control.segment_size and not is_moved:
                raise Violation("EndOfWalIsExact", "the WAL was not opened")
            return
        found = b"" if storage.is_empty else storage.read(storage.begin_lsn, storage.flush_lsn)
        self.accept(storage, found)
        self._cut_lsn = None
        self.durable_lsn = self._durable_end(self.begin_lsn)
        if storage.flush_lsn > self.durable_lsn:
            raise Violation(
                "StartIsDurable",
                f"a safekeeper starts with WAL up to {format_lsn(storage.flush_lsn)}, of which a power cut may take "
                f"what lies above {format_lsn(self.durable_lsn)} (S12)",
            )

    def writing(self, payload: bytes, write: Callable[[], None]) -> None:
        """Let the storage append: whatever comes of it, the bytes may be there; without room they are not."""
        before = len(self.wal)
        self.wal += payload
        try:
            write()
        except StorageFull:
            del self.wal[before:]
            raise

    def truncating(self, lsn: Lsn, tli: int, truncate: Callable[[], None]) -> None:
        """Let the storage cut: while it does, any part above the cut may be there or not."""
        self.durable_lsn = min(self.durable_lsn, lsn)
        self._cut_lsn = lsn
        truncate()
        self._cut_lsn = None
        ModelDisk.truncate(self, lsn, tli)
        self.durable_lsn = self._durable_end(segment_start(max(lsn - 1, self.begin_lsn), SEGMENT_SIZE))

    def restored(self, label: str, storage: WalStorage | None) -> None:
        """The WAL that a rebootstrap has set aside is back: compare it with what was moved, unless there was none."""
        if label in self.aside:
            self.begin_lsn, self.wal, self.durable_lsn = self.aside.pop(label)
        if storage is None:
            if self.begin_lsn:
                raise Violation("EndOfWalIsExact", "the WAL that was set aside was not opened")
            return
        self.accept(storage, b"" if storage.is_empty else storage.read(storage.begin_lsn, storage.flush_lsn))
        self.durable_lsn = self._durable_end(self.begin_lsn)

    def trimmed(self, lsn: Lsn) -> None:
        """The storage removes its oldest segments."""
        ModelDisk.trim(self, lsn)


def _valid_end(durable: bytearray, begin_lsn: Lsn) -> Lsn:
    """Return where the WAL of a segment ends, by its durable bytes alone."""
    footer = bytes(durable[SEGMENT_SIZE : SEGMENT_SIZE + FOOTER_BYTES])
    slots = [slot for at in (0, SLOT_BYTES) if (slot := FooterSlot.decode(footer[at : at + SLOT_BYTES])) is not None]
    for slot in sorted(slots, reverse=True):
        data = bytes(durable[slot.begin_lsn - begin_lsn : slot.end_lsn - begin_lsn])
        if begin_lsn <= slot.begin_lsn and google_crc32c.value(data) == slot.data_crc:
            return slot.end_lsn
    return begin_lsn
