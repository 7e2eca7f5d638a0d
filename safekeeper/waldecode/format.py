"""The layout of WAL in PostgreSQL 13 to 18, for all its decoders: those of the daemons and the compiled one of tables.

WAL is a sequence of 8 KiB pages, little-endian. Each page begins with a header, which is longer where a segment begins.
Records are stored between the headers, each at a multiple of 8 bytes. A record that does not fit on its page continues
after the next page's header, and a record's own header may be split in the same way.
Sources: src/include/access/xlog_internal.h, xlogrecord.h, rmgrlist.h and xact.h of each major version.
"""

import struct
from typing import Final, NamedTuple

from safekeeper.base.errors import RemoteProtocolError

PAGE_SIZE: Final = 8192
ALIGNMENT: Final = 8

# Each major version has its own page magic; WAL with another magic is refused (S11).
MAJOR_OF_MAGIC: Final = {0xD106: 13, 0xD10D: 14, 0xD110: 15, 0xD113: 16, 0xD116: 17, 0xD118: 18}
MAGIC_OF_MAJOR: Final = {major: magic for magic, major in MAJOR_OF_MAGIC.items()}

# XLogPageHeaderData: magic u16, flags u16, TLI u32, address of the page u64, bytes of the continued record
# that are still to come (this page's included) u32, 4 bytes of padding.
PAGE_HEADER: Final = struct.Struct("<HHIQI4x")
# What XLogLongPageHeaderData adds: system id u64, segment size u32, page size u32.
LONG_PAGE_HEADER_TAIL: Final = struct.Struct("<QII")
PAGE_HEADER_SIZE: Final = PAGE_HEADER.size
LONG_PAGE_HEADER_SIZE: Final = PAGE_HEADER_SIZE + LONG_PAGE_HEADER_TAIL.size

FIRST_IS_CONTRECORD: Final = 0x0001
LONG_HEADER: Final = 0x0002
# A crash lost the record that was being continued; this page begins with another record (14, and minors of 13).
FIRST_IS_OVERWRITE_CONTRECORD: Final = 0x0008
ALL_PAGE_FLAGS: Final = 0x000F

# XLogRecord: total length u32, xid u32, start of the previous record u64, info u8, resource manager u8,
# 2 bytes of padding, CRC-32C u32. The checksum covers the body first, then the header up to the checksum.
RECORD_HEADER: Final = struct.Struct("<IIQBB2xI")
RECORD_HEADER_SIZE: Final = RECORD_HEADER.size
RECORD_XID_OFFSET, RECORD_LINK_OFFSET, RECORD_INFO_OFFSET, RECORD_RMID_OFFSET, RECORD_CRC_OFFSET = 4, 8, 16, 17, 20

# PostgreSQL cannot allocate more for one record (MaxAllocSize); 16 and later stop at 1020 MiB already.
RECORD_LENGTH_MAX: Final = 0x3FFFFFFF

RM_XLOG: Final = 0
RM_XACT: Final = 1
RM_LOGICAL_MESSAGE: Final = 21
BUILTIN_RMID_MAX: Final = 21
CUSTOM_RMID_MIN: Final = 128  # resource managers of extensions, 15 and later
CUSTOM_RMID_MAX: Final = 255

# The upper half of a record's info byte belongs to its resource manager.
RMGR_INFO_MASK: Final = 0xF0
XLOG_SWITCH: Final = 0x40
XLOG_OVERWRITE_CONTRECORD: Final = 0xD0

# The body of a record begins with headers, each with an id: of block references, or one of these.
BLOCK_ID_MAX: Final = 32
TOP_LEVEL_XID, ORIGIN, MAIN_DATA_LONG, MAIN_DATA_SHORT = 252, 253, 254, 255  # the first: 14 and later

# The bits of a block reference's fork_flags and an image's bimg_info.
FORK_MASK, HAS_IMAGE, HAS_DATA, WILL_INIT, SAME_RELATION = 0x0F, 0x10, 0x20, 0x40, 0x80
IMAGE_HAS_HOLE: Final = 0x01
# 13 and 14 have one bit for "compressed", and "apply" after it; 15 and later one bit for each way to compress.
IMAGE_COMPRESSED_14, IMAGE_APPLY_14 = 0x02, 0x04
IMAGE_COMPRESSED, IMAGE_APPLY = 0x1C, 0x02

# Of the info byte of RM_XACT: an xinfo follows the time.
XACT_HAS_XINFO: Final = 0x80

# Bits of xinfo. Sections stand in the order DBINFO, SUBXACTS, RELFILES, STATS, INVALS, TWOPHASE, GID, ORIGIN.
XINFO_DBINFO, XINFO_SUBXACTS, XINFO_RELFILES, XINFO_INVALS, XINFO_TWOPHASE = (1 << bit for bit in range(5))
XINFO_ORIGIN, XINFO_AE_LOCKS, XINFO_GID, XINFO_STATS = (1 << bit for bit in range(5, 9))
XINFO_APPLY_FEEDBACK: Final = 1 << 29
RELFILE_BYTES: Final = 12
INVALIDATION_BYTES: Final = 16

# Fields of the header of a PREPARE TRANSACTION that all versions have in the same place.
PREPARE_XID, PREPARE_DATABASE, PREPARE_TIME, PREPARE_SUBXIDS, PREPARE_DROPPED = 8, 12, 16, 28, 32


class XactLayout(NamedTuple):
    """The differences between versions in the records of RM_XACT.

    Attributes:
        known_xinfo: the bits of xinfo.
        stats_bytes: of a dropped statistic.
        invalidations, gid_length, origin: offsets in the header of a PREPARE TRANSACTION.
        header_bytes: of that header.
    """

    known_xinfo: int
    stats_bytes: int
    invalidations: int
    gid_length: int
    origin: int
    header_bytes: int


_XACT_13: Final = XactLayout(0xFF | 7 << 29, 0, 40, 46, 48, 64)
_XACT_15: Final = XactLayout(0x1FF | 7 << 29, 12, 48, 54, 56, 72)
_XACT_18: Final = _XACT_15._replace(stats_bytes=16)


class WalFormatError(RemoteProtocolError):
    """The bytes are not WAL of a supported PostgreSQL. The message contains the LSN.

    It does not blame a component: the bytes may come from a peer, from the primary or from a disk.
    """


def is_valid_rmid(rmid: int) -> bool:
    """Return whether a resource manager with that id can exist in any of the supported major versions."""
    return rmid <= BUILTIN_RMID_MAX or CUSTOM_RMID_MIN <= rmid <= CUSTOM_RMID_MAX


def align(lsn: int) -> int:
    """Return the first multiple of 8 at or after `lsn` (MAXALIGN)."""
    return (lsn + ALIGNMENT - 1) & ~(ALIGNMENT - 1)


def page_header_size(page_lsn: int, segment_size: int) -> int:
    """Return the size in bytes of the header of the page that begins at `page_lsn`."""
    return LONG_PAGE_HEADER_SIZE if page_lsn % segment_size == 0 else PAGE_HEADER_SIZE


def xact_layout(major: int) -> XactLayout:
    """Return the layout of the records of RM_XACT in a major version."""
    return _XACT_13 if major < 15 else _XACT_15 if major < 18 else _XACT_18
