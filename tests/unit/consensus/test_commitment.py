import pytest

from safekeeper.consensus.commitment import QuorumRule
from safekeeper.consensus.membership import Identity, Member, Membership, QuorumSizes


def membership(count: int) -> Membership:
    return Membership(1, tuple(Member(*folder(i)) for i in range(1, count + 1)))


def folder(safekeeper_id: int) -> Identity:
    return safekeeper_id, f"{safekeeper_id:032x}"


def of(positions: dict[int, int]) -> dict[Identity, int]:
    return {folder(safekeeper_id): lsn for safekeeper_id, lsn in positions.items()}


@pytest.mark.parametrize(
    ("positions", "committed"),
    [
        ({1: 300}, 300),
        ({1: 300, 2: 200}, 200),
        ({1: 300, 2: 200, 3: 100}, 200),
        ({1: 300, 2: 200, 3: 100, 4: 50}, 100),
        ({1: 300, 2: 200, 3: 100, 4: 50, 5: 10}, 100),
    ],
)
def test_the_quorum_position_is_the_one_that_a_majority_has_reached(positions: dict[int, int], committed: int) -> None:
    assert QuorumRule(membership(len(positions)), 1).lsn(of(positions)) == committed


def test_a_member_that_has_not_adopted_the_term_counts_as_0() -> None:
    assert QuorumRule(membership(3), 1).lsn(of({1: 300})) == 0
    assert QuorumRule(membership(3), 1).lsn(of({1: 300, 2: 200})) == 200


def test_nothing_is_committed_below_the_start_of_the_term() -> None:
    assert QuorumRule(membership(3), 300).lsn(of({1: 300, 2: 299, 3: 10})) == 0
    assert QuorumRule(membership(3), 300).lsn(of({1: 300, 2: 300, 3: 10})) == 300


def test_who_is_no_member_does_not_count() -> None:
    assert QuorumRule(membership(3), 1).lsn(of({1: 100, 8: 900, 9: 900})) == 0


def test_under_a_joint_membership_both_halves_must_agree() -> None:
    old, new = membership(3).members, (*membership(2).members, Member(*folder(4)))
    joint = Membership(2, old, new)
    assert QuorumRule(joint, 1).lsn(of({1: 100, 2: 50, 3: 900, 4: 10})) == 50
    assert QuorumRule(joint, 1).lsn(of({2: 900, 3: 900})) == 0


def test_one_data_folder_does_not_count_as_another_one_of_the_same_safekeeper() -> None:
    old = membership(3).members
    replaced = Member(3, "f" * 32)
    joint = Membership(2, old, (*old[:2], replaced))
    everywhere = {folder(1): 300, replaced.identity: 300}
    # 1 and the new folder of 3 are a quorum of the new half, and 1 alone is none of the old one.
    assert QuorumRule(joint, 1).lsn(everywhere) == 0
    assert QuorumRule(joint, 1).lsn({**everywhere, folder(2): 200}) == 200


def test_what_either_half_holds_may_have_been_committed() -> None:
    old, new = membership(3).members, (*membership(2).members, Member(*folder(4)))
    positions = of({1: 100, 2: 50, 3: 900, 4: 10})
    assert QuorumRule(Membership(2, old), 1).possible_lsn(positions) == 100
    assert QuorumRule(Membership(2, new), 1).possible_lsn(positions) == 50
    assert QuorumRule(Membership(2, old, new), 1).possible_lsn(positions) == 100
    assert QuorumRule(Membership(2, new, old), 1).possible_lsn(positions) == 100
    assert QuorumRule(membership(3), 1).possible_lsn(of({1: 100})) == 0, "who has no position has no WAL"


@pytest.mark.parametrize(
    ("commit", "committed"), [("1", 500), ("N/3+1", 400), ("N/2+1", 300), ("N-N/4", 200), ("N", 100)]
)
def test_the_commit_quorum_decides_how_many_must_have_it(commit: str, committed: int) -> None:
    rule = QuorumRule(membership_with(QuorumSizes(commit, "N")), 1)
    positions = of({1: 500, 2: 300, 3: 400, 4: 100, 5: 200})
    assert rule.lsn(positions) == rule.possible_lsn(positions) == committed
    assert rule.time({identity: float(lsn) for identity, lsn in positions.items()}) == committed
    assert rule.members_needed == 6 - committed // 100


def test_each_half_of_a_joint_membership_counts_by_its_own_size() -> None:
    five = membership(5).members
    joint = Membership(
        2, five, five, quorum_sizes=QuorumSizes("N/3+1", "N-N/3"), new_quorum_sizes=QuorumSizes("N", "N")
    )
    positions = of({1: 500, 2: 400, 3: 300, 4: 200, 5: 100})
    rule = QuorumRule(joint, 1)
    assert (rule.lsn(positions), rule.possible_lsn(positions), rule.members_needed) == (100, 400, 5)
    assert rule.time({identity: float(lsn) for identity, lsn in positions.items()}) == 100


def membership_with(sizes: QuorumSizes) -> Membership:
    return Membership(1, membership(5).members, quorum_sizes=sizes)
