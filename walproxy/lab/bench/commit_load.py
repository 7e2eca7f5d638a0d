"""A load of single-row commits, and how long each took: what a client of PostgreSQL feels.

pgbench measures throughput; this keeps every time, so that the slowest commits can be distinguished from the usual
ones.
"""

from typing import NamedTuple

from walproxy.lab.load.clients import Clients
from walproxy.lab.load.percentiles import percentile
from walproxy.lab.load.transactions import SingleStatement
from walproxy.postgres.local_server import LocalPostgres

_PAYLOAD = "x" * 1000
_TABLE = "CREATE TABLE commit_load (payload text)"
_INSERT = SingleStatement("INSERT INTO commit_load VALUES ($1)", _PAYLOAD)


class CommitFigures(NamedTuple):
    """The commits a second, and the time that half of them and 99 of 100 did not exceed."""

    tps: float
    p50_ms: float
    p99_ms: float


def prepare(postgres: LocalPostgres) -> None:
    """Make the table of the load."""
    postgres.execute(_TABLE)


def measure(postgres: LocalPostgres, clients: int, seconds: float) -> CommitFigures:
    """Let `clients` connections insert a row and commit it, again and again.

    Raises:
        WalproxyError: a client has failed.
    """
    with Clients(postgres.conninfo, clients, lambda client: _INSERT, measures_s=seconds) as load:
        load.finish()
    times_ms = [operation.seconds * 1000 for operation in load.history.acknowledged]
    return CommitFigures(len(times_ms) / seconds, percentile(times_ms, 50), percentile(times_ms, 99))
