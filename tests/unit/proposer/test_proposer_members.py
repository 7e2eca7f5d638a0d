"""A leader changes the members of its cluster: what it sends, under what it counts, and what it waits for."""

import msgspec
import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    AppendResponse,
    DigestRequest,
    DigestResponse,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    TailResponse,
    VoteRequest,
)
from tests.unit.proposer.test_proposer import BASE, CLUSTER, CRCS, END, MEMBERS, PRIMARY, Table, greeting, vote
from walproxy.proposer.actions import Finish, IdentifyPrimary, Note, ReportStatus, SendAppend
from walproxy.proposer.primary import Ancestor
from walproxy.proposer.roster import Peer

FOUR = Member(4, "4" * 32)
NEW = Member(3, "f" * 32)


class Leading(Table):
    """Leads a term of three members; a fourth safekeeper follows as a learner."""

    def __init__(self) -> None:
        super().__init__()
        self.proposer.roster.peers[4] = Peer()
        self.leader_id: LeaderId = self.leads()
        self.flushed = {1: END, 2: END, 3: END}
        for safekeeper_id in (1, 2, 3):
            self.answers(safekeeper_id)
        self.connects(
            4, membership=None, cluster_id="", promised=LeaderId(0, ""), last_term=0, flush_lsn=0, commit_lsn=0
        )
        self.flushed[4] = END
        self.answers(4)

    @property
    def membership(self) -> Membership:
        leadership = self.proposer.leadership
        assert leadership is not None
        return leadership.membership

    def answers(self, safekeeper_id: int, lsn: int | None = None) -> None:
        lsn = self.flushed[safekeeper_id] = self.flushed.get(safekeeper_id, END) if lsn is None else lsn
        self.hears(safekeeper_id, AppendResponse(self.leader_id, lsn, lsn, 0))

    def receives(self, lsn: int) -> None:
        self.event(self.proposer.wal_received(lsn, self.now))

    def wants(self, *members: Member, sizes: QuorumSizes | None = None) -> None:
        self.event(self.proposer.change_members(tuple(members), self.now, sizes))

    def persists(self, *safekeeper_ids: int) -> None:
        for safekeeper_id in safekeeper_ids:
            self.hears(safekeeper_id, Reconfigured(self.leader_id, self.membership.generation))

    def reported(self) -> list[int]:
        return [status.flush_lsn for status in self.did(ReportStatus)]


def test_a_new_term_takes_the_membership_over_under_its_own_name() -> None:
    table = Table()
    leader_id = table.leads()
    later = msgspec.structs.replace(MEMBERS, author=leader_id.term)
    assert {message.membership for message in table.sent(Elected).values()} == {later}


def test_votes_are_asked_for_under_the_membership_that_counts_them() -> None:
    table = Table()
    table.connects(1, 2, 3)
    table.sees()
    for safekeeper_id in (1, 2):
        table.hears(safekeeper_id, PreVoteResponse(True))
    leader_id = LeaderId(table.proposer.term, "run1")
    assert set(table.sent(VoteRequest).values()) == {VoteRequest(leader_id, 1, CLUSTER, MEMBERS)}


def test_a_member_is_added_through_a_joint_membership() -> None:
    table = Leading()
    old, new = MEMBERS.members, (*MEMBERS.members, FOUR)
    table.wants(*new)
    joint = Membership(2, old, new, author=table.leader_id.term)
    assert table.membership == joint
    assert table.sent(Reconfigure) == {i: Reconfigure(table.leader_id, joint) for i in (1, 2, 3, 4)}
    table.persists(1, 2)
    assert table.membership == joint, "three of the four new members must have it"
    table.persists(3)
    final = Membership(3, new, author=table.leader_id.term)
    assert table.membership == final
    assert table.sent(Reconfigure) == {i: Reconfigure(table.leader_id, final) for i in (1, 2, 3, 4)}


def test_appends_behind_a_membership_have_its_generation() -> None:
    table = Leading()
    table.wants(*MEMBERS.members, FOUR)
    table.receives(END + 100)
    assert {action.header.generation for action in table.did(SendAppend)} == {2}


def test_a_joint_membership_commits_what_both_halves_have() -> None:
    table = Leading()
    table.wants(*MEMBERS.members[:2])
    table.receives(END + 100)
    table.answers(1, END + 100)
    table.answers(3, END + 100)
    assert table.reported() == [], "a quorum of the old members alone"
    table.answers(2, END + 100)
    assert table.reported() == [END + 100]


def test_what_the_old_members_committed_is_counted_again_before_they_go() -> None:
    table = Leading()
    table.receives(END + 100)
    table.answers(1, END + 100)
    table.answers(3, END + 100)
    assert table.reported() == [END + 100]
    table.wants(*MEMBERS.members[:2])
    table.persists(1, 2, 3)
    assert table.membership.new_members, "safekeeper 2 lacks what was committed"
    table.answers(2, END + 100)
    table.ticks(0.05)
    assert table.membership.members == MEMBERS.members[:2] and not table.membership.new_members


def test_a_data_folder_that_replaces_another_one_of_its_safekeeper_counts_for_its_half_only() -> None:
    table = Leading()
    table.event(table.proposer.disconnected(3, table.now))
    table.connects(
        3, incarnation=NEW.incarnation, membership=None, cluster_id="", last_term=0, flush_lsn=0, commit_lsn=0
    )
    table.answers(3, END)
    table.wants(*MEMBERS.members[:2], NEW)
    table.receives(END + 100)
    table.answers(1, END + 100)
    table.answers(3, END + 100)
    assert table.reported() == [], "1 and the new 3 are no quorum of the old members"
    table.answers(2, END + 100)
    assert table.reported() == [END + 100]


def test_a_newcomer_that_is_away_is_waited_for_and_becomes_a_member_by_itself() -> None:
    table = Leading()
    table.event(table.proposer.disconnected(4, table.now))
    table.wants(*MEMBERS.members, FOUR)
    assert table.membership.members == MEMBERS.members and not table.membership.new_members
    table.connects(4, flush_lsn=END)
    table.answers(4)
    table.ticks(0.05)
    assert table.membership.new_members == (*MEMBERS.members, FOUR)


def test_a_change_is_cancelled() -> None:
    table = Leading()
    table.wants(*MEMBERS.members, FOUR)
    table.wants(*MEMBERS.members)
    table.persists(1, 2, 3)
    assert table.membership == Membership(3, MEMBERS.members, author=table.leader_id.term)


def test_a_leader_that_finds_a_joint_membership_goes_on_by_itself() -> None:
    joint = Membership(2, MEMBERS.members, MEMBERS.members[:2], author=4)
    table = Table()
    table.connects(1, 2, 3, membership=joint)
    table.sees()
    leader_id = table.votes()
    table.sees()
    table.hears(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    table.event(table.proposer.primary_checked(BASE, END, CRCS, table.now))
    for safekeeper_id in (1, 2, 3):
        table.hears(safekeeper_id, AppendResponse(leader_id, END, END, 0))
    table.ticks(0.05)
    final = Membership(3, MEMBERS.members[:2], author=leader_id.term)
    assert set(table.sent(Reconfigure).values()) == {Reconfigure(leader_id, final)}


def test_two_changes_at_once_are_refused() -> None:
    table = Leading()
    table.wants(*MEMBERS.members, FOUR)
    with pytest.raises(ConfigurationError, match="another change is under way"):
        table.proposer.change_members(MEMBERS.members[:2], table.now)


def test_who_leads_no_term_changes_no_members() -> None:
    with pytest.raises(ConfigurationError, match="leads no term"):
        Table().proposer.change_members(MEMBERS.members[:2], 10.0)


def test_a_learner_is_not_counted_before_it_is_a_member() -> None:
    table = Leading()
    table.receives(END + 100)
    table.answers(1, END + 100)
    table.answers(4, END + 100)
    assert table.reported() == []


def test_what_waited_for_a_larger_quorum_is_committed_when_the_smaller_one_is_decided() -> None:
    table = Leading()
    table.receives(END + 100)
    table.hears(1, AppendResponse(table.leader_id, END + 100, END + 100, 0, True))
    table.wants(*MEMBERS.members, sizes=QuorumSizes("1", "N"))
    table.persists(1)
    assert table.reported() == [] and table.membership.new_members
    table.persists(2)
    final = Membership(3, MEMBERS.members, author=table.leader_id.term, quorum_sizes=QuorumSizes("1", "N"))
    assert table.membership == final
    assert table.reported() == [END + 100], "no append and no answer was needed"
    sent = [a.header.commit_lsn for a in table.did(SendAppend) if 1 in a.safekeeper_ids]
    assert sent[-1] == END + 100, "the readers of safekeeper 1 need not wait for a heartbeat"


def test_what_a_small_quorum_has_committed_is_counted_again_before_the_large_one() -> None:
    table = Leading()
    table.wants(*MEMBERS.members, sizes=QuorumSizes("1", "N"))
    table.persists(1, 2, 3)
    table.persists(1, 2, 3)
    table.receives(END + 100)
    table.answers(1, END + 100)
    assert table.reported() == [END + 100]
    table.wants(*MEMBERS.members, sizes=QuorumSizes("N", "N/2+1"))
    table.persists(1, 2, 3)
    table.answers(2, END + 100)
    table.ticks(0.05)
    assert table.membership.new_members, "safekeeper 3 lacks what was committed"
    table.answers(3, END + 100)
    table.ticks(0.05)
    assert table.membership.quorum_sizes == QuorumSizes("N", "N/2+1") and not table.membership.new_members


def test_sizes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the commit quorum 'N/2' is 0 for N = 1: it must be from 1 to N"):
        Leading().wants(*MEMBERS.members, sizes=QuorumSizes("N/2", "N/2+1"))


def test_a_term_is_not_led_when_a_member_comes_with_a_newer_membership_before_it() -> None:
    table = Table()
    table.connects(1, 2)
    table.sees()
    for safekeeper_id in (1, 2):
        table.hears(safekeeper_id, PreVoteResponse(True))
    leader_id = LeaderId(table.proposer.term, "run1")
    for safekeeper_id in (1, 2):
        table.hears(safekeeper_id, vote(leader_id))
    table.ticks(0.15)
    table.sees()
    table.hears(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    table.connects(3, membership=msgspec.structs.replace(MEMBERS, author=leader_id.term + 1))
    table.event(table.proposer.primary_checked(BASE, END, CRCS, table.now))
    assert not table.sent(Elected) and table.proposer.leadership is None
    assert any("a member has a newer membership" in note.text for note in table.did(Note))


# Which size each decision needs: of three members a commit needs 1 and an election 3, or the reverse.

QUICK = msgspec.structs.replace(MEMBERS, quorum_sizes=QuorumSizes("1", "N"))
LARGE = msgspec.structs.replace(MEMBERS, quorum_sizes=QuorumSizes("N", "N/2+1"))


def leading(membership: Membership) -> tuple[Table, LeaderId]:
    """Return a leader that no member has answered since the votes."""
    table = Table()
    table.connects(1, 2, 3, membership=membership)
    table.sees()
    leader_id = table.votes()
    table.sees()
    table.hears(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    table.event(table.proposer.primary_checked(BASE, END, CRCS, table.now))
    assert table.proposer.leadership is not None
    return table, leader_id


@pytest.mark.parametrize(("membership", "needed"), [(QUICK, 3), (LARGE, 2)], ids=["quick", "large"])
def test_an_elect_quorum_is_needed_to_ask_for_votes_and_to_win(membership: Membership, needed: int) -> None:
    table = Table()
    table.sees()
    for safekeeper_id in (1, 2, 3):
        assert not table.proposer.campaign
        table.connects(safekeeper_id, membership=membership)
        if safekeeper_id == needed:
            break
    assert table.sent(PreVoteRequest).keys() == set(range(1, needed + 1))
    for safekeeper_id in range(1, needed + 1):
        assert not table.sent(VoteRequest)
        table.hears(safekeeper_id, PreVoteResponse(True))
    leader_id = table.sent(VoteRequest)[1].leader_id
    for safekeeper_id in range(1, needed + 1):
        assert not table.did(IdentifyPrimary)
        table.hears(safekeeper_id, vote(leader_id))
    assert table.did(IdentifyPrimary)


@pytest.mark.parametrize(("membership", "fenced"), [(QUICK, False), (LARGE, True)], ids=["quick", "large"])
def test_an_elect_quorum_that_follows_another_run_fences_this_one(membership: Membership, fenced: bool) -> None:
    table, _ = leading(membership)
    table.hears(3, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(9, "other")))
    for safekeeper_id in (1, 2, 3):
        table.hears(safekeeper_id, greeting(safekeeper_id, membership=membership, promised=LeaderId(9, "other")))
    done = []
    for answer in (PreVoteResponse(False, "other"), PreVoteResponse(False, "other"), PreVoteResponse(False, "")) * 2:
        safekeeper_id = len(done) % 3 + 1
        table.hears(safekeeper_id, answer)
        done += [bool(table.did(Finish))]
        if table.proposer.campaign is None and not table.proposer.refusal:
            table.sees()
            table.ticks()
    assert any(done) == fenced


@pytest.mark.parametrize(("membership", "needed"), [(QUICK, 1), (LARGE, 3)], ids=["quick", "large"])
def test_a_commit_quorum_commits_keeps_the_term_and_confirms_it(membership: Membership, needed: int) -> None:
    table, leader_id = leading(membership)
    leadership = table.proposer.leadership
    assert leadership is not None
    table.ticks(1.5)
    assert not leadership.answers(table.now) and not leadership.is_served(table.now)
    leadership.probe(table.now)
    probed = leadership.sequence
    for safekeeper_id in range(1, needed + 1):
        assert leadership.commit_lsn == 0 and not leadership.confirmed_since(probed)
        assert not leadership.answers(table.now) and not leadership.is_served(table.now)
        table.hears(safekeeper_id, AppendResponse(leader_id, END, END, probed))
        table.ticks(0.0)
    assert leadership.commit_lsn == END and leadership.confirmed_since(probed)
    assert leadership.answers(table.now) and leadership.is_served(table.now)


@pytest.mark.parametrize(("membership", "needed"), [(QUICK, False), (LARGE, True)], ids=["quick", "large"])
def test_commits_wait_for_a_member_that_a_commit_quorum_needs(membership: Membership, needed: bool) -> None:
    table, leader_id = leading(membership)
    leadership = table.proposer.leadership
    assert leadership is not None
    for safekeeper_id in (1, 2, 3):
        table.hears(safekeeper_id, AppendResponse(leader_id, END, END, 0))
    assert leadership._quorum_needs(3) == needed


@pytest.mark.parametrize(
    ("membership", "lacking", "refused"),
    [(QUICK, (2, 3), False), (LARGE, (), False), (LARGE, (2,), True)],
)
def test_what_no_commit_quorum_could_cut_is_not_given_up(
    membership: Membership, lacking: tuple[int, ...], refused: bool
) -> None:
    table = Table(allow_data_loss=True)
    table.connects(1, 2, 3, membership=membership)
    table.sees()
    for safekeeper_id in (1, 2, 3):
        table.hears(safekeeper_id, PreVoteResponse(True))
        if table.sent(VoteRequest):
            leader_id = table.sent(VoteRequest)[1].leader_id
    fork_lsn = END - 100
    for safekeeper_id in (1, 2, 3):
        begin_lsn = fork_lsn + 1 if safekeeper_id in lacking else BASE
        table.hears(safekeeper_id, vote(leader_id, wal_begin_lsn=begin_lsn))
    table.sees(msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, fork_lsn),)))
    table.hears(1, TailResponse(0, fork_lsn, END - 50, BASE))
    assert bool(table.did(Finish)) == refused
    assert bool(table.sent(DigestRequest)) != refused
