"""Spark finds `pgwal` here: it looks for top-level modules called `pyspark_*`, and for `DefaultSource` in them."""

from walproxy.pipeline.source.data_source import PgwalDataSource as DefaultSource

__all__ = ["DefaultSource"]
