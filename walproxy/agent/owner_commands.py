"""PostgreSQL's programs, run as the owner of the data folder, with a deadline.

PostgreSQL refuses to run as root, and must own its files: under root a program runs as the folder's owner, with all the
groups of that user (on Debian the group ssl-cert may read the server's key).
"""

import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safekeeper.base.errors import ConfigurationError
from walproxy.postgres.local_server import end_with_parent
from walproxy.postgres.problems import ServerProblem

# They would lead the programs to another server, and a restore_command to the safekeepers' listeners for proxies.
# Passwords, TLS and service files remain.
_MISLEADING = frozenset(
    {"PGDATA", "PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE", "PGOPTIONS", "PGAPPNAME"}
    | {"WALPROXY_SAFEKEEPERS"}
)
_OUTPUT_SHOWN = 400


@dataclass(frozen=True)
class Owner:
    """The user that owns a data folder."""

    uid: int
    gid: int
    name: str
    home: str


def owner_of(folder: Path) -> Owner:
    """Return the owner of a folder.

    Raises:
        ConfigurationError: this process may not run programs as that user, or it is root.
        OSError: the folder does not exist.
    """
    status = folder.stat()
    if status.st_uid == 0:
        raise ConfigurationError(f"{folder} belongs to root, which PostgreSQL refuses to run as: chown it")
    if os.geteuid() not in (0, status.st_uid):
        raise ConfigurationError(f"{folder} belongs to user {status.st_uid}: run this program as that user or as root")
    try:
        entry = pwd.getpwuid(status.st_uid)
    except KeyError:  # As in a container with an arbitrary user.
        return Owner(status.st_uid, status.st_gid, str(status.st_uid), "/")
    return Owner(status.st_uid, status.st_gid, entry.pw_name, entry.pw_dir)


def run_as_owner(
    owner: Owner,
    words: Sequence[str],
    *,
    timeout_s: float,
    pass_fds: Sequence[int] = (),
    ends_with_us: bool = True,
    folder: Path = Path("/"),
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its exit code and output.

    Args:
        ends_with_us: it ends when this thread does. False for a program that starts the server.
        pass_fds: further open files for it and its children.
        folder: in which it is run.

    Raises:
        ServerProblem: it cannot be started, or did not end in time and was ended.
    """
    name = Path(words[0]).name
    started = [*end_with_parent("KILL"), *words] if ends_with_us else list(words)
    # setpriv would lose its effect with a change of user after it, so the change of user comes first: in Popen.
    try:
        process = subprocess.Popen(
            started,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env=_environment(owner),
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            **_as_owner(owner),
        )
    except OSError as error:
        raise ServerProblem(f"{words[0]} cannot be started: {error.strerror or error}") from None
    with process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # Its own session, so also its children.
            process.communicate()
            raise ServerProblem(f"{name} has not ended within {timeout_s:g} s: it was killed") from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, output)


def essence(output: str) -> str:
    """Return the end of a program's output as one line."""
    return " ".join(output.split())[-_OUTPUT_SHOWN:] or "no reason given"


def _as_owner(owner: Owner) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    try:
        groups = os.getgrouplist(owner.name, owner.gid)
    except (KeyError, OSError):
        groups = [owner.gid]
    return {"user": owner.uid, "group": owner.gid, "extra_groups": groups}


def _environment(owner: Owner) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in _MISLEADING and not name.startswith("LC_")}
    return {**ours, "LC_ALL": "C", "HOME": owner.home}
