"""The backup_manifest: its own checksum, its two versions, its checksums, its paths."""

from pathlib import Path, PurePosixPath

import pytest

from tests.unit.backup_manifests import file_of, manifest_of, written
from walproxy.recovery.backup_manifest import BackupDamaged, ManifestCheck, parse_manifest

TABLE = PurePosixPath("base/1/1259")


def check(manifest: bytes, content: bytes, path: PurePosixPath = TABLE) -> None:
    comparison = ManifestCheck(parse_manifest(manifest), Path("/backup"))
    comparison.found(path, len(content))
    assert b"".join(comparison.checked(path, iter([content[:3], content[3:]]))) == content
    comparison.finish()


@pytest.mark.parametrize("algorithm", ["CRC32C", "SHA224", "SHA256", "SHA384", "SHA512"])
def test_every_checksum_of_postgresql_is_compared(algorithm: str) -> None:
    manifest = manifest_of({str(TABLE): b"table"}, algorithm=algorithm)
    check(manifest, b"table")
    with pytest.raises(BackupDamaged, match=f"the {algorithm} of base/1/1259 is"):
        check(manifest, b"tablE")


def test_the_crc_is_that_of_postgresql() -> None:
    # As PostgreSQL 15 wrote it for a PG_VERSION of "15\\n".
    entry = file_of("PG_VERSION", b"15\n") | {"Checksum": "8a744722"}
    check(written([entry]), b"15\n", PurePosixPath("PG_VERSION"))


def test_without_checksums_sizes_are_compared() -> None:
    manifest = manifest_of({str(TABLE): b"table"}, algorithm="NONE")
    check(manifest, b"tablE")
    with pytest.raises(BackupDamaged, match="has 6 bytes"):
        check(manifest, b"tables")


def test_both_versions_are_read() -> None:
    assert parse_manifest(manifest_of({})).system_id is None
    assert parse_manifest(manifest_of({}, system_id=7)).system_id == 7
    assert parse_manifest(manifest_of({})).end_lsn == 0x9000120


def test_a_path_that_is_no_utf_8_is_encoded() -> None:
    entry = file_of("", b"table") | {"Encoded-Path": b"b\xffse".hex()}
    del entry["Path"]
    check(written([entry]), b"table", PurePosixPath("b\udcffse"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "JSON is invalid"),
        (b"{", "JSON is invalid"),
        (manifest_of({}) + b"\xff", "JSON is invalid"),
        (manifest_of({"a": b""}).replace(b'"a"', b'"b"'), "its own SHA-256 is"),
        (manifest_of({}).replace(b"}\n", b"\n}\n"), "its last line"),
        (written([], version=3), "version 3"),
        (written([file_of("a", b""), file_of("a", b"")]), "lists a twice"),
        (written([{"Size": 1}]), "without a path"),
        (written([file_of("a", b"") | {"Checksum-Algorithm": "MD5"}]), "MD5"),
        (written([file_of("a", b"") | {"Checksum": "no"}]), "non-hexadecimal"),
        (written([{"Encoded-Path": "x", "Size": 1}]), "non-hexadecimal"),
    ],
)
def test_a_manifest_that_is_damaged_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_manifest(content)


def test_the_number_of_missing_files_is_reported() -> None:
    comparison = ManifestCheck(parse_manifest(manifest_of({"a": b"", "b": b"", "c": b""})), Path("/backup"))
    comparison.found(PurePosixPath("b"), 0)
    with pytest.raises(BackupDamaged, match=r"a, which its backup_manifest lists, is missing, and so are 1 more$"):
        comparison.finish()


def test_a_file_that_a_tar_has_twice_is_refused() -> None:
    comparison = ManifestCheck(parse_manifest(manifest_of({str(TABLE): b"table"})), Path("/backup"))
    comparison.found(TABLE, 5)
    with pytest.raises(BackupDamaged, match="it has base/1/1259 twice"):
        comparison.found(TABLE, 5)
