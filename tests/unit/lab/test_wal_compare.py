"""Comparing a safekeeper's segments with pg_wal: files of our own making, and a program that stands for pg_waldump."""

from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import segment_name
from safekeeper.storage.segment_file import FOOTER_BYTES
from walproxy.lab.wal_compare import Compared, WalDiffers, compare_wal, count_records, list_segments
from walproxy.postgres.binaries import ServerBinaries

SIZE = 1 << 20
TLI = 1
BEGIN_LSN = 5 * SIZE
END_LSN = 7 * SIZE + 1000


def wal_byte_pattern(begin_lsn: int) -> bytes:
    return bytes((begin_lsn // SIZE * 7 + n) % 251 for n in range(1000)) * (SIZE // 1000 + 1)


class Folders:
    """A primary with the segments 4..7 and a safekeeper with 5..7, equal up to END_LSN."""

    def __init__(self, directory: Path) -> None:
        self.primary, self.safekeeper = directory / "pg_wal", directory / "wal"
        self.primary.mkdir()
        self.safekeeper.mkdir()
        for begin_lsn in range(BEGIN_LSN - SIZE, END_LSN, SIZE):
            wal = wal_byte_pattern(begin_lsn)[:SIZE]
            (self.primary / segment_name(TLI, begin_lsn, SIZE)).write_bytes(wal)
            if begin_lsn >= BEGIN_LSN:
                written = wal[: min(SIZE, END_LSN - begin_lsn)].ljust(SIZE, b"\0")
                self.safekeeper_path(begin_lsn).write_bytes(written + b"F" * FOOTER_BYTES)
        (self.primary / "archive_status").mkdir()
        (self.safekeeper / "000000010000000000000008.tmp").write_bytes(b"not a segment")

    def safekeeper_path(self, lsn: int) -> Path:
        return self.safekeeper / segment_name(TLI, lsn, SIZE)

    def change_byte(self, lsn: int) -> None:
        with self.safekeeper_path(lsn).open("r+b") as file:
            file.seek(lsn % SIZE)
            old = file.read(1)
            file.seek(lsn % SIZE)
            file.write(bytes([old[0] ^ 1]))

    def compare(self, end_lsn: int = END_LSN) -> Compared:
        return compare_wal(self.safekeeper, [self.primary], SIZE, end_lsn)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_equal_wal_is_equal_though_files_differ_beyond_the_end(folders: Folders) -> None:
    assert folders.compare() == Compared(BEGIN_LSN, END_LSN, 3)


def test_only_segments_below_the_end_are_compared(folders: Folders) -> None:
    folders.change_byte(7 * SIZE + 5)
    assert folders.compare(7 * SIZE) == Compared(BEGIN_LSN, 7 * SIZE, 2)


@pytest.mark.parametrize("lsn", [BEGIN_LSN, 6 * SIZE - 1, 6 * SIZE + 4321, END_LSN - 1])
def test_one_byte_that_differs_is_named(folders: Folders, lsn: int) -> None:
    folders.change_byte(lsn)
    with pytest.raises(WalDiffers, match=f"{segment_name(TLI, lsn, SIZE)} differs from .* at 0/{lsn:X}$"):
        folders.compare()


def test_the_byte_at_the_end_is_nobodys_business(folders: Folders) -> None:
    folders.change_byte(END_LSN)
    assert folders.compare().end_lsn == END_LSN


def test_a_gap_is_found(folders: Folders) -> None:
    folders.safekeeper_path(6 * SIZE).unlink()
    with pytest.raises(WalDiffers, match="has no segment at 0/600000, but a later one"):
        folders.compare()


def test_wal_that_ends_early_is_found(folders: Folders) -> None:
    folders.safekeeper_path(7 * SIZE).unlink()
    with pytest.raises(WalDiffers, match="ends at 0/700000, before 0/7003E8"):
        folders.compare()


def test_a_file_that_is_too_short_is_found(folders: Folders) -> None:
    path = folders.safekeeper_path(6 * SIZE)
    path.write_bytes(path.read_bytes()[: SIZE - 10])
    with pytest.raises(WalDiffers, match=r"differs from .* at 0/6FFFF6$"):
        folders.compare()


def test_an_empty_folder_holds_no_wal(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(WalDiffers, match="holds no WAL below 0/7003E8"):
        compare_wal(tmp_path / "empty", [folders.primary], SIZE, END_LSN)


def test_a_segment_that_the_primary_recycled_cannot_be_compared(folders: Folders) -> None:
    (folders.primary / segment_name(TLI, BEGIN_LSN, SIZE)).unlink()
    with pytest.raises(WalDiffers, match=r"has been removed, so .* cannot be compared"):
        folders.compare()


def promote(folders: Folders, fork_segment_lsn: int) -> Path:
    """Give what begins at `fork_segment_lsn` to TLI 2, whose files are in the pg_wal that is returned."""
    promoted = folders.primary.with_name("pg_wal of the new primary")
    promoted.mkdir()
    for begin_lsn in range(fork_segment_lsn, END_LSN, SIZE):
        old, new = segment_name(TLI, begin_lsn, SIZE), segment_name(TLI + 1, begin_lsn, SIZE)
        (folders.primary / old).rename(promoted / new)
        (folders.safekeeper / old).rename(folders.safekeeper / new)
    return promoted


def test_wal_of_two_timelines_is_compared_with_the_folders_of_two_primaries(folders: Folders) -> None:
    promoted = promote(folders, 6 * SIZE)
    compared = compare_wal(folders.safekeeper, [folders.primary, promoted], SIZE, END_LSN)
    assert compared == Compared(BEGIN_LSN, END_LSN, 3)
    with pytest.raises(WalDiffers, match="has been removed"):
        compare_wal(folders.safekeeper, [folders.primary], SIZE, END_LSN)


def test_a_folder_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder of WAL segments"):
        list_segments(tmp_path / "nowhere", SIZE)


def binaries_with(tmp_path: Path, script: str) -> ServerBinaries:
    """Return an installation whose pg_waldump is a shell script."""
    program = tmp_path / "bin" / "pg_waldump"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return ServerBinaries(18, "18.1", program.parent, tmp_path)


def test_pg_waldump_is_asked_for_the_whole_range_by_the_names_of_both_files(folders: Folders, tmp_path: Path) -> None:
    binaries = binaries_with(tmp_path, f'echo "$@" > {tmp_path}/asked; echo "Total   1234   [100%]"')
    assert count_records(binaries, folders.safekeeper, SIZE, END_LSN) == 1234
    asked = (tmp_path / "asked").read_text().split()
    assert asked == [
        *("--stats", "--start", "0/500000", "--end", "0/7003E8"),
        *(str(folders.safekeeper_path(BEGIN_LSN)), str(folders.safekeeper_path(END_LSN - 1))),
    ]


def test_pg_waldump_is_asked_for_each_timeline_by_itself(folders: Folders, tmp_path: Path) -> None:
    promote(folders, 7 * SIZE)
    binaries = binaries_with(tmp_path, f'echo "$3 $5" >> {tmp_path}/asked; echo "Total   10   [100%]"')
    assert count_records(binaries, folders.safekeeper, SIZE, END_LSN) == 20
    assert (tmp_path / "asked").read_text() == "0/500000 0/700000\n0/700000 0/7003E8\n"


@pytest.mark.parametrize("script", ["echo 'Total 9'; echo 'invalid record length at 0/600000' >&2; exit 1", "exit 0"])
def test_wal_that_pg_waldump_cannot_read_is_an_error(folders: Folders, tmp_path: Path, script: str) -> None:
    with pytest.raises(WalDiffers, match=r"pg_waldump cannot read .* up to 0/7003E8"):
        count_records(binaries_with(tmp_path, script), folders.safekeeper, SIZE, END_LSN)
