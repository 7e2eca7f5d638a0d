"""Log sequence numbers and segment arithmetic.

An LSN is a plain `int`: the byte position in the WAL, 0 meaning "none". PostgreSQL prints it as two hexadecimal halves,
`16/B374D848`; so does this project, in all output. A TLI is PostgreSQL's timeline id. Segment files are named by TLI
and segment number, as PostgreSQL names them (src/include/access/xlog_internal.h, XLogFileName).

Pure: no I/O, no clock.
"""

import re

from safekeeper.base.errors import ConfigurationError

Lsn = int

SEGMENT_SIZE_MIN = 1 << 20
SEGMENT_SIZE_MAX = 1 << 30
LSN_MAX = (1 << 64) - 1

_LSN_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_SEGMENT_NAME = re.compile(r"[0-9A-F]{24}")


def format_lsn(lsn: Lsn) -> str:
    """Return `lsn` as PostgreSQL prints it, e.g. `0/16B3748`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    """Return the LSN in `text`.

    Raises:
        ConfigurationError: `text` is not of the form `X/X`.
    """
    match = _LSN_TEXT.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text!r} is not an LSN: write it as PostgreSQL prints it, for example 0/16B3748")
    return int(match[1], 16) << 32 | int(match[2], 16)


def segment_start(lsn: Lsn, segment_size: int) -> Lsn:
    """Return the start of the segment that contains byte `lsn`."""
    return lsn & ~(segment_size - 1)


def segment_name(tli: int, lsn: Lsn, segment_size: int) -> str:
    """Return the file name of the segment of timeline `tli` that contains byte `lsn` (24 hexadecimal digits)."""
    number = lsn // segment_size
    per_id = (1 << 32) // segment_size
    return f"{tli:08X}{number // per_id:08X}{number % per_id:08X}"


def parse_segment_name(name: str, segment_size: int) -> tuple[int, Lsn] | None:
    """Return (tli, start LSN) of the segment with that file name, or None if it is not a segment's name."""
    if _SEGMENT_NAME.fullmatch(name) is None:
        return None
    per_id = (1 << 32) // segment_size
    tli, high, low = int(name[:8], 16), int(name[8:16], 16), int(name[16:], 16)
    if tli == 0 or low >= per_id:
        return None
    return tli, (high * per_id + low) * segment_size
