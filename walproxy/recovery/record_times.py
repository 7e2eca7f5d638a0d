"""The times of commits in WAL, with which the target time of a recovery is compared.

A commit record begins with the time at which its backend took it (xl_xact_commit, src/include/access/xact.h), in
microseconds since 2000-01-01 UTC; it is after the header of its main data, which may have a replication origin and the
xid of a subtransaction's parent before it (src/backend/access/transam/xloginsert.c). Pure.
"""

import struct
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from safekeeper.base.lsn import Lsn
from safekeeper.waldecode.format import RM_XACT, WalFormatError
from safekeeper.waldecode.records import Record, RecordDecoder

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_OPERATION_MASK = 0x70
_COMMITS = (0x00, 0x30)  # COMMIT, COMMIT_PREPARED
_ORIGIN, _TOP_LEVEL_XID, _LONG_DATA, _SHORT_DATA = 253, 252, 254, 255
_HEADER_BYTES = {_ORIGIN: 3, _TOP_LEVEL_XID: 5, _LONG_DATA: 5, _SHORT_DATA: 2}
_TIME = struct.Struct("<q")


class TimedCommit(NamedTuple):
    """One commit: the beginning and end of its record, and its time."""

    start_lsn: Lsn
    end_lsn: Lsn
    time: datetime


class Scanned(NamedTuple):
    """The result of a scan of WAL.

    Attributes:
        first, last: the commits among the complete records, None if there are none.
        last_record_lsn: where the last complete record begins, 0 if there is none.
        end_lsn: where it ends.
        problem: why the scan ended before the WAL did, empty if it did not.
    """

    first: TimedCommit | None
    last: TimedCommit | None
    last_record_lsn: Lsn
    end_lsn: Lsn
    problem: str


def commit_of(record: Record) -> TimedCommit | None:
    """Return the commit of a record, None if it is not one. Its body must be present."""
    if record.rmid != RM_XACT or record.info & _OPERATION_MASK not in _COMMITS:
        return None
    offset = 0
    while offset < len(record.body):
        kind = record.body[offset]
        if kind not in _HEADER_BYTES:
            return None
        offset += _HEADER_BYTES[kind]
        if kind in (_LONG_DATA, _SHORT_DATA):
            break
    if offset + _TIME.size > len(record.body):
        return None
    microseconds = _TIME.unpack_from(record.body, offset)[0]
    try:
        return TimedCommit(record.start_lsn, record.end_lsn, _EPOCH + timedelta(microseconds=microseconds))
    except OverflowError:
        return None


def scan(
    pieces: Iterable[bytes], begin_lsn: Lsn, segment_size: int, *, first_only: bool = False, since_lsn: Lsn = 0
) -> Scanned:
    """Read the WAL from `begin_lsn`, a segment's start, on.

    Args:
        pieces: its bytes.
        first_only: stop at the first commit.
        since_lsn: ignore commits that begin before it.
    """
    decoder = RecordDecoder(begin_lsn, segment_size, {RM_XACT})
    first: TimedCommit | None = None
    last: TimedCommit | None = None
    last_record_lsn = end_lsn = 0
    try:
        for piece in pieces:
            for record in decoder.walk(piece):
                last_record_lsn, end_lsn = record.start_lsn, record.end_lsn
                commit = commit_of(record)
                if commit is not None and commit.start_lsn >= since_lsn:
                    first, last = first or commit, commit
            if first_only and first is not None:
                break
    except WalFormatError as error:
        return Scanned(first, last, last_record_lsn, end_lsn, str(error))
    return Scanned(first, last, last_record_lsn, end_lsn, "")
