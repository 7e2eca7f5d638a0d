"""Pulls between members, on both sides: what is written of what another safekeeper sends, and what is served to one."""

from typing import Any

import msgspec
import pytest

from safekeeper.acceptor.effects import Effect, ResetWal, Send, ServeRead, WriteWal
from safekeeper.base.errors import StorageFull
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AppendResponse,
    PeerRead,
    PullEnded,
    PullSource,
    PullWal,
    RefusalCode,
    VoteRequest,
)
from tests.unit.acceptor.test_acceptor import (
    BASE,
    CLUSTER,
    MEMBERS,
    P1,
    P2,
    SEGMENT,
    Bench,
    elected,
    following,
    member,
)

SOURCES = (PullSource(2, "two:2"),)
END = BASE + 1000


def pull(number: int = 1, end_lsn: int = END, leader_id: LeaderId = P1, sources: Any = SOURCES) -> PullWal:
    return PullWal(leader_id, number, end_lsn, 0, sources)


def pulling(wal_bytes: int = 100) -> Bench:
    bench = following(wal_bytes)
    assert bench.deliver(pull()) is None
    assert bench.acceptor.pull == pull()
    return bench


def pulled(bench: Bench, begin: int, payload: bytes, leader_id: LeaderId = P1) -> list[Effect]:
    return bench.run(bench.acceptor.pulled(leader_id, BASE + begin, payload))


def written(bench: Bench) -> list[tuple[int, bytes]]:
    return [(e.begin_lsn - BASE, bytes(e.payload)) for e in bench.effects if isinstance(e, WriteWal)]


def vote(leader_id: LeaderId) -> VoteRequest:
    return VoteRequest(leader_id, 1, CLUSTER, MEMBERS)


# The member that pulls (6.8).


def test_pulled_wal_is_appended_and_acknowledged_once_it_is_on_disk() -> None:
    bench = pulling()
    pulled(bench, 100, b"a" * 400)
    assert written(bench) == [(100, b"a" * 400)] and bench.kinds() == ["WriteWal"]
    answer = bench.flush()
    assert isinstance(answer, AppendResponse)
    assert (answer.leader_id, answer.flush_lsn) == (P1, BASE + 500)
    pulled(bench, 500, b"b" * 500)
    assert bench.effects[-1] == Send(1, PullEnded(P1, 1, END))
    assert bench.acceptor.pull is None
    bench.append(END, b"c")
    assert written(bench) == [(1000, b"c")]


def test_no_byte_above_the_end_of_the_range_is_written() -> None:
    bench = pulling()
    pulled(bench, 100, b"a" * 2000)
    assert written(bench) == [(100, b"a" * 900)]
    assert bench.acceptor.write_lsn == END and bench.acceptor.pull is None


@pytest.mark.parametrize("begin", [0, 99, 101, 500])
def test_bytes_elsewhere_than_at_the_write_position_are_dropped(begin: int) -> None:
    bench = pulling()
    assert pulled(bench, begin, b"a" * 10) == []
    assert bench.acceptor.write_lsn == BASE + 100 and bench.acceptor.pull == pull()


def test_bytes_at_the_end_of_the_range_that_appends_have_reached_are_dropped() -> None:
    bench = pulling()
    bench.append(BASE + 100, b"l" * 900)
    assert bench.acceptor.write_lsn == END
    assert pulled(bench, 1000, b"late") == []
    assert bench.acceptor.write_lsn == END


def test_without_a_pull_nothing_is_written() -> None:
    bench = following(100)
    assert pulled(bench, 100, b"late") == []


def test_after_a_vote_for_a_higher_term_nothing_that_was_pulled_is_written() -> None:
    bench = pulling()
    bench.deliver(vote(P2), connection=1)
    assert bench.acceptor.pull is None
    assert pulled(bench, 100, b"late") == []
    # Nor under the next leader, which has requested no such WAL; nor what was read in the older leader's name.
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 100, 1)))
    assert pulled(bench, 100, b"late") == []
    bench.deliver(pull(1, leader_id=P2))
    assert pulled(bench, 100, b"late") == []
    pulled(bench, 100, b"new", P2)
    assert written(bench) == [(100, b"new")]


def test_another_elected_and_the_end_of_the_connection_end_the_pull() -> None:
    bench = pulling()
    bench.deliver(elected(P1, (1, BASE, 1)))
    assert bench.acceptor.pull is None and pulled(bench, 100, b"late") == []
    bench = pulling()
    bench.acceptor.disconnected(1)
    assert bench.acceptor.pull is None and pulled(bench, 100, b"late") == []


def test_a_pull_is_taken_of_the_leader_on_its_connection_only() -> None:
    bench = following(100)
    bench.greet(connection=2)
    assert bench.deliver(pull(), connection=2).code is RefusalCode.NOT_ADOPTED
    assert bench.deliver(pull(leader_id=P2)).code is RefusalCode.NOT_ADOPTED
    bench.deliver(vote(P2))
    assert bench.deliver(pull()).code is RefusalCode.STALE_TERM
    assert bench.acceptor.pull is None


def test_a_pull_without_sources_or_without_a_range_ends_at_once() -> None:
    bench = pulling()
    assert bench.deliver(pull(2, sources=())) == PullEnded(P1, 2, BASE + 100)
    assert bench.deliver(pull(3, sources=())) == PullEnded(P1, 3, BASE + 100)
    assert bench.deliver(pull(4, end_lsn=BASE + 100)) == PullEnded(P1, 4, BASE + 100)
    assert bench.acceptor.pull is None


def test_only_the_pull_that_is_under_way_can_fail() -> None:
    bench = pulling()
    first = bench.acceptor.pull
    assert first is not None
    bench.deliver(pull(2))
    assert bench.run(bench.acceptor.pull_failed(first, "gone")) == []
    second = bench.acceptor.pull
    assert second is not None
    bench.run(bench.acceptor.pull_failed(second, "gone"))
    assert bench.effects == [Send(1, PullEnded(P1, 2, BASE + 100, "gone"))]


def test_a_full_disk_ends_the_pull_with_the_reason() -> None:
    bench = pulling()
    bench.full = WriteWal
    with pytest.raises(StorageFull):
        pulled(bench, 100, b"a" * 10)
    assert bench.effects[-1] == Send(1, PullEnded(P1, 1, BASE + 100, "no space"))
    assert bench.acceptor.pull is None and bench.acceptor.write_lsn == BASE + 100


def test_nothing_is_pulled_into_a_log_that_was_to_begin_anew_when_the_disk_was_full() -> None:
    bench = pulling()
    bench.full = ResetWal
    skip = elected(P1, (1, BASE, 1), base_lsn=BASE + 2 * SEGMENT, settled_lsn=BASE + 2 * SEGMENT)
    assert bench.deliver(skip).code is RefusalCode.STORAGE_FULL
    bench.full = None
    assert bench.acceptor.write_lsn == 0 and bench.acceptor.leader is None
    assert bench.run(bench.acceptor.pulled(P1, 0, b"a" * 10)) == []
    bench.greet(2)
    answer = bench.deliver(skip, connection=2)
    assert isinstance(answer, AppendResponse) and answer.flush_lsn == BASE + 2 * SEGMENT


def test_heartbeats_may_begin_anywhere_in_what_was_pulled_and_bytes_may_not() -> None:
    bench = pulling()
    pulled(bench, 100, b"a" * 400)
    bench.flush()
    for begin in (100, 300, 500):
        answer = bench.append(BASE + begin, sequence=begin, commit_lsn=BASE + 500)
        assert isinstance(answer, AppendResponse) and (answer.sequence, answer.write_lsn) == (begin, BASE + 500)
    assert bench.acceptor.commit_lsn == BASE + 500
    assert bench.append(BASE + 300, b"x").code is RefusalCode.POSITION
    bench = pulling()
    pulled(bench, 100, b"a" * 400)
    assert bench.append(BASE + 99).code is RefusalCode.POSITION
    # In another adoption there was no pull.
    bench = pulling()
    pulled(bench, 100, b"a" * 400)
    bench.deliver(elected(P1, (1, BASE, 1)))
    assert bench.append(BASE + 100).code is RefusalCode.POSITION


def test_pulled_wal_over_a_change_of_timeline_begins_another_segment() -> None:
    bench = following(100)
    bench.deliver(vote(P2))
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 300, 2)))
    bench.deliver(pull(leader_id=P2))
    pulled(bench, 100, b"a" * 300, P2)
    assert bench.kinds() == ["WriteWal", "FlushWal", "TruncateWal", "WriteWal"]
    assert bench.acceptor.write_lsn == BASE + 400


# The source (6.7).


def peer_read(begin: int, end: int, leader_id: LeaderId = P1) -> PeerRead:
    return PeerRead(leader_id, 5, BASE + begin, BASE + end)


def asked_by_a_member(bench: Bench) -> Bench:
    bench.greet(connection=2, proposer_id="safekeeper-3")
    return bench


def test_a_member_is_served_on_a_connection_of_its_own() -> None:
    bench = asked_by_a_member(following(100))
    request = peer_read(10, 90)
    assert bench.deliver(request, connection=2) is None
    assert bench.effects == [ServeRead(2, request)]
    assert bench.acceptor.serves(request)


@pytest.mark.parametrize(("begin", "end"), [(-1, 10), (90, 101)])
def test_a_member_is_not_served_what_is_not_here(begin: int, end: int) -> None:
    bench = asked_by_a_member(following(100))
    assert bench.deliver(peer_read(begin, end), connection=2).code is RefusalCode.RANGE
    assert not bench.acceptor.serves(peer_read(begin, end))


def test_the_log_of_a_term_that_was_promised_and_not_adopted_is_not_served() -> None:
    bench = asked_by_a_member(following(100))
    bench.deliver(vote(P2))
    assert not bench.acceptor.serves(peer_read(10, 90)), "a read that was under way"
    assert bench.deliver(peer_read(10, 90, P2), connection=2).code is RefusalCode.NOT_ADOPTED
    assert bench.kinds() == ["Send", "Close"]
    assert bench.deliver(peer_read(10, 90), connection=2).code is RefusalCode.STALE_TERM
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 100, 1)))
    assert bench.acceptor.serves(peer_read(10, 90, P2))


def test_an_adoption_that_is_not_finished_serves_nothing() -> None:
    bench = following(100)
    for changes in ({"truncate_to": BASE + 50}, {"base_lsn": BASE}, {"set_aside": True}):
        control = msgspec.structs.replace(bench.control, **changes)
        restarted = asked_by_a_member(Bench(control, BASE + 100))
        restarted.acceptor.control = control  # As before the start has finished it.
        assert not restarted.acceptor.serves(peer_read(10, 20))
        assert restarted.deliver(peer_read(10, 20), connection=2).code is RefusalCode.NOT_ADOPTED


def test_a_source_serves_after_a_restart_too_without_its_leader() -> None:
    bench = asked_by_a_member(Bench(following(100).control, BASE + 100))
    assert bench.deliver(peer_read(10, 90), connection=2) is None
    assert bench.effects == [ServeRead(2, peer_read(10, 90))]


def test_a_member_that_follows_nobody_serves_nothing() -> None:
    bench = asked_by_a_member(member())
    assert bench.deliver(peer_read(0, 0), connection=2).code is RefusalCode.STALE_TERM
