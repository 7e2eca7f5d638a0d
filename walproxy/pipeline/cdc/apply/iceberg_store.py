"""Iceberg tables that follow, in an object store, with a catalog of pyiceberg (`walproxy/pipeline/lake/catalog.py`).

    TABLES/SCHEMA.NAME/data-*.parquet   data files
    TABLES/SCHEMA.NAME/metadata/        metadata, manifests

In the catalog a table is SCHEMA.NAME; NAMESPACE_SCHEMA.NAME if the location names a namespace. A commit is the
catalog's: it demands the snapshot that was read (rule X1). A request whose reply was lost may have been carried out:
then the table is read again, and its position decides.
"""

import contextlib
from collections.abc import Iterable, Iterator
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.metadata import TableMetadata

from safekeeper.base.errors import ConfigurationError, ObjectMissing, StorageFailed, WalproxyError
from walproxy.pipeline.cdc.apply.following import safe_name
from walproxy.pipeline.cdc.apply.iceberg import IcebergFollowing
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.lake.catalog import catalog_error, given_namespace, open_catalog
from walproxy.pipeline.lake.files import NewLakeFile, read_end_of
from walproxy.pipeline.lake.iceberg import require_location, unneeded
from walproxy.pipeline.lake.iceberg_files import FileEnds
from walproxy.pipeline.lake.location import LakeLocation


class IcebergInStore(IcebergFollowing):
    """A table in Iceberg's format, in an object store."""

    def __init__(self, tables: LakeLocation, table: TableName) -> None:
        schema, namespace = safe_name(table.schema), given_namespace(tables)
        super().__init__(
            tables, table, (schema if namespace is None else f"{namespace}_{schema}", safe_name(table.name))
        )

    def _open_catalog(self) -> Catalog:
        return open_catalog(self.location)

    def _prepare_place(self) -> None:
        # Files are stored only when the table exists, so that files without a table are those of another catalog.
        has_files = any(name.endswith(".parquet") for name in self.location.store().entries()[1])
        if has_files and self._loaded() is None:  # Another job may have made it meanwhile.
            raise ConfigurationError(
                f"{self.location} has files of a table that this catalog does not have: name its catalog, or another "
                "prefix"
            )

    def _require_ours(self, table: PyIcebergTable) -> None:
        require_location(table, self._identifier, self.location)

    def _write(
        self, metadata: TableMetadata, schema: pa.Schema, parts: Iterable[Iterator[pa.RecordBatch]]
    ) -> list[DataFile]:
        new, ends = NewLakeFile(self.location, "data", schema), {}
        for part in parts:
            file = new.write(part)
            if file is not None:
                ends[f"{self.location}/{file.path}"] = (read_end_of(self.location.store(), file)[1], file.bytes)
        files = FileEnds(ends)
        return [parquet_file_to_data_file(files, metadata, url) for url in ends]

    def _remove_unused(self, table: PyIcebergTable, horizon: datetime) -> None:
        store = self.location.store()
        # First list the existing files, then the needed ones: a commit in between only adds needed ones.
        old = [info for info in store.list() if info.modified < horizon.timestamp()]
        store.delete(info.key for info in unneeded(table.refresh(), self.location, old))

    @contextlib.contextmanager
    def _failures(self, verb: str) -> Iterator[None]:
        doing = f"{verb} the Iceberg table {self.location}"
        try:
            yield
        except ObjectMissing as error:
            # The store works; this table does not.
            raise StorageFailed(f"could not {doing}: {error}") from error
        except WalproxyError:
            raise
        except Exception as error:  # Any one: a table that pyiceberg does not take must not end the job of the others.
            raise catalog_error(error, doing, self.location) from error
