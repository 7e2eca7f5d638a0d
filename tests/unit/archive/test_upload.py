"""Uploads: whatever happens in between, what has a receipt is right, and nothing of ours overwrites what is not."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.archive.fetch import ArchiveReader, read_manifest
from safekeeper.archive.objects import ArchivedFile, ObjectInfo, history_file, parse_keys, partial_file, segment_file
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.upload import Content, Uploader, adopt
from safekeeper.base.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveRefused,
    ArchiveUnavailable,
    LocalProtocolError,
    ObjectMissing,
    StorageFailed,
)
from tests.unit.tiny_s3 import Answer, TinyS3
from walproxy.cli import cli

SEGMENT = 1 << 20
DATA = os.urandom(4096) * (SEGMENT // 4096)
OTHER = b"other" + DATA[5:]
FILE = segment_file(1, SEGMENT, SEGMENT)
KEY = FILE.key(False)


class Meddled(ObjectStore):
    """A store in which something happens right before or after the puts of this process.

    Attributes:
        before, after: called with the key and the number of the put, from 1.
    """

    before: Callable[[str, int], None] = staticmethod(lambda key, number: None)
    after: Callable[[str, int], None] = staticmethod(lambda key, number: None)
    puts = 0

    def put(self, key: str, data: object, *, absent: bool) -> bool:
        self.puts += 1
        number = self.puts
        self.before(key, number)
        done = super().put(key, data, absent=absent)  # type: ignore[arg-type]
        self.after(key, number)
        return done


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def store(tmp_path: Path) -> Meddled:
    return Meddled.open(str(tmp_path / "archive"), makes_folder=True)


def uploader(store: ObjectStore, *, compress: bool = False, safekeeper_id: int = 1, **other: object) -> Uploader:
    settings = {"cluster_id": "c1", "system_id": 7, "segment_size": SEGMENT} | other
    return Uploader(store, safekeeper_id=safekeeper_id, compress=compress, **settings)  # type: ignore[arg-type]


def keys(store: ObjectStore, folder: str = "wal") -> list[str]:
    return [info.key for info in store.list(folder)]


def receipt_of(key: str, data: bytes) -> str:
    return f"{key}.{google_crc32c.value(data):08X}-{len(data)}.receipt"


def assert_archived(store: ObjectStore, file: ArchivedFile, data: bytes) -> None:
    listing = parse_keys(store.list(file.folder), SEGMENT)
    (archived,) = [one for one in listing.objects if one.file == file]
    assert ArchiveReader(store).fetch_bytes(archived) == data
    assert (listing.conflicts, listing.lost) == ([], [])


@pytest.mark.parametrize("compress", [False, True])
def test_upload_brings_object_and_receipt_and_is_done_once(store: Meddled, compress: bool) -> None:
    assert uploader(store, compress=compress).upload(FILE, DATA)
    assert not uploader(store, compress=compress).upload(FILE, DATA)
    assert not uploader(store, compress=not compress).upload(FILE, DATA)
    key = FILE.key(compress)
    assert keys(store) == [key, receipt_of(key, DATA)]
    assert_archived(store, FILE, DATA)
    receipt = msgspec.json.decode(store.get(receipt_of(key, DATA)))
    assert receipt.pop("archived_at").endswith("+00:00")
    assert receipt == {
        "system_id": 7,
        "cluster_id": "c1",
        "tli": 1,
        "begin_lsn": "0/100000",
        "end_lsn": "0/200000",
        "safekeeper_id": 1,
    }


class Pieces(NamedTuple):
    """A source in pieces."""

    data: bytes
    size: int

    def pieces(self) -> Iterator[bytes]:
        for begin in range(0, len(self.data), 100_000):
            yield self.data[begin : begin + 100_000]


@pytest.mark.parametrize("kind", ["bytes", "view", "path", "source"])
def test_content_comes_in_any_form(store: Meddled, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "segment"
    path.write_bytes(DATA)
    forms: dict[str, Content] = {
        "bytes": DATA,
        "view": memoryview(bytearray(DATA)),
        "path": path,
        "source": Pieces(DATA, SEGMENT),
    }
    assert uploader(store, compress=True).upload(FILE, forms[kind])
    assert_archived(store, FILE, DATA)


@pytest.mark.parametrize("compress", [False, True])
def test_large_segment_travels_in_pieces(store: Meddled, tmp_path: Path, compress: bool) -> None:
    size = 128 << 20
    path = tmp_path / "segment"
    piece = os.urandom(1 << 20)
    with path.open("wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)
    large = uploader(store, segment_size=size, compress=compress)
    assert large.upload(partial_file(1, 0, 10, size), piece[:10])
    assert large.upload(segment_file(1, 0, size), path)
    assert not large.upload(segment_file(1, 0, size), path)
    (archived,) = large.listing().objects
    target = tmp_path / "target"
    ArchiveReader(store).fetch(archived, target)
    with target.open("rb") as file:
        assert all(file.read(len(piece)) == piece for _ in range(size // len(piece)))
    assert target.stat().st_size == size


def test_content_that_is_not_what_the_file_holds_is_a_bug(store: Meddled) -> None:
    with pytest.raises(LocalProtocolError, match="000000010000000000000001 has 1048576 bytes, not 5"):
        uploader(store).upload(FILE, b"12345")
    with pytest.raises(LocalProtocolError, match="a source of 80000000 bytes gave 5"):
        uploader(store).upload(history_file(2), Pieces(b"12345", 80_000_000))


def test_content_that_cannot_be_read_is_said(store: Meddled, tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(StorageFailed, match=f"cannot read {path}: "):
            uploader(store).upload(history_file(2), path)


@given(st.integers(1, 4), st.booleans(), st.booleans())
@settings(max_examples=20, deadline=None)
def test_upload_killed_anywhere_is_simply_done_again(at: int, before: bool, compress: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Meddled.open(folder)
        partial = partial_file(1, SEGMENT, SEGMENT + 9, SEGMENT)

        def kill(key: str, number: int) -> None:
            if number == at:
                raise Killed

        if before:
            store.before = kill
        else:
            store.after = kill
        with pytest.raises(Killed):
            uploader(store, compress=compress).upload(partial, DATA[:9])
            uploader(store, compress=compress).upload(FILE, DATA)
        again = uploader(ObjectStore.open(folder), compress=compress, safekeeper_id=2)
        again.upload(partial, DATA[:9])
        again.upload(FILE, DATA)
        assert keys(store) == [FILE.key(compress), receipt_of(FILE.key(compress), DATA)]
        assert_archived(store, FILE, DATA)


def test_object_without_receipt_gets_one_if_it_holds_our_bytes(
    store: Meddled, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(KEY, DATA, absent=True)
    store.puts = 0
    assert uploader(store).upload(FILE, DATA)
    assert store.puts == 1
    assert_archived(store, FILE, DATA)
    assert not caplog.records


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("torn", [b"", DATA[:-1], OTHER, DATA + b"x"], ids=["empty", "truncated", "other", "too long"])
def test_torn_upload_is_replaced_with_a_warning(
    store: Meddled, torn: bytes, compress: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(FILE.key(compress), torn, absent=True)
    assert uploader(store, compress=compress).upload(FILE, DATA)
    assert_archived(store, FILE, DATA)
    assert "its upload was interrupted" in caplog.text


@pytest.mark.parametrize("compress", [False, True])
def test_receipt_of_other_bytes_is_a_conflict_and_nothing_is_touched(store: Meddled, compress: bool) -> None:
    uploader(store, compress=compress).upload(FILE, OTHER)
    before = {key: store.get(key) for key in keys(store)}
    for other in (False, True):
        with pytest.raises(
            ArchiveConflict, match="has another content of 000000010000000000000001 than this"
        ) as caught:
            uploader(store, compress=other).upload(FILE, DATA)
        assert receipt_of(FILE.key(compress), OTHER) in str(caught.value)
    assert {key: store.get(key) for key in keys(store)} == before
    store.delete([FILE.key(compress)])  # What a receipt once said is not forgotten with its object.
    with pytest.raises(ArchiveConflict):
        uploader(store).upload(FILE, DATA)
    assert keys(store) == [receipt_of(FILE.key(compress), OTHER)]


def test_object_that_was_lost_is_brought_again(store: Meddled) -> None:
    uploader(store).upload(FILE, DATA)
    store.delete([KEY])
    assert uploader(store).upload(FILE, DATA)
    assert_archived(store, FILE, DATA)


def test_what_does_not_read_back_as_it_was_written_is_corrupt_and_has_no_receipt(
    store: Meddled, tmp_path: Path
) -> None:
    def flip(key: str, number: int) -> None:
        (tmp_path / "archive" / key).write_bytes(OTHER)

    store.after = flip
    with pytest.raises(ArchiveCorrupt, match=f"{KEY} was written, and the content read back differs"):
        uploader(store).upload(FILE, DATA)
    assert keys(store) == [KEY]


def test_object_that_vanishes_after_its_put_is_tried_again(store: Meddled) -> None:
    store.after = lambda key, number: store.delete([key])
    with pytest.raises(ArchiveUnavailable, match="although it existed a moment ago: retry"):
        uploader(store).upload(FILE, DATA)


def test_receipt_that_is_not_there_afterwards_is_tried_again(store: Meddled) -> None:
    store.after = lambda key, number: store.delete([key] if number == 2 else [])
    with pytest.raises(ArchiveUnavailable, match="was written and cannot be found: retry"):
        uploader(store).upload(FILE, DATA)
    assert uploader(store).upload(FILE, DATA)


def test_two_archivers_in_step_with_the_same_bytes_both_succeed(store: Meddled, tmp_path: Path) -> None:
    """Before each put of the one, the other does all of it."""
    other = ObjectStore.open(store.url)
    for number in (1, 2):
        file = segment_file(1, number * SEGMENT, SEGMENT)

        def meddle(key: str, at: int, number: int = number, file: ArchivedFile = file) -> None:
            if at == number:
                uploader(other, safekeeper_id=2).upload(file, DATA)

        store.puts, store.before = 0, meddle
        assert uploader(store).upload(file, DATA)
        assert_archived(store, file, DATA)


def test_other_bytes_that_come_between_are_a_conflict(store: Meddled) -> None:
    other = ObjectStore.open(store.url)
    store.before = lambda key, number: other.put(key, OTHER, absent=True) and None
    with pytest.raises(ArchiveConflict, match="another process wrote another content to"):
        uploader(store).upload(FILE, DATA)
    assert [store.get(key) for key in keys(store)] == [OTHER]


def test_receipt_of_other_bytes_that_comes_between_is_a_conflict(store: Meddled) -> None:
    other = ObjectStore.open(store.url)

    def meddle(key: str, number: int) -> None:
        if number == 2:
            other.put(receipt_of(KEY, OTHER), b"{}", absent=True)

    store.before = meddle
    with pytest.raises(ArchiveConflict, match="contradicts itself about 000000010000000000000001"):
        uploader(store).upload(FILE, DATA)
    with pytest.raises(ArchiveConflict):
        uploader(store).upload(FILE, DATA)


def race(url: str, contents: list[bytes]) -> list[BaseException | bool]:
    """Upload the same file from several threads at once, and return what each of them got."""
    barrier = threading.Barrier(len(contents))
    results: list[BaseException | bool] = [False] * len(contents)

    def run(index: int, content: bytes) -> None:
        mine = uploader(ObjectStore.open(url, makes_folder=True), safekeeper_id=index)
        barrier.wait(10)
        try:
            mine.claim()
            results[index] = mine.upload(FILE, content)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(contents)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_archivers_that_race_with_the_same_bytes_leave_one_file(tmp_path: Path) -> None:
    for turn in range(10):
        url = str(tmp_path / str(turn))
        results = race(url, [DATA] * 3)
        assert {type(result) for result in results} == {bool} and any(results)
        store = ObjectStore.open(url, makes_folder=True)
        assert keys(store) == [KEY, receipt_of(KEY, DATA)]
        assert_archived(store, FILE, DATA)


def test_archivers_that_race_with_different_bytes_receive_it(tmp_path: Path) -> None:
    for turn in range(10):
        url = str(tmp_path / str(turn))
        results = race(url, [DATA, OTHER])
        assert any(isinstance(result, ArchiveConflict | ArchiveCorrupt) for result in results), results
        store = ObjectStore.open(url, makes_folder=True)
        for archived in parse_keys(store.list("wal"), SEGMENT).objects:
            assert ArchiveReader(store).fetch_bytes(archived) in (DATA, OTHER)


def test_longer_files_replace_the_partials_of_their_segment_only(store: Meddled) -> None:
    mine = uploader(store)
    others = [partial_file(1, 0, 7, SEGMENT), partial_file(2, SEGMENT, SEGMENT + 7, SEGMENT)]
    for file in others:
        mine.upload(file, b"7 bytes")
    kept = keys(store)
    for size in (5, 9):
        mine.upload(partial_file(1, SEGMENT, SEGMENT + size, SEGMENT), DATA[:size])
        assert len(keys(store)) == len(kept) + 2
    store.put(partial_file(1, SEGMENT, SEGMENT + 6, SEGMENT).key(True), b"torn", absent=True)
    mine.upload(FILE, DATA)
    assert keys(store) == sorted([*kept, KEY, receipt_of(KEY, DATA)])


def test_partials_of_any_length_are_compared_with_what_replaces_them(store: Meddled) -> None:
    data = os.urandom(4 * SEGMENT)
    mine = uploader(store, segment_size=4 * SEGMENT)
    for size in (SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT + 5):
        assert mine.upload(partial_file(1, 0, size, 4 * SEGMENT), data[:size])
    assert mine.upload(segment_file(1, 0, 4 * SEGMENT), data)
    assert len(keys(store)) == 2


def test_partials_that_a_killed_archiver_left_are_removed_the_next_time(store: Meddled) -> None:
    partial = partial_file(1, SEGMENT, SEGMENT + 9, SEGMENT)
    uploader(store).upload(FILE, DATA)
    store.put(partial.key(False), DATA[:9], absent=True)
    store.put(receipt_of(partial.key(False), DATA[:9]), b"{}", absent=True)
    assert not uploader(store).upload(FILE, DATA)
    assert keys(store) == [KEY, receipt_of(KEY, DATA)]


@pytest.mark.parametrize("compress", [False, True])
def test_partial_is_not_put_when_something_longer_begins_with_it(store: Meddled, compress: bool) -> None:
    mine = uploader(store, compress=compress)
    mine.upload(FILE, DATA)
    there = keys(store)
    partial = partial_file(1, SEGMENT, SEGMENT + 5000, SEGMENT)
    assert not mine.upload(partial, DATA[:5000])
    with pytest.raises(ArchiveConflict, match="has another content of 000000010000000000000001 up to 0/101388"):
        mine.upload(partial, OTHER[:5000])
    assert keys(store) == there


def test_file_that_does_not_begin_with_its_partial_is_a_conflict(store: Meddled) -> None:
    mine = uploader(store)
    partial = partial_file(1, SEGMENT, SEGMENT + 5000, SEGMENT)
    mine.upload(partial, OTHER[:5000])
    there = keys(store)
    for file, data in ((FILE, DATA), (partial_file(1, SEGMENT, SEGMENT + 5001, SEGMENT), DATA[:5001])):
        with pytest.raises(ArchiveConflict, match="than this safekeeper"):
            mine.upload(file, data)
    assert keys(store) == there


def test_archive_that_lets_nothing_be_deleted_is_fine(caplog: pytest.LogCaptureFixture) -> None:
    class NothingIsDeleted(TinyS3):
        def reply(self, method: str, target: str, body: bytes, is_conditional: bool) -> Answer:
            if method == "POST":
                return Answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return super().reply(method, target, body, is_conditional)

    with NothingIsDeleted() as server:
        store = ObjectStore.open("s3://bucket", options=server.options)
        mine = uploader(store)
        for size in (5, 6, 7):
            assert mine.upload(partial_file(1, SEGMENT, SEGMENT + size, SEGMENT), DATA[:size])
        assert mine.upload(FILE, DATA)
        assert_archived(store, FILE, DATA)
    assert caplog.text.count("could not remove obsolete partials from the archive") == 1


@pytest.mark.parametrize("conditions", [True, False])
def test_upload_to_a_remote_store(conditions: bool) -> None:
    with TinyS3(conditions=conditions) as server:
        store = ObjectStore.open("s3://bucket/prefix", options=server.options)
        mine = uploader(store, compress=True)
        mine.claim()
        assert mine.upload(FILE, DATA)
        assert not mine.upload(FILE, DATA)
        assert mine.upload(history_file(2), b"1\t0/10\tx\n")
        with pytest.raises(ArchiveConflict):
            mine.upload(FILE, OTHER)
        assert_archived(store, FILE, DATA)
        assert ArchiveReader(store).history(2) == b"1\t0/10\tx\n"


def test_archive_is_claimed_once_and_by_one_cluster(store: Meddled) -> None:
    found = uploader(store).claim()
    assert (found.system_id, found.segment_size, found.cluster_ids, found.format_version) == (7, SEGMENT, ("c1",), 1)
    leftover = Path(store.url) / "manifest.json#1"
    leftover.write_bytes(b"")
    os.utime(leftover, (0, 0))
    assert uploader(store, safekeeper_id=2).claim() == found
    assert not leftover.exists()
    with pytest.raises(ArchiveRefused, match=r"belongs to the database 7 .* this is 8"):
        uploader(store, system_id=8).claim()
    with pytest.raises(ArchiveRefused, match="segments of 1048576 bytes"):
        uploader(store, segment_size=2 * SEGMENT).claim()
    with pytest.raises(ArchiveRefused, match="belongs to the cluster c1, this is c2"):
        uploader(store, cluster_id="c2").claim()
    assert read_manifest(store) == found


def test_archive_adopts_another_cluster_when_it_is_asked_to(store: Meddled) -> None:
    with pytest.raises(ArchiveRefused, match=r"is not an archive: manifest\.json is missing"):
        adopt(store, "c2")
    uploader(store).claim()
    assert adopt(store, "c2").cluster_ids == ("c1", "c2")
    assert adopt(store, "c2") == read_manifest(store)
    for cluster_id in ("c1", "c2"):
        uploader(store, cluster_id=cluster_id).claim()


def test_clusters_that_claim_at_once_are_not_both_let_in(store: Meddled) -> None:
    other = ObjectStore.open(store.url)

    def meddle(key: str, number: int) -> None:
        if number == 1:
            uploader(other, cluster_id="c2").claim()

    store.before = meddle
    with pytest.raises(ArchiveRefused, match="belongs to the cluster c2"):
        uploader(store).claim()


def test_manifest_that_is_away_for_a_moment_is_looked_for_again(store: Meddled) -> None:
    class Replaced(ObjectStore):
        """A store that removes an object before it writes its next version, as another archiver does here."""

        looks = 0

        def get(self, key: str) -> bytes:
            self.looks += 1
            if self.looks in (2, 3):
                raise ObjectMissing("it is being replaced")
            return super().get(key)

    late = Replaced.open(store.url)
    assert uploader(late).claim() == read_manifest(store) and late.looks == 4


def test_manifest_that_is_not_found_is_an_archive_that_is_not_available(
    store: Meddled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safekeeper.archive.upload.MANIFEST_FOUND_WITHIN_S", 0.1)
    store.after = lambda key, number: store.delete([key])
    with pytest.raises(ArchiveUnavailable, match=r"manifest\.json was written and cannot be found: retry"):
        uploader(store).claim()


def test_archive_that_another_archiver_creates_meanwhile_is_claimed(store: Meddled) -> None:
    class Late(ObjectStore):
        """Another archiver creates the archive and uploads WAL right before this one looks for WAL."""

        def list(self, folder: str = "", *, after: str = "") -> list[ObjectInfo]:
            if read_manifest(self) is None:
                first = uploader(store)
                first.claim()
                assert first.upload(FILE, DATA)
            return super().list(folder, after=after)

    manifest = uploader(Late.open(store.url), safekeeper_id=2).claim()
    assert manifest == read_manifest(store)


def test_wal_without_a_manifest_is_claimed_by_nobody(store: Meddled) -> None:
    uploader(store).upload(FILE, DATA)
    with pytest.raises(ArchiveRefused, match=r"contains WAL but no manifest\.json"):
        uploader(store).claim()


def test_an_archive_that_was_used_before_is_not_begun_again_where_its_manifest_is_missing(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path / "archive"), makes_folder=True)
    uploader = Uploader(store, cluster_id="c" * 32, system_id=7, segment_size=SEGMENT, safekeeper_id=1, compress=False)
    archive_id = uploader.claim().archive_id
    shutil.rmtree(tmp_path / "archive")
    (tmp_path / "archive").mkdir()
    with pytest.raises(ArchiveRefused, match=rf"no manifest.json, but .* to {archive_id[:8]}:") as caught:
        uploader.claim(archive_id)
    assert read_manifest(store) is None
    # The message ends with the command that begins an empty one.
    command = str(caught.value).rpartition(": walproxy ")[2].split()
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    assert uploader.claim(archive_id).cluster_ids == ("c" * 32,)
    assert CliRunner().invoke(cli, [*command[:-1], str(2 * SEGMENT)]).exit_code != 0
