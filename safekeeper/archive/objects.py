"""The objects of an archive and their names.

    manifest.json                                  identifies the archive's cluster
    wal/HIGH/NAME[.zst]                            a whole segment: PostgreSQL's name, its first 16 digits
    wal/HIGH/NAME.<end_lsn>.partial[.zst]          the bytes of an open segment up to end_lsn (16 hexadecimal digits)
    history/TTTTTTTT.history                       the history file of a timeline
    <key>.<CRC-32C>-<plain bytes>.receipt          beside each of these three: the object is whole and was read back

A key contains everything that is needed to use and to verify an object, so that a listing is a catalogue. An object
without a receipt is an upload that did not finish; it does not count. The same file, plain and compressed, is one file:
its CRC is that of the plain bytes. Two receipts of one file that differ are a conflict, and none of its objects is
used.

Pure: no I/O, no clock. Unknown names are reported, never guessed at (S11).
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from safekeeper.base.errors import LocalProtocolError
from safekeeper.base.lsn import Lsn, format_lsn, parse_segment_name, segment_name
from safekeeper.base.timelines import timeline_history_name

FileKind = Literal["segment", "partial", "history"]

MANIFEST_KEY = "manifest.json"
MANIFEST_VERSION = 1
WAL_FOLDER = "wal"
HISTORY_FOLDER = "history"
PROBE_FOLDER = "probe"
FOLDERS = (WAL_FOLDER, HISTORY_FOLDER, PROBE_FOLDER)
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})  # for the store of the objects

_COMPRESSED_SUFFIX = ".zst"
_WAL_KEY = re.compile(r"wal/([0-9A-F]{16})/(\1[0-9A-F]{8})(?:\.([0-9A-F]{16})\.partial)?(\.zst)?")
_HISTORY_KEY = re.compile(r"history/([0-9A-F]{8})\.history")
_RECEIPT_KEY = re.compile(r"(.+)\.([0-9A-F]{8})-(0|[1-9][0-9]{0,18})\.receipt")


class ObjectInfo(NamedTuple):
    """One object of a listing: its key, its size in bytes as it is stored, and when it was stored (seconds, Unix)."""

    key: str
    size: int
    modified: float


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest: it identifies an archive and its cluster.

    Attributes:
        cluster_ids: the clusters that may write here: the first one, and those that an operator adopted since.
        created_at: ISO 8601, UTC; informational.
        archive_id: random id of this archive, 32 hexadecimal digits.
    """

    system_id: int
    segment_size: int
    cluster_ids: tuple[str, ...]
    created_at: str
    archive_id: str = ""
    format_version: int = MANIFEST_VERSION


class ArchivedFile(NamedTuple):
    """A file to archive, whether compressed or not. Created by `segment_file`, `partial_file`, `history_file`.

    Attributes:
        begin_lsn, end_lsn: the range of its bytes; 0 for a history file.
        name: PostgreSQL's name of the file, without `.partial`.
    """

    kind: FileKind
    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn
    name: str

    @property
    def folder(self) -> str:
        """The folder of its objects and receipts."""
        return HISTORY_FOLDER if self.kind == "history" else f"{WAL_FOLDER}/{self.name[:16]}"

    @property
    def plain_bytes(self) -> int | None:
        """The size of its plain content; None for a history file, whose name does not contain it."""
        return None if self.kind == "history" else self.end_lsn - self.begin_lsn

    def key(self, compressed: bool) -> str:
        """Return the key of the object that contains this file. History files are too small to be compressed."""
        if self.kind == "history":
            return f"{HISTORY_FOLDER}/{self.name}"
        partial = f".{self.end_lsn:016X}.partial" if self.kind == "partial" else ""
        return f"{self.folder}/{self.name}{partial}{_COMPRESSED_SUFFIX if compressed else ''}"

    def __str__(self) -> str:
        """Return its name in messages."""
        return f"{self.name} up to {format_lsn(self.end_lsn)}" if self.kind == "partial" else self.name


class ArchivedObject(NamedTuple):
    """An object that has a receipt.

    Attributes:
        crc32c, plain_bytes: of its plain content.
        compressed: it contains zstd of the plain content.
    """

    file: ArchivedFile
    key: str
    crc32c: int
    plain_bytes: int
    compressed: bool

    @property
    def receipt_key(self) -> str:
        """The key of its receipt."""
        return f"{self.key}.{self.crc32c:08X}-{self.plain_bytes}.receipt"


class Listing(NamedTuple):
    """The evaluated content of a listing.

    Attributes:
        objects: objects with a receipt, none of them in conflict; by file.
        unconfirmed: keys of objects that have no receipt.
        strangers: keys that are not an archive's.
        conflicts: files with receipts that contradict each other, or the size that such a file has.
        lost: receipts whose object does not exist.
    """

    objects: list[ArchivedObject]
    unconfirmed: list[str]
    strangers: list[str]
    conflicts: list[tuple[ArchivedFile, list[ArchivedObject]]]
    lost: list[ArchivedObject]


def segment_file(tli: int, begin_lsn: Lsn, segment_size: int) -> ArchivedFile:
    """Return the whole segment of `tli` that begins at `begin_lsn`."""
    _check_begin(begin_lsn, segment_size)
    name = segment_name(tli, begin_lsn, segment_size)
    return ArchivedFile("segment", tli, begin_lsn, begin_lsn + segment_size, name)


def partial_file(tli: int, begin_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> ArchivedFile:
    """Return the bytes [begin_lsn, end_lsn) of the open segment of `tli` that begins at `begin_lsn`."""
    _check_begin(begin_lsn, segment_size)
    if not begin_lsn < end_lsn < begin_lsn + segment_size:
        raise LocalProtocolError(f"{format_lsn(begin_lsn)} to {format_lsn(end_lsn)} is not part of one segment")
    return ArchivedFile("partial", tli, begin_lsn, end_lsn, segment_name(tli, begin_lsn, segment_size))


def history_file(tli: int) -> ArchivedFile:
    """Return the history file of `tli`."""
    return ArchivedFile("history", tli, 0, 0, timeline_history_name(tli))


def wal_folder(tli: int, lsn: Lsn, segment_size: int) -> str:
    """Return the folder of the segment of `tli` that contains byte `lsn`."""
    return f"{WAL_FOLDER}/{segment_name(tli, lsn, segment_size)[:16]}"


def parse_object_key(key: str, segment_size: int) -> tuple[ArchivedFile, bool] | None:
    """Return the file in the object at `key`, and whether it is compressed; None for any other key, receipts too."""
    history = _HISTORY_KEY.fullmatch(key)
    if history is not None:
        tli = int(history[1], 16)
        return (history_file(tli), False) if tli else None
    wal = _WAL_KEY.fullmatch(key)
    named = parse_segment_name(wal[2], segment_size) if wal is not None else None
    if wal is None or named is None:
        return None
    tli, begin_lsn = named
    if wal[3] is None:
        return segment_file(tli, begin_lsn, segment_size), wal[4] is not None
    end_lsn = int(wal[3], 16)
    if not begin_lsn < end_lsn < begin_lsn + segment_size:
        return None
    return partial_file(tli, begin_lsn, end_lsn, segment_size), wal[4] is not None


def parse_keys(infos: Iterable[ObjectInfo], segment_size: int) -> Listing:
    """Evaluate the keys of a listing; the manifest and leftovers of a probe are ignored."""
    data: dict[str, tuple[ArchivedFile, bool]] = {}
    receipts: list[ArchivedObject] = []
    strangers = []
    for key in sorted(info.key for info in infos):
        if key == MANIFEST_KEY or key.startswith(f"{PROBE_FOLDER}/"):
            continue
        receipt = _RECEIPT_KEY.fullmatch(key)
        parsed = parse_object_key(receipt[1] if receipt else key, segment_size)
        if parsed is None:
            strangers.append(key)
        elif receipt is None:
            data[key] = parsed
        else:
            file, compressed = parsed
            receipts.append(ArchivedObject(file, receipt[1], int(receipt[2], 16), int(receipt[3]), compressed))
    return _match(data, receipts, strangers)


def _match(data: dict[str, tuple[ArchivedFile, bool]], receipts: list[ArchivedObject], strangers: list[str]) -> Listing:
    """Match objects and receipts, by file."""
    by_file: dict[ArchivedFile, list[ArchivedObject]] = {}
    for receipt in receipts:
        by_file.setdefault(receipt.file, []).append(receipt)
    listing = Listing([], [], strangers, [], [])
    for file in sorted(by_file):
        claims = by_file[file]
        if len({(claim.crc32c, claim.plain_bytes) for claim in claims}) > 1 or (
            file.plain_bytes not in (None, claims[0].plain_bytes)
        ):
            listing.conflicts.append((file, claims))
        else:
            listing.objects.extend(claim for claim in claims if claim.key in data)
        listing.lost.extend(claim for claim in claims if claim.key not in data)
    confirmed = {receipt.key for receipt in receipts}
    listing.unconfirmed.extend(key for key in data if key not in confirmed)
    return listing


def _check_begin(begin_lsn: Lsn, segment_size: int) -> None:
    if begin_lsn % segment_size:
        raise LocalProtocolError(f"{format_lsn(begin_lsn)} is not the start of a segment")
