"""What a base backup says about itself, as a folder and as a tar."""

import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from safekeeper.errors import ConfigurationError
from walproxy.recovery.base_backup import BaseBackup, parse_label, write_entry

LABEL = """START WAL LOCATION: 0/9000028 (file 000000020000000000000009)
CHECKPOINT LOCATION: 0/9000080
BACKUP METHOD: streamed
BACKUP FROM: primary
START TIME: 2026-11-21 20:44:50 UTC
LABEL: pg_basebackup base backup
START TIMELINE: 2
"""
MANIFEST = """{"WAL-Ranges": [{"Timeline": 2, "Start-LSN": "0/9000028", "End-LSN": "0/9000120"}]}"""
SYSTEM_ID = 7_000_000_000_000_000_001
FILES = {
    "backup_label": LABEL.encode(),
    "PG_VERSION": b"17\n",
    "base/1/1259": b"table",
    "pg_wal/000000020000000000000009": b"wal",
    "global/pg_control": SYSTEM_ID.to_bytes(8, "little") + bytes(100),
    "postmaster.opts": b"leave me out",
}


def as_folder(place: Path) -> Path:
    for name, content in {**FILES, "backup_manifest": MANIFEST.encode()}.items():
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
    (place / "backup_manifest").write_text(MANIFEST)
    return place


def as_zstd(place: Path) -> Path:
    content = {name: content for name, content in FILES.items() if not name.startswith("pg_wal")}
    (place / "base.tar.zst").write_bytes(zstandard.compress(tar_of(content)))
    (place / "pg_wal.tar").write_bytes(tar_of({"000000020000000000000009": b"wal"}))
    (place / "backup_manifest").write_text(MANIFEST)
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
    assert wal == {"pg_wal/000000020000000000000009": 3}
    written: list[int] = []
    for entry in backup.entries():
        write_entry(entry, tmp_path / "target", written.append)
    assert (tmp_path / "target" / "base/1/1259").read_bytes() == b"table"
    assert (tmp_path / "target" / "PG_VERSION").stat().st_mode & 0o777 == 0o600
    assert sum(written) == sum(entry.size for entry in backup.entries())


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "base/../../evil"])
def test_an_entry_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "base.tar").write_bytes(tar_of({name: b"x", **FILES}))
    with pytest.raises(ConfigurationError, match=r"leads out|no base backup"):
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
    with pytest.raises(ValueError, match="does not say"):
        parse_label(LABEL.replace("START WAL", "STOP WAL"))
