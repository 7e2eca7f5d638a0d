"""The names of relations that WAL calls by numbers, from a server that has them. Blocking.

A standby, and a primary promoted from one, use the numbers of the old primary. A table that was made or rewritten in
the tail has no name there, and its number may be another table's.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice

from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import WalproxyError
from safekeeper.waldecode.record_body import RelationLocator
from walproxy.failover.discarded import relations_of
from walproxy.failover.discarded_report import DiscardedReport
from walproxy.postgres.bounded_sql import BoundedConnection, bounded_connection
from walproxy.postgres.sessions import sql_conninfo

_TIMEOUT_S = 30.0
_RELATIONS_PER_QUERY = 1000
_DOING = "read the names of relations"


def with_names(report: DiscardedReport, conninfo: str) -> DiscardedReport:
    """Return a report with the names of its relations, as far as a server has them, and why it has none of others.

    Relations that were made in the tail get none. Args and Raises: see `relation_names`.
    """
    wanted = set(relations_of(report.tail.transactions)) - report.tail.created
    names, problems = relation_names(conninfo, wanted)
    return dataclasses.replace(report, names=names, notes=(*report.notes, *problems))


def relation_names(conninfo: str, relations: Iterable[RelationLocator]) -> tuple[dict[RelationLocator, str], list[str]]:
    """Return the names, `database.schema.name`, and why some are missing, one line for each database.

    Args:
        conninfo: of the server; its role must be allowed to connect to each database.

    Raises:
        ConfigurationError: the connection string is wrong.
    """
    by_database: dict[int, list[RelationLocator]] = {}
    for relation in sorted(set(relations)):
        by_database.setdefault(relation.database, []).append(relation)
    conninfo = sql_conninfo(conninfo)
    try:
        with _connected(conninfo) as connection:
            databases = connection.rows("SELECT oid, datname FROM pg_database WHERE datallowconn", _DOING)
            names = dict(_names(connection, "", by_database.pop(0, [])))
    except WalproxyError as error:
        return {}, [f"relations are shown without names: {error}"]
    by_oid = {row[0]: row[1] for row in databases}
    problems = []
    for oid, wanted in by_database.items():
        database = by_oid.get(str(oid))
        if database is None:
            problems.append(f"relations of database {oid} are shown without names: the server does not have it")
            continue
        try:
            with _connected(make_conninfo(conninfo, dbname=database)) as connection:
                names.update(_names(connection, f"{database}.", wanted))
        except WalproxyError as error:
            problems.append(f"relations of database {database} are shown without names: {error}")
    return names, problems


def _connected(conninfo: str) -> AbstractContextManager[BoundedConnection]:
    return bounded_connection(
        conninfo, whose="the server with the names", timeout_s=_TIMEOUT_S, application_name="walproxy discarded"
    )


def _names(
    connection: BoundedConnection, prefix: str, relations: list[RelationLocator]
) -> Iterator[tuple[RelationLocator, str]]:
    remaining = iter(relations)
    while batch := list(islice(remaining, _RELATIONS_PER_QUERY)):
        values = ", ".join(f"({number}, {each.tablespace}, {each.relfilenode})" for number, each in enumerate(batch))
        rows = connection.rows(
            "SELECT v.number, o.oid IS NOT NULL, quote_ident(n.nspname), quote_ident(coalesce(o.relname, c.relname)) "
            f"FROM (VALUES {values}) AS v(number, tablespace, relfilenode) "
            "JOIN pg_class c ON c.oid = pg_filenode_relation(v.tablespace, v.relfilenode) "
            "LEFT JOIN pg_class o ON o.reltoastrelid = c.oid "
            "JOIN pg_namespace n ON n.oid = coalesce(o.relnamespace, c.relnamespace)",
            _DOING,
        )
        for number, is_toast, schema, name in rows:
            toast = " (TOAST)" if is_toast == "t" else ""
            yield batch[int(number or 0)], f"{prefix}{schema}.{name}{toast}"
