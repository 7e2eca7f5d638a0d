"""The core regression suite through a gated primary, with a standby that safekeepers feed."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg

from safekeeper.base.errors import ConfigurationError
from tests.conformance.comparison import compare_dumps, compare_records
from tests.conformance.outcomes import Outcome, regress_outcomes, scheduled_tests
from tests.conformance.sources import Built
from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.cluster.local_standby import wait_until_replayed
from walproxy.postgres.binaries import server_user
from walproxy.postgres.local_server import LocalPostgres

# max_prepared_transactions as pg_regress has it for servers of its own. The WAL of the run stays on the primary.
_SETTINGS: Final = {
    "max_prepared_transactions": "2",
    "wal_level": "replica",
    "wal_keep_size": "8GB",
    "max_wal_size": "1GB",
}
# From this version on pg_regress converts no scripts, and tablespaces of tests are within the data directory.
_IN_PLACE_TABLESPACES: Final = 15
_SOURCE_FOLDERS: Final = ("sql", "expected", "testtablespace")
_CONNECTIONS_MAX: Final = 10
_PROGRESS_EVERY: Final = 50
_REPLAY_TIMEOUT_S: Final = 900.0


def run_regress(built: Built, folder: Path, report: Callable[[str], None]) -> Iterator[Outcome]:
    """Run the suite and the comparisons; yield an outcome for each test and each comparison.

    Args:
        folder: for everything that the run writes; the server's user must be able to enter it.
        report: prints a line of progress.
    """
    postgres = LocalPostgres(built.binaries, folder / "primary", settings=_SETTINGS).init()
    with LocalCluster(folder, postgres, safekeeper_options=("-c", "wal_keep=8GiB")) as cluster:
        cluster.start()
        begin_lsn = cluster.commit_lsn()
        standby = cluster.add_standby("standby")
        schedule, left_out = _schedule(built, folder)
        yield from left_out
        tests = scheduled_tests(schedule.read_text())
        output = _pg_regress(built, postgres, schedule, folder, len(tests), report)
        yield from regress_outcomes(output, tests)
        # A sequence logs values in advance: the standby's are ahead until this logs the values that the primary has.
        # It also commits all WAL before it.
        with psycopg.connect(postgres.conninfo(dbname="regression"), autocommit=True) as connection:
            connection.execute("SELECT setval(seqrelid, nextval(seqrelid)) FROM pg_sequence")
        end_lsn = cluster.commit_lsn()
        wait_until_replayed(standby, end_lsn, _REPLAY_TIMEOUT_S)
        report("comparing dumps of primary and standby")
        yield compare_dumps(postgres, standby, folder)
        report("comparing the counts of WAL records")
        yield compare_records(built.binaries, postgres.pg_wal, cluster.wal_url(), begin_lsn, end_lsn)


def _schedule(built: Built, folder: Path) -> tuple[Path, list[Outcome]]:
    """Return the schedule to run, and the tests that are left out of it."""
    schedule = built.regress / "parallel_schedule"
    if built.major >= _IN_PLACE_TABLESPACES:
        return schedule, []
    # Such a standby would keep the files of a tablespace in the same folder as the primary: one machine has both.
    lines = [line for line in schedule.read_text().splitlines() if line.split() != ["test:", "tablespace"]]
    shortened = folder / "parallel_schedule"
    shortened.write_text("\n".join(lines) + "\n")
    return shortened, [Outcome("tablespace", skipped="primary and standby would have it in one folder")]


def _pg_regress(
    built: Built, postgres: LocalPostgres, schedule: Path, folder: Path, count: int, report: Callable[[str], None]
) -> str:
    """Run pg_regress as the server's user; return what it printed.

    Raises:
        ConfigurationError: it could not run the tests.
    """
    user = server_user()
    output_folder = folder / "regress"
    # Up to 14 pg_regress writes scripts there first, and its makefile makes the folders.
    for each in (
        output_folder,
        *(output_folder / name for name in _SOURCE_FOLDERS if built.major < _IN_PLACE_TABLESPACES),
    ):
        each.mkdir()
        if user is not None:
            os.chown(each, user.uid, user.gid)
    as_user: dict[str, Any] = {}
    if user is not None:
        as_user = {"user": user.uid, "group": user.gid, "extra_groups": []}
    command = [
        str(built.regress / "pg_regress"),
        *(f"--dlpath={built.regress}", f"--inputdir={built.regress}", f"--outputdir={output_folder}"),
        *(
            f"--bindir={postgres.binaries.bin_directory}",
            f"--schedule={schedule}",
            f"--max-connections={_CONNECTIONS_MAX}",
        ),
        *("--host=127.0.0.1", f"--port={postgres.port}", "--user=postgres"),
    ]
    printed = []
    with subprocess.Popen(
        command,
        cwd=output_folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**{name: value for name, value in os.environ.items() if not name.startswith("PG")}, "HOME": "/"},
        **as_user,
    ) as process:
        assert process.stdout is not None
        done = 0
        for line in process.stdout:
            printed.append(line)
            outcomes = " ms" in line
            done += outcomes
            if outcomes and done % _PROGRESS_EVERY == 0:
                report(f"{done} of {count} tests")
    (folder / "pg_regress.log").write_text("".join(printed))
    if process.returncode not in (0, 1):
        raise ConfigurationError(f"pg_regress ended with exit code {process.returncode}: {printed[0].strip()}")
    return "".join(printed)
