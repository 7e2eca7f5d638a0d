"""Object stores: a real folder, and a tiny S3 that misbehaves as it is told."""

import logging
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from safekeeper.archive.store import ObjectStore
from safekeeper.archive.store_errors import reason_of
from safekeeper.base.errors import ArchiveRefused, ArchiveUnavailable, ConfigurationError, ObjectMissing
from tests.unit.tiny_s3 import Answer, TinyS3

LARGE_BYTES = (64 << 20) + 5


@pytest.fixture
def s3() -> Iterator[TinyS3]:
    with TinyS3() as server:
        yield server


@pytest.fixture(params=["folder", "s3", "s3 without conditions"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "folder":
        yield ObjectStore.open(f"file://{tmp_path}/archive", makes_folder=True)
        return
    with TinyS3(conditions=request.param == "s3") as server:
        yield ObjectStore.open("s3://bucket/some/prefix", options=server.options)


def keys(store: ObjectStore, folder: str = "") -> list[str]:
    return [info.key for info in store.list(folder)]


def test_what_was_put_is_what_is_got_and_listed(store: ObjectStore) -> None:
    assert store.put("wal/a/one", b"1", absent=True)
    assert store.put("wal/b/two", memoryview(b"22"), absent=False)
    assert store.put("other", b"", absent=True)
    assert (store.get("wal/a/one"), store.get("wal/b/two"), store.get("other")) == (b"1", b"22", b"")
    assert [(info.key, info.size) for info in store.list("wal")] == [("wal/a/one", 1), ("wal/b/two", 2)]
    assert keys(store) == ["other", "wal/a/one", "wal/b/two"]
    assert keys(store, "wal/a") == ["wal/a/one"]
    assert keys(store, "wa") == keys(store, "nothing") == []


def test_only_what_is_behind_a_key_is_listed(store: ObjectStore) -> None:
    for key in ("wal/a/1", "wal/a/2", "wal/b/1", "waltz", "zoo/1"):
        store.put(key, b"", absent=False)
    assert [info.key for info in store.list("wal", after="wal/a/1")] == ["wal/a/2", "wal/b/1"]
    assert [info.key for info in store.list("wal", after="wal/a/")] == ["wal/a/1", "wal/a/2", "wal/b/1"]
    assert [info.key for info in store.list("wal", after="wal/c")] == []


@pytest.mark.parametrize("kind", ["folder", "s3", "s3 without ranges"])
def test_a_part_of_an_object_is_got(kind: str, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    with TinyS3(ranges=kind == "s3") as server:
        if kind == "folder":
            store = ObjectStore.open(str(tmp_path))
        else:
            store = ObjectStore.open("s3://bucket", options=server.options)
        store.put("key", data, absent=False)
        for begin, end in ((0, 10), (70_000, 900_000), (len(data) - 5, len(data)), (len(data) - 5, len(data) + 5)):
            assert store.part("key", begin, end) == data[begin:end]
        with pytest.raises(ObjectMissing, match=f"could not get {store.url}/nothing: the object does not exist"):
            store.part("nothing", 0, 5)


def test_a_store_that_sends_whole_objects_is_asked_for_parts_only_once() -> None:
    with TinyS3() as server:
        store = ObjectStore.open("s3://bucket", options=server.options)
        store.put("key", b"0123456789", absent=False)
        server.requests.clear()
        assert [store.part("key", begin, begin + 2) for begin in range(3)] == [b"01", b"12", b"23"]
        assert server.requests == ["GET key"] * 4


def test_who_has_enough_of_a_stream_is_sent_no_more(store: ObjectStore) -> None:
    data = os.urandom(9 << 20)
    store.put("key", data, absent=False)
    stream = store.stream("key")
    beginning = next(stream)
    stream.close()
    assert data.startswith(beginning)
    assert len(beginning) <= 1 << 20
    assert b"".join(store.stream("key")) == data


def test_put_of_what_must_be_absent_overwrites_nothing(store: ObjectStore) -> None:
    assert store.put("key", b"first", absent=True)
    assert not store.put("key", b"second", absent=True)
    assert store.get("key") == b"first"
    assert store.put("key", b"third", absent=False)
    assert store.get("key") == b"third"


def test_delete_passes_over_what_is_not_there(store: ObjectStore) -> None:
    store.put("key", b"1", absent=True)
    store.delete(["nothing", "key", "key"])
    assert keys(store) == []
    with pytest.raises(ObjectMissing, match=f"could not get {store.url}/key: the object does not exist"):
        store.get("key")


def test_folder_takes_an_object_in_pieces_and_gives_it_back_in_pieces(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path))
    piece = os.urandom(1 << 20)
    sizes = [len(piece)] * 64 + [5]
    assert store.put("large", (piece[:size] for size in sizes), absent=True)
    assert not store.put("large", iter([b"other"]), absent=True)
    position = 0
    for got in store.pieces("large"):
        assert len(got) <= 8 << 20
        assert all(got[at] == piece[(position + at) % len(piece)] for at in range(0, len(got), 4096))
        position += len(got)
    assert position == LARGE_BYTES


def test_error_of_the_source_of_pieces_is_not_the_stores(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        raise ConfigurationError("of the source")

    store = ObjectStore.open(str(tmp_path))
    with pytest.raises(ConfigurationError, match="of the source"):
        store.put("large", pieces(), absent=True)
    assert keys(store) == []


def test_probe_is_asked_once_and_leaves_nothing(s3: TinyS3, caplog: pytest.LogCaptureFixture) -> None:
    store = ObjectStore.open("s3://bucket", options=s3.options)
    assert store.probe()
    asked = len(s3.requests)
    assert store.probe()
    assert len(s3.requests) == asked
    assert (s3.objects, caplog.records) == ({}, [])


def test_store_that_ignores_conditions_is_found_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with TinyS3(conditions=False) as server:
        store = ObjectStore.open("s3://bucket", options=server.options)
        assert not store.probe()
        assert not store.probe()
        store.put("key", b"1", absent=True)
        assert server.objects == {"key": b"1"}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "s3://bucket does not support conditional puts" in caplog.text


def test_store_that_knows_no_conditions_is_as_one_that_ignores_them(s3: TinyS3) -> None:
    s3.answer = Answer(501, b"<Error><Code>NotImplemented</Code></Error>")
    assert not ObjectStore.open("s3://bucket", options=s3.options).probe()


def test_probe_that_is_not_answered_is_asked_again(s3: TinyS3) -> None:
    store = ObjectStore.open("s3://bucket", options=s3.options)
    s3.answer = Answer(400, b"<Error><Code>TryLater</Code></Error>")
    with pytest.raises(ArchiveUnavailable):
        store.probe()
    s3.answer = None
    assert store.probe()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (Answer(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"), ArchiveRefused, "no: allow it"),
        (Answer(403), ArchiveRefused, "403 Forbidden"),
        (Answer(401), ArchiveRefused, "401 Unauthorized"),
        (
            Answer(400, b"<Error><Code>ExpiredToken</Code><Message>old</Message></Error>"),
            ArchiveRefused,
            "ExpiredToken: old: the credentials have expired: renew them",
        ),
        (Answer(403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>"), ArchiveRefused, "set the clock"),
        (Answer(404, b"<Error><Code>NoSuchBucket</Code></Error>"), ArchiveRefused, "make the bucket"),
        (Answer(503, b"<Error><Code>SlowDown</Code></Error>"), ArchiveUnavailable, "SlowDown$"),
        (Answer(500, b"<html>"), ArchiveUnavailable, "500 Internal Server Error"),
        (Answer(301), ArchiveUnavailable, "incorrectly configured region"),
        (Answer(200, b"no XML"), ArchiveUnavailable, "could not list s3://bucket/wal: "),
    ],
)
def test_refusal_of_a_store_says_on_one_line_what_to_do(
    s3: TinyS3, answer: Answer, error: type[Exception], message: str
) -> None:
    s3.answer = answer
    store = ObjectStore.open("s3://bucket", options=s3.options)
    with pytest.raises(error, match=message) as caught:
        store.list("wal")
    assert str(caught.value).startswith("could not list s3://bucket/wal: ")
    assert "\n" not in str(caught.value)
    assert not {"very-secret-indeed", "AKIDEXAMPLE", "list-type"} & {*str(caught.value).replace("?", " ").split()}
    if answer.status == 503:
        assert len(s3.requests) == 4  # A few attempts, and then it is the caller's.


def test_store_that_does_not_answer_is_given_up_in_time(s3: TinyS3) -> None:
    s3.silent = True
    store = ObjectStore.open("s3://bucket", options=s3.options, timeout_s=0.5)
    began = time.monotonic()
    with pytest.raises(ArchiveUnavailable, match="could not put s3://bucket/key: no reply within the timeout"):
        store.put("key", b"1", absent=False)
    assert time.monotonic() - began < 8  # Not after the time for a whole answer, which is 10 s.


def test_store_that_is_not_there_is_unavailable(s3: TinyS3) -> None:
    options = s3.options | {"endpoint": "http://127.0.0.1:1"}
    with pytest.raises(ArchiveUnavailable, match="could not get s3://bucket/key: Connection refused"):
        ObjectStore.open("s3://bucket", options=options).get("key")


def test_reason_shows_no_secrets_and_is_short() -> None:
    error = ConfigurationError("at https://me:word@host/path?X-Amz-Signature=abc of KEY " + "x" * 500)
    assert reason_of(error, ["KEY"]).startswith("at https://host/path of *** xxx")
    assert len(reason_of(error)) == 200
    assert reason_of(ConfigurationError("two\n  lines")) == "two lines"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("", {}, "the archive's URL is empty"),
        ("ftp://host/x", {}, "ftp://host/x is not an archive: write a folder, or s3://BUCKET/PREFIX"),
        ("s3:///prefix", {}, "has no bucket"),
        ("s3://key:word@bucket/prefix", {}, "more than a host and a path"),
        ("s3://bucket?region=x", {}, "more than a host and a path"),
        ("s3://[bucket", {}, "is invalid"),
        ("file://host/path", {}, "has a remote host"),
        ("s3://bucket", {"nonsense": "word"}, "s3://bucket has no option 'nonsense'"),
        ("s3://bucket", {"Timeout": "1s"}, "has no option 'Timeout'"),
        ("s3://bucket", {"virtual_hosted_style_request": "word?"}, "cannot use s3://bucket: failed"),
        ("s3://bucket", {"allow_http": "word"}, "'allow_http' must be true or false"),
        ("s3://bucket", {"root_certificate": "/no/such.pem"}, "cannot read the root certificate /no/such.pem"),
        ("s3://bucket", {"root_certificate": "/dev/null", "proxy_url": "::"}, "cannot use s3://bucket: "),
        ("az://container", {}, "Account must be specified"),
        ("relative", {"region": "x"}, "has no options: remove region"),
    ],
)
def test_url_or_option_that_cannot_work_is_refused_with_one_line(
    url: str, options: Mapping[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=message) as caught:
        ObjectStore.open(url, options=options)
    assert "\n" not in str(caught.value)
    assert "word@" not in str(caught.value) and "word?" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_urls_are_shown_as_they_are_used(tmp_path: Path) -> None:
    assert ObjectStore.open(f"file://{tmp_path}/with%20space", makes_folder=True).url == f"{tmp_path}/with space"
    assert (tmp_path / "with space").is_dir()
    assert ObjectStore.open("s3://bucket//a//b/").url == "s3://bucket/a/b"
    assert ObjectStore.open("gs://bucket", options={"skip_signature": "true"}).url == "gs://bucket"
    assert ObjectStore.open("az://container/x", options={"account_name": "me"}).url == "az://container/x"


@pytest.mark.parametrize("scheme", ["", "file://", "FILE://", "file://localhost"])
def test_opening_makes_no_folder_unless_that_is_asked_for(scheme: str, tmp_path: Path) -> None:
    folder = tmp_path / "mistyped"
    with pytest.raises(ConfigurationError, match=f"{folder} is not a folder: correct the archive's URL"):
        ObjectStore.open(f"{scheme}{folder}")
    assert not folder.exists()
    ObjectStore.open(f"{scheme}{folder}", makes_folder=True)
    assert folder.is_dir()


def test_file_in_place_of_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="file as an archive: File exists"):
        ObjectStore.open(str(tmp_path / "file"), makes_folder=True)
    with pytest.raises(ConfigurationError, match=r"/file is not a folder: correct"):
        ObjectStore.open(str(tmp_path / "file"))
    store = ObjectStore.open(str(tmp_path))
    for action in (
        lambda: store.put("file/key", b"1", absent=True),
        lambda: store.get("file/key"),
        lambda: store.list("file"),
    ):
        with pytest.raises(ArchiveUnavailable, match="Not a directory"):
            action()


def test_folder_lists_strange_names_but_no_unfinished_files(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path))
    store.put("wal/a/key", b"1", absent=True)
    (tmp_path / "wal/a/key#1").write_bytes(b"unfinished")
    (tmp_path / "wal/a/a b%").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/wal/a/\xff\xfe")).write_bytes(b"")
    assert keys(store) == ["wal/a/\\xff\\xfe", "wal/a/a b%", "wal/a/key"]
    for key in keys(store):
        key.encode()


def test_the_entries_of_a_folder_are_listed_without_what_is_below(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path))
    for key in ("wal/a/1", "wal/b/c/2", "wal/3", "other"):
        store.put(key, b"", absent=False)
    (tmp_path / "link").symlink_to("wal")  # `list` does not follow it either.
    assert store.entries() == ({"wal"}, {"other", "link"})
    assert store.entries("wal") == ({"a", "b"}, {"3"})
    assert store.entries("nothing") == (set(), set())


def test_leftovers_of_killed_writers_are_removed_when_nobody_can_be_writing_them(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path))
    store.put("wal/a/key", b"1", absent=True)
    old, young = tmp_path / "wal/a/key#1", tmp_path / "wal/a/key#2"
    for path in (old, young, tmp_path / "wal/a/other"):
        path.write_bytes(b"")
    for path in (old, tmp_path / "wal/a/other"):
        os.utime(path, (time.time() - 7200,) * 2)
    store.remove_leftovers()
    assert sorted(path.name for path in (tmp_path / "wal/a").iterdir()) == ["key", "key#2", "other"]


def test_a_folder_with_files_of_others_loses_none_of_them(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path))
    theirs = [tmp_path / name for name in ("notes#1", "tickets/bug#4711", "manifest.json.draft#2")]
    ours = [tmp_path / name for name in ("manifest.json#1", "wal/a/key#1", "history/00000002.history#3", "probe/x#1")]
    for path in (*theirs, *ours):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        os.utime(path, (time.time() - 7200,) * 2)
    store.remove_leftovers()
    assert [path for path in (*theirs, *ours) if path.exists()] == theirs


def test_folder_has_file_and_folders_on_disk_before_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), tmp_path))

    monkeypatch.setattr(os, "fsync", fsync)
    store = ObjectStore.open(str(tmp_path / "new/archive"), makes_folder=True)
    assert synced == ["new", "."]
    synced.clear()
    store = ObjectStore.open(str(tmp_path))
    store.put("wal/a/one", b"1", absent=False)
    assert synced == ["wal/a/one", "wal/a", "wal", "."]
    synced.clear()
    store.put("wal/a/two", b"1", absent=False)
    store.put("wal/b/three", iter([b"1"]), absent=True)
    assert synced == ["wal/a/two", "wal/a", "wal/b/three", "wal/b", "wal"]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_archive_that_is_made_here_is_its_owner_s_only(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path / "new" / "archive"), makes_folder=True)
    store.put("wal/a/one", b"1", absent=True)
    store.put("wal/a/two", iter([b"2"]), absent=True)
    archive = tmp_path / "new" / "archive"
    assert [mode_of(path) for path in (archive.parent, archive, archive / "wal", archive / "wal" / "a")] == [0o700] * 4
    assert [mode_of(archive / "wal" / "a" / name) for name in ("one", "two")] == [0o600] * 2


def test_what_is_written_into_a_folder_of_the_operator_follows_its_mode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, file_mode, warned in ((0o750, 0o640, False), (0o755, 0o644, True)):
        archive = tmp_path / f"{mode:o}"
        archive.mkdir()
        archive.chmod(mode)
        ObjectStore.open(str(archive), makes_folder=True).put("wal/one", b"1", absent=True)
        assert (mode_of(archive), mode_of(archive / "wal"), mode_of(archive / "wal" / "one")) == (mode, mode, file_mode)
        lines = [record.getMessage() for record in caplog.records if str(archive) in record.getMessage()]
        assert any("all users of this machine have access" in line for line in lines) == warned


def test_a_folder_that_is_gone_is_not_made_again_by_a_put(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path / "archive"), makes_folder=True)
    (tmp_path / "archive").rmdir()
    with pytest.raises(ArchiveUnavailable, match=r"archive.*missing|No such file"):
        store.put("wal/one", b"1", absent=True)
    assert not (tmp_path / "archive").exists()
