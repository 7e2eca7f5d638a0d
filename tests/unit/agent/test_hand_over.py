"""WAL that is handed over to a standby: which bytes, to which files, and what is refused."""

import asyncio
from typing import cast

import pytest

from safekeeper.base.errors import PrimaryRefused, WalproxyError
from safekeeper.base.lsn import Lsn, segment_name
from safekeeper.base.timelines import PASSED_OVER_HISTORY
from walproxy.agent.hand_over import Part, hand_over, parts_to_hand_over
from walproxy.agent.standby_folder import LocalStandbyFolder
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd

SIZE = 1 << 20
BEGIN = 4 * SIZE


def log_end(records_end_lsn: Lsn, tli: int = 1, lineage: tuple[tuple[int, Lsn], ...] = ()) -> LogEnd:
    return LogEnd(1, tli, lineage, records_end_lsn + 7, records_end_lsn, tli)


async def read(begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
    """The log: every byte depends on its position."""
    return bytes(lsn * 131 % 251 for lsn in range(begin_lsn, end_lsn))


class Segment:
    def __init__(self, files: dict[str, bytearray], name: str, size: int) -> None:
        self.is_new = name not in files
        self._files, self._name, self._bytes = files, name, files.get(name, bytearray(size))

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._bytes[offset : offset + size])

    def write(self, offset: int, payload: bytes) -> None:
        self._bytes[offset : offset + len(payload)] = payload

    def finish(self) -> None:
        self._files[self._name] = self._bytes

    def close(self) -> None:
        self._bytes = bytearray()


class Folder:
    """pg_wal, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.histories: dict[int, bytes] = {}
        self.problem: OSError | None = None

    def open_segment(self, name: str, size: int) -> Segment:
        if self.problem is not None:
            raise self.problem
        return Segment(self.files, name, size)

    def place_history(self, tli: int, content: bytes) -> None:
        self.histories.setdefault(tli, content)


def look(replayed_lsn: Lsn, received_lsn: Lsn = 0, tli: int = 1) -> HostLook:
    return HostLook("pg2", True, 1, tli, received_lsn, replayed_lsn)


def handed(folder: Folder, end: LogEnd, seen: HostLook, histories: dict[int, bytes] | None = None) -> int:
    return asyncio.run(hand_over(cast(LocalStandbyFolder, folder), read, end, seen, SIZE, histories or {}))


def test_each_segment_has_the_timeline_of_its_last_byte() -> None:
    end = log_end(BEGIN + 2 * SIZE + 50, tli=3, lineage=((1, BEGIN + 100), (3, BEGIN + 2 * SIZE)))
    assert list(parts_to_hand_over(end, BEGIN + 90, SIZE)) == [
        Part(3, BEGIN, BEGIN + SIZE),
        Part(3, BEGIN + SIZE, BEGIN + 2 * SIZE),
        Part(3, BEGIN + 2 * SIZE, BEGIN + 2 * SIZE + 50),
    ]
    assert list(parts_to_hand_over(log_end(BEGIN + 50, tli=3, lineage=((1, BEGIN),)), BEGIN - 8, SIZE)) == [
        Part(1, BEGIN - SIZE, BEGIN),
        Part(3, BEGIN, BEGIN + 50),
    ]
    assert list(parts_to_hand_over(log_end(BEGIN), BEGIN, SIZE)) == []


def test_an_existing_segment_is_written_from_the_replayed_position_on_and_a_new_one_from_its_beginning() -> None:
    folder, first, second = Folder(), segment_name(1, BEGIN, SIZE), segment_name(1, BEGIN + SIZE, SIZE)
    ours = asyncio.run(read(BEGIN, BEGIN + SIZE))
    # The recycled file that PostgreSQL writes to; what is before the page of the position is not looked at.
    folder.files[first] = bytearray(b"\xff" * 8192 + ours[8192:9000] + b"\xee" * (SIZE - 9000))
    assert handed(folder, log_end(BEGIN + SIZE + 300), look(BEGIN + 9000, BEGIN + 9100)) == SIZE + 300 - 9100
    assert folder.files[first] == b"\xff" * 8192 + ours[8192:]
    assert folder.files[second] == asyncio.run(read(BEGIN + SIZE, BEGIN + SIZE + 300)) + bytes(SIZE - 300)
    assert folder.histories == {}


def test_a_segment_that_only_the_archive_had_is_written_from_its_beginning() -> None:
    folder = Folder()
    assert handed(folder, log_end(BEGIN + 9100), look(BEGIN + 9000)) == 100
    assert folder.files[segment_name(1, BEGIN, SIZE)][:9100] == asyncio.run(read(BEGIN, BEGIN + 9100))


def test_the_history_files_of_later_timelines_come_with_it() -> None:
    folder = Folder()
    end = log_end(BEGIN + 200, tli=4, lineage=((1, BEGIN + 100), (3, BEGIN + 150)))
    handed(folder, end, look(BEGIN + 50), {3: b"three", 4: b"four"})
    assert folder.histories == {2: PASSED_OVER_HISTORY, 3: b"three", 4: b"four"}
    assert list(folder.files) == [segment_name(4, BEGIN, SIZE)]


def test_a_standby_with_other_bytes_is_refused() -> None:
    folder, name = Folder(), segment_name(1, BEGIN, SIZE)
    folder.files[name] = bytearray(SIZE)
    with pytest.raises(PrimaryRefused, match=r"differs from the log between 0/402000 and 0/402328"):
        handed(folder, log_end(BEGIN + 9100), look(BEGIN + 9000))
    assert folder.files[name] == bytearray(SIZE)


def test_a_full_disk_is_one_line() -> None:
    folder = Folder()
    folder.problem = OSError(28, "No space left on device", "/data/pg_wal/x")
    with pytest.raises(WalproxyError, match=r"lacks cannot be written: /data/pg_wal/x: No space left on device"):
        handed(folder, log_end(BEGIN + 9100), look(BEGIN + 9000))
