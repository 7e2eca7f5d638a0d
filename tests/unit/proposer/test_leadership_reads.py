"""A leader whose window lacks what a member needs: who is asked for that WAL, and when the member skips it."""

from typing import Any

import pytest

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.messages import (
    AppendRequest,
    Elected,
    ReadResponse,
)
from tests.unit.proposer.leader_table import START, TIMING, Table, in_state, lagging, reads
from walproxy.proposer.actions import SendMessage
from walproxy.proposer.progress import State
from walproxy.proposer.replication import READ_AHEAD_S


@pytest.mark.parametrize(
    ("of_second", "is_source"),
    [
        ({}, True),
        ({"wal_begin_lsn": START + 10}, True),
        ({"wal_begin_lsn": START + 11}, False),
        ({"flush_lsn": START + 11}, True),
        ({"flush_lsn": START + 10}, False),
    ],
)
def test_wal_below_the_window_is_fetched_from_a_member_that_has_it(of_second: dict[str, int], is_source: bool) -> None:
    table = lagging(**of_second)
    table.tick()
    end = min(of_second.get("flush_lsn", START + 100) - START, 60)
    assert reads(table) == ([(2, 10, end)] if is_source else [])
    assert table.leadership.members[3].state is (State.FETCHING if is_source else State.SKIPPING)


@pytest.mark.parametrize(
    ("source", "request_id", "begin", "size", "outcome"),
    [
        (2, 0, 10, 50, "sent"),
        (2, 0, 10, 1, "sent"),
        (2, 0, 10, 51, "refused"),
        (2, 0, 10, 0, "refused"),
        (2, 0, 9, 50, "refused"),
        (2, 0, 11, 49, "refused"),
        (1, 0, 10, 50, "ignored"),
        (2, 1, 10, 50, "ignored"),
    ],
)
def test_wal_that_was_fetched_is_sent_on_if_it_is_the_requested_one(
    source: int, request_id: int, begin: int, size: int, outcome: str
) -> None:
    table = lagging()
    table.tick()
    fetch = table.leadership.members[3].fetch
    assert fetch is not None and fetch.end_lsn == START + 60
    response = ReadResponse(fetch.request_id + request_id, START + begin, b"w" * size)
    if outcome == "refused":
        with pytest.raises(RemoteProtocolError, match="was answered with"):
            table.leadership.on_read_response(source, response, table.now)
        return
    table.leadership.on_read_response(source, response, table.now)
    table.take()
    appends = [a.message for a in table.said if isinstance(a, SendMessage) and isinstance(a.message, AppendRequest)]
    assert [(a.begin_lsn - START, len(a.payload)) for a in appends] == ([(10, size)] if outcome == "sent" else [])
    assert (table.leadership.members[3].fetch is fetch) is (outcome == "ignored")


def test_wal_that_was_fetched_for_a_member_that_has_moved_on_is_not_sent_and_its_source_not_blamed() -> None:
    """The member has written what a pull that had ended has brought."""
    table = lagging()
    table.tick()
    fetch = table.leadership.members[3].fetch
    assert fetch is not None and fetch.begin_lsn == START + 10
    in_state(table, 3, sent_lsn=START + 30, write_lsn=START + 30)
    table.leadership.on_read_response(2, ReadResponse(fetch.request_id, START + 10, b"w" * 50), table.now)
    table.take()
    assert not any(isinstance(a, SendMessage) and isinstance(a.message, AppendRequest) for a in table.said)
    assert reads(table) == [(2, 30, 60)]


@pytest.mark.parametrize("source", [1, 2])
def test_wal_that_its_source_refuses_is_asked_for_again_after_a_pause(source: int) -> None:
    table = lagging()
    table.tick()
    table.leadership.on_range_refused(source, "removed", table.now)
    table.take()
    progress = table.leadership.members[3]
    assert (progress.state is State.STREAMING) is (source == 2)
    assert not table.leadership.members[source].refusal, "it takes part"
    table.tick()
    assert reads(table) == []
    table.now += READ_AHEAD_S + TIMING.heartbeat_interval_s
    for safekeeper_id in (1, 2, 3):
        in_state(table, safekeeper_id, waiting_since=None)
    table.tick()
    assert bool(reads(table)) is (source == 2)


def test_a_member_that_refuses_the_term_is_noted_once_for_each_reason() -> None:
    table = Table(answers=False)
    for reason, count in (("one", 1), ("one", 0), ("two", 1)):
        table.leadership.on_range_refused(2, reason, table.now)
        table.take()
        assert len(table.said) == count
    assert table.leadership.members[2].refusal == "two"


def test_members_whose_source_is_lost_are_sent_wal_of_another_one() -> None:
    table = lagging()
    in_state(table, 1, wal_begin_lsn=START)
    table.tick()
    ((first, _, _),) = reads(table)
    table.leadership.disconnected(first, table.now)
    table.take()
    ((second, begin, end),) = reads(table)
    assert {first, second} == {1, 2} and (begin, end) == (10, 60)


def test_wal_is_still_fetched_when_a_member_is_lost_that_is_not_its_source() -> None:
    table = lagging()
    table.tick()
    fetch = table.leadership.members[3].fetch
    assert fetch is not None and fetch.source == 2
    table.leadership.disconnected(1, table.now)
    table.take()
    assert table.leadership.members[3].fetch is fetch and reads(table) == []


def test_wal_is_not_fetched_from_a_member_that_is_disconnected_or_the_one_that_needs_it() -> None:
    table = lagging()
    in_state(table, 3, wal_begin_lsn=START)
    table.leadership.disconnected(2, table.now)
    table.tick()
    assert reads(table) == []


@pytest.mark.parametrize(
    ("of_second", "base"),
    [
        ({"wal_begin_lsn": START + 20}, 11),
        ({"wal_begin_lsn": START + 20, "flush_lsn": START + 10}, 11),
        ({"wal_begin_lsn": 0}, 11),
    ],
)
def test_a_member_skips_to_the_oldest_wal_that_another_one_can_send_it(of_second: dict[str, int], base: int) -> None:
    table = lagging(**of_second)
    if of_second["wal_begin_lsn"] == 0:
        in_state(table, 2, flush_lsn=START + 10)  # It cannot be read from, nor skipped to.
    table.tick()
    (message,) = (a.message for a in table.said if isinstance(a, SendMessage) and isinstance(a.message, Elected))
    assert message.base_lsn == START + base


def test_a_member_does_not_skip_while_an_answer_of_its_own_is_awaited() -> None:
    table = lagging(wal_begin_lsn=START + 20)
    in_state(table, 3, waiting_since=table.now)
    table.tick()
    assert table.leadership.members[3].state is State.STREAMING
    in_state(table, 3, waiting_since=None)
    table.tick()
    assert table.leadership.members[3].state is State.SKIPPING


@pytest.mark.parametrize(
    ("changes", "is_needed"),
    [
        ({}, False),
        ({"voter": False}, True),
        ({"sent_lsn": START + 59}, True),
        ({"sent_lsn": START + 60}, False),
        ({"follows": False}, True),
    ],
)
def test_commits_wait_for_a_member_if_the_others_that_are_fed_from_the_window_are_no_quorum(
    changes: dict[str, Any], is_needed: bool
) -> None:
    table = lagging()
    in_state(table, 2, **changes)
    assert table.leadership._quorum_needs(3) is is_needed
    table.leadership.members[3].voter = False
    assert not table.leadership._quorum_needs(3)
    table.leadership.members[3].voter = True
    table.leadership.commit_lsn = 0
    assert table.leadership._quorum_needs(3)
