"""A client's session of libpq, which takes a list of hosts and finds the primary among them.

It has what transactions use of asyncpg's connection.
"""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

_Row = tuple[Any, ...]


class LibpqSession:
    """A connection in autocommit mode."""

    def __init__(self, connection: psycopg.AsyncConnection[_Row]) -> None:
        self._connection = connection

    async def execute(self, sql: str) -> str:
        """Run statements; return the command tag of the last one."""
        return (await self._last(sql)).statusmessage or ""

    async def fetchrow(self, sql: str) -> _Row | None:
        """Run statements; return the first row of the last one, None without any."""
        cursor = await self._last(sql)
        return await cursor.fetchone() if cursor.description else None

    async def fetchval(self, sql: str) -> Any:
        """Run statements; return the first value of the last one, None without any."""
        row = await self.fetchrow(sql)
        return row[0] if row else None

    def terminate(self) -> None:
        """End the connection: a statement that waits for its reply reads the end."""
        if self._connection.closed:
            return
        with socket.socket(fileno=os.dup(self._connection.fileno())) as shared:
            try:
                shared.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # It was no longer connected.

    async def _last(self, sql: str) -> psycopg.AsyncCursor[_Row]:
        cursor = await self._connection.execute(sql.encode())
        while cursor.nextset():
            pass
        return cursor


@asynccontextmanager
async def libpq_session(conninfo: str, application_name: str) -> AsyncIterator[LibpqSession]:
    """Yield a session.

    Raises:
        psycopg.Error: no host can be reached, or none is as the connection string requires.
    """
    connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, application_name=application_name)
    try:
        yield LibpqSession(connection)
    finally:
        # Not close(): that waits for a transaction that is in progress.
        connection.pgconn.finish()
