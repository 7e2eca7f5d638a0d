"""Names of relations: WAL has only the numbers of files, and only the server has the names.

A snapshot is taken from a server that runs, primary or standby, through one short connection to each of its databases.
It is one JSON file. A table that is rewritten (TRUNCATE, CLUSTER, VACUUM FULL, many an ALTER TABLE) gets another file
with another number, and the old number is known to older snapshots only: so they can be merged, the newest name of a
number winning. PostgreSQL gives numbers out of one counter, so a number of the past is not soon that of something else.

`RelationNames` answers for a triple (tablespace, database, relation) as the views have it. What it does not have it
shows as numbers after a `?`, which the commands take as well.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import ConfigurationError, WalproxyError
from walproxy.postgres.conninfo import parse_conninfo
from walproxy.postgres.sessions import open_blocking, sql_conninfo

NAMES_FILE: Final = "names.json"
"""Where a report expects the names, in the folder of the tables."""

_FORMAT: Final = 1
_STATEMENT_TIMEOUT_S: Final = 60
_KINDS: Final = {
    "r": "table",
    "i": "index",
    "S": "sequence",
    "t": "toast",
    "m": "materialized view",
}


class CatalogFailed(WalproxyError):
    """The server does not return the names, or not now."""


class RelationFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A relation and its file.

    Attributes:
        tablespace, database, relation: its identity in WAL; `database` is 0 for a shared relation.
        oid: of pg_class: it stays when the number of the file changes.
        kind: table, index, toast, sequence or materialized view.
        table: of an index, of a TOAST table and its index: the table, as `schema.name`; empty for a table itself.
    """

    tablespace: int
    database: int
    relation: int
    oid: int
    schema: str
    name: str
    kind: str
    table: str = ""


class CatalogNames(msgspec.Struct, frozen=True):
    """The names of the numbers, as far as they were read.

    Attributes:
        system_id: of the server that has these names.
        taken_at: when the newest of them were read.
        databases, tablespaces: OID to name.
        unread: databases whose relations were not read, and why.
    """

    system_id: int
    taken_at: datetime
    databases: dict[int, str]
    tablespaces: dict[int, str]
    unread: dict[str, str]
    relations: list[RelationFile]
    format: int = _FORMAT


class RelationId(NamedTuple):
    """A relation's identity in WAL."""

    tablespace: int
    database: int
    relation: int

    def __str__(self) -> str:
        return f"{self.tablespace}/{self.database}/{self.relation}"


class RelationNames:
    """Readable names. What is not known is shown as numbers."""

    def __init__(self, snapshot: CatalogNames | None = None) -> None:
        self.snapshot = snapshot
        relations = snapshot.relations if snapshot is not None else []
        self._files = {RelationId(each.tablespace, each.database, each.relation): each for each in relations}

    def __len__(self) -> int:
        return len(self._files)

    def file(self, tablespace: int, database: int, relation: int) -> RelationFile | None:
        """Return what is known of it."""
        return self._files.get(RelationId(tablespace, database, relation))

    def name(self, tablespace: int, database: int, relation: int) -> str:
        """Return `database.schema.name`, without a database for a shared relation; `?T/D/R (database)` if unknown."""
        numbers = RelationId(tablespace, database, relation)
        found = self._files.get(numbers)
        if found is None:
            known = self.database(database) if database else ""
            return f"?{numbers}" + (f" ({known})" if known and not known.startswith("?") else "")
        return ".".join((*self._prefix(database), quoted(found.schema), quoted(found.name)))

    def table(self, tablespace: int, database: int, relation: int) -> str:
        """Return the name of the table that it belongs to, its own name if it is one or nothing is known."""
        found = self.file(tablespace, database, relation)
        if found is None or not found.table:
            return self.name(tablespace, database, relation)
        return ".".join((*self._prefix(database), found.table))

    def database(self, database: int) -> str:
        """Return the name of a database, `?` and its number if unknown."""
        names = self.snapshot.databases if self.snapshot is not None else {}
        return names.get(database, f"?{database}")

    def rows(self) -> Iterable[tuple[int, int, int, str, str, str]]:
        """Yield (tablespace, database, relation, name, kind, name of its table) of all that is known."""
        for numbers, found in self._files.items():
            yield (*numbers, self.name(*numbers), found.kind, self.table(*numbers))

    def _prefix(self, database: int) -> tuple[str, ...]:
        return (quoted(self.database(database)),) if database else ()


def quoted(identifier: str) -> str:
    """Return an identifier as SQL needs it: in quotes where it is not plain."""
    plain = identifier.isascii() and identifier.replace("_", "a").isalnum() and identifier == identifier.lower()
    if plain and not identifier[0].isdigit():
        return identifier
    return '"' + identifier.replace('"', '""') + '"'


def open_names(place: str) -> RelationNames:
    """Return the names of a file that `walproxy pipeline catalog` has written, or of the server of a conninfo.

    Raises:
        ConfigurationError: it is neither.
        CatalogFailed: the server does not return them.
    """
    is_conninfo = "=" in place or "://" in place
    return RelationNames(take_snapshot(place) if is_conninfo and not Path(place).exists() else read_snapshot(place))


# Files.


def write_snapshot(snapshot: CatalogNames, path: Path) -> None:
    """Write a snapshot; a reader sees the old file or the new one.

    Raises:
        ConfigurationError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(snapshot), indent=1) + b"\n")
        temporary.replace(path)
    except OSError as error:
        raise ConfigurationError(f"could not write {path}: {error.strerror}; correct --output") from error


def read_snapshot(path: Path | str) -> CatalogNames:
    """Return the snapshot of a file.

    Raises:
        ConfigurationError: there is none, or it is of another kind.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read as a file of names: {error.strerror}; walproxy pipeline catalog creates one"
        ) from error
    return parse_snapshot(content, str(path))


def parse_snapshot(content: bytes, name: str) -> CatalogNames:
    """Return the snapshot that is the content of a file of this name.

    Raises:
        ConfigurationError: it is of another kind.
    """
    try:
        snapshot = msgspec.json.decode(content, type=CatalogNames)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{name} is not a file of names of walproxy pipeline catalog: {error}") from error
    if snapshot.format != _FORMAT:
        raise ConfigurationError(f"{name} is a file of names of another version, {snapshot.format}: create it again")
    return snapshot


def merge(snapshots: Iterable[CatalogNames]) -> CatalogNames:
    """Return all names of several snapshots of one system: for each number the newest.

    Raises:
        ConfigurationError: they are of different systems.
    """
    ordered = sorted(snapshots, key=lambda each: each.taken_at)
    newest = ordered[-1]
    files: dict[RelationId, RelationFile] = {}
    databases: dict[int, str] = {}
    tablespaces: dict[int, str] = {}
    for each in ordered:
        if each.system_id != newest.system_id:
            raise ConfigurationError(
                f"the names are of two systems, {each.system_id} and {newest.system_id}: merge those of one only"
            )
        databases |= each.databases
        tablespaces |= each.tablespaces
        files |= {RelationId(file.tablespace, file.database, file.relation): file for file in each.relations}
    return CatalogNames(
        newest.system_id,
        newest.taken_at,
        databases,
        tablespaces,
        newest.unread,
        sorted(files.values(), key=lambda file: (file.database, file.relation, file.tablespace)),
    )


# Servers.

_SYSTEM_QUERY: Final = "SELECT system_identifier FROM pg_catalog.pg_control_system()"
_TABLESPACES_QUERY: Final = "SELECT oid::int8, spcname FROM pg_catalog.pg_tablespace"
_DATABASES_QUERY: Final = """
    SELECT oid::int8, datname, dattablespace::int8, datallowconn,
           pg_catalog.has_database_privilege(oid, 'CONNECT')
    FROM pg_catalog.pg_database ORDER BY oid
"""
# A mapped relation (pg_class itself, shared catalogs) has 0 as relfilenode; the function returns its number. Temporary
# relations are in no WAL. An index belongs to its table, and that of a TOAST table to whose TOAST table it is.
_RELATIONS_QUERY: Final = """
    SELECT coalesce(nullif(c.reltablespace::int8, 0), %(tablespace)s),
           CASE WHEN c.relisshared THEN 0 ELSE %(database)s END,
           pg_catalog.pg_relation_filenode(c.oid)::int8,
           c.oid::int8, n.nspname, c.relname, c.relkind, tn.nspname, t.relname
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_index i ON c.relkind = 'i' AND i.indexrelid = c.oid
    LEFT JOIN pg_catalog.pg_class o ON o.relkind <> 't' AND o.reltoastrelid <> 0
                                   AND o.reltoastrelid = coalesce(i.indrelid, c.oid)
    LEFT JOIN pg_catalog.pg_class t ON t.oid = coalesce(o.oid, i.indrelid)
    LEFT JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
    WHERE c.relkind IN ('r', 'i', 'S', 't', 'm') AND c.relpersistence <> 't'
      AND pg_catalog.pg_relation_filenode(c.oid) IS NOT NULL
"""


def take_snapshot(conninfo: str) -> CatalogNames:
    """Read the names of all relations of a server.

    A database that takes no connection, or none of this role, is named in `unread`.

    Raises:
        ConfigurationError: the connection string is wrong.
        CatalogFailed: no connection, or no answer.
    """
    first = parse_conninfo(sql_conninfo(conninfo))
    with _connect(first) as connection:
        [(system_id,)] = _ask(connection, _SYSTEM_QUERY)
        tablespaces = dict(_ask(connection, _TABLESPACES_QUERY))
        databases = _ask(connection, _DATABASES_QUERY)
    relations: dict[RelationId, RelationFile] = {}
    unread = {}
    for oid, name, tablespace, takes_connections, is_permitted in databases:
        if not takes_connections or not is_permitted:
            unread[name] = "this role may not connect" if takes_connections else "it does not accept connections"
            continue
        try:
            with _connect({**first, "dbname": name}) as connection:
                rows = _ask(connection, _RELATIONS_QUERY, {"tablespace": tablespace, "database": oid})
        except CatalogFailed as error:
            unread[name] = str(error)
            continue
        for row in rows:
            file = _relation_file(row)
            relations[RelationId(file.tablespace, file.database, file.relation)] = file
    return CatalogNames(
        system_id,
        datetime.now(UTC),
        {oid: name for oid, name, *_ in databases},
        tablespaces,
        unread,
        list(relations.values()),
    )


def _relation_file(row: tuple[Any, ...]) -> RelationFile:
    tablespace, database, relation, oid, schema, name, kind, table_schema, table = row
    belongs_to = f"{quoted(table_schema)}.{quoted(table)}" if table is not None else ""
    return RelationFile(tablespace, database, relation, oid, schema, name, _KINDS[kind], belongs_to)


def _connect(words: dict[str, str]) -> "psycopg.Connection[tuple[Any, ...]]":
    try:
        return open_blocking(
            make_conninfo("", **words),
            application_name="walproxy pipeline",
            statement_timeout_s=_STATEMENT_TIMEOUT_S,
        )
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise CatalogFailed(
            f"cannot connect to the database {words.get('dbname', '')!r}: {reason}; correct --primary"
        ) from None


def _ask(
    connection: "psycopg.Connection[tuple[Any, ...]]", query: str, parameters: dict[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(query.encode(), parameters).fetchall()
    except psycopg.Error as error:
        raise CatalogFailed(f"cannot read the names of relations: {' '.join(str(error).split())}") from None
