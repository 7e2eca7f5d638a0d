"""What clients make of a connection string, and of a server that is not there."""

import math
import threading
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

import pytest

from safekeeper.base.errors import WalproxyError
from tests.waiting import wait_for
from walproxy.lab.load.clients import Clients, Connect, asyncpg_options, asyncpg_session
from walproxy.lab.load.libpq_session import libpq_session
from walproxy.lab.load.transactions import SingleStatement
from walproxy.postgres.local_server import free_port

INSERT = SingleStatement("INSERT")


def clients_of_nobody(measures_s: float | None, connect: Connect = asyncpg_session) -> Clients[SingleStatement]:
    port = free_port()
    conninfo = f"host=127.0.0.1 port={port} user=postgres"
    return Clients(lambda: conninfo, 2, lambda client: INSERT, connect=connect, measures_s=measures_s)


def test_a_connection_string_is_asyncpgs_without_what_that_would_send_to_the_server() -> None:
    options = asyncpg_options("host=127.0.0.1 port=5433 user=me dbname='a b' password=c&d channel_binding=require", "x")
    assert options["server_settings"] == {"application_name": "x"}
    assert dict(parse_qsl(urlsplit(options["dsn"]).query)) == {
        "host": "127.0.0.1",
        "port": "5433",
        "user": "me",
        "dbname": "a b",
        "password": "c&d",
        "sslmode": "disable",
    }
    locked = asyncpg_options("host=a sslmode=verify-full sslrootcert=/ca.crt passfile=/p", "x")
    assert dict(parse_qsl(urlsplit(locked["dsn"]).query)) == {
        "host": "a",
        "sslmode": "verify-full",
        "sslrootcert": "/ca.crt",
        "passfile": "/p",
    }


@pytest.mark.parametrize(
    ("connect", "problem"), [(asyncpg_session, "ConnectionRefusedError"), (libpq_session, "OperationalError")]
)
def test_clients_try_again_and_again_until_they_are_stopped(connect: Connect, problem: str) -> None:
    clients = clients_of_nobody(None, connect)
    clients.start()
    wait_for(lambda: clients.history.problem, "a client could not connect")
    assert problem in clients.history.problem
    clients.check()
    assert clients.stop() == 0
    assert clients.history.operations == []


@pytest.mark.parametrize(
    "wait",
    [Clients.finish, Clients.stop, lambda clients: clients.wait_for_commit(time.monotonic())],
    ids=["finish", "stop", "wait_for_commit"],
)
def test_the_first_problem_of_clients_that_measure_is_the_callers(
    wait: Callable[[Clients[SingleStatement]], object],
) -> None:
    clients = clients_of_nobody(math.inf)
    clients.start()
    wait_for(lambda: clients.history.problem, "a client could not connect")
    with pytest.raises(WalproxyError, match="a client of the load has ended: ConnectionRefusedError: "):
        wait(clients)


def test_an_error_of_the_program_ends_all_clients_and_is_named() -> None:
    may_connect = threading.Event()

    def conninfo() -> str:
        assert may_connect.wait(20)
        return "user=nobody port=x"

    clients = Clients(conninfo, 2, lambda client: INSERT)
    clients.start()
    # Most probably while it is waited for.
    threading.Timer(0.05, may_connect.set).start()
    began_at = time.monotonic()
    with pytest.raises(WalproxyError, match="a client of the load has ended: ValueError: "):
        clients.wait_for_commit(began_at)
    assert time.monotonic() - began_at < 30
