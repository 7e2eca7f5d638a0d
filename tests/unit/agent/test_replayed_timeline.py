"""The timeline of a standby without a walreceiver."""

from pathlib import Path

import pytest

from walproxy.agent.replayed_timeline import replayed_tli

SEGMENT = 1 << 24


def pg_wal(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("names", "tli"),
    [
        ((), 0),
        (("000000010000000000000002",), 1),
        (("000000050000000000000002", "00000005.history"), 5),
        # It has followed two promotions within the segment.
        (("000000050000000000000002", "000000070000000000000002", "00000005.history", "00000007.history"), 7),
        # What it receives, or has prepared, is further on.
        (("000000050000000000000002", "000000070000000000000003", "00000005.history", "00000007.history"), 5),
        # Its own promotion has crashed before it was on the new timeline.
        (("000000050000000000000002", "000000060000000000000002", "00000005.history"), 5),
        (("000000050000000000000002.partial", "000000050000000000000001", "archive_status"), 0),
    ],
)
def test_it_is_the_highest_one_with_the_last_replayed_byte(tmp_path: Path, names: tuple[str, ...], tli: int) -> None:
    assert replayed_tli(pg_wal(tmp_path, *names), 3 * SEGMENT, SEGMENT) == tli


def test_it_is_unknown_before_anything_is_replayed_and_if_the_folder_cannot_be_read(tmp_path: Path) -> None:
    assert replayed_tli(pg_wal(tmp_path, "0000000100000000FFFFFFFF"), 0, SEGMENT) == 0
    assert replayed_tli(tmp_path / "missing", SEGMENT, SEGMENT) == 0
