"""The demo's chapter of the archive: a base backup early on; at the end all is lost but one safekeeper and the archive.

What brings it back are the commands that an operator would type, run as an operator would run them.
"""

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from safekeeper.base.logs import one_line
from safekeeper.base.lsn import format_lsn, parse_lsn
from walproxy.lab.demo.books import compare_books
from walproxy.lab.demo.stage import SHORT_WATCH_S, DemoStage, Step, StepUnfinished
from walproxy.postgres.binaries import server_user
from walproxy.postgres.local_server import LocalPostgres
from walproxy.proxy.status_table import format_bytes

_PARTIAL_INTERVAL_S = 2
_RECOVERY_S_MAX = 300.0
_KEEP_ALL, _KEEP_LITTLE = "wal_keep=16GiB", "wal_keep=1MiB"
_REACH = re.compile(r"^WAL: without a hole up to (\S+)", re.MULTILINE)
_NEW_CLUSTER = re.compile(r"^cluster (\w+) has begun", re.MULTILINE)


def safekeeper_options(directory: Path) -> tuple[str, ...]:
    """Return the options of the safekeepers of a demo in `directory`: they archive, and remove nothing for now.

    Make the folder of the archive: under root, PostgreSQL runs as another user, which reads it when it recovers.
    """
    archive = archive_folder(directory)
    archive.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, exist_ok=True)
    # What is compared at the end must still be there.
    return "--archive", str(archive), "-c", f"archive_partial_interval={_PARTIAL_INTERVAL_S}", "-c", _KEEP_ALL


def archive_folder(directory: Path) -> Path:
    """Return where the archive of a demo in `directory` is."""
    return directory / "archive"


def _take_base_backup(stage: DemoStage) -> str:
    cluster = stage.cluster
    began_at = time.monotonic()
    cluster.postgres.back_up(_backup_folder(stage))
    seconds = time.monotonic() - began_at
    target_lsn = stage.backed_up_lsn = cluster.commit_lsn()
    stage.wait_until(lambda: cluster.archived_lsn() >= target_lsn, "the archive has that WAL")
    return f"pg_basebackup took {seconds:.1f} s under load; the archive has the WAL up to {format_lsn(target_lsn)}"


def _remove_old_wal(stage: DemoStage) -> str:
    cluster = stage.cluster
    before = [_size_of(stage.wal_folder(i)) for i in cluster.safekeepers]
    # The proxies that still run after the shutdown may be electing, and one that is deposed ends.
    for process in [*cluster.proxies, *cluster.safekeepers.values()]:
        process.stop()
    for safekeeper in cluster.safekeepers.values():
        safekeeper.arguments[safekeeper.arguments.index(_KEEP_ALL)] = _KEEP_LITTLE
        safekeeper.start()
    cluster.postgres.start()
    _start_proxies(stage)
    stage.start_load()
    stage.wait_until(
        lambda: min(stage.safekeeper_lsns("wal_begin_lsn").values()) > stage.backed_up_lsn,
        "each safekeeper has removed WAL that the base backup needs",
    )
    after = [_size_of(stage.wal_folder(i)) for i in cluster.safekeepers]
    return (
        f"commits go on; the safekeepers have {format_bytes(max(after))} of {format_bytes(max(before))} of WAL left, "
        f"too little for the base backup: the archive has the rest"
    )


def _lose_everything(stage: DemoStage) -> str:
    cluster = stage.cluster
    stage.observe(SHORT_WATCH_S)
    cluster.postgres.kill9()
    for proxy in cluster.proxies:
        proxy.kill9()
    stage.stop_load()
    flush_lsns = stage.all_safekeeper_lsns("flush_lsn")
    # Every acknowledged commit is on two of them, so on the one with the longest log.
    stage.survivor = max(flush_lsns, key=lambda i: flush_lsns[i])
    archived_lsn = cluster.archived_lsn()
    for safekeeper in cluster.safekeepers.values():
        safekeeper.kill9()
    servers = [cluster.postgres, *cluster.former_primaries]
    lost = [cluster.safekeeper_directory(i) for i in cluster.safekeepers if i != stage.survivor]
    for directory in [*(server.data_directory for server in servers), *lost]:
        shutil.rmtree(directory)
    missing = format_bytes(max(0, flush_lsns[stage.survivor] - archived_lsn))
    return (
        f"killed all, deleted {len(servers)} data folders of PostgreSQL and {len(lost)} of safekeepers; left are "
        f"safekeeper {stage.survivor}, the base backup, and the archive, which lacks the last {missing}"
    )


def _restore(stage: DemoStage) -> str:
    cluster = stage.cluster
    target = cluster.directory / "restored"
    user = server_user()
    began_at = time.monotonic()
    output = stage.command(
        *("restore", "--backup", _backup_folder(stage), "--target", target),
        *("--archive", archive_folder(cluster.directory)),
        *("--data-dir", cluster.safekeeper_directory(stage.survivor), "--uncommitted"),
        *(("--owner", user.name) if user is not None else ()),
    )
    restored = LocalPostgres(
        cluster.postgres.binaries,
        target,
        port=cluster.postgres.port,
        outlives_us=cluster.outlives_us,
        reads_all=True,
    )
    cluster.former_primaries.append(cluster.postgres)
    cluster.postgres = restored
    restored.start(_RECOVERY_S_MAX)
    stage.wait_until(lambda: restored.execute("SELECT pg_is_in_recovery()") == [(False,)], "recovery has ended")
    seconds = time.monotonic() - began_at
    reach = _REACH.search(output)
    up_to = f" up to {reach[1]}" if reach is not None else ""
    return f"restored, started and recovered{up_to} in {seconds:.1f} s; {compare_books(stage)}"


def _begin_again(stage: DemoStage) -> str:
    cluster = stage.cluster
    for safekeeper in cluster.safekeepers.values():
        safekeeper.start()
    stage.wait_until(lambda: all(process.status() for process in cluster.safekeepers.values()), "safekeepers answer")
    output = stage.command("rebootstrap", "--yes", "--primary", cluster.postgres.conninfo(), finds_safekeepers=True)
    begins = _NEW_CLUSTER.search(output)
    if begins is None:
        raise StepUnfinished(f"walproxy rebootstrap did not name the new cluster: {one_line(output)}")
    stage.command("archive", "adopt", "--cluster-id", begins[1], "--archive", archive_folder(cluster.directory))
    _start_proxies(stage)
    [(flush_lsn, stage.old_transfers)] = cluster.postgres.execute(
        "SELECT pg_current_wal_flush_lsn()::text, (SELECT count(*) FROM transfer)"
    )
    stage.new_log_lsn = parse_lsn(flush_lsn)
    began_at = time.monotonic()
    stage.start_load()
    stage.seconds_to_new_commit(began_at, began_at)
    stage.observe(SHORT_WATCH_S)
    stage.stop_load()
    target_lsn = cluster.commit_lsn()
    stage.wait_until(lambda: cluster.archived_lsn() >= target_lsn, "the archive continues, too")
    return f"commits and the archive continue; now {compare_books(stage)}"


def _start_proxies(stage: DemoStage) -> None:
    """Start the first proxy, and when it serves the other one as its spare."""
    cluster = stage.cluster
    serving, spare = cluster.proxies
    cluster.start_proxy(serving)
    cluster.wait_for_state("streaming", proxy=serving)
    cluster.start_proxy(spare)
    stage.wait_until(spare.is_spare, "the other proxy is a spare")


def _backup_folder(stage: DemoStage) -> Path:
    return stage.cluster.directory / "base-backup"


def _size_of(directory: Path) -> int:
    """Return the size of the files that are there; a safekeeper removes some of them meanwhile."""
    total = 0
    for file in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


TAKE_BASE_BACKUP = Step("take a base backup", _take_base_backup)
LOSS_STEPS = (
    Step("go on, with less WAL on the safekeepers", _remove_old_wal),
    Step("lose all but one safekeeper and the archive", _lose_everything),
    Step("walproxy restore: all of it is there", _restore),
    Step("begin again on empty safekeepers", _begin_again),
)
