"""Whether a standby replays, and whether it would be promoted with all its WAL.

What hinders that although the standby streams:

- It has a recovery target: recovery ends there, and what the standby has received beyond is discarded by a promotion.
- The primary has started with a higher `max_connections` or the like than the standby has. Replay of the record that
  says so sets pg_control, and pauses; a promotion then fails, and ends the server (18) or never ends (14 to 17). After
  the pause is ended by hand the server ends, too. 13 ends at once.

Replay that is paused by hand (pg_wal_replay_pause) does not hinder a promotion, which ends the pause (tried on 15 and
18). Source: src/backend/access/transam/xlogrecovery.c.
"""

import struct
from collections.abc import Mapping
from typing import Final

from walproxy.postgres.bounded_sql import Row

# In the order of xl_parameter_change, with which replay changes pg_control.
PARAMETERS: Final = (
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
)
PARAMETER_VALUES: Final = struct.Struct("<5i")
# pg_control has it behind the parameters, at a place that differs between versions (src/include/catalog/pg_control.h).
_FLOAT_FORMAT: Final = struct.pack("<d", 1234567.0)
_TARGETS: Final = ("recovery_target", "recovery_target_lsn", "recovery_target_name", "recovery_target_time")
_TARGETS_QUOTED = ", ".join(f"'{name}'" for name in (*_TARGETS, "recovery_target_xid"))

# Columns for the look at a server.
REPLAY_COLUMNS: Final = f"""
  CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END,
  CASE WHEN pg_is_in_recovery() THEN (SELECT string_agg(s.name || ' = ' || s.setting, ', ')
    FROM pg_settings s WHERE s.name IN ({_TARGETS_QUOTED}) AND s.setting <> '') END"""
# What is needed in addition once replay is paused.
MAY_READ_CONTROL: Final = (
    "SELECT has_function_privilege('pg_read_binary_file(text, bigint, bigint, boolean)', 'EXECUTE')"
)
PARAMETER_COLUMNS: Final = ", ".join(f"current_setting('{name}')" for name in PARAMETERS)
PAUSED: Final = f"SELECT encode(pg_read_binary_file('global/pg_control', 0, 8192, true), 'hex'), {PARAMETER_COLUMNS}"


def parameters_of(pg_control: bytes) -> dict[str, int]:
    """Return the value of each of PARAMETERS in a pg_control; none if it cannot be read."""
    end = pg_control.find(_FLOAT_FORMAT)
    if end < 0:
        return {}
    # Before it are the five, a boolean and the maximum alignment, which is 8, and padding if necessary.
    end -= 4 if int.from_bytes(pg_control[end - 4 : end], "little") == 8 else 8
    begin = end - 4 - PARAMETER_VALUES.size
    if begin < 0:
        return {}
    return dict(zip(PARAMETERS, PARAMETER_VALUES.unpack_from(pg_control, begin), strict=True))


def target_problem(targets: str | None) -> str:
    """Return why a standby with these recovery targets must not be promoted, empty without any."""
    if not targets:
        return ""
    return (
        f"has a recovery target, {targets}: a promotion discards what the log has beyond it; remove the setting and "
        "restart the standby"
    )


def pause_problem(row: Row) -> str:
    """Return why a standby whose replay is paused cannot be promoted, empty if it can be.

    Args:
        row: of PAUSED.
    """
    control, *settings = row
    needed = parameters_of(bytes.fromhex(control or ""))
    return parameter_problem(needed, dict(zip(PARAMETERS, (int(each or 0) for each in settings), strict=True)))


def parameter_problem(needed: Mapping[str, int], settings: Mapping[str, int]) -> str:
    """Return which settings of a standby are lower than its WAL needs; empty if none is."""
    low = [name for name, value in needed.items() if settings[name] < value]
    if not low:
        return ""
    found = " and ".join(f"{name} = {settings[name]}, and the primary had {needed[name]}" for name in low)
    return (
        f"has {found}: replay is paused, and a promotion would fail; set "
        f"{', '.join(f'{name} = {needed[name]}' for name in low)} on the standby and restart it"
    )
