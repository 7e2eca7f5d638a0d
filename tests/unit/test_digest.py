"""Checksums of pages, kept while WAL streams by."""

import random

from google_crc32c import value as crc32c

from safekeeper.consensus.messages import DIGEST_PAGE_SIZE
from walproxy.digest import SegmentDigest

SEGMENT = 4 * DIGEST_PAGE_SIZE
DATA = random.Random(1).randbytes(3 * SEGMENT)


def expected(begin: int, end: int) -> tuple[int, ...]:
    return tuple(crc32c(DATA[page : min(page + DIGEST_PAGE_SIZE, end)]) for page in range(begin, end, DIGEST_PAGE_SIZE))


def fed_in_pieces(digest: SegmentDigest, begin: int, end: int, seed: int) -> SegmentDigest:
    generator = random.Random(seed)
    while begin < end:
        size = min(end - begin, generator.choice((1, 7, 100, 8192, 20_000)))
        digest.feed(memoryview(DATA)[begin : begin + size])
        begin += size
    return digest


def test_checksums_are_those_of_the_segment_of_the_last_byte() -> None:
    generator = random.Random(2)
    for seed in range(50):
        end = generator.randrange(1, len(DATA))
        digest = fed_in_pieces(SegmentDigest(SEGMENT, 0), 0, end, seed)
        assert digest.page_crcs() == expected((end - 1) // SEGMENT * SEGMENT, end)


def test_a_border_belongs_to_the_segment_that_ends_there() -> None:
    for end in (SEGMENT, 2 * SEGMENT, DIGEST_PAGE_SIZE):
        digest = fed_in_pieces(SegmentDigest(SEGMENT, 0), 0, end, 1)
        assert digest.page_crcs() == expected((end - 1) // SEGMENT * SEGMENT, end)


def test_nothing_is_known_of_a_segment_that_was_not_seen_from_its_start() -> None:
    digest = fed_in_pieces(SegmentDigest(SEGMENT, 100), 100, SEGMENT, 1)
    assert digest.page_crcs() == ()
    fed_in_pieces(digest, SEGMENT, SEGMENT + 50, 1)
    assert digest.page_crcs() == expected(SEGMENT, SEGMENT + 50)


def test_it_goes_on_behind_bytes_whose_checksums_are_known() -> None:
    for known_end in (SEGMENT + 10, SEGMENT + DIGEST_PAGE_SIZE, SEGMENT + 3 * DIGEST_PAGE_SIZE + 1):
        digest = SegmentDigest.after(SEGMENT, SEGMENT, known_end, expected(SEGMENT, known_end))
        assert digest.page_crcs() == expected(SEGMENT, known_end)
        end = known_end + 5000
        fed_in_pieces(digest, known_end, end, 3)
        assert digest.page_crcs() == expected((end - 1) // SEGMENT * SEGMENT, end)


def test_one_other_byte_changes_the_checksum_of_its_page_only() -> None:
    damaged = bytearray(DATA)
    damaged[DIGEST_PAGE_SIZE + 5] ^= 1
    ours, theirs = SegmentDigest(SEGMENT, 0), SegmentDigest(SEGMENT, 0)
    ours.feed(DATA[:SEGMENT])
    theirs.feed(bytes(damaged[:SEGMENT]))
    differing = [i for i, (a, b) in enumerate(zip(ours.page_crcs(), theirs.page_crcs(), strict=True)) if a != b]
    assert differing == [1]
