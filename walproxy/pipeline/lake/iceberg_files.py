"""pyiceberg's files as objects of a store or files of a folder: pyiceberg loads this class by its name (`py-io-impl`).

So one client with one set of options and credentials makes all requests, and files of a folder are on disk before the
catalog names them. Each file is read and written whole: metadata,
and data files whose rows a merge writes again.
"""

import io
import json
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.typedef import EMPTY_DICT, Properties

from safekeeper.base.errors import ObjectMissing
from walproxy.pipeline.lake.catalog import STORE_OPTIONS
from walproxy.pipeline.lake.location import LakeLocation, Store

_METADATA: Final = ".metadata.json"


class StoreFiles(FileIO):
    """Objects by their URL.

    Args:
        properties: of the catalog, with the store's options as JSON.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._options = tuple(json.loads(properties.get(STORE_OPTIONS, "{}")).items())

    def new_input(self, location: str) -> "StoredInput":
        return StoredInput(location, *self._place(location))

    def new_output(self, location: str) -> "StoredOutput":
        return StoredOutput(location, *self._place(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove old metadata. Other files stay for `remove_orphans`.

        pyiceberg removes the manifests of a commit that was refused. The refusal may be that of a request which was
        repeated, after the first one had succeeded without a reply.
        """
        url = location if isinstance(location, str) else location.location
        if url.endswith(_METADATA):
            store, key = self._place(url)
            store.delete([key])

    def _place(self, url: str) -> tuple[Store, str]:
        if url.startswith("/"):
            return LakeLocation("/").store(), url.lstrip("/")
        parts = urlsplit(url)
        return LakeLocation(f"{parts.scheme}://{parts.netloc}", self._options).store(), parts.path.lstrip("/")


class FileEnds(NamedTuple):
    """Data files whose ends were read already, as pyiceberg reads their footers.

    Attributes:
        ends: the end of a file, at least the footer, and the size of the whole, by its URL.
    """

    ends: Mapping[str, tuple[bytes, int]]

    def new_input(self, url: str) -> "_End":
        return _End(*self.ends[url])


class _End:
    """The end of a file, with the size of the whole."""

    def __init__(self, content: bytes, size: int) -> None:
        self._content = content
        self._size = size

    def __len__(self) -> int:
        return self._size

    def open(self) -> pa.BufferReader:
        return pa.BufferReader(self._content)


class StoredInput(InputFile):
    """An object that is read."""

    def __init__(self, location: str, store: Store, key: str) -> None:
        super().__init__(location)
        self._store = store
        self._key = key

    @cached_property
    def _content(self) -> bytes:
        return self._store.get(self._key)

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        try:
            self._store.part(self._key, 0, 1)
        except ObjectMissing:
            return False
        return True

    def open(self, seekable: bool = True) -> io.BytesIO:
        return io.BytesIO(self._content)


class StoredOutput(OutputFile):
    """An object that is written, with one put when it is closed. Its name, from pyiceberg, has a UUID."""

    def __init__(self, location: str, store: Store, key: str) -> None:
        super().__init__(location)
        self._store = store
        self._key = key
        self._bytes = 0

    def __len__(self) -> int:
        return self._bytes

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> StoredInput:
        return StoredInput(self.location, self._store, self._key)

    def create(self, overwrite: bool = False) -> "_Stream":
        return _Stream(self)

    def put(self, content: bytes) -> None:
        """Store the object, durably. Raises ArchiveError."""
        self._store.put(self._key, content, absent=False)
        self._bytes = len(content)


class _Stream(io.BytesIO):
    """The content of an object that is being written."""

    def __init__(self, file: StoredOutput) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._file.put(content)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            super().close()  # What is incomplete is not stored.
        self.close()
