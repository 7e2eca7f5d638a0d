"""`walproxy wal-fetch`: what it delivers, from where, and which exit code PostgreSQL sees."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from safekeeper.archive.objects import partial_file
from safekeeper.base.lsn import Lsn, segment_name
from safekeeper.storage.control_file import DataDirectoryLock
from tests.integration.cluster.cluster_fixtures import wait_for
from tests.integration.conftest import NEWEST
from tests.integration.restore.restore_fixtures import (
    MIB,
    Past,
    corrupt,
    give_to_server,
    make_safekeeper_folder,
    recovered,
    remove_segment,
    restore,
    rows,
    segment_key,
    story,
    up_to,
    walproxy,
    walproxy_command,
)
from walproxy.postgres.local_server import LocalPostgres, LocalPostgresFailed, ServerBinaries
from walproxy.recovery.prefetched import FOLDER
from walproxy.recovery.server_mode import EXIT_DELIVERED, EXIT_MISSING, EXIT_STOPS_RECOVERY

pytestmark = NEWEST
NOBODY = "host=127.0.0.1 port=1 user=postgres"


@pytest.fixture(scope="module")
def past(servers: dict[int, ServerBinaries], major: int) -> Iterator[Past]:
    with story(servers[major]) as made:
        yield made


@pytest.fixture
def place(past: Past) -> Iterator[Path]:
    """A folder for what one test makes, with a copy of the archive in it, to be damaged."""
    path = past.folder / "place"
    path.mkdir(mode=0o755)
    past.copy_of_archive(path / "archive")
    yield path
    # What fetches ahead may remove its own files at the same time.
    wait_for(lambda: is_removed(path), "the folder is removed")


def is_removed(path: Path) -> bool:
    """Remove a folder; return whether nothing is left of it."""
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def fetch(place: Path, name: str, *arguments: object) -> CompletedProcess[str]:
    """Run wal-fetch; where there is no option of a source it is the archive."""
    named = any(str(word).startswith(("--archive", "--safekeepers", "--data-dir")) for word in arguments)
    words = arguments if named else ("--archive", place / "archive", *arguments)
    answer = walproxy("wal-fetch", name, place / "RECOVERYXLOG", "-c", "timeout=0.5", *words)
    assert "Traceback" not in answer.stderr
    return answer


def segment_of(past: Past, step: int) -> tuple[str, Lsn]:
    """Return the name and the start of the segment with a step of the load."""
    lsn = past.steps[step - 1].end_lsn // MIB * MIB
    return segment_name(1, lsn, MIB), lsn


def delivered(place: Path) -> bytes:
    """Return what was delivered; nothing else may be left there."""
    assert [path.name for path in place.iterdir() if path.is_file()] == ["RECOVERYXLOG"]
    return (place / "RECOVERYXLOG").read_bytes()


def in_pg_wal(past: Past, name: str, end_lsn: Lsn = MIB) -> bytes:
    """Return the segment as the server has it, with zeros from `end_lsn` on."""
    content = (past.server.pg_wal / name).read_bytes()
    return content if end_lsn % MIB == 0 else content[: end_lsn % MIB].ljust(MIB, b"\0")


def test_a_whole_segment_is_what_the_server_has(past: Past, place: Path) -> None:
    name, _ = segment_of(past, 1)
    assert fetch(place, name).returncode == EXIT_DELIVERED
    assert delivered(place) == in_pg_wal(past, name)


def test_the_open_segment_is_filled_up_with_zeros(past: Past, place: Path) -> None:
    name, _ = segment_of(past, 5)
    assert fetch(place, name).returncode == EXIT_DELIVERED
    assert delivered(place) == in_pg_wal(past, name, past.archived_lsn)
    (place / "RECOVERYXLOG").unlink()
    assert fetch(place, name, "-c", "no_partial=true").returncode == EXIT_MISSING
    assert not (place / "RECOVERYXLOG").exists()


def test_a_server_with_the_replication_protocol_is_a_source(past: Past, place: Path) -> None:
    conninfo = past.server.conninfo()
    whole, _ = segment_of(past, 2)
    assert fetch(place, whole, "--safekeepers", conninfo).returncode == EXIT_DELIVERED
    assert delivered(place) == in_pg_wal(past, whole)
    partial, lsn = segment_of(past, 5)
    size = past.flush_lsn() - lsn  # It may write more meanwhile.
    assert fetch(place, partial, "--safekeepers", conninfo).returncode == EXIT_DELIVERED
    assert delivered(place)[:size] == in_pg_wal(past, partial)[:size]
    beyond = segment_name(1, past.flush_lsn() + MIB, MIB)
    assert fetch(place, beyond, "--safekeepers", conninfo).returncode == EXIT_MISSING
    assert fetch(place, "00000002.history", "--safekeepers", conninfo).returncode == EXIT_MISSING
    assert fetch(place, segment_name(2, past.flush_lsn(), MIB), "--safekeepers", conninfo).returncode == EXIT_MISSING


def test_what_every_source_denies_is_missing(past: Past, place: Path) -> None:
    beyond = segment_name(1, past.flush_lsn() + MIB, MIB)
    for name in (beyond, "00000002.history", f"{beyond}.00000028.backup", f"{beyond}.partial"):
        assert fetch(place, name).returncode == EXIT_MISSING


@pytest.mark.parametrize(
    "arguments",
    [
        ("../../etc/passwd",),
        ("pg_wal/RECOVERYXLOG",),
        ("000000010000000000000007", "--archive", "/nonexistent"),
        ("000000010000000000000007", "--archive", "ftp://somewhere"),
        ("000000010000000000000007", "--safekeepers", "1=127.0.0.1:5454"),
        ("000000010000000000000007", "--data-dir", "/nonexistent"),
        ("000000010000000000000007", "-c", "prefetch=x"),
        ("000000010000000000000007", "--no-such-option"),
        ("0000000100000000FFFFFFFF",),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_wrong_command_stops_recovery(place: Path, arguments: tuple[str, ...]) -> None:
    answer = fetch(place, *arguments)
    assert answer.returncode == EXIT_STOPS_RECOVERY
    assert answer.stderr
    assert not (place / "RECOVERYXLOG").exists()


def test_a_source_that_does_not_answer_leaves_no_other_answer_than_a_whole_segment(past: Past, place: Path) -> None:
    both = ("--archive", place / "archive", "--safekeepers", NOBODY)
    whole, _ = segment_of(past, 2)
    partial, _ = segment_of(past, 5)
    beyond = segment_name(1, past.flush_lsn() + MIB, MIB)
    assert fetch(place, whole, *both).returncode == EXIT_DELIVERED
    assert delivered(place) == in_pg_wal(past, whole)
    for name in (partial, beyond, "00000002.history"):
        answer = fetch(place, name, *both)
        assert answer.returncode == EXIT_STOPS_RECOVERY
        assert "127.0.0.1:1" in answer.stderr


def test_a_corrupt_object_is_reported_and_another_source_is_used(past: Past, place: Path) -> None:
    name, lsn = segment_of(past, 3)
    corrupt(segment_key(place / "archive", lsn))
    answer = fetch(place, name)
    assert answer.returncode == EXIT_STOPS_RECOVERY
    assert name in answer.stderr
    folder = make_safekeeper_folder(past, place / "safekeeper", lsn - MIB, past.flush_lsn(), past.flush_lsn())
    answer = fetch(place, name, "--archive", place / "archive", "--data-dir", folder)
    assert answer.returncode == EXIT_DELIVERED, answer.stderr
    assert "CRC-32C" in answer.stderr
    assert delivered(place) == in_pg_wal(past, name)


def test_a_hole_stops_recovery(past: Past, place: Path) -> None:
    name, lsn = segment_of(past, 3)
    remove_segment(place / "archive", lsn)
    answer = fetch(place, name)
    assert answer.returncode == EXIT_STOPS_RECOVERY
    assert name in answer.stderr
    assert segment_of(past, 4)[0] in answer.stderr
    assert fetch(place, name, "--archive", place / "archive", "-c", "end_at_hole=true").returncode == EXIT_MISSING


def test_a_hole_that_postgresql_can_fill_itself_does_not(past: Past, place: Path) -> None:
    name, lsn = segment_of(past, 3)
    remove_segment(place / "archive", lsn)
    shutil.copy(past.server.pg_wal / name, place / name)
    assert fetch(place, name).returncode == EXIT_MISSING


def test_a_data_folder_gives_what_is_committed_and_with_uncommitted_what_is_flushed(past: Past, place: Path) -> None:
    name, lsn = segment_of(past, 5)
    commit_lsn, flush_lsn = lsn + 8192, past.flush_lsn()
    if flush_lsn <= commit_lsn:
        commit_lsn = lsn + 64
    folder = make_safekeeper_folder(past, place / "safekeeper", lsn - MIB, flush_lsn, commit_lsn)
    assert fetch(place, name, "--data-dir", folder).returncode == EXIT_DELIVERED
    assert delivered(place) == in_pg_wal(past, name, commit_lsn)
    answer = fetch(place, name, "--data-dir", folder, "--uncommitted")
    assert answer.returncode == EXIT_DELIVERED
    assert delivered(place) == in_pg_wal(past, name, flush_lsn)
    assert len([line for line in answer.stderr.splitlines() if "WARNING" in line and "uncommitted" in line]) == 1


def test_uncommitted_wal_that_the_cluster_gave_up_is_not_used(past: Past, place: Path) -> None:
    """The archive has the committed bytes; the folder's differ below its flush_lsn, and go on longer."""
    name, lsn = segment_of(past, 4)
    folder = make_safekeeper_folder(past, place / "safekeeper", lsn - MIB, lsn + MIB, lsn)
    archive = place / "archive"
    for path in archive.glob(f"wal/*/{name}*"):
        path.unlink()
    for path in archive.glob(f"wal/*/{segment_of(past, 5)[0]}*"):
        path.unlink()
    content = bytearray(in_pg_wal(past, name)[:4096])
    content[4000] ^= 0xFF
    past.uploader(archive).upload(partial_file(1, lsn, lsn + 4096, MIB), bytes(content))
    answer = fetch(place, name, "--archive", archive, "--data-dir", folder, "--uncommitted")
    assert answer.returncode == EXIT_DELIVERED, answer.stderr
    assert "has given it up" in answer.stderr
    assert delivered(place) == bytes(content).ljust(MIB, b"\0")


def test_the_folder_of_a_running_safekeeper_is_refused(past: Past, place: Path) -> None:
    name, lsn = segment_of(past, 2)
    folder = make_safekeeper_folder(past, place / "safekeeper", lsn, lsn + MIB, lsn + MIB)
    lock = DataDirectoryLock(folder)
    try:
        answer = fetch(place, name, "--data-dir", folder)
    finally:
        lock.release()
    assert answer.returncode == EXIT_STOPS_RECOVERY
    assert "running" in answer.stderr


def test_a_signal_ends_it_as_a_signal(past: Past, place: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        words = ("wal-fetch", segment_of(past, 5)[0], str(place / "x"), "--safekeepers", NOBODY, "-c", "timeout=30")
        process = subprocess.Popen(
            [sys.executable, "-m", "walproxy", *words], stderr=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}
        )
        assert process.stderr is not None
        assert b"trying again" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(10) == -number
        process.stderr.close()


# A server that recovers.


def test_recovery_stops_rather_than_ends_early_when_the_archive_is_down(past: Past, place: Path) -> None:
    target = place / "restored"
    restore(past, past.folder / "base", target, "--archive", place / "archive", "-c", "timeout=3")
    (place / "archive").rename(place / "gone")
    server = LocalPostgres(past.server.binaries, target)
    with server, pytest.raises(LocalPostgresFailed):
        server.start()
    assert "exit code 200" in server.log_path.read_text()
    (place / "gone").rename(place / "archive")
    with recovered(past.server.binaries, target) as again:
        assert rows(again) == up_to(5)


def test_segments_are_fetched_ahead_without_a_start_of_python_and_nothing_of_that_is_left(
    past: Past, place: Path
) -> None:
    target = place / "restored"
    restore(past, past.folder / "base", target, "--archive", place / "archive")
    calls, program, command = place / "calls", place / "program", walproxy_command(past.folder)
    calls.touch()
    calls.chmod(0o666)
    program.write_text(f'#!/bin/sh\necho "$2" >> {calls}\nexec {command} "$@"\n')
    program.chmod(0o755)
    configuration = target / "postgresql.auto.conf"
    configuration.write_text(configuration.read_text().replace(f"{command} wal-fetch", f"{program} wal-fetch"))
    folder = target / FOLDER
    with LocalPostgres(past.server.binaries, target) as server:
        server.start()
        wait_for(lambda: not (target / "recovery.signal").exists(), "recovery has ended", 60)
        assert rows(server) == up_to(5)
        wait_for(lambda: not folder.exists(), "the prefetcher has cleaned up")
    log = server.log_path.read_text()
    assert "ERROR walproxy" not in log
    restored = set(re.findall('restored log file "([0-9A-F]{24})" from archive', log))
    fetched_by_python = restored & set(calls.read_text().split())
    assert fetched_by_python and restored - fetched_by_python


def test_a_standby_streams_when_the_archive_has_no_more(past: Past, place: Path) -> None:
    """Also when it cannot be asked: a standby is not stopped, since it asks again."""
    target = place / "restored"
    restore(past, past.folder / "base", target, "--archive", place / "archive")
    (target / "recovery.signal").rename(target / "standby.signal")
    with (target / "postgresql.auto.conf").open("a") as file:
        file.write(f"primary_conninfo = '{past.server.conninfo()}'\nwal_retrieve_retry_interval = '200ms'\n")
    give_to_server(target)
    (place / "archive").rename(place / "gone")
    with LocalPostgres(past.server.binaries, target) as standby:
        standby.start()
        began_at = time.monotonic()
        wait_for(lambda: rows(standby) == up_to(5), "the standby has all rows", 30)
        assert time.monotonic() - began_at < 30
        wait_for(lambda: bool(standby.execute("SELECT 1 FROM pg_stat_wal_receiver")), "it streams", 30)
    assert "is not a folder: correct the archive's URL" in standby.log_path.read_text()


# A server that is a standby, and one that is being promoted.


@pytest.fixture
def data_directory(past: Past, place: Path) -> Path:
    """What wal-fetch looks at of the data folder of a standby of this system."""
    directory = place / "data"
    for name in ("global", "pg_wal"):
        (directory / name).mkdir(parents=True)
    shutil.copy(past.server.data_directory / "global" / "pg_control", directory / "global")
    (directory / "standby.signal").touch()
    return directory


def fetch_for(data_directory: Path, name: str, *arguments: object) -> int:
    """Return the exit code of a restore_command of a server that is not running."""
    target = data_directory / "pg_wal" / ("RECOVERYHISTORY" if name.endswith(".history") else "RECOVERYXLOG")
    return walproxy("wal-fetch", name, target, *arguments).returncode


@pytest.mark.parametrize(
    "arguments",
    [
        ("--safekeepers", NOBODY),
        ("--archive", "/nonexistent"),
        ("--config", "/nonexistent"),
        ("--no-such-option",),
    ],
    ids=lambda words: " ".join(words),
)
def test_neither_a_standby_nor_a_promotion_is_stopped(
    past: Past, data_directory: Path, arguments: tuple[str, ...]
) -> None:
    name, _ = segment_of(past, 2)
    assert fetch_for(data_directory, name, *arguments) == EXIT_MISSING
    (data_directory / "standby.signal").unlink()
    assert fetch_for(data_directory, "00000002.history", *arguments) == EXIT_MISSING
    (data_directory / "recovery.signal").touch()
    assert fetch_for(data_directory, name, *arguments, "-c", "timeout=0.1") == EXIT_STOPS_RECOVERY


def test_a_part_of_a_segment_does_not_replace_more_of_it(past: Past, place: Path, data_directory: Path) -> None:
    name, lsn = segment_of(past, 5)
    words = ("--archive", place / "archive")
    own = data_directory / "pg_wal" / name
    shutil.copy(past.server.pg_wal / name, own)
    assert fetch_for(data_directory, name, *words) == EXIT_MISSING
    archived = in_pg_wal(past, name, past.archived_lsn)
    # Its last record may end in zeros: that of the running transactions does, which a background process writes.
    own.write_bytes(archived.rstrip(b"\0")[:-1].ljust(MIB, b"\0"))
    assert fetch_for(data_directory, name, *words) == EXIT_DELIVERED
    fetched = (data_directory / "pg_wal" / "RECOVERYXLOG").read_bytes()
    assert fetched == archived
    corrupt(own, past.archived_lsn - lsn - 100)
    assert fetch_for(data_directory, name, *words) == EXIT_DELIVERED


def test_a_promotion_does_not_request_a_history_that_is_there(past: Past, data_directory: Path) -> None:
    (data_directory / "standby.signal").unlink()
    (data_directory / "pg_wal" / "00000002.history").write_text("1\t0/100000\tno reason\n")
    assert fetch_for(data_directory, "00000002.history", "--config", "/nonexistent") == EXIT_MISSING
