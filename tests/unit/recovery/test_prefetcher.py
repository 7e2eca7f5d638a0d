"""Segments that were fetched ahead are delivered by a rename, and to nobody else than who wanted them."""

import os
import threading
import time
from pathlib import Path

import pytest

from safekeeper.archive.objects import segment_file
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.upload import Uploader
from safekeeper.base import settings
from safekeeper.base.lsn import segment_name
from tests.unit.wal_builder import WalBuilder
from walproxy.recovery.caller import is_recovering, system_id_of
from walproxy.recovery.config import ENVIRONMENT_PREFIX, FetchConfig
from walproxy.recovery.prefetched import REQUESTS, Prefetched
from walproxy.recovery.prefetcher import Prefetcher

MIB = 1 << 20
SYSTEM_ID = 7_000_000_000_000_000_001
DEADLINE_S = 20.0


@pytest.fixture
def data_directory(tmp_path: Path) -> Path:
    """A data folder whose server, this process, recovers."""
    directory = tmp_path / "data"
    for name in ("global", "pg_wal"):
        (directory / name).mkdir(parents=True)
    (directory / "global" / "pg_control").write_bytes(SYSTEM_ID.to_bytes(8, "little") + bytes(100))
    (directory / "recovery.signal").touch()
    (directory / "postmaster.pid").write_text(f"{os.getpid()}\n")
    return directory


@pytest.fixture(scope="module")
def wal() -> WalBuilder:
    builder = WalBuilder(begin_lsn=MIB)
    while builder.position < 9 * MIB:
        builder.add(bytes(8000))
    return builder


@pytest.fixture
def archive(tmp_path: Path, wal: WalBuilder) -> Path:
    """The segments 1 to 8."""
    path = tmp_path / "archive"
    uploader = Uploader(
        ObjectStore.open(str(path), makes_folder=True),
        cluster_id="5e1f0c3a9b7d2486",
        system_id=SYSTEM_ID,
        segment_size=MIB,
        safekeeper_id=1,
        compress=False,
    )
    uploader.claim()
    for number in range(1, 9):
        uploader.upload(segment_file(1, number * MIB, MIB), wal.read(number * MIB, (number + 1) * MIB))
    return path


def prefetched(data_directory: Path, archive: Path, **options: str) -> tuple[Prefetched, FetchConfig]:
    config = settings.load(
        FetchConfig,
        ENVIRONMENT_PREFIX,
        command_line={"archive": str(archive), **options},
        environment={},
        file=None,
    )
    return Prefetched(data_directory, data_directory / "pg_wal", SYSTEM_ID, config), config


def name_of(number: int) -> str:
    return segment_name(1, number * MIB, MIB)


def test_a_recovery_gets_its_segments_from_ahead(data_directory: Path, archive: Path, wal: WalBuilder) -> None:
    ahead, config = prefetched(data_directory, archive, prefetch="2")
    ahead.folder.mkdir(parents=True)
    os.mkfifo(ahead.folder / REQUESTS)
    (ahead.folder / name_of(1)).write_bytes(b"left by a call that fetched it itself")
    process = threading.Thread(target=Prefetcher(ahead, config, name_of(1)).run)
    process.start()
    target = data_directory / "pg_wal" / "RECOVERYXLOG"
    try:
        for number in range(2, 9):
            deadline = threading.Event()
            while not ahead.take(name_of(number), target):
                assert not deadline.wait(0.01)
                assert process.is_alive()
            assert target.read_bytes() == wal.read(number * MIB, (number + 1) * MIB)
            assert ahead.request(name_of(number))
            there = {path.name for path in ahead.folder.iterdir() if len(path.name) == 24}
            assert there <= {name_of(number + 1), name_of(number + 2), name_of(number + 3)}
        assert not ahead.take(name_of(9), target)
    finally:
        (data_directory / "recovery.signal").unlink()
        process.join(DEADLINE_S)
    assert not process.is_alive()


def test_what_another_recovery_left_is_not_served(data_directory: Path, archive: Path, tmp_path: Path) -> None:
    ahead, config = prefetched(data_directory, archive)
    ahead.folder.mkdir(parents=True)
    (ahead.folder / name_of(2)).write_bytes(b"x")
    target = tmp_path / "target"
    other_archive, _ = prefetched(data_directory, tmp_path / "other")
    other_options, _ = prefetched(data_directory, archive, archive_options="region=x")
    other_system = Prefetched(data_directory, data_directory / "pg_wal", SYSTEM_ID + 1, config)
    for other in (other_archive, other_options, other_system):
        assert not other.take(name_of(2), target)
    assert ahead.take(name_of(2), target)
    assert not ahead.take(name_of(2), target)


def test_what_is_being_fetched_is_not_waited_for_when_nobody_fetches(data_directory: Path, archive: Path) -> None:
    ahead, _ = prefetched(data_directory, archive)
    ahead.folder.mkdir(parents=True)
    os.mkfifo(ahead.folder / REQUESTS)
    (ahead.folder / f"{name_of(2)}.begun").touch()
    began_at = time.monotonic()
    assert not ahead.take(name_of(2), data_directory / "target")
    assert time.monotonic() - began_at < 5
    assert not ahead.request(name_of(1))


def test_a_server_recovers_while_it_runs_and_has_its_signal_file(data_directory: Path) -> None:
    assert system_id_of(data_directory) == SYSTEM_ID
    assert is_recovering(data_directory)
    (data_directory / "recovery.signal").rename(data_directory / "standby.signal")
    assert is_recovering(data_directory)
    (data_directory / "postmaster.pid").write_text("x\n")
    assert not is_recovering(data_directory)
    (data_directory / "postmaster.pid").write_text(f"{os.getpid()}\n")
    (data_directory / "standby.signal").unlink()
    assert not is_recovering(data_directory)
    assert system_id_of(data_directory / "nothing") == 0
