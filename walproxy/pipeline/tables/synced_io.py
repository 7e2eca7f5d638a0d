"""pyiceberg's files, on disk when they are closed: the catalog must never name what a power cut may take away."""

import os
from pathlib import Path

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from walproxy.pipeline.tables.disk import sync_folder


class _SyncedStream:
    """A file that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")

    def write(self, content: bytes) -> int:
        return self._file.write(content)

    def close(self) -> None:
        if self._file.closed:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sync_folder(self._path.parent)

    def __enter__(self) -> "_SyncedStream":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SyncedFile(PyArrowFile):
    """A local file."""

    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        if not overwrite and path.exists():
            raise FileExistsError(f"{path} exists")
        path.parent.mkdir(parents=True, exist_ok=True)
        return _SyncedStream(path)


class SyncedFileIO(PyArrowFileIO):
    """Local files, synced when they are closed."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)

    def new_output(self, location: str) -> SyncedFile:
        file = super().new_output(location)
        return SyncedFile(location=file.location, path=file._path, fs=file._filesystem)
