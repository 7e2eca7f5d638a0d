"""The clients of a run (walproxy/lab/load): of libpq, with a list of all hosts, or at one server directly.

Those with a list find the primary by target_session_attrs=read-write. A client that waits for too long hangs up, as an
application with a timeout does. TCP's own timeouts are set, too: a partition ends connections by nothing else.

libpq waits for two seconds, the least that it takes, at a host that swallows packets, and asks the other hosts before
or after. Clients that all hung up at the same instant would go on in step, and find the new primary every two seconds
only: nearly all gaps were 6.1 to 6.3 s. So their timeouts differ, as those of applications do. And they pause before
they reconnect: without that, sixteen clients open hundreds of connections a second while no server accepts writes.

Those at one server reach it through its Unix socket, which no partition cuts, and wait there for as long as it hangs. A
probe is at each server all the time, and commits with synchronous_commit = on whenever that accepts writes: what is
acknowledged on two servers at the same time, these see. A local writer commits with synchronous_commit = local on the
primary of a round, so that it has rows which no quorum may have.
"""

from collections.abc import Sequence
from typing import Any, Final

from psycopg.conninfo import make_conninfo

from walproxy.lab.failover.host import Host, Place
from walproxy.lab.failover.rows import Book, Row, RowIds, Writer
from walproxy.lab.load.clients import Clients
from walproxy.lab.load.libpq_session import libpq_session
from walproxy.lab.torture.clients import TortureClients
from walproxy.lab.torture.workloads.lists import Lists

LISTS: Final = (Lists(),)
SLOW_LOCAL_RATE: Final = 20.0

_LOCAL_RATE: Final = 400.0
_PROBE_RATE: Final = 10.0
_OPTIONS: Final = {
    "user": "postgres",
    "dbname": "postgres",
    "sslmode": "disable",
    "target_session_attrs": "read-write",
    "load_balance_hosts": "random",
    "connect_timeout": "2",
    "keepalives_idle": "1",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "tcp_user_timeout": "2000",
}
_ROAMING: Final[dict[str, Any]] = {
    "hangs_up_after_s": 1.0,
    "hang_up_spread_s": 2.0,
    "reconnect_pause_s": (0.2, 0.6),
    "connect": libpq_session,
}


def row_clients(places: Sequence[Place], rows: RowIds) -> Clients[Row]:
    """Return the load: clients of all hosts that write one row after the other."""
    conninfo = _of_all(places)
    return Clients(
        lambda: conninfo, 16, lambda _: rows.next("client"), application_name="failover load", rate=80.0, **_ROAMING
    )


def list_clients(places: Sequence[Place], seed: int, begun_at: float) -> TortureClients:
    """Return clients of all hosts that append to lists and read them.

    They are connected also to an old primary that still serves. What they read there does not count: their COMMIT is
    not acknowledged.
    """
    return TortureClients(
        _of_all(places), 4, 40.0, LISTS, seed, begun_at, application_name="failover lists", **_ROAMING
    )


def probe(host: Host, rows: RowIds, book: Book) -> Clients[Row]:
    """Return the probe of a server."""
    return _direct(host, "probe", "on", _PROBE_RATE, rows, book)


def local_writer(host: Host, rows: RowIds, book: Book) -> Clients[Row]:
    """Return a writer of many rows; at SLOW_LOCAL_RATE, of few."""
    return _direct(host, "local", "local", _LOCAL_RATE, rows, book)


def _direct(host: Host, writer: Writer, synchronous_commit: str, rate: float, rows: RowIds, book: Book) -> Clients[Row]:
    options = f"-c synchronous_commit={synchronous_commit}"
    conninfo = make_conninfo(host.place.local_conninfo, options=options, connect_timeout="2")
    return Clients(
        lambda: conninfo,
        1,
        lambda _: rows.next(writer),
        book,
        application_name=f"failover {writer} {host.name}",
        rate=rate,
        reconnect_pause_s=(0.2, 0.2),
        connect=libpq_session,
    )


def _of_all(places: Sequence[Place]) -> str:
    hosts = ",".join(place.address for place in places)
    return make_conninfo("", host=hosts, port=",".join(str(place.pg_port) for place in places), **_OPTIONS)
