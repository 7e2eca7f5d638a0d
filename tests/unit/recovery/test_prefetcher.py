"""Segments that were fetched ahead are delivered by a rename, and to nobody else than who wanted them."""

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from safekeeper.archive.objects import segment_file
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.upload import Uploader
from safekeeper.base import settings
from safekeeper.base.lsn import segment_name
from tests.unit.wal_builder import WalBuilder
from tests.waiting import wait_for
from walproxy.postgres.process_table import descendants
from walproxy.recovery import prefetched as prefetched_module
from walproxy.recovery.caller import recovering_run, system_id_of
from walproxy.recovery.config import ENVIRONMENT_PREFIX, FetchConfig
from walproxy.recovery.prefetched import OWNER, Prefetched
from walproxy.recovery.prefetcher import Prefetcher, start_prefetcher

MIB = 1 << 20
SYSTEM_ID = 7_000_000_000_000_000_001
STARTED = 1_700_000_000
DEADLINE_S = 20.0
OPTIONS = ("--archive", "a folder")
SCRIPT = Path(prefetched_module.__file__).with_name("walproxy-wal-fetch")


@pytest.fixture
def data_directory(tmp_path: Path) -> Path:
    """A data folder whose server, this process, recovers."""
    directory = tmp_path / "data"
    for name in ("global", "pg_wal", "base"):
        (directory / name).mkdir(parents=True)
    (directory / "global" / "pg_control").write_bytes(SYSTEM_ID.to_bytes(8, "little") + bytes(100))
    (directory / "recovery.signal").touch()
    (directory / "postmaster.pid").write_text(f"{os.getpid()}\n{directory}\n{STARTED}\n5432\n")
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
    return Prefetched(data_directory, SYSTEM_ID, config, OPTIONS), config


def make_folder(ahead: Prefetched, prefetcher: int = 0) -> None:
    """Make the folder as a prefetcher does."""
    ahead.folder.mkdir(parents=True)
    (ahead.folder / OWNER).write_text(f"{prefetcher or os.getpid()}\n{ahead.owner}")


def name_of(number: int) -> str:
    return segment_name(1, number * MIB, MIB)


def test_a_recovery_gets_its_segments_from_ahead(data_directory: Path, archive: Path, wal: WalBuilder) -> None:
    ahead, config = prefetched(data_directory, archive, prefetch="2")
    make_folder(ahead)
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
            there = {path.name for path in ahead.folder.iterdir() if len(path.name) == 24}
            assert there <= {name_of(number + 1), name_of(number + 2), name_of(number + 3)}
        assert not ahead.take(name_of(9), target)
        # PostgreSQL requests the last one again when recovery ends.
        wait_for(lambda: ahead.take(name_of(8), target), "the last segment is there again")
        assert target.read_bytes() == wal.read(8 * MIB, 9 * MIB)
    finally:
        (data_directory / "recovery.signal").unlink()
        process.join(DEADLINE_S)
    assert not process.is_alive()
    assert not ahead.folder.exists()


def test_the_last_segment_is_fetched_again_when_the_next_is_found_missing_after_its_delivery(
    data_directory: Path, archive: Path, wal: WalBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, config = prefetched(data_directory, archive, prefetch="2")
    make_folder(ahead)
    answers = {9: threading.Event(), 10: threading.Event()}
    finished = {number: threading.Event() for number in answers}
    fetch = Prefetcher._fetch

    def in_order(self: Prefetcher, folder: int, name: str, begin_lsn: int) -> bool:
        number = begin_lsn // MIB
        if number in answers:
            assert answers[number].wait(DEADLINE_S)
        fetched = fetch(self, folder, name, begin_lsn)
        if number in answers:
            finished[number].set()
        return fetched

    monkeypatch.setattr(Prefetcher, "_fetch", in_order)
    prefetcher = Prefetcher(ahead, config, name_of(7))
    process = threading.Thread(target=prefetcher.run)
    process.start()
    target = data_directory / "pg_wal" / "RECOVERYXLOG"
    try:
        wait_for(lambda: ahead.take(name_of(8), target), "the last segment was delivered")
        wait_for(lambda: (ahead.folder / f"{name_of(10)}.begun").exists(), "its delivery was noticed")
        for number in (9, 10):
            answers[number].set()
            assert finished[number].wait(DEADLINE_S)
        wait_for(lambda: ahead.take(name_of(8), target), "it is there again")
        assert target.read_bytes() == wal.read(8 * MIB, 9 * MIB)
    finally:
        (data_directory / "recovery.signal").unlink()
        process.join(DEADLINE_S)
    assert not process.is_alive()


@pytest.fixture
def process(data_directory: Path, archive: Path) -> Iterator[Prefetched]:
    """Start a prefetcher, a process of its own, after the delivery of segment 1."""
    ahead, config = prefetched(data_directory, archive, prefetch="2")
    start_prefetcher(ahead, config, name_of(1), MIB, None)
    yield ahead
    (data_directory / "recovery.signal").unlink(missing_ok=True)
    wait_for(lambda: not ahead.folder.exists(), "the prefetcher has ended")


def test_the_call_after_that_which_starts_the_process_waits_for_it(
    process: Prefetched, data_directory: Path, wal: WalBuilder
) -> None:
    target = data_directory / "target"
    assert process.take(name_of(2), target)
    assert target.read_bytes() == wal.read(2 * MIB, 3 * MIB)
    # Segments that were delivered otherwise are reported: it continues after them.
    assert process.report(name_of(5))
    wait_for(lambda: process.take(name_of(6), target), "it has continued")
    assert target.read_bytes() == wal.read(6 * MIB, 7 * MIB)


def test_only_one_process_fetches_ahead(process: Prefetched, data_directory: Path, archive: Path) -> None:
    owner = (process.folder / OWNER).read_text()
    other, config = prefetched(data_directory, archive, archive_options="region=x")
    assert not other.report(name_of(1))
    start_prefetcher(other, config, name_of(1), MIB, None)
    assert (process.folder / OWNER).read_text() == owner


def test_the_process_ends_when_its_file_of_settings_changes(data_directory: Path, archive: Path) -> None:
    ahead, config = prefetched(data_directory, archive)
    written = data_directory / "fetch.toml"
    written.write_text(f"archive = '{archive}'\n")
    start_prefetcher(ahead, config, name_of(1), MIB, written)
    wait_for(lambda: (ahead.folder / name_of(2)).exists(), "it fetches ahead")
    written.write_text("archive = '/another'\n")
    wait_for(lambda: not ahead.folder.exists(), "it has ended")


def test_what_another_recovery_left_is_not_served(data_directory: Path, archive: Path, tmp_path: Path) -> None:
    ahead, config = prefetched(data_directory, archive)
    make_folder(ahead)
    (ahead.folder / name_of(2)).write_bytes(b"x")
    target = tmp_path / "target"
    other_archive, _ = prefetched(data_directory, tmp_path / "other")
    other_options, _ = prefetched(data_directory, archive, archive_options="region=x")
    other_system = Prefetched(data_directory, SYSTEM_ID + 1, config, OPTIONS)
    other_command = Prefetched(data_directory, SYSTEM_ID, config, ())
    pid = data_directory / "postmaster.pid"
    own = pid.read_text()
    pid.write_text(own.replace(str(STARTED), str(STARTED + 1)))
    other_run, _ = prefetched(data_directory, archive)
    pid.write_text(own)
    for other in (other_archive, other_options, other_system, other_command, other_run):
        assert not other.take(name_of(2), target)
    assert ahead.take(name_of(2), target)
    assert not ahead.take(name_of(2), target)


def test_what_is_being_fetched_is_not_waited_for_when_nobody_fetches(data_directory: Path, archive: Path) -> None:
    ahead, _ = prefetched(data_directory, archive)
    make_folder(ahead)
    (ahead.folder / f"{name_of(2)}.begun").touch()
    began_at = time.monotonic()
    assert not ahead.take(name_of(2), data_directory / "target")
    assert time.monotonic() - began_at < 5
    assert not ahead.report(name_of(1))


def test_a_segment_is_copied_to_a_pg_wal_on_another_disk(
    data_directory: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, _ = prefetched(data_directory, archive)
    make_folder(ahead)
    (ahead.folder / name_of(2)).write_bytes(b"x")
    target = data_directory / "pg_wal" / "RECOVERYXLOG"
    rename = Path.replace

    def across_disks(self: Path, to: Path) -> Path:
        if self.parent != to.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(self, to)

    monkeypatch.setattr(Path, "replace", across_disks)
    assert ahead.take(name_of(2), target)
    assert target.read_bytes() == b"x"
    assert not (ahead.folder / name_of(2)).exists()


def test_a_server_recovers_while_it_runs_and_has_its_signal_file(data_directory: Path) -> None:
    assert system_id_of(data_directory) == SYSTEM_ID
    run = f"{os.getpid()} {STARTED}"
    assert recovering_run(data_directory) == run
    (data_directory / "recovery.signal").rename(data_directory / "standby.signal")
    assert recovering_run(data_directory) == run
    (data_directory / "postmaster.pid").write_text("x\n")
    assert not recovering_run(data_directory)
    (data_directory / "postmaster.pid").write_text(f"{os.getpid()}\nfolder\n1\n")
    (data_directory / "standby.signal").unlink()
    assert not recovering_run(data_directory)
    assert system_id_of(data_directory / "nothing") == 0


# The shell script.


class Script:
    """Runs walproxy-wal-fetch as PostgreSQL does, with a program that records its arguments and exits with 42."""

    def __init__(self, data_directory: Path, folder: Path) -> None:
        self._data_directory = data_directory
        self._calls = folder / "calls"
        self.program = folder / "walproxy"
        self.program.write_text(f'#!/bin/sh\necho "$*" >> "{self._calls}"\nexit 42\n')
        self.program.chmod(0o755)
        self.target = data_directory / "pg_wal" / "RECOVERYXLOG"

    def __call__(self, name: str, *options: str, script: Path = SCRIPT) -> str:
        """Return "moved", or the arguments of the program that was called."""
        words = ["/bin/sh", script, self.program, "wal-fetch", name, "pg_wal/RECOVERYXLOG", *(options or OPTIONS)]
        if script is not SCRIPT:
            del words[:1], words[1:3]
        answer = subprocess.run(
            words,
            cwd=self._data_directory,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (answer.stdout, answer.stderr) == ("", "")
        if answer.returncode == 0:
            assert not self._calls.exists()
            return "moved"
        assert answer.returncode == 42
        called = self._calls.read_text().rstrip("\n")
        self._calls.unlink()
        return called


@pytest.fixture
def script(data_directory: Path, tmp_path: Path) -> Script:
    (tmp_path / "a b").mkdir()
    return Script(data_directory, tmp_path / "a b")


def called(name: str, *options: str) -> str:
    return " ".join(("wal-fetch", name, "pg_wal/RECOVERYXLOG", *(options or OPTIONS)))


def test_the_script_moves_a_segment_without_a_start_of_python(
    script: Script, data_directory: Path, archive: Path
) -> None:
    ahead, _ = prefetched(data_directory, archive)
    make_folder(ahead)
    name = name_of(2)
    (ahead.folder / name).write_bytes(b"whole")
    assert script(name, "--archive", "another") == called(name, "--archive", "another")
    assert script(f"../../../pgsql_tmp.walproxy/{name}") == called(f"../../../pgsql_tmp.walproxy/{name}")
    assert script(name_of(3)) == called(name_of(3))
    (data_directory / "recovery.signal").unlink()
    assert script(name) == called(name)  # A promotion.
    (data_directory / "standby.signal").touch()
    assert script(name) == "moved"
    assert script.target.read_bytes() == b"whole"
    assert script(name) == called(name)


def test_the_script_knows_that_the_first_timeline_has_no_history(script: Script) -> None:
    with pytest.raises(AssertionError, match="1 == 42"):
        script("00000001.history")
    options = (*OPTIONS, "--missing-code", "7")
    assert script("00000001.history", *options) == called("00000001.history", *options)
    assert script("00000002.history") == called("00000002.history")


def test_the_script_leaves_the_files_of_an_earlier_run_of_the_server(
    script: Script, data_directory: Path, archive: Path
) -> None:
    ahead, _ = prefetched(data_directory, archive)
    assert script(name_of(2)) == called(name_of(2))
    make_folder(ahead)
    (ahead.folder / name_of(2)).write_bytes(b"whole")
    pid = data_directory / "postmaster.pid"
    pid.write_text(pid.read_text().replace(str(STARTED), str(STARTED + 1)))
    assert script(name_of(2)) == called(name_of(2))
    pid.unlink()
    assert script(name_of(2)) == called(name_of(2))


def test_the_script_leaves_the_files_of_a_prefetcher_that_was_killed(
    script: Script, data_directory: Path, archive: Path
) -> None:
    ahead, _ = prefetched(data_directory, archive)
    with subprocess.Popen(["sleep", "60"]) as prefetcher:
        make_folder(ahead, prefetcher.pid)
        for number in (2, 3):
            (ahead.folder / name_of(number)).write_bytes(b"whole")
        assert script(name_of(2)) == "moved"
        prefetcher.kill()
    assert script(name_of(3)) == called(name_of(3))


@pytest.mark.parametrize("variable", ["CONFIG", "ARCHIVE", "ARCHIVE_OPTIONS", "SAFEKEEPERS", "DATA_DIR"])
def test_what_was_fetched_from_the_sources_of_another_environment_is_not_served(
    script: Script, data_directory: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    full_name, before = f"{ENVIRONMENT_PREFIX}_{variable}", "region=x /mnt/\\old "
    monkeypatch.setenv(full_name, before)
    ahead, _ = prefetched(data_directory, archive)
    make_folder(ahead)
    name = name_of(2)
    (ahead.folder / name).write_bytes(b"whole")
    for now in ("", "another"):
        monkeypatch.setenv(full_name, now)
        assert script(name) == called(name)
        assert not prefetched(data_directory, archive)[0].take(name, script.target)
    monkeypatch.delenv(full_name)
    assert script(name) == called(name)
    monkeypatch.setenv(full_name, before)
    assert script(name) == "moved"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ARCHIVE", "s3://user:hidden@bucket/main"),
        ("ARCHIVE_OPTIONS", "endpoint=http://minio:9000,AWS_SECRET_ACCESS_KEY=hidden"),
        ("ARCHIVE_OPTIONS", "account_key=hidden"),
        ("SAFEKEEPERS", "host=sk1 password=hidden"),
        ("SAFEKEEPERS", "postgresql://me:hidden@sk1"),
    ],
)
def test_a_credential_of_the_environment_is_not_written_and_what_was_fetched_is_served_by_python(
    script: Script, data_directory: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}_{variable}", value)
    ahead, _ = prefetched(data_directory, archive)
    make_folder(ahead)
    name = name_of(2)
    (ahead.folder / name).write_bytes(b"whole")
    assert "hidden" not in (ahead.folder / OWNER).read_text()
    assert script(name) == called(name)
    assert prefetched(data_directory, archive)[0].take(name, script.target)


def test_the_script_waits_for_what_is_being_fetched_while_a_prefetcher_runs(
    script: Script, data_directory: Path, archive: Path
) -> None:
    ahead, _ = prefetched(data_directory, archive)
    name = name_of(2)
    with subprocess.Popen(["sleep", "60"]) as prefetcher:
        make_folder(ahead, prefetcher.pid)
        begun = ahead.folder / f"{name}.begun"
        begun.touch()
        words = ["/bin/sh", SCRIPT, "/nonexistent", "wal-fetch", name, "pg_wal/RECOVERYXLOG", *OPTIONS]
        with subprocess.Popen(words, cwd=data_directory) as waiting:
            wait_for(lambda: descendants(waiting.pid), "it sleeps")
            (ahead.folder / name).write_bytes(b"whole")
            begun.unlink()
            assert waiting.wait(DEADLINE_S) == 0
        assert script.target.read_bytes() == b"whole"
        begun.touch()
        prefetcher.kill()
    assert script(name) == called(name)


def test_what_the_script_has_waited_for_in_vain_is_not_waited_for_again(
    script: Script, data_directory: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, _ = prefetched(data_directory, archive)
    make_folder(ahead)
    name, other = name_of(2), name_of(3)
    for each in (name, other):
        (ahead.folder / f"{each}.begun").touch()
    polls = tmp_path / "polls"
    without_pause = tmp_path / "programs" / "sleep"
    without_pause.parent.mkdir()
    without_pause.write_text(f'#!/bin/sh\necho >> "{polls}"\n')
    without_pause.chmod(0o755)
    monkeypatch.setenv("PATH", f"{without_pause.parent}:{os.environ['PATH']}")
    assert script(name) == called(name)
    assert polls.read_text().count("\n") == 500
    assert not (ahead.folder / f"{name}.begun").exists()
    assert (ahead.folder / f"{other}.begun").exists()


def test_the_installed_script_calls_the_program_beside_it(
    script: Script, data_directory: Path, archive: Path, tmp_path: Path
) -> None:
    installed = script.program.with_name("walproxy-wal-fetch")
    installed.write_bytes(SCRIPT.read_bytes())
    installed.chmod(0o755)
    assert script(name_of(2), script=installed) == called(name_of(2))
    ahead, _ = prefetched(data_directory, archive)
    make_folder(ahead)
    (ahead.folder / name_of(2)).write_bytes(b"whole")
    assert script(name_of(2), script=installed) == "moved"
