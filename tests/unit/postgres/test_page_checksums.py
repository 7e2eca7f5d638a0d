"""Checksums of pages, kept while WAL streams by."""

import random

import pytest
from google_crc32c import value as crc32c

from safekeeper.consensus.messages import DIGEST_PAGE_SIZE
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.postgres import page_checksums as digest_module
from walproxy.postgres.page_checksums import PageChecksums

COMMIT = {"rmid": 1, "info": 0}


def some_wal(segments_with_a_commit: tuple[bool, ...]) -> WalBuilder:
    """Return WAL from MIB on; one segment after the other has a commit in its midst, or none."""
    wal, generator = WalBuilder(), random.Random(1)
    for number, has_commit in enumerate(segments_with_a_commit, 1):
        commits = has_commit
        while wal.position < (number + 1) * MIB - 9000:
            wal.add(generator.randbytes(generator.randrange(1, 9000)))
            if commits and wal.position > number * MIB + MIB // 2:
                wal.add(generator.randbytes(20), **COMMIT)
                commits = False
        wal.switch()
    return wal


def expected(wal: WalBuilder, begin: int, end: int) -> tuple[int, ...]:
    pages = range(begin, end, DIGEST_PAGE_SIZE)
    return tuple(crc32c(wal.read(page, min(page + DIGEST_PAGE_SIZE, end))) for page in pages)


def feed_in_pieces(digest: PageChecksums, wal: WalBuilder, end: int, seed: int) -> None:
    generator, data = random.Random(seed), memoryview(bytes(wal.data))
    while digest.end_lsn < end:
        size = min(end - digest.end_lsn, generator.choice((1, 7, 100, 8192, 20_000, 200_000)))
        digest.feed(data[digest.end_lsn - wal.begin_lsn :][:size])


def test_checksums_go_back_to_the_segment_of_the_last_record_that_bears_a_time() -> None:
    wal = some_wal((True, False, False, True, False, True))
    commits = [record for record in wal.records if record.rmid == 1]
    generator = random.Random(2)
    ends = [MIB, MIB + 1, 2 * MIB, 3 * MIB, 5 * MIB, 6 * MIB, wal.position]
    for seed, end in enumerate([*ends, *(generator.randrange(MIB, wal.position) for _ in range(20))]):
        digest = PageChecksums(MIB, MIB)
        feed_in_pieces(digest, wal, end, seed)
        begin = max((c.start_lsn // MIB * MIB for c in commits if c.end_lsn <= end), default=MIB)
        assert digest.begin_lsn == begin
        assert digest.page_crcs() == expected(wal, begin, end)


def test_nothing_is_known_before_a_record_that_bears_a_time_in_a_segment_seen_from_its_start() -> None:
    wal = some_wal((True, False, True))
    digest = PageChecksums(MIB, MIB + 8192)
    feed_in_pieces(digest, wal, 3 * MIB, 1)
    assert digest.page_crcs() == ()
    feed_in_pieces(digest, wal, 4 * MIB, 1)
    assert digest.begin_lsn == 3 * MIB
    assert digest.page_crcs() == expected(wal, 3 * MIB, 4 * MIB)


def test_beyond_the_bound_nothing_is_known_up_to_the_next_record_that_bears_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digest_module, "PAGES_MAX", 200)
    wal = some_wal((True, False, True))
    digest = PageChecksums(MIB, MIB)
    feed_in_pieces(digest, wal, 2 * MIB, 1)
    assert digest.page_crcs() == expected(wal, MIB, 2 * MIB)
    feed_in_pieces(digest, wal, 3 * MIB, 1)
    assert digest.page_crcs() == ()
    feed_in_pieces(digest, wal, 4 * MIB, 1)
    assert digest.page_crcs() == expected(wal, 3 * MIB, 4 * MIB)


def test_one_other_byte_changes_the_checksum_of_its_page_only() -> None:
    wal = some_wal((False,))
    data = bytes(wal.data)
    damaged = bytearray(data)
    damaged[DIGEST_PAGE_SIZE + 5000] ^= 1
    ours, theirs = PageChecksums(MIB, MIB), PageChecksums(MIB, MIB)
    ours.feed(data)
    theirs.feed(bytes(damaged))
    differing = [i for i, (a, b) in enumerate(zip(ours.page_crcs(), theirs.page_crcs(), strict=True)) if a != b]
    assert differing == [1]
