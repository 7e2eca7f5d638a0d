"""Reading the log from the side, while its writer goes on."""

from pathlib import Path

import pytest

from safekeeper.base.errors import StorageFailed
from safekeeper.storage.filesystem import RealFile, RealFileSystem
from safekeeper.storage.wal_log import WalStorage
from safekeeper.storage.wal_reading import WalReader
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


def test_where_the_system_cannot_tell_only_recent_wal_is_read_on_the_loop(
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
