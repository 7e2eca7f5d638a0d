"""Plain Parquet: whoever is killed wherever, and whenever the power fails, each row is there once."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from safekeeper.base.errors import StorageFailed, StorageFull
from tests.unit.stopping_disk import Stopped, StoppingDisk, StopsBehindTheEntry, power_cuts
from tests.unit.table_rows import SMALL, lsns_in, lsns_of, written
from walproxy.pipeline.tables import open_table
from walproxy.pipeline.tables.commit_log import ENTRIES_PER_CHECKPOINT, CommitLog, Entry
from walproxy.pipeline.tables.disk import Disk, locked
from walproxy.pipeline.tables.parquet_table import ParquetTable


def opened(folder: Path, disk: Disk | None = None) -> ParquetTable:
    """Open the table as a process does that knows nothing of the others."""
    table = ParquetTable(folder, SMALL, disk)
    table.prepare()
    return table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table with two batches of two files each."""
    with open_table(tmp_path, "rows", "parquet", SMALL) as table:
        table.commit("me", 0, [written(table, [1, 2]), written(table, [3])])
        table.commit("me", 1, [written(table, [4]), written(table, [5])])
    return tmp_path / "rows"


def commit_a_batch(table: ParquetTable) -> None:
    table.commit("me", 2, [written(table, [6, 7]), written(table, [8]), written(table, [9])])


def steps_of(folder: Path, change: Callable[[ParquetTable], object]) -> int:
    """Return how many steps a change takes."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy, symlinks=True)
    disk = StoppingDisk()
    change(ParquetTable(copy, SMALL, disk))
    shutil.rmtree(copy)
    return disk.count


def test_any_reader_of_parquet_reads_the_folder(folder: Path) -> None:
    assert lsns_in(folder / "data") == [1, 2, 3, 4, 5]
    assert pq.read_table(folder).num_rows == 5
    assert pq.read_table(folder / "data").num_rows == 5
    assert ds.dataset(folder).count_rows() == 5


def test_a_commit_that_is_killed_at_any_step_is_done_once_when_it_comes_again(folder: Path, tmp_path: Path) -> None:
    steps = steps_of(folder, commit_a_batch)
    assert steps > 8
    original = tmp_path / "original"
    folder.rename(original)
    for stop_at in range(steps):
        shutil.copytree(original, folder, symlinks=True)
        with pytest.raises(Stopped):
            commit_a_batch(ParquetTable(folder, SMALL, StoppingDisk(stop_at)))
        seen = lsns_in(folder / "data")
        assert seen[:5] == [1, 2, 3, 4, 5]
        assert len(set(seen)) == len(seen)
        counted = opened(folder).last_batch("me") == 2
        assert lsns_of(opened(folder)) == [1, 2, 3, 4, 5, *([6, 7, 8, 9] if counted else [])]
        commit_a_batch(opened(folder))
        assert lsns_of(opened(folder)) == lsns_in(folder / "data") == list(range(1, 10))
        opened(folder).remove_orphans(0)
        assert lsns_in(folder / "data") == list(range(1, 10))
        assert list((folder / "_walproxy" / "staged").iterdir()) == []
        shutil.rmtree(folder)


def test_a_batch_that_was_killed_is_finished_by_the_batch_of_another_writer(folder: Path) -> None:
    with pytest.raises(Stopped):
        commit_a_batch(ParquetTable(folder, SMALL, StopsBehindTheEntry()))
    assert lsns_in(folder / "data") == [1, 2, 3, 4, 5]
    other = opened(folder)
    assert other.last_batch("me") == 2
    assert other.commit("you", 0, [written(other, [10])])
    assert lsns_of(opened(folder)) == lsns_in(folder / "data") == list(range(1, 11))


@pytest.fixture
def before(folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder as the test finds it."""
    copy = tmp_path / "before"
    shutil.copytree(folder, copy, symlinks=True)
    return copy


def staged(folder: Path) -> Path:
    """Return where tasks write."""
    return folder / "_walproxy" / "staged"


def test_commits_and_compactions_outlive_any_power_cut_once_they_have_returned(folder: Path, before: Path) -> None:
    changes: list[Callable[[ParquetTable], object]] = [
        lambda table: table.commit("me", 2, [written(table, [6]), written(table, [7])]),
        lambda table: table.commit("me", 3, [written(table, [8])]),
        lambda table: table.compact(),
        lambda table: table.commit("me", 4, [written(table, [9])]),
    ]
    disk = StoppingDisk(watched=staged(folder))
    for done in range(1, len(changes) + 1):
        shutil.rmtree(folder)
        shutil.copytree(before, folder, symlinks=True)
        disk = StoppingDisk(watched=staged(folder))
        table = ParquetTable(folder, SMALL, disk)
        for change in changes[:done]:
            change(table)
        batch, rows = {1: (2, 7), 2: (3, 8), 3: (3, 8), 4: (4, 9)}[done]
        for _ in power_cuts(before, folder, disk.steps):
            assert not opened(folder).commit("me", batch, [written(opened(folder), [rows])])
            assert lsns_of(opened(folder)) == lsns_in(folder / "data") == list(range(1, rows + 1))


def test_what_a_second_process_finds_and_says_is_in_outlives_any_power_cut(folder: Path, before: Path) -> None:
    killed = StopsBehindTheEntry(watched=staged(folder))
    with pytest.raises(Stopped):
        commit_a_batch(ParquetTable(folder, SMALL, killed))
    second = StoppingDisk()
    assert not ParquetTable(folder, SMALL, second).commit("me", 2, [])
    for _ in power_cuts(before, folder, [*killed.steps, *second.steps]):
        assert opened(folder).last_batch("me") == 2
        assert lsns_of(opened(folder)) == lsns_in(folder / "data") == list(range(1, 10))


@pytest.mark.parametrize("change", [commit_a_batch, ParquetTable.compact], ids=["commit", "compaction"])
def test_a_power_cut_at_any_step_loses_and_doubles_nothing(
    folder: Path, before: Path, change: Callable[[ParquetTable], object]
) -> None:
    for stop_at in range(1, steps_of(folder, change)):
        shutil.rmtree(folder)
        shutil.copytree(before, folder, symlinks=True)
        disk = StoppingDisk(stop_at, staged(folder))
        with pytest.raises(Stopped):
            change(ParquetTable(folder, SMALL, disk))
        for _ in power_cuts(before, folder, disk.steps):
            assert lsns_in(folder / "data")[:5] == [1, 2, 3, 4, 5]
            commit_a_batch(opened(folder))
            assert lsns_of(opened(folder)) == lsns_in(folder / "data") == list(range(1, 10))


def test_during_a_compaction_every_listing_shows_each_row_once(folder: Path, tmp_path: Path) -> None:
    steps = steps_of(folder, ParquetTable.compact)
    assert steps > 8
    original = tmp_path / "original"
    folder.rename(original)
    swapped = set()
    for stop_at in range(steps):
        shutil.copytree(original, folder, symlinks=True)
        with pytest.raises(Stopped):
            ParquetTable(folder, SMALL, StoppingDisk(stop_at)).compact()
        swapped.add((folder / "data").readlink().name)
        assert lsns_in(folder / "data") == [1, 2, 3, 4, 5]
        assert lsns_of(opened(folder)) == lsns_in(folder / "data") == [1, 2, 3, 4, 5]
        commit_a_batch(opened(folder))
        assert lsns_of(opened(folder)) == lsns_in(folder / "data") == list(range(1, 10))
        shutil.rmtree(folder)
    assert swapped == {"000001", "000002"}


def test_a_table_whose_making_was_killed_at_any_step_is_made_by_the_next(tmp_path: Path) -> None:
    with open_table(tmp_path, "rows", "parquet", SMALL):
        pass
    identity = (tmp_path / "rows" / "_walproxy" / "table.json").read_bytes()
    stop_at = 0
    while True:
        folder = tmp_path / f"rows{stop_at}"
        (folder / "_walproxy").mkdir(parents=True)
        (folder / "_walproxy" / "table.json").write_bytes(identity)
        disk = StoppingDisk(stop_at)
        try:
            ParquetTable(folder, SMALL, disk).prepare()
            break
        except Stopped:
            commit_a_batch(opened(folder))
            assert lsns_in(folder / "data") == [6, 7, 8, 9]
        stop_at += 1
    assert stop_at > 8


def test_a_table_with_thousands_of_commits_is_opened_from_its_checkpoint(folder: Path) -> None:
    table = opened(folder)
    for batch in range(2, 2 * ENTRIES_PER_CHECKPOINT + 5):
        table.commit("me", batch, [])
    for path in (folder / "_walproxy" / "commits").glob("*.json"):
        if int(path.stem) < 2 * ENTRIES_PER_CHECKPOINT - 1:
            path.unlink()
    assert opened(folder).last_batch("me") == 2 * ENTRIES_PER_CHECKPOINT + 4
    assert lsns_of(opened(folder)) == [1, 2, 3, 4, 5]


def test_a_process_that_slept_while_the_log_was_shortened_goes_on_where_it_is_now(folder: Path) -> None:
    sleeper = opened(folder)
    assert sleeper.last_batch("me") == 1
    busy = opened(folder)
    busy.commit("me", 2, [written(busy, [6])])
    busy.commit("you", 0, [written(busy, [7])])
    busy.compact()
    busy.expire(0)
    assert sleeper.last_batch("me") == 2
    assert lsns_of(sleeper) == list(range(1, 8))
    assert not sleeper.commit("me", 2, [written(sleeper, [6])])
    assert sleeper.commit("me", 3, [written(sleeper, [8])])
    assert lsns_of(busy) == lsns_in(folder / "data") == list(range(1, 9))


def test_a_log_without_an_entry_in_the_middle_is_not_continued(folder: Path) -> None:
    entry = folder / "_walproxy" / "commits" / f"{2:016d}.json"
    entry.write_text(entry.read_text()[:-9])
    with pytest.raises(StorageFailed, match=r"0002\.json is damaged: .*; restore it from a copy"):
        opened(folder)
    entry.write_text('{"version":9,"number":2,"time":0.0,"operation":"append","generation":1}')
    with pytest.raises(StorageFailed, match=r"0002\.json is of version 9, this program reads version 1"):
        opened(folder)


def test_the_age_of_an_old_state_begins_with_its_end(folder: Path) -> None:
    table = opened(folder)
    begun = table.live_files()
    long_ago = time.time() - 86400
    os.utime(folder / "_walproxy" / "generations" / "000001", (long_ago, long_ago))
    table.compact()
    assert table.expire(3600).files == 0
    assert all(Path(file.path).exists() for file in begun)


def test_removing_an_old_state_leaves_and_does_not_count_files_that_are_still_used(folder: Path) -> None:
    table = opened(folder)
    table.commit("me", 2, [written(table, range(1000, 9000))])
    small = [file for file in table.live_files() if file.rows < 3]
    entries = list((folder / "_walproxy" / "commits").iterdir())
    target = 2 * max(file.bytes for file in table.live_files()) - 2
    assert table.compact(target).files_removed == len(small) == 4
    removed = table.expire(0)
    assert removed.versions == 1
    assert removed.files == len(small) + len(entries) + 1
    assert len(lsns_in(folder / "data")) == 8005


def test_an_entry_of_the_log_is_never_written_twice(folder: Path) -> None:
    """Not even where locks do not work: two processes that both think that theirs is the next entry."""
    first, second = (CommitLog(disk, folder / "_walproxy") for disk in (StopsBehindTheEntry(), Disk()))
    first.refresh()
    second.refresh()
    entry = Entry(1, first.state.number + 1, 0.0, "append", 1, writer="first", batch=0)
    with pytest.raises(Stopped):
        first.append(entry)
    assert not second.append(Entry(1, entry.number, 0.0, "append", 1, writer="second", batch=0))
    second.refresh()
    assert second.newest == entry
    assert opened(folder).remove_orphans(0).files == 1


class ReadOnlyDisk(Disk):
    """A disk that may only be read."""

    def locked(self, path: Path):  # type: ignore[no-untyped-def]
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


@pytest.mark.parametrize("change", [commit_a_batch, ParquetTable.compact], ids=["commit", "compaction"])
def test_who_may_only_read_sees_what_was_there_before_an_unfinished_change(
    folder: Path, change: Callable[[ParquetTable], object]
) -> None:
    with pytest.raises(Stopped):
        change(ParquetTable(folder, SMALL, StopsBehindTheEntry()))
    assert lsns_of(opened(folder, ReadOnlyDisk())) == [1, 2, 3, 4, 5]
    with pytest.raises(StorageFailed, match=r"could not commit to the table .*: Read-only file system"):
        commit_a_batch(opened(folder, ReadOnlyDisk()))
    finished = lsns_of(opened(folder))
    assert lsns_of(opened(folder, ReadOnlyDisk())) == finished == lsns_in(folder / "data")


class FullDisk(Disk):
    """A disk without room."""

    def write(self, path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_is_told_and_the_batch_can_be_tried_again(folder: Path) -> None:
    table = opened(folder, FullDisk())
    files = [written(table, [6])]
    with pytest.raises(StorageFull, match=r"could not commit to the table .*: No space left on device"):
        table.commit("me", 2, files)
    table._disk = table._log._disk = Disk()
    assert table.commit("me", 2, files)
    assert lsns_of(table) == lsns_in(folder / "data") == [1, 2, 3, 4, 5, 6]


def test_a_process_that_holds_the_lock_for_too_long_is_told(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    begun = time.monotonic()
    with (
        locked(path),
        pytest.raises(StorageFailed, match="has been locked by another process"),
        locked(path, timeout_s=0.05),
    ):
        pass
    assert time.monotonic() - begun < 10
    with locked(path, timeout_s=0.05):
        pass
