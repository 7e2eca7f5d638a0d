"""What a data folder remembers of its log between two questions."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from safekeeper.consensus.effects import FindRecordEnd, FlushWal, Persist, ResetWal, TruncateWal, WriteWal
from safekeeper.data_folder import DataFolder
from safekeeper.errors import ConfigurationError
from safekeeper.wal.filesystem import RealFileSystem
from tests.unit.wal_builder import MIB, WalBuilder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    """A folder whose log begins where a WalBuilder's does, and is empty."""
    folder = DataFolder.open(RealFileSystem(), tmp_path / "sk", 1, "a" * 32)
    folder.perform(Persist(msgspec.structs.replace(folder.control, segment_size=MIB, wal_begin_lsn=MIB)))
    folder.perform(ResetWal(MIB, 1))
    yield folder
    folder.close()


def write(folder: DataFolder, wal: WalBuilder, begin_lsn: int) -> None:
    folder.perform(WriteWal(begin_lsn, wal.read(begin_lsn, wal.position)))
    folder.perform(FlushWal())


def test_the_end_of_a_record_is_found_when_it_has_come(folder: DataFolder) -> None:
    wal = WalBuilder()
    record = wal.add(b"r" * 30_000)
    half_lsn, end_lsn = wal.begin_lsn + 10_000, wal.position
    folder.perform(WriteWal(wal.begin_lsn, wal.read(wal.begin_lsn, half_lsn)))
    folder.perform(FlushWal())
    assert folder.perform(FindRecordEnd(wal.begin_lsn)) == 0
    write(folder, wal, half_lsn)
    assert folder.flush_lsn == end_lsn
    assert folder.perform(FindRecordEnd(wal.begin_lsn)) == record.end_lsn


def test_what_was_read_of_bytes_that_were_cut_is_forgotten(folder: DataFolder) -> None:
    torn, whole = WalBuilder(), WalBuilder()
    torn.add(b"t" * 30_000, held=10_000)
    record = whole.add(b"w" * 12_000)
    write(folder, torn, torn.begin_lsn)
    assert folder.perform(FindRecordEnd(torn.begin_lsn)) == 0
    folder.perform(TruncateWal(torn.begin_lsn, 2))
    write(folder, whole, whole.begin_lsn)
    assert folder.perform(FindRecordEnd(whole.begin_lsn)) == record.end_lsn


def test_a_data_folder_of_postgresql_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("18\n")
    with pytest.raises(ConfigurationError, match=r"is a data folder of PostgreSQL .*: correct --data-dir"):
        DataFolder.open(RealFileSystem(), tmp_path, 1, "a" * 32)
    assert [path.name for path in tmp_path.iterdir()] == ["PG_VERSION"]
