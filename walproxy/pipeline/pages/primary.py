"""The same page of the server that runs, and how a restored one differs from it.

The page is read through the extension pageinspect where the database has it, which sees what is in memory. Elsewhere
from the file, after a checkpoint has written it: that takes a superuser, or the roles pg_checkpoint and
pg_read_server_files. A page that has another LSN than the restored one has changed since: nothing can be compared then.
"""

import time
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.pages.page import PAGE_BYTES, Difference, PageKind, compare, header_of
from walproxy.pipeline.pages.relation import FORKS, PageId
from walproxy.postgres.conninfo import parse_conninfo
from walproxy.postgres.sessions import open_blocking, sql_conninfo

_READ_ATTEMPTS: Final = 10
_SEGMENT_BLOCKS: Final = (1 << 30) // PAGE_BYTES
_SUFFIXES: Final = ("", "_fsm", "_vm", "_init")
_KINDS: Final[dict[str, PageKind]] = {"heap": "heap", "btree": "btree"}

_DATABASE_QUERY: Final = "SELECT datname, dattablespace::int8 FROM pg_catalog.pg_database WHERE oid = %s"
_RELATION_QUERY: Final = """
    SELECT c.oid::regclass::text, pg_catalog.pg_relation_filepath(c.oid), coalesce(a.amname, ''),
           (SELECT ARRAY[n.nspname::text, p.proargtypes[2]::regtype::text] FROM pg_catalog.pg_extension e
            JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
                                       AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
            JOIN pg_catalog.pg_proc p ON p.oid = d.objid AND p.proname = 'get_raw_page' AND p.pronargs = 3
            JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
            WHERE e.extname = 'pageinspect')
    FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
    WHERE c.oid = pg_catalog.pg_filenode_relation(%s, %s)
"""


class VerificationImpossible(WalproxyError):
    """The primary's page cannot be had, or is another version."""


class PageVerdict(NamedTuple):
    """The comparison of the restored page with the primary's.

    Attributes:
        read_by: pageinspect, or file.
        difference: what differs; the LSNs do not.
    """

    read_by: str
    difference: Difference


def verify(restored: bytes, page: PageId, conninfo: str) -> PageVerdict:
    """Compare a restored page with the primary's.

    Raises:
        ConfigurationError: the connection string is wrong.
        VerificationImpossible: no connection, no right to read the page, or it has changed since.
    """
    words = parse_conninfo(sql_conninfo(conninfo))
    try:
        tablespace = page.relation.tablespace
        if page.relation.database:
            with _connect(words) as connection:
                row = connection.execute(_DATABASE_QUERY, (page.relation.database,)).fetchone()
            if row is None:
                raise VerificationImpossible(f"the primary has no database {page.relation.database} any longer")
            words = {**words, "dbname": row[0]}
            tablespace = 0 if row[1] == tablespace else tablespace
        with _connect(words) as connection:
            return _verify(connection, restored, page, tablespace)
    except psycopg.Error as error:
        raise VerificationImpossible(
            f"the primary's page cannot be read: {' '.join(str(error).split())}; check --primary and its role"
        ) from None


def _verify(connection: "psycopg.Connection[Any]", restored: bytes, page: PageId, tablespace: int) -> PageVerdict:
    found = connection.execute(_RELATION_QUERY, (tablespace, page.relation.relation)).fetchone()
    if found is None:
        raise VerificationImpossible(
            f"the primary has no file {page.relation} any longer: its relation was dropped, or rewritten as another"
        )
    name, path, access_method, pageinspect = found
    if pageinspect is not None:
        schema, number_type = pageinspect
        read_by, content = "pageinspect", _from_memory(connection, schema, number_type, name, page)
    else:
        read_by, content = "file", _from_file(connection, path, page)
    if len(content) != PAGE_BYTES:
        raise VerificationImpossible(f"the primary's {name} does not have the block {page.block} any longer")
    _require_same(header_of(restored).lsn, header_of(content).lsn)
    kind = _KINDS.get(access_method, "other") if page.fork == 0 else "other"
    return PageVerdict(read_by, compare(restored, content, kind))


def _require_same(restored_lsn: Lsn, primary_lsn: Lsn) -> None:
    if restored_lsn != primary_lsn:
        raise VerificationImpossible(
            f"the primary's page was changed at {format_lsn(primary_lsn)}, the restored one at "
            f"{format_lsn(restored_lsn)}: they are two versions, and there is nothing to compare"
        )


def _from_memory(
    connection: "psycopg.Connection[Any]", schema: str, number_type: str, name: str, page: PageId
) -> bytes:
    # With the types of the extension's own function, which the schema's owner cannot replace; others of its name may be
    # in the schema. The type of the block's number depends on the extension's version.
    function = psycopg.sql.Identifier(schema, "get_raw_page")
    query = psycopg.sql.SQL("SELECT {}(%s::text, %s::text, %s::{})").format(function, psycopg.sql.SQL(number_type))
    row = connection.execute(query, (name, FORKS[page.fork], page.block)).fetchone()
    return bytes(row[0]) if row is not None else b""


def _from_file(connection: "psycopg.Connection[Any]", path: str, page: PageId) -> bytes:
    """Read the page from its file, after a checkpoint; until it is twice the same, for it may just be written."""
    connection.execute("CHECKPOINT")
    segment, block = divmod(page.block, _SEGMENT_BLOCKS)
    file = path + _SUFFIXES[page.fork] + (f".{segment}" if segment else "")
    before = None
    for _ in range(_READ_ATTEMPTS):
        row = connection.execute(
            "SELECT pg_catalog.pg_read_binary_file(%s, %s, %s, true)", (file, block * PAGE_BYTES, PAGE_BYTES)
        ).fetchone()
        content = bytes(row[0]) if row is not None and row[0] is not None else b""
        if content == before:
            break
        before = content
        time.sleep(0.01)
    return content


def _connect(words: dict[str, str]) -> "psycopg.Connection[Any]":
    try:
        return open_blocking(make_conninfo("", **words), application_name="walproxy pipeline page")
    except psycopg.Error as error:
        raise ConfigurationError(
            f"cannot connect to the primary: {' '.join(str(error).split())}; correct --primary"
        ) from None
