import msgspec
import pytest

from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from walproxy.proposer import member_change
from walproxy.proposer.member_change import (
    ChangeFacts,
    Target,
    describe_change,
    halves_of,
    replacement_of_lost,
    target_of,
)

ONE, TWO, THREE, FOUR, NEW = (Member(i, letter * 32) for i, letter in zip((1, 2, 3, 4, 3), "abcde", strict=True))
FIVE = Member(5, "f" * 32)
OLD = (ONE, TWO, THREE)
REPLACED = (ONE, TWO, NEW)
PRESENT = Membership(5, OLD, author=7)
JOINT = Membership(6, OLD, REPLACED, author=7)
EVERYBODY = frozenset(member.identity for member in (ONE, TWO, THREE, FOUR, NEW))
READY = ChangeFacts(EVERYBODY, 900, 900, EVERYBODY, EVERYBODY)


def facts(**changes: object) -> ChangeFacts:
    values = {field: getattr(READY, field) for field in ChangeFacts.__slots__}
    return ChangeFacts(**{**values, **changes})  # type: ignore[arg-type]


def next_membership(
    membership: Membership, wanted: tuple[Member, ...], known: ChangeFacts, sizes: QuorumSizes | None = None
) -> Membership | None:
    return member_change.next_membership(membership, target_of(membership, wanted, sizes), known)


def refusal_of(
    membership: Membership,
    wanted: tuple[Member, ...],
    sizes: QuorumSizes | None = None,
    present: tuple[Member, ...] | None = None,
) -> str:
    """Return the refusal where the change under way leads to `present`, where none is by default."""
    end = target_of(membership, present, None) if present is not None else halves_of(membership)[-1]
    return member_change.refusal_of(membership, end, target_of(membership, wanted, sizes))


def absence_reason(membership: Membership, wanted: tuple[Member, ...], known: ChangeFacts) -> str:
    return member_change.absence_reason(membership, target_of(membership, wanted, None), known)


def describe_wish(membership: Membership, wanted: tuple[Member, ...], sizes: QuorumSizes | None = None) -> str:
    return member_change.describe_wish(membership, target_of(membership, wanted, sizes))


def folders(*members: Member) -> frozenset[tuple[int, str]]:
    return frozenset(member.identity for member in members)


def test_a_change_goes_through_a_joint_membership() -> None:
    assert next_membership(PRESENT, REPLACED, READY) == JOINT
    assert next_membership(JOINT, REPLACED, READY) == Membership(7, REPLACED, author=7)
    assert next_membership(Membership(7, REPLACED, author=7), REPLACED, READY) is None


def test_a_change_that_is_cancelled_goes_back_through_the_same_joint_membership() -> None:
    assert next_membership(JOINT, OLD, READY) == Membership(7, OLD, author=7)
    assert next_membership(PRESENT, OLD, READY) is None


@pytest.mark.parametrize("membership", [PRESENT, JOINT], ids=["present", "joint"])
def test_a_membership_that_no_quorum_has_on_disk_stays(membership: Membership) -> None:
    assert next_membership(membership, REPLACED, facts(persisted=folders(ONE))) is None
    assert next_membership(membership, REPLACED, facts(persisted=folders(ONE, TWO))) is not None


def test_a_joint_membership_stays_until_a_quorum_of_each_half_has_it() -> None:
    joint = Membership(6, (ONE,), (ONE, TWO), author=7)
    assert next_membership(joint, (ONE, TWO), facts(persisted=folders(ONE))) is None
    assert next_membership(joint, (ONE, TWO), facts(persisted=folders(ONE, TWO))) is not None


@pytest.mark.parametrize("membership", [PRESENT, JOINT], ids=["present", "joint"])
def test_nothing_changes_before_the_start_of_the_term_is_committed(membership: Membership) -> None:
    assert next_membership(membership, REPLACED, facts(commit_lsn=0)) is None


def test_a_joint_membership_stays_until_a_quorum_of_it_has_what_was_committed() -> None:
    assert next_membership(JOINT, REPLACED, facts(counted_lsn=899)) is None
    assert next_membership(JOINT, OLD, facts(counted_lsn=899)) is None
    # Only a joint membership can have a lower count than what was committed.
    assert next_membership(PRESENT, REPLACED, facts(counted_lsn=899)) == JOINT


def test_a_newcomer_that_lags_is_waited_for() -> None:
    assert next_membership(PRESENT, REPLACED, facts(fed=folders(*OLD))) is None
    assert next_membership(PRESENT, (ONE, TWO), facts(fed=frozenset())) is not None


def test_members_are_not_removed_while_those_that_stay_have_no_quorum() -> None:
    assert next_membership(PRESENT, (ONE, TWO), facts(following=folders(ONE, THREE))) is None
    assert next_membership(PRESENT, (ONE, TWO), facts(following=folders(ONE, TWO))) is not None


@pytest.mark.parametrize(
    ("membership", "wanted", "refusal"),
    [
        (PRESENT, (*OLD, FOUR), ""),
        (PRESENT, (ONE, TWO), ""),
        (PRESENT, REPLACED, ""),
        (PRESENT, (ONE, TWO, FOUR), ""),
        (PRESENT, (), "a cluster needs a member"),
        (PRESENT, (ONE,), "one member is changed at a time, not 2"),
        (PRESENT, (ONE, NEW, FOUR), "one member is changed at a time, not 2"),
        (PRESENT, (*OLD, FOUR, FIVE), "one member is changed at a time, not 2"),
        # A joint membership goes on to either half, whatever their difference.
        (Membership(6, OLD, (*OLD, FOUR, FIVE), author=7), OLD, ""),
        (Membership(6, OLD, (*OLD, FOUR, FIVE), author=7), (*OLD, FOUR, FIVE), ""),
        (JOINT, OLD, ""),
        (JOINT, REPLACED, ""),
        (JOINT, (ONE, TWO), "another change is under way (generation 6 of term 7): wait for its end, or cancel it"),
    ],
)
def test_one_member_is_changed_at_a_time(membership: Membership, wanted: tuple[Member, ...], refusal: str) -> None:
    assert refusal_of(membership, wanted) == refusal


def test_a_change_that_waits_for_its_newcomer_is_not_replaced_but_cancelled() -> None:
    present = (*OLD, FOUR)
    assert refusal_of(PRESENT, (ONE, TWO), present=present) == (
        "another change is under way, to the members 1, 2, 3, 4: wait for its end, or cancel it"
    )
    assert refusal_of(PRESENT, present, present=present) == refusal_of(PRESENT, OLD, present=present) == ""


@pytest.mark.parametrize(
    ("wanted", "following", "reason"),
    [
        ((ONE, TWO), (ONE, TWO), ""),
        ((ONE, TWO), (ONE, TWO, THREE), ""),
        ((ONE, TWO), (ONE, THREE), "of the members 1, 2 only 1 would follow, and commits need 2"),
        ((*OLD, FOUR), (ONE, TWO), ""),  # The newcomer follows before the change begins.
        (REPLACED, (ONE, TWO), ""),
        (REPLACED, (ONE,), "of the members 1, 2, 3 only 1 would follow, and commits need 2"),
        # Its old folder answers until the proxy connects to the new one.
        (REPLACED, (ONE, THREE), "of the members 1, 2, 3 only 1 would follow, and commits need 2"),
        ((ONE, TWO, FOUR), (ONE, THREE), ""),
        (OLD, (ONE,), ""),  # The cancellation of a change needs nobody.
    ],
)
def test_members_that_would_not_be_a_quorum_are_refused(
    wanted: tuple[Member, ...], following: tuple[Member, ...], reason: str
) -> None:
    assert absence_reason(PRESENT, wanted, facts(following=folders(*following))).startswith(reason)
    assert bool(absence_reason(PRESENT, wanted, facts(following=folders(*following)))) == bool(reason)
    nobody = facts(following=frozenset())
    # The end of a change that is under way, in either direction, is never refused.
    assert absence_reason(JOINT, REPLACED, nobody) == absence_reason(JOINT, OLD, nobody) == ""


def test_a_forced_change_begins_without_a_quorum_of_the_new_members_and_never_before_its_newcomer_is_fed() -> None:
    ready = facts(following=folders(ONE), fed=folders(ONE))
    assert next_membership(PRESENT, (ONE, TWO), ready) is None
    forced = facts(following=folders(ONE), fed=folders(ONE), forced=True)
    following = next_membership(PRESENT, (ONE, TWO), forced)
    assert following is not None and following.new_members == (ONE, TWO)
    assert next_membership(PRESENT, (*OLD, FOUR), forced) is None


@pytest.mark.parametrize(
    ("membership", "wanted", "line"),
    [
        (PRESENT, OLD, "the change of the members is cancelled: they stay 1, 2, 3"),
        (JOINT, OLD, "the change of the members is cancelled: they stay 1, 2, 3"),
        (JOINT, REPLACED, "the change of the members goes on: they become 1, 2, 3 (eeeeeeee)"),
        (PRESENT, (ONE, TWO), "the members are to become 1, 2"),
        (
            PRESENT,
            (*OLD, FOUR),
            "the members are to become 1, 2, 3, 4 as soon as safekeeper 4 has the WAL that the others have",
        ),
    ],
)
def test_the_log_says_what_the_operator_wants(membership: Membership, wanted: tuple[Member, ...], line: str) -> None:
    assert describe_wish(membership, wanted) == line


def test_a_learner_with_the_id_of_a_member_replaces_it() -> None:
    assert replacement_of_lost(PRESENT, [FOUR.identity, NEW.identity]) == Target(REPLACED, QuorumSizes())
    assert replacement_of_lost(PRESENT, [FOUR.identity, THREE.identity]) is None


MAJORITY, QUICK, ALL = QuorumSizes(), QuorumSizes("1", "N"), QuorumSizes("N", "N/2+1")
TO_QUICK = Membership(6, OLD, OLD, author=7, new_quorum_sizes=QUICK)
OF_QUICK = Membership(7, OLD, author=7, quorum_sizes=QUICK)


def test_the_sizes_change_through_a_joint_membership_of_the_same_members() -> None:
    assert next_membership(PRESENT, OLD, READY, QUICK) == TO_QUICK
    assert next_membership(TO_QUICK, OLD, READY, QUICK) == OF_QUICK
    assert next_membership(OF_QUICK, OLD, READY, QUICK) is None
    assert next_membership(TO_QUICK, OLD, READY, MAJORITY) == Membership(7, OLD, author=7)


def test_members_change_under_the_present_sizes_unless_others_are_named() -> None:
    joint = next_membership(OF_QUICK, REPLACED, READY)
    assert joint == Membership(8, OLD, REPLACED, author=7, quorum_sizes=QUICK, new_quorum_sizes=QUICK)
    assert next_membership(joint, REPLACED, READY) == Membership(9, REPLACED, author=7, quorum_sizes=QUICK)
    assert next_membership(joint, OLD, READY) == Membership(9, OLD, author=7, quorum_sizes=QUICK)
    both = Membership(6, OLD, REPLACED, author=7, new_quorum_sizes=QUICK)
    assert next_membership(PRESENT, REPLACED, READY, QUICK) == both
    assert [target_of(both, members, None) for members in (OLD, REPLACED)] == [
        Target(OLD, MAJORITY),
        Target(REPLACED, QUICK),
    ]
    assert target_of(TO_QUICK, OLD, None) == Target(OLD, MAJORITY), "no sizes are named: the change is cancelled"


def test_a_commit_quorum_of_each_half_has_a_membership_on_disk_before_the_next_one() -> None:
    five = (*OLD, FOUR, FIVE)
    joint = Membership(6, five, five, author=7, quorum_sizes=QUICK, new_quorum_sizes=QuorumSizes("N-N/4", "N/2+1"))
    assert next_membership(joint, five, facts(persisted=folders(*five[:3])), joint.new_quorum_sizes) is None
    assert next_membership(joint, five, facts(persisted=folders(*five[:4])), joint.new_quorum_sizes) is not None
    quick = Membership(6, five, author=7, quorum_sizes=QUICK)
    everybody = facts(following=folders(*five), persisted=folders(ONE))
    assert next_membership(quick, five, everybody, MAJORITY) is not None


def test_sizes_are_not_changed_to_those_that_the_members_present_cannot_have() -> None:
    two = facts(following=folders(ONE, TWO))
    assert next_membership(PRESENT, OLD, two, ALL) is None, "commits would wait"
    assert next_membership(PRESENT, OLD, two, QUICK) is None, "no later leader could be elected"
    assert next_membership(PRESENT, OLD, facts(following=folders(*OLD)), QUICK) is not None


def test_a_lost_member_is_replaced_although_no_leader_could_be_elected_without_it() -> None:
    two = facts(following=folders(ONE, TWO))
    assert next_membership(OF_QUICK, OLD, two, MAJORITY) is not None
    assert next_membership(OF_QUICK, (ONE, TWO), two) is not None


@pytest.mark.parametrize(
    ("membership", "sizes", "refusal"),
    [
        (PRESENT, QUICK, ""),
        (PRESENT, QuorumSizes("1", "N-1"), "the elect quorum 'N-1' is 0 for N = 1: it must be from 1 to N"),
        (TO_QUICK, QUICK, ""),
        (TO_QUICK, MAJORITY, ""),
        (TO_QUICK, ALL, "another change is under way (generation 6 of term 7): wait for its end, or cancel it"),
    ],
)
def test_sizes_that_cannot_be_are_refused(membership: Membership, sizes: QuorumSizes, refusal: str) -> None:
    assert refusal_of(membership, OLD, sizes) == refusal


@pytest.mark.parametrize(
    ("membership", "line"),
    [
        (
            TO_QUICK,
            "the quorums change from commit N/2+1, elect N/2+1 to commit 1, elect N (generation 6 of term 7): both "
            "need a quorum until then",
        ),
        (OF_QUICK, "the members are 1, 2, 3, their quorums commit 1, elect N (generation 7 of term 7)"),
        (PRESENT, "the members are 1, 2, 3 (generation 5 of term 7)"),
        (
            Membership(6, OLD, (*OLD, FOUR), author=7),
            "the members change from 1, 2, 3 to 1, 2, 3, 4 (generation 6 of term 7): both need a quorum until then",
        ),
        (
            Membership(6, OLD, (ONE, TWO), author=7, quorum_sizes=QUICK),
            "the members change from 1, 2, 3 to 1, 2, their quorums from commit 1, elect N to commit N/2+1, elect "
            "N/2+1 (generation 6 of term 7): both need a quorum until then",
        ),
    ],
)
def test_the_line_of_a_change_names_the_members_and_the_sizes(membership: Membership, line: str) -> None:
    assert describe_change(membership) == line


def test_the_log_says_which_quorums_the_operator_wants() -> None:
    line = "the quorums of the members 1, 2, 3 are to become commit 2, elect N"
    assert describe_wish(PRESENT, OLD, QuorumSizes("2", "N")) == line


def test_a_lost_member_is_replaced_under_the_present_sizes() -> None:
    assert replacement_of_lost(OF_QUICK, [NEW.identity]) == Target(REPLACED, QUICK)
    stored = msgspec.structs.replace(PRESENT, members=(ONE, TWO, msgspec.structs.replace(THREE, address="three:3")))
    target = replacement_of_lost(stored, [NEW.identity])
    assert target is not None and target.members[2] == msgspec.structs.replace(NEW, address="three:3")


def test_the_members_that_stay_are_counted_in_both_halves_before_a_change() -> None:
    """Of four members three follow: that is a commit quorum of four, and two of the three that stay are one, too."""
    four = Membership(5, (*OLD, FOUR), author=7)
    assert absence_reason(four, OLD, facts(following=folders(ONE, TWO, FOUR))) == ""
    assert absence_reason(four, OLD, facts(following=folders(ONE, TWO))).startswith(
        "of the members 1, 2, 3, 4 only 2 would follow, and commits need 3"
    )
