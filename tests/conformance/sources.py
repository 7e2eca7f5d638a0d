"""PostgreSQL's source by major version: fetched with apt, and a server of exactly that version.

An installed server of the source's version is used. Without one the source is compiled and installed. The core suite's
library and programs are compiled in any case.

Debian has a major version or two in each of its suites. apt is called with a list of sources, indexes and a cache of
its own, in the folder of the builds: the system's are not changed, and it needs no root. apt verifies Debian's
signature. Only the original archive is unpacked, without Debian's patches.

    FOLDER/MAJOR/postgresql-VERSION/   source, compiled in place
    FOLDER/MAJOR/install/              server, programs, contrib modules that the tests load; if they are compiled
"""

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safekeeper.base.errors import WalproxyError
from walproxy.lab.unpacking import unpack
from walproxy.postgres.binaries import ServerBinaries, find_servers, reachable_binaries, server_user

# The Debian suite that has each major version, and whether it gets security updates as a suite of its own.
DEBIAN_SUITES: Final = {13: ("bullseye", True), 15: ("bookworm", True), 17: ("trixie", True), 18: ("sid", False)}
MIRROR: Final = "http://deb.debian.org/debian"
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_CONTRIB: Final = ("pg_prewarm", "pg_stat_statements", "test_decoding", "amcheck")
# What the machine must have: a program, the file of a header, or a module of Perl; and Debian's package with it.
_PROGRAMS: Final = {
    "apt-get": "apt",
    "gcc": "gcc",
    "make": "make",
    "bison": "bison",
    "flex": "flex",
    "perl": "perl",
}
_HEADERS: Final = {"stdio.h": "libc6-dev", "zlib.h": "zlib1g-dev"}
_PERL_MODULES: Final = {"IPC::Run": "libipc-run-perl"}


class SourceUnavailable(WalproxyError):
    """The source of a major version could not be fetched or compiled here."""


@dataclass(frozen=True)
class Built:
    """A major version to test: its source tree with the compiled core suite, and the programs of the same version."""

    source: Path
    binaries: ServerBinaries

    @property
    def major(self) -> int:
        """The major version."""
        return self.binaries.major

    @property
    def regress(self) -> Path:
        """The folder of the core regression suite, with pg_regress and the library that the tests load."""
        return self.source / "src" / "test" / "regress"


def missing_packages() -> list[str]:
    """Return the Debian packages that fetching, compiling and the TAP suites need and that are not installed."""
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    missing += [package for header, package in _HEADERS.items() if not Path("/usr/include", header).exists()]
    missing += [] if _KEYRING.exists() else ["debian-archive-keyring"]
    if "perl" not in missing:
        for module, package in _PERL_MODULES.items():
            if subprocess.run(["perl", f"-M{module}", "-e", "1"], capture_output=True, check=False).returncode != 0:
                missing.append(package)
    return missing


def build(major: int, folder: Path, *, mirror: str = MIRROR, jobs: int = 1) -> Built:
    """Fetch a major version, and compile what is missing of it, unless that is already done.

    Args:
        folder: of all builds; the server's user must be able to enter it.
        jobs: how many compilers run at the same time.

    Raises:
        SourceUnavailable: no version of it can be fetched, or it does not compile.
    """
    home = folder.absolute() / str(major)
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    source = _unpacked(home) or _fetch(major, home, mirror)
    version = source.name.removeprefix("postgresql-")
    binaries = find_servers().get(major)
    if binaries is None or binaries.version != version:
        binaries = ServerBinaries(major, version, home / "install" / "bin", home / "install")
    _once(home / "configured", lambda: _configure(source, home / "install"))
    make = ["make", "--silent", f"--jobs={jobs}"]
    if binaries.root == home / "install":
        _once(home / "installed", lambda: _install(source, make))
    _once(home / "suite", lambda: _run([*make, "-C", "src/test/regress"], source))
    return Built(source, reachable_binaries(binaries, server_user()))


def versions_in(showsrc: str) -> list[str]:
    """Return the versions in the output of `apt-cache showsrc`, the last one of the index first."""
    return list(dict.fromkeys(reversed(re.findall(r"^Version: (\S+)$", showsrc, re.MULTILINE))))


def _unpacked(home: Path) -> Path | None:
    """Return the source tree in a folder, None if there is none."""
    return next((path for path in sorted(home.glob("postgresql-*")) if path.is_dir()), None)


def _fetch(major: int, home: Path, mirror: str) -> Path:
    suite, has_security = DEBIAN_SUITES[major]
    signed = f"deb-src [signed-by={_KEYRING}]"
    lines = [f"{signed} {mirror} {suite} main"]
    if has_security:
        lines.append(f"{signed} {mirror}-security {suite}-security main")
    apt = home / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text("".join(f"{line}\n" for line in lines))
    options = [
        *("-o", f"Dir::Etc::SourceList={apt}/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={apt}/lists", "-o", f"Dir::Cache={apt}/cache"),
        *("-o", f"Dir::State::status={apt}/status", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"),
        # Nothing that the system's own configuration runs after an update.
        *("-o", "APT::Update::Post-Invoke-Success=", "-o", "APT::Update::Post-Invoke="),
    ]
    _run(["apt-get", *options, "--quiet", "update"], apt)
    versions = versions_in(_run(["apt-cache", *options, "showsrc", f"postgresql-{major}"], apt))
    # A mirror may list a version whose files are not there yet, or no longer.
    reason = f"no suite of {mirror} has it"
    for version in versions:
        command = ["apt-get", *options, "--quiet", "source", "--download-only", "--tar-only"]
        try:
            _run([*command, f"postgresql-{major}={version}"], home)
            break
        except SourceUnavailable as error:
            reason = str(error)
    archives = sorted(home.glob("*.orig.tar.*"))
    if not archives:
        raise SourceUnavailable(f"the source of PostgreSQL {major} cannot be fetched: {reason}")
    with tarfile.open(archives[-1]) as archive:
        unpack(archive, home)
    source = _unpacked(home)
    assert source is not None  # it was just unpacked
    return source


def _once(stamp: Path, step: Callable[[], object]) -> None:
    """Do a step of the build unless its stamp shows that it was done."""
    if not stamp.exists():
        step()
        stamp.touch()


def _configure(source: Path, install: Path) -> None:
    options = ["--without-icu", "--without-readline", "--enable-tap-tests", "CFLAGS=-O1 -pipe"]
    _run(["./configure", "--quiet", f"--prefix={install}", *options], source)


def _install(source: Path, make: Sequence[str]) -> None:
    _run([*make, "all"], source)
    _run([*make, "install"], source)
    for module in _CONTRIB:
        _run([*make, "-C", f"contrib/{module}", "install"], source)


def _run(command: Sequence[str], directory: Path) -> str:
    """Run a command and return its output.

    Raises:
        SourceUnavailable: it failed, with its last line about an error.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "MAKE"))}
    answer = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**environment, "LC_ALL": "C"},
        check=False,
    )
    if answer.returncode != 0:
        lines = (answer.stderr + answer.stdout).strip().splitlines() or ["no output"]
        line = next((line for line in lines if re.search(r"error|^E:|Failed", line)), lines[-1])
        raise SourceUnavailable(f"{command[0]} failed with exit code {answer.returncode}: {line}")
    return answer.stdout
