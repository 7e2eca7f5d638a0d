"""Varied WAL of a real server, with a crash in the middle of a record and a switch of timelines.

`make_wal` lets a server work (tests/pipeline/wal_workload.py), crashes it so that the next start passes a torn record
over, copies it into a standby that is promoted, lets that one work, too, and keeps the segments and history files of
both in one folder: what an archive of the two would hold. The old primary writes on after the standby has left it, so
that the two timelines differ behind their fork.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safekeeper.base.lsn import Lsn, parse_lsn, parse_segment_name, segment_start
from tests.cluster_templates import cluster_template, init_by_copying
from tests.pipeline.wal_workload import MIB, STAGES, Stage, connected, pgbench
from tests.scratch import scratch_folder
from walproxy.lab.cluster.local_standby import current_lsn, wait_until_replayed
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres

SETTINGS: Final = {
    "archive_timeout": "0",
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "on",
    "hot_standby": "on",
    "log_checkpoints": "off",
    "max_prepared_transactions": "10",
    "max_wal_size": "64GB",
    "shared_buffers": "64MB",
    "track_commit_timestamp": "on",
    "wal_keep_size": "64GB",
    "wal_level": "logical",
    "wal_log_hints": "on",
}
SERVER_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True)
class MadeWal:
    """Segments and history files of timelines 1 and 2 in one folder.

    Attributes:
        binaries: the server's programs, pg_waldump among them.
        begin_lsn: where the first segment begins.
        torn_lsn: the border of segments at which a record was lost in a crash; its XLOG_OVERWRITE_CONTRECORD is there.
        fork_lsn: timeline 2 begins here.
    """

    binaries: ServerBinaries
    folder: Path
    segment_size: int
    begin_lsn: Lsn
    torn_lsn: Lsn
    fork_lsn: Lsn

    @property
    def major(self) -> int:
        """PostgreSQL's major version."""
        return self.binaries.major

    def segments(self, tli: int) -> dict[Lsn, Path]:
        """Return the segments of a timeline by their begin."""
        parsed = {path: parse_segment_name(path.name, self.segment_size) for path in self.folder.iterdir()}
        found = {name[1]: path for path, name in parsed.items() if name is not None and name[0] == tli}
        return dict(sorted(found.items()))


def make_wal(
    binaries: ServerBinaries,
    keep: Path,
    *,
    segment_mib: int,
    volume_bytes: int = 0,
    rows: int = 2000,
    stages: Sequence[Stage] = STAGES,
) -> MadeWal:
    """Make WAL and keep it in the folder `keep`, which must not be there yet.

    Args:
        segment_mib: size of a segment.
        volume_bytes: pgbench goes on until the first timeline has so much; the stages alone make some 70 MB.
        rows: the size of each stage.
        stages: what is done on the first timeline, before the crash; `bank` must be among them.
    """
    keep.mkdir()
    with scratch_folder() as folder, LocalPostgres(binaries, folder / "primary", settings=SETTINGS) as primary:
        init_by_copying(primary, cluster_template(binaries, segment_mib)).start(SERVER_TIMEOUT_S)
        for stage in stages:
            stage(primary, rows)
        torn_lsn = tear_a_record(primary, segment_mib * MIB)
        _fill(primary, volume_bytes)
        with primary.base_backup(folder / "standby") as standby:
            _promote(primary, standby)
            # From here on they differ.
            for server in (primary, standby):
                pgbench(server, "-n", "-c", "2", "-t", str(max(rows // 40, 50)))
                server.execute("SELECT pg_switch_wal()")
                server.execute("CREATE TABLE behind_the_fork AS SELECT n FROM generate_series(1, 500) n")
                server.stop(timeout_s=SERVER_TIMEOUT_S)
            _keep(primary, 1, keep)
            _keep(standby, 2, keep)
    history = (keep / "00000002.history").read_text().split()
    begin_lsn = min(
        parsed[1]
        for parsed in (parse_segment_name(path.name, segment_mib * MIB) for path in keep.iterdir())
        if parsed is not None
    )
    return MadeWal(binaries, keep, segment_mib * MIB, begin_lsn, torn_lsn, parse_lsn(history[1]))


def tear_a_record(server: LocalPostgres, segment_size: int) -> Lsn:
    """Crash the server so that the end of a record is lost, and start it again; return the border where it is torn."""
    server.execute("SELECT pg_switch_wal()")
    [(before,)] = server.execute("SELECT pg_current_wal_insert_lsn()")
    server.execute(f"SELECT pg_logical_emit_message(false, 'lost', repeat('l', {segment_size + 3 * MIB}))")
    server.kill9()
    torn_lsn = segment_start(parse_lsn(before), segment_size) + segment_size
    for path in server.pg_wal.iterdir():
        parsed = parse_segment_name(path.name, segment_size)
        if parsed is not None and parsed[1] >= torn_lsn:
            path.unlink()
    server.start(SERVER_TIMEOUT_S)
    return torn_lsn


def _fill(server: LocalPostgres, volume_bytes: int) -> None:
    """Let pgbench work, with checkpoints in between, until the server's WAL is so long."""
    while current_lsn(server) < volume_bytes:
        pgbench(server, "-n", "-c", "4", "-t", "3000")
        server.execute("CHECKPOINT")
        with connected(server) as connection:
            connection.execute("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid % 7 = 0")


def _promote(primary: LocalPostgres, standby: LocalPostgres) -> None:
    standby.start(SERVER_TIMEOUT_S)
    with connected(primary) as connection:
        # A transaction that is open at the fork and ends on the old timeline only.
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE open_at_the_fork AS SELECT n FROM generate_series(1, 1000) n")
        primary.execute("SELECT txid_current()")
        wait_until_replayed(standby, current_lsn(primary))
        standby.promote()
        connection.execute("COMMIT")


def _keep(server: LocalPostgres, tli: int, keep: Path) -> None:
    """Copy the segments and the history file of one timeline."""
    for path in server.pg_wal.iterdir():
        if path.is_file() and path.name.startswith(f"{tli:08X}"):
            shutil.copyfile(path, keep / path.name)
