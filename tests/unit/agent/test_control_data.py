"""What pg_controldata prints."""

import dataclasses

import pytest

from walproxy.agent.control_data import ControlData, parse_control_data
from walproxy.postgres.problems import ServerProblem

PRINTED = """\
pg_control version number:            1300
Catalog version number:               202209061
Database system identifier:           7423456789012345678
Database cluster state:               shut down
pg_control last modified:             Tue 24 Nov 2026 02:30:00 PM UTC
Latest checkpoint location:           0/1545AF8
Latest checkpoint's REDO location:    0/1545AF8
Latest checkpoint's TimeLineID:       3
Minimum recovery ending location:     0/0
Min recovery ending loc's timeline:   0
wal_log_hints setting:                off
Bytes per WAL segment:                16777216
Data page checksum version:           0
"""


def test_the_lines_of_pg_controldata_are_read() -> None:
    control = parse_control_data(PRINTED)
    assert control == ControlData(7423456789012345678, "shut down", 0x1545AF8, 3, 0, 0, 16 << 20, False)
    assert (control.is_clean, control.was_standby, control.last_tli) == (True, False, 3)
    hints = PRINTED.replace("hints setting:                off", "hints setting: on")
    checksums = PRINTED.replace("checksum version:           0", "checksum version: 1")
    assert [parse_control_data(text).can_be_rewound for text in (hints, checksums)] == [True, True]


@pytest.mark.parametrize(
    ("state", "is_clean", "was_standby"),
    [
        ("shut down in recovery", True, True),
        ("in archive recovery", False, True),
        ("in crash recovery", False, False),
        ("in production", False, False),
        ("shutting down", False, False),
        ("starting up", False, False),
    ],
)
def test_each_state_is_a_primarys_or_a_standbys(state: str, is_clean: bool, was_standby: bool) -> None:
    control = dataclasses.replace(parse_control_data(PRINTED), state=state, min_recovery_tli=4)
    assert (control.is_clean, control.was_standby, control.last_tli) == (is_clean, was_standby, 4)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ServerProblem, match="does not print 'Database cluster state'"):
        parse_control_data(PRINTED.replace("cluster state", "state of the cluster"))
    with pytest.raises(ServerProblem, match="unknown value"):
        parse_control_data(PRINTED.replace("0/1545AF8", "nowhere"))
