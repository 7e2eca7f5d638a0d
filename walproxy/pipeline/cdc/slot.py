"""A logical slot of the plugin `pgoutput`: look at it, read from it without moving it, move it.

`peek` reads from the slot's confirmed position on and leaves it where it is, so the same range can be read again and
gives the same transactions (transactions.py decides which belong to a range). `advance` moves the confirmed position,
when the changes below are durable elsewhere; what is below is gone then.

The server collects what a peek returns before it sends the first row, in its temporary files beyond work_mem; here
rows are taken a few at a time. Every peek begins to decode at the slot's restart_lsn, which does not advance while a
transaction is open: old open transactions make every read expensive.
Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

import contextlib
import itertools
import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.pipeline.cdc.server import (
    Connection,
    SourceRefused,
    SourceUnavailable,
    one_line_errors,
    one_value,
    patiently,
    server_major,
    source_error,
)

PLUGIN: Final = "pgoutput"
_FETCH_ROWS: Final = 200
_LSN: Final = struct.Struct(">Q")
_OLD_VERSIONS: Final = {13: 1, 14: 2, 15: 3}
_NEWEST_VERSION: Final = 4
_FIRST_WITH_MESSAGES: Final = 14
_FIRST_WITH_FAILOVER: Final = 17


def protocol_version(major: int) -> int:
    """Return the newest version of pgoutput's protocol that PostgreSQL `major` and we know."""
    return _OLD_VERSIONS.get(major, _NEWEST_VERSION)


@dataclass(frozen=True)
class LogicalSlot:
    """A row of pg_replication_slots, of any version.

    Attributes:
        confirmed_flush_lsn: changes below it are no longer sent.
        restart_lsn: where decoding begins; the server keeps WAL from there on.
        lost: why it can never be read again, None if it can.
        retained_bytes: of WAL that it keeps.
    """

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    active_pid: int | None
    temporary: bool
    two_phase: bool
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    lost: str | None
    retained_bytes: int | None


def read_slot(connection: Connection, name: str) -> LogicalSlot | None:
    """Return the slot `name`, None if there is none.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    with one_line_errors(f"read the state of slot {name!r}"), connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "SELECT *, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint AS retained_bytes"
            " FROM pg_replication_slots WHERE slot_name = %s",
            (name,),
        ).fetchone()
    if row is None:
        return None
    restart, confirmed = row["restart_lsn"], row["confirmed_flush_lsn"]
    reason = row.get("invalidation_reason") or ("a conflict with recovery" if row.get("conflicting") else None)
    if reason is None and (row["wal_status"] == "lost" or restart is None):
        reason = "the WAL that it needs was removed"
    return LogicalSlot(
        name,
        row["plugin"],
        row["slot_type"],
        row["database"],
        row["active_pid"],
        row["temporary"],
        bool(row.get("two_phase")),
        parse_lsn(restart) if restart else None,
        parse_lsn(confirmed) if confirmed else None,
        row["wal_status"],
        reason,
        row["retained_bytes"],
    )


def is_held_back(connection: Connection, name: str) -> bool:
    """Return whether the session that streams the slot waits for those in `synchronized_standby_slots` just now.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    query = """
        SELECT EXISTS (
            SELECT FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid
            WHERE slot_name = %(name)s AND wait_event = 'WaitForStandbyConfirmation'
        )
    """
    return bool(one_value(connection, query, {"name": name}, doing=f"ask what slot {name!r} waits for"))


def usable_slot(connection: Connection, name: str) -> tuple[LogicalSlot, Lsn]:
    """Return the slot, which must exist and be one that can be read here, and its confirmed position.

    Raises:
        SourceRefused: it is not.
        SourceUnavailable: the server does not answer.
    """
    state = read_slot(connection, name)
    if state is None:
        raise SourceRefused(
            f"slot {name!r} does not exist: create it with `walproxy pipeline cdc create`; it will not "
            "have earlier changes"
        )
    here = connection.info.dbname
    if state.slot_type != "logical":
        raise SourceRefused(f"slot {name!r} is a physical one: name a logical slot")
    if state.plugin != PLUGIN:
        raise SourceRefused(f"slot {name!r} has the plugin {state.plugin!r}, not {PLUGIN}: use another slot")
    if state.database != here:
        raise SourceRefused(
            f"slot {name!r} belongs to the database {state.database!r}, this is {here!r}: put dbname={state.database} "
            "into the connection string, or name another slot"
        )
    if state.lost is not None:
        raise SourceRefused(
            f"slot {name!r} is lost ({state.lost}): changes are missing; drop it, create it again, and copy the "
            "tables again"
        )
    if state.two_phase:
        raise SourceRefused(
            f"slot {name!r} decodes prepared transactions before they are committed: create one without two_phase"
        )
    if state.confirmed_flush_lsn is None:
        raise SourceRefused(f"slot {name!r} is not ready yet: wait until the session that creates it has finished")
    return state, state.confirmed_flush_lsn


def create_slot(connection: Connection, name: str) -> Lsn:
    """Make a slot and return its confirmed position: changes of transactions that commit from there on are in it.

    The server waits for the end of every transaction in progress. From PostgreSQL 17 on, standbys with
    sync_replication_slots take the slot over, so that it can be read after a promotion.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    failover = ", failover => true" if server_major(connection) >= _FIRST_WITH_FAILOVER else ""
    query = f"SELECT lsn::text FROM pg_create_logical_replication_slot(%(name)s, 'pgoutput'{failover})"
    return parse_lsn(one_value(connection, query, {"name": name}, doing=f"create slot {name!r}"))


def drop_slot(connection: Connection, name: str) -> None:
    """Drop a slot.

    Raises:
        SourceUnavailable, SourceRefused: also if it is in use.
    """
    with one_line_errors(f"drop slot {name!r}"):
        patiently(lambda: connection.execute("SELECT pg_drop_replication_slot(%s)", (name,)))


def plugin_options(major: int, publications: Sequence[str], *, stream: bool, messages: bool) -> dict[str, str]:
    """Return the options of the plugin, for PostgreSQL `major`.

    Args:
        stream: send large transactions before they are committed (PostgreSQL 14 and newer).
        messages: send what was written with pg_logical_emit_message (14 and newer).
    """
    version = protocol_version(major)
    options = {"proto_version": str(version), "publication_names": ",".join(_quoted(each) for each in publications)}
    if stream and version >= 2:
        options["streaming"] = "on"
    if messages and major >= _FIRST_WITH_MESSAGES:
        options["messages"] = "true"
    return options


def slot_error(error: psycopg.Error, name: str) -> SourceUnavailable | SourceRefused:
    """Return what an error means that ended the changes of a slot."""
    found = source_error(error, f"read the changes of slot {name!r}")
    if isinstance(error, psycopg.errors.UndefinedObject):
        return SourceRefused(
            f"{found}; a publication must be older than the slot: create the publication, then drop the slot and "
            "create it again"
        )
    return found


def peek(
    connection: Connection,
    name: str,
    publications: Sequence[str],
    upto_lsn: Lsn,
    *,
    stream: bool = False,
    messages: bool = True,
) -> Generator[tuple[Lsn, bytes], None, None]:
    """Yield (LSN, bytes) of each message of pgoutput, from the slot's confirmed position to the first record that ends
    at or beyond `upto_lsn`. The slot stays where it is.

    Args:
        stream: send large transactions before they are committed (PostgreSQL 14 and newer); those that are not
            committed below `upto_lsn` are sent too, and ignored.
        messages: send what was written with pg_logical_emit_message (14 and newer).

    Raises:
        SourceUnavailable: the connection broke, or the slot is in use for long.
        SourceRefused: the server refuses.
        RemoteProtocolError: what it sends is no row of a peek.
    """
    options = plugin_options(server_major(connection), publications, stream=stream, messages=messages)
    words = [word for option in options.items() for word in option]
    query = sql.SQL(
        "SELECT lsn, data FROM pg_logical_slot_peek_binary_changes({name}, {upto}::pg_lsn, NULL, VARIADIC {options})"
    ).format(name=sql.Literal(name), upto=sql.Literal(format_lsn(upto_lsn)), options=sql.Literal(words))
    try:
        with _texts_as_stored(connection), connection.cursor() as cursor:

            def begin() -> Iterator[Sequence[bytes]]:
                """Fetch the first row: the server refuses before it; after a refusal a stream cannot be used."""
                rows = cursor.stream(query, binary=True, size=_FETCH_ROWS)
                first = next(rows, None)
                return iter(()) if first is None else itertools.chain((first,), rows)

            for row in patiently(begin):
                yield _sent(row)
    except psycopg.Error as error:
        raise slot_error(error, name) from error


def receive_texts_as_stored(connection: Connection) -> bool:
    """Receive texts as they are stored, if the database does not know their encoding; return whether that is so.

    The server would validate them, and end the whole read because of one that is not UTF-8.
    """
    is_unknown = connection.info.parameter_status("server_encoding") == "SQL_ASCII"
    if is_unknown:
        connection.execute("SET client_encoding = 'SQL_ASCII'")
    return is_unknown


@contextlib.contextmanager
def _texts_as_stored(connection: Connection) -> Iterator[None]:
    """Receive texts as they are stored while the block runs."""
    is_changed = receive_texts_as_stored(connection)
    try:
        yield
    finally:
        if is_changed and not connection.closed:
            connection.execute("SET client_encoding = 'UTF8'")


def have_flushed(connection: Connection) -> None:
    """See that the server flushes its WAL soon, if there is any that it has not.

    A read that ends within a record waits until the record is on disk. While no session commits the server flushes
    whole pages only, and the rest when it notes its running transactions, every 15 s. A commit of ours, which does not
    wait itself, makes it flush within 0.2 s.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    pending = "SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()"
    if one_value(connection, pending, doing="look at the WAL"):
        with one_line_errors("flush the WAL"), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            connection.execute("SELECT pg_current_xact_id()")


def advance(connection: Connection, name: str, to_lsn: Lsn) -> None:
    """Move the slot's confirmed position to `to_lsn`, unless it is there or beyond. What is below is gone then.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    _, confirmed_lsn = usable_slot(connection, name)
    if to_lsn <= confirmed_lsn:
        return
    with one_line_errors(f"advance slot {name!r} to {format_lsn(to_lsn)}"):
        patiently(
            lambda: connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (name, format_lsn(to_lsn)))
        )


def _quoted(publication: str) -> str:
    """The plugin reads the names as a list of SQL's identifiers."""
    return '"' + publication.replace('"', '""') + '"'


def _sent(row: Sequence[bytes]) -> tuple[Lsn, bytes]:
    lsn, data = row
    if len(lsn) != _LSN.size:
        raise RemoteProtocolError(f"the server sent an LSN of {len(lsn)} bytes")
    return _LSN.unpack(lsn)[0], data
