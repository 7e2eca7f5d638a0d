"""Spark finds `pgcdc` here: it looks for top-level modules called `pyspark_*`, and for `DefaultSource` in them."""

from walproxy.pipeline.cdc.data_source import PgcdcDataSource as DefaultSource

__all__ = ["DefaultSource"]
