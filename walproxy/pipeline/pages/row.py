"""A row as it was at an LSN: the version that a line pointer of a restored page leads to, and its columns.

Which transactions have made and ended the version is in its header (heap_tuple.py). What became of them, whether the
version is visible, and its values are asked of the restored PostgreSQL itself, in single-user mode: it knows all types,
and has the rows of the TOAST table as they were. PostgreSQL shows no version that is not visible. So the page in the
restored folder, which is removed at the end, is changed for one more question: there the version is made by a frozen
transaction and ended by none.
"""

from typing import Final, NamedTuple

import msgspec

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.jobs.catalog import RelationId
from walproxy.pipeline.pages.heap_tuple import RowVersion, as_visible, row_version
from walproxy.pipeline.pages.private_server import PrivatePostgres, sql_text
from walproxy.pipeline.pages.relation import PageId, RelationName, read_page, write_page

_TEMPLATE: Final = "template1"
_DATABASE_QUERY: Final = """
    SELECT pg_catalog.encode(pg_catalog.convert_to(datname, 'UTF8'), 'hex') AS database
    FROM pg_catalog.pg_database WHERE oid = {database}
"""
_NAME_QUERY: Final = """
    SELECT pg_catalog.encode(pg_catalog.convert_to(n.nspname, 'UTF8'), 'hex') AS schema,
           pg_catalog.encode(pg_catalog.convert_to(c.relname, 'UTF8'), 'hex') AS name
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE pg_catalog.pg_relation_filenode(c.oid) = {relation} AND c.relkind IN ('r', 'm', 't')
"""
_KIND_QUERY: Final = """
    SELECT c.relkind::text AS kind,
           pg_catalog.encode(pg_catalog.convert_to(
               pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname), 'UTF8'), 'hex') AS name
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema} AND c.relname = {name}
"""
_ROW_QUERY: Final = """
    SELECT pg_catalog.encode(pg_catalog.convert_to(pg_catalog.row_to_json(t)::text, 'UTF8'), 'hex') AS content
    FROM ONLY {table} t WHERE t.ctid = '({block},{line})'
"""
# Of the next transaction's 64 bits the upper half, one less for a number that is not below it.
_STATUS_QUERY: Final = """
    SELECT coalesce(pg_catalog.pg_xact_status((((next >> 32) - CASE WHEN {xid} >= (next & 4294967295) THEN 1 ELSE 0 END
               << 32) + {xid})::text::pg_catalog.xid8), 'unknown') AS status
    FROM (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS next) s
"""
_FIRST_NORMAL_XID: Final = 3
_TABLES: Final = ("r", "m", "t")


class ShownRow(NamedTuple):
    """A version of a row.

    Attributes:
        line: its line pointer.
        is_visible: whether a query at that LSN would have shown it.
        made, ended: what became of the transactions `version.xmin` and `version.xmax`: committed, aborted, in progress,
            or unknown because PostgreSQL no longer has it; empty if there is none.
        content: the values by column, in the order of the table, each as JSON that PostgreSQL has printed.
    """

    line: int
    version: RowVersion
    is_visible: bool
    made: str
    ended: str
    content: dict[str, msgspec.Raw]


def read_row(server: PrivatePostgres, relation: RelationName | RelationId, page: PageId, line: int) -> ShownRow:
    """Return a row of the restored and stopped server; the page in its folder may be changed.

    Raises:
        ConfigurationError: the line pointer leads to no row, or the relation is not a table.
        LocalPostgresFailed: PostgreSQL cannot print the row.
    """
    original = read_page(server.data_directory, page)
    version = row_version(original, line)
    name = relation if isinstance(relation, RelationName) else _name_of(server, relation)
    query = _ROW_QUERY.format(table=_table_of(server, name), block=page.block, line=line)
    made = _status(server, name.database, version.xmin) if version.xmin is not None else "frozen"
    ended = _status(server, name.database, version.xmax) if version.xmax and not version.is_multi else ""
    answer = server.ask_once(name.database, query)
    is_visible = answer is not None
    if answer is None:
        write_page(server.data_directory, page, as_visible(original, version))
        answer = server.ask_once(name.database, query, settings={"ignore_checksum_failure": "on"})
    if answer is None:
        raise ConfigurationError(f"PostgreSQL finds no row at line pointer {line} of block {page.block} of {name}")
    content = msgspec.json.decode(bytes.fromhex(answer["content"] or ""), type=dict[str, msgspec.Raw])
    return ShownRow(line, version, is_visible, made, ended, content)


def _name_of(server: PrivatePostgres, relation: RelationId) -> RelationName:
    """Return the name that a relation had, of a shared one with a database from which it can be read."""
    database = _TEMPLATE
    if relation.database:
        found = server.ask_once(_TEMPLATE, _DATABASE_QUERY.format(database=relation.database))
        if found is None:
            raise ConfigurationError(f"there was no database {relation.database} at that LSN: correct --relation")
        database = _text(found["database"])
    found = server.ask_once(database, _NAME_QUERY.format(relation=relation.relation))
    if found is None:
        raise ConfigurationError(f"{relation} was not the file of a table at that LSN: correct --relation")
    return RelationName(database, _text(found["schema"]), _text(found["name"]))


def _table_of(server: PrivatePostgres, name: RelationName) -> str:
    """Return the name of a table as SQL writes it."""
    query = _KIND_QUERY.format(schema=sql_text(name.schema), name=sql_text(name.name))
    found = server.ask_once(name.database, query)
    if found is None or found["kind"] not in _TABLES:
        raise ConfigurationError(f"{name} was not a table at that LSN: only a table has rows")
    return _text(found["name"])


def _status(server: PrivatePostgres, database: str, xid: int) -> str:
    if xid < _FIRST_NORMAL_XID:
        return "committed"  # of the bootstrap, or frozen by an old release
    found = server.ask_once(database, _STATUS_QUERY.format(xid=xid))
    return (found["status"] if found is not None else None) or "unknown"


def _text(found: str | None) -> str:
    return bytes.fromhex(found or "").decode()
