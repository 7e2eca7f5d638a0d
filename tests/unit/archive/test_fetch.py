"""Reading an archive: nothing is handed out that does not fit its receipt."""

import os
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import msgspec
import pytest
import zstandard

from safekeeper.archive.catalog import ArchivedRange, Hole
from safekeeper.archive.fetch import ArchiveReader, plain_pieces, verified_pieces
from safekeeper.archive.objects import ArchivedFile, ArchivedObject, Manifest, history_file, partial_file, segment_file
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveRefused,
    ObjectMissing,
    StorageFailed,
)
from safekeeper.base.timelines import PASSED_OVER_HISTORY

SEGMENT = 1 << 20
MANIFEST = Manifest(system_id=7, segment_size=SEGMENT, cluster_ids=("c1",), created_at="2026-01-01T00:00:00+00:00")
DATA = os.urandom(4096) * (SEGMENT // 4096)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = ObjectStore.open(str(tmp_path / "archive"), makes_folder=True)
    store.put("manifest.json", msgspec.json.encode(MANIFEST), absent=True)
    return store


def put(store: ObjectStore, file: ArchivedFile, content: bytes, *, compressed: bool = False) -> ArchivedObject:
    """Put an object and its receipt, as an archiver would."""
    key = file.key(compressed)
    archived = ArchivedObject(file, key, google_crc32c.value(content), len(content), compressed)
    store.put(key, zstandard.compress(content) if compressed else content, absent=False)
    store.put(archived.receipt_key, b"{}", absent=False)
    return archived


def damage(store: ObjectStore, archived: ArchivedObject, content: bytes) -> None:
    store.put(archived.key, content, absent=False)


@pytest.mark.parametrize("compressed", [False, True])
def test_object_is_fetched_as_it_was_put(store: ObjectStore, tmp_path: Path, compressed: bool) -> None:
    put(store, segment_file(1, SEGMENT, SEGMENT), DATA, compressed=compressed)
    reader = ArchiveReader(store)
    found = reader.find(1, SEGMENT + 5)
    assert found is not None and found.compressed == compressed
    target = tmp_path / "target"
    target.write_bytes(b"old")
    reader.fetch(found, target)
    assert target.read_bytes() == reader.fetch_bytes(found) == DATA


def flipped(stored: bytes) -> bytes:
    return stored[:100] + bytes([stored[100] ^ 1]) + stored[101:]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "change",
    [flipped, lambda stored: stored[:-1], lambda stored: b"", lambda stored: stored + b"x" + stored],
    ids=["flipped bit", "truncated", "empty", "too long"],
)
def test_object_that_does_not_fit_its_receipt_is_corrupt_and_leaves_no_file(
    store: ObjectStore, tmp_path: Path, compressed: bool, change: Callable[[bytes], bytes]
) -> None:
    archived = put(store, segment_file(1, 0, SEGMENT), DATA, compressed=compressed)
    damage(store, archived, change(store.get(archived.key)))
    reader = ArchiveReader(store)
    target = tmp_path / "target"
    for fetch in (lambda: reader.fetch(archived, target), lambda: reader.fetch_bytes(archived)):
        with pytest.raises(ArchiveCorrupt, match=f"{archived.key} (has|cannot be decompressed)") as caught:
            fetch()
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_corruption_is_reported_with_what_is_expected_and_what_was_found(store: ObjectStore) -> None:
    archived = put(store, history_file(2), b"1\t0/10\tx\n")
    damage(store, archived, b"1\t0/20\tx\n")
    wrong = google_crc32c.value(b"1\t0/20\tx\n")
    with pytest.raises(ArchiveCorrupt) as caught:
        ArchiveReader(store).fetch_bytes(archived)
    assert str(caught.value) == (
        f"{store.url}/history/00000002.history has 9 bytes with the CRC-32C {wrong:08X}, "
        f"but its receipt has 9 with {archived.crc32c:08X}"
    )


def test_little_that_decompresses_to_very_much_is_refused_early(store: ObjectStore) -> None:
    archived = put(store, partial_file(1, 0, 5, SEGMENT), b"12345", compressed=True)
    damage(store, archived, zstandard.compress(bytes(1 << 30)))
    assert len(next(plain_pieces(store, archived))) <= 1 << 20
    with pytest.raises(ArchiveCorrupt, match="has more than the 5 bytes of its receipt"):
        next(verified_pieces(store, archived))


def test_object_that_is_gone_is_missing_and_leaves_no_file(store: ObjectStore, tmp_path: Path) -> None:
    archived = put(store, segment_file(1, 0, SEGMENT), DATA)
    store.delete([archived.key])
    with pytest.raises(ObjectMissing, match=archived.key):
        ArchiveReader(store).fetch(archived, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_target_that_cannot_be_written_is_said(store: ObjectStore, tmp_path: Path) -> None:
    archived = put(store, segment_file(1, 0, SEGMENT), DATA)
    with pytest.raises(StorageFailed, match=r"cannot write .*/nowhere/target: No such file or directory"):
        ArchiveReader(store).fetch(archived, tmp_path / "nowhere" / "target")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageFailed, match=r"cannot write .*/folder: Is a directory"):
        ArchiveReader(store).fetch(archived, tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "folder"]


def test_find_prefers_the_whole_segment_and_then_the_longest_partial(store: ObjectStore) -> None:
    reader = ArchiveReader(store)
    assert reader.find(1, 0) is None
    put(store, partial_file(1, 0, 5, SEGMENT), b"12345")
    long = put(store, partial_file(1, 0, 7, SEGMENT), b"1234567", compressed=True)
    assert reader.find(1, 3) == long
    whole = put(store, segment_file(1, 0, SEGMENT), DATA)
    put(store, segment_file(1, 0, SEGMENT), DATA, compressed=True)
    found = [(archived.file.end_lsn, archived.compressed) for archived in reader.candidates(1, SEGMENT - 1)]
    assert found == [(SEGMENT, False), (SEGMENT, True), (7, True), (5, False)]
    assert reader.find(1, 0) == whole
    assert reader.find(1, SEGMENT) is None
    assert reader.find(2, 0) is None


def test_objects_without_receipt_are_not_found(store: ObjectStore) -> None:
    store.put(segment_file(1, 0, SEGMENT).key(False), DATA, absent=True)
    store.put(history_file(2).key(False), b"1\t0/10\tx\n", absent=True)
    assert ArchiveReader(store).find(1, 0) is None
    assert ArchiveReader(store).history(2) is None


def test_contradicting_receipts_are_a_conflict_unless_something_else_is_there(store: ObjectStore) -> None:
    reader = ArchiveReader(store)
    put(store, segment_file(1, 0, SEGMENT), DATA)
    put(store, segment_file(1, 0, SEGMENT), bytes(SEGMENT))
    put(store, history_file(2), b"1\t0/10\tx\n")
    put(store, history_file(2), b"1\t0/20\tx\n")
    with pytest.raises(ArchiveConflict, match=r"contradicts itself about 000000010000000000000000: .* and "):
        reader.find(1, 0)
    with pytest.raises(ArchiveConflict, match=r"contradicts itself about 00000002\.history"):
        reader.history(2)
    assert reader.find(1, SEGMENT) is None
    partial = put(store, partial_file(1, 0, 5, SEGMENT), b"12345")
    assert reader.find(1, 0) == partial


def test_a_number_that_a_promotion_passed_over_has_a_history_without_ancestors(store: ObjectStore) -> None:
    put(store, history_file(6), b"2\t0/10\tx\n\n4\t0/20\tx\n")
    reader = ArchiveReader(store)
    assert [reader.history(tli) for tli in (3, 5)] == 2 * [PASSED_OVER_HISTORY]
    assert [reader.history(tli) for tli in (1, 2, 4, 7)] == 4 * [None]


def test_history_is_read_and_verified(store: ObjectStore) -> None:
    archived = put(store, history_file(2), b"1\t0/10\tx\n")
    assert ArchiveReader(store).history(2) == b"1\t0/10\tx\n"
    assert ArchiveReader(store).history(3) is None
    damage(store, archived, b"1\t0/20\tx\n")
    with pytest.raises(ArchiveCorrupt, match=r"history/00000002\.history"):
        ArchiveReader(store).history(2)


def test_catalogue_is_made_of_everything_that_is_there(store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store, segment_file(1, 0, SEGMENT), DATA)
    put(store, segment_file(2, SEGMENT, SEGMENT), DATA, compressed=True)
    history = put(store, history_file(2), b"1\t0/100010\tx\n")
    catalog = ArchiveReader(store).catalog()
    assert catalog.histories == {2: ((1, 0x100010),)}
    assert catalog.ranges() == [ArchivedRange(1, 0, 0x100010, False), ArchivedRange(2, 0x100010, 2 * SEGMENT, False)]
    assert (catalog.holes(), caplog.text) == ([], "")
    damage(store, history, b"nonsense")
    assert ArchiveReader(store).catalog().holes() == [Hole(2, SEGMENT, SEGMENT, "00000002.history")]
    assert "the history file of TLI 2 is treated as missing" in caplog.text


def test_archive_without_manifest_is_none(tmp_path: Path) -> None:
    reader = ArchiveReader(ObjectStore.open(str(tmp_path)))
    assert reader.manifest() is None
    assert reader.find(1, 0) is None
    with pytest.raises(ObjectMissing, match=r"is not an archive: manifest\.json"):
        reader.catalog()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b'{"system_id":7}', "segment_size"),
        (msgspec.json.encode(MANIFEST).replace(b'"format_version":1', b'"format_version":2'), "format version 2"),
        (msgspec.json.encode(MANIFEST).replace(b"1048576", b"1048577"), "segment size 1048577"),
        (msgspec.json.encode(MANIFEST).replace(b"1048576", b"1024"), "segment size 1024"),
        (msgspec.json.encode(MANIFEST).replace(b'["c1"]', b"[]"), "no cluster"),
        (msgspec.json.encode(MANIFEST).replace(b"{", b'{"unheard":1,'), "unheard"),
    ],
)
def test_manifest_that_is_not_understood_is_refused(store: ObjectStore, content: bytes, what: str) -> None:
    store.put("manifest.json", content, absent=False)
    with pytest.raises(ArchiveRefused, match=rf"manifest\.json is invalid: .*{what}"):
        ArchiveReader(store).find(1, 0)
