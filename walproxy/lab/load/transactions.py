"""A transaction of a client of the load, divided at the statement that commits it.

Until that statement is sent, it is certain that nothing is committed; from then on only the reply shows it.
"""

from typing import Protocol

import asyncpg


class Transaction(Protocol):
    """One transaction."""

    async def carry_out(self, connection: asyncpg.Connection) -> None:
        """Send everything before the statement that commits."""
        ...

    async def commit(self, connection: asyncpg.Connection) -> bool:
        """Send the statement that commits; return whether PostgreSQL has committed."""
        ...


class Block:
    """A transaction between BEGIN, which `carry_out` sends first, and COMMIT."""

    async def commit(self, connection: asyncpg.Connection) -> bool:
        return await commit_block(connection)


async def commit_block(connection: asyncpg.Connection) -> bool:
    """Send COMMIT; return whether PostgreSQL has committed: after an error within the block it answers ROLLBACK."""
    return bool(await connection.execute("COMMIT") == "COMMIT")


class SingleStatement:
    """One statement that commits by itself.

    Args:
        arguments: of $1, $2, ... in `sql`; with any, the statement is prepared once for each connection.
    """

    def __init__(self, sql: str, *arguments: object) -> None:
        self.sql = sql
        self.arguments = arguments

    async def carry_out(self, connection: asyncpg.Connection) -> None:
        pass

    async def commit(self, connection: asyncpg.Connection) -> bool:
        await connection.execute(self.sql, *self.arguments)
        return True
