"""The owner of a database cannot have our role execute functions, operators or views of the owner's.

The database has its own search_path, in which a schema comes before pg_catalog that has every function, operator and
relation of it that an owner can make: each of them raises an error, which stands in the server's log.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import closing

import psycopg
import pytest

from safekeeper.waldecode.record_body import RelationLocator
from tests.integration.conftest import EVERY, NewCluster
from walproxy.agent.managed_server import ManagedServer
from walproxy.agent.source import Source
from walproxy.failover.relation_names import relation_names
from walproxy.failover.server import Server
from walproxy.limbo.facts import WaitingSession
from walproxy.limbo.sessions import end_waits, is_fenced, read_waiting_sessions, set_fence
from walproxy.pipeline.cdc.publication import TableName, create_publication, drop_publication
from walproxy.pipeline.cdc.published_tables import published_tables
from walproxy.pipeline.cdc.safe_lsn import NO_QUORUM, SafeLsn
from walproxy.pipeline.cdc.server import connect, server_start, system_id
from walproxy.pipeline.cdc.slot import create_slot, drop_slot, have_flushed, usable_slot
from walproxy.pipeline.jobs.catalog import take_snapshot
from walproxy.postgres.hosts import primary_hosts
from walproxy.postgres.local_server import LocalPostgres
from walproxy.postgres.sessions import SqlSessions
from walproxy.postgres.slot_holder import SlotHolder
from walproxy.postgres.sql import read_slot, try_session
from walproxy.proxy.primary_query import read_primary

SLOT = "held"
EVIL = """
CREATE SCHEMA evil;
DO $make$
DECLARE
  body text := $$BEGIN RAISE EXCEPTION 'EVIL was executed'; END$$;
  each record;
  made int := 0;
BEGIN
  FOR each IN SELECT proname, pg_get_function_identity_arguments(oid) AS given, pg_get_function_result(oid) AS result
      FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L',
                     each.proname, each.given, each.result, body);
      made := made + 1;
    EXCEPTION WHEN others THEN NULL;
    END;
  END LOOP;
  FOR each IN SELECT oid, oprname, format_type(oprleft, NULL) AS l, format_type(oprright, NULL) AS r,
      format_type(oprresult, NULL) AS result FROM pg_operator WHERE oprkind = 'b' LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION evil.op%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L',
                     each.oid, each.l, each.r, each.result, body);
      EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.op%s, LEFTARG = %s, RIGHTARG = %s)',
                     each.oprname, each.oid, each.l, each.r);
      made := made + 1;
    EXCEPTION WHEN others THEN NULL;
    END;
  END LOOP;
  EXECUTE format('CREATE FUNCTION evil.step(bigint) RETURNS bigint LANGUAGE plpgsql AS %L', body);
  CREATE AGGREGATE evil.count(*) (SFUNC = evil.step, STYPE = bigint, INITCOND = '0');
  EXECUTE format('CREATE FUNCTION evil.is_trapped() RETURNS boolean LANGUAGE plpgsql AS %L', body);
  FOR each IN SELECT relname FROM pg_class
      WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v') LOOP
    BEGIN
      EXECUTE format('CREATE VIEW evil.%I AS SELECT * FROM pg_catalog.%I WHERE evil.is_trapped()',
                     each.relname, each.relname);
    EXCEPTION WHEN others THEN NULL;
    END;
  END LOOP;
  IF made < 3000 THEN RAISE 'only % were made', made; END IF;
END $make$;
ALTER DATABASE shop SET search_path = evil, pg_catalog;
"""


async def watch_primary(conninfo: str) -> None:
    async with SqlSessions(conninfo) as sessions:
        for _ in range(2):
            await read_primary(sessions, SLOT)


async def fence(conninfo: str) -> None:
    await set_fence(conninfo, True, timeout_s=10)
    await is_fenced(conninfo, timeout_s=10)
    await set_fence(conninfo, False, timeout_s=10)


async def end_a_wait(conninfo: str) -> None:
    session = WaitingSession(1, 3, "postgres", "", "", "COMMIT", "")
    await end_waits(conninfo, [session], lambda _: True, terminate=True, timeout_s=10)


def agent_looks(server: LocalPostgres, conninfo: str) -> None:
    managed = ManagedServer(server.data_directory, server.binaries.bin_directory, conninfo, log_path=server.log_path)
    look = managed.look(10.0)
    assert not look.problem, look.problem
    managed.end_session()


def failover_looks(conninfo: str) -> None:
    look = Server(primary_hosts(conninfo)[0]).look(10.0)
    assert not look.problem, look.problem


def names_of_relations(server: LocalPostgres, conninfo: str) -> None:
    [(oid, file)] = server.execute("SELECT oid::bigint, 1259 FROM pg_database WHERE datname = 'shop'")
    names, problems = relation_names(conninfo, [RelationLocator(1663, int(oid), int(file))])
    assert not problems, problems
    assert set(names.values()) <= {"shop.pg_catalog.pg_class"}


def follow_changes(conninfo: str) -> None:
    with closing(connect(conninfo, writes=True)) as connection:
        create_publication(connection, "published", [TableName("public", "goods")])
        create_slot(connection, "cdc")
        usable_slot(connection, "cdc")
        assert [each.table.name for each in published_tables(connection, ["published"])] == ["goods"]
        SafeLsn(NO_QUORUM).read(connection)
        assert system_id(connection) and server_start(connection)
        have_flushed(connection)
        drop_slot(connection, "cdc")
        drop_publication(connection, "published")


def waits_for(function: Callable[[str], Awaitable[object]]) -> Callable[[LocalPostgres, str], object]:
    async def awaited(conninfo: str) -> None:
        await function(conninfo)

    return lambda _, conninfo: asyncio.run(awaited(conninfo))


CONNECTING: dict[str, Callable[[LocalPostgres, str], object]] = {
    "a proxy tries a session": waits_for(try_session),
    "a proxy looks at a slot": waits_for(lambda conninfo: read_slot(conninfo, SLOT)),
    "a proxy watches its primary": waits_for(watch_primary),
    "a takeover": waits_for(lambda conninfo: SlotHolder(conninfo, SLOT, 10.0).end()),
    "the limbo reads sessions": waits_for(lambda conninfo: read_waiting_sessions(conninfo, timeout_s=10)),
    "the limbo ends waits": waits_for(end_a_wait),
    "the fence": waits_for(fence),
    "an agent": agent_looks,
    "an agent's new primary": lambda _, conninfo: Source(conninfo, 10.0).facts(),
    "a failover": lambda _, conninfo: failover_looks(conninfo),
    "names of discarded rows": names_of_relations,
    "names of the pipeline": lambda _, conninfo: take_snapshot(conninfo),
    "row changes": lambda _, conninfo: follow_changes(conninfo),
}


def executed(server: LocalPostgres) -> list[str]:
    """The lines of the server's log about what of the owner's was executed."""
    return [line for line in server.log_path.read_text().splitlines() if re.search("ERROR:.*EVIL was executed", line)]


@EVERY
def test_no_command_executes_what_the_owner_of_a_database_has_put_before_the_catalog(new_cluster: NewCluster) -> None:
    server = new_cluster(wal_level="logical")
    server.execute("CREATE ROLE owner LOGIN")
    server.execute("CREATE DATABASE shop OWNER owner")
    server.execute("SELECT pg_create_physical_replication_slot(%s)", SLOT)
    conninfo = server.conninfo(dbname="shop")
    with psycopg.connect(server.conninfo(user="owner", dbname="shop"), autocommit=True) as owner:
        owner.execute("CREATE TABLE public.goods (id int PRIMARY KEY)")
        owner.execute(EVIL.encode())
    with psycopg.connect(conninfo, autocommit=True) as unprotected, pytest.raises(psycopg.Error, match="EVIL"):
        unprotected.execute("SELECT current_setting('server_version', true)")
    before = len(executed(server))
    assert before == 1
    failed = {}
    for name, command in CONNECTING.items():
        try:
            command(server, conninfo)
        except Exception as error:
            failed[name] = error
        found = executed(server)
        assert len(found) == before, f"{name}: {found}"
    assert not failed
