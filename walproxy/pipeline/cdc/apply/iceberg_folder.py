"""Iceberg tables that follow, in a folder, with the catalog of all its tables beside them.

FOLDER/iceberg.db              the catalog; a namespace for each schema
FOLDER/SCHEMA.NAME/data/       data files
FOLDER/SCHEMA.NAME/metadata/   metadata, manifests
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.metadata import TableMetadata

from walproxy.pipeline.cdc.apply.following import library_errors, safe_name
from walproxy.pipeline.cdc.apply.iceberg import IcebergFollowing
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.tables.disk import storage_errors, sync_folder
from walproxy.pipeline.tables.iceberg_table import open_catalog
from walproxy.pipeline.tables.parquet_files import write_parquet
from walproxy.pipeline.tables.synced_io import SyncedFileIO


class IcebergInFolder(IcebergFollowing):
    """A table in Iceberg's format, in a folder."""

    def __init__(self, tables: LakeLocation, table: TableName) -> None:
        super().__init__(tables, table, (safe_name(table.schema), safe_name(table.name)))
        assert self.location.folder is not None  # see following_table
        self.folder = self.location.folder

    def _open_catalog(self) -> Catalog:
        return open_catalog(self.folder.parent)

    def _prepare_place(self) -> None:
        with storage_errors(f"make the table {self.folder}"):
            (self.folder / "metadata").mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder)
            sync_folder(self.folder.parent)

    def _write(
        self, metadata: TableMetadata, schema: pa.Schema, parts: Iterable[Iterator[pa.RecordBatch]]
    ) -> list[DataFile]:
        folder = self.folder / "data"
        written = []
        with storage_errors(f"write the table {self.folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            for part in parts:
                path = str(folder / f"{uuid.uuid4().hex}.parquet")
                if write_parquet(path, part, schema).rows:
                    written.append(path)
                else:
                    Path(path).unlink()
            sync_folder(folder)
        files = SyncedFileIO()
        return [parquet_file_to_data_file(files, metadata, path) for path in written]

    def _remove_unused(self, table: PyIcebergTable, horizon: datetime) -> None:
        used = set(table.inspect.all_files()["file_path"].to_pylist())
        with storage_errors(f"remove old files of {self.folder}"):
            for path in (self.folder / "data").glob("*.parquet"):
                if str(path) not in used and path.stat().st_mtime < horizon.timestamp():
                    path.unlink()

    @contextlib.contextmanager
    def _failures(self, verb: str) -> Iterator[None]:
        with library_errors(f"{verb} the Iceberg table {self.folder}", self.folder):
            yield
