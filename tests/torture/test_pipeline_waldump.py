"""`walproxy pipeline waldump` shows the same records from a primary, from its safekeepers and from their archive."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from safekeeper.base.lsn import format_lsn
from tests.integration.archive.archive_cluster_fixtures import (
    archive_options,
    wait_for_archiver,
    wait_until_archived,
    write_wal,
)
from tests.integration.archive.archive_fixtures import Archive
from tests.integration.conftest import NEWEST, NewGated

COMMAND = (sys.executable, "-m", "walproxy", "pipeline", "waldump")


def shown(place: str | Path, *words: str) -> list[str]:
    return subprocess.run(
        [*COMMAND, str(place), *words], capture_output=True, text=True, check=True
    ).stdout.splitlines()


@contextmanager
def following(place: str | Path, *words: str) -> Iterator[IO[str]]:
    """The lines of a command that goes on for ever."""
    with subprocess.Popen([*COMMAND, str(place), "--follow", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


@NEWEST
def test_primary_safekeepers_and_archive_show_the_same(folder_archive: Archive, new_gated: NewGated) -> None:
    options = archive_options(folder_archive.place, "-c", "archive_partial_interval=0.5")
    cluster = new_gated(safekeeper_options=options, wal_keep_size="1GB").start_gated()
    wait_for_archiver(cluster)
    write_wal(cluster, 20)
    end_lsn = cluster.commit_lsn_of_all()
    wait_until_archived(cluster, end_lsn)
    first = shown(cluster.wal_url(), "-n", "1")[0]
    match = re.search(r"lsn: ([0-9A-F/]+),", first)
    assert match is not None
    words = ("-s", match[1], "-e", format_lsn(end_lsn))
    of_primary = shown(cluster.postgres.pg_wal, *words)
    assert len(of_primary) > 100
    assert shown(cluster.wal_url(), *words) == of_primary
    assert shown(folder_archive.place.url, *words) == of_primary
    with following(cluster.wal_url(), "-s", format_lsn(end_lsn), "-r", "Transaction") as lines:
        for number in range(5):
            [(xid,)] = cluster.postgres.execute(
                "INSERT INTO ledger VALUES (7, %s) RETURNING pg_current_xact_id()::text", number
            )
            assert re.search(rf"tx: +{xid}, .* desc: COMMIT ", lines.readline())
