"""Spark finds `pgtable` here: it looks for top-level modules called `pyspark_*`, and for `DefaultSource` in them."""

from walproxy.pipeline.sink.data_source import PgtableDataSource as DefaultSource

__all__ = ["DefaultSource"]
