"""Publications: created, dropped, and required to exist. Their tables: published_tables.py.

A publication is what pgoutput sends. It must be made before the slot: the plugin looks it up as it was at each change.
Source: https://www.postgresql.org/docs/current/sql-createpublication.html
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from psycopg import sql

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.cdc.server import Connection, SourceRefused, one_line_errors, one_value

_BUILT_IN_OIDS: Final = 10_000


class TableName(NamedTuple):
    """A table, as PostgreSQL names it."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def parse_table(text: str) -> TableName:
    """Return the table that `schema.name` or `name` (in public) means. Names are as stored, without quotes.

    Raises:
        ConfigurationError: it is neither.
    """
    schema, dot, name = text.partition(".")
    if not dot:
        schema, name = "public", text
    if not schema or not name:
        raise ConfigurationError(f"{text!r} is not the name of a table: write schema.name")
    return TableName(schema, name)


def create_publication(connection: Connection, publication: str, tables: Sequence[TableName]) -> bool:
    """Make a publication of these tables, of all tables if there are none; False if there is one of that name already.

    Raises:
        SourceRefused: it cannot be made.
        SourceUnavailable: the server does not answer.
    """
    if publication_exists(connection, publication):
        return False
    of: sql.Composable = sql.SQL("FOR ALL TABLES")
    if tables:
        of = sql.SQL("FOR TABLE {}").format(sql.SQL(", ").join(sql.Identifier(*table) for table in tables))
    command = sql.SQL("CREATE PUBLICATION {} {}").format(sql.Identifier(publication), of)
    with one_line_errors(f"create publication {publication!r}"):
        connection.execute(command)
    return True


def drop_publication(connection: Connection, publication: str) -> None:
    """Drop a publication, if it is there. Raises SourceUnavailable, SourceRefused."""
    with one_line_errors(f"drop publication {publication!r}"):
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))


def publication_exists(connection: Connection, publication: str) -> bool:
    """Return whether there is a publication of that name. Raises SourceUnavailable, SourceRefused."""
    query = "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = %(name)s)"
    return bool(one_value(connection, query, {"name": publication}, doing="read the publications"))


def require_publications(connection: Connection, publications: Iterable[str]) -> None:
    """See that they exist.

    Raises:
        SourceRefused: one does not.
        SourceUnavailable: the server does not answer.
    """
    for publication in publications:
        if not publication_exists(connection, publication):
            raise SourceRefused(
                f"publication {publication!r} does not exist: create it, with `walproxy pipeline cdc create`, before "
                "the slot"
            )


_BASE_TYPE = """
    WITH RECURSIVE base (type, modifier, kind) AS (
        SELECT oid, %(modifier)s::int, typtype FROM pg_type WHERE oid = %(oid)s
        UNION ALL
        SELECT u.oid, CASE WHEN b.modifier >= 0 THEN b.modifier ELSE t.typtypmod END, u.typtype
          FROM base b JOIN pg_type t ON t.oid = b.type JOIN pg_type u ON u.oid = t.typbasetype WHERE b.kind = 'd'
    )
    SELECT type, modifier FROM base WHERE kind <> 'd'
"""


def base_type(connection: Connection, type_oid: int, type_modifier: int) -> tuple[int, int]:
    """Return OID and modifier of a type, of a domain those of the type below; itself if the server no longer has it.

    Raises:
        SourceUnavailable: the server does not answer.
    """
    if type_oid < _BUILT_IN_OIDS:
        return type_oid, type_modifier
    with one_line_errors("look up a type"):
        row = connection.execute(_BASE_TYPE, {"oid": type_oid, "modifier": type_modifier}).fetchone()
    return (type_oid, type_modifier) if row is None else (row[0], row[1])
