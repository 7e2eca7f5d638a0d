"""Work that makes a PostgreSQL server of version 13 or newer write records of almost every kind.

Contrib modules and features that a server does not have are left out. Each stage is independent of the others. `rows`
sizes them: a few thousand reach most kinds of records, a hundred thousand split and delete pages of every index and
fill pages of the commit log.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from walproxy.postgres.local_server import LocalPostgres

MIB: Final = 1 << 20
MESSAGE_BYTES: Final = 20 * MIB

Stage = Callable[[LocalPostgres, int], None]

_STRATEGIES_SINCE: Final = 15
_DATABASES: Final = (
    "CREATE DATABASE copied STRATEGY file_copy",
    "DROP DATABASE copied",
    "CREATE DATABASE logged STRATEGY wal_log",
)
_TABLESPACE: Final = (
    "SET allow_in_place_tablespaces = on",
    "CREATE TABLESPACE place LOCATION ''",
    "CREATE TABLE elsewhere (n int) TABLESPACE place",
    "INSERT INTO elsewhere VALUES (1)",
    "DROP TABLE elsewhere",
    "DROP TABLESPACE place",
)


@contextmanager
def connected(server: LocalPostgres, **options: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection in autocommit mode."""
    with psycopg.connect(server.conninfo(**options), autocommit=True) as connection:
        yield connection


def script(server: LocalPostgres, *statements: str) -> None:
    """Run statements one by one in one connection."""
    with connected(server) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def pgbench(server: LocalPostgres, *options: str) -> None:
    """Run pgbench on the server's database `postgres`."""
    command: list[str | Path] = [server.binaries.path("pgbench"), "-h", "127.0.0.1", "-p", str(server.port)]
    subprocess.run([*command, "-U", "postgres", *options, "postgres"], check=True, capture_output=True)


def _has_setting(server: LocalPostgres, name: str) -> bool:
    # Developers' settings are not listed.
    return server.execute("SELECT current_setting(%s, true) IS NOT NULL", name) == [(True,)]


def bank(server: LocalPostgres, rows: int) -> None:
    """pgbench: its tables and its transactions."""
    pgbench(server, "-i", "-I", "dtgvp", "-s", "1", "-q")
    pgbench(server, "-n", "-c", "2", "-t", str(max(rows // 20, 50)))


def indexes(server: LocalPostgres, rows: int) -> None:
    """Every access method: built, inserted into, page splits, deletes, vacuum; and generic records, by bloom."""
    has_bloom = server.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'bloom'") != []
    bloom = ("CREATE EXTENSION IF NOT EXISTS bloom", "CREATE INDEX many_bloom ON many USING bloom (id)")
    script(
        server,
        "CREATE TABLE many (id int, words int[], place point, body text, day timestamptz)",
        "CREATE INDEX many_btree ON many (id)",
        "CREATE INDEX many_gin ON many USING gin (words)",
        "CREATE INDEX many_gist ON many USING gist (place)",
        "CREATE INDEX many_spgist ON many USING spgist (place)",
        "CREATE INDEX many_text ON many USING spgist (body)",
        "CREATE INDEX many_hash ON many USING hash (id)",
        "CREATE INDEX many_brin ON many USING brin (day) WITH (pages_per_range = 1, autosummarize = on)",
        *(bloom if has_bloom else ()),
        "INSERT INTO many SELECT n, ARRAY[n % 7, n % 1000, n], point(n % 331, n * 7919 % 1013), "
        f"md5(n::text) || n, now() + n * interval '1 minute' FROM generate_series(1, {rows}) n",
        "SELECT gin_clean_pending_list('many_gin'), brin_summarize_new_values('many_brin')",
        "SELECT brin_desummarize_range('many_brin', 1)",
        "UPDATE many SET place = point(id, id), body = id::text, words = words || id + 1 WHERE id % 3 = 0",
        "DELETE FROM many WHERE id % 5 <> 0 AND id % 11 <> 0",
        "VACUUM many",
        f"DELETE FROM many WHERE id < {rows} / 2",
        "VACUUM (FREEZE, INDEX_CLEANUP ON) many",
        "CREATE INDEX CONCURRENTLY many_again ON many (body)",
        "REINDEX INDEX many_hash",
        "CREATE TABLE same (words int[])",
        "CREATE INDEX same_gin ON same USING gin (words) WITH (fastupdate = off)",
        "INSERT INTO same SELECT '{1}' FROM generate_series(1, 3000)",
        "DELETE FROM same",
        "VACUUM same",
    )


def toast(server: LocalPostgres, rows: int) -> None:
    """Values that are stored out of line, compressed or not."""
    script(
        server,
        "CREATE TABLE wide (id int PRIMARY KEY, plain text, packed text)",
        "ALTER TABLE wide ALTER plain SET STORAGE external",
        "INSERT INTO wide SELECT n, repeat(md5(n::text), 400), repeat('pack', 9000) "
        f"FROM generate_series(1, {min(rows // 100 + 2, 200)}) n",
        "UPDATE wide SET plain = plain || 'x' WHERE id % 3 = 0",
        "DELETE FROM wide WHERE id % 4 = 0",
        "VACUUM wide",
    )


def subtransactions(server: LocalPostgres, rows: int) -> None:
    """More savepoints than a backend keeps in shared memory, released and rolled back, committed and aborted."""
    with connected(server) as connection:
        connection.execute("CREATE TABLE nested (n int)")
        for outcome in ("COMMIT", "ROLLBACK"):
            connection.execute("BEGIN")
            for number in range(100):
                connection.execute("SAVEPOINT here")
                connection.execute("INSERT INTO nested VALUES (%s)", (number,))
                if number % 10 == 0:
                    connection.execute("ROLLBACK TO here")
            connection.execute(outcome.encode())


def two_phase(server: LocalPostgres, rows: int) -> None:
    """Prepared transactions: committed and rolled back, with subtransactions and with files to delete."""
    for number, outcome in enumerate(("COMMIT", "ROLLBACK", "COMMIT", "ROLLBACK")):
        script(
            server,
            "BEGIN",
            f"CREATE TABLE prepared_{number} AS SELECT n FROM generate_series(1, 50) n",
            "SAVEPOINT one",
            f"INSERT INTO prepared_{number} VALUES (1)",
            "RELEASE one",
            f"PREPARE TRANSACTION 'gid, number {number}: {'long ' * 10 * number}'",
            "CHECKPOINT",
            f"{outcome} PREPARED 'gid, number {number}: {'long ' * 10 * number}'",
        )
    script(server, "BEGIN", "DROP TABLE prepared_0", "PREPARE TRANSACTION 'drop'", "COMMIT PREPARED 'drop'")


def definitions(server: LocalPostgres, rows: int) -> None:
    """DDL, rewrites, truncation, sequences, a relation map, databases and tablespaces."""
    script(
        server,
        "SELECT pg_create_logical_replication_slot('rewrites', 'pgoutput')",
        "CREATE TABLE defined (id serial PRIMARY KEY, v text DEFAULT 'v')",
        f"INSERT INTO defined (v) SELECT n::text FROM generate_series(1, {rows}) n",
        "ALTER TABLE defined ADD w int DEFAULT 7, ALTER v TYPE varchar(90)",
        "ALTER TABLE defined ALTER w TYPE bigint",
        "CREATE VIEW seen AS SELECT * FROM defined",
        "CLUSTER defined USING defined_pkey",
        "DELETE FROM defined WHERE id % 2 = 0",
        "VACUUM FULL defined",
        f"DELETE FROM defined WHERE id > {rows} / 2",
        "VACUUM defined",
        "VACUUM FULL pg_class",
        "SELECT setval('defined_id_seq', 77), nextval('defined_id_seq')",
        "ALTER SEQUENCE defined_id_seq RESTART",
        "TRUNCATE defined RESTART IDENTITY",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
        "ALTER TABLE unlogged SET LOGGED",
        "CREATE MATERIALIZED VIEW kept AS SELECT n FROM generate_series(1, 500) n",
        "REFRESH MATERIALIZED VIEW kept",
        "DROP VIEW seen",
        "BEGIN",
        "CREATE TABLE never (n int)",
        "ROLLBACK",
        "SELECT pg_drop_replication_slot('rewrites')",
        *(_TABLESPACE if _has_setting(server, "allow_in_place_tablespaces") else ()),
        *(_DATABASES if server.binaries.major >= _STRATEGIES_SINCE else ("CREATE DATABASE copied",)),
        "CREATE ROLE somebody",
        "GRANT SELECT ON defined TO somebody",
    )


def server_events(server: LocalPostgres, rows: int) -> None:
    """What the server itself says: a restore point, and that full-page writes were off for a while."""
    server.execute("SELECT pg_create_restore_point('here')")
    for state in ("off", "on"):
        server.execute(f"ALTER SYSTEM SET full_page_writes = {state}")
        server.execute("SELECT pg_reload_conf()")
        server.execute("CHECKPOINT")
    server.execute("ALTER SYSTEM RESET ALL")


def multixacts(server: LocalPostgres, rows: int) -> None:
    """Rows that two transactions lock at once, and that one of them updates."""
    with connected(server) as first, connected(server) as second:
        first.execute("CREATE TABLE shared (id int PRIMARY KEY, v int)")
        first.execute("INSERT INTO shared SELECT n, 0 FROM generate_series(1, 30) n")
        for lock in ("SHARE", "KEY SHARE"):
            for connection in (first, second):
                connection.execute("BEGIN")
                connection.execute(f"SELECT * FROM shared FOR {lock}".encode())
            if lock == "KEY SHARE":
                first.execute("UPDATE shared SET v = 1")
            first.execute("COMMIT")
            second.execute("COMMIT")
        first.execute("BEGIN")
        first.execute("UPDATE shared SET v = 3 WHERE id > 20")
        second.execute("SELECT * FROM shared FOR KEY SHARE")  # locks the rows that are being made, too
        first.execute("COMMIT")
        second.execute("UPDATE shared SET v = 2 WHERE id < 9")
        second.execute("VACUUM (FREEZE) shared")


def copies(server: LocalPostgres, rows: int) -> None:
    """COPY, upserts, row locks, updates that stay on their page, pruning."""
    with connected(server) as connection:
        connection.execute("CREATE TABLE copied (id int PRIMARY KEY, v int, filler text) WITH (fillfactor = 60)")
        with connection.cursor() as cursor, cursor.copy("COPY copied FROM STDIN") as copy:
            for number in range(rows):
                copy.write_row((number, 0, "f" * (number % 80)))
        for value in range(1, 6):
            connection.execute("UPDATE copied SET v = %s WHERE id %% 3 = 0", (value,))
        upsert = "INSERT INTO copied VALUES (1, 1, 'u'), (-1, 1, 'u') ON CONFLICT (id) DO UPDATE SET v = excluded.v"
        connection.execute(upsert)
        connection.execute(upsert)
        connection.execute("SELECT * FROM copied WHERE id < 20 FOR UPDATE")
        connection.execute("ALTER TABLE copied REPLICA IDENTITY FULL")
        connection.execute("DELETE FROM copied WHERE id % 7 = 0")


def messages(server: LocalPostgres, rows: int) -> None:
    """Logical messages of all sizes, in transactions and beside them, one longer than a segment; switches."""
    sizes = f"FROM generate_series(1, {rows}) n"
    script(
        server,
        f"SELECT count(pg_logical_emit_message(false, 'p', repeat('x', (n * 7919) % 311))) {sizes}",
        f"SELECT count(pg_logical_emit_message(true, 'prefix', repeat('y', n % 97))) {sizes}",
        "SELECT pg_switch_wal()",
        "SELECT pg_switch_wal()",
        f"SELECT pg_logical_emit_message(true, 'big', repeat('b', {MESSAGE_BYTES}))",
        "SELECT pg_logical_emit_message(false, 'p', 'behind it')",
        "SELECT pg_switch_wal()",
    )


def images(server: LocalPostgres, rows: int) -> None:
    """Full-page images: with a hole and without, with each compression, of hints, and such as are only compared."""
    # Before PostgreSQL 15 it is on or off.
    [[methods]] = server.execute("SELECT coalesce(enumvals, '{on}') FROM pg_settings WHERE name = 'wal_compression'")
    with connected(server) as connection:
        connection.execute("CREATE TABLE pages (id int PRIMARY KEY, v int, t text) WITH (fillfactor = 40)")
        connection.execute("INSERT INTO pages SELECT n, 0, repeat('t', n % 200) FROM generate_series(1, 2000) n")
        for number, method in enumerate(sorted({"off", *methods})):
            connection.execute(f"SET wal_compression = {method}".encode())
            connection.execute("CHECKPOINT")
            connection.execute("UPDATE pages SET v = %s WHERE id %% 4 = 0", (number,))
            connection.execute("CHECKPOINT")
            connection.execute("SELECT count(*) FROM pages WHERE v >= 0")
        connection.execute("SET wal_consistency_checking = 'all'")
        connection.execute("UPDATE pages SET v = -1 WHERE id % 10 = 0")
        connection.execute("INSERT INTO pages SELECT -n, 0, 'n' FROM generate_series(1, 40) n")


def origins(server: LocalPostgres, rows: int) -> None:
    """Transactions that say that they come from another server."""
    script(
        server,
        "SELECT pg_replication_origin_create('afar')",
        "SELECT pg_replication_origin_session_setup('afar')",
        "CREATE TABLE replicated (n int)",
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('7/ABCDEF0', '2026-02-03 04:05:06.789+00')",
        "INSERT INTO replicated VALUES (1)",
        "COMMIT",
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('7/ABCDEF8', '2026-02-03 04:05:07+00')",
        "SAVEPOINT here",
        "INSERT INTO replicated VALUES (2)",
        "ROLLBACK",
        "SELECT pg_replication_origin_session_reset()",
        "SELECT pg_replication_origin_advance('afar', '7/ABCDFF0')",
        "SELECT pg_replication_origin_drop('afar')",
    )
    with connected(server, options="-c synchronous_commit=remote_apply") as connection:
        connection.execute("INSERT INTO replicated VALUES (3)")


def xids(server: LocalPostgres, rows: int) -> None:
    """So many transaction ids that the logs of commits and of their times begin new pages."""
    with connected(server) as connection:
        connection.execute("CREATE TABLE burnt (n int)")
        connection.execute(
            "CREATE PROCEDURE burn(times int) LANGUAGE plpgsql AS $$ BEGIN FOR n IN 1..times LOOP BEGIN "
            "INSERT INTO burnt VALUES (n); EXCEPTION WHEN division_by_zero THEN NULL; END; "
            "IF n % 1000 = 0 THEN COMMIT; END IF; END LOOP; END $$"
        )
        connection.execute(f"CALL burn({rows})".encode())


STAGES: Final[tuple[Stage, ...]] = (
    bank,
    indexes,
    toast,
    subtransactions,
    two_phase,
    definitions,
    server_events,
    multixacts,
    copies,
    messages,
    images,
    origins,
    xids,
)
