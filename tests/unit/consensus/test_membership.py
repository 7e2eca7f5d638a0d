import msgspec
import pytest

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.membership import (
    Member,
    Membership,
    QuorumSizes,
    bootstrap_cluster_id,
    check_quorum_sizes,
)
from safekeeper.consensus.quorum_expression import MEMBERS_MAX

ONE, TWO, THREE, NEW = (Member(i, letter * 32) for i, letter in ((1, "a"), (2, "b"), (3, "c"), (3, "d")))
THREE_MEMBERS = Membership(1, (ONE, TWO, THREE))
JOINT = Membership(2, (ONE, TWO, THREE), (ONE, TWO, NEW))


@pytest.mark.parametrize(("count", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_quorum_is_more_than_half_unless_somebody_chooses(count: int, quorum: int) -> None:
    membership = Membership(1, tuple(Member(i, f"{i:032x}") for i in range(count)))
    assert membership.commit_sizes() == membership.elect_sizes() == (quorum,)


def test_each_half_has_its_own_sizes() -> None:
    five = tuple(Member(i, f"{i:032x}") for i in range(1, 6))
    quick = QuorumSizes("N/3+1", "N-N/3")
    joint = Membership(2, five, (ONE, TWO, THREE), quorum_sizes=quick)
    assert (joint.commit_sizes(), joint.elect_sizes()) == ((2, 2), (4, 2))
    assert Membership(2, five, quorum_sizes=quick, new_quorum_sizes=QuorumSizes("N", "N")).commit_sizes() == (2,)
    everybody = [member.identity for member in five]
    alone = Membership(2, five, quorum_sizes=quick)
    assert alone.has_commit_quorum(everybody[:2]) and not alone.has_commit_quorum(everybody[:1])
    assert alone.has_elect_quorum(everybody[:4]) and not alone.has_elect_quorum(everybody[:3])
    same = Membership(2, five, five, quorum_sizes=quick)
    assert not same.has_commit_quorum(everybody[:2]) and same.has_commit_quorum(everybody[:3])
    assert not same.has_elect_quorum(everybody[:3]) and same.has_elect_quorum(everybody[:4])


def test_without_a_leader_as_many_members_are_needed_as_elect_one_and_commit() -> None:
    five = tuple(Member(i, f"{i:032x}") for i in range(1, 6))
    for sizes, needed in ((QuorumSizes("N/3+1", "N-N/3"), (2, 4)), (QuorumSizes("N", "N/2+1"), (5, 5))):
        membership = Membership(1, five, quorum_sizes=sizes)
        assert (membership.members_needed(elect=False), membership.members_needed(elect=True)) == needed
    assert Membership(1, (ONE, TWO, THREE), five).members_needed(elect=False) == 3
    assert Membership(1, (ONE,)).members_needed(elect=False) == 1


def test_a_folder_with_another_incarnation_is_no_voter() -> None:
    assert THREE_MEMBERS.is_voter(3, "c" * 32)
    assert not THREE_MEMBERS.is_voter(3, "d" * 32)
    assert not THREE_MEMBERS.is_voter(2, "c" * 32)
    assert JOINT.is_voter(3, "d" * 32)


def test_a_quorum_of_data_folders() -> None:
    one, two, three = (member.identity for member in THREE_MEMBERS.members)
    for has_quorum in (THREE_MEMBERS.has_commit_quorum, THREE_MEMBERS.has_elect_quorum):
        assert has_quorum([one, three])
        assert not has_quorum([one])
        assert not has_quorum([one, (4, two[1]), (5, three[1])])
        assert not has_quorum([one, (3, "f" * 32)])
    assert THREE_MEMBERS.ids() == {1, 2, 3}
    assert THREE_MEMBERS.identities() == {one, two, three}


def test_a_joint_membership_needs_both_halves() -> None:
    joint = Membership(2, (ONE,), (TWO, THREE))
    one, two, three = ONE.identity, TWO.identity, THREE.identity
    for has_quorum in (joint.has_commit_quorum, joint.has_elect_quorum):
        assert not has_quorum([two, three])
        assert not has_quorum([one, two])
        assert has_quorum([one, two, three])


def test_a_repeated_bootstrap_makes_the_same_cluster() -> None:
    first = bootstrap_cluster_id(7, (ONE, TWO, THREE))
    assert bootstrap_cluster_id(7, (THREE, ONE, TWO)) == first
    assert len({first, bootstrap_cluster_id(8, (ONE, TWO, THREE)), bootstrap_cluster_id(7, (ONE, TWO, NEW))}) == 3


def test_a_leader_that_takes_a_membership_over_raises_its_key_and_changes_nothing_else() -> None:
    later = Membership(1, THREE_MEMBERS.members, author=1)
    assert later.key > THREE_MEMBERS.key and later.is_same(THREE_MEMBERS)
    assert Membership(1, THREE_MEMBERS.members, author=2).key > Membership(9, THREE_MEMBERS.members, author=1).key
    assert (THREE_MEMBERS.label, later.label) == ("generation 1", "generation 1 of term 1")


def test_where_a_member_listens_is_no_part_of_its_identity() -> None:
    moved = Membership(1, (ONE, msgspec.structs.replace(TWO, address="db2:9001"), THREE))
    assert moved != THREE_MEMBERS and moved.is_same(THREE_MEMBERS)
    assert moved.is_voter(2, TWO.incarnation)
    assert bootstrap_cluster_id(7, moved.members) == bootstrap_cluster_id(7, THREE_MEMBERS.members)


@pytest.mark.parametrize(
    "other",
    [
        None,
        Membership(2, THREE_MEMBERS.members),
        Membership(1, (ONE, TWO, NEW)),
        Membership(1, THREE_MEMBERS.members, (NEW,)),
        Membership(1, THREE_MEMBERS.members, quorum_sizes=QuorumSizes("1", "N")),
    ],
)
def test_a_membership_is_the_same_only_with_the_same_generation_members_and_sizes(other: Membership | None) -> None:
    assert not THREE_MEMBERS.is_same(other)


@pytest.mark.parametrize("size", ["", "N/2 + 1", "2", "n/2+1", "N/2+1)", "N/2", "N+1"])
def test_quorums_that_cannot_be_are_refused(size: str) -> None:
    check_quorum_sizes(THREE_MEMBERS)
    for sizes in (QuorumSizes(commit=size), QuorumSizes(elect=size)):
        for field in ("quorum_sizes", "new_quorum_sizes"):
            with pytest.raises(RemoteProtocolError, match=r"is not valid|must be"):
                check_quorum_sizes(msgspec.structs.replace(THREE_MEMBERS, **{field: sizes}))
    check_quorum_sizes(msgspec.structs.replace(THREE_MEMBERS, quorum_sizes=QuorumSizes("N/3+1", "N-N/3")))


def test_sizes_are_checked_for_so_many_members_and_no_more() -> None:
    many = tuple(Member(i, f"{i:032x}") for i in range(1, MEMBERS_MAX + 2))
    check_quorum_sizes(Membership(1, many))
    check_quorum_sizes(Membership(1, many[1:], quorum_sizes=QuorumSizes("1", "N")))
    with pytest.raises(RemoteProtocolError, match=r"32 members can only have quorums of N/2\+1"):
        check_quorum_sizes(Membership(1, many, quorum_sizes=QuorumSizes("1", "N")))
