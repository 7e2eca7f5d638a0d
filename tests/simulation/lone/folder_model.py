"""The model beside a data folder that random operations drive: what was written, and what must be on the disk.

`FolderModel` has what the safekeeper was sent and what it has acknowledged, never how the files are made. It compares
them with what the folder answers, and, after each operation, with what a power cut would leave at this moment: the
durable bytes under durable names, read by references/folder.py.
"""

import random
from itertools import pairwise
from pathlib import Path

import google_crc32c

from safekeeper.acceptor.effects import DigestWal, ReadWal
from safekeeper.base.errors import LocalProtocolError, StorageFailed
from safekeeper.base.lsn import format_lsn, segment_start
from safekeeper.consensus.control_state import ControlState
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.wal_reading import WalReader
from tests.simulation.model.virtual_disk import VirtualFileSystem
from tests.simulation.references.folder import SLOT_BYTES, FoundLog, control_of, log_of

DIRECTORY = Path("/machine/data")
WAL_DIRECTORY = DIRECTORY / "wal"
CONTROL_PATH = DIRECTORY / "control"
PAGE_BYTES = 8192
# So many operations that change nothing durable, and so many of all, are followed by a look at the bytes.
SELDOM, OFTEN = 0.15, 0.5


def require(holds: bool, text: str) -> None:
    """Raise AssertionError with this text unless something holds."""
    if not holds:
        raise AssertionError(text)


def require_absent(reader: WalReader, lsn: int) -> None:
    """Ask a reader for WAL that does not exist: that must be an error."""
    try:
        reader.fetch(lsn, lsn + 1)
    except StorageFailed as error:
        require("does not exist" in str(error), f"another error: {error}")
        return
    raise AssertionError("a reader fetches what does not exist")


class Log:
    """WAL as it was written.

    Attributes:
        size: bytes of a segment.
        begin_lsn, data: the bytes.
        acked_lsn: below it all is durable.
        tlis: by segment start, the timeline in its name.
        tli: of the names of new segments.
    """

    def __init__(self, size: int, begin_lsn: int, tli: int) -> None:
        self.size = size
        self.begin_lsn = self.acked_lsn = begin_lsn
        self.data = bytearray()
        self.tli = tli
        self.tlis = {begin_lsn: tli}

    @property
    def end_lsn(self) -> int:
        """The end of what was written."""
        return self.begin_lsn + len(self.data)

    @property
    def tail_lsn(self) -> int:
        """The start of the last segment that has a byte, or of the first one."""
        return segment_start(max(self.end_lsn - 1, self.begin_lsn), self.size)

    def bytes_of(self, begin_lsn: int, end_lsn: int) -> bytes:
        """Return the bytes [begin_lsn, end_lsn)."""
        return bytes(self.data[begin_lsn - self.begin_lsn : end_lsn - self.begin_lsn])

    def name(self, start_lsn: int) -> str:
        """Return the name of the segment that begins there, which has one."""
        number, per_id = start_lsn // self.size, (1 << 32) // self.size
        return f"{self.tlis[start_lsn]:08X}{number // per_id:08X}{number % per_id:08X}"

    def names(self) -> set[str]:
        """Return the names of all its segments."""
        return {self.name(start) for start in self.tlis}

    def write(self, data: bytes) -> None:
        """Append; segments that begin get the present timeline."""
        before = self.end_lsn
        self.data += data
        for start in range(segment_start(before, self.size), self.end_lsn, self.size):
            self.tlis.setdefault(start, self.tli)

    def cut(self, lsn: int, tli: int) -> None:
        """End at `lsn`, durably; the segment that contains it gets the new timeline, unless `lsn` is its end."""
        del self.data[lsn - self.begin_lsn :]
        self.acked_lsn, self.tli = lsn, tli
        self.tlis = {start: each for start, each in self.tlis.items() if start < lsn or start == self.begin_lsn}
        if lsn % self.size or lsn == self.begin_lsn:
            self.tlis[segment_start(lsn, self.size)] = tli

    def trim(self, lsn: int) -> None:
        """Begin at `lsn`."""
        del self.data[: lsn - self.begin_lsn]
        self.begin_lsn = lsn
        self.tlis = {start: tli for start, tli in self.tlis.items() if start >= lsn}

    def recovered(self, end_lsn: int) -> None:
        """Go on after a restart that has found WAL up to there."""
        require(
            self.acked_lsn <= end_lsn <= self.end_lsn,
            f"a start finds WAL up to {format_lsn(end_lsn)}; acknowledged {format_lsn(self.acked_lsn)}, "
            f"written {format_lsn(self.end_lsn)}",
        )
        del self.data[end_lsn - self.begin_lsn :]
        self.acked_lsn = end_lsn
        self.tlis = {start: tli for start, tli in self.tlis.items() if start < max(end_lsn, self.begin_lsn + 1)}


class FolderModel:
    """What must be true of a data folder.

    Attributes:
        control: the durable control state; None before the first start.
        log: the WAL that the folder is to hold, None if there is none.
    """

    def __init__(self, fs: VirtualFileSystem, rng: random.Random) -> None:
        self._fs = fs
        self._rng = rng
        self.control: ControlState | None = None
        self.log: Log | None = None
        self._checked: tuple[object, ...] = ()

    @property
    def is_pending(self) -> bool:
        """Whether a cut or the replacement of the log is not finished: then its files do not count."""
        control = self.control
        return control is not None and (control.is_log_pending or control.truncate_to is not None)

    def files(self) -> dict[str, bytes]:
        """Return the files of the WAL as the system shows them."""
        return self._fs.shown_contents(WAL_DIRECTORY)

    def check(self, folder: DataFolder) -> None:
        """Compare all that can be seen of an open folder, and what a power cut would leave of it."""
        log, storage = self.log, folder.storage
        require(folder.control == self.control, "the folder shows another control state than was stored")
        checked = (self.control, log, log.begin_lsn, log.acked_lsn, log.tli) if log is not None else (self.control,)
        if checked != self._checked or self._rng.random() < SELDOM:
            self.check_durable()
            self._checked = checked
        if storage is None:
            require((folder.wal_bytes, folder.begin_lsn, folder.flush_lsn) == (0, 0, 0), "WAL is shown without a log")
        if log is None or storage is None or self.is_pending:
            return
        seen = (storage.begin_lsn, storage.write_lsn, storage.flush_lsn, folder.wal_bytes, folder.begin_lsn)
        expected = (log.begin_lsn, log.end_lsn, log.acked_lsn, len(log.data), log.begin_lsn)
        require(seen == expected and folder.flush_lsn == log.acked_lsn, f"the WAL is {seen}, not {expected}")
        if self._rng.random() < OFTEN:
            self.check_reads(folder, log)

    def check_durable(self) -> None:
        """Compare what a power cut would leave with what was acknowledged."""
        content = self._fs.durable_content(CONTROL_PATH)
        durable = control_of(bytes(content.durable)) if content is not None else None
        require(durable == self.control, "the durable control state is not the one that was stored")
        log, control = self.log, self.control
        if log is None or control is None or self.is_pending:
            return
        files = {path.name: bytes(each.durable) for path, each in self._fs.durable_contents(WAL_DIRECTORY)}
        found = log_of(files, log.size, control.wal_begin_lsn)
        if not isinstance(found, FoundLog):
            raise AssertionError(f"a power cut would leave WAL that cannot be read: {found.__name__}")
        count = log.acked_lsn - log.begin_lsn
        begins_there = found.begin_lsn == log.begin_lsn
        require(
            begins_there and found.end_lsn >= log.acked_lsn and found.data[:count] == log.data[:count],
            f"a power cut would leave [{format_lsn(found.begin_lsn)}, {format_lsn(found.end_lsn)}) of the WAL from "
            f"{format_lsn(log.begin_lsn)}, acknowledged up to {format_lsn(log.acked_lsn)}",
        )

    def check_reads(self, folder: DataFolder, log: Log) -> None:
        """Compare the bytes and the checksums of some range with those that were written."""
        begin_lsn, end_lsn = sorted(self._rng.randint(log.begin_lsn, log.end_lsn) for _ in range(2))
        data = log.bytes_of(begin_lsn, end_lsn)
        require(folder.perform(ReadWal(begin_lsn, end_lsn)) == data, "a read returns other bytes than were written")
        borders = [begin_lsn, *range(begin_lsn - begin_lsn % PAGE_BYTES + PAGE_BYTES, end_lsn, PAGE_BYTES), end_lsn]
        pages = [log.bytes_of(low, high) for low, high in pairwise(borders) if low < high]
        digests = [google_crc32c.value(page) for page in pages]
        require(folder.perform(DigestWal(begin_lsn, end_lsn)) == digests, "the checksums are not those of the bytes")
        start_lsn = self._rng.randrange(log.begin_lsn - log.size, log.end_lsn + 2 * log.size, log.size)
        expected = WAL_DIRECTORY / log.name(start_lsn) if start_lsn in log.tlis else None
        found = folder.opened_storage().segment_path(start_lsn + self._rng.randrange(log.size))
        require(
            found == expected, f"the segment at {format_lsn(start_lsn)} is reported to be in {found}, not {expected}"
        )

    def check_start(self, folder: DataFolder) -> None:
        """Check what a start has left: exactly the log, durable; in its last segment only durable bytes count."""
        log = self.log
        if log is None or folder.storage is None or self.is_pending:
            return
        files = self.files()
        require(set(files) == log.names(), f"the folder has {sorted(files)}, not {sorted(log.names())}")
        tail = log.name(log.tail_lsn)
        self._check_segment(tail, log.bytes_of(log.tail_lsn, log.end_lsn), log.size)

    def check_prepared(self, log: Log) -> None:
        """Check a segment that was prepared: complete, durable, and without WAL."""
        self._check_segment(Log(log.size, log.tail_lsn + log.size, log.tli).names().pop(), b"", log.size)

    def has_prepared(self, log: Log) -> bool:
        """Return whether a file for the next segment exists."""
        return Log(log.size, log.tail_lsn + log.size, log.tli).names() <= self.files().keys()

    def _check_segment(self, name: str, wal: bytes, size: int) -> None:
        content = self._fs.durable_content(WAL_DIRECTORY / name)
        require(content is not None, f"{name} has no durable name")
        assert content is not None
        durable = bytes(content.durable)
        require(len(durable) == size + 2 * SLOT_BYTES, f"{name} has not its full length on the disk")
        require(durable[:size] == wal.ljust(size, b"\0"), f"{name} has other bytes on the disk than its WAL and zeros")
        require(durable == bytes(content.cached), f"{name} is not durable as it is")
        magic = [durable[at : at + 8] for at in (size, size + SLOT_BYTES)]
        require(magic == [b"WALSLOT1"] * 2, f"{name} has not two slots")

    def check_failed(self, folder: DataFolder) -> None:
        """Check that a storage that has failed refuses everything (S12)."""
        storage = folder.storage
        if storage is None or self.log is None or storage.is_empty:
            return
        for refused in (
            lambda: storage.append(storage.write_lsn, b"x"),
            storage.start_flush,
            storage.flush_now,
            storage.prepare_ahead,
            lambda: storage.forget_below(storage.begin_lsn),
            lambda: storage.truncate(storage.begin_lsn, 1),
            lambda: storage.reset(1 << 20, 1),
            lambda: storage.read(storage.begin_lsn, storage.begin_lsn),
        ):
            try:
                refused()
            except StorageFailed:
                continue
            raise AssertionError("a storage that has failed does not refuse everything")

    def check_without_log(self, folder: DataFolder) -> None:
        """Check that a storage without a log, as a reset without space leaves it, refuses whatever needs one."""
        storage = folder.storage
        if storage is None or not storage.is_empty:
            return
        for refused in (
            lambda: storage.append(0, b"x"),
            lambda: storage.truncate(0, 1),
            lambda: storage.forget_below(1 << 20),
            lambda: storage.read(0, 1),
        ):
            try:
                refused()
            except LocalProtocolError:
                continue
            except StorageFailed as error:
                require(str(error).endswith("be restarted"), f"another error: {error}")
                return  # It has failed, and refuses everything.
            raise AssertionError("a storage without a log does what needs one")
        require((storage.begin_lsn, storage.write_lsn, storage.flush_lsn) == (0, 0, 0), "an empty log has a position")
