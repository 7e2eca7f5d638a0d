"""What a data folder remembers of its log between two questions, and what a crash leaves of one that is exchanged."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    Effect,
    Effects,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    FlushWal,
    InspectSetAside,
    Persist,
    ReadWal,
    ResetWal,
    RestoreWal,
    Send,
    SetWalAside,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.base.errors import (
    ConfigurationError,
    DiskLost,
    LocalProtocolError,
    ResourceShortage,
    StorageFailed,
    StorageFull,
)
from safekeeper.base.lsn import segment_name
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AppendRequest,
    Bootstrap,
    Elected,
    ProposerGreeting,
    ProposerMessage,
    VoteRequest,
)
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.data_folder import DataFolder, missing_wal
from safekeeper.storage.filesystem import TEMPORARY_SUFFIX, RealFileSystem
from safekeeper.storage.inspection import inspect_folder
from safekeeper.storage.segment_file import FOOTER_BYTES
from tests.simulation.model.virtual_disk import VirtualCrash, VirtualFileSystem
from tests.unit.virtual_data_folder import start
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


@pytest.mark.parametrize(
    "replace",
    [
        [TruncateWal(MIB, 2)],
        [ResetWal(MIB, 2)],
        [SetWalAside("old"), ResetWal(MIB, 2)],
        [SetWalAside("old"), RestoreWal("older"), TruncateWal(MIB, 2)],
    ],
    ids=lambda effects: type(effects[-2 if len(effects) > 1 else -1]).__name__,
)
def test_the_end_of_a_record_is_searched_again_in_a_log_that_has_replaced_another(
    folder: DataFolder, replace: list[Effect]
) -> None:
    torn, whole = WalBuilder(), WalBuilder()
    torn.add(b"t" * 30_000, held=10_000)
    record = whole.add(b"w" * 12_000)
    if RestoreWal("older") in replace:
        folder.perform(SetWalAside("older"))
        folder.perform(ResetWal(MIB, 1))
    write(folder, torn, torn.begin_lsn)
    assert folder.perform(FindRecordEnd(torn.begin_lsn)) == 0
    for effect in replace:
        folder.perform(effect)
    write(folder, whole, whole.begin_lsn)
    assert folder.perform(FindRecordEnd(whole.begin_lsn)) == record.end_lsn


def test_the_ends_of_records_at_different_places_are_found_alternately(folder: DataFolder) -> None:
    wal = WalBuilder()
    records = [wal.add(b"r" * size) for size in (100, 20_000, 300)]
    write(folder, wal, wal.begin_lsn)
    assert folder.perform(FindRecordEnd(wal.begin_lsn)) == records[0].end_lsn
    for record in (records[1], records[0], records[2], records[1]):
        assert folder.perform(FindRecordEnd(record.start_lsn)) == record.end_lsn


def test_records_are_searched_in_what_is_flushed_only(folder: DataFolder) -> None:
    wal = WalBuilder()
    record = wal.add(b"r" * 100)
    folder.perform(WriteWal(wal.begin_lsn, wal.read(wal.begin_lsn, wal.position)))
    assert folder.perform(FindRecordEnd(wal.begin_lsn)) == 0
    assert folder.perform(FindRecords(wal.begin_lsn))[0] == 0
    folder.perform(FlushWal())
    assert folder.perform(FindRecordEnd(wal.begin_lsn)) == record.end_lsn
    assert folder.perform(FindRecords(wal.begin_lsn))[0] == record.end_lsn


def test_the_size_of_the_wal_and_its_ends_are_those_of_the_log(folder: DataFolder) -> None:
    assert (folder.begin_lsn, folder.flush_lsn, folder.wal_bytes) == (MIB, MIB, 0)
    folder.perform(WriteWal(MIB, bytes(2 * MIB + 100)))
    assert (folder.flush_lsn, folder.wal_bytes) == (MIB, 2 * MIB + 100)
    folder.perform(FlushWal())
    folder.perform(TrimWal(3 * MIB))
    assert (folder.begin_lsn, folder.flush_lsn, folder.wal_bytes) == (3 * MIB, 3 * MIB + 100, 100)
    folder.perform(SetWalAside("old"))
    assert (folder.begin_lsn, folder.flush_lsn, folder.wal_bytes) == (0, 0, 0)
    with pytest.raises(LocalProtocolError, match="has no WAL yet"):
        folder.opened_storage()


def test_an_effect_that_is_not_of_the_disk_is_an_error_of_the_program(folder: DataFolder) -> None:
    with pytest.raises(LocalProtocolError, match="Close cannot be carried out by the disk"):
        folder.perform(Close(1, ""))


def test_a_log_of_another_segment_size_has_files_of_that_size(folder: DataFolder) -> None:
    folder.perform(WriteWal(MIB, bytes(3 * MIB)))
    folder.perform(SetWalAside("old"))
    folder.perform(Persist(msgspec.structs.replace(folder.control, segment_size=2 * MIB, wal_begin_lsn=0)))
    folder.perform(ResetWal(4 * MIB, 1))
    (path,) = (folder.directory / "wal").iterdir()
    assert path.stat().st_size == 2 * MIB + FOOTER_BYTES
    # Also if the log was opened, and has no files.
    path.unlink()
    folder.close()
    again = DataFolder.open(RealFileSystem(), folder.directory, 1, "b" * 32)
    assert again.opened_storage().is_empty
    again.perform(Persist(msgspec.structs.replace(again.control, segment_size=4 * MIB)))
    again.perform(ResetWal(8 * MIB, 1))
    (path,) = (again.directory / "wal").iterdir()
    assert path.stat().st_size == 4 * MIB + FOOTER_BYTES
    again.close()


def test_effects_of_the_start_receive_their_results_and_a_full_disk(folder: DataFolder) -> None:
    folder.perform(WriteWal(MIB, b"abc"))
    received: list[Any] = []

    def effects() -> Effects:
        received.append((yield FlushWal()))
        received.append((yield ReadWal(MIB, MIB + 3)))
        folder.opened_storage().append = full  # type: ignore[method-assign]
        try:
            yield WriteWal(MIB + 3, b"d")
        except StorageFull as error:
            received.append(str(error))
        received.append((yield ReadWal(MIB, MIB + 1)))

    def full(begin_lsn: int, data: object) -> None:
        raise StorageFull("no space")

    folder.perform_all(effects())
    assert received == [None, b"abc", "no space", b"a"]


# What must be there at a start (S8).


@pytest.mark.parametrize(
    ("changes", "begin", "flush", "lost"),
    [
        ({}, 0, 10, None),
        ({}, 0, 0, None),
        ({}, 0, -1, "ends at 0/FFFFF, but it reached 0/100000"),
        ({}, -MIB, -MIB, "is missing, but it reached 0/100000"),
        ({"commit_lsn": MIB + 10}, 0, 10, None),
        ({"commit_lsn": MIB + 11}, 0, 10, "ends at 0/10000A, but it reached 0/10000B"),
        ({"truncate_to": MIB + 10, "commit_lsn": MIB + 5}, 0, 10, None),
        ({"truncate_to": MIB + 11, "commit_lsn": MIB + 5}, 0, 10, "ends at 0/10000A, but it reached 0/10000B"),
        ({"truncate_to": MIB + 5, "commit_lsn": MIB + 11}, 0, 10, "ends at 0/10000A, but it reached 0/10000B"),
        ({"wal_begin_lsn": 3 * MIB, "commit_lsn": 2 * MIB}, 2 * MIB, 2 * MIB, None),
        ({"wal_begin_lsn": 3 * MIB}, 0, 2 * MIB - 1, "ends at 0/2FFFFF, but it reached 0/300000"),
        ({}, MIB, 2 * MIB, "begins at 0/200000, but it began at 0/100000"),
        ({}, -MIB + 1, 10, None),
        # The log is being replaced, or nothing was ever written.
        ({"wal_begin_lsn": 0, "commit_lsn": MIB + 11}, 0, 10, None),
        ({"set_aside": True, "commit_lsn": MIB + 11}, 0, 10, None),
        ({"restore_from": "old", "commit_lsn": MIB + 11}, 0, 10, None),
        ({"base_lsn": 8 * MIB, "commit_lsn": MIB + 11}, 0, 10, None),
    ],
)
def test_wal_is_lost_if_it_ends_or_begins_elsewhere_than_the_control_file_records(
    changes: dict[str, Any], begin: int, flush: int, lost: str | None
) -> None:
    control = msgspec.structs.replace(
        ControlState(safekeeper_id=1, incarnation="a" * 32, segment_size=MIB, wal_begin_lsn=MIB), **changes
    )
    found = missing_wal(control, MIB + begin, MIB + flush, Path("/data/wal"))
    if lost is None:
        assert found is None
    else:
        assert found is not None and found.startswith(f"the WAL in /data/wal {lost}: this data folder is no longer")


def test_the_state_that_a_start_has_read_survives_a_power_cut() -> None:
    """The process before may have ended between the renaming and the sync of the folder: the cache shows the rename."""
    both = set()
    for seed in range(40):
        fs = VirtualFileSystem(random.Random(seed))
        file = ControlFile(fs, Path("/data/sk"))
        file.store(ControlState(safekeeper_id=1, incarnation="a" * 32))
        fs.fail_in(1, only="sync folder")
        with pytest.raises(StorageFailed):
            file.store(ControlState(safekeeper_id=1, incarnation="a" * 32, promised=LeaderId(7, "run")))
        fs.kill()
        read = ControlFile(fs, Path("/data/sk")).load(ControlState)
        assert read is not None
        start(fs).close()
        fs.crash()
        assert ControlFile(fs, Path("/data/sk")).load(ControlState) == read
        both.add(read.promised.term)
    assert 7 in both


def test_a_folder_whose_control_file_is_gone_is_lost_only_if_it_has_wal(tmp_path: Path) -> None:
    directory = tmp_path / "sk"
    (directory / "wal").mkdir(parents=True)
    folder = DataFolder.open(RealFileSystem(), directory, 1, "b" * 32)
    assert (folder.control.safekeeper_id, folder.control.incarnation) == (1, "b" * 32)
    folder.close()
    (directory / "control").unlink()
    (directory / "wal" / segment_name(1, MIB, MIB)).touch()
    with pytest.raises(DiskLost, match="WAL but no control file"):
        DataFolder.open(RealFileSystem(), directory, 1, "b" * 32)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ResourceShortage("too many open files"), ResourceShortage, "could not start in .*: raise the limit of open"),
        (StorageFull("no space left"), StorageFailed, "not enough disk space to start in .*: free some space"),
        (StorageFailed("input/output error"), StorageFailed, "input/output error"),
    ],
    ids=["descriptors", "space", "disk"],
)
def test_a_start_that_fails_names_what_is_lacking_and_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], message: str
) -> None:
    def fails(path: Path) -> None:
        raise error

    fs = RealFileSystem()
    monkeypatch.setattr(fs, "create", fails)
    with pytest.raises(kind, match=message) as raised:
        DataFolder.open(fs, tmp_path / "sk", 1, "a" * 32)
    assert type(raised.value) is kind
    DataFolder.open(RealFileSystem(), tmp_path / "sk", 1, "a" * 32).close()


@pytest.mark.parametrize("pending", [{"set_aside": True}, {"restore_from": "old"}])
def test_wal_that_is_being_moved_is_not_looked_at_by_a_start(tmp_path: Path, pending: dict[str, Any]) -> None:
    """Part of it is in another folder: what is left may begin anywhere, and must not be rewritten."""
    control = ControlState(safekeeper_id=1, incarnation="a" * 32, segment_size=MIB, wal_begin_lsn=MIB)
    ControlFile(RealFileSystem(), tmp_path).store(msgspec.structs.replace(control, **pending))
    (tmp_path / "wal").mkdir()
    half = tmp_path / "wal" / segment_name(1, 5 * MIB, MIB)
    half.write_bytes(b"not to be touched")
    folder = DataFolder.open(RealFileSystem(), tmp_path, 1, "b" * 32)
    assert folder.storage is None and half.read_bytes() == b"not to be touched"
    folder.close()
    ControlFile(RealFileSystem(), tmp_path).store(control)
    with pytest.raises(StorageFailed, match="has 17 bytes"):
        DataFolder.open(RealFileSystem(), tmp_path, 1, "b" * 32)


def footers_destroyed(wal: Path) -> None:
    (wal / segment_name(1, 2 * MIB, MIB)).write_bytes(bytes(MIB + FOOTER_BYTES))


def ended_early(wal: Path) -> None:
    (wal / segment_name(1, 2 * MIB, MIB)).rename(wal / segment_name(1, 3 * MIB, MIB))


def one_twice(wal: Path) -> None:
    (wal / segment_name(2, 2 * MIB, MIB)).touch()


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (footers_destroyed, f"{segment_name(1, 2 * MIB, MIB)}: both slots"),
        (ended_early, f"the segment at 0/200000 is missing in DIR in the middle between {segment_name(1, MIB, MIB)}"),
        (one_twice, f"two files of one segment, {segment_name(1, 2 * MIB, MIB)}"),
    ],
)
def test_inspection_says_that_wal_is_lost_where_a_start_refuses_it(
    folder: DataFolder, damage: Callable[[Path], None], names: str
) -> None:
    folder.perform(WriteWal(MIB, bytes(MIB + 100)))
    folder.perform(FlushWal())
    folder.close()
    fs, directory = RealFileSystem(), folder.directory
    assert inspect_folder(fs, directory).lost == ""
    damage(directory / "wal")
    found = inspect_folder(fs, directory)
    assert names.replace("DIR", str(directory / "wal")) in found.lost
    assert found.lost not in found.notes, "it is printed once"
    with pytest.raises(StorageFailed) as refused:
        DataFolder.open(fs, directory, 1, "b" * 32)
    assert found.lost == str(refused.value)


@pytest.mark.parametrize("pending", [{"set_aside": True}, {"restore_from": "old"}])
def test_inspection_leaves_wal_that_is_being_moved_alone(folder: DataFolder, pending: dict[str, Any]) -> None:
    folder.perform(WriteWal(MIB, bytes(MIB + 100)))
    folder.perform(FlushWal())
    folder.close()
    footers_destroyed(folder.directory / "wal")
    ControlFile(RealFileSystem(), folder.directory).store(msgspec.structs.replace(folder.control, **pending))
    assert inspect_folder(RealFileSystem(), folder.directory).lost == ""


def test_records_are_searched_from_where_the_log_begins(folder: DataFolder) -> None:
    wal = WalBuilder()
    first = wal.add(b"r" * 100)
    while wal.position < 2 * MIB + 20_000:
        wal.add(b"r" * 8000)
    write(folder, wal, wal.begin_lsn)
    later = next(record for record in wal.records if record.start_lsn > 2 * MIB)
    assert folder.perform(FindRecords(later.start_lsn))[1] > first.start_lsn
    folder.perform(TrimWal(2 * MIB))
    assert folder.perform(FindRecords(later.start_lsn))[1] == 0, "the record before it is not retained"
    assert folder.perform(FindRecords(later.end_lsn))[1] == later.start_lsn


def test_a_folder_without_a_segment_size_has_no_storage_also_at_its_next_start(tmp_path: Path) -> None:
    for _ in range(2):
        folder = DataFolder.open(RealFileSystem(), tmp_path / "sk", 1, "a" * 32)
        assert folder.storage is None
        folder.close()


# A log that is set aside.


def test_what_is_set_aside_is_inspected_from_where_it_began(folder: DataFolder) -> None:
    folder.perform(WriteWal(MIB, bytes(2 * MIB + 100)))
    folder.perform(FlushWal())
    control = msgspec.structs.replace(folder.control, commit_lsn=3 * MIB + 100)
    folder.perform(SetWalAside("old"))

    def inspected(**changes: Any) -> Any:
        return folder.perform(InspectSetAside("old", msgspec.structs.replace(control, **changes)))

    assert inspected() == ""
    assert inspected(wal_begin_lsn=2 * MIB) == "", "its oldest segment was being removed"
    lost = "the WAL that the rebootstrap set aside is incomplete: the WAL in "
    assert inspected(commit_lsn=3 * MIB + 101).startswith(lost)
    aside = folder.directory / "wal.old"
    oldest = aside / segment_name(1, MIB, MIB)
    os.truncate(oldest, MIB)
    assert inspected(wal_begin_lsn=2 * MIB) == "" != inspected()
    oldest.unlink()
    assert "begins at 0/200000, but it began at 0/100000" in inspected()
    assert inspected(wal_begin_lsn=2 * MIB) == ""
    (aside / f"{segment_name(1, 9 * MIB, MIB)}{TEMPORARY_SUFFIX}").touch()
    assert inspected(wal_begin_lsn=2 * MIB).endswith("is left over from an interrupted step")
    assert folder.perform(InspectSetAside("nothing", msgspec.structs.replace(control, segment_size=0))) == ""


@pytest.mark.parametrize(
    ("offset", "damage", "reported"),
    [
        (MIB, bytes(FOOTER_BYTES), "both slots of the footer have a wrong checksum"),
        (MIB + FOOTER_BYTES, b"x", f"has {MIB + FOOTER_BYTES + 1} bytes, not {MIB + FOOTER_BYTES}"),
    ],
)
def test_a_file_set_aside_that_an_undo_could_not_open_is_reported(
    folder: DataFolder, offset: int, damage: bytes, reported: str
) -> None:
    """Also one without WAL that counts: the undo is durable before it opens the log."""
    folder.perform(WriteWal(MIB, bytes(MIB)))
    storage = folder.opened_storage()
    preparation = storage.prepare_ahead()
    assert preparation is not None
    preparation.run()
    storage.finish_preparation(preparation)
    folder.perform(FlushWal())
    control = msgspec.structs.replace(folder.control, commit_lsn=2 * MIB, truncate_to=2 * MIB)
    folder.perform(SetWalAside("old"))
    assert folder.perform(InspectSetAside("old", control)) == ""
    name = segment_name(1, 2 * MIB, MIB)
    with (folder.directory / "wal.old" / name).open("r+b") as file:
        file.seek(offset)
        file.write(damage)
    assert folder.perform(InspectSetAside("old", control)).endswith(f"incomplete: {name} {reported}")
    with pytest.raises(StorageFailed):
        folder.perform(RestoreWal("old"))


def test_a_log_that_is_moved_back_incomplete_is_a_lost_disk(folder: DataFolder) -> None:
    folder.perform(WriteWal(MIB, bytes(2 * MIB + 100)))
    folder.perform(FlushWal())
    control = msgspec.structs.replace(folder.control, commit_lsn=3 * MIB + 100, restore_from="old")
    folder.perform(SetWalAside("old"))
    (folder.directory / "wal.old" / segment_name(1, 3 * MIB, MIB)).unlink()
    folder.perform(Persist(control))
    with pytest.raises(DiskLost, match="ends at 0/300000, but it reached 0/300064"):
        folder.perform(RestoreWal("old"))


def test_a_log_is_moved_back_to_a_folder_that_is_gone_and_may_be_of_none(folder: DataFolder) -> None:
    folder.perform(WriteWal(MIB, b"w" * 100))
    folder.perform(FlushWal())
    folder.perform(SetWalAside("old"))
    (folder.directory / "wal").rmdir()
    assert folder.perform(RestoreWal("old")) == MIB + 100
    assert folder.opened_storage().read(MIB, MIB + 100) == b"w" * 100
    folder.perform(SetWalAside("old"))
    folder.perform(Persist(msgspec.structs.replace(folder.control, segment_size=0)))
    assert folder.perform(RestoreWal("old")) == 0 and folder.storage is None


def test_no_space_to_move_a_file_of_the_log_is_a_failure(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(old: Path, new: Path) -> None:
        raise StorageFull("no space")

    monkeypatch.setattr(folder._fs, "rename", full)
    with pytest.raises(StorageFailed, match="no space"):
        folder.perform(SetWalAside("old"))


def test_what_is_set_aside_is_durable_in_both_folders() -> None:
    for seed in range(30):
        fs = VirtualFileSystem(random.Random(seed))
        directory = Path("/data/sk")
        for number in range(3):
            fs.create(directory / "wal" / f"{number}")
        fs.fsync_directory(directory / "wal")
        lock: Any = None
        folder = DataFolder(fs, directory, lock, ControlFile(fs, directory))
        folder.perform(SetWalAside("old"))
        fs.crash()
        assert fs.listdir(directory / "wal") == []
        assert sorted(fs.listdir(directory / "wal.old")) == ["0", "1", "2"]


def test_a_timed_record_is_found_in_the_range_only(folder: DataFolder) -> None:
    wal = WalBuilder()
    for _ in range(3):
        wal.add(b"r" * 100)
    write(folder, wal, wal.begin_lsn)
    assert folder.perform(FindTimedRecord(wal.begin_lsn, wal.position)) == 0
    end_lsn = wal.position
    timed = wal.add(b"time", rmid=1)
    wal.add(b"r" * 2 * MIB)
    later = wal.add(b"time", rmid=1)
    write(folder, wal, end_lsn)
    assert folder.perform(FindTimedRecord(wal.begin_lsn, wal.position)) == later.start_lsn
    assert folder.perform(FindTimedRecord(wal.begin_lsn, later.start_lsn)) == timed.start_lsn
    assert folder.perform(FindTimedRecord(wal.begin_lsn, timed.start_lsn)) == 0
    assert folder.perform(FindTimedRecord(2 * MIB, later.start_lsn)) == 0


OLD, NEW = "c" * 32, "d" * 32
MEMBERS = (Member(1, "a" * 32),)


class Safekeeper:
    """An acceptor on a data folder; what it says is heard by nobody."""

    def __init__(self, fs: VirtualFileSystem, directory: Path) -> None:
        self.folder = DataFolder.open(fs, directory, 1, "a" * 32)
        self.acceptor = Acceptor(self.folder.control, self.folder.flush_lsn)
        try:
            self.folder.perform_all(self.acceptor.start())
            self.deliver(ProposerGreeting(PROTOCOL_VERSION, "run", 1))
        except VirtualCrash:
            self.folder.close()
            raise

    def deliver(self, message: ProposerMessage) -> None:
        self.folder.perform_all(self._to_disk(self.acceptor.receive(1, message, 0.0)))

    @staticmethod
    def _to_disk(effects: Effects) -> Effects:
        result = None
        while True:
            try:
                effect = effects.send(result)
            except StopIteration:
                return
            result = None if isinstance(effect, (Send, Close)) else (yield effect)


def bootstrap(cluster_id: str, generation: int, *, replace: bool = False, undo: bool = False) -> Bootstrap:
    membership = Membership(generation, MEMBERS)
    return Bootstrap(cluster_id, 7, MIB, 150018, membership, replace=replace, undo=undo)


def with_two_segments_set_aside(fs: VirtualFileSystem, directory: Path) -> tuple[Safekeeper, bytes]:
    """Return a safekeeper after a rebootstrap, and the log that this has set aside."""
    fs.make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    safekeeper = Safekeeper(fs, directory)
    leader = LeaderId(1, "run")
    history = (HistoryEntry(1, MIB, 1),)
    wal = random.Random(1).randbytes(MIB + 1000)
    for message in (
        bootstrap(OLD, 1),
        VoteRequest(leader, 1, OLD, Membership(1, MEMBERS)),
        Elected(leader, OLD, 7, MIB, 150018, Membership(1, MEMBERS), history, (), MIB, 0),
        AppendRequest(leader, 1, MIB, 0, 0, 1, True, wal),
        VoteRequest(LeaderId(2, "run"), 1, OLD, Membership(1, MEMBERS)),  # It flushes.
        bootstrap(NEW, 2, replace=True),
    ):
        safekeeper.deliver(message)
    assert safekeeper.folder.flush_lsn == 0
    return safekeeper, wal


def test_an_undo_that_is_cut_short_anywhere_brings_back_every_byte(tmp_path: Path) -> None:
    directory = tmp_path / "sk"
    crashes = 0
    while True:
        fs = VirtualFileSystem(random.Random(crashes))
        safekeeper, wal = with_two_segments_set_aside(fs, directory)
        fs.crash_in(crashes + 1)
        try:
            safekeeper.deliver(bootstrap(OLD, 3, undo=True))
        except VirtualCrash:
            crashes += 1
            safekeeper.folder.close()
            fs.crash()
            safekeeper = Safekeeper(fs, directory)
            is_back = safekeeper.folder.control.cluster_id == OLD
            assert is_back or safekeeper.folder.control.cluster_id == NEW
            if not is_back:
                safekeeper.deliver(bootstrap(OLD, 3, undo=True))
        else:
            break
        finally:
            safekeeper.folder.close()
        assert safekeeper.acceptor.flush_lsn == MIB + len(wal)
        again = Safekeeper(fs, directory)
        assert again.folder.opened_storage().read(MIB, MIB + len(wal)) == wal
        assert again.acceptor.control.promised == LeaderId(2, "run")
        again.folder.close()
    assert crashes > 15, "each step of the undo was cut short once"


def test_an_undo_is_refused_when_wal_is_gone_that_was_acknowledged_and_not_known_to_be_committed(
    tmp_path: Path,
) -> None:
    fs = VirtualFileSystem(random.Random(1))
    safekeeper, _ = with_two_segments_set_aside(fs, tmp_path / "sk")
    assert safekeeper.acceptor.control.replaced is not None and not safekeeper.acceptor.control.replaced.commit_lsn
    fs.unlink(tmp_path / "sk" / f"wal.{NEW}" / "000000010000000000000002")
    safekeeper.deliver(bootstrap(OLD, 3, undo=True))
    safekeeper.folder.close()
    assert safekeeper.folder.control.cluster_id == NEW


def test_a_segment_that_was_in_the_making_at_a_rebootstrap_is_in_the_way_of_no_undo(tmp_path: Path) -> None:
    fs = VirtualFileSystem(random.Random(1))
    safekeeper, wal = with_two_segments_set_aside(fs, tmp_path / "sk")
    safekeeper.deliver(bootstrap(OLD, 3, undo=True))
    leftover = tmp_path / "sk" / "wal" / f"000000010000000000000003{TEMPORARY_SUFFIX}"
    fs.create(leftover).close()
    safekeeper.deliver(bootstrap("e" * 32, 4, replace=True))
    safekeeper.deliver(bootstrap(OLD, 5, undo=True))
    safekeeper.folder.close()
    assert safekeeper.folder.control.cluster_id == OLD and safekeeper.acceptor.flush_lsn == MIB + len(wal)
