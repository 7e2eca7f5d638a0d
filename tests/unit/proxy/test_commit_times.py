"""How long commits wait: what counts as the wait of a batch, and which appends are timed."""

from safekeeper.base.lsn import Lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import AppendRequest, AppendResponse
from walproxy.proposer.actions import ReportStatus, SendAppend
from walproxy.proxy import commit_times
from walproxy.proxy.commit_times import CommitTimes

LEADER, LATER = LeaderId(1, "a" * 32), LeaderId(2, "a" * 32)


def positions(write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn = 0) -> ReportStatus:
    return ReportStatus(write_lsn, flush_lsn, apply_lsn)


def append(begin_lsn: Lsn, end_lsn: Lsn, *safekeeper_ids: int) -> SendAppend:
    return SendAppend(list(safekeeper_ids), AppendRequest(LEADER, 1, begin_lsn, 0, 0, 0, True, b""), end_lsn)


def reply(flush_lsn: Lsn, leader_id: LeaderId = LEADER) -> AppendResponse:
    return AppendResponse(leader_id, flush_lsn, flush_lsn, 0)


def armed(*safekeeper_ids: int, apply: bool = False) -> CommitTimes:
    times = CommitTimes()
    times.permit_samples(0.0, safekeeper_ids, is_apply_timed=apply)
    return times


def test_every_batch_counts_with_the_time_until_commit_lsn_has_passed_its_end() -> None:
    times = CommitTimes()
    for end_lsn, now in ((100, 1.0), (200, 1.5), (300, 1.75)):
        times.received(end_lsn, now)
    times.reported(positions(300, 99), 2.0)
    assert times.commit.count == 0 and times.oldest_s(2.0) == 1.0
    times.reported(positions(300, 200), 2.0)
    assert (times.commit.count, times.commit.total) == (2, 1.5)
    assert times.oldest_s(2.0) == 0.25
    times.reported(positions(0, 0), 2.5)
    times.reported(positions(300, 300), 3.0)
    assert (times.commit.count, times.commit.total, times.oldest_s(3.0)) == (3, 2.75, None)


def test_wal_that_is_received_again_keeps_the_time_of_its_first_arrival() -> None:
    times = CommitTimes()
    times.restarted(50, 1)
    times.received(100, 1.0)
    times.restarted(50, 1)
    times.received(80, 9.0)
    times.received(100, 9.0)
    times.received(120, 9.0)
    times.reported(positions(120, 120), 10.0)
    assert (times.commit.count, times.commit.total) == (2, 10.0)


def test_wal_that_another_timeline_has_discarded_is_not_timed_by_what_replaces_it() -> None:
    times = armed(apply=True)
    times.restarted(50, 1)
    for end_lsn in (80, 100):
        times.received(end_lsn, 1.0)
    times.restarted(80, 2)
    times.received(100, 9.0)
    times.reported(positions(100, 100), 9.5)
    assert (times.commit.count, times.commit.total) == (2, 9.0), "one of the old timeline, and one of the new"
    assert times.write.count == 0


def test_the_queue_is_bounded() -> None:
    times = CommitTimes()
    for lsn in range(1, commit_times.BATCHES_MAX + 100):
        times.received(lsn, 1.0)
    times.reported(positions(1 << 40, 1 << 40), 2.0)
    assert times.commit.count == commit_times.BATCHES_MAX


def test_write_and_apply_are_timed_for_one_batch_at_a_time() -> None:
    times = armed(apply=True)
    times.received(100, 1.0)
    times.received(200, 1.0)
    times.reported(positions(200, 0), 1.25)
    assert (times.write.count, times.write.total, times.apply.count) == (1, 0.25, 0)
    times.received(300, 2.0)
    times.reported(positions(300, 300, 99), 3.0)
    assert times.apply.count == 0
    times.reported(positions(300, 300, 100), 3.0)
    assert (times.write.count, times.apply.count, times.apply.total) == (1, 1, 2.0)
    times.permit_samples(3.0, (), is_apply_timed=False)
    times.received(400, 4.0)
    times.reported(positions(400, 400, 400), 4.5)
    assert (times.write.count, times.apply.count) == (2, 1), "without designated standbys apply is not timed"


def test_an_append_is_timed_from_its_sending_to_the_reply_that_all_of_it_is_durable() -> None:
    times = armed(1, 2)
    times.appended(append(100, 100, 1, 2), 1.0)
    assert not times.pending, "a heartbeat carries no WAL"
    times.appended(append(100, 200, 1, 2, 3), 1.0)
    times.appended(append(200, 300, 1, 2, 3), 1.5)
    assert not times.armed
    times.acknowledged(1, reply(200), 1.25)
    times.acknowledged(2, reply(199), 1.25)
    times.acknowledged(2, reply(300), 5.0)
    times.acknowledged(2, reply(300), 9.0)
    times.acknowledged(3, reply(300), 9.0)
    assert {i: (h.count, h.total) for i, h in times.members.items()} == {1: (1, 0.25), 2: (1, 4.0)}
    assert not times.pending


def test_an_append_of_another_term_or_connection_is_not_timed() -> None:
    times = armed(1, 2)
    times.appended(append(100, 200, 1, 2), 1.0)
    times.acknowledged(1, reply(200, LATER), 60.0)
    times.disconnected(2)
    times.acknowledged(2, reply(200), 60.0)
    assert not times.members and not times.pending
    times.permit_samples(61.0, (1, 2), is_apply_timed=False)
    assert times.armed == {1, 2}


def test_a_safekeeper_that_was_removed_is_forgotten() -> None:
    times = armed(1)
    times.appended(append(100, 200, 1), 1.0)
    times.acknowledged(1, reply(200), 2.0)
    assert times.describe(2.0).members["1"].count == 1
    times.forget(1)
    assert times.describe(2.0).members == {}
