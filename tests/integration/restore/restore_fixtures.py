"""A server with a base backup, a load whose every step is known by LSN, time and name, and an archive of its WAL.

The archive is written with the project's uploader from the server's own pg_wal: what an archiver would have put there.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from safekeeper.archive.objects import history_file, partial_file, segment_file
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.upload import Uploader
from safekeeper.base.lsn import Lsn, parse_lsn, parse_segment_name, segment_name, segment_start
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.storage.control_file import ControlFile
from safekeeper.storage.filesystem import RealFileSystem
from safekeeper.storage.segment_file import create_segment
from tests.cluster_templates import cluster_template, init_by_copying
from tests.forking.daemons import run_walproxy
from tests.integration.cluster.cluster_fixtures import wait_for
from tests.scratch import scratch_folder
from walproxy.postgres.binaries import server_user
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries

MIB = 1 << 20
CLUSTER_ID = "5e1f0c3a9b7d2486"
DEADLINE_S = 60.0
SETTINGS = {"max_connections": "20", "shared_buffers": "16MB", "wal_keep_size": "1GB", "log_checkpoints": "off"}


@dataclass(frozen=True)
class Step:
    """A row of the load: the positions right after its commit, the time, and the restore point made there."""

    number: int
    end_lsn: Lsn
    time: str
    name: str


@dataclass
class Past:
    """A server and what it has been through.

    Attributes:
        steps: the rows 1, 2, ... of table `load`.
        archive: a local folder.
        archived_lsn: where the WAL in it ends.
    """

    server: LocalPostgres
    folder: Path
    system_id: int
    steps: list[Step] = field(default_factory=list)
    archived_lsn: Lsn = 0

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    def add_steps(self, count: int, *, switch: bool = True) -> None:
        """Add rows to the load, each in a segment of its own."""
        for _ in range(count):
            number = len(self.steps) + 1
            self.server.execute("INSERT INTO load SELECT %s, repeat('x', 100)", number)
            [(lsn, now)] = self.server.execute("SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()::text")
            name = f"after {number}"
            self.server.execute("SELECT pg_create_restore_point(%s)", name)
            self.steps.append(Step(number, parse_lsn(lsn), now, name))
            if switch:
                self.server.execute("SELECT pg_switch_wal()")

    def flush_lsn(self) -> Lsn:
        return parse_lsn(self.server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def uploader(self, archive: Path | None = None, *, store: ObjectStore | None = None) -> Uploader:
        uploader = Uploader(
            store or ObjectStore.open(str(archive or self.archive), makes_folder=True),
            cluster_id=CLUSTER_ID,
            system_id=self.system_id,
            segment_size=MIB,
            safekeeper_id=1,
            compress=False,
        )
        uploader.claim()
        return uploader

    def archive_up_to(self, end_lsn: Lsn, *, store: ObjectStore | None = None) -> None:
        """Put the WAL below `end_lsn` into an archive: whole segments, a partial at the end, history files."""
        uploader = self.uploader(store=store)
        self.archived_lsn = end_lsn
        for path in sorted(self.server.pg_wal.iterdir()):
            parsed = parse_segment_name(path.name, MIB)
            if path.suffix == ".history":
                uploader.upload(history_file(int(path.stem, 16)), path)
            elif parsed is not None and parsed[1] < end_lsn:
                tli, begin_lsn = parsed
                if begin_lsn + MIB <= end_lsn:
                    uploader.upload(segment_file(tli, begin_lsn, MIB), path)
                else:
                    content = path.read_bytes()[: end_lsn - begin_lsn]
                    uploader.upload(partial_file(tli, begin_lsn, end_lsn, MIB), content)

    def copy_of_archive(self, to: Path) -> Path:
        shutil.copytree(self.archive, to)
        return to


def make_past(binaries: ServerBinaries, folder: Path, *, own_system: bool = False, **settings: str) -> Past:
    """Make a server with segments of 1 MiB and an empty load, and start it.

    Args:
        own_system: it has a system id that no other has.
    """
    server = LocalPostgres(binaries, folder / "data", settings={**SETTINGS, **settings})
    if own_system:
        server.init(wal_segment_mib=1)
    else:
        init_by_copying(server, cluster_template(binaries, 1))
    server.start()
    server.execute("CREATE TABLE load (number int, padding text)")
    [(system_id,)] = server.execute("SELECT system_identifier FROM pg_control_system()")
    return Past(server, folder, system_id)


@contextlib.contextmanager
def story(binaries: ServerBinaries) -> Iterator[Past]:
    """A past with a base backup before the load (`folder`/base), five steps, and an archive of all of it.

    The last step stands in an open segment.
    """
    with scratch_folder() as folder:
        # As an operator does it whose servers run as another user than the safekeepers.
        (folder / "archive").mkdir(mode=0o755)
        past = make_past(binaries, folder)
        try:
            take_backup(past.server, folder / "base")
            past.add_steps(4)
            past.add_steps(1, switch=False)
            past.archive_up_to(past.flush_lsn())
            yield past
        finally:
            past.server.close()


def make_safekeeper_folder(past: Past, directory: Path, begin_lsn: Lsn, end_lsn: Lsn, commit_lsn: Lsn) -> Path:
    """Make the data folder that a stopped safekeeper would have that had received this WAL of timeline 1."""
    fs = RealFileSystem()
    (directory / "wal").mkdir(parents=True)
    state = ControlState(
        safekeeper_id=1,
        incarnation="1" * 32,
        cluster_id=CLUSTER_ID,
        system_id=past.system_id,
        segment_size=MIB,
        server_version=past.server.binaries.major * 10000,
        history=(HistoryEntry(1, begin_lsn, 1),),
        wal_begin_lsn=begin_lsn,
        commit_lsn=commit_lsn,
    )
    ControlFile(fs, directory).store(state)
    for lsn in range(begin_lsn, end_lsn, MIB):
        wal = (past.server.pg_wal / segment_name(1, lsn, MIB)).read_bytes()[: end_lsn - lsn]
        create_segment(fs, directory / "wal", tli=1, begin_lsn=lsn, segment_size=MIB, wal=[wal]).close()
    give_to_server(directory)
    return directory


def give_to_server(directory: Path) -> None:
    """Make the servers' user the owner of a folder and of all that is in it."""
    user = server_user()
    if user is not None:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, user.uid, user.gid)


def take_backup(server: LocalPostgres, to: Path, *options: str) -> Path:
    """Take a base backup with pg_basebackup, as this user: no other one may read it."""
    command = [str(server.binaries.path("pg_basebackup")), "-D", str(to), "-d", server.conninfo(), "-c", "fast", "-N"]
    subprocess.run([*command, *options], check=True, capture_output=True, cwd="/")
    return to


def walproxy(*arguments: object, timeout_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Run one of our commands to its end."""
    return run_walproxy(*map(str, arguments), timeout_s=timeout_s)


def restore(past: Past, backup: Path, target: Path, *arguments: object) -> None:
    """Restore with our command, which must succeed; the server can then be started."""
    answer = walproxy("restore", "--backup", backup, "--target", target, *owner(), *arguments)
    assert answer.returncode == 0, answer.stderr
    make_runnable(past.folder, target)


def owner() -> tuple[str, ...]:
    """Return the option that gives the restored files to who runs servers here."""
    user = server_user()
    return ("--owner", user.name) if user is not None else ()


def make_runnable(folder: Path, data_directory: Path) -> None:
    """Let the servers' user run the restore_command, which names this interpreter: one of root's it cannot reach.

    Args:
        folder: which that user can enter.
    """
    named, runnable = f"{sys.executable} -P -m walproxy", walproxy_command(folder)
    if named == runnable:
        return
    configuration = data_directory / "postgresql.auto.conf"
    text = configuration.read_text()
    assert named in text
    configuration.write_text(text.replace(named, runnable))


def walproxy_command(folder: Path) -> str:
    """Return the command with which the servers' user runs walproxy.

    Args:
        folder: which that user can enter.
    """
    user = server_user()
    if user is None or user.may_enter(Path(sys.executable).resolve()):
        return f"{sys.executable} -P -m walproxy"
    return str(_program(folder))


def _program(folder: Path) -> Path:
    """Return a program that runs walproxy with the interpreter of the system."""
    system = Path("/usr/bin/python3")
    if not system.exists() or sys.version_info[:2] != _version(system):
        pytest.skip("the servers' user cannot run this Python, and the system has none of the same version")
    program = folder / "walproxy"
    if not program.exists():
        path = ":".join([sysconfig.get_path("purelib"), str(Path(__file__).parents[3])])
        program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {system} -P -m walproxy "$@"\n')
        program.chmod(0o755)
    return program


def _version(python: Path) -> tuple[int, ...]:
    code = "import sys; print(*sys.version_info[:2])"
    printed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, printed.split()))


@contextlib.contextmanager
def recovered(binaries: ServerBinaries, target: Path, **settings: str) -> Iterator[LocalPostgres]:
    """Start a restored server and wait until it has ended recovery; closed at the end."""
    with LocalPostgres(binaries, target, settings=settings) as server:
        server.start(DEADLINE_S)
        wait_for(lambda: server.execute("SELECT pg_is_in_recovery()") == [(False,)], "recovery has ended", DEADLINE_S)
        yield server


def rows(server: LocalPostgres) -> list[Any]:
    """Return the numbers of the load's rows."""
    return [number for (number,) in server.execute("SELECT number FROM load ORDER BY number")]


def up_to(number: int) -> list[int]:
    return list(range(1, number + 1))


def segment_key(archive: Path, lsn: Lsn, tli: int = 1) -> Path:
    """Return where the archive has the whole segment that holds byte `lsn`."""
    file = segment_file(tli, segment_start(lsn, MIB), MIB)
    return archive / file.key(False)


def remove_segment(archive: Path, lsn: Lsn, tli: int = 1) -> str:
    """Remove a segment and its receipt from a local archive; return its name."""
    path = segment_key(archive, lsn, tli)
    for each in path.parent.glob(path.name + "*"):
        each.unlink()
    return path.name


def corrupt(path: Path, offset: int = 300_000) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))
