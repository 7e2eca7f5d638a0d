"""A login that a server refuses is recognised by its SQLSTATE, in any language; and pgbouncer by what it sends."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION
from tests.unit.event_loop import on_the_loop
from walproxy.postgres.command_connection import CommandConnection
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.sessions import one_session


@asynccontextmanager
async def refusing_server(severity: str, sqlstate: str, text: str) -> AsyncIterator[str]:
    """Yield the connection string of a server that refuses each login with this message."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size - 4)
        fields = (("S", severity), ("V", "FATAL"), ("C", sqlstate), ("M", text))
        body = b"".join(name.encode() + value.encode() + b"\0" for name, value in fields) + b"\0"
        writer.write(b"E" + struct.pack(">i", len(body) + 4) + body)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"host=127.0.0.1 port={port} user=walproxy sslmode=disable gssencmode=disable"


REFUSALS = (
    ("28P01", "Passwort-Authentifizierung f\u00fcr Benutzer \u201ewalproxy\u201c fehlgeschlagen", ProblemKind.NO_LOGIN),
    ("28000", "Rolle \u201ewalproxy\u201c hat keine Berechtigung zum Einloggen", ProblemKind.NO_LOGIN),
    ("28000", "kein pg_hba.conf-Eintrag f\u00fcr Replikationsverbindung von Host", ProblemKind.NO_LOGIN),
    ("57P03", "das Datenbanksystem startet", ProblemKind.STARTING),
    ("53300", "tut mir leid, schon zu viele Verbindungen", ProblemKind.NO_FREE_WALSENDER),
    (
        "53300",
        "Anzahl angeforderter Standby-Verbindungen \u00fcberschreitet max_wal_senders (derzeit 0)",
        ProblemKind.NO_REPLICATION,
    ),
    ("42501", "keine Berechtigung, um WAL-Sender zu starten", ProblemKind.NO_REPLICATION_RIGHT),
    ("3D000", "Datenbank \u201ex\u201c existiert nicht", ProblemKind.WRONG_CONNINFO),
)


@pytest.mark.parametrize(("sqlstate", "text", "kind"), REFUSALS)
@on_the_loop
async def test_refused_login_is_recognised_in_a_language_that_is_not_known(
    sqlstate: str, text: str, kind: ProblemKind
) -> None:
    async with refusing_server("\u81f4\u547d\u7684\u30a8\u30e9\u30fc", sqlstate, text) as conninfo:
        for connecting in (CommandConnection.connect(conninfo), open_session(conninfo)):
            with pytest.raises(PrimaryProblem) as caught:
                await connecting
            assert (caught.value.kind, caught.value.sqlstate) == (kind, sqlstate), caught.value.message
            assert f"failed: {text}" in caught.value.message and sqlstate not in caught.value.message


async def open_session(conninfo: str) -> None:
    async with one_session(conninfo, "connect"):
        raise AssertionError("it was refused")


@on_the_loop
async def test_port_of_pgbouncer_is_named_as_that_in_one_line() -> None:
    async with refusing_server("FATAL", "08P01", "unsupported startup parameter: replication") as conninfo:
        with pytest.raises(PrimaryProblem) as caught:
            await CommandConnection.connect(conninfo)
    assert (caught.value.kind, caught.value.exit_code) == (ProblemKind.NOT_POSTGRES, EXIT_CONFIGURATION)
    assert caught.value.message.endswith(
        "unsupported startup parameter: replication; pgbouncer, or another pooler, listens there: --primary must name "
        "PostgreSQL's own port"
    )


@on_the_loop
async def test_what_libpq_reports_itself_has_no_sqlstate() -> None:
    async with refusing_server("FATAL", "28P01", "no") as conninfo:
        pass
    with pytest.raises(PrimaryProblem) as caught:
        await CommandConnection.connect(conninfo)
    assert (caught.value.kind, caught.value.sqlstate) == (ProblemKind.UNREACHABLE, None)
    with pytest.raises(PrimaryProblem, match="cannot connect") as caught:
        await CommandConnection.connect(psycopg.conninfo.make_conninfo(conninfo, sslmode="nonsense"))
    assert caught.value.kind is ProblemKind.WRONG_CONNINFO
