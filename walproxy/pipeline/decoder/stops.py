"""Why a walk through WAL stopped: codes for the compiled walker, sentences for people.

Every stop is at an LSN, a page's or a record's, and has two numbers: what was expected there and what was found.
"""

from typing import Final

from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.waldecode.format import PAGE_SIZE

COMPLETE: Final = 0
FULL: Final = 1  # the arrays have no room: enlarge them and go on
CUT_RECORD: Final = 2  # the record is not wholly here; expected: its length, 0 if unknown
CUT_PAGE: Final = 3  # the page's header is not here
OVERWRITTEN: Final = 4  # the incomplete record was lost in a crash, the page begins with a new one: no end of a walk

PAGE_MAGIC: Final = 10
PAGE_MAGIC_CHANGED: Final = 11  # expected: the magic of the pages before
PAGE_ADDRESS: Final = 12
PAGE_FLAGS: Final = 13
PAGE_TLI: Final = 14  # expected: the TLI of the page before
PAGE_SIZES: Final = 15  # found: the segment size, and in the upper half the page size
PAGE_SYSTEM_ID: Final = 16  # expected: the system id of the segment before
PAGE_REST: Final = 17  # bytes of a record that go on; 0: none does

LENGTH: Final = 30
RMID: Final = 31
LINK: Final = 32  # expected: 0 if any earlier LSN will do
CRC: Final = 33  # expected: in the record's header; found: computed from its bytes
BODY_LENGTH: Final = 34
BLOCK_ID: Final = 35
BLOCK_ORDER: Final = 36
BLOCK_DATA: Final = 37  # found: the block's id
IMAGE: Final = 38  # found: the length of the image
NO_RELATION: Final = 39  # found: the block's id

_UNSIGNED: Final = (1 << 64) - 1


def describe(stop: int, lsn: Lsn, expected: int, found: int, segment_size: int) -> str:
    """Describe in one line what is wrong at `lsn`."""
    if stop == LINK:
        target = format_lsn(expected) if expected else "an earlier one"
        what = f"the record links to {format_lsn(found & _UNSIGNED)} instead of {target}"
    elif stop == PAGE_SIZES:
        what = (
            f"segments of {found & 0xFFFFFFFF} and pages of {found >> 32 & 0xFFFFFFFF} bytes,"
            f" where {segment_size} and {PAGE_SIZE} are expected"
        )
    elif stop == PAGE_REST and expected == 0:
        what = f"{found} bytes of a record continue here, but no record is incomplete"
    elif stop == PAGE_REST and found == 0:
        what = f"no record continues here, {expected} bytes of one are missing"
    elif stop == PAGE_ADDRESS:
        what = f"the page claims to be at {format_lsn(found & _UNSIGNED)}, as in a recycled or misnamed file"
    else:
        what = _SENTENCES[stop].format(
            expected=expected,
            found=found,
            segment_size=segment_size,
            expected_id=expected & _UNSIGNED,
            found_id=found & _UNSIGNED,
        )
    return f"WAL at {format_lsn(lsn)}: {what}"


_SENTENCES: Final = {
    PAGE_MAGIC: "page magic {found:04X} is not that of PostgreSQL 13 to 18",
    PAGE_MAGIC_CHANGED: "page magic {found:04X} follows {expected:04X}: two versions in one log",
    PAGE_FLAGS: "page flags {found:04X} do not fit segments of {segment_size} bytes",
    PAGE_TLI: "a page of TLI {found} follows one of TLI {expected}",
    PAGE_SYSTEM_ID: "system id {found_id} follows {expected_id}",
    PAGE_REST: "{found} bytes of a record continue here, {expected} are missing",
    LENGTH: "{found} bytes is not a valid length of a record",
    RMID: "{found} is not the number of a resource manager",
    CRC: "the record's checksum should be {expected:08X} and is {found:08X}",
    BODY_LENGTH: "the lengths in the record's headers do not add up to the record's length",
    BLOCK_ID: "{found} is not a valid id of a block reference",
    BLOCK_ORDER: "block reference {found} does not follow in order",
    BLOCK_DATA: "block reference {found} has data without its flag, or the flag without data",
    IMAGE: "an image of {found} bytes contradicts its header's hole and compression",
    NO_RELATION: "block reference {found} refers to the relation of the previous one, and there is none",
}
