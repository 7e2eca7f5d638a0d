"""What a start must find in a data folder, computed from the bytes of its files alone.

Written from the documented formats (control_file.py, segment_file.py, recovery.py); it shares no function with them. A
control file is magic, version, length, payload, CRC-32C. A segment is its WAL and two slots; the newest slot whose
bytes have its CRC states where the WAL ends. The log is the chain of segments from the lowest on. What no crash can
leave is an error, and which one is fixed: DiskLost if WAL or promises are lost, else StorageFailed, and
ConfigurationError for the folder of another safekeeper or release.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import msgspec

from safekeeper.base.errors import ConfigurationError, DiskLost, RemoteProtocolError, StorageFailed
from safekeeper.consensus.control_state import FORMAT_VERSION, ControlState
from safekeeper.consensus.membership import check_quorum_sizes

SLOT_BYTES = 4096
_SLOT = struct.Struct("<8sQQQII")
_HEADER = struct.Struct("<8sII")
# What is right does not raise: an error is its class.
Error = type[Exception]


class FoundLog(NamedTuple):
    """The log in a folder of segments.

    Attributes:
        names: of its segments, ascending.
        begin_lsn, data: its bytes; 0 and none without a segment.
    """

    names: tuple[str, ...]
    begin_lsn: int
    data: bytes

    @property
    def end_lsn(self) -> int:
        """The end of the WAL."""
        return self.begin_lsn + len(self.data)


class Start(NamedTuple):
    """What a safekeeper starts with. `log` is None if its WAL is not opened."""

    control: ControlState | None
    log: FoundLog | None


def start_of(control_file: bytes | None, wal_files: Mapping[str, bytes], safekeeper_id: int) -> Start | Error:
    """Return what safekeeper `safekeeper_id` must start with on these files, or the error that it must report."""
    if control_file is None:
        return DiskLost if wal_files else Start(None, None)
    control = control_of(control_file)
    if not isinstance(control, ControlState):
        return control
    if control.safekeeper_id != safekeeper_id:
        return ConfigurationError
    if control.membership is not None:
        try:
            check_quorum_sizes(control.membership)
        except RemoteProtocolError:
            return ConfigurationError
    if not control.segment_size or control.set_aside or control.restore_from:
        return Start(control, None)
    log = log_of(wal_files, control.segment_size, control.wal_begin_lsn)
    if not isinstance(log, FoundLog):
        return log
    return DiskLost if is_wal_missing(control, log) else Start(control, log)


def is_wal_missing(control: ControlState, log: FoundLog) -> bool:
    """Return whether a log lacks WAL that the control state records."""
    if control.base_lsn is not None or control.set_aside or control.restore_from or not control.wal_begin_lsn:
        return False
    needed_lsn = max(control.wal_begin_lsn, control.commit_lsn, control.truncate_to or 0)
    return log.end_lsn < needed_lsn or log.begin_lsn > control.wal_begin_lsn


def control_of(content: bytes) -> ControlState | Error:
    """Return the state in a control file."""
    if len(content) < _HEADER.size + 4:
        return StorageFailed
    magic, version, length = _HEADER.unpack_from(content)
    payload, crc = content[_HEADER.size : -4], int.from_bytes(content[-4:], "little")
    is_whole = magic == b"SAFEKEEP" and google_crc32c.value(content[:-4]) == crc and length == len(payload)
    if not is_whole or version != FORMAT_VERSION:
        return StorageFailed
    try:
        return msgspec.msgpack.decode(payload, type=ControlState)
    except msgspec.DecodeError:
        return StorageFailed


def log_of(files: Mapping[str, bytes], size: int, begin_lsn: int) -> FoundLog | Error:
    """Return the log in a folder with these files, whose WAL below `begin_lsn` was being removed."""
    segments = _segments(files, size, begin_lsn)
    if isinstance(segments, type):
        return segments
    chain: list[str] = []
    data = b""
    for begin, name in segments:
        if len(files[name]) != size + 2 * SLOT_BYTES:
            return StorageFailed
        end = valid_end(files[name], begin, size)
        if end is None:
            return DiskLost
        if chain and end == begin:
            break
        chain.append(name)
        data += files[name][: end - begin]
        if end < begin + size:
            break
    if any((valid_end(files[name], begin, size) or 0) > begin for begin, name in segments[len(chain) :]):
        return DiskLost
    return FoundLog(tuple(chain), segments[0][0] if segments else 0, data)


def _segments(files: Mapping[str, bytes], size: int, begin_lsn: int) -> Sequence[tuple[int, str]] | Error:
    """Return the start and the name of each segment, ascending."""
    found = []
    for name in files:
        if is_segment_name(name):
            start = start_in(name, size)
            if start is None:
                return StorageFailed
            if start + size > begin_lsn:
                found.append((start, name))
    found.sort()
    starts = [start for start, _ in found]
    if starts and starts != list(range(starts[0], starts[-1] + size, size)):
        return StorageFailed
    return found


def is_segment_name(name: str) -> bool:
    """Return whether a file has the name of a segment of some size."""
    return re.fullmatch("[0-9A-F]{24}", name) is not None


def start_in(name: str, size: int) -> int | None:
    """Return the first byte of the segment of this name, None if no segment of this size has it."""
    per_id = (1 << 32) // size
    tli, high, low = (int(name[at : at + 8], 16) for at in (0, 8, 16))
    return (high * per_id + low) * size if tli and low < per_id else None


def valid_end(content: bytes, begin_lsn: int, size: int) -> int | None:
    """Return where the WAL of a segment ends, None if neither slot has it."""
    found = []
    for at in (size, size + SLOT_BYTES):
        if len(content) < size + 2 * SLOT_BYTES:
            continue
        magic, sequence, slot_begin, slot_end, data_crc, crc = _SLOT.unpack_from(content, at)
        is_whole = magic == b"WALSLOT1" and crc == google_crc32c.value(content[at : at + _SLOT.size - 4])
        is_inside = begin_lsn <= slot_begin <= slot_end <= begin_lsn + size
        if is_whole and is_inside:
            covered = content[slot_begin - begin_lsn : slot_end - begin_lsn]
            if google_crc32c.value(covered) == data_crc:
                found.append((sequence, slot_end))
    return max(found)[1] if found else None
