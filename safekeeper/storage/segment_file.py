"""One segment of WAL in one file: its layout, its footer, its creation.

A file is `segment_size` bytes of WAL, as PostgreSQL places them, and after them a footer of two 4 KiB slots:

    0                        segment_size       + 4096           + 8192
    | WAL of the segment     | slot, even        | slot, odd      |

With every fdatasync one slot is written to the same file beforehand, alternately to the two places:

    magic | sequence | begin_lsn | end_lsn | CRC-32C of the bytes [begin_lsn, end_lsn) | CRC-32C of the slot

[begin_lsn, end_lsn) is what was written since the last slot. A crash during an fdatasync keeps any part of the bytes
and of the slot. If both are complete, the new slot matches its bytes. If not, the previous slot does: it has the other
place, and its bytes were durable before. So **the newest slot that matches its bytes ends exactly where the segment's
durable WAL ends** (S13), and it is found without decoding PostgreSQL's records.

This holds as long as a slot is written only after the fdatasync of the one before it has returned (detail b), and a
file never has its final name without two durable slots (detail a). A file is therefore created complete: filled under
a temporary name, synced, renamed, its folder synced. As all its blocks are allocated, a later fdatasync writes no
metadata. An empty slot {X, X} always matches; it is written only when all bytes below X are durable.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from safekeeper.base.errors import StorageFailed, StorageFull
from safekeeper.base.lsn import Lsn, segment_name
from safekeeper.storage.filesystem import TEMPORARY_SUFFIX, File, FileSystem, sync_names

SLOT_BYTES = 4096
FOOTER_BYTES = 2 * SLOT_BYTES

_MAGIC = b"WALSLOT1"
_SLOT = struct.Struct("<8sQQQI")
_CRC = struct.Struct("<I")
_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)


class FooterSlot(NamedTuple):
    """One entry of the footer: the bytes [begin_lsn, end_lsn) have this CRC-32C, and all bytes below are durable."""

    sequence: int
    begin_lsn: Lsn
    end_lsn: Lsn
    data_crc: int

    def encode(self) -> bytes:
        """Return the slot as SLOT_BYTES bytes. Its fields fit into the first sector, which is written as a whole."""
        fields = _SLOT.pack(_MAGIC, *self)
        return (fields + _CRC.pack(google_crc32c.value(fields))).ljust(SLOT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> "FooterSlot | None":
        """Return the slot at the beginning of `data`, or None if its magic or checksum is wrong."""
        if len(data) < _SLOT.size + _CRC.size:
            return None
        body = data[: _SLOT.size]
        magic, sequence, begin_lsn, end_lsn, data_crc = _SLOT.unpack(body)
        if magic != _MAGIC or _CRC.unpack_from(data, _SLOT.size)[0] != google_crc32c.value(body):
            return None
        return cls(sequence, begin_lsn, end_lsn, data_crc)


class SegmentFile:
    """One open segment file: the end of its WAL, and the range and running CRC of its next slot.

    Not thread-safe, except for `write_slot` and `sync`, which use only the file and may run in the disk's thread.

    Attributes:
        begin_lsn, end_lsn, write_lsn: the segment is [begin_lsn, end_lsn), its WAL so far [begin_lsn, write_lsn).
        sequence: of the newest slot, written or taken to be written.
        unslotted_lsn, crc: [unslotted_lsn, write_lsn) is in no slot yet; its CRC.
        slot_offsets: the places in the file of slots with even and with odd sequence numbers.
    """

    __slots__ = (
        "begin_lsn",
        "crc",
        "end_lsn",
        "file",
        "path",
        "sequence",
        "slot_offsets",
        "tli",
        "unslotted_lsn",
        "write_lsn",
    )

    def __init__(
        self, file: File, path: Path, *, tli: int, begin_lsn: Lsn, end_lsn: Lsn, write_lsn: Lsn, sequence: int
    ) -> None:
        self.file = file
        self.path = path
        self.tli = tli
        self.begin_lsn = begin_lsn
        self.end_lsn = end_lsn
        self.write_lsn = write_lsn
        self.sequence = sequence
        self.unslotted_lsn = write_lsn
        self.crc = 0
        self.slot_offsets = (slot_offset(end_lsn - begin_lsn, 0), slot_offset(end_lsn - begin_lsn, 1))

    def append(self, data: bytes) -> None:
        """Write `data` at write_lsn, to the operating system. The caller has checked that it fits."""
        self.file.pwrite(data, self.write_lsn - self.begin_lsn)
        self.crc = google_crc32c.extend(self.crc, data)
        self.write_lsn += len(data)

    def take_slot(self) -> FooterSlot | None:
        """Return the slot of everything appended since the last one, and begin the next; None without an append."""
        if self.unslotted_lsn == self.write_lsn:
            return None
        return self._next_slot(self.unslotted_lsn)

    def write_slot(self, slot: FooterSlot) -> None:
        """Write `slot` at its place, to the operating system."""
        self.file.pwrite(slot.encode(), self.slot_offsets[slot.sequence % 2])

    def sync(self) -> None:
        """Return once the file's bytes and slots are on disk."""
        self.file.fdatasync()

    def cut(self, lsn: Lsn) -> None:
        """End the segment's WAL at `lsn`, durably (detail e). The bytes below `lsn` must be durable already.

        Without this slot, the newest slot would still cover bytes above `lsn`, and recovery would accept them again if
        the first append after the cut is lost in a crash.
        """
        self.write_lsn = lsn
        self.crc = 0
        self.write_slot(self._next_slot(lsn))
        self.sync()

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return the bytes [begin_lsn, end_lsn), which are in this segment."""
        return read_exactly(self.file, self.path, end_lsn - begin_lsn, begin_lsn - self.begin_lsn)

    def close(self) -> None:
        """Release the file."""
        self.file.close()

    def _next_slot(self, begin_lsn: Lsn) -> FooterSlot:
        self.sequence += 1
        slot = FooterSlot(self.sequence, begin_lsn, self.write_lsn, self.crc)
        self.unslotted_lsn = self.write_lsn
        self.crc = 0
        return slot


def slot_offset(segment_size: int, sequence: int) -> int:
    """Return the offset in the file of the slot with this sequence number: the two places alternate."""
    return segment_size + sequence % 2 * SLOT_BYTES


def read_slots(file: File, path: Path, begin_lsn: Lsn, segment_size: int) -> list[FooterSlot | None]:
    """Return both slots as stored, None for one that is damaged or has LSNs outside the segment (detail c).

    A recycled file, or one that was copied under a wrong name, contains slots of another segment, which do not count.
    """
    footer = read_exactly(file, path, FOOTER_BYTES, segment_size)
    slots = [FooterSlot.decode(footer[:SLOT_BYTES]), FooterSlot.decode(footer[SLOT_BYTES:])]
    end_lsn = begin_lsn + segment_size
    return [slot if slot and begin_lsn <= slot.begin_lsn <= slot.end_lsn <= end_lsn else None for slot in slots]


def newest_valid_slot(file: File, path: Path, begin_lsn: Lsn, segment_size: int) -> FooterSlot | None:
    """Return the newest slot that matches its bytes, None if neither does. Its end_lsn is the end of the valid WAL."""
    slots = [slot for slot in read_slots(file, path, begin_lsn, segment_size) if slot is not None]
    for slot in sorted(slots, reverse=True):
        if crc_of(file, path, slot.begin_lsn - begin_lsn, slot.end_lsn - begin_lsn) == slot.data_crc:
            return slot
    return None


def crc_of(file: File, path: Path, begin_offset: int, end_offset: int) -> int:
    """Return the CRC-32C of the file's bytes [begin_offset, end_offset)."""
    crc = 0
    for piece in read_pieces(file, path, begin_offset, end_offset):
        crc = google_crc32c.extend(crc, piece)
    return crc


def read_pieces(file: File, path: Path, begin_offset: int, end_offset: int) -> Iterator[bytes]:
    """Yield the file's bytes [begin_offset, end_offset), at most a MiB at a time."""
    for offset in range(begin_offset, end_offset, _CHUNK_BYTES):
        yield read_exactly(file, path, min(_CHUNK_BYTES, end_offset - offset), offset)


def read_exactly(file: File, path: Path, length: int, offset: int) -> bytes:
    """Return `length` bytes at `offset`.

    Raises:
        StorageFailed: the file ends before that.
    """
    data = file.pread(length, offset)
    if len(data) != length:
        raise StorageFailed(f"{path} ends at byte {offset + len(data)}, before the end of its WAL: restore the file")
    return data


def create_segment(
    fs: FileSystem,
    directory: Path,
    *,
    tli: int,
    begin_lsn: Lsn,
    segment_size: int,
    wal: Iterable[bytes] = (),
    expected: FooterSlot | None = None,
) -> SegmentFile:
    """Create the segment of `tli` at `begin_lsn` completely and durably, replacing a file of that name, and open it.

    The file contains `wal`, then zeros, then two empty slots at the end of `wal` (detail a). No other function creates
    segment files; to recycle a file, this one would overwrite and rename it.

    Args:
        wal: the bytes from `begin_lsn` on, in pieces; nothing by default.
        expected: a slot that the bytes must match *as they were copied*: the cache may return a page whose write
            failed once and lose it afterwards.

    Raises:
        StorageFull: no disk space, or no file descriptor. Nothing is left of the attempt, and it may be retried.
        StorageFailed: any other error.
    """
    path = directory / segment_name(tli, begin_lsn, segment_size)
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = None
    with fs.hold_directory(directory):
        try:
            file = fs.create(temporary)
            length = _fill(file, wal, segment_size)
            if expected is not None:
                crc = crc_of(file, temporary, expected.begin_lsn - begin_lsn, expected.end_lsn - begin_lsn)
                if crc != expected.data_crc:
                    raise StorageFailed(f"{path} changed while it was read: its disk is failing, replace it")
            write_lsn = begin_lsn + length
            empty_slots = [FooterSlot(sequence, write_lsn, write_lsn, 0) for sequence in (1, 2)]
            for slot in empty_slots:
                file.pwrite(slot.encode(), slot_offset(segment_size, slot.sequence))
            file.fdatasync()
            fs.rename(temporary, path)
        except (StorageFull, StorageFailed) as error:
            if file is not None:
                file.close()
            if isinstance(error, StorageFull) and fs.exists(temporary):
                fs.unlink(temporary)
            raise
        sync_names(fs, directory)
    return SegmentFile(
        file,
        path,
        tli=tli,
        begin_lsn=begin_lsn,
        end_lsn=begin_lsn + segment_size,
        write_lsn=write_lsn,
        sequence=empty_slots[-1].sequence,
    )


def open_segment(fs: FileSystem, directory: Path, *, tli: int, begin_lsn: Lsn, segment_size: int) -> SegmentFile:
    """Open a segment of the log after recovery: its WAL ends where its newest slot does, which has been validated.

    Raises:
        StorageFailed: the file cannot be opened, or has no slot.
    """
    path = directory / segment_name(tli, begin_lsn, segment_size)
    file = fs.open(path)
    try:
        slots = [slot for slot in read_slots(file, path, begin_lsn, segment_size) if slot is not None]
        if not slots:
            raise StorageFailed(f"{path} has lost its footer: its disk is failing, replace it")
    except (StorageFailed, StorageFull):
        file.close()
        raise
    newest = max(slots)
    return SegmentFile(
        file,
        path,
        tli=tli,
        begin_lsn=begin_lsn,
        end_lsn=begin_lsn + segment_size,
        write_lsn=newest.end_lsn,
        sequence=newest.sequence,
    )


def _fill(file: File, wal: Iterable[bytes], segment_size: int) -> int:
    """Write `wal`, and zeros after it up to the footer. Return the length of `wal`."""
    offset = 0
    for piece in wal:
        file.pwrite(piece, offset)
        offset += len(piece)
    length = offset
    while offset < segment_size:
        zeros = _ZEROS[: segment_size - offset]
        file.pwrite(zeros, offset)
        offset += len(zeros)
    return length
