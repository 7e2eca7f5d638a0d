"""What an acceptor says and remembers of data folders, and what it does when its own is an older copy (S8e)."""

from typing import Any

import msgspec
import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import Close, Persist
from safekeeper.base.errors import StorageFull
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState, successor_of
from safekeeper.consensus.messages import (
    FolderIsOlder,
    FolderStates,
    Reconfigure,
    Refusal,
    RefusalCode,
    VoteRequest,
)
from tests.unit.acceptor.test_acceptor import (
    BASE,
    CLUSTER,
    MEMBERS,
    OWN,
    P1,
    P2,
    Bench,
    elected,
    following,
    member,
    rebootstrap,
    undo,
)

SECOND = FolderState(2, "2" * 32, 4, 1, BASE + 50)
THIRD = FolderState(3, "3" * 32, 1, 1, BASE)


def own(bench: Bench) -> FolderState:
    """Return what it says of its own folder in a greeting."""
    bench.folder_states = None
    bench.greet(2)
    assert bench.folder_states is not None
    return bench.folder_states.folders[0]


def started_again(bench: Bench) -> Bench:
    return Bench(bench.control, bench.acceptor.flush_lsn)


def test_its_own_folder_is_the_first_in_each_greeting_and_vote() -> None:
    bench = following(100)
    assert own(bench) == FolderState(1, OWN, 1, 1, BASE + 100)
    bench.folder_states = None
    bench.deliver(VoteRequest(P2, 1, CLUSTER, MEMBERS))
    assert bench.folder_states == FolderStates(CLUSTER, (FolderState(1, OWN, 1, 1, BASE + 100),))


def test_a_start_is_counted_once_it_is_on_disk() -> None:
    bench = following(100)
    for starts in (2, 3):
        bench = started_again(bench)
        assert bench.control.starts == starts and own(bench).starts == starts


def test_a_start_that_the_disk_has_no_room_to_count_is_not_claimed_before_it_is_counted() -> None:
    control = following(100).control
    bench = Bench(control, BASE + 100)
    bench.acceptor.control, bench.acceptor.counts_starts, bench.full = control, True, Persist
    with pytest.raises(StorageFull):
        bench.run(bench.acceptor.start())
    assert bench.acceptor.folder_state.starts == control.starts
    bench.full = None
    for _ in range(2):
        bench.run(bench.acceptor.start())
        assert bench.control.starts == bench.acceptor.folder_state.starts == control.starts + 1


def test_nothing_is_reported_of_folders_before_there_is_a_cluster() -> None:
    bench = Bench()
    bench.greet()
    assert bench.folder_states is None


def test_what_the_leader_knows_of_the_other_members_is_remembered_and_written_lazily() -> None:
    bench = following(100)
    stranger = FolderState(9, "9" * 32, 1, 1, BASE)
    itself = FolderState(1, OWN, 9, 9, BASE)
    bench.deliver(FolderStates(CLUSTER, (itself, SECOND, THIRD, stranger)))
    assert bench.effects == []
    bench.run(bench.acceptor.checkpoint())
    assert bench.kinds() == ["Persist"] and bench.control.folders == (SECOND, THIRD)
    bench.run(bench.acceptor.checkpoint())
    assert bench.effects == []
    bench.deliver(FolderStates(CLUSTER, (msgspec.structs.replace(SECOND, flush_lsn=BASE), THIRD)))
    again = started_again(bench)
    own(again)
    assert again.folder_states is not None and again.folder_states.folders[1:] == (SECOND, THIRD)


def test_only_its_leader_is_believed_and_only_of_its_cluster() -> None:
    bench = following(100)
    bench.greet(2)
    bench.deliver(FolderStates(CLUSTER, (SECOND,)), connection=2)
    bench.deliver(FolderStates("d" * 32, (SECOND,)))
    assert bench.acceptor.folders == {}


def test_a_folder_that_is_no_member_s_any_more_is_forgotten() -> None:
    bench = following(100)
    bench.deliver(FolderStates(CLUSTER, (SECOND, THIRD)))
    left = msgspec.structs.replace(MEMBERS, generation=2, members=MEMBERS.members[:2], author=1)
    bench.deliver(Reconfigure(P1, left))
    bench.deliver(FolderStates(CLUSTER, (SECOND, THIRD)))
    assert list(bench.acceptor.folders.values()) == [SECOND]


def test_a_rebootstrap_forgets_them_and_its_undo_brings_them_back() -> None:
    bench = following(100)
    bench.deliver(FolderStates(CLUSTER, (SECOND, THIRD)))
    starts = bench.control.starts
    bench.deliver(rebootstrap())
    assert bench.control.folders == ()
    bench = Bench(bench.control, 0)
    bench.aside[rebootstrap().cluster_id] = BASE + 100
    bench.greet()
    bench.deliver(undo())
    assert bench.control.folders == (SECOND, THIRD)
    assert bench.control.starts == starts + 1, "the starts of the folder, not of its log"


def test_a_log_that_is_to_begin_anew_counts_from_there() -> None:
    control = msgspec.structs.replace(following(100).control, base_lsn=BASE + (8 << 20))
    assert Acceptor(control, BASE + 100).folder_state.flush_lsn == BASE + (8 << 20)


def refused(answer: Any) -> RefusalCode:
    assert isinstance(answer, Refusal)
    return answer.code


def test_an_older_copy_goes_on_under_another_incarnation_with_the_wal_that_it_has() -> None:
    bench = following(100)
    bench.greet(2)
    known = msgspec.structs.replace(own(bench), flush_lsn=BASE + 200)
    bench.deliver(FolderIsOlder(P2, known), connection=2)
    assert bench.kinds() == ["Persist", "Close"]
    (close,) = (effect for effect in bench.effects if isinstance(effect, Close))
    assert close.connection == 2 and "older copy" in close.reason and "walproxy members replace" in close.reason
    control = bench.control
    assert control.incarnation == successor_of(OWN, *P2) and control.promised == P1 and bench.acceptor.leader is None
    assert not bench.acceptor.is_voter and bench.acceptor.flush_lsn == BASE + 100
    assert refused(bench.deliver(VoteRequest(P2, 1, CLUSTER, MEMBERS), connection=2)) is RefusalCode.NOT_A_MEMBER
    bench.deliver(FolderIsOlder(P2, known), connection=2)
    assert bench.effects == [], "it was told before"
    # It joins the term as a learner, where its log ends.
    bench.greet(3)
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 200, 1)), connection=3)
    assert answer.flush_lsn == BASE + 100


def test_a_deposed_leader_has_nothing_to_say_about_the_folder() -> None:
    bench = following(100)
    bench.deliver(VoteRequest(P2, 1, CLUSTER, MEMBERS))
    known = msgspec.structs.replace(own(bench), flush_lsn=BASE + 200)
    assert refused(bench.deliver(FolderIsOlder(P1, known), connection=2)) is RefusalCode.STALE_TERM
    assert bench.control.incarnation == OWN


def test_another_member_s_state_says_nothing_about_this_folder() -> None:
    bench = following(100)
    bench.greet(2)
    bench.deliver(FolderIsOlder(LeaderId(9, "run9"), SECOND), connection=2)
    assert bench.effects == [] and bench.control.incarnation == OWN


def test_a_member_without_wal_says_so() -> None:
    assert own(member()) == FolderState(1, OWN, 1, 0, 0)
