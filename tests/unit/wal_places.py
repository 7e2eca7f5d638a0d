"""Logs of small records, and the archives and folders that they lie in, for the tests of what reads them."""

import random
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import msgspec
import zstandard

from safekeeper.archive.objects import (
    ArchivedFile,
    ArchivedObject,
    Manifest,
    history_file,
    partial_file,
    segment_file,
)
from safekeeper.archive.store import ObjectStore
from safekeeper.base.lsn import Lsn, segment_name
from safekeeper.base.timelines import Lineage, format_timeline_history, timeline_history_name
from tests.unit.record_bodies import of_length
from tests.unit.wal_builder import MIB, WalBuilder


def make_log(
    end_lsn: Lsn, *, begin_lsn: Lsn = MIB, seed: int = 1, longest: int = 30_000, system_id: int = 7
) -> WalBuilder:
    """Return WAL of records of up to `longest` bytes, up to the first record that ends at or behind `end_lsn`."""
    wal = WalBuilder(begin_lsn=begin_lsn, system_id=system_id)
    return extend(wal, end_lsn, seed=seed, longest=longest)


def extend(wal: WalBuilder, end_lsn: Lsn, *, seed: int = 1, longest: int = 30_000) -> WalBuilder:
    """Add records."""
    rng = random.Random(seed)
    while wal.position < end_lsn:
        wal.add(of_length(rng.randrange(3, longest)), xid=rng.randrange(3, 1000))
    return wal


def fork(wal: WalBuilder, tli: int) -> WalBuilder:
    """Return the log of a timeline that leaves `wal` where it ends now; its next page is the first of that timeline."""
    child = WalBuilder(wal.begin_lsn, wal.segment_size, wal.major, tli, wal.system_id, wal.previous_lsn)
    child.data += wal.data + bytes(-len(wal.data) % 8)
    child.records += wal.records
    return child


class ArchiveMaker:
    """Writes an archive as safekeepers do.

    Attributes:
        store: where it is.
    """

    def __init__(self, store: ObjectStore, *, system_id: int = 7, segment_size: int = MIB) -> None:
        self.store = store
        self._segment_size = segment_size
        manifest = Manifest(system_id, segment_size, ("c",), "2026-01-01T00:00:00+00:00")
        store.put("manifest.json", msgspec.json.encode(manifest), absent=True)

    def put(self, file: ArchivedFile, content: bytes, *, compressed: bool = False) -> ArchivedObject:
        """Store an object and its receipt."""
        archived = ArchivedObject(file, file.key(compressed), google_crc32c.value(content), len(content), compressed)
        self.store.put(archived.key, zstandard.compress(content) if compressed else content, absent=False)
        self.store.put(archived.receipt_key, b"{}", absent=False)
        return archived

    def put_segment(self, wal: WalBuilder, begin_lsn: Lsn, *, compressed: bool = False) -> ArchivedObject:
        """Archive a whole segment."""
        size = self._segment_size
        content = wal.read(begin_lsn, begin_lsn + size)
        return self.put(segment_file(wal.tli, begin_lsn, size), content, compressed=compressed)

    def put_partial(self, wal: WalBuilder, begin_lsn: Lsn, end_lsn: Lsn, *, compressed: bool = False) -> ArchivedObject:
        """Archive the open segment up to `end_lsn`."""
        file = partial_file(wal.tli, begin_lsn, end_lsn, self._segment_size)
        return self.put(file, wal.read(begin_lsn, end_lsn), compressed=compressed)

    def put_all(self, wal: WalBuilder, *, compressed: bool = False) -> None:
        """Archive a log."""
        for begin_lsn in range(wal.begin_lsn, wal.position, self._segment_size):
            if begin_lsn + self._segment_size <= wal.position:
                self.put_segment(wal, begin_lsn, compressed=compressed)
            else:
                self.put_partial(wal, begin_lsn, wal.position, compressed=compressed)

    def put_history(self, tli: int, lineage: Lineage) -> None:
        """Archive a history file."""
        self.put(history_file(tli), format_timeline_history(lineage))


def write_segments(folder: Path, wal: WalBuilder, begin_lsns: Sequence[Lsn] = (), suffix: str = "") -> None:
    """Write segments of full size, as a server does: zeros follow where the log ends."""
    size = wal.segment_size
    for begin_lsn in begin_lsns or range(wal.begin_lsn, wal.position, size):
        content = wal.read(begin_lsn, min(begin_lsn + size, wal.position))
        path = folder / f"{segment_name(wal.tli, begin_lsn, size)}{suffix}"
        path.write_bytes(content + bytes(size - len(content)))


def write_history(folder: Path, tli: int, lineage: Lineage) -> None:
    """Write a history file."""
    (folder / timeline_history_name(tli)).write_bytes(format_timeline_history(lineage))
