"""Base backups, what is left after a disaster, and servers that were made out of both with `walproxy restore`."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from safekeeper.base.lsn import Lsn, parse_lsn
from safekeeper.consensus.control_state import ControlState
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.filesystem import RealFileSystem
from safekeeper.storage.inspection import inspect_folder
from tests.integration.archive.archive_cluster_fixtures import run_reader
from tests.integration.archive.object_stores import Place
from tests.integration.cluster.cluster_fixtures import CLUSTER_SETTINGS, Load, wait_for
from tests.integration.restore.restore_fixtures import make_runnable, owner
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries
from walproxy.recovery.prefetched import FOLDER as PREFETCH_FOLDER

RECOVERY_S = 60.0


def back_up(server: LocalPostgres, to: Path) -> Path:
    """Make a base backup without any WAL in it; return its folder."""
    command = [str(server.binaries.path("pg_basebackup")), "-D", str(to), "-d", server.conninfo()]
    made = subprocess.run([*command, "-X", "none", "-c", "fast"], capture_output=True, text=True, cwd="/")
    assert made.returncode == 0, made.stderr
    return to


@contextlib.contextmanager
def restored(
    binaries: ServerBinaries, backup: Path, target: Path, *options: str, place: Place
) -> Iterator[LocalPostgres]:
    """A server that was restored, and has recovered; gone at the end. `options` are the sources of its WAL."""
    arguments = ("--backup", str(backup), "--target", str(target), *owner(), *options)
    answer = run_reader("restore", *arguments, place=place)
    assert answer.returncode == 0, answer.stderr
    make_runnable(target.parent, target)
    # Its commits could wait for no standby.
    settings = {**CLUSTER_SETTINGS, "synchronous_standby_names": ""}
    try:
        with LocalPostgres(binaries, target, settings=settings) as server:
            server.configure({})
            server.start()
            wait_for(
                lambda: server.execute("SELECT pg_is_in_recovery()") == [(False,)],
                "it has recovered",
                RECOVERY_S,
            )
            yield server
            # It removes its folder when it sees that recovery has ended: not beside the removal of all below.
            wait_for(lambda: not (server.pg_wal / PREFETCH_FOLDER).exists(), "the prefetcher has cleaned up")
    finally:
        shutil.rmtree(target)


def recovered_lsn(server: LocalPostgres) -> Lsn:
    """Return where a restored server's recovery ended, by its own history file."""
    newest = max(server.pg_wal.glob("????????.history"))
    return parse_lsn(newest.read_text().split("\n")[-2].split("\t")[1])


def committed_on_disk(directory: Path) -> Lsn:
    """Return the commit_lsn on a safekeeper's disk. It may be running."""
    control = ControlFile(RealFileSystem(), directory).load(ControlState)
    assert control is not None
    return control.commit_lsn


def flushed_on_disk(directory: Path) -> Lsn:
    """Return where the WAL of a stopped safekeeper ends."""
    return inspect_folder(RealFileSystem(), directory).flush_lsn


def open_to_everybody(directory: Path) -> Path:
    """Let the servers' user read all that is in `directory`, and enter the folders above it."""
    for folder, _, files in os.walk(directory):
        Path(folder).chmod(0o755)
        for name in files:
            (Path(folder) / name).chmod(0o644)
    return directory


def assert_only_the_last_are_lost(load: Load, server: LocalPostgres) -> list[tuple[float, int, int]]:
    """Return which acknowledged rows a server has not: none of them came before one that it has."""
    lost = load.lost_in(server)
    for worker in {worker for _, worker, _ in lost}:
        first = min(number for _, of, number in lost if of == worker)
        [(last,)] = server.execute("SELECT max(number) FROM ledger WHERE worker = %s", worker)
        assert last is None or last < first, f"worker {worker} has lost row {first}, and has row {last}"
    return lost
