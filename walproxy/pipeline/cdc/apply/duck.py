"""Tables that follow, in DuckDB, for `walproxy pipeline query`: each as a view SCHEMA.NAME, as at its source.

Beside them a place may have tables of WAL. DuckDB reads a table as an Arrow dataset, so that
a column which was added later is null in older files.
"""

from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection

from safekeeper.base.errors import ArchiveRefused, ConfigurationError, WalproxyError
from walproxy.pipeline.cdc.apply.following import folder_name
from walproxy.pipeline.cdc.apply.job_file import job_state, read_job
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.publication import TableName, parse_table
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.duck import QueriedTables, identifier
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import check_format

_OF_DUCKDB: Final = ("information_schema", "main", "pg_catalog", "system", "temp")
"""Schemas whose tables can only be queried as `"SCHEMA.NAME"`."""


class FollowedTables(NamedTuple):
    """The tables of a place where a job of `apply` writes. See `QueriedTables`.

    Attributes:
        followed: by the names of their views.
        others: the tables that are there besides.
    """

    location: LakeLocation
    format: TableFormat
    followed: dict[str, TableName]
    others: QueriedTables

    @property
    def folder(self) -> Path | None:
        return self.location.folder

    def names(self) -> list[str]:
        ours = {folder_name(table) for table in self.followed.values()}
        return [*self.followed, *(name for name in self.others.names() if name not in ours)]

    def add(
        self, connection: DuckDBPyConnection, name: str, schema: pa.Schema | None, optional: Collection[str] = ()
    ) -> pa.Schema:
        table = self.followed.get(name)
        if table is None:
            return self.others.add(connection, name, schema, optional)
        with closing(following_table(self.location, self.format, table)) as following:
            if following.position() is None:
                raise ConfigurationError(f"{table} is not copied yet: start the job, or wait for it")
            rows = following.dataset()
            connection.register(name, rows if rows.files else rows.schema.empty_table())
        if table.schema.lower() not in _OF_DUCKDB:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {identifier(table.schema)}")
            view = f"{identifier(table.schema)}.{identifier(table.name)}"
            connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {identifier(name)}")
        return rows.schema

    def file(self, name: str) -> bytes | None:
        return self.others.file(name)

    def failure(self, error: duckdb.Error) -> WalproxyError | None:
        return self.others.failure(error)

    def __str__(self) -> str:
        return str(self.location)


def followed_tables(location: LakeLocation, others: QueriedTables) -> FollowedTables | None:
    """Return the tables of a place if a job of `apply` writes there.

    Args:
        others: its other tables.

    Raises:
        ConfigurationError: the job's file is not understood, or its tables need a catalog.
        StorageFailed, ArchiveError: the job's file cannot be read.
    """
    try:
        job = read_job(job_state(location))
    except ArchiveRefused:
        # A store does not tell who may not list it that an object is missing. A reader of tables of WAL needs no list.
        return None
    if job is None:
        return None
    table_format = next((each for each in TABLE_FORMATS if each == job.format), None)
    if table_format is None:
        raise ConfigurationError(f"the tables in {location} have the format {job.format}, which is not known")
    if location.folder is None:
        check_format(location, table_format)
    tables = [parse_table(name) for name in job.tables]
    return FollowedTables(location, table_format, {str(table): table for table in tables}, others)
