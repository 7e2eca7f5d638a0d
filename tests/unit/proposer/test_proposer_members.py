"""A leader changes the members of its cluster: what it sends, under what it counts, and what it waits for."""

import msgspec
import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    AppendResponse,
    ChangeMembers,
    DigestRequest,
    DigestResponse,
    Elected,
    MembersAnswer,
    PreVoteRequest,
    PreVoteResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
    TailResponse,
    VoteRequest,
)
from tests.unit.proposer.test_proposer import (
    BASE,
    CLUSTER,
    CRCS,
    END,
    MEMBERS,
    PRIMARY,
    Table,
    campaigning,
    greeting,
    vote,
)
from walproxy.proposer.actions import Dial, Disconnect, Finish, HangUp, IdentifyPrimary, Note, ReportStatus, SendAppend
from walproxy.proposer.member_change import Target
from walproxy.proposer.primary import Ancestor
from walproxy.proposer.roster import REDIRECT_INTERVAL_S, Peer

FOUR = Member(4, "4" * 32)
NEW = Member(3, "f" * 32)


class Leading(Table):
    """Leads a term of three members; a fourth safekeeper follows as a learner."""

    def __init__(self, **config: bool) -> None:
        super().__init__(**config)
        roster = self.proposer.roster
        roster.peers[4], roster._configured = Peer(), frozenset({1, 2, 3, 4})
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
        self.deliver(safekeeper_id, AppendResponse(self.leader_id, lsn, lsn, 0))

    def receives(self, lsn: int) -> None:
        self.event(self.proposer.wal_received(lsn, self.now))

    def wants(self, *members: Member, sizes: QuorumSizes | None = None) -> None:
        self.event(self.proposer.change_members(tuple(members), self.now, sizes))

    def persists(self, *safekeeper_ids: int) -> None:
        for safekeeper_id in safekeeper_ids:
            self.deliver(safekeeper_id, Reconfigured(self.leader_id, self.membership.generation))

    def reported(self) -> list[int]:
        return [status.flush_lsn for status in self.did(ReportStatus)]


def test_a_new_term_takes_the_membership_over_under_its_own_name() -> None:
    table = Table()
    leader_id = table.leads()
    later = msgspec.structs.replace(MEMBERS, author=leader_id.term)
    assert {message.membership for message in table.sent(Elected).values()} == {later}


def test_votes_are_asked_for_under_the_membership_that_counts_them() -> None:
    table = campaigning()
    table.collect_pre_votes(1, 2)
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
    table.pass_check()
    table.acknowledge(leader_id, END, 1, 2, 3)
    table.ticks(0.05)
    final = Membership(3, MEMBERS.members[:2], author=leader_id.term)
    assert set(table.sent(Reconfigure).values()) == {Reconfigure(leader_id, final)}


def test_two_changes_at_once_are_refused() -> None:
    table = Leading()
    table.wants(*MEMBERS.members, FOUR)
    with pytest.raises(ConfigurationError, match="another change is under way"):
        table.proposer.change_members(MEMBERS.members[:2], table.now)


# The operator's command, relayed by a safekeeper.


def change(*wanted: Member, generation: int = 1, force: bool = False) -> ChangeMembers:
    return ChangeMembers(17, CLUSTER, generation, tuple(wanted), force=force)


def test_a_relayed_change_is_made_and_answered() -> None:
    table = Leading()
    table.deliver(2, change(*MEMBERS.members, FOUR))
    assert table.sent(MembersAnswer) == {2: MembersAnswer(17)}
    assert table.membership.new_members == (*MEMBERS.members, FOUR)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (change(*MEMBERS.members[:1]), "one member is changed at a time, not 2"),
        (
            change(FOUR, generation=9),
            "the membership has changed meanwhile, from generation 9 to 1: repeat the command",
        ),
        (
            ChangeMembers(17, "e" * 32, 1, MEMBERS.members),
            f"this proxy leads cluster {CLUSTER[:8]}, not eeeeeeee",
        ),
    ],
)
def test_a_relayed_change_that_cannot_be_is_answered_with_the_reason(message: ChangeMembers, refusal: str) -> None:
    table = Leading()
    table.deliver(2, message)
    assert table.sent(MembersAnswer) == {2: MembersAnswer(17, refusal)}
    assert table.membership.new_members == ()


def test_a_removal_that_leaves_too_few_is_refused_unless_it_is_forced() -> None:
    table = Leading()
    table.event(table.proposer.disconnected(3, table.now))
    table.deliver(1, change(MEMBERS.members[0], MEMBERS.members[2]))
    assert table.sent(MembersAnswer)[1].refusal.startswith("of the members 1, 3 only 1 would follow")
    table.deliver(1, change(MEMBERS.members[0], MEMBERS.members[2], force=True))
    assert table.sent(MembersAnswer)[1] == MembersAnswer(17)
    assert table.membership.new_members == (MEMBERS.members[0], MEMBERS.members[2])


def test_a_forced_removal_is_decided_also_if_commits_have_continued_without_that_member() -> None:
    table = Leading()
    table.event(table.proposer.disconnected(3, table.now))
    table.receives(END + 100)
    for safekeeper_id in (1, 2):
        table.answers(safekeeper_id, END + 100)
    table.deliver(1, change(MEMBERS.members[0], MEMBERS.members[2], force=True))
    assert table.membership.new_members == (MEMBERS.members[0], MEMBERS.members[2])


def test_a_request_that_is_repeated_is_accepted_unless_its_change_was_cancelled() -> None:
    table = Leading()
    table.deliver(1, msgspec.structs.replace(change(*MEMBERS.members[:2]), is_repeated=True))
    assert table.sent(MembersAnswer)[1] == MembersAnswer(17)
    assert table.membership.new_members == MEMBERS.members[:2]


def test_of_a_change_that_was_cancelled_only_a_repeated_request_is_refused_whether_forced_or_not() -> None:
    two = MEMBERS.members[:2]
    for force in (False, True):
        table = Leading()
        assert table.proposer.leadership is not None
        table.proposer.leadership.cancelled = Target(two, QuorumSizes())
        request = change(*two, force=force)
        table.deliver(1, msgspec.structs.replace(request, is_repeated=True))
        assert table.sent(MembersAnswer)[1].refusal == "the change was cancelled"
        assert table.membership.new_members == ()
        table.deliver(1, request)
        assert table.sent(MembersAnswer)[1].refusal == ""
        assert table.membership.new_members == two


def test_a_safekeeper_that_is_to_be_dialled_at_another_address_is_sent_no_term() -> None:
    table = Leading()
    table.proposer.peers[3].addresses = ("one:5454", "other:5454")
    table.event(table.proposer.disconnected(3, table.now))
    table.connects(3, incarnation="e" * 32)
    assert [each.safekeeper_id for each in table.did(Disconnect)] == [3]
    assert not table.sent(Elected)


def test_a_member_that_the_list_lacks_is_dialled_at_its_address() -> None:
    table = Leading()
    five = Member(5, "5" * 32, "db5:5454")
    table.deliver(2, change(*MEMBERS.members, five))
    assert table.did(Dial) == [Dial(5, "db5:5454")]
    assert table.membership.new_members == ()  # It is a learner first.
    table.connects(5, membership=None, cluster_id="", promised=LeaderId(0, ""), last_term=0, flush_lsn=0, commit_lsn=0)
    table.answers(5, END)
    table.ticks()
    assert table.membership.new_members == (*MEMBERS.members, five)


def test_a_member_that_another_host_replaces_is_dialled_there_and_the_old_one_is_disconnected() -> None:
    table = Leading()
    for peer in table.proposer.peers.values():
        peer.addresses = ("one:5454", "other:5454")
    table.proposer.peers[3].addresses = ("old:5454",)
    moved = Member(3, "f" * 32, "new:5454")
    table.deliver(2, change(*MEMBERS.members[:2], moved))
    assert table.did(Dial) == [Dial(3, "new:5454")]
    assert [each.safekeeper_id for each in table.did(Disconnect)] == [3]
    table.event(table.proposer.disconnected(3, table.now))
    # The new one is not reached, and the old one answers again: it is fed meanwhile, and that is tried again.
    table.connects(3, incarnation="3" * 32)
    assert table.did(Disconnect) == [] and 3 in table.sent(Elected)
    table.ticks(REDIRECT_INTERVAL_S - 1)
    assert table.did(Disconnect) == []
    for safekeeper_id in (1, 2, 3):
        table.answers(safekeeper_id)
    table.ticks(1)
    assert [each.safekeeper_id for each in table.did(Disconnect)] == [3]
    table.event(table.proposer.disconnected(3, table.now))
    table.connects(
        3, incarnation="f" * 32, membership=None, cluster_id="", promised=LeaderId(0, ""), last_term=0, flush_lsn=0
    )
    assert table.did(Disconnect) == [] and 3 in table.sent(Elected)


def test_a_removed_member_that_the_list_lacks_is_sent_that_and_then_disconnected() -> None:
    table = Leading()
    five = Member(5, "5" * 32, "db5:5454")
    table.deliver(2, change(*MEMBERS.members, five))
    table.connects(5, membership=None, cluster_id="", promised=LeaderId(0, ""), last_term=0, flush_lsn=0, commit_lsn=0)
    table.answers(5, END)
    table.persists(1, 2, 3, 4, 5)
    table.ticks()
    table.persists(1, 2, 3, 4, 5)
    table.persists(1, 2, 3, 4, 5)
    assert table.membership.members == (*MEMBERS.members, five)
    table.deliver(2, change(*MEMBERS.members, generation=table.membership.generation))
    table.persists(1, 2, 3, 4)
    table.persists(1, 2, 3, 4)
    table.ticks()
    assert table.membership.members == MEMBERS.members and table.did(HangUp) == []
    table.persists(5)
    table.ticks()
    assert [each.safekeeper_id for each in table.did(HangUp)] == [5]
    assert 5 not in table.proposer.peers and 4 in table.proposer.peers  # The list has safekeeper 4.


FIVE = Member(5, "5" * 32, "db5:5454")


def test_a_newcomer_that_was_never_reached_is_no_longer_dialled_once_its_change_is_cancelled() -> None:
    table = Leading()
    table.deliver(2, change(*MEMBERS.members, FIVE))
    assert table.did(Dial) == [Dial(5, "db5:5454")] and 5 in table.proposer.peers
    table.ticks()
    assert table.did(HangUp) == []
    table.wants(*MEMBERS.members)
    table.ticks(0.1)
    assert [each.safekeeper_id for each in table.did(HangUp)] == [5]
    assert 5 not in table.proposer.peers


@pytest.mark.parametrize("persists", [False, True])
@pytest.mark.parametrize("is_connected", [False, True])
def test_a_removed_member_is_disconnected_for_good_if_it_is_away_or_has_the_membership(
    is_connected: bool, persists: bool
) -> None:
    table = Leading()
    table.deliver(2, change(*MEMBERS.members, FIVE))
    table.connects(5, membership=None, cluster_id="", promised=LeaderId(0, ""), last_term=0, flush_lsn=0, commit_lsn=0)
    table.answers(5, END)
    table.ticks(0.05)
    for _ in range(2):
        table.persists(1, 2, 3, 5)
    assert table.membership.members == (*MEMBERS.members, FIVE)
    table.deliver(5, StandbyFeedback((Standby("a", END, END, END, 700, 600),)))
    table.deliver(2, change(*MEMBERS.members, generation=table.membership.generation))
    table.ticks(0.05)
    assert table.did(HangUp) == [], "the joint membership needs it"
    table.persists(1, 2, 3)
    assert table.membership.members == MEMBERS.members
    if persists:
        table.persists(5)
    if not is_connected:
        table.event(table.proposer.disconnected(5, table.now))
    table.ticks(0.05)
    is_left = persists or not is_connected
    assert [each.safekeeper_id for each in table.did(HangUp)] == ([5] if is_left else [])
    # Its standbys hold back vacuum as long as they are known to stream.
    assert table.proposer.hot_standby_feedback() == ((0, 0) if is_left else (700, 600))
    leadership = table.proposer.leadership
    assert leadership is not None and (5 in leadership.members) is not is_left
    assert (5 in table.proposer.peers) is not is_left


# replace_lost.


def lost_disk(table: Leading) -> None:
    table.event(table.proposer.disconnected(3, table.now))
    nothing = {"membership": None, "cluster_id": "", "promised": LeaderId(0, ""), "last_term": 0, "flush_lsn": 0}
    table.connects(3, incarnation=NEW.incarnation, commit_lsn=0, **nothing)
    table.answers(3, END)
    table.ticks()


def test_a_member_whose_disk_was_lost_is_replaced_only_where_the_operator_has_asked_for_it() -> None:
    table = Leading()
    lost_disk(table)
    assert table.membership.new_members == ()
    table = Leading(replace_lost=True)
    lost_disk(table)
    assert table.membership.new_members == (*MEMBERS.members[:2], NEW)
    assert table.proposer.leadership is not None and not table.proposer.leadership.is_forced, "it may yet have to wait"


def test_a_lost_member_is_not_replaced_without_a_quorum_of_the_others() -> None:
    table = Leading(replace_lost=True)
    table.event(table.proposer.disconnected(2, table.now))
    leadership = table.proposer.leadership
    assert leadership is not None
    before = leadership.wanted
    lost_disk(table)
    assert table.membership.new_members == () and leadership.wanted == before, "no change has begun"
    table.connects(2)
    table.answers(2)
    table.ticks()
    assert table.membership.new_members == (*MEMBERS.members[:2], NEW)


def test_a_replacement_that_an_operator_has_cancelled_is_not_begun_again() -> None:
    table = Leading(replace_lost=True)
    lost_disk(table)
    table.wants(*MEMBERS.members)
    table.persists(1, 2, 3)
    table.persists(1, 2, 3)
    table.ticks()
    assert table.membership.members == MEMBERS.members and table.membership.new_members == ()


def test_what_waited_for_a_larger_quorum_is_committed_when_the_smaller_one_is_decided() -> None:
    table = Leading()
    table.receives(END + 100)
    table.deliver(1, AppendResponse(table.leader_id, END + 100, END + 100, 0, True))
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


def before_the_check() -> tuple[Table, LeaderId]:
    """Return a campaign that has its votes and awaits the check of the primary, and whom it would make the leader."""
    table = Table()
    table.connects(1, 2)
    table.sees()
    table.collect_pre_votes(1, 2)
    leader_id = LeaderId(table.proposer.term, "run1")
    table.collect_votes(leader_id, 1, 2)
    table.ticks(0.15)
    table.sees()
    table.deliver(1, DigestResponse(table.proposer.term, BASE, END, CRCS))
    return table, leader_id


def test_a_term_is_not_led_when_a_member_comes_with_a_newer_membership_before_it() -> None:
    table, leader_id = before_the_check()
    table.connects(3, membership=msgspec.structs.replace(MEMBERS, author=leader_id.term + 1))
    table.event(table.proposer.primary_checked(BASE, END, CRCS, table.now))
    assert not table.sent(Elected) and table.proposer.leadership is None
    assert any("a member has a newer membership" in note.text for note in table.did(Note))


def test_a_rebootstrap_that_has_begun_with_a_member_during_the_campaign_keeps_no_term_from_being_led() -> None:
    table, _ = before_the_check()
    table.connects(3, cluster_id="d" * 32, membership=msgspec.structs.replace(MEMBERS, generation=2))
    table.event(table.proposer.primary_checked(BASE, END, CRCS, table.now))
    assert table.sent(Elected).keys() == {1, 2} and table.proposer.leadership is not None
    assert "a rebootstrap, or the undo of one, has begun with it" in table.proposer.peers[3].problem


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
    table.pass_check()
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
        table.deliver(safekeeper_id, PreVoteResponse(True))
    leader_id = table.sent(VoteRequest)[1].leader_id
    for safekeeper_id in range(1, needed + 1):
        assert not table.did(IdentifyPrimary)
        table.deliver(safekeeper_id, vote(leader_id))
    assert table.did(IdentifyPrimary)


@pytest.mark.parametrize(("membership", "fenced"), [(QUICK, False), (LARGE, True)], ids=["quick", "large"])
def test_an_elect_quorum_that_follows_another_run_fences_this_one(membership: Membership, fenced: bool) -> None:
    table, _ = leading(membership)
    table.deliver(3, Refusal(RefusalCode.STALE_TERM, "deposed", LeaderId(9, "other")))
    for safekeeper_id in (1, 2, 3):
        table.deliver(safekeeper_id, greeting(safekeeper_id, membership=membership, promised=LeaderId(9, "other")))
    done = []
    for answer in (PreVoteResponse(False, "other"), PreVoteResponse(False, "other"), PreVoteResponse(False, "")) * 2:
        safekeeper_id = len(done) % 3 + 1
        table.deliver(safekeeper_id, answer)
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
        table.deliver(safekeeper_id, AppendResponse(leader_id, END, END, probed))
        table.ticks(0.0)
    assert leadership.commit_lsn == END and leadership.confirmed_since(probed)
    assert leadership.answers(table.now) and leadership.is_served(table.now)


@pytest.mark.parametrize(("membership", "needed"), [(QUICK, False), (LARGE, True)], ids=["quick", "large"])
def test_commits_wait_for_a_member_that_a_commit_quorum_needs(membership: Membership, needed: bool) -> None:
    table, leader_id = leading(membership)
    leadership = table.proposer.leadership
    assert leadership is not None
    table.acknowledge(leader_id, END, 1, 2, 3)
    assert leadership._quorum_needs(3) == needed


@pytest.mark.parametrize(
    ("membership", "lacking", "refused"),
    [
        (QUICK, (2, 3), False),
        (MEMBERS, (2,), False),
        (MEMBERS, (2, 3), True),
        (LARGE, (), False),
        (LARGE, (2,), True),
    ],
)
def test_what_no_commit_quorum_could_cut_is_not_given_up(
    membership: Membership, lacking: tuple[int, ...], refused: bool
) -> None:
    table = Table(allow_data_loss=True)
    table.connects(1, 2, 3, membership=membership)
    table.sees()
    leader_id = table.collect_pre_votes(1, 2, 3)
    fork_lsn = END - 100
    for safekeeper_id in (1, 2, 3):
        begin_lsn = BASE if safekeeper_id == 1 else fork_lsn + (safekeeper_id in lacking)
        table.deliver(safekeeper_id, vote(leader_id, wal_begin_lsn=begin_lsn))
    table.sees(msgspec.structs.replace(PRIMARY, tli=2, ancestors=(Ancestor(1, fork_lsn),)))
    table.deliver(1, TailResponse(0, fork_lsn, END - 50, BASE))
    reasons = [str(finish.error) for finish in table.did(Finish)]
    assert bool(reasons) == refused and bool(table.sent(DigestRequest)) != refused
    if refused:
        ids = ", ".join(map(str, lacking))
        assert f"safekeepers {ids} retain no WAL from there: no quorum could cut its log there" in reasons[0]
