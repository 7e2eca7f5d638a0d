"""What an archive's listing asks of a remote store: little, as long as nothing but the end of the log changes."""

import os
import time
from pathlib import Path

import pytest

from safekeeper.archive.objects import ObjectInfo
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ArchiveUnavailable
from tests.unit.wal_builder import MIB
from tests.unit.wal_places import ArchiveMaker, make_log
from walproxy.wal_sources.archive_listing import ArchiveListing
from walproxy.wal_sources.source import Extent, LogPath

PATH = LogPath(1, (), MIB)


class RemoteStore:
    """A store that says which keys it was asked to list; `keys` is what it has."""

    def __init__(self) -> None:
        self.folder = None
        self.keys: set[str] = set()
        self.listed: list[int] = []

    def put(self, number: int, end: int = 0) -> None:
        """Store a segment, or the part of it up to `end`."""
        name = f"{1:08X}{number // 4096:08X}{number % 4096:08X}"
        part = f".{number * MIB + end:016X}.partial" if end else ""
        key = f"wal/{name[:16]}/{name}{part}"
        self.keys |= {key, f"{key}.00000000-{end or MIB}.receipt"}

    def remove(self, text: str) -> None:
        self.keys = {key for key in self.keys if text not in key}

    def list(self, folder: str = "", *, after: str = "") -> list[ObjectInfo]:
        found = sorted(key for key in self.keys if key.startswith(f"{folder}/") and key > after)
        self.listed.append(len(found))
        return [ObjectInfo(key, 0, 0) for key in found]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> RemoteStore:
    return RemoteStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def listing(store: RemoteStore, clock: Clock) -> ArchiveListing:
    return ArchiveListing(store, MIB, clock)  # type: ignore[arg-type]


def ends(listing: ArchiveListing, known_end_lsn: int) -> list[Extent]:
    return listing.extents(PATH, known_end_lsn)(1)


def test_of_a_remote_archive_only_what_is_behind_the_known_end_is_listed(
    store: RemoteStore, listing: ArchiveListing
) -> None:
    for number in range(1, 9000):
        store.put(number)
    assert ends(listing, 0)[-1].end_lsn == 9000 * MIB
    store.put(9000, 500)
    assert ends(listing, 9000 * MIB)[-1].end_lsn == 9000 * MIB + 500
    store.put(9000, 900)
    store.remove(f".{9000 * MIB + 500:016X}.partial")
    assert ends(listing, 9000 * MIB + 500)[-1].end_lsn == 9000 * MIB + 900
    assert store.listed[0] == 2 * 8999
    assert max(store.listed[1:]) <= 2 * 17, "what did not change was listed again"


def test_partials_that_are_gone_are_forgotten_with_the_next_listing(
    store: RemoteStore, listing: ArchiveListing
) -> None:
    store.put(1)
    store.put(2, 500)
    assert ends(listing, 0) == [Extent(MIB, 2 * MIB + 500)]
    store.remove("partial")
    assert ends(listing, 2 * MIB + 500) == [Extent(MIB, 2 * MIB)]


def test_a_remote_archive_is_listed_as_a_whole_after_a_minute(
    store: RemoteStore, listing: ArchiveListing, clock: Clock
) -> None:
    for number in (1, 2, 100, 300):
        store.put(number)
    assert len(ends(listing, 0)) == 3
    store.put(3)
    store.remove(f"/{1:08X}{1:016X}")
    clock.now = 59
    assert ends(listing, 301 * MIB)[0] == Extent(MIB, 3 * MIB)
    clock.now = 61
    assert ends(listing, 301 * MIB)[0] == Extent(2 * MIB, 4 * MIB)


def test_single_segments_are_found_without_a_list_of_everything(store: RemoteStore, listing: ArchiveListing) -> None:
    for number in range(1, 9000):
        store.put(number)
    assert [each.file.begin_lsn for each in listing.find(1, 5000 * MIB + 7)] == [5000 * MIB]
    assert [each.file.begin_lsn for each in listing.find(1, 5001 * MIB)] == [5001 * MIB]
    assert listing.find(2, 5000 * MIB) == []
    assert store.listed == [2 * 4096, 0]
    listing.reload(1, 5000 * MIB)
    assert len(store.listed) == 3


def test_of_a_local_archive_only_folders_that_have_changed_are_listed(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path / "archive"), makes_folder=True)
    archive = ArchiveMaker(store)
    wal = make_log(3 * MIB)
    archive.put_segment(wal, MIB)
    listing = ArchiveListing(store, MIB)
    assert ends(listing, 0) == [Extent(MIB, 2 * MIB)]
    (folder,) = (tmp_path / "archive" / "wal").iterdir()
    # As if it had been left alone for long: then its time of modification is believed.
    os.utime(folder, (1_000_000_000, 1_000_000_000))
    assert ends(listing, 0) == [Extent(MIB, 2 * MIB)]
    archive.put_segment(wal, 2 * MIB)
    os.utime(folder, (1_000_000_000, 1_000_000_000))
    assert ends(listing, 0) == [Extent(MIB, 2 * MIB)], "a folder was listed though it seems not to have changed"
    os.utime(folder)
    assert ends(listing, 0) == [Extent(MIB, 3 * MIB)]


def test_a_folder_that_was_changed_a_moment_ago_may_have_changed_again_at_the_same_time(tmp_path: Path) -> None:
    store = ObjectStore.open(str(tmp_path / "archive"), makes_folder=True)
    archive = ArchiveMaker(store)
    wal = make_log(3 * MIB)
    archive.put_segment(wal, MIB)
    listing = ArchiveListing(store, MIB)
    (folder,) = (tmp_path / "archive" / "wal").iterdir()
    now_ns = time.time_ns()
    os.utime(folder, ns=(now_ns, now_ns))
    assert ends(listing, 0) == [Extent(MIB, 2 * MIB)]
    archive.put_segment(wal, 2 * MIB)
    os.utime(folder, ns=(now_ns, now_ns))
    assert ends(listing, 0) == [Extent(MIB, 3 * MIB)]


def test_a_store_that_does_not_answer_is_no_empty_one(store: RemoteStore, listing: ArchiveListing) -> None:
    store.put(1)
    assert ends(listing, 0) == [Extent(MIB, 2 * MIB)]

    def refuse(folder: str = "", *, after: str = "") -> list[ObjectInfo]:
        raise ArchiveUnavailable("away")

    store.list = refuse  # type: ignore[method-assign]
    with pytest.raises(ArchiveUnavailable):
        ends(listing, 2 * MIB)
