"""The TAP suites of PostgreSQL, each script with safekeepers between its nodes (WalproxyShim.pm)."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.conformance.outcomes import Outcome, first_failure, tap_outcome
from tests.conformance.sources import Built
from walproxy.postgres.binaries import server_user
from walproxy.postgres.local_server import as_reader_of_all, end_with_parent

# The folder of each suite in the source.
SUITES: Final = {
    "recovery": "src/test/recovery",
    "pg_rewind": "src/bin/pg_rewind",
    "pg_basebackup": "src/bin/pg_basebackup",
}
_HERE: Final = Path(__file__).parent
_SCRIPT_TIMEOUTS: Final = 10  # the limit of a script, in time limits of a single wait
_END_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 1.0


def run_tap(
    built: Built, suite: str, folder: Path, *, wait_timeout_s: int, only: str, report: Callable[[str], None]
) -> Iterator[Outcome]:
    """Run the scripts of a suite one after the other; yield the outcome of each.

    Args:
        folder: for everything that the scripts write; what belongs to a script that passed is removed.
        wait_timeout_s: the limit of a single wait of a script.
        only: run the scripts whose name contains it.
    """
    user = server_user()
    for script in sorted((built.source / SUITES[suite] / "t").glob("*.pl")):
        if only not in script.name:
            continue
        work = folder / script.stem
        for each in (work, work / "walproxy"):
            each.mkdir(mode=0o700, parents=True)
            if user is not None:
                os.chown(each, user.uid, user.gid)
        outcome = _run_script(built, script, work, wait_timeout_s)
        report(f"{script.name}: {outcome.failure or (outcome.skipped and 'skipped: ' + outcome.skipped) or 'passed'}")
        if outcome.failure is None:
            shutil.rmtree(work)
        yield outcome


def _run_script(built: Built, script: Path, work: Path, wait_timeout_s: int) -> Outcome:
    user = server_user()
    # The interpreter and this project may be in a folder that only root can enter.
    as_user = () if user is None else as_reader_of_all(user)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "PERL", "MAKE"))}
    environment = {
        **ours,
        "PATH": f"{built.binaries.bin_directory}:{os.environ['PATH']}",
        "HOME": str(work),
        "XDG_STATE_HOME": str(work / "walproxy"),
        # What the makefiles of the suites set.
        "TESTDIR": str(work),
        "TESTDATADIR": str(work / "tmp_check"),
        "TESTLOGDIR": str(work / "tmp_check" / "log"),
        "PG_REGRESS": str(built.regress / "pg_regress"),
        "REGRESS_SHLIB": str(built.regress / "regress.so"),
        "REGRESS_OUTPUTDIR": str(work),
        "PG_TEST_PORT_DIR": str(work / "ports"),
        "PGPORT": "65432",
        "top_builddir": str(built.source),
        "enable_injection_points": "no",
        "with_icu": "no",
        "PG_TEST_TIMEOUT_DEFAULT": str(wait_timeout_s),
        # What the shim needs.
        "WALPROXY_PYTHON": sys.executable,
        "WALPROXY_FOLDER": str(work / "walproxy"),
        "PYTHONPATH": str(_HERE.parents[1]),
    }
    command = [
        *as_user,
        *end_with_parent("TERM"),
        "perl",
        "-I",
        str(built.source / "src/test/perl"),
        "-I",
        str(_HERE),
        "-MWalproxyShim",
        f"t/{script.name}",
    ]
    log = work / "output"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=script.parents[1],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
        try:
            exit_code = _until_decided(process, log, _SCRIPT_TIMEOUTS * wait_timeout_s)
        finally:
            _end(process, work)
    printed = log.read_text(errors="replace")
    logged = "".join(each.read_text(errors="replace") for each in work.glob("tmp_check/log/regress_log_*"))
    return tap_outcome(script.name, printed, exit_code, logged)


def _until_decided(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> int | None:
    """Wait for the end of a script or its first failure: more may take a whole wait each. Return the exit code."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
        if first_failure(log.read_text(errors="replace")) is not None:
            return None
    return None


def _end(process: subprocess.Popen[bytes], work: Path) -> None:
    """End a script that still runs, with its daemons and its servers, which have sessions of their own."""
    if process.poll() is None:
        process.terminate()  # it stops its nodes
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for pid_file in work.rglob("postmaster.pid"):
        # A copy of a data folder may have the file of a server that has ended, and whose pid another process has.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError, IndexError):
            pid = int(pid_file.read_text().split()[0])
            if str(work).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGQUIT)
