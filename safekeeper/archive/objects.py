"""What lies in an archive, and how it is named.

    manifest.json                                  whose archive this is
    wal/HIGH/NAME[.zst]                            a whole segment: PostgreSQL's name, its first 16 digits
    wal/HIGH/NAME.<end_lsn>.partial[.zst]          the bytes of an open segment up to end_lsn (16 hexadecimal digits)
    history/TTTTTTTT.history                       the history file of a timeline
    <key>.<CRC-32C>-<plain bytes>.receipt          beside each of these three: the object is whole and was read back

A key says everything that is needed to use and to verify an object, so that a listing is a catalogue. An object without
a receipt is an upload that did not finish; it counts for nothing. The same file, plain and compressed, is one file:
its CRC is that of the plain bytes. Two receipts of one file that differ are a conflict, and nothing of it is used.

Pure: no I/O, no clock. Names that are not understood are reported, never guessed at (S11).
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from safekeeper.lsn import Lsn

FileKind = Literal["segment", "partial", "history"]

MANIFEST_KEY = "manifest.json"
MANIFEST_VERSION = 1
WAL_FOLDER = "wal"
HISTORY_FOLDER = "history"
PROBE_FOLDER = "probe"


class ObjectInfo(NamedTuple):
    """One object of a listing: its key, its size in bytes as it is stored, and when it was stored (seconds, Unix)."""

    key: str
    size: int
    modified: float


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose archive it is.

    Attributes:
        cluster_ids: the clusters that may write here: the first one, and those that an operator adopted since.
        created_at: ISO 8601, UTC; for people.
    """

    system_id: int
    segment_size: int
    cluster_ids: tuple[str, ...]
    created_at: str
    format_version: int = MANIFEST_VERSION


class ArchivedFile(NamedTuple):
    """What is archived, whether compressed or not. Made by `segment_file`, `partial_file`, `history_file`.

    Attributes:
        begin_lsn, end_lsn: the bytes that it holds; 0 for a history file.
        name: PostgreSQL's name of the file, without `.partial`.
    """

    kind: FileKind
    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn
    name: str

    @property
    def folder(self) -> str:
        """The folder that its objects and receipts lie in."""
        raise NotImplementedError

    def key(self, compressed: bool) -> str:
        """Return the key of the object that holds this file."""
        raise NotImplementedError


class ArchivedObject(NamedTuple):
    """An object that has a receipt.

    Attributes:
        crc32c, plain_bytes: of its plain content.
        compressed: it holds zstd of the plain content.
    """

    file: ArchivedFile
    key: str
    crc32c: int
    plain_bytes: int
    compressed: bool

    @property
    def receipt_key(self) -> str:
        """The key of its receipt."""
        raise NotImplementedError


class Listing(NamedTuple):
    """What a listing holds.

    Attributes:
        objects: objects with a receipt, none of them in conflict; by file.
        unconfirmed: keys of objects that have no receipt.
        strangers: keys that mean nothing here.
        conflicts: files with receipts that contradict each other, or the size that such a file has.
        lost: keys of receipts whose object is not there.
    """

    objects: list[ArchivedObject]
    unconfirmed: list[str]
    strangers: list[str]
    conflicts: list[tuple[ArchivedFile, list[ArchivedObject]]]
    lost: list[str]


def segment_file(tli: int, begin_lsn: Lsn, segment_size: int) -> ArchivedFile:
    """Return the whole segment of `tli` that begins at `begin_lsn`."""
    raise NotImplementedError


def partial_file(tli: int, begin_lsn: Lsn, end_lsn: Lsn, segment_size: int) -> ArchivedFile:
    """Return the bytes [begin_lsn, end_lsn) of the open segment of `tli` that begins at `begin_lsn`."""
    raise NotImplementedError


def history_file(tli: int) -> ArchivedFile:
    """Return the history file of `tli`."""
    raise NotImplementedError


def wal_folder(tli: int, lsn: Lsn, segment_size: int) -> str:
    """Return the folder of the segment of `tli` that holds byte `lsn`."""
    raise NotImplementedError


def parse_keys(infos: Iterable[ObjectInfo], segment_size: int) -> Listing:
    """Return what the objects of a listing are; the manifest and what a probe left behind are passed over."""
    raise NotImplementedError
