import msgspec
import pytest

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.consensus.membership import (
    Member,
    Membership,
    QuorumSizes,
    bootstrap_cluster_id,
    check_quorum_sizes,
    quorum_size,
)

ONE, TWO, THREE, NEW = (Member(i, letter * 32) for i, letter in ((1, "a"), (2, "b"), (3, "c"), (3, "d")))
THREE_MEMBERS = Membership(1, (ONE, TWO, THREE))
JOINT = Membership(2, (ONE, TWO, THREE), (ONE, TWO, NEW))


@pytest.mark.parametrize(("members", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_quorum_is_more_than_half(members: int, quorum: int) -> None:
    assert quorum_size(members) == quorum


def test_two_quorums_always_meet() -> None:
    for count in range(1, 10):
        assert 2 * quorum_size(count) > count


def test_a_folder_with_another_incarnation_is_no_voter() -> None:
    assert THREE_MEMBERS.is_voter(3, "c" * 32)
    assert not THREE_MEMBERS.is_voter(3, "d" * 32)
    assert JOINT.is_voter(3, "d" * 32)


def test_a_quorum_of_data_folders() -> None:
    one, two, three = (member.identity for member in THREE_MEMBERS.members)
    assert THREE_MEMBERS.has_quorum([one, three])
    assert not THREE_MEMBERS.has_quorum([one])
    assert not THREE_MEMBERS.has_quorum([one, (4, two[1]), (5, three[1])])
    assert not THREE_MEMBERS.has_quorum([one, (3, "f" * 32)])
    assert THREE_MEMBERS.ids() == {1, 2, 3}
    assert THREE_MEMBERS.identities() == {one, two, three}


def test_a_joint_membership_needs_both_halves() -> None:
    joint = Membership(2, (ONE,), (TWO, THREE))
    one, two, three = ONE.identity, TWO.identity, THREE.identity
    assert not joint.has_quorum([two, three])
    assert not joint.has_quorum([one, two])
    assert joint.has_quorum([one, two, three])


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
    ],
)
def test_a_membership_is_the_same_only_with_the_same_generation_and_members(other: Membership | None) -> None:
    assert not THREE_MEMBERS.is_same(other)


@pytest.mark.parametrize("size", ["", "N/2 + 1", "2", "n/2+1", "N/2+1)"])
def test_quorums_of_another_size_are_not_understood(size: str) -> None:
    check_quorum_sizes(THREE_MEMBERS)
    for sizes in (QuorumSizes(commit=size), QuorumSizes(elect=size)):
        for field in ("quorum_sizes", "new_quorum_sizes"):
            with pytest.raises(RemoteProtocolError, match="is not supported, only 'N/2\\+1' is"):
                check_quorum_sizes(msgspec.structs.replace(THREE_MEMBERS, **{field: sizes}))
