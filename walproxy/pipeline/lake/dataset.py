"""Files of a table as an Arrow dataset. pyarrow.dataset imports pandas, so only what reads rows imports this module."""

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake.fs import DeltaStorageHandler

from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import LiveFile

LOCAL: Final = pyarrow.fs.LocalFileSystem()


def filesystem_of(location: LakeLocation, sizes: Mapping[str, int]) -> pyarrow.fs.FileSystem:
    """Return the files of a table by their keys, for a reader of Arrow.

    Args:
        sizes: in bytes, by key.
    """
    if location.folder is not None:
        return pyarrow.fs.SubTreeFileSystem(location.url, LOCAL)
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(location.url, location.delta_options(), dict(sizes)))


def dataset_of(files: Sequence[LiveFile], schema: pa.Schema, filesystem: pyarrow.fs.FileSystem) -> ds.Dataset:
    """Return files of a table as a dataset that opens only those that can match a filter, by their bounds."""
    never_null = {field.name for field in schema if not field.nullable}
    return ds.FileSystemDataset.from_paths(
        [file.path for file in files],
        schema=schema,
        format=ds.ParquetFileFormat(),
        filesystem=filesystem,
        partitions=[_guarantee(file, never_null) for file in files],
    )


def _guarantee(file: LiveFile, never_null: set[str]) -> ds.Expression:
    """Return what holds for each row of the file. A null is within no bounds."""
    bounds = {name: both for name, both in file.bounds.items() if name in never_null}
    within = [(ds.field(name) >= low) & (ds.field(name) <= high) for name, (low, high) in bounds.items()]
    return functools.reduce(operator.and_, within, ds.scalar(True))
