"""What a role reads from a primary, as the proxy does."""

from walproxy.postgres.sessions import SqlSessions
from walproxy.proxy.primary_query import PrimaryAnswer, read_primary


async def answer_to(conninfo: str) -> PrimaryAnswer:
    """Read once."""
    sessions = SqlSessions(conninfo)
    try:
        return await read_primary(sessions, "walproxy")
    finally:
        await sessions.close()
