"""Bytes of one object of an archive, into memory: the whole object, or a part of it.

A request for half of an object or more reads all of it, and compares it with its receipt. Less than that is read
by itself, and not compared: records have checksums of their own. A compressed object is decompressed from its beginning
until enough has come.

A local folder is read through the operating system's cache, since the same question is often asked again.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Protocol

import google_crc32c
import zstandard

from safekeeper.archive.objects import ArchivedObject
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.store_errors import translated
from safekeeper.base.errors import ArchiveCorrupt

_READ_BYTES = 1 << 20


def read_object(store: ObjectStore, archived: ArchivedObject, begin: int, end: int, into: memoryview) -> None:
    """Put the plain bytes [begin, end) of an object into `into`.

    Raises:
        ArchiveCorrupt: the object is too short, cannot be decompressed, or is not what its receipt states.
        ObjectMissing: it is gone.
    """
    if end - begin == archived.plain_bytes:
        _read_whole(store, archived, into)
    elif (end - begin) * 2 >= archived.plain_bytes:
        whole = memoryview(bytearray(archived.plain_bytes))
        _read_whole(store, archived, whole)
        into[:] = whole[begin:end]
    elif archived.compressed:
        _decompress(store, archived, begin, into)
    else:
        _read_plain(store, archived, begin, into)


def _read_whole(store: ObjectStore, archived: ArchivedObject, into: memoryview) -> None:
    if archived.compressed:
        _decompress(store, archived, 0, into)
    elif store.folder is None:
        filled = 0
        for piece in store.pieces(archived.key):
            if filled + len(piece) > len(into):
                raise _too_long(store, archived)
            into[filled : filled + len(piece)] = piece
            filled += len(piece)
        if filled < len(into):
            raise _too_short(store, archived, filled)
    else:
        _read_plain(store, archived, 0, into)
    # It takes neither a memoryview nor a bytearray; an array of ctypes over the same memory costs no copy.
    crc32c = google_crc32c.value((ctypes.c_ubyte * len(into)).from_buffer(into))
    if crc32c != archived.crc32c:
        raise _has(store, archived, f"the CRC-32C {crc32c:08X}, but its receipt has {archived.crc32c:08X}")


def _read_plain(store: ObjectStore, archived: ArchivedObject, begin: int, into: memoryview) -> None:
    if store.folder is None:
        found = store.part(archived.key, begin, begin + len(into))
        if len(found) < len(into):
            raise _too_short(store, archived, begin + len(found))
        into[:] = found
        return
    with _opened(store, archived.key) as file:
        if os.fstat(file.fileno()).st_size > archived.plain_bytes:
            raise _too_long(store, archived)
        filled = read_at(file.fileno(), begin, into)
    if filled < len(into):
        raise _too_short(store, archived, begin + filled)


def read_at(descriptor: int, offset: int, into: memoryview) -> int:
    """Fill `into` from a file's `offset` on; return how many bytes there were. Raises OSError."""
    filled = 0
    while filled < len(into):
        count = os.preadv(descriptor, [into[filled:]], offset + filled)
        if not count:
            break
        filled += count
    return filled


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Pieces:
    """Pieces as a file: a read returns the next piece, whatever its requested size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int, /) -> bytes:
        return next(self._pieces, b"")


def _decompress(store: ObjectStore, archived: ArchivedObject, begin: int, into: memoryview) -> None:
    """Decompress until `into` is full, passing over the first `begin` bytes."""
    if store.folder is None:
        stream = store.stream(archived.key)
        try:
            _inflate(store, archived, _Pieces(stream), begin, into)
        finally:
            stream.close()  # The rest is not needed.
        return
    with _opened(store, archived.key) as file:
        _inflate(store, archived, file, begin, into)


def _inflate(store: ObjectStore, archived: ArchivedObject, source: _Readable, begin: int, into: memoryview) -> None:
    try:
        with zstandard.ZstdDecompressor().stream_reader(source, read_size=_READ_BYTES) as reader:  # type: ignore[arg-type]
            skipped, scratch = 0, bytearray(min(begin, _READ_BYTES))
            while skipped < begin:
                count = reader.readinto(memoryview(scratch)[: begin - skipped])
                if not count:
                    raise _too_short(store, archived, skipped)
                skipped += count
            filled = 0
            while filled < len(into):
                count = reader.readinto(into[filled:])
                if not count:
                    raise _too_short(store, archived, begin + filled)
                filled += count
            if begin + filled == archived.plain_bytes and reader.read(1):
                raise _too_long(store, archived)
    except zstandard.ZstdError as error:
        raise ArchiveCorrupt(f"{_name(store, archived)} cannot be decompressed: {error}") from error


@contextmanager
def _opened(store: ObjectStore, key: str) -> Iterator[FileIO]:
    """Open an object of a local folder; an error of the system becomes one of the archive."""
    try:
        with FileIO(Path(store.folder or "") / key) as file:
            yield file
    except OSError as error:
        raise translated(error, f"get {store.url}/{key}") from error


def _name(store: ObjectStore, archived: ArchivedObject) -> str:
    return f"{store.url.rstrip('/')}/{archived.key}"


def _has(store: ObjectStore, archived: ArchivedObject, what: str) -> ArchiveCorrupt:
    return ArchiveCorrupt(f"{_name(store, archived)} has {what}")


def _too_long(store: ObjectStore, archived: ArchivedObject) -> ArchiveCorrupt:
    return _has(store, archived, f"more than the {archived.plain_bytes} bytes it should")


def _too_short(store: ObjectStore, archived: ArchivedObject, found: int) -> ArchiveCorrupt:
    return _has(store, archived, f"{found} bytes where {archived.plain_bytes} are expected")
