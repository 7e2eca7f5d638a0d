"""barman with its backups from the primary and its WAL from safekeepers: checks pass, and a restore has all commits.

barman is a program of its own here, with PostgreSQL's pg_receivewal and pg_basebackup; none of its code is imported.
"""

import contextlib
import getpass
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.cluster_fixtures import Gated, wait_for
from tests.integration.conftest import NEWEST
from tests.integration.restore.restore_fixtures import give_to_server
from tests.integration.serving.serve_fixtures import readers_of, received_wal_is_whole
from walproxy.lab.cluster.local_standby import current_lsn
from walproxy.postgres.local_server import LocalPostgres, end_with_parent

_DOCUMENT = Path(__file__).parents[3] / "docs" / "guide" / "standbys.md"
_PROGRAM = Path(sys.executable).with_name("barman")
_TIMEOUT_S = 120.0


def documented_configuration() -> str:
    """Return the configuration file that docs/guide/standbys.md shows."""
    (found,) = re.findall(r"```ini\n(\[barman\]\n.*?)```", _DOCUMENT.read_text(), re.DOTALL)
    return str(found)


class Barman:
    """barman with the documented configuration for one cluster, all of its files in one folder."""

    def __init__(self, cluster: Gated, folder: Path) -> None:
        self._cluster = cluster
        self.home = folder / "barman"
        self.home.mkdir()
        self.log_path = folder / "barman-receive.log"
        self._configuration = folder / "barman.conf"
        self.home.chmod(0o755)
        text = documented_configuration()
        primary = cluster.postgres
        safekeepers = f"{cluster.standby_conninfo()} replication=true"
        replaced = {
            "barman_user = barman": f"barman_user = {getpass.getuser()}",
            "/var/lib/barman": str(self.home),
            "= host=127.0.0.1 port=5432 user=barman dbname=postgres": f"= {primary.conninfo()}",
            "= host=127.0.0.1 port=5432 user=streaming_barman": f"= host=127.0.0.1 port={primary.port} user=postgres",
            "= host=127.0.0.1,127.0.0.1,127.0.0.1 port=5461,5462,5463 user=streaming_barman replication=true": (
                f"= {safekeepers}"
            ),
            "/usr/lib/postgresql/15/bin": str(primary.binaries.bin_directory),
        }
        for documented, real in replaced.items():
            assert documented in text, documented
            text = text.replace(documented, real)
        self._configuration.write_text(text)

    @property
    def streaming(self) -> Path:
        """Where it receives WAL, before it archives it."""
        return self.home / "main" / "streaming"

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of barman."""
        return [str(_PROGRAM), "--config", str(self._configuration), *arguments]

    def run(self, *arguments: str) -> str:
        """Run a command that must succeed; return what it printed."""
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, cwd="/", timeout=_TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def receiving(self) -> Iterator[None]:
        """Run `barman receive-wal` as `barman cron` does, until the block ends."""
        with self.log_path.open("ab") as log:
            receiver = subprocess.Popen(
                [*end_with_parent("TERM"), *self.command("receive-wal", "main")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        try:
            wait_for(lambda: self._streams(receiver), "receive-wal streams from a safekeeper", 60)
            yield
        finally:
            receiver.terminate()
            receiver.wait(_TIMEOUT_S)

    def _streams(self, receiver: subprocess.Popen[bytes]) -> bool:
        assert receiver.poll() is None, self.log_path.read_text()
        return any(readers_of(self._cluster, safekeeper_id) for safekeeper_id in self._cluster.safekeepers)


@pytest.fixture
def barman(cluster: Gated, folder: Path) -> Barman:
    if not _PROGRAM.exists() or shutil.which("rsync") is None:
        pytest.skip("there is no barman, or no rsync, which barman restores with")
    return Barman(cluster, folder)


@NEWEST
def test_barman_archives_from_a_safekeeper_and_restores_every_commit(
    cluster: Gated, barman: Barman, folder: Path
) -> None:
    with barman.receiving():
        cluster.postgres.execute("INSERT INTO ledger VALUES (-1, 0)")
        barman.run("switch-wal", "main")
        # It archives a segment once the next one has begun.
        cluster.postgres.execute("INSERT INTO ledger VALUES (-1, 1)")
        wait_for(lambda: {path.suffix for path in barman.streaming.iterdir()} == {"", ".partial"}, "it is received", 60)
        barman.run("archive-wal", "main")
        checks = barman.run("check", "main")
        assert "FAILED" not in checks
        for check in ("replication slot (WAL streaming)", "systemid coherence (WAL streaming)", "receive-wal running"):
            assert f"{check}: OK" in checks
        barman.run("backup", "--wait", "main")
        with cluster.load() as load:
            load.wait_for_commits(50)
            load.stop()
        end_lsn = current_lsn(cluster.postgres)
        wait_for(lambda: received_wal_is_whole(barman.streaming, cluster, end_lsn), "barman has it all")
        barman.run("restore", "--partial-wal", "main", "latest", str(folder / "restored"))
    give_to_server(folder / "restored")
    with LocalPostgres(cluster.postgres.binaries, folder / "restored", settings=cluster.postgres.settings) as restored:
        restored.configure({"synchronous_standby_names": ""})
        restored.start()
        rows = restored.execute("SELECT worker, number FROM ledger")
        assert {(worker, number) for _, worker, number in load.acknowledged} <= set(rows)
