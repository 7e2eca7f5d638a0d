"""A file that claims to be WAL: its page headers say where it belongs."""

from pathlib import Path

import pytest

from tests.unit.wal_builder import WalBuilder
from walproxy.recovery.pages import check_pages
from walproxy.wal_sources.source import Origin, SourceCorrupt

MIB = 1 << 20
PAGE = 8192
ORIGIN = Origin(7_000_000_000_000_000_001, MIB)


def some_wal() -> bytearray:
    wal = WalBuilder(begin_lsn=5 * MIB)
    while wal.position < 5 * MIB + 20 * PAGE:
        wal.add(bytes(3000))
    return wal.data[: 20 * PAGE]


def check(tmp_path: Path, content: bytes, begin_lsn: int = 5 * MIB, tli: int = 1, origin: Origin = ORIGIN) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    check_pages(path, tli, begin_lsn, len(content), origin, "it")


@pytest.mark.parametrize("size", [24, 40, 100, PAGE, PAGE + 10, 3 * PAGE + 5, 20 * PAGE])
def test_wal_of_any_length_passes(tmp_path: Path, size: int) -> None:
    check(tmp_path, some_wal()[:size])


def test_a_later_timelines_file_may_hold_an_ancestors_pages(tmp_path: Path) -> None:
    check(tmp_path, some_wal(), tli=2)


def test_pages_of_zeros_behind_a_switch_pass_up_to_the_end(tmp_path: Path) -> None:
    content = some_wal()
    content[10 * PAGE :] = bytes(10 * PAGE)
    check(tmp_path, content)
    content[12 * PAGE : 13 * PAGE] = some_wal()[12 * PAGE : 13 * PAGE]
    with pytest.raises(SourceCorrupt, match="is zero from 0/514000 to 0/518000"):
        check(tmp_path, content)


def test_a_file_of_another_place_or_system_is_found(tmp_path: Path) -> None:
    with pytest.raises(SourceCorrupt, match="belongs to 0/500000"):
        check(tmp_path, some_wal(), begin_lsn=6 * MIB)
    with pytest.raises(SourceCorrupt, match="not of 5"):
        check(tmp_path, some_wal(), origin=Origin(5, MIB))
    with pytest.raises(SourceCorrupt, match="segments of 1048576"):
        check(tmp_path, some_wal(), origin=Origin(ORIGIN.system_id, 16 * MIB))


@pytest.mark.parametrize(
    ("offset", "byte", "words"),
    [
        (0, 0x17, "its magic"),
        (3 * PAGE, 0x17, "its magic"),
        (3 * PAGE + 2, 0x02, "with the flags"),
        (3 * PAGE + 4, 2, "of timeline 2"),
        (3 * PAGE + 4, 0, "of timeline 0"),
        (3 * PAGE + 9, 1, "that belongs to"),
    ],
)
def test_a_damaged_header_is_found(tmp_path: Path, offset: int, byte: int, words: str) -> None:
    content = some_wal()
    content[offset] = byte
    with pytest.raises(SourceCorrupt, match=words):
        check(tmp_path, content)


def test_a_file_of_zeros_or_of_another_size_is_found(tmp_path: Path) -> None:
    with pytest.raises(SourceCorrupt):
        check(tmp_path, bytes(3 * PAGE))
    path = tmp_path / "file"
    path.write_bytes(some_wal())
    with pytest.raises(SourceCorrupt, match="has 163840 bytes where 1048576"):
        check_pages(path, 1, 5 * MIB, MIB, ORIGIN, "it")
