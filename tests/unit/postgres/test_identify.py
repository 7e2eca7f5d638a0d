"""A server without idle_session_timeout (13): it refuses a login that sets it."""

from tests.unit.event_loop import on_the_loop
from tests.unit.tiny_postgres import TinyPostgres
from walproxy.postgres.walreceiver import ReplicationConnection

ANSWERS = {
    "IDENTIFY_SYSTEM": ("7", "1", "0/3000000", None),
    "SELECT pg_is_in_recovery()::text": ("false",),
    "SHOW wal_segment_size": ("16MB",),
    "SHOW wal_level": ("replica",),
    "SHOW fsync": ("on",),
}


def refusal(parameters: dict[str, str]) -> tuple[str, str] | None:
    has_it = "idle_session_timeout" in parameters.get("options", "")
    return ("42704", 'unrecognized configuration parameter "idle_session_timeout"') if has_it else None


@on_the_loop
async def test_an_idle_connection_that_identifies_the_server_again_logs_in_once_each_time() -> None:
    """A spare does so each second: a refused login each time would be a FATAL of the server's log each second."""
    async with TinyPostgres("13.0", ANSWERS).listening() as server:
        server.refuse = refusal
        connection = await ReplicationConnection.connect(server.conninfo)
        assert (len(server.logins), server.refused) == (2, 1)
        for count in (3, 4):
            assert not (await connection.identify()).in_recovery
            assert (len(server.logins), server.refused) == (count, 1)
        connection.close()
