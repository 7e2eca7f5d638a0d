"""A folder of whole segments that a server filled with pgbench's transactions, for what reads WAL."""

import os
from pathlib import Path
from typing import NamedTuple

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, parse_lsn, parse_segment_name, segment_start
from walproxy.lab.bench import pgbench
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres

_SEGMENT_SIZE = 16 << 20
_SETTINGS = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "fsync": "off",
    "max_wal_size": "100GB",
    "shared_buffers": "256MB",
    "wal_keep_size": "100GB",
}
_SCALE = 20
_TURN_S = 5
_CLIENTS = 4
_EVENTS = """
CREATE TABLE bench_events (id bigserial PRIMARY KEY, account int NOT NULL, at timestamptz NOT NULL, note text NOT NULL)
"""
_SCRIPT = """
\\set account random(1, 100000 * :scale - 10)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid BETWEEN :account AND :account + 9;
INSERT INTO bench_events (account, at, note)
    SELECT account, now(), repeat(md5(account::text), 4) FROM generate_series(:account, :account + 9) AS account;
COMMIT;
"""
"""Ten rows updated and ten of some 150 bytes inserted: records of 115 bytes on average, and much more WAL a
second than from pgbench's own script."""


class WalFolder(NamedTuple):
    """Whole segments of timeline 1, without a hole.

    Attributes:
        begin_lsn, end_lsn: both where a segment begins.
        binaries: of the server that wrote them.
    """

    folder: Path
    begin_lsn: Lsn
    end_lsn: Lsn
    binaries: ServerBinaries

    @property
    def wal_bytes(self) -> int:
        """The size of the WAL."""
        return self.end_lsn - self.begin_lsn

    def segments(self) -> list[Path]:
        """Return the files, ascending."""
        return sorted(self.folder.iterdir())

    def beginning(self, wal_bytes: int, folder: Path) -> "WalFolder":
        """Return the first segments, as many as `wal_bytes` fill, linked into a new folder."""
        folder.mkdir()
        chosen = self.segments()[: max(1, wal_bytes // _SEGMENT_SIZE)]
        for path in chosen:
            os.link(path, folder / path.name)
        return WalFolder(folder, self.begin_lsn, self.begin_lsn + len(chosen) * _SEGMENT_SIZE, self.binaries)


def write_wal(directory: Path, binaries: ServerBinaries, wal_bytes: int) -> WalFolder:
    """Let pgbench write at least `wal_bytes` of WAL: many small records, hardly a full-page image.

    Raises:
        WalproxyError: a server or pgbench failed.
    """
    directory.mkdir()
    if os.geteuid() == 0:
        directory.chmod(0o755)
    with LocalPostgres(binaries, directory / "data", settings=_SETTINGS) as postgres:
        postgres.init().start()
        pgbench.prepare(postgres, _SCALE)
        postgres.execute(_EVENTS)
        script = directory / "script.sql"
        script.write_text(_SCRIPT)
        pgbench.run_script(postgres, script, _CLIENTS, _TURN_S, _SCALE)  # Most pages have had their images then.
        postgres.execute("SELECT pg_switch_wal()")
        begin_lsn = _segment_of(postgres)
        while _segment_of(postgres) - begin_lsn < wal_bytes:
            pgbench.run_script(postgres, script, _CLIENTS, _TURN_S, _SCALE)
        postgres.execute("SELECT pg_switch_wal()")
        end_lsn = _segment_of(postgres)
        postgres.stop()
        folder = directory / "wal"
        folder.mkdir()
        for path in postgres.pg_wal.iterdir():
            parsed = parse_segment_name(path.name, _SEGMENT_SIZE)
            if parsed is not None and begin_lsn <= parsed[1] < end_lsn:
                os.link(path, folder / path.name)
    found = WalFolder(folder, begin_lsn, end_lsn, binaries)
    if len(found.segments()) * _SEGMENT_SIZE != found.wal_bytes:
        raise WalproxyError(f"PostgreSQL has removed WAL that the benchmark needs from {postgres.pg_wal}")
    return found


def _segment_of(postgres: LocalPostgres) -> Lsn:
    """Return where the segment begins that is being written; the next one, just after a switch."""
    [(lsn,)] = postgres.execute("SELECT pg_current_wal_insert_lsn()::text")
    return segment_start(parse_lsn(lsn), _SEGMENT_SIZE)
