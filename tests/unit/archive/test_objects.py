"""Keys of the archive: what they say is what was put, and everything else is reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.archive.objects import (
    ArchivedFile,
    ArchivedObject,
    Listing,
    ObjectInfo,
    history_file,
    parse_keys,
    partial_file,
    segment_file,
    wal_folder,
)
from safekeeper.base.errors import LocalProtocolError

SEGMENT = 16 << 20
NAME = "0000000100000000000000AB"
KEY = f"wal/0000000100000000/{NAME}"
BEGIN_LSN = 0xAB000000


def listing_of(*keys: str, segment_size: int = SEGMENT) -> Listing:
    return parse_keys([ObjectInfo(key, 1, 0.0) for key in keys], segment_size)


def test_keys_are_named_as_documented() -> None:
    segment = segment_file(1, BEGIN_LSN, SEGMENT)
    partial = partial_file(1, BEGIN_LSN, BEGIN_LSN + 0x123, SEGMENT)
    assert (segment.key(False), segment.key(True)) == (KEY, f"{KEY}.zst")
    assert partial.key(False) == f"{KEY}.00000000AB000123.partial"
    assert partial.key(True) == f"{KEY}.00000000AB000123.partial.zst"
    assert history_file(0x1F).key(True) == "history/0000001F.history"
    assert ArchivedObject(segment, f"{KEY}.zst", 0xABC, SEGMENT, True).receipt_key == (
        f"{KEY}.zst.00000ABC-16777216.receipt"
    )
    assert segment.folder == partial.folder == wal_folder(1, BEGIN_LSN + 5, SEGMENT) == "wal/0000000100000000"
    assert history_file(2).folder == "history"
    assert (segment.plain_bytes, partial.plain_bytes, history_file(2).plain_bytes) == (SEGMENT, 0x123, None)
    assert str(partial) == f"{NAME} up to 0/AB000123"


files = st.one_of(
    st.builds(lambda tli, n: segment_file(tli, n * SEGMENT, SEGMENT), st.integers(1, 2**32 - 1), st.integers(0, 2**39)),
    st.builds(
        lambda tli, n, size: partial_file(tli, n * SEGMENT, n * SEGMENT + size, SEGMENT),
        st.integers(1, 2**32 - 1),
        st.integers(0, 2**39),
        st.integers(1, SEGMENT - 1),
    ),
    st.builds(history_file, st.integers(1, 2**32 - 1)),
)


@given(st.dictionaries(files, st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**40), st.booleans()), max_size=20))
def test_what_was_put_is_what_the_listing_says(contents: dict[ArchivedFile, tuple[int, int, bool]]) -> None:
    objects = [
        ArchivedObject(
            file,
            file.key(compressed),
            crc,
            size if file.plain_bytes is None else file.plain_bytes,
            compressed and file.kind != "history",
        )
        for file, (crc, size, compressed) in contents.items()
    ]
    keys = [key for one in objects for key in (one.key, one.receipt_key)]
    assert listing_of(*keys) == Listing(sorted(objects), [], [], [], [])


def test_object_without_receipt_counts_for_nothing() -> None:
    listing = listing_of(KEY, f"{KEY}.zst", f"{KEY}.zst.0000000A-16777216.receipt")
    assert [archived.key for archived in listing.objects] == [f"{KEY}.zst"]
    assert listing.unconfirmed == [KEY]


def test_receipt_whose_object_is_gone_is_reported_as_lost() -> None:
    receipt = f"{KEY}.0000000A-16777216.receipt"
    lost = ArchivedObject(segment_file(1, BEGIN_LSN, SEGMENT), KEY, 10, SEGMENT, False)
    assert listing_of(receipt) == Listing([], [], [], [], [lost])


def test_plain_and_compressed_are_one_file_that_is_there_twice() -> None:
    listing = listing_of(KEY, f"{KEY}.0000000A-16777216.receipt", f"{KEY}.zst", f"{KEY}.zst.0000000A-16777216.receipt")
    assert [(archived.file.name, archived.compressed) for archived in listing.objects] == [(NAME, False), (NAME, True)]
    assert not listing.conflicts


@pytest.mark.parametrize(
    "receipts",
    [
        [f"{KEY}.0000000A-16777216.receipt", f"{KEY}.0000000B-16777216.receipt"],
        [f"{KEY}.0000000A-16777216.receipt", f"{KEY}.zst.0000000B-16777216.receipt"],
        [f"{KEY}.0000000A-16777215.receipt"],  # not a segment's size
        [f"{KEY}.00000000AB000123.partial.0000000A-290.receipt"],  # nor that of these LSNs
        ["history/00000002.history.0000000A-40.receipt", "history/00000002.history.0000000A-41.receipt"],
    ],
)
def test_receipts_that_contradict_each_other_or_the_name_are_a_conflict(receipts: list[str]) -> None:
    keys = [receipt.rsplit(".", 2)[0] for receipt in receipts]
    listing = listing_of(*receipts, *keys)
    assert listing.objects == []
    assert listing.unconfirmed == []
    ((_, claims),) = listing.conflicts
    assert [claim.receipt_key for claim in claims] == receipts


@pytest.mark.parametrize(
    "key",
    [
        "README",
        "wal/readme.txt",
        NAME,
        f"wal/{NAME}",
        f"wal/0000000100000001/{NAME}",  # another segment's folder
        f"{KEY.lower()}",
        f"{KEY}.gz",
        f"{KEY}#1",
        f"other/{KEY}",
        f"{KEY}.partial",
        f"{KEY}.00000000AB000000.partial",  # no bytes
        f"{KEY}.00000000AC000000.partial",  # a whole segment
        f"{KEY}.00000000AA000123.partial",
        f"{KEY}.0000000A-016777216.receipt",
        f"{KEY}.0000000A--1.receipt",
        f"{KEY}.0000000a-16777216.receipt",
        f"{KEY}.receipt",
        "wal/0000000100000000/000000010000000000000100",  # no such segment of 16 MiB
        "wal/0000000000000000/000000000000000000000001",  # TLI 0
        "history/00000000.history",
        "history/2.history",
        "history/00000002.history.zst",
        "manifest.json.bak",
        "manifest.json.0000000A-3.receipt",
        f"{KEY}\n",
    ],
)
def test_names_that_mean_nothing_are_reported_as_strangers(key: str) -> None:
    assert listing_of(key) == Listing([], [], [key], [], [])


def test_manifest_and_leftovers_of_a_probe_are_passed_over() -> None:
    assert listing_of("manifest.json", "probe/0123") == Listing([], [], [], [], [])


def test_files_that_cannot_be_are_not_named() -> None:
    with pytest.raises(LocalProtocolError, match="0/10 is not the start of a segment"):
        segment_file(1, 16, SEGMENT)
    for end_lsn in (0, SEGMENT, SEGMENT + 1):
        with pytest.raises(LocalProtocolError, match="not part of one segment"):
            partial_file(1, 0, end_lsn, SEGMENT)
