"""The files of events: appended, torn tails skipped, bounded."""

from pathlib import Path

import pytest

from safekeeper.base.errors import StorageFull
from safekeeper.base.events import TEXT_BYTES_MAX, Event, KeptEvent
from safekeeper.storage.event_file import EVENT_FILE_BYTES_MAX, EventFile
from safekeeper.storage.filesystem import RealFileSystem
from tests.unit.faulty_filesystem import FaultyFileSystem


def kept(seq: int, text: str = "text") -> KeptEvent:
    return KeptEvent(seq, Event(f"a-{seq}", seq, "term-won", "walproxy", text, {"term": seq, "s": 1.5, "t": "ü"}))


def test_what_is_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    file = EventFile(RealFileSystem(), tmp_path)
    assert file.load() == []
    file.append([kept(1), kept(2)])
    file.append([kept(3)])
    assert EventFile(RealFileSystem(), tmp_path).load() == [kept(1), kept(2), kept(3)]


@pytest.mark.parametrize("cut_bytes", [1, 2, 20, 60])
def test_a_torn_tail_loses_that_event_only(tmp_path: Path, cut_bytes: int) -> None:
    file = EventFile(RealFileSystem(), tmp_path)
    file.append([kept(1), kept(2)])
    path = tmp_path / "events"
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    file.append([kept(3)])
    # Without its last byte, the line feed, the line is whole.
    assert file.load() == [kept(1), *([kept(2)] if cut_bytes == 1 else []), kept(3)]


def test_damage_of_a_line_loses_that_event_only(tmp_path: Path) -> None:
    file = EventFile(RealFileSystem(), tmp_path)
    file.append([kept(1), kept(2), kept(3)])
    path = tmp_path / "events"
    lines = path.read_bytes().split(b"\n")
    for damage in (b"\0" * 50, b"[]", b'[2,["a"]]', b"\xff"):
        path.write_bytes(b"\n".join([lines[0], damage, lines[2], b""]))
        assert file.load() == [kept(1), kept(3)]


def test_the_files_are_bounded(tmp_path: Path) -> None:
    file, count = EventFile(RealFileSystem(), tmp_path), 3 * EVENT_FILE_BYTES_MAX // TEXT_BYTES_MAX
    for seq in range(1, count + 1):
        file.append([kept(seq, "x" * TEXT_BYTES_MAX)])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["events", "events.old"]
    assert sum((tmp_path / name).stat().st_size for name in names) <= 2 * EVENT_FILE_BYTES_MAX + 4 * TEXT_BYTES_MAX
    found = [each.seq for each in file.load()]
    assert found == list(range(found[0], count + 1)) and len(found) > count // 3


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    fs.full = True
    with pytest.raises(StorageFull):
        EventFile(fs, tmp_path).append([kept(1)])
    fs.full = False
    EventFile(fs, tmp_path).append([kept(1)])
    assert EventFile(fs, tmp_path).load() == [kept(1)]
