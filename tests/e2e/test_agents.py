"""Three machines with agents, three with safekeepers, and the file of docs/guide/agents.md on all of them.

Each is a container with Debian's layout of PostgreSQL. Commands are typed as the guide has them: without an option.
"""

import json
import os
import re
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safekeeper.pgwire.scram import make_verifier
from tests.e2e.conftest import leave_out, succeeds
from tests.e2e.deployment import REPOSITORY, docker, wait_until

SERVERS = ("pg1", "pg2", "pg3")
SAFEKEEPERS = ("sk1", "sk2", "sk3")
LINES_MAX = 25
PASSWORD = "of-postgres"
STARTS_WITHIN_S = 300.0

# What an administrator has done on each machine: the file, the secret, the users, and a role's password for libpq.
MACHINE = """
set -euo pipefail
unset WALPROXY_HTTP SAFEKEEPER_HTTP SAFEKEEPER_LISTEN SAFEKEEPER_DATA_DIR
install -d -o postgres -m 755 /etc/walproxy /var/lib/safekeeper
install -o postgres -m 600 /mnt/walproxy.toml /mnt/secret /mnt/users /etc/walproxy/
install -o postgres -m 600 /mnt/pgpass /var/lib/postgresql/.pgpass
as_postgres() { runuser -u postgres -- env HOME=/var/lib/postgresql "$@"; }
"""
SERVER = """
[ -d /etc/postgresql/15/main ] || {
    pg_createcluster 15 main -- --no-sync >/dev/null
    printf 'host %s all all scram-sha-256\\n' all replication >>/etc/postgresql/15/main/pg_hba.conf
    printf '%s\\n' "listen_addresses = '*'" 'wal_log_hints = on' 'wal_keep_size = 64MB' \\
        'wal_retrieve_retry_interval = 200ms' >>/etc/postgresql/15/main/postgresql.conf
    if [ "$1" = pg1 ]; then
        as_postgres /usr/lib/postgresql/15/bin/postgres --single -D /etc/postgresql/15/main template1 >/dev/null \\
            <<<"ALTER ROLE postgres PASSWORD '$2'"
    else
        rm -rf /var/lib/postgresql/15/main
        as_postgres pg_basebackup -h pg1 -U postgres -c fast -D /var/lib/postgresql/15/main
        as_postgres touch /var/lib/postgresql/15/main/standby.signal
    fi
}
as_postgres walproxy agent
"""
SAFEKEEPER = "as_postgres safekeeper run\n"


class Machines:
    """The containers, each with a name that the others resolve.

    Args:
        folder: for what each of them gets at its start.
    """

    def __init__(self, image: str, folder: Path) -> None:
        self.project = f"walproxy-{uuid.uuid4().hex[:8]}"
        self._image = image
        self._folder = folder
        docker("network", "create", self.project)

    def start(self, name: str) -> None:
        script = MACHINE + (SERVER if name in SERVERS else SAFEKEEPER)
        docker(
            *("run", "--detach", "--init", "--name", self.of(name), "--hostname", name),
            *("--network", self.project, "--network-alias", name, "--user", "root", "--shm-size", "256m"),
            *("--volume", f"{self._folder}:/mnt:ro", "--entrypoint", "bash", self._image),
            *("-c", script, "bash", name, PASSWORD),
        )

    def of(self, name: str) -> str:
        return f"{self.project}-{name}"

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine as the user who administrates PostgreSQL there."""
        command = ("docker", "exec", "--user", "postgres", self.of(name), *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)

    def typed(self, name: str, line: str) -> str:
        """Return what a command prints that succeeds."""
        done = self.run(name, *line.split())
        assert done.returncode == 0, f"{name}: {line}: {done.stdout}{done.stderr}"
        return done.stdout

    def cluster(self, name: str) -> Any:
        done = self.run(name, "walproxy", "cluster", "show", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"leader": None, "agents": []}

    def logs(self) -> str:
        found = []
        for name in (*SAFEKEEPERS, *SERVERS):
            done = subprocess.run(["docker", "logs", self.of(name)], capture_output=True, text=True, check=False)
            found.append(f"--- {name}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return "\n".join(found)

    def close(self) -> None:
        names = docker("ps", "--all", "--quiet", "--filter", f"name={self.project}-").split()
        if names:
            docker("rm", "--force", "--volumes", *names)
        docker("network", "rm", self.project)


@pytest.fixture
def machines(images: dict[str, str], tmp_path: Path) -> Iterator[Machines]:
    image = images["WALPROXY_IMAGE"]
    if not succeeds("docker", "run", "--rm", "--entrypoint", "test", image, "-x", "/usr/bin/pg_createcluster"):
        leave_out(f"{image} has no PostgreSQL 15 of Debian")
    (tmp_path / "walproxy.toml").write_text(file_of_the_guide())
    (tmp_path / "secret").write_text(uuid.uuid4().hex)
    (tmp_path / "users").write_text(f"postgres:{make_verifier(PASSWORD, os.urandom(16))}\n")
    (tmp_path / "pgpass").write_text(f"*:*:*:postgres:{PASSWORD}\n")
    made = Machines(image, tmp_path)
    try:
        yield made
    except BaseException:
        print(made.logs())
        raise
    finally:
        made.close()


def file_of_the_guide() -> str:
    found = re.search(r"```toml\n(.*?)```", (REPOSITORY / "docs" / "guide" / "agents.md").read_text(), re.DOTALL)
    assert found is not None
    return textwrap.dedent("   " + found[1].lstrip())


@pytest.mark.timeout(900)
def test_one_file_without_options_runs_and_operates_three_agents(machines: Machines) -> None:
    assert len(file_of_the_guide().splitlines()) <= LINES_MAX
    for name in (*SAFEKEEPERS, "pg1"):
        machines.start(name)
    wait_until(lambda: machines.cluster("pg1")["leader"] == "pg1", machines.logs, STARTS_WITHIN_S)
    for name in ("pg2", "pg3"):
        machines.start(name)

    def streaming() -> list[str]:
        return [each["name"] for each in machines.cluster("pg1")["agents"] if each["is_streaming"]]

    wait_until(lambda: {"pg2", "pg3"} <= set(streaming()), machines.logs, STARTS_WITHIN_S)
    psql = ("psql", "--no-psqlrc", "--tuples-only", "--no-align", "--command")
    assert machines.run("pg1", *psql, "CREATE TABLE t AS SELECT 1 AS n").returncode == 0
    for name in SERVERS:
        assert "quorum 2 of 3" in machines.typed(name, "walproxy status")
        assert machines.typed(name, "walproxy check").startswith("WALPROXY OK - ")
        machines.typed(name, "walproxy limbo")
        assert "primary" in machines.typed(name, "walproxy events")
        assert len(json.loads(machines.typed(name, "walproxy members list --json"))["safekeepers"]) == len(SAFEKEEPERS)

    # The safekeeper's folder is lost, and the operator says so.
    docker("rm", "--force", "--volumes", machines.of("sk3"))
    machines.start("sk3")
    wait_until(lambda: machines.run("pg2", "walproxy", "members", "replace", "3").returncode == 0, machines.logs)
    assert "quorum 2 of 3" in machines.typed("pg2", "walproxy status")

    docker("kill", machines.of("pg1"))
    wait_until(lambda: machines.cluster("pg2")["leader"] in ("pg2", "pg3"), machines.logs, STARTS_WITHIN_S)
    leader = machines.cluster("pg2")["leader"]
    assert machines.run(leader, *psql, "INSERT INTO t VALUES (2) RETURNING n").stdout.split()[0] == "2"
    docker("start", machines.of("pg1"))
    wait_until(lambda: "pg1" in streaming(), machines.logs, STARTS_WITHIN_S)
    machines.typed("pg1", "walproxy switchover --to pg1 --yes")
    assert machines.cluster("pg3")["leader"] == "pg1"
    assert machines.run("pg1", *psql, "SELECT n FROM t ORDER BY n").stdout.split() == ["1", "2"]
    assert machines.typed("pg1", "walproxy check").startswith("WALPROXY OK - ")
