"""Which settings of a standby end its replay."""

import struct

import pytest

from walproxy.postgres.replay_state import PARAMETERS, parameter_problem, parameters_of, target_problem


@pytest.mark.parametrize("padding", [0, 4])
def test_the_settings_in_pg_control_are_read(padding: int) -> None:
    begin = bytes(212 + padding) + struct.pack("<5i?3xI", 100, 8, 10, 2, 64, True, 8)
    control = begin + bytes(-len(begin) % 8) + struct.pack("<d", 1234567.0)
    assert parameters_of(control) == {
        "max_connections": 100,
        "max_worker_processes": 8,
        "max_wal_senders": 10,
        "max_prepared_transactions": 2,
        "max_locks_per_transaction": 64,
    }
    assert parameters_of(bytes(8192)) == {}


def test_settings_that_are_lower_than_the_wal_needs_are_named_with_what_to_do() -> None:
    needed = dict.fromkeys(PARAMETERS, 100)
    assert parameter_problem(needed, dict.fromkeys(PARAMETERS, 100)) == ""
    said = parameter_problem(needed, {**needed, "max_connections": 20, "max_wal_senders": 10})
    assert "set max_connections = 100, max_wal_senders = 100 on the standby and restart it" in said
    assert parameter_problem({}, needed) == ""  # A pg_control that cannot be read proves nothing.


def test_a_recovery_target_is_named() -> None:
    assert target_problem(None) == ""
    assert "recovery_target_lsn = 0/3000000" in target_problem("recovery_target_lsn = 0/3000000")
