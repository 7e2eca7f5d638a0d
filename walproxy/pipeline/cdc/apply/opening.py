"""A table that follows, by its location, format and name. pyiceberg, whose import takes two seconds, only if needed."""

from walproxy.pipeline.cdc.apply.following import FollowingTable
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.location import LakeLocation


def following_table(tables: LakeLocation, table_format: TableFormat, table: TableName) -> FollowingTable:
    """Return a table of a location, whether it is there or not."""
    if table_format == "delta":
        from walproxy.pipeline.cdc.apply.delta import DeltaFollowing

        return DeltaFollowing(tables, table)
    from walproxy.pipeline.cdc.apply.iceberg import IcebergFollowing

    return IcebergFollowing(tables if tables.folder is None else tables.with_catalog_beside(), table)
