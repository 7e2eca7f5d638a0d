"""A folder of segments as a source, as the pipeline reads it: where its log ends, above all."""

import os
import pickle
import time
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.waldecode.format import RECORD_HEADER_SIZE
from tests.unit.record_bodies import of_length
from tests.unit.wal_builder import MIB, WalBuilder
from tests.unit.wal_places import extend, fork, make_log, write_history, write_segments
from walproxy.pipeline.decoder.pages import content_position
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.wal_sources.source import Extent, LogPath, Origin, SourceCorrupt, SourceUnavailable, WalMissing

PATH = LogPath(1, (), MIB)


def opened(folder: Path) -> WalInput:
    return open_input(str(folder))


def aligned(wal: WalBuilder) -> int:
    return wal.position + -wal.position % 8


def last_end(wal: WalBuilder, lsn: int) -> int:
    """Return where the last record ends that is wholly below `lsn`."""
    return [record.end_lsn for record in wal.records if record.end_lsn <= lsn][-1]


def test_the_open_segment_ends_where_its_last_record_does(tmp_path: Path) -> None:
    wal = make_log(3 * MIB + 200_000)
    write_segments(tmp_path, wal)
    wal_input = pickle.loads(pickle.dumps(opened(tmp_path)))
    assert wal_input.origin() == Origin(7, MIB)
    assert wal_input.log_path() == PATH
    assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))]
    for begin_lsn, end_lsn in ((MIB, wal.position), (2 * MIB + 5, 3 * MIB + 9)):
        assert wal_input.read(PATH, begin_lsn, end_lsn).tobytes() == wal.read(begin_lsn, end_lsn)


def test_the_end_moves_with_what_the_server_writes(tmp_path: Path) -> None:
    wal = make_log(3 * MIB + 200_000)
    write_segments(tmp_path, wal)
    wal_input = opened(tmp_path)
    for end_lsn in (3 * MIB + 200_500, 3 * MIB + 900_000, 4 * MIB - 20_000, 4 * MIB + 10, 6 * MIB + 10):
        extend(wal, end_lsn, seed=end_lsn)
        write_segments(tmp_path, wal)
        assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))]


def test_a_record_that_is_not_wholly_written_is_not_there(tmp_path: Path) -> None:
    wal = make_log(2 * MIB + 200_000)
    end_lsn = aligned(wal)
    wal.add(of_length(100_000), held=60_000)
    write_segments(tmp_path, wal)
    assert opened(tmp_path).extents(PATH) == [Extent(MIB, end_lsn)]


def test_what_a_recycled_file_held_before_is_not_there(tmp_path: Path) -> None:
    wal, old = make_log(3 * MIB + 200_000), make_log(8 * MIB, seed=2)
    write_segments(tmp_path, wal)
    last = tmp_path / "000000010000000000000003"
    written = -(-wal.position // 8192) * 8192 - 3 * MIB
    last.write_bytes(last.read_bytes()[:written] + old.read(5 * MIB + written, 6 * MIB))
    for number in (4, 5):  # Kept for later use.
        (tmp_path / f"{1:08X}{number:016X}").write_bytes(old.read((number - 3) * MIB, (number - 2) * MIB))
    wal_input = opened(tmp_path)
    assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))]
    with pytest.raises(WalMissing, match="has no 000000010000000000000004 with the WAL from 0/400000 to 0/400010"):
        wal_input.read(PATH, 4 * MIB, 4 * MIB + 16)


def test_a_record_over_several_segments_leaves_no_hole(tmp_path: Path) -> None:
    wal = make_log(MIB + 700_000)
    wal.add(of_length(3_000_000))
    extend(wal, wal.position + 50_000)
    write_segments(tmp_path, wal)
    assert opened(tmp_path).extents(PATH) == [Extent(MIB, aligned(wal))]
    # The first of them gone, the rest begins amid the record.
    (tmp_path / "000000010000000000000001").unlink()
    assert opened(tmp_path).extents(PATH) == [Extent(2 * MIB, aligned(wal))]
    # Only what lies amid the record.
    (tmp_path / "000000010000000000000004").unlink()
    assert opened(tmp_path).extents(PATH) == [Extent(2 * MIB, 4 * MIB)]


@pytest.mark.parametrize("length", [1_000_000, 3_000_001])
def test_a_long_record_in_the_open_segment_is_passed_over(tmp_path: Path, length: int) -> None:
    wal = WalBuilder(begin_lsn=8 * MIB, segment_size=8 * MIB, system_id=7)
    extend(wal, 8 * MIB + 700_000)
    wal.add(of_length(length))
    # And one that ends so far behind it as is read at once, amid a page.
    begin, end = (content_position(aligned(wal) + more, 8 * MIB) for more in (0, MIB))
    wal.add(of_length(end - begin - RECORD_HEADER_SIZE))
    extend(wal, 14 * MIB, seed=2)
    write_segments(tmp_path, wal)
    wal_input = opened(tmp_path)
    assert wal_input.extents(wal_input.log_path()) == [Extent(8 * MIB, aligned(wal))]


def test_a_switched_segment_is_whole(tmp_path: Path) -> None:
    wal = make_log(MIB + 200_000)
    wal.switch()
    write_segments(tmp_path, wal)
    wal_input = opened(tmp_path)
    assert wal_input.extents(PATH) == [Extent(MIB, 2 * MIB)]
    extend(wal, 2 * MIB + 9000)
    write_segments(tmp_path, wal)
    assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))]
    # What is cut off behind the switch record is not there, whatever that says.
    (tmp_path / "000000010000000000000002").unlink()
    (tmp_path / "000000010000000000000001").write_bytes(wal.read(MIB, MIB + 400_000))
    assert opened(tmp_path).extents(PATH) == [Extent(MIB, MIB + 400_000)]


def test_a_partial_counts_as_far_as_it_is_valid(tmp_path: Path) -> None:
    wal = make_log(3 * MIB + 200_000)
    write_segments(tmp_path, wal, [MIB, 2 * MIB])
    write_segments(tmp_path, wal, [3 * MIB], ".partial")
    wal_input = opened(tmp_path)
    assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))]
    assert wal_input.read(PATH, 2 * MIB, wal.position).tobytes() == wal.read(2 * MIB, wal.position)
    cut = tmp_path / "000000010000000000000003.partial"
    cut.write_bytes(cut.read_bytes()[:100_000])
    assert opened(tmp_path).extents(PATH) == [Extent(MIB, last_end(wal, 3 * MIB + 100_000))]
    # Nobody shortens a file while it is read, but whoever does makes nobody wait.
    assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))]


def test_a_hole_parts_what_is_there_and_the_segment_before_it_is_looked_into(tmp_path: Path) -> None:
    wal = make_log(7 * MIB)
    write_segments(tmp_path, wal)
    (tmp_path / "000000010000000000000003").unlink()
    before, after = opened(tmp_path).extents(PATH)
    assert after == Extent(4 * MIB, aligned(wal))
    assert before == Extent(MIB, last_end(wal, 3 * MIB))


def test_timelines_are_followed_through_history_files(tmp_path: Path) -> None:
    parent = make_log(3 * MIB + 100_000)
    fork_lsn = aligned(parent)
    child = extend(fork(parent, 2), 5 * MIB, seed=2)
    extend(parent, 4 * MIB + 500_000, seed=3)
    write_segments(tmp_path, parent)
    write_segments(tmp_path, child, [3 * MIB, 4 * MIB])
    wal_input = opened(tmp_path)
    with pytest.raises(SourceUnavailable, match=r"has WAL of timeline 2, but no 00000002\.history yet"):
        wal_input.log_path()
    assert wal_input.log_path(2) == LogPath(2, (), MIB)
    write_history(tmp_path, 2, ((1, fork_lsn),))
    path = wal_input.log_path()
    assert path == LogPath(2, ((1, fork_lsn),), MIB)
    assert wal_input.extents(path) == [Extent(MIB, last_end(child, 5 * MIB))]
    assert wal_input.read(path, 2 * MIB, 5 * MIB).tobytes() == child.read(2 * MIB, 5 * MIB)
    old = wal_input.log_path(1)
    assert wal_input.extents(old) == [Extent(MIB, aligned(parent))]
    assert wal_input.read(old, 3 * MIB, 4 * MIB).tobytes() == parent.read(3 * MIB, 4 * MIB)
    with pytest.raises(WalMissing, match="has no timeline 7: it has 1, 2"):
        wal_input.log_path(7)
    (tmp_path / "00000002.history").write_text("nonsense")
    with pytest.raises(SourceCorrupt, match="the history of TLI 2 has an invalid line"):
        wal_input.log_path()


def test_segments_of_one_timeline_need_no_history_file(tmp_path: Path) -> None:
    child = extend(fork(make_log(2 * MIB), 3), 4 * MIB)
    write_segments(tmp_path, child, [2 * MIB, 3 * MIB])
    assert opened(tmp_path).log_path() == LogPath(3, (), MIB)


def test_the_wal_of_two_servers_in_one_folder_is_refused(tmp_path: Path) -> None:
    write_segments(tmp_path, make_log(3 * MIB))
    write_segments(tmp_path, make_log(4 * MIB, system_id=8), [3 * MIB])
    wal_input = opened(tmp_path)
    for question in (lambda: wal_input.extents(PATH), lambda: wal_input.read(PATH, 3 * MIB, 3 * MIB + 10)):
        with pytest.raises(SourceCorrupt, match=r"0003 is WAL of the system 8 in segments of .* are of 7 .*its own$"):
            question()


def test_a_folder_without_wal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    (tmp_path / "000000010000000000000001").write_bytes(bytes(MIB))
    with pytest.raises(ConfigurationError, match=r"has neither a manifest\.json nor segments of WAL: correct the"):
        opened(tmp_path).origin()
    (tmp_path / "pg_wal").mkdir()
    with pytest.raises(ConfigurationError, match=rf"segments of WAL: name {tmp_path}/pg_wal"):
        opened(tmp_path).origin()
    with pytest.raises(ConfigurationError, match="takes no options: remove region"):
        open_input(str(tmp_path), {"region": "x"})


def test_a_folder_that_did_not_change_is_not_listed_again(tmp_path: Path) -> None:
    wal = make_log(3 * MIB)
    write_segments(tmp_path, wal)
    os.utime(tmp_path, (1_000_000_000, 1_000_000_000))
    wal_input = opened(tmp_path)
    before = wal_input.extents(PATH)
    write_segments(tmp_path, extend(wal, 4 * MIB + 9000))
    os.utime(tmp_path, (1_000_000_000, 1_000_000_000))
    assert wal_input.extents(PATH) != [Extent(MIB, aligned(wal))], "it was listed though it seems not to have changed"
    os.utime(tmp_path)
    assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))] != before


def test_a_folder_that_was_changed_a_moment_ago_may_have_changed_again_at_the_same_time(tmp_path: Path) -> None:
    wal = make_log(3 * MIB)
    write_segments(tmp_path, wal)
    wal_input = opened(tmp_path)
    now_ns = time.time_ns()
    os.utime(tmp_path, ns=(now_ns, now_ns))
    assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))]
    write_segments(tmp_path, extend(wal, 5 * MIB + 9000))
    os.utime(tmp_path, ns=(now_ns, now_ns))
    assert wal_input.extents(PATH) == [Extent(MIB, aligned(wal))]
