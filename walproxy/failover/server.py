"""A server of a failover, over SQL: looked at, and promoted.

PostgreSQL promotes to the first timeline above its own of which it finds no history file, by restore_command or in
pg_wal (tried on 15, 17 and 18). To make it pass over numbers that failed promotions may have used, files of comments
only are placed there by COPY, which runs as the server's own user; a role that may not do that is told so.
"""

import contextlib
import dataclasses
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import RemoteProtocolError, WalproxyError
from safekeeper.base.lsn import Lsn, parse_lsn, segment_name, segment_start
from safekeeper.base.timelines import (
    PASSED_OVER_HISTORY,
    Lineage,
    parse_timeline_history,
    timeline_history_name,
    tli_of_history_name,
)
from safekeeper.waldecode.format import WalFormatError
from safekeeper.waldecode.records import RecordDecoder
from walproxy.failover.candidates import READ_RIGHT, HostLook, lost_since
from walproxy.failover.log_end import LogEnd
from walproxy.postgres.bounded_sql import BoundedConnection, Row, bounded_connection, quoted
from walproxy.postgres.hosts import PrimaryHost
from walproxy.postgres.problems import PrimaryProblem, ServerProblem
from walproxy.postgres.replay_state import MAY_READ_CONTROL, PAUSED, REPLAY_COLUMNS, pause_problem, target_problem

APPLICATION_NAME = "walproxy failover"
_TIMEOUT_S = 10.0
# How long a promotion usually takes that has no WAL to replay, at most.
_PROMOTED_SOON_S = 0.5
_POLL_S = 0.01
_MAY_READ_FILES = "SELECT has_function_privilege('pg_read_binary_file(text, bigint, bigint, boolean)', 'EXECUTE')"
_HISTORY_BYTES = 1 << 20
_MAY_LIST_WAL = "SELECT has_function_privilege('pg_ls_waldir()', 'EXECUTE')"
_NOT_PERMITTED = "42501"
_DISK_FULL = "53100"
# What `positions_of` reads. A function of the other role is not called: it would be an error. The TLI of a primary is
# that of the segment that it writes; pg_control has it only after the next checkpoint.
POSITION_COLUMNS = """pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()),
  CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_walfile_name(pg_current_wal_flush_lsn()) END,
  CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn() END,
  pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(),
  (SELECT greatest(c.timeline_id, r.min_recovery_end_timeline, w.received_tli)
   FROM pg_control_checkpoint() c, pg_control_recovery() r LEFT JOIN pg_stat_get_wal_receiver() w ON true)"""
_LOOK = f"""
SELECT {POSITION_COLUMNS},
  EXISTS (SELECT FROM pg_stat_get_wal_receiver() w WHERE w.pid IS NOT NULL),
  has_function_privilege('pg_promote(boolean, integer)', 'EXECUTE'),
  pg_has_role('pg_write_server_files', 'USAGE') AND pg_has_role('pg_monitor', 'USAGE'),
  current_setting('default_transaction_read_only'), current_user, {REPLAY_COLUMNS}
"""
# Of WAL that was received and not replayed at most so much is looked at. Of more the last complete record is unknown.
_UNREPLAYED_BYTES = 1 << 20
_UNREPLAYED_MAY_BE_READ = """
SELECT has_function_privilege('pg_read_binary_file(text, bigint, bigint, boolean)', 'EXECUTE'),
  pg_size_bytes(current_setting('wal_segment_size')), (SELECT w.received_tli FROM pg_stat_get_wal_receiver() w),
  pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()
"""


class NotRequested(WalproxyError):
    """A standby was not asked for its promotion, as far as this side knows for sure. One line says why."""


@dataclass(frozen=True)
class Promotion:
    """What a promotion was.

    Attributes:
        tli: the timeline that the server writes now.
        fork_lsn: where it begins: the end of the last record that was replayed; 0 if unknown.
    """

    tli: int
    fork_lsn: Lsn


class ServerPositions(NamedTuple):
    """The positions of a server; 0 for what is unknown, or is of the other role."""

    in_recovery: bool
    system_id: int
    tli: int
    written_lsn: Lsn
    received_lsn: Lsn
    replayed_lsn: Lsn


class Server:
    """One server, named by a connection string of one host. Every call is one short connection, and blocks.

    Args:
        may_be_read_only: default_transaction_read_only does not hinder its promotion: the caller takes it away later.
    """

    def __init__(self, host: PrimaryHost, *, may_be_read_only: bool = False) -> None:
        self.name = host.name
        self._may_be_read_only = may_be_read_only
        # Of several hosts the string may ask for one that takes writes; here a standby is wanted, too.
        self._conninfo = make_conninfo(host.conninfo, target_session_attrs="any")

    def look(self, timeout_s: float = 3.0) -> HostLook:
        """Return its state. A server that does not reply is one with a problem; nothing is raised.

        While a standby replays WAL that no walreceiver has received, pg_control has its timeline only later; a role
        that may replicate reads it in another way.
        """
        try:
            with self.connection(timeout_s) as connection:
                return self._look_by(connection, timeout_s)
        except (PrimaryProblem, ServerProblem) as error:
            return HostLook(self.name, problem=plain(error))

    # The following raise WalproxyError if it does not reply, or the role may not read that.

    def data_directory(self) -> Path:
        """Return its data folder, on its own machine."""
        return Path(str(self._value("SELECT current_setting('data_directory')")))

    def restore_command(self) -> str:
        """Return its restore_command, "" if it has none."""
        return str(self._value("SELECT current_setting('restore_command')"))

    def walreceiver_pid(self) -> int | None:
        """Return the pid of its walreceiver, None if none runs."""
        pid = self._value("SELECT (SELECT pid FROM pg_stat_get_wal_receiver())")
        return int(pid) if pid is not None else None

    def has_history(self, tli: int) -> bool:
        """Return whether its pg_wal has the history file of a number; that of restore_command is not looked at."""
        path = quoted(f"pg_wal/{timeline_history_name(tli)}")
        return self._value(f"SELECT size FROM pg_stat_file({path}, true)", "read pg_wal") is not None

    def _value(self, sql: str, doing: str = "") -> str | None:
        with self.connection(_TIMEOUT_S) as connection:
            return connection.value(sql, doing or f"look at {self.name}")

    def highest_history(self) -> int:
        """Return the highest timeline with a history file in pg_wal; 0 for none, or if the role may not look there."""
        with self.connection(_TIMEOUT_S) as connection:
            if connection.value(_MAY_LIST_WAL, f"look at {self.name}") != "t":
                return 0
            names = connection.rows("SELECT name FROM pg_ls_waldir()", f"list pg_wal of {self.name}")
        return max((tli_of_history_name(name or "") or 0 for (name,) in names), default=0)

    def place_histories(self, tlis: range) -> None:
        """Make sure that a promotion passes these numbers over. One with a history file is passed over already.

        Raises:
            WalproxyError: the role may not write files of the server, its disk is full, or it does not reply.
        """
        if not tlis:
            return
        doing = f"place history files in pg_wal of {self.name}"
        line = quoted(PASSED_OVER_HISTORY.decode().rstrip("\n"))
        try:
            with self.connection(_TIMEOUT_S) as connection:
                folder = connection.value("SELECT current_setting('data_directory')", doing)
                found = {name for (name,) in connection.rows("SELECT name FROM pg_ls_waldir()", doing)}
                for name in map(timeline_history_name, tlis):
                    if name not in found:
                        connection.rows(f"COPY (SELECT {line}) TO {quoted(f'{folder}/pg_wal/{name}')}", doing)
        except (PrimaryProblem, ServerProblem) as error:
            raise WalproxyError(f"{plain(error)}{_advice(error)}") from None

    def request_promotion(self, end: LogEnd) -> None:
        """Request its promotion if it has everything; return once it is a primary, or soon. A primary is fine.

        It may have been set up again from an older server since it was looked at. A session ends with the server, so
        what is checked in the session that requests the promotion is true of the server that is promoted (S15).

        Raises:
            NotRequested: it no longer has everything, or does not reply.
            WalproxyError: it refuses, or does not reply any longer: it may be promoted.
        """
        doing, is_requested = f"promote {self.name}", False
        try:
            with self.connection(_TIMEOUT_S) as connection:
                look = self._look_by(connection, _TIMEOUT_S)
                if not look.in_recovery:
                    return
                if reason := lost_since(look, end):
                    raise NotRequested(f"{self.name} is not promoted: it {reason}")
                is_requested = True
                is_signalled = connection.value("SELECT pg_promote(false)", doing)
                # A look on a new connection takes several times as long.
                deadline = time.monotonic() + _PROMOTED_SOON_S
                while is_signalled == "t" and connection.value("SELECT pg_is_in_recovery()", doing) == "t":
                    if time.monotonic() > deadline:
                        break
                    time.sleep(_POLL_S)
        except (PrimaryProblem, ServerProblem) as error:
            kind = WalproxyError if is_requested else NotRequested
            raise kind(f"{plain(error)}{_advice(error)}") from None
        if is_signalled != "t":
            raise WalproxyError(f"cannot {doing}: pg_promote could not signal the server, see its log")

    def _look_by(self, connection: BoundedConnection, timeout_s: float) -> HostLook:
        row = connection.rows(_LOOK, f"look at {self.name}")[0]
        look = look_of(self.name, row, may_be_read_only=self._may_be_read_only)
        if look.is_paused and not look.replay_problem:
            look = dataclasses.replace(look, replay_problem=self._pause_problem(connection))
        if look.in_recovery and not look.receives:
            with contextlib.suppress(PrimaryProblem, ServerProblem):
                look = dataclasses.replace(look, tli=max(look.tli, self._replayed_tli(timeout_s)))
                return dataclasses.replace(look, lineage=self._lineage(connection, look.tli))
        if look.in_recovery and look.received_lsn > look.replayed_lsn:
            with contextlib.suppress(PrimaryProblem):
                return dataclasses.replace(look, complete_lsn=self._complete_lsn(connection, look))
        return look

    def _lineage(self, connection: BoundedConnection, tli: int) -> Lineage:
        """Return the ancestors of a timeline; () if its history file is not in pg_wal, or the role may not read it."""
        doing = f"read pg_wal of {self.name}"
        if connection.value(_MAY_READ_FILES, doing) != "t":
            return ()
        path = quoted(f"pg_wal/{timeline_history_name(tli)}")
        found = connection.value(f"SELECT encode(pg_read_binary_file({path}, 0, {_HISTORY_BYTES}, true), 'hex')", doing)
        with contextlib.suppress(RemoteProtocolError):  # It is damaged: this standby is not promoted for its sake.
            return parse_timeline_history(tli, bytes.fromhex(found or ""))
        return ()

    def _pause_problem(self, connection: BoundedConnection) -> str:
        """Return why replay is paused, if that hinders a promotion."""
        doing = f"read pg_control of {self.name}"
        if connection.value(MAY_READ_CONTROL, doing) != "t":
            return (
                f"does not replay, and the role may not read why: GRANT {READ_RIGHT}, or, if it was paused by hand, "
                "SELECT pg_wal_replay_resume()"
            )
        return pause_problem(connection.rows(PAUSED, doing)[0])

    def _complete_lsn(self, connection: BoundedConnection, look: HostLook) -> Lsn:
        """Return where the last complete record ends that the walreceiver has received; 0 if that is not known."""
        doing = f"read pg_wal of {self.name}"
        may_be_read, size, tli, received, replayed = connection.rows(_UNREPLAYED_MAY_BE_READ, doing)[0]
        received_lsn, replayed_lsn = _lsn(received), _lsn(replayed)
        # Without the right to see the walreceiver's timeline, the files are not known.
        is_known = may_be_read == "t" and tli == str(look.tli) and replayed_lsn
        if not is_known or not 0 <= received_lsn - replayed_lsn <= _UNREPLAYED_BYTES:
            return 0
        segment_size, wal = int(size or 0), bytearray()
        while (lsn := replayed_lsn + len(wal)) < received_lsn:
            segment_lsn = segment_start(lsn, segment_size)
            path = f"pg_wal/{segment_name(look.tli, lsn, segment_size)}"
            length = min(received_lsn, segment_lsn + segment_size) - lsn
            read = f"encode(pg_read_binary_file({quoted(path)}, {lsn - segment_lsn}, {length}, true), 'hex')"
            found = bytes.fromhex(connection.value(f"SELECT {read}", doing) or "")
            if not found:
                return 0
            wal += found
        return complete_end(wal, replayed_lsn, segment_size)

    def _replayed_tli(self, timeout_s: float) -> int:
        with self.connection(timeout_s, replication=True) as connection:
            row = connection.rows("IDENTIFY_SYSTEM", f"look at {self.name}")[0]
            return int(row[1] or 0)

    def connection(self, timeout_s: float, *, replication: bool = False) -> AbstractContextManager[BoundedConnection]:
        """Connect; disconnect after the block. Raises as `bounded_connection`."""
        return bounded_connection(
            self._conninfo,
            whose=self.name,
            timeout_s=timeout_s,
            application_name=APPLICATION_NAME,
            writes=True,
            replication=replication,
        )


def complete_end(wal: bytes | bytearray, begin_lsn: Lsn, segment_size: int) -> Lsn:
    """Return where the last complete record ends in WAL that begins with a record; `begin_lsn` if none is complete.

    What is no record ends it: recovery ends there, too.
    """
    end_lsn = begin_lsn
    with contextlib.suppress(WalFormatError):
        for record in RecordDecoder(begin_lsn, segment_size).walk(wal):
            end_lsn = record.end_lsn
    return end_lsn


def plain(error: PrimaryProblem | ServerProblem) -> str:
    """Return what is wrong, without the advice for a proxy."""
    return error.plain if isinstance(error, PrimaryProblem) else str(error)


def _advice(error: PrimaryProblem | ServerProblem) -> str:
    """Return what to do, to follow a line; empty if that is not known."""
    sqlstate = error.sqlstate if isinstance(error, PrimaryProblem) else None
    return {
        _NOT_PERMITTED: "; the role needs more rights, see walproxy failover --help",
        _DISK_FULL: "; free space there and repeat the command, or promote another standby with --to",
    }.get(sqlstate or "", "")


def look_of(name: str, row: Row, *, may_be_read_only: bool = False) -> HostLook:
    """Return the look at a server from the row that it has returned. For the argument see `Server`."""
    at, (receives, promotes, places, read_only, role, paused, targets) = positions_of(row)
    hindrance = ""
    if at.in_recovery and promotes != "t":
        hindrance = f"cannot be promoted by the role {role}: GRANT EXECUTE ON FUNCTION pg_promote TO {role}"
    elif at.in_recovery and read_only == "on" and not may_be_read_only:
        hindrance = (
            "would be read-only as a primary: ALTER SYSTEM RESET default_transaction_read_only, and SELECT "
            "pg_reload_conf()"
        )
    return HostLook(
        name,
        **at._asdict(),
        receives=receives == "t",
        places_files=places == "t",
        hindrance=hindrance,
        is_paused=paused == "t",
        replay_problem=target_problem(targets),
    )


def positions_of(row: Row) -> tuple[ServerPositions, Row]:
    """Return the positions in a row that begins with POSITION_COLUMNS, and the other columns."""
    in_recovery, system_id, segment, written, received, replayed, tli, *others = row
    positions = ServerPositions(
        in_recovery=in_recovery == "t",
        system_id=int(system_id or 0) % (1 << 64),  # PostgreSQL prints it as a signed number.
        tli=int(segment[:8], 16) if segment is not None else int(tli or 0),
        written_lsn=_lsn(written),
        received_lsn=_lsn(received),
        replayed_lsn=_lsn(replayed),
    )
    return positions, tuple(others)


def _lsn(text: str | None) -> Lsn:
    return parse_lsn(text) if text else 0
