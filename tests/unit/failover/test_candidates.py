"""Which standby may be promoted, and which is."""

from dataclasses import replace

import pytest

from safekeeper.base.timelines import Lineage
from tests.unit.failover.looks import END_LSN, dead, log_end, primary, standby
from walproxy.failover.candidates import (
    HostLook,
    NoCandidate,
    choose,
    has_everything,
    lost_since,
    missing_bytes,
    number_for,
    obstacle,
    resolve,
    tlis_to_pass_over,
)

END = log_end()
LATER = log_end(tli=3, lineage=((1, 500), (2, 700)), given=3)


def test_a_standby_needs_the_complete_records_and_not_the_last_byte() -> None:
    assert has_everything(standby("pg1", END_LSN), END)
    assert not has_everything(standby("pg1", END_LSN - 1), END)
    assert missing_bytes(standby("pg1", END_LSN - 9), END) == 9
    assert missing_bytes(standby("pg1", END_LSN + 9), END) == 0


def test_what_was_replayed_counts_after_a_restart_of_the_standby() -> None:
    assert has_everything(standby("pg1", 0, replayed_lsn=END_LSN), END)


def test_a_standby_that_was_set_up_again_since_it_was_chosen_is_not_promoted() -> None:
    assert lost_since(standby("pg1", END_LSN, hindrance="would be read-only"), END) == ""  # by the agent that promotes
    assert lost_since(standby("pg1", END_LSN - 9), END) == "lacks 9 bytes that it had: it was set up again"
    assert "is on timeline 2" in lost_since(standby("pg1", END_LSN, tli=2), END)


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (dead("pg1"), "Connection refused"),
        (standby("pg1", system_id=8), "belongs to another system, 8, not 7"),
        (primary("pg1"), "is a primary on timeline 1, not a standby"),
        (standby("pg1", tli=2), "is on timeline 2, to which the log has not gone on: it is being"),
        (standby("pg1", hindrance="would be read-only"), "would be read-only"),
    ],
)
def test_some_servers_cannot_be_promoted(look: HostLook, reason: str) -> None:
    assert reason in obstacle(look, END)
    assert not has_everything(look, END)


def test_a_standby_on_an_earlier_timeline_may_follow_unless_it_went_beyond_the_fork() -> None:
    assert obstacle(standby("pg1", 500, tli=1), LATER) == ""
    assert "the log left that timeline at 0/1F4: make it a standby again with pg_rewind" in obstacle(
        standby("pg1", 501, tli=1), LATER
    )
    assert "connect it to the safekeepers, which shows whether that is so, or make" in obstacle(
        standby("pg1", 501, tli=1, receives=False), LATER
    )
    assert obstacle(standby("pg1", END_LSN + 500, tli=3), LATER) == ""  # From the old primary itself, not acknowledged.


def test_an_incomplete_record_of_an_earlier_timeline_is_overwritten_by_a_promotion() -> None:
    """Simulator, failovers 119633: the only standby was refused for ever, and no commit came."""
    look = standby("pg1", 520, tli=1, replayed_lsn=500, complete_lsn=500)
    assert obstacle(look, LATER) == ""
    assert missing_bytes(look, LATER) == LATER.records_end_lsn - 500
    assert has_everything(look, log_end(tli=2, lineage=((1, 500),), end_lsn=520, records_end_lsn=500, given=2))
    assert choose([look, standby("pg2", 510, tli=2)], LATER).name == "pg2:5432"
    beyond = standby("pg1", 520, tli=1, replayed_lsn=500, complete_lsn=512)
    assert "the log left that timeline at 0/1F4: make it a standby again with pg_rewind" in obstacle(beyond, LATER)
    unknown = standby("pg1", 520, tli=1, replayed_lsn=500)
    assert (
        "GRANT pg_monitor and EXECUTE ON FUNCTION pg_read_binary_file(text, bigint, bigint, boolean), which"
        in obstacle(unknown, LATER)
    )


def test_a_timeline_that_the_log_never_was_on_is_another_line() -> None:
    gap = log_end(tli=4, lineage=((1, 500), (3, 700)), given=4)
    assert "is on timeline 2, which is not part of the log" in obstacle(standby("pg1", 400, tli=2), gap)


def test_numbers_that_other_failovers_may_have_used_are_passed_over() -> None:
    look = standby("pg1")
    assert (number_for(look, END), number_for(look, log_end(given=3)), number_for(look, END, 5, 4)) == (2, 4, 6)
    assert number_for(standby("pg1", tli=7), END) == 8
    assert list(tlis_to_pass_over(look, 2)) == [] and list(tlis_to_pass_over(look, 4)) == [2, 3]
    poor = standby("pg1", places_files=False)
    assert obstacle(poor, END) == ""
    assert "GRANT pg_monitor, pg_write_server_files" in obstacle(poor, log_end(given=2))


def test_the_most_advanced_one_is_chosen_and_the_first_of_equals() -> None:
    looks = [dead("pg1"), standby("pg2", 900), standby("pg3", 950), standby("pg4", 950)]
    assert choose(looks, END).name == "pg3:5432"
    assert choose(looks, END, "pg2:5432").name == "pg2:5432"


def test_without_a_candidate_each_server_is_named_with_its_reason() -> None:
    with pytest.raises(NoCandidate) as none:
        choose([dead("pg1"), standby("pg2", system_id=8)], END)
    assert str(none.value) == (
        "no standby can be promoted: pg1:5432 cannot connect to PostgreSQL: Connection refused; pg2:5432 belongs "
        "to another system, 8, not 7"
    )
    with pytest.raises(NoCandidate, match="--primary names no other server"):
        choose([], END)


@pytest.mark.parametrize(
    ("wanted", "name"),
    [("pg1", "pg1:5432"), ("pg2:5433", "pg2:5433"), ("::1", "[::1]:5432"), ("[::1]:5432", "[::1]:5432")],
)
def test_a_server_is_named_by_its_host_or_with_its_port(wanted: str, name: str) -> None:
    assert resolve(["pg1:5432", "pg2:5432", "pg2:5433", "[::1]:5432"], wanted) == name


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ("pg", "pg is none of the servers: pg1:5432, pg2:5432, pg2:5433"),
        ("pg2", "pg2 is ambiguous, name the port: pg2:5432, pg2:5433"),
    ],
)
def test_another_name_is_refused(wanted: str, line: str) -> None:
    with pytest.raises(NoCandidate) as refused:
        resolve(["pg1:5432", "pg2:5432", "pg2:5433"], wanted)
    assert str(refused.value) == line


CRASHED = standby("pg1", tli=3, received_lsn=0, replayed_lsn=END_LSN, receives=False)


@pytest.mark.parametrize(
    ("lineage", "is_able"),
    [
        (((1, END_LSN),), True),
        (((1, END_LSN + 24),), True),
        (((1, END_LSN - 1),), False),  # It lacks a record.
        (((1, 400), (2, END_LSN)), False),
        (((2, END_LSN),), False),
        ((), False),  # Its history file is not known.
    ],
)
def test_a_standby_whose_promotion_has_crashed_is_promoted_again_if_it_left_the_log_at_its_end(
    lineage: Lineage, is_able: bool
) -> None:
    look = replace(CRASHED, lineage=lineage)
    assert has_everything(look, END) is is_able
    assert number_for(look, END) == 4
    if not is_able:
        assert "is on timeline 3, to which the log has not gone on" in obstacle(look, END)


def test_such_a_standby_has_the_line_of_the_log_below() -> None:
    end = log_end(tli=2, lineage=((1, 500),))
    assert has_everything(replace(CRASHED, lineage=((1, 500), (2, END_LSN))), end)
    assert not has_everything(replace(CRASHED, lineage=((1, 400), (2, END_LSN))), end)
    # Before the seal neither is known.
    estimate = replace(end, is_estimate=True, lineage=((1, 900),))
    assert not obstacle(replace(CRASHED, lineage=((1, 500), (2, 700))), estimate)
    assert obstacle(replace(CRASHED, lineage=((1, 500),)), estimate)
