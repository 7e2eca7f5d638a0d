"""What a replication client is told about this safekeeper: the answers to the commands that change nothing.

The words are those of PostgreSQL, which is what standbys and pg_receivewal expect; the version is the primary's.
Source: https://www.postgresql.org/docs/current/protocol-replication.html

No I/O: a readable log and the control state in, rows out.
"""

from typing import NamedTuple

from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.learning import ReadableLog
from safekeeper.errors import CommandError
from safekeeper.lsn import Lsn, format_lsn
from safekeeper.pgwire.backend import BYTEA, INT4, INT8, TEXT, Column
from safekeeper.slots import Slot
from safekeeper.timelines import format_timeline_history, timeline_history_name, tli_of_byte

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


class Answer(NamedTuple):
    """A result of one row, or of none, and the tag behind it."""

    columns: tuple[Column, ...]
    row: tuple[str | bytes | None, ...] | None
    tag: str


def version_text(server_version: int) -> str:
    """Return a version as PostgreSQL calls it, e.g. `15.18` for 150018."""
    return f"{server_version // 10000}.{server_version % 10000}"


def size_text(size_bytes: int) -> str:
    """Return a size as SHOW prints it, e.g. `16MB`: in the largest unit that needs no fraction."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return f"{size_bytes}B"


def session_parameters(control: ControlState) -> dict[str, str]:
    """Return what a client is told when it is let in; without a version as long as that is not known."""
    parameters = {name: _SETTINGS[name] for name in _REPORTED}
    if control.server_version:
        parameters["server_version"] = version_text(control.server_version)
    return parameters


def require_wal(log: ReadableLog) -> None:
    """Refuse whoever asks about WAL before there is any.

    Raises:
        CommandError: nothing is committed here yet (57P03).
    """
    if not log.end_lsn:
        raise CommandError(
            "57P03", "this safekeeper has no committed WAL yet", hint="Try again when a proxy has made it a member."
        )


def identify_system(log: ReadableLog, control: ControlState) -> Answer:
    """Answer IDENTIFY_SYSTEM."""
    require_wal(log)
    tli_type = INT8 if control.server_version >= _WIDE_TLI_VERSION else INT4
    columns = (
        Column("systemid", *TEXT),
        Column("timeline", *tli_type),
        Column("xlogpos", *TEXT),
        Column("dbname", *TEXT),
    )
    row = (str(control.system_id), str(log.tli), format_lsn(log.end_lsn), None)
    return Answer(columns, row, "IDENTIFY_SYSTEM")


def show(name: str, log: ReadableLog, control: ControlState) -> Answer:
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
    return Answer((Column(known, *TEXT),), (value,), "SHOW")


def timeline_history(tli: int, log: ReadableLog, control: ControlState) -> Answer:
    """Answer TIMELINE_HISTORY: for the timeline of the log and its ancestors, of which the first has none.

    Raises:
        CommandError: there is no such file (58P01).
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
    if content is None:
        raise CommandError("58P01", f'could not open file "pg_wal/{name}": No such file or directory')
    content_type = TEXT if control.server_version >= _WIDE_TLI_VERSION else BYTEA
    return Answer((Column("filename", *TEXT), Column("content", *content_type)), (name, content), "TIMELINE_HISTORY")


def read_slot(slot: Slot | None, log: ReadableLog) -> Answer:
    """Answer READ_REPLICATION_SLOT: NULLs if there is no such slot."""
    columns = (Column("slot_type", *TEXT), Column("restart_lsn", *TEXT), Column("restart_tli", *INT8))
    row: tuple[str | None, ...] = (None, None, None)
    if slot is not None:
        row = ("physical", *_restart_position(slot.restart_lsn, log))
    return Answer(columns, row, "READ_REPLICATION_SLOT")


def slot_created(slot: Slot) -> Answer:
    """Answer CREATE_REPLICATION_SLOT."""
    columns = tuple(Column(name, *TEXT) for name in ("slot_name", "consistent_point", "snapshot_name", "output_plugin"))
    return Answer(columns, (slot.name, "0/0", None, None), "CREATE_REPLICATION_SLOT")


def _restart_position(restart_lsn: Lsn, log: ReadableLog) -> tuple[str | None, str | None]:
    if not restart_lsn:
        return None, None
    return format_lsn(restart_lsn), str(tli_of_byte(log.tli, log.lineage, restart_lsn))
