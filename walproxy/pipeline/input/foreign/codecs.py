"""The content of a file of an archive of another tool: decompressed, or refused with the reason.

A suffix names the compression; without one the first bytes show it. Encrypted files keep their suffixes in some tools,
so that the first bytes decide also there. Arrow decompresses, which the pipeline needs anyway; Python itself has xz.
"""

import io
import lzma
from typing import Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from walproxy.wal_sources.source import SourceCorrupt


class _Codec(NamedTuple):
    """A compression.

    Attributes:
        name: Arrow's, or "lzma" for Python's own.
        magic: the first bytes of a file; empty if the format has none.
    """

    name: str
    magic: bytes


_CODECS: Final = {
    "gz": _Codec("gzip", b"\x1f\x8b"),
    "bz2": _Codec("bz2", b"BZh"),
    "zst": _Codec("zstd", b"\x28\xb5\x2f\xfd"),
    "lz4": _Codec("lz4", b"\x04\x22\x4d\x18"),
    "xz": _Codec("lzma", b"\xfd7zXZ\x00"),
    "lzma": _Codec("lzma", b"\x5d\x00\x00"),
    "br": _Codec("brotli", b""),
}
SUFFIXES: Final = tuple(_CODECS)
# Those that no first byte of WAL and no text begins with.
_SHOWN: Final = tuple(codec for codec in _CODECS.values() if codec.magic)
_ENCRYPTED_SUFFIXES: Final = frozenset({"gpg", "pgp", "asc", "age", "enc", "aes", "crypt"})
# OpenSSL's format, which pgBackRest writes; age's; OpenPGP's armour and its packets with a session key.
_ENCRYPTED: Final = (
    *(b"Salted__", b"age-encryption", b"-----BEGIN PGP"),
    *(b"\x84", b"\x85", b"\x8c", b"\xc1", b"\xc3"),
)
_SNAPPY: Final = b"\xff\x06\x00\x00sNaPpY"
_SUPPORTED: Final = "gzip, bzip2, xz, zstd, lz4 and brotli are supported"


def read_plain(what: str, suffix: str, content: bytes, size: int) -> bytes:
    """Return the first `size` bytes that a file contains, or all if there are fewer.

    Args:
        what: the file, for a person.
        suffix: of its name, without the dot; may be empty.
        content: the file.

    Raises:
        ConfigurationError: it is encrypted, or its compression is not supported.
        SourceCorrupt: it is truncated or damaged.
    """
    codec = _codec_of(what, suffix, content)
    if codec is None:
        return content[:size]
    try:
        return _decompressed(codec, content, size)
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = str(error).partition("\n")[0]
        # Nothing but this failure shows that a file without a magic number is encrypted.
        cause = "truncated or damaged" if codec.magic else "truncated, damaged or encrypted"
        raise SourceCorrupt(f"{what} cannot be decompressed ({reason}): it is {cause}") from error


def _codec_of(what: str, suffix: str, content: bytes) -> _Codec | None:
    """Return the compression of a file, None if it is not compressed."""
    last = suffix.rpartition(".")[2].lower()
    if last in _ENCRYPTED_SUFFIXES:
        raise ConfigurationError(f"{what} is encrypted (.{last}): decrypt the archive first")
    if suffix and suffix not in _CODECS:
        raise ConfigurationError(f"{what} is compressed in an unknown way (.{suffix}): {_SUPPORTED}")
    if not content:
        raise SourceCorrupt(f"{what} is empty")
    codec = _CODECS[suffix] if suffix else next((each for each in _SHOWN if content.startswith(each.magic)), None)
    if codec is not None and codec.magic and content.startswith(codec.magic):
        return codec
    if content.startswith(_ENCRYPTED):
        raise ConfigurationError(f"{what} is encrypted: decrypt the archive first")
    if content.startswith(_SNAPPY):
        raise ConfigurationError(f"{what} is compressed with snappy: {_SUPPORTED}")
    if codec is not None and codec.magic:
        raise SourceCorrupt(f"{what} does not begin as a .{suffix} file does: it is encrypted or damaged")
    return codec


def _decompressed(codec: _Codec, content: bytes, size: int) -> bytes:
    if codec.name == "lzma":
        with lzma.LZMAFile(io.BytesIO(content)) as reader:
            return reader.read(size)
    with pa.CompressedInputStream(pa.BufferReader(content), codec.name) as stream:
        return bytes(stream.read(size))
