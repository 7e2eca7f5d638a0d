"""The lone data folder finds errors of the storage: those that it has found, and others that are planted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safekeeper.storage import data_folder as data_folder_module
from safekeeper.storage import recovery as recovery_module
from safekeeper.storage.filesystem import FileSystem
from safekeeper.storage.segment_file import SegmentFile
from safekeeper.storage.wal_log import WalStorage
from safekeeper.storage.wal_reading import WalReader
from tests.simulation.lone import folder as lone_folder
from tests.simulation.seeds.runner import run_seed
from tests.simulation.world.world import SimulationFailed

SEEDS = range(100)
Patch = Callable[[pytest.MonkeyPatch], None]


def damage_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """WAL after a segment that looks as if only prepared is removed."""
    patch.setattr(recovery_module, "_holds_wal", lambda facts: False)


def folder_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A control file gets its name without a sync of the folder."""

    def planted(fs: FileSystem, directory: Path) -> None:
        """Do nothing."""

    patch.setattr(data_folder_module, "sync_names", planted)
    patch.setattr("safekeeper.storage.filesystem.sync_names", planted)


def files_stay_open(patch: pytest.MonkeyPatch) -> None:
    """Files of older segments are not closed."""
    patch.setattr(SegmentFile, "close", lambda segment: None)


def prepared_late(patch: pytest.MonkeyPatch) -> None:
    """The next segment is prepared only when an append needs it."""
    patch.setattr(WalStorage, "prepare_ahead", lambda storage: None)


def reads_the_wrong_segment(patch: pytest.MonkeyPatch) -> None:
    """A reader goes on in the file that it has open."""
    patch.setattr(WalReader, "_is_open_at", lambda reader, lsn: reader._file is not None)


def copies_what_the_disk_has_lost(patch: pytest.MonkeyPatch) -> None:
    """The copy of the last segment is not compared with the slot that was read before."""
    create = recovery_module.create_segment
    patch.setattr(
        recovery_module, "create_segment", lambda *given, **named: create(*given, **named | {"expected": None})
    )


def damaged_files_set_aside_are_restored(patch: pytest.MonkeyPatch) -> None:
    """An undo is not refused for a file that cannot be opened."""
    inspect = recovery_module.inspect

    def planted(*given: Any) -> Any:
        segments, problems = inspect(*given)
        return [each._replace(is_damaged=False) for each in segments], problems

    patch.setattr(data_folder_module, "inspect", planted)


def half_a_segment_is_set_aside(patch: pytest.MonkeyPatch) -> None:
    """What a crash has left of a segment that was created goes with the others."""
    patch.setattr(data_folder_module, "TEMPORARY_SUFFIX", "no file has it")


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (damage_is_not_noticed, 0),
        (folder_is_not_synced, 0),
        (files_stay_open, 0),
        (prepared_late, 0),
        (reads_the_wrong_segment, 0),
        (copies_what_the_disk_has_lost, 0),
        (damaged_files_set_aside_are_restored, 300),
        (half_a_segment_is_set_aside, 200),
    ],
)
def test_errors_of_the_storage_are_found(plant: Patch, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(SimulationFailed):
        for seed in range(first, first + 1500):
            lone_folder.drive(seed)


def test_a_seed_drives_a_folder_and_fails_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    files_stay_open(monkeypatch)
    with pytest.raises(SimulationFailed, match="were not closed"):
        run_seed(next(seed for seed in SEEDS if _leaves_files_open(seed)))


def _leaves_files_open(seed: int) -> bool:
    try:
        lone_folder.drive(seed)
    except SimulationFailed:
        return True
    return False


def test_a_seed_does_the_same_each_time() -> None:
    assert lone_folder.drive(7) == lone_folder.drive(7)
