"""Manifests of base backups, as PostgreSQL writes them."""

import hashlib
import json
from typing import Any

import google_crc32c

CHECKSUMS = {
    "CRC32C": lambda content: google_crc32c.value(content).to_bytes(4, "little").hex(),
    **{
        f"SHA{bits}": lambda content, bits=bits: hashlib.new(f"sha{bits}", content).hexdigest()
        for bits in (224, 256, 384, 512)
    },
}


def file_of(path: str, content: bytes, algorithm: str = "CRC32C") -> dict[str, Any]:
    """Return the entry of one file; with the algorithm NONE it has no checksum."""
    entry: dict[str, Any] = {"Path": path, "Size": len(content), "Last-Modified": "2026-11-21 20:44:50 GMT"}
    if algorithm != "NONE":
        entry |= {"Checksum-Algorithm": algorithm, "Checksum": CHECKSUMS[algorithm](content)}
    return entry


def manifest_of(files: dict[str, bytes], *, system_id: int | None = None, algorithm: str = "CRC32C") -> bytes:
    """Return a manifest of `files`; of version 2 with a system identifier."""
    return written([file_of(path, content, algorithm) for path, content in files.items()], system_id=system_id)


def written(files: list[dict[str, Any]], *, system_id: int | None = None, version: int | None = None) -> bytes:
    """Return a manifest of these entries, with its own checksum."""
    system = f'"System-Identifier": {system_id},\n' if system_id is not None else ""
    text = (
        f'{{ "PostgreSQL-Backup-Manifest-Version": {version or (1 if system_id is None else 2)},\n{system}"Files": [\n'
        + ",\n".join(json.dumps(each) for each in files)
        + '\n],\n"WAL-Ranges": [\n{ "Timeline": 2, "Start-LSN": "0/9000028", "End-LSN": "0/9000120" }\n],\n'
    )
    return f'{text}"Manifest-Checksum": "{hashlib.sha256(text.encode()).hexdigest()}"}}\n'.encode()
