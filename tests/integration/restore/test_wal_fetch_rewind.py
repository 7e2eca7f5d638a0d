"""A prefetcher that was killed leaves nothing that pg_rewind cannot copy or remove."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.integration.cluster.cluster_fixtures import wait_for
from tests.integration.conftest import EVERY
from tests.integration.restore.restore_fixtures import (
    DEADLINE_S,
    Past,
    give_to_server,
    make_past,
    rows,
    up_to,
    walproxy_command,
)
from tests.scratch import scratch_folder
from tests.waiting import NotThereYet
from walproxy.postgres.binaries import server_user
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries


@EVERY
def test_pg_rewind_gets_past_what_a_killed_prefetcher_leaves(servers: dict[int, ServerBinaries], major: int) -> None:
    """With the server of the prefetcher as its target, and as its source."""
    with scratch_folder() as folder:
        (folder / "archive").mkdir(mode=0o755)
        past = make_past(servers[major], folder, wal_log_hints="on")
        with past.server as primary:
            fed = standby_of(past, "fed", f"{walproxy_command(folder)} wal-fetch %f %p --archive {past.archive}")
            promoted = standby_of(past, "promoted", "")
            past.add_steps(3)
            past.archive_up_to(past.flush_lsn())
        with promoted:
            promoted.start().promote()
            promoted.execute("INSERT INTO load VALUES (200)")
            promoted.stop()
        with fed:
            fed.start()
            wait_for(lambda: rows(fed) == up_to(3), "the standby has all rows", DEADLINE_S)
            wait_for(lambda: prefetcher_of(fed.data_directory), "its prefetcher runs")
            os.kill(prefetcher_of(fed.data_directory), signal.SIGKILL)
            fed.stop()
        assert left_by_walproxy(fed.data_directory)
        for target, source in ((fed, promoted), (promoted, fed)):
            copied = folder / f"{target.data_directory.name}.rewound"
            shutil.copytree(target.data_directory, copied, copy_function=copy_any)
            give_to_server(copied)
            rewind(primary.binaries, copied, source.data_directory)
            assert not left_by_walproxy(copied)


def standby_of(past: Past, name: str, restore_command: str) -> LocalPostgres:
    """Return a standby that has no other source of WAL than its restore_command."""
    settings = {**past.server.settings, "restore_command": restore_command}
    standby = LocalPostgres(past.server.binaries, past.folder / name, settings=settings)
    past.server.back_up(standby.data_directory)
    (standby.data_directory / "standby.signal").touch()
    standby.configure({})
    give_to_server(standby.data_directory)
    return standby


def rewind(binaries: ServerBinaries, target: Path, source: Path) -> None:
    user = server_user()
    words = ("--target-pgdata", str(target), "--source-pgdata", str(source), "--no-sync")
    answer = subprocess.run(
        (str(binaries.path("pg_rewind")), *words),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd="/",
        user=user.uid if user is not None else None,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def prefetcher_of(data_directory: Path) -> int:
    """Return the process that fetches ahead for a server."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            words = (process / "cmdline").read_bytes()
            if b"walproxy.recovery.prefetcher" in words and (process / "cwd").samefile(data_directory):
                return int(process.name)
    raise NotThereYet(f"there is no prefetcher of {data_directory}")


def copy_any(source: str, target: str) -> None:
    """Copy a file, or make another FIFO."""
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy(source, target)


def left_by_walproxy(data_directory: Path) -> list[Path]:
    return [path for path in data_directory.rglob("*") if "walproxy" in path.name]
