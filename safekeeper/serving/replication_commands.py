"""The results of the replication commands that change nothing.

They are worded as PostgreSQL's, as standbys and pg_receivewal expect; the version is the primary's.
Source: https://www.postgresql.org/docs/current/protocol-replication.html

`select` answers the SQL that tools send before they stream: one row, as in PostgreSQL's views.

No I/O: results are computed from a readable log and the control state.
"""

from collections.abc import Callable
from typing import NamedTuple

from safekeeper.acceptor.readable import ReadableLog
from safekeeper.base.errors import CommandError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.timelines import PASSED_OVER_HISTORY, format_timeline_history, timeline_history_name, tli_of_byte
from safekeeper.consensus.control_state import ControlState
from safekeeper.pgwire.backend import BOOL, BYTEA, INT4, INT8, PG_LSN, TEXT, ResultColumn
from safekeeper.pgwire.commands import Select
from safekeeper.serving.slots import Slot

# Since this version a TLI is an int8 in IDENTIFY_SYSTEM.
_WIDE_TLI_VERSION = 160000
_SETTINGS = {
    "client_encoding": "UTF8",
    "data_directory_mode": "0700",
    "DateStyle": "ISO, MDY",
    "in_hot_standby": "on",
    "integer_datetimes": "on",
    "IntervalStyle": "postgres",
    "server_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "transaction_read_only": "on",
}
_REPORTED = (
    "client_encoding",
    "DateStyle",
    "in_hot_standby",
    "integer_datetimes",
    "IntervalStyle",
    "server_encoding",
    "standard_conforming_strings",
    "TimeZone",
)
# Further settings that tools read from pg_settings. A safekeeper neither switches segments nor makes checkpoints.
_ONLY_IN_PG_SETTINGS = {"archive_timeout": "0", "checkpoint_timeout": "0"}

_RELATIONS_HINT = (
    "only a row of pg_replication_slots, pg_settings or pg_user can be read; connect to the primary for other SQL"
)

_Row = dict[str, tuple[ResultColumn, str | None]]


class CommandResult(NamedTuple):
    """A result of one row or none, and its command tag."""

    columns: tuple[ResultColumn, ...]
    row: tuple[str | bytes | None, ...] | None
    tag: str


def version_text(server_version: int) -> str:
    """Return a version in PostgreSQL's notation, e.g. `15.18` for 150018."""
    return f"{server_version // 10000}.{server_version % 10000}"


def size_text(size_bytes: int) -> str:
    """Return a size as SHOW prints it, e.g. `16MB`: in the largest unit that needs no fraction."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return f"{size_bytes}B"


def session_parameters(control: ControlState) -> dict[str, str]:
    """Return the parameters that a client receives after login; without a version until it is known."""
    parameters = {name: _SETTINGS[name] for name in _REPORTED}
    if control.server_version:
        parameters["server_version"] = version_text(control.server_version)
    return parameters


def require_wal(log: ReadableLog) -> None:
    """Refuse requests for WAL while this safekeeper has none.

    Raises:
        CommandError: no WAL is committed here yet (57P03).
    """
    if not log.end_lsn:
        raise CommandError(
            "57P03", "this safekeeper does not have committed WAL yet", hint="Retry when a proxy has made it a member."
        )


def identify_system(log: ReadableLog, control: ControlState) -> CommandResult:
    """Answer IDENTIFY_SYSTEM."""
    require_wal(log)
    tli_type = INT8 if control.server_version >= _WIDE_TLI_VERSION else INT4
    columns = (
        ResultColumn("systemid", *TEXT),
        ResultColumn("timeline", *tli_type),
        ResultColumn("xlogpos", *TEXT),
        ResultColumn("dbname", *TEXT),
    )
    row = (str(control.system_id), str(log.tli), format_lsn(log.end_lsn), None)
    return CommandResult(columns, row, "IDENTIFY_SYSTEM")


def show(name: str, log: ReadableLog, control: ControlState) -> CommandResult:
    """Answer SHOW.

    Raises:
        CommandError: a safekeeper has no such setting (42704).
    """
    require_wal(log)
    settings = {known.lower(): (known, value) for known, value in _SETTINGS.items()} | {
        "server_version": ("server_version", version_text(control.server_version)),
        "server_version_num": ("server_version_num", str(control.server_version)),
        "wal_segment_size": ("wal_segment_size", size_text(control.segment_size)),
    }
    if name.lower() not in settings:
        raise CommandError("42704", f'unrecognized configuration parameter "{name[:63]}"')
    known, value = settings[name.lower()]
    return CommandResult((ResultColumn(known, *TEXT),), (value,), "SHOW")


def select(
    command: Select, user: str, find_slot: Callable[[str], Slot | None], log: ReadableLog, control: ControlState
) -> CommandResult:
    """Answer SELECT: one row, or none.

    Args:
        user: the name of the client's user, for CURRENT_USER.
        find_slot: returns the slot with a given name.

    Raises:
        CommandError: no WAL is committed here yet (57P03), or the relation or column does not exist here (0A000).
    """
    require_wal(log)
    where = [(column, user if value is None else value) for column, value in command.where]
    keys = dict(where)
    match command.relation:
        case "":
            row = _functions(control)
        case "pg_replication_slots" if "slot_name" in keys:
            row = _slot_row(keys["slot_name"], find_slot)
        case "pg_settings" if "name" in keys:
            row = _setting_row(keys["name"], control)
        case "pg_user":
            # Every authenticated user may use everything that a safekeeper offers.
            row = _row(("usename", TEXT, user), ("usesuper", BOOL, "t"))
        case _:
            raise CommandError("0A000", "a safekeeper does not support SQL", hint=_RELATIONS_HINT)
    for name in (*command.columns, *keys):
        if name not in row:
            raise CommandError("0A000", f'a safekeeper does not support SQL with "{name[:63]}"', hint=_RELATIONS_HINT)
    columns = tuple(row[name][0] for name in command.columns)
    # The key of a missing row is NULL, which equals no value.
    if any(row[name][1] != value for name, value in where):
        return CommandResult(columns, None, "SELECT 0")
    return CommandResult(columns, tuple(row[name][1] for name in command.columns), "SELECT 1")


def timeline_history(tli: int, log: ReadableLog, control: ControlState) -> CommandResult:
    """Answer TIMELINE_HISTORY, for the log's timeline and its ancestors except the first, which has no history file.

    A number between theirs that a promotion passed over gets a file without ancestors.

    Raises:
        CommandError: the file does not exist (58P01).
    """
    require_wal(log)
    name = timeline_history_name(tli)
    ancestors = [ancestor for ancestor, _ in log.lineage]
    content: bytes | None = None
    if tli in (*ancestors, log.tli):
        content = next((file.content for file in control.tli_histories if file.tli == tli), None)
        if content is None and tli != (*ancestors, log.tli)[0]:
            index = ancestors.index(tli) if tli in ancestors else len(ancestors)
            content = format_timeline_history(log.lineage[:index])
    elif ancestors and ancestors[0] < tli < log.tli:
        content = PASSED_OVER_HISTORY
    if content is None:
        raise CommandError("58P01", f'could not open file "pg_wal/{name}": No such file or directory')
    content_type = TEXT if control.server_version >= _WIDE_TLI_VERSION else BYTEA
    return CommandResult(
        (ResultColumn("filename", *TEXT), ResultColumn("content", *content_type)), (name, content), "TIMELINE_HISTORY"
    )


def read_slot(slot: Slot | None, log: ReadableLog) -> CommandResult:
    """Answer READ_REPLICATION_SLOT: NULLs if the slot does not exist."""
    columns = (ResultColumn("slot_type", *TEXT), ResultColumn("restart_lsn", *TEXT), ResultColumn("restart_tli", *INT8))
    row: tuple[str | None, ...] = (None, None, None)
    if slot is not None:
        row = ("physical", *_restart_position(slot.restart_lsn, log))
    return CommandResult(columns, row, "READ_REPLICATION_SLOT")


def slot_created(slot: Slot) -> CommandResult:
    """Answer CREATE_REPLICATION_SLOT."""
    columns = tuple(
        ResultColumn(name, *TEXT) for name in ("slot_name", "consistent_point", "snapshot_name", "output_plugin")
    )
    return CommandResult(columns, (slot.name, "0/0", None, None), "CREATE_REPLICATION_SLOT")


def _restart_position(restart_lsn: Lsn, log: ReadableLog) -> tuple[str | None, str | None]:
    if not restart_lsn:
        return None, None
    return format_lsn(restart_lsn), str(tli_of_byte(log.tli, log.lineage, restart_lsn))


def _row(*cells: tuple[str, tuple[int, int], str | None]) -> _Row:
    return {name: (ResultColumn(name, *column_type), value) for name, column_type, value in cells}


def _functions(control: ControlState) -> _Row:
    version = f"PostgreSQL {version_text(control.server_version)} (safekeeper)"
    return {
        "1": (ResultColumn("?column?", *INT4), "1"),
        "pg_is_in_recovery()": (ResultColumn("pg_is_in_recovery", *BOOL), "t"),
        "version()": (ResultColumn("version", *TEXT), version),
    }


def _slot_row(name: str, find_slot: Callable[[str], Slot | None]) -> _Row:
    slot = find_slot(name)
    return _row(
        ("slot_name", TEXT, slot.name if slot is not None else None),
        ("slot_type", TEXT, "physical"),
        ("temporary", BOOL, "t" if slot is not None and slot.temporary else "f"),
        ("active", BOOL, "t" if slot is not None and slot.holder else "f"),
        ("restart_lsn", PG_LSN, format_lsn(slot.restart_lsn) if slot is not None and slot.restart_lsn else None),
    )


def _setting_row(name: str, control: ControlState) -> _Row:
    settings = {
        **_SETTINGS,
        **_ONLY_IN_PG_SETTINGS,
        "server_version": version_text(control.server_version),
        "server_version_num": str(control.server_version),
        "wal_segment_size": str(control.segment_size),
    }
    return _row(("name", TEXT, name if name in settings else None), ("setting", TEXT, settings.get(name)))
