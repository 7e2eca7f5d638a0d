"""Connect so that a login that a server refuses shows its SQLSTATE, whatever the language of the server's messages.

libpq keeps no SQLSTATE of a failed connection, but writes it into the message of a connection that is verbose. psycopg
does not wrap that function of libpq, so it is called by ctypes, as psycopg's documentation of `PGconn.pgconn_ptr`
describes: in the libpq that psycopg itself is linked with. Once the connection is made, it is verbose no longer.

    connection = await VerboseConnection.connect(...)    # as psycopg.AsyncConnection
    pgconn = connect_blocking(text)                      # libpq's own
    FATAL:  28P01: password authentication failed for user "walproxy"
"""

import ctypes
import functools
import sys
from collections.abc import Callable, Generator
from typing import Self

import psycopg
from psycopg import pq
from psycopg.rows import TupleRow
from psycopg.waiting import Ready, Wait

_DEFAULT, _VERBOSE = 1, 2  # of libpq's enum PGVerbosity


def start_verbose(text: str) -> pq.abc.PGconn:
    """Begin to connect, as PGconn.connect_start does. `end_verbose` is for the connection that is made."""
    pgconn = pq.PGconn.connect_start(text.encode())
    _set_verbosity(pgconn, _VERBOSE)
    return pgconn


def end_verbose(pgconn: pq.abc.PGconn) -> None:
    """Let the messages of this connection be as usual: results have fields for the SQLSTATE."""
    _set_verbosity(pgconn, _DEFAULT)


class VerboseConnection(psycopg.AsyncConnection[TupleRow]):
    """A connection of psycopg: if it cannot be made, the error's text has the SQLSTATE."""

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> Generator[tuple[int, Wait], Ready | int, Self]:
        return cls((yield from _connected(conninfo)))


class _BlockingConnection(psycopg.Connection[TupleRow]):
    """Makes a connection of libpq, which is closed on its own."""

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> Generator[tuple[int, Wait], Ready | int, Self]:
        return cls((yield from _connected(conninfo)))

    def __del__(self) -> None:  # type: ignore[override]
        pass  # its class warns of a connection that is not closed


def connect_blocking(text: str) -> pq.abc.PGconn:
    """Connect in autocommit mode, to each address for at most connect_timeout. The caller closes it with `finish`.

    Raises:
        psycopg.Error: if a server refuses the login, the text has the SQLSTATE.
    """
    return _BlockingConnection.connect(text, autocommit=True).pgconn


def _connected(text: str) -> Generator[tuple[int, Wait], Ready | int, pq.abc.PGconn]:
    """Do what psycopg's own generator does, and be verbose meanwhile."""
    pgconn = start_verbose(text)
    while True:
        status = pgconn.connect_poll() if pgconn.status != pq.ConnStatus.BAD else pq.PollingStatus.FAILED
        if status == pq.PollingStatus.OK:
            end_verbose(pgconn)
            pgconn.nonblocking = 1
            return pgconn
        if status == pq.PollingStatus.FAILED:
            reason = pgconn.get_error_message()
            pgconn.finish()
            raise psycopg.OperationalError(reason)
        wanted = Wait.R if status == pq.PollingStatus.READING else Wait.W
        while not (yield pgconn.socket, wanted):
            pass


def _set_verbosity(pgconn: pq.abc.PGconn, verbosity: int) -> None:
    pointer: int | None = pgconn.pgconn_ptr  # type: ignore[attr-defined]
    if pointer is not None:
        _function()(pointer, verbosity)


@functools.cache
def _function() -> Callable[[int, int], int]:
    """Return PQsetErrorVerbosity of psycopg's libpq: a library's symbols include those of the ones it needs."""
    path = sys.modules[pq.PGconn.__module__].__file__
    if path is None or path.endswith(".py"):
        path = pq.misc.find_libpq_full_path()
    function = ctypes.CDLL(path).PQsetErrorVerbosity
    function.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return function
