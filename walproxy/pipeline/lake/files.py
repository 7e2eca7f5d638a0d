"""Parquet files of a table: each is written under a name that no file had.

In an object store a file is written to memory, or to a temporary file if it is large, and then stored whole with one
put: an object appears complete or not at all. In a folder it is written to its place, and synced. A file of a task that
was killed is not part of the table, because no commit names it.
"""

import tempfile
import uuid
from collections.abc import Iterable, Iterator
from typing import IO, Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import ConfigurationError, ObjectMissing
from walproxy.pipeline.lake.disk import storage_errors
from walproxy.pipeline.lake.location import LakeLocation, Store
from walproxy.pipeline.lake.parquet_files import DataFile, Footer, first_line, footer_of, write_parquet, write_rows

_WHOLE_MAX_BYTES: Final = 64 << 20
"""What is stored with one request."""

_PIECE_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 64 << 10
"""What is read of the end of a file at first: nearly all footers are shorter."""

_MAGIC_BYTES: Final = 8


class NewLakeFile(NamedTuple):
    """Where a task writes a file. Can be pickled. Every attempt of a task gets a file of its own.

    Attributes:
        location: of the table.
        stem: how the file's name begins.
        schema: the table's.
    """

    location: LakeLocation
    stem: str
    schema: pa.Schema

    def write(self, batches: Iterable[pa.RecordBatch]) -> DataFile | None:
        """Store the batches as a new file, durably; None, and no file, if there are no rows.

        In a folder the file's name is on disk when the folder was synced, which `LakeTable.commit` does.

        Returns:
            the file; its path is the key within the table.

        Raises:
            ConfigurationError: a batch has other columns than the table.
            StorageFull, StorageFailed, ArchiveError.
        """
        key = f"{self.stem}-{uuid.uuid4().hex}.parquet"
        if self.location.folder is not None:
            path = self.location.folder / key
            written = write_parquet(str(path), batches, self.schema)
            if written.rows == 0:
                path.unlink()
                return None
            return written._replace(path=key)
        with tempfile.SpooledTemporaryFile(max_size=_WHOLE_MAX_BYTES) as file:
            rows = write_rows(pa.PythonFile(file, "w"), batches, self.schema)
            if rows == 0:
                return None
            size = file.tell()
            file.seek(0)
            # No other object has this name, so that no condition is needed.
            self.location.store().put(key, file.read() if size <= _WHOLE_MAX_BYTES else _pieces(file), absent=False)
        return DataFile(key, rows, size)

    def remove(self, file: DataFile) -> None:
        """Remove a file that `write` has returned and that is not to be committed."""
        self.location.store().delete([file.path])


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def read_footer_of(store: Store, file: DataFile) -> Footer:
    """Return the content of the footer of a stored file, whose size must be the given one. See `read_end_of`."""
    return read_end_of(store, file)[0]


def read_end_of(store: Store, file: DataFile) -> tuple[Footer, bytes]:
    """Return the content of the footer of a stored file, and the end of the file with it.

    Raises:
        ConfigurationError: it is not there, has another size than the given one, or is not a Parquet file.
        ArchiveError: the store.
    """
    import pyarrow.parquet as pq

    name = f"{store.url}/{file.path}"
    tail = _tail(store, file, min(file.bytes, _TAIL_BYTES))
    length = int.from_bytes(tail[-_MAGIC_BYTES : -_MAGIC_BYTES // 2], "little") + _MAGIC_BYTES
    if len(tail) < length <= file.bytes:
        tail = _tail(store, file, length)
    try:
        with pq.ParquetFile(pa.BufferReader(tail)) as parquet:
            return footer_of(parquet.metadata, parquet.schema_arrow, file.bytes), tail
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{name} is not a Parquet file, or is truncated: {first_line(error)}") from error


def _tail(store: Store, file: DataFile, length: int) -> bytes:
    try:
        found = store.part(file.path, file.bytes - length, file.bytes + 1)
    except ObjectMissing as error:
        raise ConfigurationError(f"{store.url}/{file.path} is missing: write it again") from error
    if len(found) != length:
        raise ConfigurationError(f"{store.url}/{file.path} does not have {file.bytes} bytes: write it again")
    return found


def read_batches(location: LakeLocation, file: DataFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file. One in an object store is in memory as a whole meanwhile.

    Raises:
        ConfigurationError: it is not a Parquet file.
        StorageFailed, ArchiveError: it cannot be read.
    """
    import pyarrow.parquet as pq

    store = location.store()
    folder = location.folder
    with storage_errors(f"read {location}/{file.path}"):
        source = pa.BufferReader(store.get(file.path)) if folder is None else pa.OSFile(str(folder / file.path))
        try:
            with source, pq.ParquetFile(source) as parquet:
                yield from parquet.iter_batches()
        except pa.ArrowInvalid as error:
            raise ConfigurationError(f"{location}/{file.path} is not a Parquet file: {first_line(error)}") from error
