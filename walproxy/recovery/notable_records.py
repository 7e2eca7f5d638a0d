"""The records that a restore must know before they are replayed: tablespaces, restore points, the primary's settings.

Replay of CREATE TABLESPACE makes a link in pg_tblspc to the same path as on the primary, and everything that the WAL
has of that tablespace is then written there: beside the live server, into the live server's files. It is the only
record whose replay leads out of the data folder: the links in a backup are refused (base_backup.py), and all other
records name files below these links.

`NotableRecords` reads a log segment by segment. It decodes, and verifies, only a segment that can contain such a
record: the record's info, resource manager and padding are four known bytes at a multiple of 8, whichever page's border
cuts its header. 10 ms for 16 MiB of most WAL, 0.2 s of zeros; 0.8 s where it decodes. Pure.

Source: src/include/commands/tablespace.h, src/include/catalog/pg_control.h and src/include/access/xlog_internal.h.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from safekeeper.base.lsn import Lsn
from safekeeper.waldecode.format import PAGE_SIZE, RM_XLOG, WalFormatError, page_header_size
from safekeeper.waldecode.record_body import malformed, parse_body
from safekeeper.waldecode.records import Record, RecordDecoder
from walproxy.postgres.replay_state import PARAMETER_VALUES, PARAMETERS

_RM_TABLESPACE: Final = 5
_CREATE, _PARAMETER_CHANGE, _RESTORE_POINT = 0x00, 0x60, 0x70
_SHORT_DATA, _LONG_DATA = 255, 254
_OID: Final = struct.Struct("<I")
_PARAMETER_BYTES: Final = 28
_RESTORE_POINT_BYTES: Final = 72  # The time, and a name of 64 bytes.
_TIME_BYTES: Final = 8
# What a record's header has at offset 16, and how its body begins.
_SIGNATURES: Final = (
    (bytes((_CREATE, _RM_TABLESPACE, 0, 0)), (bytes((_SHORT_DATA,)), bytes((_LONG_DATA,)))),
    (bytes((_PARAMETER_CHANGE, RM_XLOG, 0, 0)), (bytes((_SHORT_DATA, _PARAMETER_BYTES)),)),
    (bytes((_RESTORE_POINT, RM_XLOG, 0, 0)), (bytes((_SHORT_DATA, _RESTORE_POINT_BYTES)),)),
)
_INFO_OFFSET, _HEADER_END = 16, 24


class TablespaceCreated(NamedTuple):
    """CREATE TABLESPACE; the path is empty for one within the data folder (allow_in_place_tablespaces)."""

    record_lsn: Lsn
    previous_lsn: Lsn  # The beginning of the record before it.
    oid: int
    path: str


class ParametersChanged(NamedTuple):
    """The primary has started with other settings: the new value of each of PARAMETERS."""

    record_lsn: Lsn
    previous_lsn: Lsn
    values: Mapping[str, int]


class RestorePoint(NamedTuple):
    """pg_create_restore_point."""

    record_lsn: Lsn
    previous_lsn: Lsn
    name: str


class Undecodable(NamedTuple):
    """The log cannot be decoded from some position after `record_lsn`, that of the last valid record, 0 if unknown, on.

    `previous_lsn` is the same, as the last record whose replay is certain.
    """

    record_lsn: Lsn
    previous_lsn: Lsn
    problem: str


Notable = TablespaceCreated | ParametersChanged | RestorePoint | Undecodable


class NotableRecords:
    """Reads a log from a segment's start on."""

    def __init__(self, segment_size: int) -> None:
        self._segment_size = segment_size
        self._decoder: RecordDecoder | None = None  # While a record continues in the next segment.
        self._last_page = b""  # Of the segment before: a header may begin there.

    def of_segment(self, begin_lsn: Lsn, pieces: Callable[[], Iterable[bytes]]) -> Iterator[Notable]:
        """Yield the notable records that end in a segment; Undecodable, as the last one, if it is not valid WAL.

        Args:
            begin_lsn: the end of the segment before, or the start of the log.
            pieces: returns its bytes, in whole pages; called twice if necessary.
        """
        decoder, self._decoder = self._decoder, None
        before, self._last_page = self._last_page, b""
        has_one, at_lsn = decoder is not None, begin_lsn
        for piece in pieces():
            has_one = has_one or _may_have_one(piece, at_lsn, self._segment_size)
            at_lsn += len(piece)
            self._last_page = piece[-PAGE_SIZE:]
        if not has_one:
            return
        decoder = decoder or self._begin(begin_lsn, before)
        try:
            for piece in pieces():
                for record in decoder.walk(piece):
                    found = _notable(record, decoder.major or 0)
                    if found is not None:
                        yield found
        except WalFormatError as error:
            last_lsn = decoder.last_record_lsn or 0
            yield Undecodable(last_lsn, last_lsn, str(error))
            return
        if decoder.pending is not None:
            self._decoder = decoder

    def _begin(self, begin_lsn: Lsn, before: bytes) -> RecordDecoder:
        """Return a decoder that has read the page before the segment, unless that is filler after a switch record."""
        decoder = RecordDecoder(begin_lsn - len(before), self._segment_size, {RM_XLOG, _RM_TABLESPACE})
        try:
            decoder.feed(before)
        except WalFormatError:
            return RecordDecoder(begin_lsn, self._segment_size, {RM_XLOG, _RM_TABLESPACE})
        return decoder


def _may_have_one(piece: bytes, begin_lsn: Lsn, segment_size: int) -> bool:
    for signature, bodies in _SIGNATURES:
        at = piece.find(signature)
        while at >= 0:
            if at % 8 == 0 and _begins_a_body(piece, at + _HEADER_END - _INFO_OFFSET, bodies, begin_lsn, segment_size):
                return True
            at = piece.find(signature, at + 1)
    return False


def _begins_a_body(piece: bytes, at: int, bodies: tuple[bytes, ...], begin_lsn: Lsn, segment_size: int) -> bool:
    if at % PAGE_SIZE == 0 and at < len(piece):
        at += page_header_size(begin_lsn + at, segment_size)
    beginning = piece[at : at + 2]
    # At the end of the piece the body continues in the next one.
    return any(body.startswith(beginning) or beginning.startswith(body) for body in bodies)


def _notable(record: Record, major: int) -> Notable | None:
    operation = record.rmid, record.info
    try:
        if operation == (_RM_TABLESPACE, _CREATE):
            main = parse_body(record, major).main
            (oid,) = _OID.unpack_from(main)
            path = main[_OID.size : main.index(b"\0", _OID.size)].decode(errors="surrogateescape")
            return TablespaceCreated(record.start_lsn, record.previous_lsn, oid, path)
        if operation == (RM_XLOG, _PARAMETER_CHANGE):
            values = PARAMETER_VALUES.unpack_from(parse_body(record, major).main)
            return ParametersChanged(record.start_lsn, record.previous_lsn, dict(zip(PARAMETERS, values, strict=True)))
        if operation == (RM_XLOG, _RESTORE_POINT):
            name = parse_body(record, major).main[_TIME_BYTES:].partition(b"\0")[0]
            return RestorePoint(record.start_lsn, record.previous_lsn, name.decode(errors="surrogateescape"))
    except (struct.error, ValueError):
        raise malformed(record, major) from None
    return None
