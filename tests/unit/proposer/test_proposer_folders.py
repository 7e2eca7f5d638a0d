"""What a proposer knows of data folders, and what it does with one that was replaced by an older copy (S8e)."""

import pytest

from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    AppendResponse,
    Elected,
    FolderIsOlder,
    FolderStates,
    ProposerGreeting,
    Refusal,
    RefusalCode,
)
from tests.unit.proposer.test_proposer import CLUSTER, END, MEMBERS, Table, greeting, vote
from walproxy.proposer.actions import Dial, Disconnect, Level, Note
from walproxy.proposer.phase import Phase
from walproxy.proposer.proposer import FOLDERS_INTERVAL_S


def folder(safekeeper_id: int, flush_lsn: int = END, starts: int = 2, term: int = 3) -> FolderState:
    return FolderState(safekeeper_id, str(safekeeper_id) * 32, starts, term, flush_lsn)


def states(own: FolderState, *others: FolderState) -> FolderStates:
    return FolderStates(CLUSTER, (own, *others))


def connects(table: Table, own: FolderState, *others: FolderState) -> None:
    """Let a safekeeper connect and greet; it says first what it knows of data folders."""
    table.event(table.proposer.connected(own.safekeeper_id, table.now))
    table.deliver(own.safekeeper_id, states(own, *others))
    table.deliver(own.safekeeper_id, greeting(own.safekeeper_id))


def notes(table: Table) -> list[str]:
    return [note.text for note in table.did(Note) if note.level is Level.ERROR]


def leads_without(table: Table, *doubted: int) -> None:
    """Bring it to leading a term with the votes of safekeepers 1 and 2."""
    table.sees()
    leader_id = table.collect_pre_votes(1, 2)
    table.collect_votes(leader_id, 1, 2)
    table.ticks(table.proposer.timing.vote_grace_s + 0.1)
    table.sees()
    table.pass_check()
    assert table.proposer.phase is Phase.LEADING


def test_an_older_copy_that_greets_after_another_has_reported_more_counts_as_missing() -> None:
    table = Table()
    connects(table, folder(1), folder(3))
    connects(table, folder(3, END - 1))
    (disconnect,) = table.did(Disconnect)
    assert disconnect.safekeeper_id == 3
    (note,) = notes(table)
    assert "safekeeper 3 counts as missing" in note and "older copy" in note and "walproxy members replace 3" in note
    assert f"it has {folder(3, END - 1)}, and had {folder(3)}" in note
    table.event(table.proposer.disconnected(3, table.now))
    connects(table, folder(3, END - 1))
    assert notes(table) == [], "the same line once"
    # The others elect without it.
    connects(table, folder(2))
    leads_without(table)


@pytest.mark.parametrize("now", [folder(3, starts=1), folder(3, END - 1), folder(3, END + 50, term=2)])
def test_a_folder_is_an_older_copy_by_its_starts_or_its_log(now: FolderState) -> None:
    table = Table()
    connects(table, folder(1), folder(3))
    connects(table, now)
    assert [action.safekeeper_id for action in table.did(Disconnect)] == [3]


def test_what_is_reported_after_it_was_greeted_is_no_evidence() -> None:
    table = Table()
    table.event(table.proposer.connected(3, table.now))
    connects(table, folder(1), folder(3, END + 10))  # Another leader may have sent it more since.
    table.deliver(3, states(folder(3)))
    table.deliver(3, greeting(3))
    assert table.did(Disconnect) == []


def test_a_vote_does_not_count_if_another_voter_knows_more_of_the_folder() -> None:
    table = Table()
    for safekeeper_id in (1, 3):
        connects(table, folder(safekeeper_id))
    table.sees()
    leader_id = table.collect_pre_votes(1, 3)
    table.deliver(3, states(folder(3)))
    table.deliver(3, vote(leader_id))
    table.deliver(1, states(folder(1), folder(3, END + 10)))
    table.deliver(1, vote(leader_id))
    assert [action.safekeeper_id for action in table.did(Disconnect)] == [3]
    assert table.proposer.phase is Phase.GATHERING, "a quorum has not voted"


def test_the_leader_sends_an_older_copy_that_it_is_one_and_not_that_a_term_was_won() -> None:
    table = Table()
    connects(table, folder(1), folder(3))
    connects(table, folder(2))
    leads_without(table)
    connects(table, folder(3, END - 1))
    assert table.sent(Elected) == {}
    assert table.sent(FolderIsOlder) == {3: FolderIsOlder(table.proposer.leadership.leader_id, folder(3))}
    assert table.did(Disconnect) == [], "it must be able to read that"
    table.event(table.proposer.disconnected(3, table.now))
    # It comes back as a learner.
    table.event(table.proposer.connected(3, table.now))
    table.deliver(3, greeting(3, incarnation="f" * 32))
    assert table.sent(Elected).keys() == {3}


def leads_with_wal_of_3(table: Table) -> LeaderId:
    """Let three members follow a new term, and the third acknowledge WAL in it; return the leader."""
    for safekeeper_id in (1, 2, 3):
        connects(table, folder(safekeeper_id))
    leads_without(table)
    leadership = table.proposer.leadership
    assert leadership is not None
    table.deliver(3, AppendResponse(leadership.leader_id, END, END, 0))
    return leadership.leader_id


def test_what_a_member_has_acknowledged_in_the_term_is_known_when_it_comes_back() -> None:
    table = Table()
    leader_id = leads_with_wal_of_3(table)
    table.event(table.proposer.disconnected(3, table.now))
    connects(table, folder(3))  # As it was before the term.
    assert table.sent(FolderIsOlder).keys() == {3}
    table.event(table.proposer.disconnected(3, table.now))
    connects(table, folder(3, term=leader_id.term))
    assert table.sent(Elected).keys() == {3}


def test_what_a_folder_has_acknowledged_is_known_when_another_one_has_greeted_on_its_connection() -> None:
    table = Table()
    leader_id = leads_with_wal_of_3(table)
    # A leader elsewhere has let it take another identity; the greeting had been requested before.
    table.deliver(3, states(FolderState(3, "f" * 32, 2, leader_id.term, END)))
    table.deliver(3, greeting(3, incarnation="f" * 32))
    assert table.sent(Elected).keys() == {3}
    table.event(table.proposer.disconnected(3, table.now))
    connects(table, folder(3))  # The folder of before, as it was before the term.
    assert table.sent(FolderIsOlder).keys() == {3}


def test_what_a_member_has_acknowledged_in_a_term_is_known_when_the_term_has_ended() -> None:
    table = Table()
    leader_id = leads_with_wal_of_3(table)
    table.deliver(2, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(leader_id.term + 1, "other")))
    assert table.proposer.leadership is None
    table.event(table.proposer.disconnected(3, table.now))
    connects(table, folder(3))  # As it was before the term.
    assert [each.safekeeper_id for each in table.did(Disconnect)] == [3]


def test_one_that_has_greeted_before_more_was_reported_is_greeted_again_when_the_term_is_won() -> None:
    table = Table()
    for safekeeper_id in (1, 2, 3):
        connects(table, folder(safekeeper_id))
    table.deliver(2, states(folder(2), folder(3, END + 10)))
    leads_without(table)
    assert table.sent(Elected).keys() == {1, 2} and table.sent(ProposerGreeting).keys() == {3}
    table.deliver(3, states(folder(3, END + 10)))
    table.deliver(3, greeting(3))
    assert table.sent(Elected).keys() == {3}


def test_a_learner_that_has_less_than_it_once_had_stays_a_learner() -> None:
    table = Table()
    for safekeeper_id in (1, 2):
        connects(table, folder(safekeeper_id), FolderState(3, "f" * 32, 2, 3, END))
    leads_without(table)
    table.event(table.proposer.connected(3, table.now))
    # The undo of a rebootstrap has left it nothing of this cluster, of which it had been a member.
    table.deliver(3, states(FolderState(3, "f" * 32, 2, 0, 0)))
    table.deliver(3, greeting(3, incarnation="f" * 32))
    assert table.sent(Elected).keys() == {3} and table.sent(FolderIsOlder) == table.sent(ProposerGreeting) == {}


def test_what_it_had_in_another_cluster_is_not_compared() -> None:
    table = Table()
    for safekeeper_id in (1, 2):
        connects(table, folder(safekeeper_id), folder(3))
    leads_without(table)
    table.event(table.proposer.connected(3, table.now))
    table.deliver(3, FolderStates("d" * 32, (folder(3, END - 1),)))
    table.deliver(3, greeting(3, cluster_id="d" * 32))
    assert table.sent(ProposerGreeting) == {} and table.sent(FolderIsOlder) == {}
    assert "wipe its data folder" in table.proposer.peers[3].refused


def test_the_members_are_sent_what_is_known_of_each_other_when_it_is_news() -> None:
    table = Table()
    for safekeeper_id in (1, 2, 3):
        connects(table, folder(safekeeper_id))
    leads_without(table)
    leader_id = table.proposer.leadership.leader_id
    table.acknowledge(leader_id, END, 1, 2)
    table.ticks(FOLDERS_INTERVAL_S)
    known = FolderStates(CLUSTER, (folder(1, term=leader_id.term), folder(2, term=leader_id.term), folder(3)))
    assert table.sent(FolderStates) == {1: known, 2: known}
    table.ticks(FOLDERS_INTERVAL_S)
    assert table.sent(FolderStates) == {}
    table.deliver(3, AppendResponse(leader_id, END, END, 0))
    table.ticks(FOLDERS_INTERVAL_S)
    assert table.sent(FolderStates).keys() == {1, 2, 3}


def test_members_that_a_greeting_names_are_dialled_also_if_it_said_first_which_folder_it_has() -> None:
    table = Table()
    del table.proposer.peers[3]
    members = (*MEMBERS.members[:2], Member(3, "3" * 32, "db3:5454"))
    table.event(table.proposer.connected(1, table.now))
    table.deliver(1, states(folder(1)))
    table.deliver(1, greeting(1, membership=Membership(1, members)))
    assert table.did(Dial) == [Dial(3, "db3:5454")]


def test_a_leader_sends_an_older_copy_of_another_cluster_nothing() -> None:
    table = Table()
    table.leads()
    other = "f" * 32
    table.proposer.roster.learn(other, [folder(3)])
    table.event(table.proposer.disconnected(3, table.now))
    table.event(table.proposer.connected(3, table.now))
    table.deliver(3, FolderStates(other, (folder(3, END - 1),)))
    table.deliver(3, greeting(3, cluster_id=other))
    assert not table.sent(FolderIsOlder)
    assert [each.safekeeper_id for each in table.did(Disconnect)] == [3]
