"""What is sent to the members of a term: the positions in each append, and WAL that the window no longer has."""

from typing import Any

import msgspec
import pytest

from safekeeper.consensus.control_state import TliHistory
from safekeeper.consensus.messages import AppendRequest, Elected, ReadResponse
from tests.unit.proposer.leader_table import ELECTED, START, TIMING, Table, in_state, lagging, reads
from tests.unit.proposer.test_leadership_pull import BEGIN, MIB, pulling
from tests.unit.proposer.test_leadership_pull import START as PULL_END
from walproxy.proposer.actions import Action, SendAppend, SendMessage
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.liveness import Timing
from walproxy.proposer.progress import State
from walproxy.proposer.replication import APPEND_BYTES_MAX, READ_AHEAD_S, READ_BYTES
from walproxy.proposer.standbys import Standbys


def header(table: Table, safekeeper_id: int = 2) -> AppendRequest:
    """Return the only append that was just sent to a member."""
    (append,) = (a for a in table.said if isinstance(a, SendAppend) and safekeeper_id in a.safekeeper_ids)
    return append.header


# WAL of the window.


def test_members_that_have_the_same_wal_are_sent_one_append_which_begins_where_theirs_ends() -> None:
    table = Table()
    table.receives(START + 10)
    table.acks(1, START + 10)
    table.acks(2, START + 10)
    table.now += 1.0
    table.receives(START + 20)
    appends = [(a.safekeeper_ids, a.begin_lsn, a.end_lsn) for a in table.said if isinstance(a, SendAppend)]
    assert appends == [([1, 2, 3], START + 10, START + 20)]
    assert header(table).commit_lsn == START + 10
    for progress in table.leadership.members.values():
        assert (progress.last_begin_lsn, progress.sent_lsn) == (START + 10, START + 20)
        assert progress.last_sent_at == table.now


# The positions in an append.


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("commit_lsn", START + 7, "commit_lsn"),
        ("truncate_lsn", START + 3, "truncate_lsn"),
        ("sequence", 40, "sequence"),
        ("streaming", False, "healthy"),
    ],
)
def test_an_append_has_the_present_positions_although_another_one_was_made_at_the_same_moment(
    name: str, value: Any, field: str
) -> None:
    table = Table()
    leadership = table.leadership
    table.receives(START + 10)
    leadership.commit_lsn, leadership.truncate_lsn = START + 5, START + 1
    leadership.write_lsn = START + 7
    leadership.sequence = 7
    leadership.probe(table.now)
    table.take()
    before = header(table)
    assert (before.commit_lsn, before.truncate_lsn, before.sequence, before.healthy) == (START + 5, START + 1, 8, True)
    setattr(leadership, name, value)
    leadership.sequence -= 1  # Each probe has its own.
    leadership.probe(table.now)
    table.take()
    after = header(table)
    assert after == msgspec.structs.replace(before, **{field: value})


def test_an_append_begins_where_its_member_is_although_another_member_s_was_made_at_the_same_moment() -> None:
    table = Table()
    table.receives(START + 10)
    in_state(table, 2, sent_lsn=START + 4)
    in_state(table, 3, sent_lsn=START + 6)
    table.leadership.probe(table.now)
    table.take()
    assert [header(table, i).begin_lsn - START for i in (1, 2, 3)] == [10, 4, 6]


def test_an_append_is_healthy_while_the_primary_streams_and_a_quorum_answers() -> None:
    table = Table()
    table.leadership.probe(table.now)
    table.take()
    assert header(table).healthy
    table.now += TIMING.heartbeat_timeout_s + 0.01
    table.leadership.probe(table.now)
    table.take()
    assert not header(table).healthy
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START)
    table.leadership.probe(table.now)
    table.take()
    assert header(table).healthy
    table.leadership.streaming = False
    table.leadership.probe(table.now)
    table.take()
    assert not header(table).healthy


def test_an_append_is_healthy_at_the_moment_at_which_a_quorum_answers_again() -> None:
    table = Table()
    table.now += TIMING.heartbeat_timeout_s + 0.01
    table.acks(1, START)
    table.leadership.sequence = 7
    table.leadership.probe(table.now)
    table.take()
    assert not header(table).healthy
    table.acks(2, START)
    table.leadership.sequence = 7  # Each probe has its own: this one begins where the last one did, at the same time.
    table.leadership.probe(table.now)
    table.take()
    assert header(table).healthy


def test_a_probe_is_sent_to_the_members_that_follow() -> None:
    table = Table(answers=False)
    table.acks(1, START)
    before = table.leadership.sequence
    table.leadership.probe(table.now)
    table.take()
    assert table.heartbeats() == [1] and header(table, 1).sequence == before + 1


def test_the_first_message_of_a_term_has_all_that_was_decided_of_its_log() -> None:
    elected = msgspec.structs.replace(
        ELECTED, tli_histories=(TliHistory(2, b"x"),), forgotten_term=3, settled_lsn=START - 4, base_lsn=START - 100
    )
    out: list[Action] = []
    leadership = Leadership(elected, 1, Standbys(parse_apply_rule("")), Timing(), 10.0, out)
    leadership.on_greeting((2, "2" * 32), 10.0)
    assert out == [SendMessage(2, elected)]


# Commits for readers.


@pytest.mark.parametrize(("acked_sequence", "is_awaited"), [(7, False), (6, True)])
def test_an_answer_to_a_commit_is_awaited_only_if_there_will_be_one(acked_sequence: int, is_awaited: bool) -> None:
    table = Table()
    table.acks(3, START, readers=True)
    table.receives(START + 50)
    table.leadership.sequence = 7
    table.acks(3, START + 50, flush_lsn=START, readers=True)
    progress = in_state(table, 3, acked_sequence=acked_sequence, waiting_since=None)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, START + 50)
    assert table.heartbeats() == [3] and header(table, 3).commit_lsn == START + 50
    assert (progress.waiting_since == table.now) is is_awaited
    assert progress.sent_commit_lsn == START + 50


def test_an_answer_is_awaited_since_the_first_message_that_has_none() -> None:
    table = Table()
    first = table.now
    in_state(table, 2, waiting_since=None)
    table.receives(START + 10)
    table.now += 1.0
    table.receives(START + 20)
    table.leadership.probe(table.now)
    table.take()
    assert table.leadership.members[2].waiting_since == first
    assert table.leadership.members[2].last_sent_at == table.now


def test_a_member_with_readers_is_sent_the_commit_at_the_end_of_its_pull() -> None:
    table = pulling()
    progress = table.leadership.members[3]
    progress.has_readers, progress.sent_commit_lsn = True, 0
    table.ends(3, PULL_END)
    (append,) = table.sent_to(3)
    assert append.header.commit_lsn == PULL_END and append.begin_lsn == append.end_lsn == PULL_END


# WAL in appends.


def test_a_member_that_pulls_or_is_fetched_for_is_sent_no_wal_although_the_window_has_its_next_byte() -> None:
    table = pulling()
    table.acks(3, PULL_END)  # Nothing is left to be pulled, but the member has not reported the end.
    table.leadership.on_wal_received(PULL_END + 100, table.now)
    table.take()
    assert table.sent_to(3) == [] and table.sent_to(1)
    other = lagging()
    other.tick()
    assert other.leadership.members[3].state is State.FETCHING
    other.leadership.window_begin_lsn = START
    other.receives(START + 120)
    assert other.appends(3) == [] and other.appends(1)


def test_wal_of_more_than_one_append_is_sent_in_order_and_in_pieces() -> None:
    table = Table()
    table.receives(START + 2 * APPEND_BYTES_MAX + 5)
    for safekeeper_id in (1, 2, 3):
        assert table.appends(safekeeper_id) == [
            (0, APPEND_BYTES_MAX),
            (APPEND_BYTES_MAX, 2 * APPEND_BYTES_MAX),
            (2 * APPEND_BYTES_MAX, 2 * APPEND_BYTES_MAX + 5),
        ]
        progress = table.leadership.members[safekeeper_id]
        assert progress.last_begin_lsn == START + 2 * APPEND_BYTES_MAX
        assert progress.sent_lsn == table.leadership.received_lsn


def test_members_that_are_not_equally_far_are_sent_appends_of_their_own() -> None:
    table = Table()
    in_state(table, 2, sent_lsn=START - 5, write_lsn=START - 5, flush_lsn=START - 5, last_begin_lsn=START - 5)
    table.leadership.on_wal_received(START + 50, table.now)
    sent = [(a.safekeeper_ids, a.begin_lsn - START, a.end_lsn - START) for a in table.out if isinstance(a, SendAppend)]
    # What the second one lacks is below the window: it is no member of another one's group.
    assert sent == [([1], 0, 50), ([3], 0, 50)]


# WAL that is fetched.


def test_wal_is_fetched_in_pieces_from_the_member_that_has_most_of_it() -> None:
    table = Table()
    end_lsn = START + 4 * READ_BYTES
    table.receives(end_lsn)
    for safekeeper_id in (1, 2):
        table.acks(safekeeper_id, end_lsn)
    table.leadership.window_begin_lsn = end_lsn
    in_state(table, 1, wal_begin_lsn=START, flush_lsn=end_lsn - 1)
    in_state(table, 2, wal_begin_lsn=START)
    in_state(table, 3, sent_lsn=START, write_lsn=START, flush_lsn=START, last_begin_lsn=START, waiting_since=None)
    table.tick()
    assert reads(table) == [(2, 0, READ_BYTES)]
    for number in (1, 2, 3):
        fetch = table.leadership.members[3].fetch
        assert fetch is not None and fetch.end_lsn == START + number * READ_BYTES
        response = ReadResponse(fetch.request_id, START + (number - 1) * READ_BYTES, bytes(READ_BYTES))
        table.leadership.on_read_response(2, response, table.now)
        table.take()
    assert table.leadership.members[3].sent_lsn == START + 3 * READ_BYTES


@pytest.mark.parametrize(
    ("after_s", "is_needed", "is_read"),
    [(0.0, False, True), (0.01, False, False), (0.01, True, True)],
)
def test_fetches_for_one_member_wait_for_their_rate_unless_commits_wait_for_it(
    after_s: float, is_needed: bool, is_read: bool
) -> None:
    table = lagging()
    in_state(table, 3, fetch_allowed_at=table.now + READ_AHEAD_S + after_s)
    if is_needed:
        table.leadership.disconnected(1, table.now)
        table.out.clear()
    table.tick()
    assert bool(reads(table)) is is_read


def test_each_fetch_takes_its_time_of_the_rate() -> None:
    table = lagging()
    table.tick()
    progress = table.leadership.members[3]
    for allowed_at, begins_at in ((0.0, table.now), (table.now + 5.0, table.now + 5.0)):
        progress.fetch_allowed_at = allowed_at
        fetch = progress.fetch
        assert fetch is not None
        size = 20
        response = ReadResponse(fetch.request_id, progress.sent_lsn, bytes(size))
        table.leadership.on_read_response(2, response, table.now)
        table.take()
        assert progress.fetch_allowed_at == begins_at + size / TIMING.catchup_bytes_per_s


def test_a_fetched_append_is_followed_by_the_next_request_and_an_answer_to_it_is_awaited() -> None:
    table = lagging()
    table.tick()
    progress = table.leadership.members[3]
    fetch = progress.fetch
    assert fetch is not None and progress.waiting_since is None
    table.leadership.on_read_response(2, ReadResponse(fetch.request_id, START + 10, bytes(20)), table.now)
    table.take()
    assert reads(table) == [(2, 30, 60)] and progress.waiting_since == table.now
    assert progress.fetch is not None and progress.fetch.request_id == fetch.request_id + 1


def test_wal_that_comes_waits_while_what_was_fetched_is_not_received() -> None:
    table = lagging()
    table.tick()
    for begin in (10, 30):
        fetch = table.leadership.members[3].fetch
        assert fetch is not None
        table.leadership.on_read_response(2, ReadResponse(fetch.request_id, START + begin, bytes(20)), table.now)
        table.leadership.window_begin_lsn = START + 50
        table.take()
    table.receives(START + 101)
    assert table.appends(3) == []
    table.acks(3, START + 30)
    assert table.appends(3) == [(50, 101)]


# Pulls.


def test_a_pull_begins_again_at_its_time_and_not_before() -> None:
    for after_s, state in ((0.0, State.PULLING), (0.01, State.FETCHING)):
        table = pulling()
        progress = table.leadership.members[3]
        progress.end_pull()
        progress.pull_allowed_at = table.now + after_s
        table.leadership.tick(table.now)
        table.take()
        assert progress.state is state


def test_an_answer_during_a_pull_that_goes_no_further_is_no_progress_of_it() -> None:
    table = pulling()
    pull = table.leadership.members[3].pull
    assert pull is not None
    began_at = table.now
    table.now += 3.0
    table.acks(3, BEGIN)
    again = table.leadership.members[3].pull
    assert again is not None and again.moved_at == began_at
    table.acks(3, BEGIN + MIB)
    again = table.leadership.members[3].pull
    assert again is not None and again.moved_at == table.now


def test_a_member_that_skips_is_sent_where_and_is_sent_nothing_until_it_is_there() -> None:
    table = lagging(wal_begin_lsn=START + 20)
    table.tick()
    (message,) = (a.message for a in table.said if isinstance(a, SendMessage) and isinstance(a.message, Elected))
    progress = table.leadership.members[3]
    assert message.base_lsn == progress.skipped_to_lsn == START + 11
    assert progress.waiting_since == table.now and progress.sent_commit_lsn == table.leadership.commit_lsn
    table.receives(START + 130)
    assert table.appends(3) == [] and table.appends(1)
