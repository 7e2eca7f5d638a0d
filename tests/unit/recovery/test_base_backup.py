"""What a base backup says about itself, as a folder and as a tar."""

import errno
import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from safekeeper.base.errors import ConfigurationError
from tests.unit.backup_manifests import manifest_of
from walproxy.recovery.backup_manifest import BackupDamaged
from walproxy.recovery.base_backup import BaseBackup, parse_label, write_entry

LABEL = """START WAL LOCATION: 0/9000028 (file 000000020000000000000009)
CHECKPOINT LOCATION: 0/9000080
BACKUP METHOD: streamed
BACKUP FROM: primary
START TIME: 2026-11-21 20:44:50 UTC
LABEL: pg_basebackup base backup
START TIMELINE: 2
"""
SEGMENT = "000000020000000000000009"
SYSTEM_ID = 7_000_000_000_000_000_001
FILES = {
    "backup_label": LABEL.encode(),
    "PG_VERSION": b"17\n",
    "base/1/1259": b"table",
    "pg_wal/" + SEGMENT: b"wal",
    "global/pg_control": SYSTEM_ID.to_bytes(8, "little") + bytes(100),
    "postmaster.opts": b"leave me out",
}
MANIFEST = manifest_of({name: FILES[name] for name in FILES if name not in ("pg_wal/" + SEGMENT, "postmaster.opts")})


def as_folder(place: Path) -> Path:
    for name, content in {**FILES, "backup_manifest": MANIFEST}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def tar_of(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def as_tar(place: Path) -> Path:
    (place / "base.tar").write_bytes(tar_of(FILES))
    (place / "backup_manifest").write_bytes(MANIFEST)
    return place


def as_zstd(place: Path) -> Path:
    content = {name: content for name, content in FILES.items() if not name.startswith("pg_wal")}
    (place / "base.tar.zst").write_bytes(zstandard.compress(tar_of(content)))
    (place / "pg_wal.tar").write_bytes(tar_of({SEGMENT: b"wal"}))
    (place / "backup_manifest").write_bytes(MANIFEST)
    return place / "base.tar.zst"


@pytest.mark.parametrize("make", [as_folder, as_tar, as_zstd])
def test_every_form_says_the_same_and_has_the_same_files(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "backup").mkdir()
    backup = BaseBackup(make(tmp_path / "backup"))
    facts = backup.facts
    assert (facts.system_id, facts.major, facts.start_tli) == (SYSTEM_ID, 17, 2)
    assert (facts.start_lsn, facts.checkpoint_lsn, facts.end_lsn) == (0x9000028, 0x9000080, 0x9000120)
    files = {str(entry.path) for entry in backup.entries() if not entry.is_folder} - {"backup_manifest"}
    assert files == {"backup_label", "PG_VERSION", "base/1/1259", "global/pg_control"}
    wal = {str(entry.path): entry.size for entry in backup.wal_entries()}
    assert wal == {"pg_wal/" + SEGMENT: 3}
    written: list[int] = []
    for entry in backup.entries():
        write_entry(entry, tmp_path / "target", written.append)
    assert (tmp_path / "target" / "base/1/1259").read_bytes() == b"table"
    assert (tmp_path / "target" / "PG_VERSION").stat().st_mode & 0o777 == 0o600
    assert sum(written) == sum(entry.size for entry in backup.entries())


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "base/../../evil"])
def test_an_entry_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "base.tar").write_bytes(tar_of({name: b"x", **FILES}))
    with pytest.raises(ConfigurationError, match=r"outside of the data folder|not a base backup"):
        list(BaseBackup(tmp_path).entries())


def test_a_link_is_refused(tmp_path: Path) -> None:
    as_folder(tmp_path)
    (tmp_path / "base" / "2").symlink_to("/etc")
    with pytest.raises(ConfigurationError, match="is a link"):
        list(BaseBackup(tmp_path).entries())


def test_a_tar_of_a_tablespace_is_refused(tmp_path: Path) -> None:
    as_tar(tmp_path)
    (tmp_path / "16400.tar").write_bytes(tar_of({}))
    with pytest.raises(ConfigurationError, match="tablespaces"):
        BaseBackup(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"x" * 1000, b"\x28\xb5\x2f\xfd" + b"x" * 1000])
def test_a_damaged_tar_is_an_error_of_one_line(tmp_path: Path, damage: bytes) -> None:
    for suffix in (".tar", ".tar.gz", ".tar.zst"):
        path = tmp_path / f"base{suffix}"
        path.write_bytes(damage)
        with pytest.raises(ConfigurationError):
            BaseBackup(path)
        path.unlink()


def test_a_label_without_a_timeline_has_that_of_its_file() -> None:
    old = "\n".join(line for line in LABEL.splitlines() if "TIMELINE" not in line)
    assert parse_label(old)[1] == 2
    with pytest.raises(ValueError, match="lacks the start"):
        parse_label(LABEL.replace("START WAL", "STOP WAL"))


def test_a_folder_of_the_backup_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_folder(tmp_path)
    (tmp_path / "backup_manifest").unlink()
    scandir = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("base/1"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ConfigurationError, match=r"cannot be read: Permission denied: .*base/1"):
        list(BaseBackup(tmp_path).entries())


def test_a_tar_of_another_compression_is_named(tmp_path: Path) -> None:
    (tmp_path / "base.tar.lz4").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"base\.tar\.lz4 .*: unpack it"):
        BaseBackup(tmp_path)
    with pytest.raises(ConfigurationError, match=r"\.tar\.gz, \.tar\.zst"):
        BaseBackup(tmp_path / "base.tar.lz4")


def read(path: Path) -> None:
    BaseBackup(path).verify(lambda size: None)


def remake(place: Path, make: Callable[[Path], Path], files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a backup of other files, with the manifest of the whole one."""
    monkeypatch.setattr(f"{__name__}.FILES", files)
    return make(place)


@pytest.mark.parametrize("make", [as_folder, as_tar, as_zstd])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            {"base/1/1259": b"tablE"},
            r"the CRC32C of base/1/1259 is [0-9a-f]{8}, and its backup_manifest has [0-9a-f]{8}$",
        ),
        ({"base/1/1259": b"tabl"}, "base/1/1259 has 4 bytes, and its backup_manifest has 5$"),
        ({"base/1/1259": None}, "base/1/1259, which its backup_manifest lists, is missing$"),
        ({"base/1/1261": b"more"}, "base/1/1261 is not in its backup_manifest$"),
    ],
    ids=["flipped", "short", "missing", "extra"],
)
def test_a_backup_that_differs_from_its_manifest_is_refused(
    tmp_path: Path,
    make: Callable[[Path], Path],
    damage: dict[str, bytes | None],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {name: content for name, content in (FILES | damage).items() if content is not None}
    path = remake(tmp_path, make, files, monkeypatch)
    with pytest.raises(BackupDamaged, match=words):
        read(path)
    BaseBackup(path, ignore_manifest=True).verify(lambda size: None)


def test_a_file_that_has_become_shorter_while_it_was_read_is_refused(tmp_path: Path) -> None:
    backup = BaseBackup(as_folder(tmp_path))
    with pytest.raises(BackupDamaged, match="base/1/1259 has 0 bytes"):
        for entry in backup.entries():
            (tmp_path / "base/1/1259").write_bytes(b"")
            list(entry.pieces())


def test_what_is_written_after_a_backup_is_not_compared(tmp_path: Path) -> None:
    as_folder(tmp_path)
    for name in ("postgresql.auto.conf", "standby.signal", "pg_wal/000000020000000000000010", "postmaster.opts"):
        (tmp_path / name).write_bytes(b"primary_conninfo = ''\n")
    read(tmp_path)


def test_flipped_bytes_of_a_compressed_tar_are_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "backup_manifest").write_bytes(MANIFEST)
    content = bytearray(gzip.compress(tar_of(FILES | {"base/1/1259": os.urandom(5)}), mtime=0))
    for offset in range(20, len(content), 16):
        content[offset] ^= 0xFF
        (tmp_path / "base.tar.gz").write_bytes(content)
        with pytest.raises(ConfigurationError):
            read(tmp_path)
        content[offset] ^= 0xFF


def test_the_manifest_of_a_tar_that_was_written_to_standard_output_is_found_in_it(tmp_path: Path) -> None:
    (tmp_path / "base.tar").write_bytes(tar_of(FILES | {"base/1/1259": b"tablE", "backup_manifest": MANIFEST}))
    with pytest.raises(BackupDamaged, match="base/1/1259"):
        read(tmp_path / "base.tar")


def test_a_manifest_of_another_system_is_refused(tmp_path: Path) -> None:
    as_folder(tmp_path)
    (tmp_path / "backup_manifest").write_bytes(manifest_of({}, system_id=7))
    with pytest.raises(BackupDamaged, match=f"is of system 7, and its pg_control of {SYSTEM_ID}"):
        BaseBackup(tmp_path)


def test_a_backup_without_a_manifest_is_read_as_it_is(tmp_path: Path) -> None:
    as_folder(tmp_path)
    (tmp_path / "backup_manifest").unlink()
    backup = BaseBackup(tmp_path)
    assert (backup.manifest, backup.facts.end_lsn) == (None, 0)
    assert [entry for entry in backup.entries() if not entry.is_folder]


def test_an_ignored_manifest_still_reports_where_the_backup_ends_unless_it_is_damaged_itself(tmp_path: Path) -> None:
    as_folder(tmp_path)
    assert BaseBackup(tmp_path, ignore_manifest=True).facts.end_lsn == 0x9000120
    (tmp_path / "backup_manifest").write_bytes(MANIFEST.replace(b"1259", b"1258"))
    assert BaseBackup(tmp_path, ignore_manifest=True).facts.end_lsn == 0
    with pytest.raises(BackupDamaged, match="its own SHA-256"):
        BaseBackup(tmp_path)


def test_an_incremental_backup_is_refused(tmp_path: Path) -> None:
    as_folder(tmp_path)
    (tmp_path / "backup_label").write_text(LABEL + "INCREMENTAL FROM LSN: 0/7000028\nINCREMENTAL FROM TLI: 2\n")
    with pytest.raises(ConfigurationError, match=r"incremental backup.*pg_combinebackup"):
        BaseBackup(tmp_path)
