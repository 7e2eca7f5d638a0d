"""What a publication has: its tables, their columns and their keys, as the catalogs say now.

A publication is what pgoutput sends. It must be made before the slot: the plugin looks it up as it was at each change.
Source: https://www.postgresql.org/docs/current/view-pg-publication-tables.html
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from psycopg import sql

from safekeeper.errors import ConfigurationError
from walproxy.pipeline.cdc.server import Connection, SourceRefused, one_line_errors, one_value, server_major

_FIRST_WITH_COLUMN_LISTS: Final = 15
_BUILT_IN_OIDS: Final = 10_000


class TableName(NamedTuple):
    """A table, as PostgreSQL names it."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class PublishedColumn(NamedTuple):
    """A column that is sent.

    Attributes:
        type_oid, type_modifier: of a domain, those of the type below.
        number: pg_attribute.attnum: numbers of dropped columns are not used again.
        is_plain: rows that are older than the column have null in it, as far as the catalogs say.
    """

    name: str
    type_oid: int
    type_modifier: int
    number: int
    is_plain: bool


class PublishedTable(NamedTuple):
    """A table of a publication.

    Attributes:
        file_number: of its file; another one after its rows were written anew.
        replica_identity: d(efault), n(othing), f(ull) or i(ndex).
        key: the columns that tell its rows apart in what is sent; with a full identity, its primary key; none if empty.
        row_filter: an SQL expression that says which rows are sent, None for all.
        is_partitioned: its rows lie in its partitions, and are sent as its own.
    """

    table: TableName
    oid: int
    file_number: int
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[PublishedColumn, ...]
    row_filter: str | None
    is_partitioned: bool


def parse_table(text: str) -> TableName:
    """Return the table that `schema.name` or `name` (in public) means. Names are as stored, without quotes.

    Raises:
        ConfigurationError: it is neither.
    """
    schema, dot, name = text.partition(".")
    if not dot:
        schema, name = "public", text
    if not schema or not name:
        raise ConfigurationError(f"{text!r} is no table: write schema.name")
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
    with one_line_errors(f"make publication {publication!r}"):
        connection.execute(command)
    return True


def drop_publication(connection: Connection, publication: str) -> None:
    """Drop a publication, if it is there. Raises SourceUnavailable, SourceRefused."""
    with one_line_errors(f"drop publication {publication!r}"):
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))


def publication_exists(connection: Connection, publication: str) -> bool:
    """Return whether there is a publication of that name. Raises SourceUnavailable, SourceRefused."""
    query = "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = %(name)s)"
    return bool(one_value(connection, query, {"name": publication}, doing="look at the publications"))


def require_publications(connection: Connection, publications: Iterable[str]) -> None:
    """See that they exist.

    Raises:
        SourceRefused: one does not.
        SourceUnavailable: the server does not answer.
    """
    for publication in publications:
        if not publication_exists(connection, publication):
            raise SourceRefused(
                f"there is no publication {publication!r}: make it with `walproxy pipeline cdc create`, before the slot"
            )


_INCOMPLETE = """
    SELECT min(pubname) FROM pg_publication
     WHERE pubname = ANY (%(publications)s) AND NOT (pubinsert AND pubupdate AND pubdelete AND pubtruncate)
"""


def require_all_changes(connection: Connection, publications: Sequence[str]) -> None:
    """See that the publications send every kind of change.

    Raises:
        SourceRefused: one leaves some out.
        SourceUnavailable: the server does not answer.
    """
    parameters = {"publications": list(publications)}
    incomplete = one_value(connection, _INCOMPLETE, parameters, doing="look at the publications")
    if incomplete is not None:
        raise SourceRefused(
            f"publication {incomplete!r} does not send all changes: ALTER PUBLICATION ... SET (publish = 'insert, "
            "update, delete, truncate')"
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
    """Return OID and modifier of a type, of a domain those of the type below; itself if nobody knows it any more.

    Raises:
        SourceUnavailable: the server does not answer.
    """
    if type_oid < _BUILT_IN_OIDS:
        return type_oid, type_modifier
    with one_line_errors("look up a type"):
        row = connection.execute(_BASE_TYPE, {"oid": type_oid, "modifier": type_modifier}).fetchone()
    return (type_oid, type_modifier) if row is None else (row[0], row[1])


_TABLES = """
    SELECT p.schemaname, p.tablename, c.oid, c.relfilenode, c.relreplident, {row_filter},
           ARRAY (SELECT a.attname::text
                    FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k (number, position)
                    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
                   WHERE i.indrelid = c.oid AND i.indisvalid AND k.position <= i.indnkeyatts
                     AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident
                              WHEN c.relreplident = 'n' THEN false
                              ELSE i.indisprimary AND i.indimmediate END
                   ORDER BY k.position),
           c.relkind = 'p'
      FROM pg_publication_tables p
      JOIN pg_namespace n ON n.nspname = p.schemaname
      JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
     WHERE p.pubname = ANY (%(publications)s)
     ORDER BY 1, 2
"""
_COLUMNS = """
    WITH RECURSIVE base (attrelid, attnum, type, modifier, kind) AS (
        SELECT a.attrelid, a.attnum, t.oid, a.atttypmod, t.typtype
          FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = %(oid)s AND a.attnum > 0
        UNION ALL
        SELECT b.attrelid, b.attnum, u.oid, CASE WHEN b.modifier >= 0 THEN b.modifier ELSE t.typtypmod END, u.typtype
          FROM base b JOIN pg_type t ON t.oid = b.type JOIN pg_type u ON u.oid = t.typbasetype
         WHERE b.kind = 'd'
    )
    SELECT a.attname, b.type, b.modifier, a.attnum,
           NOT a.atthasdef AND NOT a.atthasmissing AND a.attidentity = '' AND a.attgenerated = ''
      FROM pg_attribute a JOIN base b USING (attrelid, attnum)
     WHERE b.kind <> 'd' AND NOT a.attisdropped AND {sent}
     ORDER BY a.attnum
"""
_LISTED = """
    a.attname IN (SELECT unnest(p.attnames) FROM pg_publication_tables p
                   WHERE p.pubname = ANY (%(publications)s) AND p.schemaname = %(schema)s AND p.tablename = %(name)s)
"""


def published_tables(connection: Connection, publications: Sequence[str]) -> list[PublishedTable]:
    """Return the tables of the publications.

    Raises:
        SourceRefused: two publications disagree on the rows of a table.
        SourceUnavailable: the server does not answer.
    """
    major = server_major(connection)
    has_lists = major >= _FIRST_WITH_COLUMN_LISTS
    tables = _TABLES.format(row_filter="p.rowfilter" if has_lists else "NULL::text")
    # Before version 18 generated columns are never sent, though the view of some versions lists them.
    sent = " AND ".join(([_LISTED] if has_lists else []) + (["a.attgenerated = ''"] if major < 18 else []))
    columns = _COLUMNS.format(sent=sent)
    found: dict[TableName, PublishedTable] = {}
    with one_line_errors("read the tables of the publication"):
        for row in connection.execute(tables, {"publications": list(publications)}).fetchall():
            table = TableName(row[0], row[1])
            parameters = {
                "oid": row[2],
                "publications": list(publications),
                "schema": table.schema,
                "name": table.name,
            }
            cursor = connection.execute(columns, parameters)
            listed = tuple(PublishedColumn(*column) for column in cursor.fetchall())
            made = PublishedTable(table, row[2], row[3], _letter(row[4]), tuple(row[6]), listed, row[5], row[7])
            if table in found and found[table].row_filter != made.row_filter:
                raise SourceRefused(f"the publications disagree on which rows of {table} are sent: name one of them")
            found[table] = made
    return list(found.values())


def _letter(value: str | bytes) -> str:
    """A value of the type "char"."""
    return value.decode() if isinstance(value, bytes) else value
