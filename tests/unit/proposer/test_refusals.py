"""Refusals that are repeated without a term: how long a refused primary waits."""

from typing import Any

import msgspec
import pytest

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Identity, Member, Membership
from safekeeper.consensus.messages import PROTOCOL_VERSION, AcceptorGreeting, VoteResponse
from safekeeper.consensus.term_history import HistoryEntry
from walproxy.proposer.primary import Ancestor, PrimaryIdentity
from walproxy.proposer.refusals import Refusals
from walproxy.proposer.roster import Cluster, Peer

PRIMARY = PrimaryIdentity(system_id=7, tli=1, flush_lsn=1 << 24, segment_size=1 << 24, server_version=150018)
MEMBERSHIP = Membership(1, tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3)), author=4)


@pytest.mark.parametrize(
    ("cluster", "wait_s"),
    [
        (Cluster("c", msgspec.structs.replace(MEMBERSHIP, author=5)), 20.0),
        (Cluster("c", msgspec.structs.replace(MEMBERSHIP, generation=2, members=MEMBERSHIP.members[:2])), 10.0),
        (Cluster("d", MEMBERSHIP), 10.0),
    ],
)
def test_a_primary_waits_twice_as_long_if_the_same_members_refuse_it_again_in_whatever_term(
    cluster: Cluster, wait_s: float
) -> None:
    refusals = Refusals(10.0, 300.0)
    refusals.remember(PRIMARY, "other bytes", Cluster("c", MEMBERSHIP), {}, by_bytes=True, now=0.0)
    assert refusals.may_be_repeated(PRIMARY, 9.9)
    assert not refusals.may_be_repeated(PRIMARY, 10.1)
    refusals.remember(PRIMARY, "other bytes", cluster, {}, by_bytes=True, now=20.0)
    assert refusals.may_be_repeated(PRIMARY, 19.9 + wait_s)
    assert not refusals.may_be_repeated(PRIMARY, 20.1 + wait_s)


# Whether the present greetings show that an election would refuse the primary again.

BASE, END = 1 << 24, (1 << 24) + 1000
CLUSTER = Cluster("c" * 32, MEMBERSHIP)
LEADER = LeaderId(9, "run")
BY_BYTES = msgspec.structs.replace(PRIMARY, flush_lsn=END + 10, host="a")
PROMOTED = msgspec.structs.replace(BY_BYTES, tli=2, ancestors=(Ancestor(1, END),))
# The log has left timeline 1 for timeline 2, and this primary has stayed on it.
ON_TWO = (HistoryEntry(3, BASE, 1), HistoryEntry(4, BASE + 500, 2))
ON_ONE = (HistoryEntry(3, BASE, 1),)


def vote(history: tuple[HistoryEntry, ...] = ON_ONE, flush_lsn: int = END) -> VoteResponse:
    return VoteResponse(LEADER, True, LEADER, history, (), BASE, flush_lsn, BASE, BASE)


def votes_of(*ids: int, history: tuple[HistoryEntry, ...] = ON_ONE) -> dict[Identity, VoteResponse]:
    return {member.identity: vote(history) for member in MEMBERSHIP.members if member.id in ids}


def peers_of(*ids: int, last_term: int = 3, membership: Membership = MEMBERSHIP, **changes: Any) -> dict[int, Peer]:
    """Return the safekeepers, of which these have greeted; the third one's greeting has `changes`."""
    peers = {}
    for i in (1, 2, 3):
        greeting = AcceptorGreeting(
            PROTOCOL_VERSION, i, f"{i}" * 32, CLUSTER.id, 7, 1 << 24, 150018, membership, LEADER, last_term, BASE, END,
            BASE, BASE, None,
        )  # fmt: skip
        of_it = changes if i == 3 else {}
        peers[i] = Peer(True, greeting=msgspec.structs.replace(greeting, **of_it) if i in ids else None)
    return peers


def refused_by_bytes(*voters: int) -> Refusals:
    refusals = Refusals(10.0, 300.0)
    refusals.remember(BY_BYTES, "other bytes", CLUSTER, votes_of(*voters), by_bytes=True, now=0.0)
    return refusals


@pytest.mark.parametrize(
    ("peers", "now", "is_refused"),
    [
        (peers_of(1, 2, 3), 9.9, True),
        (peers_of(1, 2, 3), 10.0, False),
        (peers_of(1, 2), 9.9, False),
        (peers_of(1), 9.9, False),
        (peers_of(1, 2, 3, flush_lsn=END + 1), 9.9, False),
        (peers_of(1, 2, 3, wal_begin_lsn=BASE + 1), 9.9, False),
        (peers_of(1, 2, 3, last_term=5), 9.9, False),
        (peers_of(1, 2, 3, incarnation="9" * 32), 9.9, False),
        (peers_of(1, 2, 3, membership=msgspec.structs.replace(MEMBERSHIP, author=9)), 9.9, True),
        (peers_of(1, 2, 3, membership=msgspec.structs.replace(MEMBERSHIP, generation=2)), 9.9, False),
    ],
)
def test_a_primary_with_other_bytes_waits_while_the_members_that_have_refused_it_are_unchanged(
    peers: dict[int, Peer], now: float, is_refused: bool
) -> None:
    assert refused_by_bytes(1, 2, 3).reason(BY_BYTES, peers, now) == ("other bytes" if is_refused else "")


def test_a_member_that_did_not_vote_may_have_the_log_that_the_primary_continues() -> None:
    assert refused_by_bytes(1, 2).reason(BY_BYTES, peers_of(1, 2), 9.9) == "other bytes"
    assert refused_by_bytes(1, 2).reason(BY_BYTES, peers_of(1, 2, 3), 9.9) == ""


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"flush_lsn": END + 11}, True),
        ({"flush_lsn": END + 9}, False),
        ({"tli": 2, "ancestors": (Ancestor(1, END),)}, False),
        ({"ancestors": (Ancestor(1, END),)}, False),
        ({"system_id": 8}, False),
        ({"segment_size": 1 << 20}, False),
        ({"host": "b"}, False),
        ({"server_version": 160000, "slot": "other"}, True),
    ],
)
def test_a_server_that_may_be_another_one_is_not_refused_for_its_bytes(changes: dict[str, Any], is_same: bool) -> None:
    refusals = refused_by_bytes(1, 2, 3)
    primary = msgspec.structs.replace(BY_BYTES, **changes)
    assert refusals.may_be_repeated(primary, 9.9) is is_same
    assert bool(refusals.reason(primary, peers_of(1, 2, 3), 9.9)) is is_same
    refusals.forget()
    assert not refusals.may_be_repeated(primary, 9.9) and not refusals.reason(primary, peers_of(1, 2, 3), 9.9)


def test_a_line_of_descent_is_refused_again_as_long_as_no_log_has_changed() -> None:
    refusals = Refusals(10.0, 300.0)
    votes = votes_of(1, 2, 3, history=ON_TWO)
    refusals.remember(BY_BYTES, "stayed on timeline 1", CLUSTER, votes, by_bytes=False, now=0.0)
    peers = peers_of(1, 2, 3, last_term=4)
    for now in (0.0, 1000.0):
        assert refusals.may_be_repeated(BY_BYTES, now)
        assert refusals.reason(BY_BYTES, peers, now) == "stayed on timeline 1"
    # Another server of the same host that has stayed on it, too: it is refused for its own reason.
    shorter = msgspec.structs.replace(BY_BYTES, flush_lsn=END - 1)
    assert "has stayed on it" in refusals.reason(shorter, peers, 0.0)
    # One that was promoted with the log is not.
    promoted = msgspec.structs.replace(BY_BYTES, tli=2, ancestors=(Ancestor(1, BASE + 500),))
    assert not refusals.may_be_repeated(promoted, 0.0) and refusals.reason(promoted, peers, 0.0) == ""
    assert refusals.reason(BY_BYTES, peers_of(1, 2, 3, last_term=5), 0.0) == ""


@pytest.mark.parametrize(("fitting", "is_refused"), [((), True), ((1,), False), ((3,), False), ((1, 2), False)])
def test_a_line_of_descent_is_refused_only_if_no_donor_of_a_quorum_fits(
    fitting: tuple[int, ...], is_refused: bool
) -> None:
    """Two logs of one term, of which each may be the donor's: one has left the primary's timeline."""
    refusals = Refusals(10.0, 300.0)
    left = (HistoryEntry(3, BASE, 1), HistoryEntry(4, BASE + 500, 2))
    stayed = (HistoryEntry(3, BASE, 1), HistoryEntry(4, BASE + 500, 1))
    votes = {m.identity: vote(stayed if m.id in fitting else left) for m in MEMBERSHIP.members}
    refusals.remember(BY_BYTES, "refused", CLUSTER, votes, by_bytes=False, now=0.0)
    assert bool(refusals.reason(BY_BYTES, peers_of(1, 2, 3, last_term=4), 0.0)) is is_refused


def test_a_host_whose_bytes_were_refused_and_that_fits_no_log_of_those_who_are_left_is_refused_for_its_lineage() -> (
    None
):
    refusals = Refusals(10.0, 300.0)
    votes = {**votes_of(1, 2, history=ON_TWO), **votes_of(3, history=(*ON_ONE, HistoryEntry(5, END, 1)))}
    refusals.remember(BY_BYTES, "other bytes", CLUSTER, votes, by_bytes=True, now=0.0)
    for now in (0.0, 1000.0):
        assert "has stayed on it" in refusals.reason(BY_BYTES, peers_of(1, 2, last_term=4), now)


def test_a_log_that_no_quorum_chooses_does_not_count() -> None:
    """Each quorum has a voter with a newer log than the one that fits."""
    refusals = Refusals(10.0, 300.0)
    votes = {m.identity: vote(ON_ONE if m.id == 1 else ON_TWO) for m in MEMBERSHIP.members}
    refusals.remember(BY_BYTES, "refused", CLUSTER, votes, by_bytes=False, now=0.0)
    peers = peers_of(1, 2, 3, last_term=4)
    first = peers[1].greeting
    assert first is not None
    peers[1].greeting = msgspec.structs.replace(first, last_term=3)
    assert refusals.reason(BY_BYTES, peers, 0.0) == "refused"


def test_the_wait_doubles_up_to_its_limit_for_the_same_server_and_voters_only() -> None:
    refusals, now = Refusals(10.0, 35.0), 100.0
    for wait_s in (10.0, 20.0, 35.0, 35.0):
        refusals.remember(BY_BYTES, "other bytes", CLUSTER, votes_of(1, 2, 3), by_bytes=True, now=now)
        assert refusals.may_be_repeated(BY_BYTES, now + wait_s - 0.1)
        assert not refusals.may_be_repeated(BY_BYTES, now + wait_s)
        now += 100.0
    for primary, voters in ((BY_BYTES, (1, 2)), (PROMOTED, (1, 2))):
        refusals.remember(primary, "other bytes", CLUSTER, votes_of(*voters), by_bytes=True, now=now)
        assert not refusals.may_be_repeated(primary, now + 10.0)
    refusals.remember(BY_BYTES, "lineage", CLUSTER, votes_of(1, 2), by_bytes=False, now=now)
    assert not refusals.may_be_repeated(BY_BYTES, now)
    refusals.remember(BY_BYTES, "other bytes", CLUSTER, votes_of(1, 2), by_bytes=True, now=now)
    assert refusals.may_be_repeated(BY_BYTES, now + 9.9), "there is no wait to double"
    assert not refusals.may_be_repeated(BY_BYTES, now + 10.0)
