"""Reading the log from the side, while its writer goes on."""

from pathlib import Path

import pytest

from safekeeper.base.errors import LogChanged, StorageFailed
from safekeeper.storage.filesystem import RealFile, RealFileSystem
from safekeeper.storage.wal_log import WalStorage
from safekeeper.storage.wal_reading import SegmentBytes, WalReader
from tests.unit.faulty_filesystem import FaultyFileSystem

MIB = 1 << 20
BASE_LSN = 3 * MIB


def written(fs: RealFileSystem, directory: Path, *pieces: bytes) -> WalStorage:
    fs.make_directory(directory)
    storage = WalStorage.open(fs, directory, segment_size=MIB, tli=1)
    storage.reset(BASE_LSN, 1)
    for piece in pieces:
        storage.append(storage.write_lsn, piece)
    storage.flush_now()
    return storage


def test_an_open_file_outlives_the_cut_and_the_renaming_of_its_segment(tmp_path: Path) -> None:
    fs = RealFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * 1000)
    reader = WalReader(fs, MIB, storage.segment_path)
    assert reader.at_hand(BASE_LSN, BASE_LSN + 10, recent=True) == b"a" * 10
    storage.truncate(BASE_LSN + 500, 2)
    assert storage.segment_path(BASE_LSN) == tmp_path / "wal" / "000000020000000000000003"
    assert reader.at_hand(BASE_LSN + 490, BASE_LSN + 500, recent=True) == b"a" * 10
    other = WalReader(fs, MIB, storage.segment_path)
    assert other.fetch(BASE_LSN + 490, BASE_LSN + 500)() == b"a" * 10
    for opened in (reader, other):
        opened.fetched()
        opened.close()
    storage.close()


def test_the_last_bytes_of_a_segment_are_read_from_that_segment(tmp_path: Path) -> None:
    fs = RealFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * MIB, b"b" * 1000)
    reader = WalReader(fs, MIB, storage.segment_path)
    assert reader.at_hand(BASE_LSN + MIB - 10, BASE_LSN + MIB, recent=True) == b"a" * 10
    for read in (
        lambda: reader.at_hand(BASE_LSN + MIB - 10, BASE_LSN + MIB, recent=True),
        lambda: reader.fetch(BASE_LSN + MIB - 10, BASE_LSN + MIB)(),
    ):
        assert reader.at_hand(BASE_LSN + MIB, BASE_LSN + MIB + 10, recent=True) == b"b" * 10, "the next one is open"
        assert read() == b"a" * 10
        reader.fetched()
    reader.close()
    storage.close()


def test_older_wal_is_not_even_opened_on_the_loop(tmp_path: Path) -> None:
    fs = RealFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * MIB, b"b" * 1000)
    reader = WalReader(fs, MIB, storage.segment_path)
    assert reader.at_hand(BASE_LSN, BASE_LSN + 100, recent=False) == b""
    assert reader.fetch(BASE_LSN, BASE_LSN + 100)() == b"a" * 100
    reader.fetched()
    # Now it is open, and in memory.
    assert reader.at_hand(BASE_LSN + 100, BASE_LSN + 300, recent=False) == b"a" * 200
    assert reader.at_hand(BASE_LSN + MIB, BASE_LSN + MIB + 10, recent=True) == b"b" * 10
    reader.close()
    storage.close()


def test_where_the_system_does_not_show_only_recent_wal_is_read_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RealFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * 1000)
    monkeypatch.setattr(RealFile, "pread_at_hand", lambda self, length, offset: None)
    reader = WalReader(fs, MIB, storage.segment_path)
    assert reader.at_hand(BASE_LSN, BASE_LSN + 10, recent=True) == b"a" * 10
    assert reader.at_hand(BASE_LSN, BASE_LSN + 10, recent=False) == b""
    reader.close()
    storage.close()


def test_a_file_that_is_closed_while_it_is_read_is_released_afterwards(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * 1000)
    reader = WalReader(fs, MIB, storage.segment_path)
    job = reader.fetch(BASE_LSN, BASE_LSN + 10)
    reader.close()
    assert job() == b"a" * 10
    opened = reader._file
    assert opened is not None
    reader.fetched()
    with pytest.raises(StorageFailed):
        opened.pread(1, 0)
    storage.close()


def test_a_segment_that_is_not_there_is_named(tmp_path: Path) -> None:
    fs = RealFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * 1000)
    reader = WalReader(fs, MIB, storage.segment_path)
    with pytest.raises(StorageFailed, match="byte 0/200000 does not exist"):
        reader.fetch(2 * MIB, 2 * MIB + 10)
    storage.close()


def test_a_reader_goes_from_segment_to_segment_and_back(tmp_path: Path) -> None:
    fs = RealFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * MIB, b"b" * MIB, b"c" * 1000)
    reader = WalReader(fs, MIB, storage.segment_path)
    for number, letter in ((0, b"a"), (2, b"c"), (1, b"b"), (0, b"a")):
        begin_lsn = BASE_LSN + number * MIB
        assert reader.fetch(begin_lsn + 7, begin_lsn + 17)() == letter * 10
        reader.fetched()
        assert reader.at_hand(begin_lsn, begin_lsn + 5, recent=False) == letter * 5
    reader.close()
    assert reader.fetch(BASE_LSN, BASE_LSN + 1)() == b"a", "a reader that was closed opens the file again"
    reader.fetched()
    storage.close()


@pytest.mark.parametrize("recent", [False, True])
def test_what_is_not_in_memory_is_not_read_on_the_loop(tmp_path: Path, recent: bool) -> None:
    fs = FaultyFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * 1000)
    reader = WalReader(fs, MIB, storage.segment_path)
    fs.cold = True
    assert reader.at_hand(BASE_LSN, BASE_LSN + 10, recent=recent) == b""
    reader.close()
    storage.close()


def test_a_segment_is_read_more_than_once_up_to_its_size(tmp_path: Path) -> None:
    fs = RealFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * 1000)
    path = storage.segment_path(BASE_LSN)
    assert path is not None
    source = SegmentBytes(fs, path, 600, lambda: True)
    for _ in range(2):
        assert b"".join(source.pieces()) == b"a" * 600
    storage.close()


def test_a_segment_of_a_log_that_was_replaced_is_not_passed_on(tmp_path: Path) -> None:
    fs = RealFileSystem()
    storage = written(fs, tmp_path / "wal", b"a" * MIB, b"b")
    path = storage.segment_path(BASE_LSN)
    assert path is not None
    is_current = [True]
    opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
    big = SegmentBytes(fs, path, MIB + 10, lambda: is_current[0])  # Two pieces; the second is of the footer.
    pieces = big.pieces()
    assert next(pieces) == b"a" * MIB
    is_current[0] = False
    with pytest.raises(LogChanged, match="the log has changed while"):
        next(pieces)
    with pytest.raises(LogChanged):
        next(SegmentBytes(fs, path, 10, lambda: is_current[0]).pieces())
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == opened
    storage.close()
