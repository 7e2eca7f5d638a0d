"""The archive over each kind of object store: a local folder, moto's S3 server and `rclone serve s3`."""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from safekeeper.archive.catalog import ArchivedRange, Hole
from safekeeper.archive.objects import history_file, partial_file
from safekeeper.base.errors import ArchiveConflict, ArchiveCorrupt, ArchiveError, ArchiveRefused, ObjectMissing
from tests.integration.archive.archive_fixtures import MIB, Archive, at_once, confirmed, credentials, segment, wal
from tests.integration.archive.object_stores import SERVERS, Server

NAME_0 = "000000010000000000000000"
ROUNDS = 8


@pytest.fixture(scope="module", params=SERVERS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with credentials(), request.param() as made:
        yield made


@pytest.fixture
def archive(server: Server, request: pytest.FixtureRequest) -> Archive:
    prefix = "archives/" + re.sub(r"\W+", "-", request.node.name)
    return Archive(server, prefix, server.place(prefix))


def test_an_archive_is_claimed_once_and_recognized(archive: Archive) -> None:
    assert archive.reader().manifest() is None
    manifest = archive.uploader(safekeeper_id=1).claim()
    assert archive.reader().manifest() == manifest
    of_old = msgspec.structs.replace(manifest, created_at="2020-02-02T20:20:20+00:00")
    archive.write("manifest.json", msgspec.json.encode(of_old))
    assert archive.uploader(safekeeper_id=2).claim() == of_old
    assert archive.reader().manifest() == of_old
    assert archive.keys() == ["manifest.json"]


def test_two_that_claim_at_once_agree(archive: Archive) -> None:
    uploaders = [archive.uploader(safekeeper_id=number) for number in (1, 2, 3)]
    outcomes = at_once(*(uploader.claim for uploader in uploaders))
    manifest = archive.reader().manifest()
    assert manifest is not None
    assert [(claimed.system_id, claimed.cluster_ids) for claimed in outcomes] == [  # type: ignore[attr-defined]
        (manifest.system_id, manifest.cluster_ids)
    ] * 3


@pytest.mark.parametrize(
    "other",
    [{"system_id": 1}, {"cluster_id": "another"}, {"segment_size": 16 * MIB}],
    ids=lambda other: next(iter(other)),
)
def test_the_archive_of_another_cluster_is_refused(archive: Archive, other: dict[str, object]) -> None:
    archive.uploader().claim()
    before = archive.contents()
    with pytest.raises(ArchiveRefused) as refused:
        archive.uploader(**other).claim()  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert archive.contents() == before


@pytest.mark.parametrize("manifest", [b"", b"{}", b"no manifest", b'{"format_version": 2}'])
def test_a_manifest_that_is_not_understood_is_refused(archive: Archive, manifest: bytes) -> None:
    archive.write("manifest.json", manifest)
    for ask in (archive.reader().manifest, archive.uploader().claim):
        with pytest.raises(ArchiveRefused):
            ask()
    assert archive.contents() == {"manifest.json": manifest}


def test_wal_that_no_archive_claim_covers_is_refused(archive: Archive) -> None:
    archive.write(segment(0).key(False), wal(0))
    with pytest.raises(ArchiveRefused, match=r"manifest\.json"):
        archive.uploader().claim()
    assert archive.contents() == {segment(0).key(False): wal(0)}


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zstd"])
@pytest.mark.parametrize("size", [MIB, 16 * MIB], ids=["1MiB", "16MiB"])
def test_a_segment_comes_back_as_it_went(archive: Archive, tmp_path: Path, size: int, compress: bool) -> None:
    content = wal(1, size)
    uploader = archive.uploader(segment_size=size, compress=compress)
    uploader.claim()
    assert uploader.upload(segment(0, size=size), content)

    found = archive.reader().find(1, size // 3)
    assert found is not None and found.compressed is compress
    assert archive.keys() == sorted([found.key, found.receipt_key, "manifest.json"])
    assert found.key == f"wal/0000000100000000/{NAME_0}" + (".zst" if compress else "")
    archive.reader().fetch(found, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == archive.reader().fetch_bytes(found) == content
    if compress:
        assert len(archive.read(found.key)) < size * 0.6
    else:
        assert archive.read(found.key) == content
    receipt = json.loads(archive.read(found.receipt_key))
    assert (receipt["begin_lsn"], receipt["end_lsn"], receipt["safekeeper_id"]) == ("0/0", f"0/{size:X}", 1)


def test_a_second_upload_changes_nothing(archive: Archive) -> None:
    archive.uploader().claim()
    assert archive.uploader().upload(segment(0), wal(1))
    before = archive.store().list()
    assert not archive.uploader(safekeeper_id=2).upload(segment(0), wal(1))
    assert archive.store().list() == before


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zstd"])
def test_other_bytes_under_a_name_are_a_conflict_and_nothing_is_overwritten(archive: Archive, compress: bool) -> None:
    archive.uploader().claim()
    archive.uploader().upload(segment(0), wal(1))
    before = archive.contents()
    with pytest.raises(ArchiveConflict, match=NAME_0) as conflict:
        archive.uploader(safekeeper_id=2, compress=compress).upload(segment(0), wal(2))
    assert "\n" not in str(conflict.value)
    assert archive.contents() == before


@pytest.mark.parametrize("compressed_first", [False, True])
def test_plain_and_compressed_are_one_file(archive: Archive, compressed_first: bool) -> None:
    archive.uploader().claim()
    assert archive.uploader(compress=compressed_first).upload(segment(0), wal(1))
    before = archive.keys()
    assert not archive.uploader(compress=not compressed_first).upload(segment(0), wal(1))
    assert archive.keys() == before


@pytest.mark.parametrize("compress", [False, True], ids=["both plain", "one compresses"])
def test_two_uploaders_of_the_same_bytes_do_no_harm(archive: Archive, compress: bool) -> None:
    archive.uploader().claim()
    one, other = archive.uploader(safekeeper_id=1), archive.uploader(safekeeper_id=2, compress=compress)
    for number in range(ROUNDS):
        outcomes = at_once(
            lambda: one.upload(segment(number), wal(number)),  # noqa: B023
            lambda: other.upload(segment(number), wal(number)),  # noqa: B023
        )
        assert set(outcomes) <= {True, False}, outcomes
    assert confirmed(archive) == {segment(number) for number in range(ROUNDS)}
    reader = archive.reader()
    assert reader.catalog().chain(1, 0) == ROUNDS * MIB
    for number in range(ROUNDS):
        found = reader.find(1, number * MIB)
        assert found is not None and reader.fetch_bytes(found) == wal(number)


def test_of_two_uploaders_of_different_bytes_at_least_one_gets_an_error(archive: Archive) -> None:
    archive.uploader().claim()
    one, other = archive.uploader(safekeeper_id=1), archive.uploader(safekeeper_id=2)
    reader = archive.reader()
    for number in range(ROUNDS):
        outcomes = at_once(
            lambda: one.upload(segment(number), wal(number)),  # noqa: B023
            lambda: other.upload(segment(number), wal(number + 1000)),  # noqa: B023
        )
        assert any(isinstance(outcome, ArchiveError) for outcome in outcomes), outcomes
        assert all(isinstance(outcome, ArchiveError | bool) for outcome in outcomes), outcomes
        winners = [
            content
            for content, outcome in zip((wal(number), wal(number + 1000)), outcomes, strict=True)
            if outcome is True
        ]
        # An upload under way looks like a torn one, so either may have been replaced. Then nothing of it is used.
        with contextlib.suppress(ArchiveConflict, ArchiveCorrupt):
            found = reader.find(1, number * MIB)
            assert found is None or reader.fetch_bytes(found) in winners


@pytest.mark.parametrize("torn", [b"", wal(1)[: MIB // 3], wal(1)[:-1] + b"?"], ids=["empty", "a third", "a byte"])
def test_an_upload_that_did_not_finish_is_replaced(
    archive: Archive, caplog: pytest.LogCaptureFixture, torn: bytes
) -> None:
    archive.uploader().claim()
    archive.write(segment(0).key(False), torn)
    assert archive.reader().find(1, 0) is None
    assert archive.reader().catalog().listing.unconfirmed == [segment(0).key(False)]
    with caplog.at_level(logging.WARNING):
        assert archive.uploader().upload(segment(0), wal(1))
    assert any(segment(0).key(False) in record.getMessage() for record in caplog.records)
    found = archive.reader().find(1, 0)
    assert found is not None and archive.reader().fetch_bytes(found) == wal(1)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zstd"])
def test_an_upload_that_lacks_its_receipt_only_gets_it(archive: Archive, compress: bool) -> None:
    archive.uploader().claim()
    archive.uploader(compress=compress).upload(segment(0), wal(1))
    whole = archive.store().list()
    (receipt,) = [info.key for info in whole if info.key.endswith(".receipt")]
    archive.remove(receipt)
    assert archive.reader().find(1, 0) is None
    archive.uploader(safekeeper_id=2, compress=compress).upload(segment(0), wal(1))
    assert archive.keys() == [info.key for info in whole]
    (stored,) = [info for info in archive.store().list() if info.key == segment(0).key(compress)]
    assert stored in whole


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zstd"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored[:1000] + bytes([stored[1000] ^ 1]) + stored[1001:],
        lambda stored: stored[: len(stored) // 2],
        lambda stored: stored + b"?",
        lambda stored: b"",
    ],
    ids=["a bit", "cut", "longer", "empty"],
)
def test_a_corrupt_object_is_detected(
    archive: Archive, tmp_path: Path, compress: bool, damage: Callable[[bytes], bytes]
) -> None:
    uploader = archive.uploader(compress=compress)
    uploader.claim()
    for number in range(2):
        uploader.upload(segment(number), wal(number))
    bad = segment(1).key(compress)
    archive.write(bad, damage(archive.read(bad)))

    reader = archive.reader()
    corrupt = []
    for archived in reader.catalog().listing.objects:
        try:
            reader.fetch_bytes(archived)
        except ArchiveCorrupt as error:
            assert bad in str(error) and "\n" not in str(error)
            corrupt.append(archived.key)
    assert corrupt == [bad]
    found = reader.find(1, MIB)
    assert found is not None
    with pytest.raises(ArchiveCorrupt):
        reader.fetch(found, tmp_path / "fetched")
    assert list(tmp_path.iterdir()) == []


def test_partials_are_superseded_by_longer_ones_and_by_the_segment(archive: Archive) -> None:
    content = wal(1)
    uploader = archive.uploader()
    uploader.claim()
    reader = archive.reader()
    for end_lsn in (8192, 8193, 500_000):
        partial = partial_file(1, 0, end_lsn, MIB)
        assert uploader.upload(partial, content[:end_lsn])
        assert confirmed(archive) == {partial}
        found = reader.find(1, 0)
        assert found is not None and reader.fetch_bytes(found) == content[:end_lsn]
        assert len(archive.keys()) == 3
    assert reader.catalog().ranges() == [ArchivedRange(1, 0, 500_000, True)]

    assert uploader.upload(segment(0), content)
    assert confirmed(archive) == {segment(0)}
    assert len(archive.keys()) == 3


def test_a_probe_finds_whether_a_store_honours_conditions(archive: Archive, caplog: pytest.LogCaptureFixture) -> None:
    store = archive.store()
    with caplog.at_level(logging.INFO):
        assert store.probe() is archive.server.conditional_puts
        assert store.probe() is archive.server.conditional_puts
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == (0 if archive.server.conditional_puts else 1)
    assert archive.server.keys(archive.prefix) == []


def test_a_put_of_what_must_be_absent_replaces_nothing(archive: Archive) -> None:
    store = archive.store()
    assert store.put("wal/a", b"first", absent=True)
    assert not store.put("wal/a", b"second", absent=True)
    assert store.get("wal/a") == b"first"
    assert store.put("wal/a", b"third", absent=False)
    assert store.get("wal/a") == b"third"


def test_what_is_missing_is_named(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ObjectMissing, match="manifest"):
        archive.reader().catalog()
    archive.uploader().claim()
    archive.uploader().upload(segment(0), wal(1))
    found = archive.reader().find(1, 0)
    assert found is not None and archive.reader().find(1, MIB) is None
    archive.remove(found.key)
    with pytest.raises(ObjectMissing, match=NAME_0):
        archive.reader().fetch(found, tmp_path / "fetched")
    assert archive.reader().catalog().listing.lost == [found]


def test_a_missing_segment_is_a_hole_with_a_name(archive: Archive) -> None:
    uploader = archive.uploader()
    uploader.claim()
    for number in (3, 4, 6, 7):
        uploader.upload(segment(number), wal(number))
    uploader.upload(partial_file(1, 8 * MIB, 8 * MIB + 100, MIB), wal(8)[:100])
    catalog = archive.reader().catalog()
    assert catalog.holes() == [Hole(1, 5 * MIB, 6 * MIB, "000000010000000000000005")]
    assert catalog.ranges() == [
        ArchivedRange(1, 3 * MIB, 5 * MIB, False),
        ArchivedRange(1, 6 * MIB, 8 * MIB + 100, True),
    ]
    assert (catalog.chain(1, 3 * MIB), catalog.chain(1, 6 * MIB)) == (5 * MIB, 8 * MIB + 100)


def test_timelines_and_their_history_are_found(archive: Archive) -> None:
    history = f"1\t0/{MIB + 4096:X}\tno recovery target specified\n".encode()
    uploader = archive.uploader()
    uploader.claim()
    uploader.upload(segment(0), wal(0))
    assert uploader.upload(history_file(2), history)
    assert not uploader.upload(history_file(2), history)
    uploader.upload(segment(1, tli=2), wal(1))
    reader = archive.reader()
    assert (reader.history(2), reader.history(3)) == (history, None)
    catalog = reader.catalog()
    assert (catalog.timelines, catalog.chain(2, 0), catalog.holes()) == ((1, 2), 2 * MIB, [])
    with pytest.raises(ArchiveConflict):
        archive.uploader(safekeeper_id=2).upload(history_file(2), history.replace(b"1000", b"2000"))
    assert reader.history(2) == history


def test_what_a_stranger_put_there_is_reported_and_left_alone(archive: Archive) -> None:
    strangers = ["README", "wal/0000000100000000/notes.txt", "wal/0000000100000000/000000010000000000000000.gz"]
    archive.uploader().claim()
    for key in strangers:
        archive.write(key, b"mine")
    archive.uploader().upload(segment(0), wal(0))
    assert sorted(archive.reader().catalog().listing.strangers) == sorted(strangers)
    assert [archive.read(key) for key in strangers] == [b"mine"] * 3
