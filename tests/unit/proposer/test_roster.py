"""Decisions that follow from the safekeepers' greetings alone, and the messages that belong to no term."""

from collections import deque
from typing import Any

import msgspec
import pytest

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member, Membership, QuorumSizes, bootstrap_cluster_id
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    Bootstrap,
    FolderStates,
    ProposerGreeting,
    RefusalCode,
)
from tests.unit.proposer.test_proposer import CLUSTER, END, MEMBERS, PRIMARY, SEGMENT, empty, greeting
from walproxy.proposer.actions import Action, Dial, Disconnect, HangUp, Note, SendMessage
from walproxy.proposer.roster import (
    REDIRECT_INTERVAL_S,
    Cluster,
    Peer,
    Roster,
    clusters_of,
    find_cluster,
    foreign_reason,
    greetings_of,
    has_unknown_tail,
    highest_promise,
    later_cluster_reason,
    majority_against,
    misfit_reason,
    newest_cluster,
    newest_membership,
    plan_bootstrap,
    repeated_bootstrap_reason,
    stuck_reason,
    twin_of,
    voters_of,
)

OURS = Cluster(CLUSTER, MEMBERS)
NEW = "d" * 32


def peers_of(**of: AcceptorGreeting | None) -> dict[int, Peer]:
    """Return three connected safekeepers with their greetings: `s2=...` is the second one's."""
    found = {i: of.get(f"s{i}", greeting(i)) for i in (1, 2, 3)}
    return {i: Peer(True, greeting=each) for i, each in found.items()}


def of_members(generation: int = 1, author: int = 0, members: tuple[Member, ...] = MEMBERS.members) -> Membership:
    return Membership(generation, members, author=author)


# Which of two memberships replaces the other.


@pytest.mark.parametrize(
    ("cluster_id", "author", "generation", "is_later"),
    [
        (CLUSTER, 5, 3, False),
        (CLUSTER, 5, 4, True),
        (CLUSTER, 5, 2, False),
        (CLUSTER, 6, 1, True),
        (CLUSTER, 4, 9, False),
        (NEW, 1, 4, True),
        (NEW, 9, 3, False),
        (NEW, 9, 2, False),
    ],
)
def test_a_membership_is_later_by_its_author_in_its_cluster_and_by_its_generation_elsewhere(
    cluster_id: str, author: int, generation: int, is_later: bool
) -> None:
    ours = Cluster(CLUSTER, of_members(3, author=5))
    assert Cluster(cluster_id, of_members(generation, author)).is_later_than(ours) is is_later


def test_the_same_cluster_has_the_same_members_whoever_leads_it() -> None:
    assert OURS.is_same(Cluster(CLUSTER, of_members(author=7)))
    assert not OURS.is_same(Cluster(NEW, MEMBERS))
    assert not OURS.is_same(Cluster(CLUSTER, of_members(2)))


# Clusters and their voters.


@pytest.mark.parametrize(
    ("peers", "found"),
    [
        (peers_of(), OURS),
        (peers_of(s3=None), OURS),
        (peers_of(s2=None, s3=None), None),
        (peers_of(s2=greeting(2, incarnation="9" * 32), s3=None), None),
        (peers_of(s2=greeting(2, membership=None, cluster_id=""), s3=None), OURS),
        (peers_of(s2=greeting(2, membership=None, cluster_id=NEW), s3=None), None),
        (peers_of(s2=greeting(2, membership=of_members(2))), Cluster(CLUSTER, of_members(2))),
        (peers_of(s2=greeting(2, cluster_id=NEW, membership=of_members(2))), OURS),
    ],
    ids=["all", "two", "one", "another folder", "an empty member", "another cluster's", "a later one", "a later other"],
)
def test_a_cluster_is_found_if_its_elect_quorum_has_greeted(peers: dict[int, Peer], found: Cluster | None) -> None:
    assert find_cluster(peers) == found


def test_the_later_cluster_is_found_whichever_greets_first() -> None:
    later = of_members(2)
    for first, second in ((MEMBERS, later), (later, MEMBERS)):
        peers = peers_of(s1=greeting(1, membership=first), s2=greeting(2, membership=second), s3=None)
        assert find_cluster(peers) == Cluster(CLUSTER, later)
        assert newest_cluster(peers) == Cluster(CLUSTER, later) and newest_membership(peers) == later
    assert newest_cluster(peers_of(s1=None, s2=None, s3=None)) is None
    assert newest_membership(peers_of(s1=None, s2=None, s3=empty(3))) is None


def test_sizes_of_quorums_count() -> None:
    large = msgspec.structs.replace(MEMBERS, quorum_sizes=QuorumSizes("1", "N"))
    peers = {i: Peer(True, greeting=greeting(i, membership=large)) for i in (1, 2)}
    assert find_cluster(peers) is None
    assert find_cluster({**peers, 3: Peer(True, greeting=greeting(3, membership=large))}) == Cluster(CLUSTER, large)


def test_one_that_is_refused_counts_for_nothing() -> None:
    peers = peers_of(s2=None)
    peers[3].refused = "reason"
    assert list(greetings_of(peers)) == [1] and clusters_of(peers) == [OURS]
    assert voters_of(peers, OURS) == {1: MEMBERS.members[0].identity} and find_cluster(peers) is None


@pytest.mark.parametrize(
    ("changes", "is_unknown"),
    [
        ({}, False),
        ({"flush_lsn": END + 1}, True),
        ({"commit_lsn": END - 1}, True),
        ({"last_term": 4}, True),
        ({"incarnation": "9" * 32, "last_term": 4, "flush_lsn": END + 1}, False),
    ],
)
def test_a_tail_is_unknown_if_a_voter_has_more_than_is_committed_or_another_term(
    changes: dict[str, Any], is_unknown: bool
) -> None:
    third = greeting(3, **{"commit_lsn": END, **changes})
    peers = peers_of(s1=greeting(1, commit_lsn=END), s2=greeting(2, commit_lsn=END), s3=third)
    assert has_unknown_tail(peers, OURS) is is_unknown


def test_the_highest_promise_and_a_folder_that_answers_twice() -> None:
    peers = peers_of(s2=greeting(2, promised=LeaderId(8, "x")), s3=None)
    assert highest_promise(peers) == 8 and highest_promise({}) == 0
    assert twin_of(peers, 3, "2" * 32) == 2
    assert twin_of(peers, 2, "2" * 32) is None and twin_of(peers, 3, "3" * 32) is None


# Whose WAL it is.


@pytest.mark.parametrize(
    ("changes", "is_foreign"),
    [
        ({}, False),
        ({"system_id": 8}, True),
        ({"segment_size": 2 * SEGMENT}, True),
        ({"system_id": 0, "segment_size": 0}, False),
    ],
)
def test_wal_of_another_postgresql_is_foreign(changes: dict[str, int], is_foreign: bool) -> None:
    assert bool(foreign_reason(greeting(1, **changes), PRIMARY)) is is_foreign


@pytest.mark.parametrize(
    ("codes", "is_majority"),
    [
        ((RefusalCode.OTHER_SYSTEM, None, None), False),
        ((RefusalCode.OTHER_SYSTEM, RefusalCode.OTHER_CLUSTER, None), False),
        ((RefusalCode.OTHER_SYSTEM, RefusalCode.OTHER_SYSTEM, None), True),
        ((RefusalCode.OTHER_SYSTEM,) * 3, True),
    ],
)
def test_the_primary_is_foreign_if_a_majority_of_the_safekeepers_has_other_wal(
    codes: tuple[RefusalCode | None, ...], is_majority: bool
) -> None:
    peers = {i: Peer(refused=f"reason {i}" if code else "", refused_code=code) for i, code in enumerate(codes, 1)}
    reason = majority_against(peers)
    assert bool(reason) is is_majority
    if is_majority:
        assert reason == f"{len([c for c in codes if c])} of 3 safekeepers refuse it, e.g.: reason 1"
    four = {**peers, 4: Peer()}
    assert bool(majority_against(four)) is (codes.count(RefusalCode.OTHER_SYSTEM) == 3)


@pytest.mark.parametrize(
    ("changes", "is_later"),
    [
        ({"cluster_id": NEW, "membership": of_members(2)}, True),
        ({"cluster_id": NEW, "membership": of_members(1)}, False),
        ({"cluster_id": CLUSTER, "membership": of_members(2)}, False),
        ({"cluster_id": "", "membership": None}, False),
        ({"cluster_id": NEW, "membership": None}, False),
    ],
)
def test_a_member_of_a_later_cluster_is_left_out(changes: dict[str, Any], is_later: bool) -> None:
    assert bool(later_cluster_reason(greeting(1, **changes), OURS)) is is_later


# Bootstraps.


def test_a_bootstrap_is_planned_for_empty_safekeepers_only_and_for_all_of_them() -> None:
    all_empty = peers_of(s1=empty(1), s2=empty(2), s3=empty(3))
    addresses = {2: "two:2"}
    members = tuple(Member(i, str(i) * 32, addresses.get(i, "")) for i in (1, 2, 3))
    expected = Bootstrap(bootstrap_cluster_id(7, members), 7, SEGMENT, 150000, Membership(1, members))
    assert plan_bootstrap(all_empty, PRIMARY, addresses) == expected
    begun = msgspec.structs.replace(empty(3), cluster_id=expected.cluster_id, membership=expected.membership)
    assert plan_bootstrap({**all_empty, 3: Peer(True, greeting=begun)}, PRIMARY, addresses) == expected
    for third in (
        None,
        msgspec.structs.replace(begun, cluster_id=NEW),
        msgspec.structs.replace(begun, promised=LeaderId(1, "x")),
        greeting(3),
    ):
        assert plan_bootstrap({**all_empty, 3: Peer(True, greeting=third)}, PRIMARY, addresses) is None
    assert plan_bootstrap({**all_empty, 3: Peer(True, greeting=begun, refused="reason")}, PRIMARY, addresses) is None


def test_empty_safekeepers_of_a_primary_with_a_slot_are_no_first_start() -> None:
    assert repeated_bootstrap_reason(PRIMARY) == ""
    assert '"s" already' in repeated_bootstrap_reason(msgspec.structs.replace(PRIMARY, slot="s"))


def test_an_operator_must_act_once_all_have_greeted() -> None:
    assert stuck_reason(peers_of(s1=None)) == ""
    assert stuck_reason(peers_of(s2=empty(2))).startswith("safekeepers [1, 3] hold WAL or votes, [2] are empty")
    assert "none are empty" in stuck_reason(peers_of())


@pytest.mark.parametrize(
    ("peers", "lacks"),
    [
        (peers_of(), ""),
        (peers_of(s3=None), ""),
        ({i: Peer(True, greeting=greeting(i)) for i in (1, 2)}, "3"),
        ({i: Peer(True, greeting=greeting(i)) for i in (1, 2)} | {3: Peer(True)}, ""),
        ({1: Peer(True, greeting=greeting(1)), 7: Peer(True)}, ""),
        ({1: Peer(True, greeting=greeting(1)), 7: Peer(True, greeting=empty(7))}, "2, 3"),
        ({7: Peer(True, greeting=empty(7))}, ""),
    ],
)
def test_a_list_fits_a_membership_whose_members_it_has(peers: dict[int, Peer], lacks: str) -> None:
    reason = misfit_reason(peers)
    assert bool(reason) is bool(lacks)
    if lacks:
        assert f"it lacks {lacks}; list all members" in reason


def test_a_list_that_fits_no_cluster_is_compared_with_the_newest_membership() -> None:
    older, newer = of_members(4), of_members(5, members=(*MEMBERS.members, Member(9, "9" * 32)))
    peers = {
        1: Peer(True, greeting=greeting(1, cluster_id="e" * 32, membership=older)),
        2: Peer(True, greeting=greeting(2, membership=newer)),
    }
    for listed in (peers, dict(reversed(peers.items()))):
        assert "(generation 5: 1, 2, 3, 9)" in misfit_reason(listed)


# The roster.


def roster(addresses: dict[int, str] | None = None) -> tuple[Roster, list[Action]]:
    out: list[Action] = []
    return Roster("run1", (1, 2, 3), addresses or {}, out), out


def greeted(folder: FolderState | None = None, **changes: Any) -> tuple[Roster, list[Action]]:
    made, out = roster()
    for safekeeper_id in (1, 2, 3):
        made.connect(safekeeper_id)
        made.greet(safekeeper_id, PRIMARY, 10.0)
        if safekeeper_id == 1 and folder is not None:
            made.on_folder_states(1, FolderStates(CLUSTER, (folder,)))
        made.on_greeting(safekeeper_id, greeting(safekeeper_id, **(changes if safekeeper_id == 1 else {})), 11.0)
    out.clear()
    return made, out


def test_a_greeting_has_the_primary_s_identity_if_it_is_known() -> None:
    made, _ = roster()
    for primary, known in ((None, (None, None)), (PRIMARY, (7, SEGMENT))):
        sent = made.greet(2, primary, 10.0)
        assert sent == SendMessage(2, ProposerGreeting(PROTOCOL_VERSION, "run1", 2, *known))
    assert made.peers[2].waiting_since == 10.0
    made.greet(2, None, 11.0)
    assert made.peers[2].waiting_since == 10.0, "since the first that is not answered"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"safekeeper_id": 2}, "safekeeper 2 with protocol"),
        ({"protocol_version": PROTOCOL_VERSION - 1}, "answered the greeting"),
        ({"cluster_id": ""}, "belongs to no cluster"),
    ],
)
def test_a_greeting_that_cannot_be_breaks_the_protocol(changes: dict[str, Any], match: str) -> None:
    made, _ = roster()
    made.connect(1)
    made.greet(1, None, 10.0)
    with pytest.raises(RemoteProtocolError, match=match):
        made.on_greeting(1, msgspec.structs.replace(greeting(1), **changes), 10.0)
    assert made.peers[1].greeting is None


def test_a_greeting_that_answers_none_breaks_the_protocol() -> None:
    made, _ = greeted()
    with pytest.raises(RemoteProtocolError, match="answers none"):
        made.on_greeting(1, greeting(1), 12.0)


def test_a_copy_of_another_safekeeper_s_folder_is_refused() -> None:
    made, out = roster()
    for safekeeper_id in (1, 2):
        made.connect(safekeeper_id)
        made.greet(safekeeper_id, None, 10.0)
        made.on_greeting(safekeeper_id, greeting(safekeeper_id, incarnation="1" * 32), 10.0)
    assert made.peers[2].refused == "its data folder is a copy of safekeeper 1's: wipe one of the two"
    assert not made.peers[1].refused and [a.safekeeper_id for a in out if isinstance(a, Disconnect)] == [2]


def test_greetings_are_forgotten_by_their_age() -> None:
    made, _ = greeted()
    made.peers[2].greeted_at = 20.0
    made.forget_greetings(before=11.0)
    assert all(made.peers[i].greeting is not None for i in (1, 2, 3))
    made.forget_greetings(before=20.0)
    assert [i for i in (1, 2, 3) if made.peers[i].greeting is not None] == [2]
    made.forget_greetings()
    assert made.peers[2].greeting is None


OWN = FolderState(1, "1" * 32, 4, 3, END)


@pytest.mark.parametrize(
    ("known", "cluster_id", "is_doubted"),
    [
        (FolderState(1, "1" * 32, 4, 3, END), CLUSTER, False),
        (FolderState(1, "1" * 32, 4, 3, END + 1), CLUSTER, True),
        (FolderState(1, "1" * 32, 5, 3, END), CLUSTER, True),
        (FolderState(1, "9" * 32, 5, 3, END), CLUSTER, False),
        (FolderState(1, "1" * 32, 5, 3, END), NEW, False),
    ],
)
def test_a_folder_of_which_more_is_known_than_it_has_is_doubted(
    known: FolderState, cluster_id: str, is_doubted: bool
) -> None:
    made, _ = greeted(OWN)
    made.learn(cluster_id, [known])
    assert made.is_doubted(1, CLUSTER) is is_doubted
    assert not made.is_doubted(1, NEW) and not made.is_doubted(2, CLUSTER)


def test_a_folder_is_an_older_copy_by_what_was_known_when_it_was_greeted() -> None:
    known = FolderState(1, "1" * 32, 5, 3, END)
    for learns_before in (True, False):
        made, _ = roster()
        made.connect(1)
        if learns_before:
            made.learn(CLUSTER, [known])
        made.greet(1, PRIMARY, 10.0)
        if not learns_before:
            made.learn(CLUSTER, [known])
        made.on_folder_states(1, FolderStates(CLUSTER, (OWN,)))
        made.on_greeting(1, greeting(1), 10.0)
        assert made.peers[1].older_than == (known if learns_before else None)
        assert made.is_doubted(1, CLUSTER)
    with pytest.raises(RemoteProtocolError, match="reports its data folder as 2's"):
        made.on_folder_states(2, FolderStates(CLUSTER, (OWN,)))


@pytest.mark.parametrize("waited_s", [5.0, 5.1])
def test_silence_ends_a_connection_once(waited_s: float) -> None:
    made, out = greeted()
    made.peers[1].waiting_since = made.peers[2].waiting_since = 20.0
    made.peers[2].connected = False
    made.give_up_on_silent(20.0 + waited_s, 5.0)
    assert [a.safekeeper_id for a in out if isinstance(a, Disconnect)] == [1] * (waited_s > 5.0)
    out.clear()
    made.give_up_on_silent(20.0 + waited_s, 5.0)
    assert out == []


def test_a_refusal_is_logged_once_and_kept_over_a_reconnect_until_the_next_greeting() -> None:
    made, out = greeted()
    for count in (1, 0):
        made.refuse(1, RefusalCode.OTHER_CLUSTER, "reason")
        assert len([a for a in out if isinstance(a, Note)]) == count
        assert [a.safekeeper_id for a in out if isinstance(a, Disconnect)] == [1]
        out.clear()
    made.disconnect(1)
    made.connect(1)
    assert (made.peers[1].refused, made.peers[1].refused_code) == ("reason", RefusalCode.OTHER_CLUSTER)
    made.greet(1, None, 12.0)
    made.on_greeting(1, greeting(1), 12.0)
    assert (made.peers[1].refused, made.peers[1].refused_code, made.peers[1].problem) == ("", None, "")
    made.refuse(2, None, "other", disconnects=False)
    assert not any(isinstance(a, Disconnect) for a in out) and made.peers[2].greeting is None
    made.leave_out(3, "problem")
    assert made.peers[3].greeting is not None and made.peers[3].problem == "problem"


def test_those_that_another_primary_has_made_foreign_are_forgiven_and_the_silent_ones_disconnected() -> None:
    made, out = greeted(system_id=8)
    made.refuse_foreigners(PRIMARY)
    assert [i for i, peer in made.peers.items() if peer.refused] == [1]
    made.peers[2].greeting = None
    made.peers[3].greeting, made.peers[3].connected = None, False
    out.clear()
    made.forgive_foreigners()
    assert not made.peers[1].refused and made.peers[1].refused_code is None
    assert [a.safekeeper_id for a in out if isinstance(a, Disconnect)] == [2]


# Members at other addresses.


def test_members_are_dialled_at_addresses_that_the_list_lacks_and_once() -> None:
    made, out = roster({1: "one:1"})
    members = [Member(1, "1" * 32, "one:1"), Member(2, "2" * 32, "two:2"), Member(4, "4" * 32, "four:4"), Member(5, "")]
    for dialled in ([Dial(2, "two:2"), Dial(4, "four:4")], []):
        made.dial(members)
        assert [a for a in out if isinstance(a, Dial)] == dialled
        out.clear()
    assert made.peers[4].addresses == ("four:4",) and 5 not in made.peers
    assert made.removed(frozenset({1, 2, 3, 4})) == [] and made.removed(frozenset({1})) == [4]
    made.hang_up(4)
    assert 4 not in made.peers and [a.safekeeper_id for a in out if isinstance(a, HangUp)] == [4]


@pytest.mark.parametrize(
    ("changes", "of_peer", "is_redirected"),
    [
        ({"incarnation": "9" * 32}, {}, True),
        ({}, {}, False),
        ({"incarnation": "9" * 32}, {"addresses": ("a:1",)}, False),
        ({"incarnation": "9" * 32}, {"redirected_at": 100.0 - REDIRECT_INTERVAL_S}, True),
        ({"incarnation": "9" * 32}, {"redirected_at": 100.1 - REDIRECT_INTERVAL_S}, False),
        ({"incarnation": "9" * 32, "cluster_id": NEW}, {}, False),
        ({"incarnation": "9" * 32, "cluster_id": "", "membership": None}, {}, True),
        ({"incarnation": "9" * 32}, {"greeting": None}, False),
    ],
)
def test_another_folder_than_the_member_s_is_left_for_its_other_address(
    changes: dict[str, Any], of_peer: dict[str, Any], is_redirected: bool
) -> None:
    made, out = greeted(**changes)
    made.peers[1].addresses = ("a:1", "b:1")
    for name, value in of_peer.items():
        setattr(made.peers[1], name, value)
    made.redirect([MEMBERS.members[0], Member(9, "9" * 32)], CLUSTER, 100.0)
    assert [a.safekeeper_id for a in out if isinstance(a, Disconnect)] == [1] * is_redirected
    if is_redirected:
        assert (made.peers[1].greeting, made.peers[1].redirected_at) == (None, 100.0)


def test_a_connection_begins_without_anything_of_the_one_before_but_a_refusal_and_addresses() -> None:
    made, _ = greeted(OWN)
    made.peers[1].addresses, made.peers[1].redirected_at = ("a:1",), 7.0
    made.connect(1)
    assert made.peers[1] == Peer(True, addresses=("a:1",), redirected_at=7.0, log=made.peers[1].log)
    assert made.peers[1].asked_with == deque() and made.peers[1].folder is None


def test_a_promise_is_remembered_with_a_greeting_only() -> None:
    made, _ = greeted()
    made.remember_promise(1, LeaderId(8, "x"))
    known = made.peers[1].greeting
    assert known is not None and known.promised == LeaderId(8, "x") and known.flush_lsn == END
    made.disconnect(1)
    made.remember_promise(1, LeaderId(9, "x"))
    assert made.peers[1].greeting is None and not made.peers[1].connected


def test_the_greeting_of_a_safekeeper_that_is_disconnected_is_not_waited_for() -> None:
    made, _ = roster()
    made.connect(1)
    made.greet(1, PRIMARY, 10.0)
    assert made.awaits_greetings()
    made.disconnect(1)
    assert not made.awaits_greetings()


def test_of_memberships_of_one_generation_that_of_the_later_author_is_the_newest() -> None:
    older, newer = of_members(4, author=5), of_members(4, author=6)
    for first, second in ((older, newer), (newer, older)):
        peers = peers_of(
            s1=greeting(1, cluster_id="e" * 32, membership=first), s2=greeting(2, membership=second), s3=None
        )
        assert newest_membership(peers) == newer
