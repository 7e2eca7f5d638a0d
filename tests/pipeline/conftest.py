"""One Spark session for all tests of a process: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from walproxy.pipeline.spark_session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores. What runs jobs in this process finds it and uses it."""
    with spark_session("walproxy tests", master="local[2]", memory="1g", quick=True) as session:
        yield session
