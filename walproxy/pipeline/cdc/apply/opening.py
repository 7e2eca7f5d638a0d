"""A table that follows, by its location, format and name. pyiceberg, whose import takes two seconds, only if needed."""

from walproxy.pipeline.cdc.apply.following import FollowingTable
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.choices import FollowingFormat
from walproxy.pipeline.lake.location import LakeLocation


def following_table(tables: LakeLocation, table_format: FollowingFormat, table: TableName) -> FollowingTable:
    """Return a table of a location, whether it is there or not."""
    if table_format == "delta":
        from walproxy.pipeline.cdc.apply.delta import DeltaFollowing

        return DeltaFollowing(tables, table)
    if tables.folder is None:
        from walproxy.pipeline.cdc.apply.iceberg_store import IcebergInStore

        return IcebergInStore(tables, table)
    from walproxy.pipeline.cdc.apply.iceberg_folder import IcebergInFolder

    return IcebergInFolder(tables, table)
