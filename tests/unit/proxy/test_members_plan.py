"""What a command wants of the members, from the memberships and greetings that it has found."""

from dataclasses import replace
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import AcceptorGreeting
from tests.unit.greetings import empty
from walproxy.proposer.member_change import Target
from walproxy.proposer.roster import Cluster
from walproxy.proxy.members_plan import (
    Add,
    Cancel,
    Quorum,
    Remove,
    Replace,
    Wish,
    has_ended,
    headway,
    member_rows,
    target_of_wish,
)
from walproxy.proxy.sight import Sight

CLUSTER, OTHER = "c" * 32, "d" * 32
ONE, TWO, THREE = (Member(i, str(i) * 32, f"sk{i}:5454") for i in (1, 2, 3))
FOUR = Member(4, "4" * 32, "sk4:5454")
NEW = Member(3, "f" * 32, "sk3:5454")
OLD = (ONE, TWO, THREE)
PRESENT = Membership(5, OLD, author=7)
MAJORITIES = QuorumSizes()


def greeting(member: Member, membership: Membership | None = PRESENT, **changes: Any) -> AcceptorGreeting:
    of_cluster: dict[str, Any] = {
        "system_id": 7,
        "segment_size": 1 << 20,
        "server_version": 180000,
        "wal_begin_lsn": 100,
    }
    if membership is not None:
        of_cluster |= {"cluster_id": CLUSTER, "membership": membership, "promised": LeaderId(7, "run"), "last_term": 7}
        of_cluster |= dict.fromkeys(("flush_lsn", "commit_lsn", "truncate_lsn"), 900)
    return empty(member.id, **{"incarnation": member.incarnation, **of_cluster, **changes})


def sight(*greetings: AcceptorGreeting, **problems: str) -> Sight:
    """Return what was found: greetings, and problems as s3="..."."""
    replies = {each.safekeeper_id: each for each in greetings}
    silent = {int(name[1:]): problem for name, problem in problems.items()}
    return Sight(replies, silent, {i: f"sk{i}:5454" for i in (*replies, *silent)})


WELL = sight(*map(greeting, OLD))
WITH_EMPTY_FOUR = sight(*map(greeting, OLD), greeting(FOUR, None))
LOST = sight(greeting(ONE), greeting(TWO), greeting(NEW, None))


def members_of(wish: Wish, membership: Membership, found: Sight) -> tuple[Member, ...]:
    return target_of_wish(wish, Cluster(CLUSTER, membership), found).members


STAGES = [
    (Add(4), (*OLD, FOUR), WITH_EMPTY_FOUR),
    (Remove(3), (ONE, TWO), WELL),
    (Replace(3, 3), (ONE, TWO, NEW), LOST),
    (Replace(3, 4), (ONE, TWO, FOUR), WITH_EMPTY_FOUR),
]


@pytest.mark.parametrize(("wish", "wanted", "found"), STAGES)
def test_a_wish_is_the_same_before_during_and_after_its_change(
    wish: Wish, wanted: tuple[Member, ...], found: Sight
) -> None:
    assert members_of(wish, PRESENT, found) == wanted
    assert members_of(wish, Membership(6, OLD, wanted, author=7), found) == wanted
    assert members_of(wish, Membership(7, wanted, author=7), found) == wanted


@pytest.mark.parametrize(("wish", "wanted", "found"), STAGES)
def test_a_repeated_wish_keeps_the_addresses_of_the_change_under_way(
    wish: Wish, wanted: tuple[Member, ...], found: Sight
) -> None:
    # The command is repeated with another name of the same host.
    elsewhere = replace(found, addresses={i: f"10.0.0.{i}:5454" for i in found.greetings})
    assert members_of(wish, Membership(6, OLD, wanted, author=7), elsewhere) == wanted


def test_a_cancellation_wants_the_members_before_the_change() -> None:
    assert members_of(Cancel(), PRESENT, WELL) == OLD
    assert members_of(Cancel(), Membership(6, OLD, (*OLD, FOUR), author=7), WELL) == OLD


def test_the_sizes_stay_unless_they_are_to_change() -> None:
    sizes = QuorumSizes("N/3+1", "N-N/3")
    cluster = Cluster(CLUSTER, Membership(5, OLD, author=7, quorum_sizes=sizes))
    assert target_of_wish(Remove(3), cluster, WELL) == Target((ONE, TWO), sizes)
    assert target_of_wish(Quorum("N", None), cluster, WELL) == Target(OLD, QuorumSizes("N", "N-N/3"))
    with pytest.raises(ConfigurationError, match="'N\\+1'"):
        target_of_wish(Quorum("N+1", None), cluster, WELL)


@pytest.mark.parametrize(
    ("wish", "membership", "found", "reason"),
    [
        (Add(4), PRESENT, WELL, "the address of safekeeper 4 is unknown: write 4=HOST:PORT"),
        (Add(4), PRESENT, sight(*map(greeting, OLD), s4="it cannot be reached"), "it cannot be reached"),
        (
            Add(3),
            PRESENT,
            LOST,
            "safekeeper 3 is a member with another data folder than this one: .* members replace 3",
        ),
        (
            Add(4),
            PRESENT,
            sight(*map(greeting, OLD), greeting(FOUR, PRESENT, cluster_id=OTHER)),
            "safekeeper 4 at sk4:5454 holds WAL of cluster dddddddd, and this is cluster cccccccc",
        ),
        (
            Add(4),
            PRESENT,
            sight(*map(greeting, OLD), greeting(FOUR, None, incarnation=THREE.incarnation)),
            "the data folder of safekeeper 4 at sk4:5454 is a copy of safekeeper 3's: wipe it",
        ),
        (Replace(9, 4), PRESENT, WITH_EMPTY_FOUR, r"safekeeper 9 is not a member \(members: 1, 2, 3\)"),
        (Replace(3, 2), PRESENT, WELL, "safekeeper 2 is a member already: walproxy members remove 3"),
        (Remove(1), Membership(5, (ONE,)), WELL, "safekeeper 1 is the only member: a cluster needs one"),
    ],
)
def test_what_cannot_be_is_refused(wish: Wish, membership: Membership, found: Sight, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        members_of(wish, membership, found)


def test_the_newest_membership_that_a_safekeeper_has_is_the_present_one() -> None:
    newer = Membership(6, OLD, (*OLD, FOUR), author=7)
    of_an_older_term = Membership(9, (ONE, TWO), author=6)
    found = sight(greeting(ONE), greeting(TWO, newer), greeting(THREE, of_an_older_term))
    assert found.present_cluster() == Cluster(CLUSTER, newer)
    with pytest.raises(ConfigurationError, match=r"no safekeeper has a membership: .* \(safekeeper 2 is silent\)"):
        sight(greeting(ONE, None), s2="safekeeper 2 is silent").present_cluster()
    with pytest.raises(WalproxyError, match=r"no safekeeper replies: safekeeper 1 is silent; safekeeper 2 is too"):
        sight(s1="safekeeper 1 is silent", s2="safekeeper 2 is too").present_cluster()


def test_a_change_has_ended_when_a_quorum_has_the_last_membership_on_disk() -> None:
    final = Membership(7, (ONE, TWO), author=7)
    cluster, wanted = Cluster(CLUSTER, final), Target((ONE, TWO), MAJORITIES)
    assert not has_ended(cluster, wanted, sight(greeting(ONE, final), greeting(TWO)))
    assert has_ended(cluster, wanted, sight(greeting(ONE, final), greeting(TWO, final)))
    # Another folder of the same safekeeper has nothing on its disk.
    assert not has_ended(cluster, wanted, sight(greeting(ONE, final), greeting(TWO, final, incarnation="9" * 32)))
    assert not has_ended(cluster, Target(OLD, MAJORITIES), sight(greeting(ONE, final), greeting(TWO, final)))
    joint = Membership(6, OLD, (ONE, TWO), author=7)
    assert not has_ended(Cluster(CLUSTER, joint), wanted, sight(*(greeting(each, joint) for each in OLD)))


def test_the_headway_says_what_is_waited_for() -> None:
    cluster, wanted = Cluster(CLUSTER, PRESENT), Target((*OLD, FOUR), MAJORITIES)
    assert headway(cluster, wanted, WITH_EMPTY_FOUR).what == "safekeeper 4 has not been reached by the proxy yet"
    fed = headway(cluster, wanted, sight(*map(greeting, OLD), greeting(FOUR, PRESENT, flush_lsn=300)))
    assert fed == ("safekeeper 4 receives WAL: 600 bytes left", 300, 900)
    assert (
        "does not reply: it is silent" in headway(cluster, wanted, sight(*map(greeting, OLD), s4="it is silent")).what
    )
    joint = Cluster(CLUSTER, Membership(6, OLD, (*OLD, FOUR), author=7))
    assert headway(joint, wanted, WELL).what.startswith("both the old and the new members need a quorum now")
    final = Cluster(CLUSTER, Membership(7, (*OLD, FOUR), author=7))
    assert "waiting until a quorum has them on disk" in headway(final, wanted, WELL).what


def test_each_safekeeper_has_its_role_in_the_list() -> None:
    joint = Membership(6, OLD, (ONE, TWO, FOUR), author=7)
    replies = greeting(ONE), greeting(FOUR, None), greeting(Member(5, "5" * 32)), greeting(NEW, None)
    found = sight(*replies, s2="it is silent")
    rows = {row.safekeeper_id: row for row in member_rows(Cluster(CLUSTER, joint), found)}
    assert {i: row.role for i, row in rows.items()} == {
        1: "voter",
        2: "unknown",
        3: "lost",
        4: "joining",
        5: "learner",
    }
    assert rows[2].problem == "it is silent" and rows[2].incarnation == TWO.incarnation
    assert "walproxy members replace 3" in rows[3].problem
    assert (rows[1].lag_bytes, rows[4].lag_bytes) == (0, 900)
    leaving = member_rows(Cluster(CLUSTER, joint), sight(greeting(THREE)))
    assert [row.role for row in leaving if row.safekeeper_id == 3] == ["leaving"]
