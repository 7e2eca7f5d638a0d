"""Sources of Spark without an activated virtual environment: `pgwal.spark.configure()`. Needs the extra `pipeline`."""

from walproxy.pipeline.library.spark import configure

__all__ = ["configure"]
