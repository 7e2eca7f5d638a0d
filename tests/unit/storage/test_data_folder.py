"""What a data folder remembers of its log between two questions, and what a crash leaves of one that is exchanged."""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    Effects,
    FindRecordEnd,
    FlushWal,
    Persist,
    ResetWal,
    Send,
    TruncateWal,
    WriteWal,
)
from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.control_state import LeaderId
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
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.filesystem import TEMPORARY_SUFFIX, RealFileSystem
from tests.simulation.virtual_disk import VirtualCrash, VirtualFileSystem
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


OLD, NEW = "c" * 32, "d" * 32
MEMBERS = (Member(1, "a" * 32),)


class Safekeeper:
    """An acceptor on a data folder; what it says is heard by nobody."""

    def __init__(self, fs: VirtualFileSystem, directory: Path) -> None:
        self.folder = DataFolder.open(fs, directory, 1, "a" * 32)
        self.acceptor = Acceptor(self.folder.control, self.folder.flush_lsn)
        try:
            self.folder.perform_all(self.acceptor.start())
            self.tell(ProposerGreeting(PROTOCOL_VERSION, "run", 1))
        except VirtualCrash:
            self.folder.close()
            raise

    def tell(self, message: ProposerMessage) -> None:
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
        VoteRequest(leader, 1),
        Elected(leader, OLD, 7, MIB, 150018, Membership(1, MEMBERS), history, (), MIB, 0),
        AppendRequest(leader, 1, MIB, 0, 0, 1, True, wal),
        VoteRequest(LeaderId(2, "run"), 1),  # It flushes.
        bootstrap(NEW, 2, replace=True),
    ):
        safekeeper.tell(message)
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
            safekeeper.tell(bootstrap(OLD, 3, undo=True))
        except VirtualCrash:
            crashes += 1
            safekeeper.folder.close()
            fs.crash()
            safekeeper = Safekeeper(fs, directory)
            is_back = safekeeper.folder.control.cluster_id == OLD
            assert is_back or safekeeper.folder.control.cluster_id == NEW
            if not is_back:
                safekeeper.tell(bootstrap(OLD, 3, undo=True))
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
    safekeeper.tell(bootstrap(OLD, 3, undo=True))
    safekeeper.folder.close()
    assert safekeeper.folder.control.cluster_id == NEW


def test_a_segment_that_was_in_the_making_at_a_rebootstrap_is_in_the_way_of_no_undo(tmp_path: Path) -> None:
    fs = VirtualFileSystem(random.Random(1))
    safekeeper, wal = with_two_segments_set_aside(fs, tmp_path / "sk")
    safekeeper.tell(bootstrap(OLD, 3, undo=True))
    leftover = tmp_path / "sk" / "wal" / f"000000010000000000000003{TEMPORARY_SUFFIX}"
    fs.create(leftover).close()
    safekeeper.tell(bootstrap("e" * 32, 4, replace=True))
    safekeeper.tell(bootstrap(OLD, 5, undo=True))
    safekeeper.folder.close()
    assert safekeeper.folder.control.cluster_id == OLD and safekeeper.acceptor.flush_lsn == MIB + len(wal)
