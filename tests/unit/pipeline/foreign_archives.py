"""Archives as WAL-G, pgBackRest and Barman store them, for the tests of what reads them."""

import bz2
import gzip
import hashlib
import lzma
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import zstandard

from safekeeper.base.lsn import Lsn, segment_name
from safekeeper.base.timelines import Lineage, format_timeline_history, timeline_history_name
from tests.unit.wal_builder import MIB, WalBuilder
from tests.unit.wal_places import extend, make_log


def _by_arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(content: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(content)
        return bytes(sink.getvalue())

    return compress


COMPRESS: dict[str, Callable[[bytes], Any]] = {
    "": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda content: lzma.compress(content, format=lzma.FORMAT_ALONE),
    "zst": zstandard.compress,
    "lz4": _by_arrow("lz4"),
    "br": _by_arrow("brotli"),
}


class Tool(NamedTuple):
    """How a tool stores segments.

    Attributes:
        root: below the folder that an operator names.
        has_folders: segments are stored in folders, by the first 16 digits of their names.
        has_sha1: the name has the segment's SHA-1.
        has_suffix: the name has a suffix for the compression.
        suffixes: its compressions.
        ancestors: folders of the root from which the archive can be read, too.
    """

    root: str
    has_folders: bool
    has_sha1: bool
    has_suffix: bool
    suffixes: tuple[str, ...]
    ancestors: tuple[str, ...]

    def key(self, name: str, content: bytes, suffix: str) -> str:
        """Return where a segment is stored."""
        folder = f"{name[:16]}/" if self.has_folders else ""
        sha1 = f"-{hashlib.sha1(content).hexdigest()}" if self.has_sha1 else ""
        return f"{self.root}/{folder}{name}{sha1}{f'.{suffix}' if suffix and self.has_suffix else ''}"

    def objects(self, wal: WalBuilder, suffix: str, begin_lsns: tuple[Lsn, ...] = ()) -> Iterator[tuple[str, bytes]]:
        """Yield the key and the content of each segment of a log, or of those that begin at `begin_lsns`."""
        for begin_lsn in begin_lsns or range(wal.begin_lsn, wal.position, wal.segment_size):
            content = segment(wal, begin_lsn)
            name = segment_name(wal.tli, begin_lsn, wal.segment_size)
            yield self.key(name, content, suffix), COMPRESS[suffix](content)

    def history(self, tli: int, lineage: Lineage, suffix: str = "") -> tuple[str, bytes]:
        """Return the key and the content of a history file."""
        name = f"{self.root}/{timeline_history_name(tli)}{f'.{suffix}' if suffix else ''}"
        return name, COMPRESS[suffix](format_timeline_history(lineage))


TOOLS = {
    "walg": Tool("wal_005", False, False, True, ("lz4", "lzma", "zst", "br", "gz", ""), ("wal_005",)),
    "pgbackrest": Tool(
        *("archive/main/17-1", True, True, True, ("gz", "lz4", "zst", "bz2", "")),
        ("archive", "archive/main", "archive/main/17-1"),
    ),
    "barman": Tool("wals", True, False, False, ("gz", "bz2", "xz", "zst", "lz4", ""), ("wals",)),
    "barman-cloud": Tool("wals", True, False, True, ("gz", "bz2", "xz", "zst", "lz4", ""), ("wals",)),
}
KINDS = [(tool, suffix) for tool, made in TOOLS.items() for suffix in made.suffixes]


def segment(wal: WalBuilder, begin_lsn: Lsn) -> bytes:
    """Return a segment as PostgreSQL archives it: whole, with zeros after a switch."""
    end_lsn = begin_lsn + wal.segment_size
    return wal.read(begin_lsn, min(end_lsn, wal.position)) + bytes(max(end_lsn - wal.position, 0))


def whole_log(segments: int = 3) -> WalBuilder:
    """Return a log in segments of 1 MiB from the second one on, whose last one was switched."""
    wal = make_log((segments + 1) * MIB - 300_000)
    wal.switch()
    return wal


def forked_log(wal: WalBuilder) -> WalBuilder:
    """Add to the log of a timeline that left another one, and switch."""
    extend(wal, wal.position + 600_000, seed=5)
    wal.switch()
    return wal
