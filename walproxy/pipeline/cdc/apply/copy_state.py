"""Remember which ranges of a large table are copied, so that a copy that was interrupted does not read them again.

LOCATION/_walproxy_apply/copies/SCHEMA.NAME.json   the ranges, and the files that each one has become
LOCATION/_walproxy_apply/copies/SCHEMA.NAME/       the files, unless they are to be those of the table
LOCATION/SCHEMA.NAME/copy-*.parquet                the files, if they are

A file is named here when it is durable. Until the copy is complete no table has these files, so that no reader sees
them. When it is, one commit puts all of them in, and the state is removed. If the job ends in between, the table has
them, and they are left alone.

A state is of use to a later copy if the source, its definition, its files, and the columns of the files are the same.
Which of its ranges are, is for `copy_ranges.is_same` to find out.
"""

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.apply.copy_ranges import CopyRange
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint
from walproxy.pipeline.cdc.apply.following import FollowingTable, folder_name
from walproxy.pipeline.cdc.apply.job_file import OWN_FOLDER
from walproxy.pipeline.lake.disk import make_folder, storage_errors
from walproxy.pipeline.lake.files import read_batches
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import DataFile
from walproxy.pipeline.lake.state import StateObject

_FOLDER: Final = f"{OWN_FOLDER}/copies"


class CopiedRange(msgspec.Struct, frozen=True):
    """What a range has become.

    Attributes:
        lsn: of the snapshot in which it has these rows.
        horizon_xid: of the same.
        files: within the table's location; none if it has no row.
    """

    lsn: Lsn
    horizon_xid: int
    rows: int
    files: list[DataFile]


class CopyBasis(msgspec.Struct, frozen=True):
    """What must be the same for two copies that share ranges.

    Attributes:
        source: cluster, timeline and database.
        columns: of the files, with their types.
        null_if_bad: those of which values are null that their types cannot hold.
        row_filter: of the publication.
        is_direct: the files are to be those of the table.
    """

    source: str
    fingerprint: Fingerprint
    columns: str
    null_if_bad: list[str]
    row_filter: str | None
    is_direct: bool


class CopyState(msgspec.Struct, frozen=True):
    """The content of the file.

    Attributes:
        id: the names of the files of this copy begin with it.
        copied: of each range, None while it is to be read.
    """

    id: str
    basis: CopyBasis
    ranges: list[CopyRange]
    copied: list[CopiedRange | None]

    @classmethod
    def new(cls, basis: CopyBasis, ranges: Sequence[CopyRange]) -> "CopyState":
        """Return the state of a copy that has read nothing."""
        return cls(f"copy-{uuid.uuid4().hex[:16]}", basis, list(ranges), [None] * len(ranges))

    @property
    def done(self) -> int:
        """The number of ranges that are copied."""
        return sum(each is not None for each in self.copied)

    @property
    def files(self) -> list[DataFile]:
        """The files of ranges that are copied, in the order of the ranges."""
        return [file for each in self.copied if each is not None for file in each.files]


class CopyStateFile:
    """The file of one table, and where the files of the copy are.

    Args:
        tables: the location of all tables.
    """

    def __init__(self, tables: LakeLocation, following: FollowingTable) -> None:
        self._tables = tables
        self._following = following
        name = f"{_FOLDER}/{folder_name(following.table)}"
        self._key = f"{name}.json"
        self._aside = tables.below(name)
        self._object = StateObject(tables, self._key)

    def files_location(self, state: CopyState) -> LakeLocation:
        """Return where the files of a copy are."""
        return self._following.location if state.basis.is_direct else self._aside

    def read(self) -> CopyState | None:
        """Return the state; None if there is none that this version understands.

        Raises:
            StorageFailed, ArchiveError.
        """
        content = self._object.read()
        try:
            return None if content is None else msgspec.json.decode(content, type=CopyState)
        except msgspec.DecodeError:
            return None  # It saves time only: without it all is read again.

    def write(self, state: CopyState) -> None:
        """Replace the state that was read or written last, durably.

        Raises:
            TableMoved: another job has replaced it.
            StorageFailed, StorageFull, ArchiveError.
        """
        if self._tables.folder is not None:
            with storage_errors(f"make {self._tables.folder / _FOLDER}"):
                make_folder(self._tables.folder / _FOLDER)
        self._object.write(msgspec.json.encode(state))

    def remove(self) -> None:
        """Remove the state; the files stay. Raises StorageFailed, ArchiveError."""
        self._tables.store().delete([self._key])
        self._object = StateObject(self._tables, self._key)

    def forget(self, state: CopyState | None) -> None:
        """Remove a state that was read, and its files. Raises StorageFailed, ArchiveError."""
        if state is not None:
            self.remove_files(state)
            self.remove()

    def remove_files(self, state: CopyState, *, kept: Sequence[DataFile] = ()) -> None:
        """Remove the files of a copy but for some: also those that no state names, never those of the table.

        Raises:
            StorageFailed, ArchiveError.
        """
        spared = {file.path for file in kept}
        if state.basis.is_direct:
            spared |= self._following.live_files()
        store = self.files_location(state).store()
        own = [info.key for info in store.list() if not state.basis.is_direct or info.key.startswith(f"{state.id}-")]
        store.delete(key for key in own if key not in spared)

    def rows(self, state: CopyState) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files of a copy, with the columns of the files."""
        location = self.files_location(state)
        for file in state.files:
            yield from read_batches(location, file)
