"""walproxy: makes the commits of a stock PostgreSQL durable on a quorum of safekeepers."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("walproxy")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.0.0"
