"""One Spark session and one PostgreSQL for all tests of a process, and one S3 server for those of a file."""

import logging
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tests.integration.archive.archive_fixtures import credentials
from tests.integration.archive.object_stores import MotoServer, Server
from tests.pipeline.logical_server import Source, logical_server
from walproxy.pipeline.spark_session import spark_session
from walproxy.postgres.local_server import LocalPostgres


@pytest.fixture(scope="session", autouse=True)
def handlers_keep_their_format() -> Iterator[None]:
    """A logger of PySpark that does not propagate is given pytest's handlers, and makes them write JSON from then on.

    Every later test of the process would see records that no ordinary formatter has filled in.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[LocalPostgres]:
    """A server that decodes logically; each test has a database of its own."""
    with logical_server() as made:
        yield made


@pytest.fixture
def empty(server: LocalPostgres) -> Iterator[Source]:
    """An empty database."""
    with closing(Source(server)) as made:
        yield made


@pytest.fixture(scope="module")
def moto() -> Iterator[Server]:
    """A real S3 server, and its credentials in the environment."""
    with credentials(), MotoServer() as made:
        yield made


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores. What runs jobs in this process finds it and uses it."""
    with spark_session("walproxy tests", master="local[2]", memory="1g", quick=True) as session:
        yield session
