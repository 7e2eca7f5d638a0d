"""Reads an archive, verified.

An object's receipt states the size and CRC-32C of its plain bytes. Both are checked while the object is read,
compressed or not, and its content is not returned, under its name or as a whole, before they match. An object that does
not match is corrupt, for whatever reason; another source must be tried.

An archiver removes partials once a longer file exists. So after ObjectMissing following a listing, list again.
"""

import contextlib
import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import msgspec
import zstandard

from safekeeper.archive.catalog import Catalog, best_first
from safekeeper.archive.objects import (
    HISTORY_FOLDER,
    MANIFEST_KEY,
    MANIFEST_VERSION,
    ArchivedFile,
    ArchivedObject,
    Listing,
    Manifest,
    history_file,
    parse_keys,
    wal_folder,
)
from safekeeper.archive.store import ObjectStore
from safekeeper.base.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveRefused,
    ObjectMissing,
    RemoteProtocolError,
    StorageFailed,
    StorageFull,
)
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, Lsn, segment_start
from safekeeper.base.timelines import PASSED_OVER_HISTORY, Lineage, is_passed_over, parse_timeline_history

_log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
_SOME_SEGMENT_SIZE = 16 << 20  # For listings without segments.


class ArchiveReader:
    """Reads an archive. Blocking, thread-safe.

    Attributes:
        store: the archive's store.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._manifest: Manifest | None = None

    def manifest(self) -> Manifest | None:
        """Return the manifest; None if there is no archive here yet. Read once; new readers see an `adopt`.

        Raises:
            ArchiveRefused: the manifest is not valid.
        """
        if self._manifest is None:
            self._manifest = read_manifest(self.store)
        return self._manifest

    def catalog(self) -> Catalog:
        """Return the content of the archive: list everything, and read the history files.

        A history file that does not match its receipt, or is not valid, is missing in the catalogue.

        Raises:
            ObjectMissing: there is no manifest, hence no archive.
        """
        manifest = self.manifest()
        if manifest is None:
            raise ObjectMissing(f"{self.store.url} is not an archive: {MANIFEST_KEY} is missing")
        listing = parse_keys(self.store.list(), manifest.segment_size)
        histories: dict[int, Lineage] = {}
        for archived in listing.objects:
            if archived.file.kind == "history":
                tli = archived.file.tli
                try:
                    histories[tli] = parse_timeline_history(tli, self.fetch_bytes(archived))
                except (ArchiveCorrupt, RemoteProtocolError, ObjectMissing) as error:
                    _log.warning("the history file of TLI %d is treated as missing: %s", tli, error)
        return Catalog(listing, manifest.segment_size, histories)

    def find(self, tli: int, begin_lsn: Lsn) -> ArchivedObject | None:
        """Return the file of `tli` for the segment that contains byte `begin_lsn`: whole, else the longest partial.

        One folder is listed.

        Raises:
            ArchiveConflict: there are two that differ.
        """
        candidates = self.candidates(tli, begin_lsn)
        return candidates[0] if candidates else None

    def candidates(self, tli: int, begin_lsn: Lsn) -> list[ArchivedObject]:
        """Return all objects from which `find` chooses, the best first, to try another when one is corrupt."""
        manifest = self.manifest()
        if manifest is None:
            return []
        folder = wal_folder(tli, begin_lsn, manifest.segment_size)
        segment = tli, segment_start(begin_lsn, manifest.segment_size)
        listing = parse_keys(self.store.list(folder), manifest.segment_size)
        found = [one for one in listing.objects if (one.file.tli, one.file.begin_lsn) == segment]
        if not found:
            for file, claims in listing.conflicts:
                if (file.tli, file.begin_lsn) == segment:
                    raise conflict(self.store, file, claims)
        return sorted(found, key=best_first)

    def fetch(self, archived: ArchivedObject, target: Path) -> None:
        """Write the plain bytes of an object to `target`, which is created with all of them or not at all.

        It is not synced: after a crash of the machine fetch it again.

        Raises:
            ArchiveCorrupt: the object does not match its receipt.
            ObjectMissing: the object does not exist.
            StorageFull, StorageFailed: `target` cannot be written.
        """
        temporary = None
        try:
            with _writing(target):
                descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123
                for piece in verified_pieces(self.store, archived):
                    with _writing(target):
                        _write_all(file.fileno(), piece)
            with _writing(target):
                os.replace(temporary, target)  # noqa: PTH105
            temporary = None
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    def fetch_bytes(self, archived: ArchivedObject) -> bytes:
        """Return the plain bytes of an object.

        Raises:
            As `fetch`.
        """
        return b"".join(verified_pieces(self.store, archived))

    def history(self, tli: int) -> bytes | None:
        """Return the history file of `tli`, one without ancestors if a promotion passed it over, None if there is none.

        Raises:
            ArchiveConflict: there are two that differ.
            ArchiveCorrupt: it does not match its receipt.
        """
        file = history_file(tli)
        listing: Listing = parse_keys(self.store.list(HISTORY_FOLDER), _SOME_SEGMENT_SIZE)
        for disputed, claims in listing.conflicts:
            if disputed == file:
                raise conflict(self.store, file, claims)
        archived = {one.file.tli: one for one in listing.objects}
        newest = max(archived, default=0)
        if tli not in archived and newest > tli and is_passed_over(tli, newest, self.fetch_bytes(archived[newest])):
            return PASSED_OVER_HISTORY
        return self.fetch_bytes(archived[tli]) if tli in archived else None


def read_manifest(store: ObjectStore) -> Manifest | None:
    """Return the manifest of the archive in `store`, None if it has none.

    Raises:
        ArchiveRefused: it is not valid (S11).
    """
    try:
        content = store.get(MANIFEST_KEY)
    except ObjectMissing:
        return None
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The error quotes the invalid part.
        said = one_line(str(error)[:200])
        raise ArchiveRefused(f"{store.url}/{MANIFEST_KEY} is invalid: {said}") from error
    size = manifest.segment_size
    if manifest.format_version != MANIFEST_VERSION:
        what = f"format version {manifest.format_version}; a newer walproxy wrote it"
    elif not SEGMENT_SIZE_MIN <= size <= SEGMENT_SIZE_MAX or size & (size - 1):
        what = f"segment size {size}"
    elif not manifest.cluster_ids:
        what = "no cluster"
    else:
        return manifest
    raise ArchiveRefused(f"{store.url}/{MANIFEST_KEY} is invalid: {what}")


def conflict(store: ObjectStore, file: ArchivedFile, claims: list[ArchivedObject]) -> ArchiveConflict:
    """Return the error for a file with receipts that contradict each other, or its name."""
    receipts = " and ".join(claim.receipt_key for claim in claims)
    return ArchiveConflict(
        f"the archive {store.url} contradicts itself about {file}: {receipts}; compare with the safekeepers' WAL"
    )


def verified_pieces(store: ObjectStore, archived: ArchivedObject) -> Iterator[bytes]:
    """Yield the plain bytes of an object. They are verified only once the iterator has ended.

    Raises:
        ArchiveCorrupt: they do not match the receipt; raised at once if there are more of them.
        ObjectMissing: the object does not exist.
    """
    crc32c, plain_bytes = 0, 0
    for piece in plain_pieces(store, archived):
        crc32c = google_crc32c.extend(crc32c, piece)
        plain_bytes += len(piece)
        if plain_bytes > archived.plain_bytes:
            raise ArchiveCorrupt(
                f"{store.url}/{archived.key} has more than the {archived.plain_bytes} bytes of its receipt"
            )
        yield piece
    if (crc32c, plain_bytes) != (archived.crc32c, archived.plain_bytes):
        raise ArchiveCorrupt(
            f"{store.url}/{archived.key} has {plain_bytes} bytes with the CRC-32C {crc32c:08X}, "
            f"but its receipt has {archived.plain_bytes} with {archived.crc32c:08X}"
        )


def plain_pieces(store: ObjectStore, archived: ArchivedObject) -> Iterator[bytes]:
    """Yield an object's content, decompressed if necessary, unverified.

    Raises:
        ArchiveCorrupt: it cannot be decompressed.
    """
    if not archived.compressed:
        yield from store.pieces(archived.key)
        return
    # Reading bounds the output: a few compressed bytes can expand to very many, which must not all be in memory.
    pieces = _PieceReader(store.pieces(archived.key))
    with zstandard.ZstdDecompressor().stream_reader(pieces) as reader:  # type: ignore[arg-type]
        while True:
            try:
                piece = reader.read(_PIECE_BYTES)
            except zstandard.ZstdError as error:
                raise ArchiveCorrupt(f"{store.url}/{archived.key} cannot be decompressed: {error}") from error
            if not piece:
                return
            yield piece


class _PieceReader:
    """The pieces as a file for zstandard: each read returns the next piece, whatever size is requested."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int) -> bytes:
        """Return the next piece, empty at the end."""
        return next(self._pieces, b"")


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Turn errors of the operating system about `target` into StorageFull or StorageFailed."""
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageFailed
        raise kind(f"cannot write {target}: {error.strerror}") from error


def _write_all(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
