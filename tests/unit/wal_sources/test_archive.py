"""An archive as a source of WAL: its timelines, what there is, the bytes as the pipeline reads them, and the files."""

import pickle
import re
from pathlib import Path

import pytest

from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import ArchiveRefused, ConfigurationError
from safekeeper.base.timelines import format_timeline_history
from tests.unit.wal_builder import MIB
from tests.unit.wal_places import ArchiveMaker, extend, fork, make_log
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.wal_sources.archive import ArchiveSource
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceCorrupt, SourceUnavailable, WalMissing

PATH = LogPath(1, (), MIB)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore.open(str(tmp_path / "archive"), makes_folder=True)


@pytest.fixture
def archive(store: ObjectStore) -> ArchiveMaker:
    return ArchiveMaker(store)


def opened(archive: ArchiveMaker) -> WalInput:
    return open_input(archive.store.url)


@pytest.mark.parametrize("compressed", [False, True])
def test_bytes_are_read_as_they_were_archived_whole_or_in_part(archive: ArchiveMaker, compressed: bool) -> None:
    wal = make_log(4 * MIB + 300_000)
    archive.put_all(wal, compressed=compressed)
    wal_input = opened(archive)
    assert wal_input.origin() == Origin(7, MIB)
    assert wal_input.log_path() == PATH
    assert wal_input.extents(PATH) == [Extent(MIB, wal.position)]
    for begin_lsn, end_lsn in (
        (MIB, wal.position),
        (MIB, 2 * MIB),
        (2 * MIB + 8192, 2 * MIB + 8192 + 600_000),
        (2 * MIB + 5, 3 * MIB + 7),
        (3 * MIB, 3 * MIB + 40),
        (4 * MIB - 1, 4 * MIB),
        (wal.position - 100, wal.position),
    ):
        assert wal_input.read(PATH, begin_lsn, end_lsn).tobytes() == wal.read(begin_lsn, end_lsn)


def test_an_input_is_pickled_as_what_it_was_opened_with(archive: ArchiveMaker) -> None:
    wal = make_log(2 * MIB)
    archive.put_all(wal)
    copy = pickle.loads(pickle.dumps(opened(archive)))
    assert copy.read(PATH, MIB, 2 * MIB).tobytes() == wal.read(MIB, 2 * MIB)


def test_what_is_archived_meanwhile_is_there_at_the_next_question(archive: ArchiveMaker) -> None:
    wal = make_log(4 * MIB)
    wal_input = opened(archive)
    with pytest.raises(WalMissing, match="has no WAL yet"):
        wal_input.log_path()
    archive.put_partial(wal, MIB, MIB + 5000)
    assert wal_input.log_path() == PATH
    assert wal_input.extents(PATH) == [Extent(MIB, MIB + 5000)]
    archive.put_partial(wal, MIB, MIB + 9000, compressed=True)
    assert wal_input.extents(PATH) == [Extent(MIB, MIB + 9000)]
    archive.put_segment(wal, MIB)
    archive.put_segment(wal, 3 * MIB)
    assert wal_input.extents(PATH) == [Extent(MIB, 2 * MIB), Extent(3 * MIB, 4 * MIB)]
    archive.put_segment(wal, 2 * MIB)
    assert wal_input.extents(PATH) == [Extent(MIB, 4 * MIB)]


def test_a_partial_that_was_replaced_while_it_was_to_be_read_is_read_from_what_replaced_it(
    archive: ArchiveMaker,
) -> None:
    wal = make_log(2 * MIB)
    short = archive.put_partial(wal, MIB, MIB + 5000)
    wal_input = opened(archive)
    assert wal_input.read(PATH, MIB, MIB + 5000).tobytes() == wal.read(MIB, MIB + 5000)
    archive.put_partial(wal, MIB, MIB + 9000)
    archive.store.delete([short.key, short.receipt_key])
    assert wal_input.read(PATH, MIB, MIB + 5000).tobytes() == wal.read(MIB, MIB + 5000)
    assert wal_input.read(PATH, MIB, MIB + 9000).tobytes() == wal.read(MIB, MIB + 9000)


def test_a_fork_inside_a_segment_is_read_from_the_childs_file_and_from_the_parents_below_it(
    archive: ArchiveMaker,
) -> None:
    parent = make_log(3 * MIB + 100_000)
    fork_lsn = parent.position + -parent.position % 8
    child = extend(fork(parent, 2), 5 * MIB, seed=2)
    extend(parent, 5 * MIB, seed=3)
    archive.put_all(parent)
    archive.put_segment(child, 3 * MIB)
    archive.put_segment(child, 4 * MIB)
    archive.put_history(2, ((1, fork_lsn),))
    wal_input = opened(archive)
    path = wal_input.log_path()
    assert path == LogPath(2, ((1, fork_lsn),), MIB)
    assert wal_input.extents(path) == [Extent(MIB, 5 * MIB)]
    assert wal_input.read(path, 2 * MIB, 5 * MIB).tobytes() == child.read(2 * MIB, 5 * MIB)
    old = wal_input.log_path(1)
    assert wal_input.extents(old) == [Extent(MIB, parent.position)]
    assert wal_input.read(old, 2 * MIB, 5 * MIB).tobytes() == parent.read(2 * MIB, 5 * MIB)
    # Without the child's file the parent's is good up to the fork, and no further.
    archive.store.delete([info.key for info in archive.store.list() if "00000002000000000000000" in info.key])
    wal_input = opened(archive)
    assert wal_input.extents(path) == [Extent(MIB, fork_lsn)]
    assert wal_input.read(path, 3 * MIB, fork_lsn).tobytes() == parent.read(3 * MIB, fork_lsn)
    with pytest.raises(WalMissing, match=r"has no 000000020000000000000003 with the WAL from 0/300000 to "):
        wal_input.read(path, 3 * MIB, fork_lsn + 8)


def test_a_timeline_that_is_not_there_is_named_with_those_that_are(archive: ArchiveMaker) -> None:
    wal = make_log(2 * MIB)
    archive.put_all(wal)
    with pytest.raises(WalMissing, match=r"has no timeline 3: it has 1$"):
        opened(archive).log_path(3)
    child = fork(wal, 2)
    extend(child, 3 * MIB)
    archive.put_segment(child, 2 * MIB)
    with pytest.raises(WalMissing, match=r"has WAL of timeline 2, but no 00000002\.history"):
        opened(archive).log_path()


def test_a_corrupt_object_is_reported_and_another_one_of_the_same_bytes_is_used(archive: ArchiveMaker) -> None:
    wal = make_log(3 * MIB)
    plain = archive.put_segment(wal, MIB)
    content = wal.read(MIB, 2 * MIB)
    archive.store.put(plain.key, content[:70_000] + b"?" + content[70_001:], absent=False)
    expected = rf"{plain.key} has the CRC-32C [0-9A-F]{{8}}, but its receipt has {plain.crc32c:08X}; 0/100000 was to "
    with pytest.raises(SourceCorrupt, match=expected):
        opened(archive).read(PATH, MIB, 2 * MIB)
    with pytest.raises(SourceCorrupt, match=expected):
        opened(archive).read(PATH, MIB, 2 * MIB - 8192)
    # A small part is not compared: its records have checksums of their own.
    assert opened(archive).read(PATH, MIB, MIB + 100).tobytes() == content[:100]
    archive.put_segment(wal, MIB, compressed=True)
    assert opened(archive).read(PATH, MIB, 2 * MIB).tobytes() == content


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("cut", "problem"), [(-1000, "bytes where 1048576 are expected"), (1000, "more than the")])
def test_an_object_of_another_length_is_corrupt(
    archive: ArchiveMaker, compressed: bool, cut: int, problem: str
) -> None:
    wal = make_log(3 * MIB)
    archived = archive.put_segment(wal, MIB, compressed=compressed)
    lengthened = archive.put_segment(make_log(3 * MIB, seed=9), 2 * MIB, compressed=compressed)
    stored = archive.store.get(archived.key)
    stored = stored[:cut] if cut < 0 else stored + archive.store.get(lengthened.key)[:cut]
    if compressed and cut > 0:
        import zstandard

        stored = zstandard.compress(wal.read(MIB, 2 * MIB) + bytes(cut))
    archive.store.put(archived.key, stored, absent=False)
    with pytest.raises(SourceCorrupt, match=problem) as caught:
        opened(archive).read(PATH, MIB, 2 * MIB)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_cluster_is_refused_in_one_line(archive: ArchiveMaker) -> None:
    archive.put_all(make_log(2 * MIB, system_id=8))
    with pytest.raises(SourceCorrupt, match=r"000000010000000000000001 is WAL of the system 8, not of 7: "):
        opened(archive).read(PATH, MIB, 2 * MIB)


def test_receipts_that_contradict_each_other_are_reported(archive: ArchiveMaker) -> None:
    archive.put_segment(make_log(2 * MIB), MIB)
    archive.put_segment(make_log(2 * MIB, seed=5), MIB, compressed=True)
    assert opened(archive).extents(PATH) == []
    with pytest.raises(SourceCorrupt, match="contradicts itself about 000000010000000000000001"):
        opened(archive).read(PATH, MIB, 2 * MIB)


def test_what_cannot_be_an_input_is_refused(tmp_path: Path, archive: ArchiveMaker) -> None:
    for path, problem in (
        (str(tmp_path / "nowhere"), "nowhere is not a folder: correct the input's path"),
        ("ftp://somewhere", "ftp:// is not an input of WAL: give a folder, s3://"),
        ("s3://", "has no bucket"),
        ("file://archive", "file://archive has a remote host: write file:///path"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(problem)):
            open_input(path)
    with pytest.raises(ConfigurationError, match="has no options: remove region"):
        open_input(archive.store.url, {"region": "x"})
    assert open_input(f"file://{archive.store.url}").origin() == Origin(7, MIB)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArchiveRefused, match=r"has no manifest\.json"):
        ArchiveSource(str(tmp_path / "empty")).origin()


def test_an_archive_that_cannot_be_listed_is_unavailable(archive: ArchiveMaker, tmp_path: Path) -> None:
    archive.put_all(make_log(2 * MIB))
    wal_input = opened(archive)
    wal_input.extents(PATH)
    wal = tmp_path / "archive" / "wal"
    wal.rename(tmp_path / "moved")
    wal.symlink_to("wal")
    with pytest.raises(SourceUnavailable, match="could not list"):
        wal_input.extents(PATH)


def test_files_are_offered_the_best_first_as_they_are_now(archive: ArchiveMaker, tmp_path: Path) -> None:
    wal = make_log(4 * MIB)
    source = ArchiveSource(archive.store.url)
    assert source.offers(1, MIB) == []
    archive.put_partial(wal, MIB, MIB + 5000)
    archive.put_segment(wal, MIB, compressed=True)
    whole, part = source.offers(1, MIB)
    assert (whole.source, whole.begin_lsn, whole.end_lsn, whole.is_committed) == (source.name, MIB, 2 * MIB, True)
    assert part.end_lsn == MIB + 5000
    whole.write(tmp_path / "segment")
    assert (tmp_path / "segment").read_bytes() == wal.read(MIB, 2 * MIB)
    archive.store.delete([info.key for info in archive.store.list("wal")])
    with pytest.raises(WalMissing):
        whole.write(tmp_path / "gone")
    assert source.offers(1, MIB) == []


def test_a_later_file_is_noticed_as_soon_as_it_is_archived(archive: ArchiveMaker) -> None:
    wal = make_log(4 * MIB)
    source = ArchiveSource(archive.store.url)
    archive.put_segment(wal, MIB)
    assert source.has_later(1, MIB) is None
    archive.put_segment(wal, 3 * MIB)
    assert source.has_later(1, MIB) == source.has_later(1, 2 * MIB) == "000000010000000000000003"
    assert source.has_later(1, 3 * MIB) is None
    assert source.has_later(2, MIB) is None
    assert source.extents(PATH, MIB) == [Extent(MIB, 2 * MIB), Extent(3 * MIB, 4 * MIB)]


def test_a_history_is_returned_as_it_was_archived(archive: ArchiveMaker) -> None:
    source = ArchiveSource(archive.store.url)
    assert source.history(2) is None
    archive.put_history(2, ((1, 3 * MIB),))
    assert source.history(2) == format_timeline_history(((1, 3 * MIB),))


def test_a_file_whose_receipts_contradict_each_other_is_not_offered(archive: ArchiveMaker) -> None:
    archive.put_segment(make_log(2 * MIB), MIB)
    archive.put_segment(make_log(2 * MIB, seed=5), MIB, compressed=True)
    with pytest.raises(SourceCorrupt, match="contradicts itself about 000000010000000000000001"):
        ArchiveSource(archive.store.url).offers(1, MIB)
