"""How an old primary becomes a standby: follow, rewind, or a base backup."""

import dataclasses

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.timelines import Lineage
from walproxy.agent.control_data import ControlData
from walproxy.agent.rejoin_plan import ComparedWal, Fork, TimelineLineage, Way, check_source, find_fork, plan_rejoin

CRASHED = ControlData(7, "in production", 0x1000, 1, 0, 0, 16 << 20, True)
ONE, TWO = TimelineLineage(1, ()), TimelineLineage(2, ((1, 0x5000),))


@pytest.mark.parametrize(
    ("local", "source", "fork"),
    [
        (ONE, ONE, Fork(1, None)),
        (ONE, TWO, Fork(1, 0x5000)),
        (TWO, ONE, Fork(1, 0x5000)),
        (TWO, TWO, Fork(2, None)),
        (TWO, TimelineLineage(2, ((1, 0x4000),)), Fork(1, 0x4000)),
        (TWO, TimelineLineage(3, ((1, 0x5000), (2, 0x6000))), Fork(2, 0x6000)),
        (TWO, TimelineLineage(3, ((1, 0x6000),)), Fork(1, 0x5000)),
        (
            TimelineLineage(3, ((1, 0x5000), (2, 0x7000))),
            TimelineLineage(4, ((1, 0x5000), (2, 0x6000))),
            Fork(2, 0x6000),
        ),
        (TimelineLineage(3, ((2, 0x5000),)), ONE, None),
    ],
)
def test_the_fork_is_where_the_first_of_the_two_left_their_last_timeline(
    local: TimelineLineage, source: TimelineLineage, fork: Fork | None
) -> None:
    assert find_fork(local, source) == fork


def way(
    local: TimelineLineage | None = ONE,
    source: TimelineLineage = TWO,
    compared: ComparedWal = ComparedWal.EQUAL,
    **control: object,
) -> Way:
    changed = dataclasses.replace(CRASHED, **control)  # type: ignore[arg-type]
    return plan_rejoin(changed, local, source, compared, True).way


def test_a_crashed_old_primary_is_rewound() -> None:
    assert way() is Way.REWIND
    assert way(can_be_rewound=False) is Way.BASE_BACKUP
    assert plan_rejoin(CRASHED, ONE, TWO, ComparedWal.EQUAL, False).way is Way.BASE_BACKUP


@pytest.mark.parametrize(
    ("checkpoint_lsn", "expected"), [(0x4FFF, Way.FOLLOW), (0x5000, Way.REWIND), (0x5001, Way.REWIND)]
)
def test_a_clean_shutdown_below_the_fork_needs_no_overwrite(checkpoint_lsn: int, expected: Way) -> None:
    assert way(state="shut down", checkpoint_lsn=checkpoint_lsn) is expected
    assert way(state="in production", checkpoint_lsn=checkpoint_lsn) is Way.REWIND


@pytest.mark.parametrize(("end", "expected"), [(0x5000, Way.FOLLOW), (0x5008, Way.REWIND)])
def test_a_standby_follows_up_to_the_fork(end: int, expected: Way) -> None:
    assert way(state="shut down in recovery", min_recovery_lsn=end, min_recovery_tli=1) is expected


def test_a_standby_of_the_timeline_continues() -> None:
    assert way(local=TWO, state="shut down in recovery", tli=2) is Way.FOLLOW
    assert way(local=TWO, state="in archive recovery", tli=2, compared=ComparedWal.UNREADABLE) is Way.FOLLOW


@pytest.mark.parametrize("lineage", [((1, 0x5000),), ((1, 0x4000),), ((1, 0x6000),)])
@pytest.mark.parametrize("state", ["in production", "shut down"])
def test_a_number_taken_twice_is_not_rewound(lineage: Lineage, state: str) -> None:
    assert way(local=TWO, source=TimelineLineage(2, lineage), tli=2, state=state) is Way.BASE_BACKUP


@pytest.mark.parametrize("compared", [ComparedWal.DIFFERENT, ComparedWal.UNREADABLE])
@pytest.mark.parametrize("state", ["in production", "shut down"])
def test_wal_that_is_not_proved_equal_is_not_rewound(compared: ComparedWal, state: str) -> None:
    assert way(compared=compared, state=state) is Way.BASE_BACKUP


def test_an_unknown_or_foreign_history_is_not_rewound() -> None:
    assert way(local=None) is Way.BASE_BACKUP
    assert way(local=TimelineLineage(3, ((2, 0x5000),)), source=ONE) is Way.BASE_BACKUP


def test_another_system_and_a_standby_are_no_source() -> None:
    check_source(CRASHED, 7, False)
    with pytest.raises(ConfigurationError, match="of system 8, the data folder of 7"):
        check_source(CRASHED, 8, False)
    with pytest.raises(ConfigurationError, match="promote it first"):
        check_source(CRASHED, 7, True)
