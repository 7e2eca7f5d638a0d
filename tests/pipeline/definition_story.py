"""A server whose tables are defined, changed, rewritten and dropped in every way, and its catalogs after each step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from safekeeper.base.lsn import Lsn, parse_lsn
from tests.cluster_templates import cluster_template, init_by_copying
from tests.scratch import scratch_folder
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres, find_servers

SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "max_prepared_transactions": "5",
    "wal_keep_size": "1GB",
}
LONG_NAME = 'ein "Näme"; <script>' + "x" * (63 - 21)  # of 63 bytes

Step = tuple[str, ...]
"""Statements that are sent one after the other; only the last one commits something."""

STEPS: tuple[Step, ...] = (
    ("CREATE TABLE t (id int PRIMARY KEY, v text, n varchar(10))",),
    ("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i",),
    ("ALTER TABLE t ADD w int",),
    ("ALTER TABLE t ADD x int NOT NULL DEFAULT 7",),
    ("ALTER TABLE t ADD r double precision DEFAULT random()",),  # rewrites
    ("ALTER TABLE t ALTER n TYPE varchar(20)",),  # rewrites nothing
    ("ALTER TABLE t ALTER id TYPE bigint",),
    ("CREATE INDEX t_v ON t (v)",),
    ("CREATE INDEX CONCURRENTLY t_x ON t (x, v)",),
    ("CLUSTER t USING t_v",),
    ("VACUUM FULL t",),
    ("TRUNCATE t",),
    ("ALTER TABLE t DROP COLUMN v",),
    ("VACUUM FULL t",),
    ("ALTER TABLE t RENAME x TO y",),
    ("CHECKPOINT",),
    ("ALTER TABLE t ALTER w SET NOT NULL",),
    ("ALTER TABLE t RENAME TO u",),
    ("CREATE SCHEMA other",),
    ("ALTER TABLE u SET SCHEMA other",),
    ("SET wal_compression = pglz",),
    ("CHECKPOINT",),
    ("ALTER TABLE other.u ADD CONSTRAINT positive CHECK (y > 0)",),
    ("REINDEX TABLE other.u",),
    ("REINDEX TABLE CONCURRENTLY other.u",),
    ("ANALYZE other.u",),
    ("GRANT SELECT ON other.u TO pg_monitor",),
    ("ALTER TABLE other.u SET (fillfactor = 50)",),
    ("SET wal_compression = lz4",),
    ("CHECKPOINT",),
    ("SET allow_in_place_tablespaces = on",),
    ("CREATE TABLESPACE place LOCATION ''",),
    ("ALTER TABLE other.u SET TABLESPACE place",),
    ("CREATE TABLE made AS SELECT i, i::text AS t FROM generate_series(1, 1000) i",),
    ("ALTER TABLE made ADD c char(7), ALTER i TYPE text, DROP COLUMN t",),
    ("DELETE FROM made WHERE i > '5'",),
    ("VACUUM made",),  # may truncate its file
    ("CREATE VIEW seen AS SELECT * FROM made",),
    ("CREATE MATERIALIZED VIEW kept AS SELECT * FROM made",),
    ("REFRESH MATERIALIZED VIEW kept",),
    ("CREATE UNLOGGED TABLE unlogged (id serial PRIMARY KEY)",),
    ("ALTER TABLE unlogged SET LOGGED",),
    ("CREATE TEMPORARY TABLE passing (a int, b text)",),
    ("TRUNCATE passing",),
    ("DROP TABLE passing",),
    (f'CREATE TABLE "{LONG_NAME.replace(chr(34), chr(34) * 2)}" ("ä "" b" numeric(7, 2))',),
    ("CREATE TYPE mood AS ENUM ('sad', 'ok')",),
    ("CREATE DOMAIN small AS int CHECK (VALUE < 10)",),
    ("CREATE TYPE pair AS (a int, b mood)",),
    ("CREATE TABLE parts (a int, b text, PRIMARY KEY (a)) PARTITION BY RANGE (a)",),
    ("CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",),
    ("ALTER TABLE parts DETACH PARTITION part_1",),
    ("SET wal_compression = zstd",),
    ("CHECKPOINT",),
    # Each a transaction that ends otherwise.
    ("BEGIN", "CREATE TABLE never (a int)", "TRUNCATE other.u", "DROP TABLE made CASCADE", "ROLLBACK"),
    (
        "BEGIN",
        "SAVEPOINT one",
        "CREATE TABLE never (a int)",
        "ALTER TABLE made ADD never int",
        "ROLLBACK TO one",
        "SAVEPOINT two",
        "CREATE TABLE inner_one (a int)",
        "SAVEPOINT three",
        "ALTER TABLE inner_one ADD b text",
        "RELEASE three",
        "RELEASE two",
        "ALTER TABLE inner_one ALTER a TYPE bigint",
        "COMMIT",
    ),
    ("BEGIN", "CREATE TABLE later (a int)", "SAVEPOINT one", "TRUNCATE inner_one", "PREPARE TRANSACTION 'later'"),
    ("COMMIT PREPARED 'later'",),
    ("BEGIN", "CREATE TABLE never (a int)", "ALTER TABLE made ADD never int", "PREPARE TRANSACTION 'never'"),
    ("ROLLBACK PREPARED 'never'",),
    ("BEGIN", "CREATE TABLE brief (a int)", "ALTER TABLE brief ALTER a TYPE text", "DROP TABLE brief", "COMMIT"),
    # Enough to split pages of the catalogs' indexes, and to have their entries merged and removed.
    (
        """DO $$ BEGIN FOR i IN 1..150 LOOP
            EXECUTE format('CREATE TABLE many_%s (a int PRIMARY KEY, b text, c_%s date)', md5(i::text), i);
        END LOOP; END $$""",
    ),
    *(("TRUNCATE inner_one",) for _ in range(60)),
    ("CHECKPOINT",),
    *(("ALTER TABLE inner_one RENAME a TO a1",), ("ALTER TABLE inner_one RENAME a1 TO a",)) * 20,
    (
        """DO $$ BEGIN FOR i IN 1..75 LOOP
            EXECUTE format('DROP TABLE many_%s', md5(i::text));
        END LOOP; END $$""",
    ),
    ("DROP TABLE made CASCADE",),
    # From here on the indexes of pg_class have files that are not known.
    ("REINDEX TABLE pg_class",),
    ("TRUNCATE inner_one",),
    ("DROP SCHEMA other CASCADE",),
)

State = dict[str, dict[Any, tuple[Any, ...]]]
"""The rows of each catalog about users' objects, by OID, those of columns by relation and number."""

_USERS = "16384"
_QUERIES = {
    "pg_class": f"""
        SELECT c.oid::int8, relname, relnamespace::int8, relkind::text, nullif(pg_relation_filenode(c.oid), 0)::int8,
            CASE WHEN pg_relation_filenode(c.oid) > 0 THEN coalesce(nullif(reltablespace, 0), dattablespace)::int8 END
        FROM pg_class c, pg_database WHERE datname = current_database() AND c.oid >= {_USERS}""",
    "pg_attribute": f"""
        SELECT attrelid::int8, attnum, attname, atttypid::int8, atttypmod
        FROM pg_attribute WHERE attrelid >= {_USERS} AND attnum > 0 AND NOT attisdropped""",
    "pg_type": f"""
        SELECT oid::int8, typname, typnamespace::int8, typtype::text, typrelid::int8
        FROM pg_type WHERE oid >= {_USERS}""",
    "pg_index": f"SELECT indexrelid::int8, indrelid::int8 FROM pg_index WHERE indexrelid >= {_USERS}",
    "pg_constraint": f"""
        SELECT oid::int8, conname, connamespace::int8, contype::text, conrelid::int8
        FROM pg_constraint WHERE oid >= {_USERS}""",
}


class Done(NamedTuple):
    """A step that was carried out; its commit is in [begin_lsn, end_lsn)."""

    step: Step
    begin_lsn: Lsn
    end_lsn: Lsn
    state: State


def catalogs(connection: "psycopg.Connection[Any]") -> State:
    """Return what the catalogs have of users' objects."""
    state: State = {}
    for catalog, query in _QUERIES.items():
        keys = 2 if catalog == "pg_attribute" else 1
        rows = connection.execute(query.encode()).fetchall()
        state[catalog] = {row[:keys] if keys > 1 else row[0]: tuple(row[keys:]) for row in rows}
    return state


@contextmanager
def defined(major: int, wal_level: str) -> Iterator[tuple[LocalPostgres, list[Done]]]:
    """Carry out all steps on a server of a major version, and give it, stopped, with what was done."""
    settings = {**SETTINGS, "wal_level": wal_level}
    with (
        scratch_folder() as folder,
        LocalPostgres(find_servers()[major], folder / "data", settings=settings) as server,
    ):
        init_by_copying(server, cluster_template(server.binaries, 1)).start()
        with (
            psycopg.connect(server.conninfo(), autocommit=True) as connection,
            psycopg.connect(server.conninfo(), autocommit=True) as asking,
        ):
            done = [carry_out(connection, asking, step) for step in STEPS if _is_possible(asking, step)]
        server.stop()
        yield server, done


def _is_possible(connection: "psycopg.Connection[Any]", step: Step) -> bool:
    """Return whether the server was built with what a step needs."""
    if not step[0].startswith("SET wal_compression"):
        return True
    found = connection.execute("SELECT enumvals FROM pg_settings WHERE name = 'wal_compression'").fetchone()
    return found is not None and step[0].rpartition(" ")[2] in found[0]


def carry_out(connection: "psycopg.Connection[Any]", asking: "psycopg.Connection[Any]", step: Step) -> Done:
    """Carry out a step; return where in the log it is, and the catalogs afterwards."""
    begin_lsn = _insert_lsn(asking)
    for statement in step:
        connection.execute(statement.encode())
    return Done(step, begin_lsn, _insert_lsn(asking), catalogs(asking))


def _insert_lsn(connection: "psycopg.Connection[Any]") -> Lsn:
    found = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert found is not None
    return parse_lsn(found[0])


def replay(state: State, rows: Sequence[dict[str, Any]]) -> State:
    """Return the catalogs after changes, which are those of one step, in order."""
    after = {catalog: dict(found) for catalog, found in state.items()}
    for row in rows:
        catalog = row["catalog"]
        if catalog is None:
            continue
        key = (row["relation"], row["column_number"]) if catalog == "pg_attribute" else row["object"]
        assert key is not None and None not in (key if isinstance(key, tuple) else (key,)), row
        if row["change"] in ("drop", "drop_column"):
            del after[catalog][key]
            continue
        file = (row["file"], row["tablespace"] if row["file"] is not None else None)
        after[catalog][key] = {
            "pg_class": (row["name"], row["namespace"], row["object_kind"], *file),
            "pg_attribute": (row["name"], row["column_type"], row["type_modifier"]),
            "pg_index": (row["relation"],),
        }.get(catalog, (row["name"], row["namespace"], row["object_kind"], row["relation"]))
    return after


@contextmanager
def new_server(binaries: ServerBinaries) -> Iterator[LocalPostgres]:
    """Give a server as initdb makes it."""
    with scratch_folder() as folder, LocalPostgres(binaries, folder / "data", settings=SETTINGS) as server:
        yield init_by_copying(server, cluster_template(server.binaries, 1)).start()


_ALIGNMENTS = {"c": 1, "s": 2, "i": 4, "d": 8}


def column_offsets(connection: "psycopg.Connection[Any]", catalog: str) -> dict[str, tuple[int, int]]:
    """Return the offset and width of each column of a catalog, up to the first that is null or of any length."""
    rows = connection.execute(
        "SELECT attname, attlen, attalign::text, attnotnull FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        (catalog,),
    )
    found = {}
    at = 0
    for name, length, alignment, is_never_null in rows:
        if length < 0 or not is_never_null:
            break
        width = _ALIGNMENTS[alignment]
        at = (at + width - 1) // width * width
        found[name] = (at, length)
        at += length
    return found
