"""What a virtual safekeeper's disk holds: a model for most seeds, the real storage over a virtual disk for the others.

`ModelDisk` is two positions over one run of bytes: what is durable, what is only written. A crash keeps all that is
durable and any part of the rest. `StorageDisk` puts the project's `WalStorage` and control file on a
`VirtualFileSystem`, keeps the model beside it, and compares the two at every restart: nothing durable may be missing,
nothing may be there that was not written. The checkers look at the model's bytes in both cases.
"""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import msgspec

from safekeeper.base.errors import StorageFull
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import DIGEST_PAGE_SIZE
from safekeeper.storage.disk_work import Flush
from safekeeper.storage.filesystem import read_whole, replace_durably
from safekeeper.storage.wal_log import WalStorage
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE, find_records, last_timed_record
from tests.simulation.model.virtual_disk import VirtualFileSystem


class DiskCopy(NamedTuple):
    """A snapshot of a data folder."""

    control: ControlState | None
    begin_lsn: Lsn
    wal: bytes


class ModelDisk:
    """The durable state of one safekeeper.

    Attributes:
        control: the control file.
        begin_lsn: the first byte; 0 while there is no WAL.
        wal: every byte that was written, from begin_lsn on.
        durable_lsn: below it a crash takes nothing.
        full: whether there is no room for anything new.
        aside: what rebootstraps have moved out of the way, by label: first byte, bytes, end of what is durable.
    """

    is_real = False

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.full = False
        self.wipe()

    def wipe(self) -> None:
        """Replace the disk with an empty one."""
        self.control: ControlState | None = None
        self.begin_lsn: Lsn = 0
        self.wal = bytearray()
        self.durable_lsn: Lsn = 0
        self.aside: dict[str, tuple[Lsn, bytearray, Lsn]] = {}
        self.agents: Any = None

    def duplicate(self) -> "ModelDisk":
        """Return another disk with what is on this one, as after a power cut at this moment: a snapshot of it."""
        twin: ModelDisk = copy.deepcopy(self, {id(self.rng): self.rng})
        twin.full = False
        twin.crash(power_cut=True)
        return twin

    def copy(self) -> "DiskCopy":
        """Take a snapshot of what is durable."""
        return DiskCopy(self.control, self.begin_lsn, bytes(self.wal[: self.durable_lsn - self.begin_lsn]))

    def put_back(self, copy: "DiskCopy") -> None:
        """Be what a snapshot was, against S8."""
        self.control, self.begin_lsn, self.wal = copy.control, copy.begin_lsn, bytearray(copy.wal)
        self.durable_lsn = self.write_lsn

    @property
    def write_lsn(self) -> Lsn:
        """End of what was written."""
        return self.begin_lsn + len(self.wal)

    def open(self) -> tuple[ControlState | None, Lsn]:
        """Start a process on this disk; return the control file and where the WAL ends."""
        self._finish_trim()
        return self.control, self.durable_lsn

    def _finish_trim(self) -> None:
        """What a crash has left below the beginning in the control file goes when the log is opened."""
        control = self.control
        if control is not None and control.base_lsn is None and self.begin_lsn < control.wal_begin_lsn < self.write_lsn:
            ModelDisk.trim(self, control.wal_begin_lsn)

    def write(self, begin_lsn: Lsn, payload: bytes) -> None:
        if begin_lsn != self.write_lsn or not self.begin_lsn:
            raise AssertionError(f"the disk is asked to write at {format_lsn(begin_lsn)}, not at its end")
        if self.full and self.rng.random() < 0.5:
            raise StorageFull("no space left on the virtual disk")
        self.wal += payload

    def start_flush(self) -> Any:
        """Take a snapshot of what is written; `finish_flush` makes it durable. None if all of it is."""
        return self.write_lsn if self.durable_lsn < self.write_lsn else None

    def finish_flush(self, flush: Any) -> Lsn:
        self.durable_lsn = max(self.durable_lsn, min(flush, self.write_lsn))
        return self.durable_lsn

    def flush_all(self, under_way: Any) -> None:
        """Make everything written durable, after the flush that is under way (None if none is)."""
        self.durable_lsn = self.write_lsn

    def persist(self, control: ControlState) -> None:
        if self.full and self.rng.random() < 0.5:
            raise StorageFull("no space left on the virtual disk")
        self.control = control

    def truncate(self, lsn: Lsn, tli: int) -> None:
        if not self.begin_lsn <= lsn <= self.write_lsn or not self.begin_lsn:
            raise AssertionError(f"the disk is asked to cut at {format_lsn(lsn)}, which it does not hold")
        del self.wal[lsn - self.begin_lsn :]
        self.durable_lsn = lsn

    def reset(self, base_lsn: Lsn, tli: int) -> None:
        self.begin_lsn, self.durable_lsn = 0, 0
        self.wal = bytearray()
        if self.full and self.rng.random() < 0.5:
            raise StorageFull("no space left on the virtual disk")
        self.begin_lsn = self.durable_lsn = base_lsn

    def trim(self, lsn: Lsn) -> None:
        if not self.begin_lsn or self.begin_lsn < lsn >= self.write_lsn:
            raise AssertionError(f"the disk is asked to remove all WAL below {format_lsn(lsn)}")
        if self.begin_lsn < lsn:
            del self.wal[: lsn - self.begin_lsn]
            self.begin_lsn = lsn

    def drop(self) -> None:
        """Be without WAL."""
        self.begin_lsn, self.durable_lsn = 0, 0
        self.wal = bytearray()

    def set_aside(self, label: str) -> None:
        if self.begin_lsn:
            self.aside[label] = (self.begin_lsn, self.wal, self.durable_lsn)
        self.drop()

    def inspect_set_aside(self, label: str, control: ControlState) -> str:
        _, _, end_lsn = self.aside.get(label, (0, b"", 0))
        needed_lsn = max(control.wal_begin_lsn, control.commit_lsn, control.truncate_to or 0)
        return f"the WAL set aside ends at {format_lsn(end_lsn)}" if end_lsn < needed_lsn else ""

    def restore(self, label: str) -> Lsn:
        # Repeatable: what was moved back before a crash is there already.
        if label in self.aside:
            self.begin_lsn, self.wal, _ = self.aside.pop(label)
            # Opening the log makes all of it durable that is there.
            self.durable_lsn = self.write_lsn
        return self.durable_lsn

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        return bytes(self.wal[begin_lsn - self.begin_lsn : end_lsn - self.begin_lsn])

    def digests(self, begin_lsn: Lsn, end_lsn: Lsn) -> tuple[int, ...]:
        return page_crcs(self.read(begin_lsn, end_lsn), begin_lsn)

    def find_records(self, lsn: Lsn) -> tuple[Lsn, Lsn, None]:
        return (*find_records(self.wal, self.begin_lsn, lsn), None)

    def find_timed_record(self, begin_lsn: Lsn, end_lsn: Lsn) -> Lsn:
        start_lsn, _ = last_timed_record(self.wal, self.begin_lsn, end_lsn)
        return start_lsn if start_lsn >= begin_lsn else 0

    def crash(self, power_cut: bool) -> None:
        """End the process: of what was not durable any part may remain, and is durable after the restart."""
        if self.durable_lsn < self.write_lsn:
            kept_lsn = self.rng.choice((self.durable_lsn, self.rng.randint(self.durable_lsn, self.write_lsn)))
            del self.wal[kept_lsn - self.begin_lsn :]
            self.durable_lsn = kept_lsn


class StorageDisk(ModelDisk):
    """The real storage beside the model, which has what must be there after a crash."""

    is_real = True
    _WAL = Path("/data/wal")
    _CONTROL = Path("/data/control")

    def __init__(self, rng: random.Random) -> None:
        self.fs = VirtualFileSystem(rng)
        self.storage: WalStorage | None = None
        super().__init__(rng)

    def wipe(self) -> None:
        super().wipe()
        self.fs.wipe()
        self.storage = None
        self._next_control: ControlState | None = None
        self._resetting_to: Lsn | None = None

    def open(self) -> tuple[ControlState | None, Lsn]:
        self.fs.capacity_bytes = 1 << 40
        control = self._read_control()
        if control is not None and control not in (self.control, self._next_control):
            raise AssertionError("the control file is neither the old one nor the new one")
        if control is None and self.control is not None:
            raise AssertionError("the control file is gone")
        self.control, self._next_control = control, None
        if control is not None:
            # What was read may stand in the cache only (S12).
            self.persist(control)
        tli = control.history[-1].tli if control is not None and control.history else 1
        begin_lsn = control.wal_begin_lsn if control is not None else 0
        self.storage = storage = WalStorage.open(
            self.fs, self._WAL, segment_size=SEGMENT_SIZE, tli=tli, begin_lsn=begin_lsn
        )
        self.accept(storage, b"" if storage.is_empty else storage.read(storage.begin_lsn, storage.flush_lsn))
        return self.control, storage.flush_lsn

    def accept(self, storage: WalStorage, found: bytes) -> None:
        """Compare the WAL that a start has found with what must be there, and go on with it."""
        control = self.control
        begun_again = self._resetting_to is not None and storage.begin_lsn == self._resetting_to and not found
        # The log of a pending reset is not claimed: opening it may remove any of it.
        is_dropped = control is not None and control.base_lsn is not None
        self._finish_trim()
        if not begun_again and not is_dropped:
            self._compare(storage, found)
        self._resetting_to = None
        self.begin_lsn, self.wal, self.durable_lsn = storage.begin_lsn, bytearray(found), storage.flush_lsn

    def _compare(self, storage: WalStorage, found: bytes) -> None:
        floor_lsn = self.durable_lsn if self._resetting_to is None else 0
        if not floor_lsn <= storage.flush_lsn <= self.write_lsn:
            raise AssertionError(
                f"the WAL ends at {format_lsn(storage.flush_lsn)} after a restart, not within "
                f"[{format_lsn(floor_lsn)}, {format_lsn(self.write_lsn)}] (S13)"
            )
        if found != self.wal[: len(found)] or (found and storage.begin_lsn != self.begin_lsn):
            raise AssertionError("the WAL has other bytes after a restart than were written")

    def _read_control(self) -> ControlState | None:
        if not self.fs.exists(self._CONTROL):
            return None
        content = read_whole(self.fs, self._CONTROL)
        if google_crc32c.value(content[4:]) != int.from_bytes(content[:4], "big"):
            raise AssertionError("the control file is torn")
        return msgspec.msgpack.decode(content[4:], type=ControlState)

    def _opened(self) -> WalStorage:
        assert self.storage is not None  # `open` comes first
        return self.storage

    def write(self, begin_lsn: Lsn, payload: bytes) -> None:
        self._squeeze()
        before = len(self.wal)
        self.wal += payload
        try:
            self._opened().append(begin_lsn, payload)
        except StorageFull:
            del self.wal[before:]
            raise

    def start_flush(self) -> Any:
        return self._opened().start_flush()

    def finish_flush(self, flush: Any) -> Lsn:
        if isinstance(flush, Flush):
            flush.run()
            self._opened().finish_flush(flush)
        self.durable_lsn = self._opened().flush_lsn
        return self.durable_lsn

    def flush_all(self, under_way: Any) -> None:
        self.finish_flush(under_way)
        self._opened().flush_now()
        self.durable_lsn = self._opened().flush_lsn

    def persist(self, control: ControlState) -> None:
        self._squeeze()
        content = msgspec.msgpack.encode(control)
        self._next_control = control
        try:
            replace_durably(self.fs, self._CONTROL, google_crc32c.value(content).to_bytes(4, "big") + content)
        except StorageFull:
            self._next_control = None
            raise
        self.control, self._next_control = control, None

    def truncate(self, lsn: Lsn, tli: int) -> None:
        # While it is under way, any part above the cut may be there or not.
        self.durable_lsn = min(self.durable_lsn, lsn)
        self._opened().truncate(lsn, tli)
        super().truncate(lsn, tli)

    def reset(self, base_lsn: Lsn, tli: int) -> None:
        self._squeeze()
        self.resetting(base_lsn, lambda: self._opened().reset(base_lsn, tli))

    def resetting(self, base_lsn: Lsn, reset: Callable[[], None]) -> None:
        """Let the storage begin an empty log: without room there is none afterwards."""
        self._resetting_to = base_lsn
        try:
            reset()
        except StorageFull:
            self._resetting_to = None
            self.drop()
            raise
        self._resetting_to = None
        self.begin_lsn = self.durable_lsn = base_lsn
        self.wal = bytearray()

    def trim(self, lsn: Lsn) -> None:
        # A crash on the way leaves any of the removed files; the model has all of them until the log is opened again.
        self._opened().trim(lsn)
        super().trim(lsn)

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        return self._opened().read(begin_lsn, end_lsn)

    def digests(self, begin_lsn: Lsn, end_lsn: Lsn) -> tuple[int, ...]:
        return tuple(self._opened().page_digests(begin_lsn, end_lsn))

    def crash(self, power_cut: bool) -> None:
        if power_cut:
            self.fs.crash()
        else:
            self.fs.kill()
        self.storage = None

    def _squeeze(self) -> None:
        self.fs.capacity_bytes = self.fs.used_bytes() if self.full else 1 << 40


def page_crcs(data: bytes | bytearray | memoryview, begin_lsn: Lsn) -> tuple[int, ...]:
    """Return the CRC-32C of each page of `data`, which begins at `begin_lsn`, a page's start."""
    return tuple(
        google_crc32c.value(bytes(data[offset : offset + DIGEST_PAGE_SIZE]))
        for offset in range(0, len(data), DIGEST_PAGE_SIZE)
    )
