"""The acceptor's handlers, effect by effect, over a disk that is a few attributes."""

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.effects import (
    Close,
    Effect,
    Effects,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    FlushWal,
    InspectSetAside,
    Persist,
    ReadWal,
    ResetWal,
    RestoreWal,
    Send,
    SetWalAside,
    TruncateWal,
    WriteWal,
)
from safekeeper.base.errors import RemoteProtocolError, StorageFull
from safekeeper.base.lsn import LSN_MAX
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import (
    HEARTBEAT_TIMEOUT_S,
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    ChangeMembers,
    Elected,
    FolderStates,
    MembersAnswer,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    ReadRequest,
    ReadResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    Replaced,
    StandbyFeedback,
    TailPreVoteRequest,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HISTORY_ENTRIES_MAX, HistoryEntry, last_term
from safekeeper.peers.codec import CONTROL_BYTES_MAX, encode
from tests.simulation.model.node_effects import flushed_effects, message_effects
from walproxy.proposer.election import extend_history, shorten_history
from walproxy.proposer.primary import LogPlan

SEGMENT = 1 << 20
BASE = 4 * SEGMENT
OWN = "1" * 32
MEMBERS = Membership(1, (Member(1, OWN), Member(2, "2" * 32), Member(3, "3" * 32)))
P1, P2 = LeaderId(1, "run1"), LeaderId(2, "run2")
CLUSTER = "c" * 32
# What is sent in addition to an answer.
REPORTS = (ArchiveReport, StandbyFeedback)


class Bench:
    """Runs an acceptor's handlers; `effects` is what the last one did.

    `full` is which effect the disk refuses, `lacks` for want of what.
    What is said of data folders is kept apart, in `folder_states`.
    No record behind a fork is ever complete.
    """

    def __init__(
        self,
        control: ControlState | None = None,
        flush_lsn: int = 0,
        record_end_of: Callable[[int], int] = lambda lsn: 0,
    ) -> None:
        control = control or ControlState(safekeeper_id=1, incarnation=OWN)
        self.acceptor = Acceptor(control, flush_lsn)
        self.control = control
        self.full: type[Any] | None = None
        self.lacks: StorageFull = StorageFull("no space")
        self.effects: list[Effect] = []
        self.folder_states: FolderStates | None = None
        self.now = 100.0
        self.record_end_of = record_end_of
        self.last_record_of: Callable[[int], int] = lambda lsn: 0
        self.timed_lsns: tuple[int, ...] = ()
        # The ends of the logs that were set aside, by label.
        self.aside: dict[str, int] = {}
        self.run(self.acceptor.start())

    def run(self, effects: Effects) -> list[Effect]:
        self.effects = []
        error: StorageFull | None = None
        result: Any = None
        try:
            while True:
                effect = effects.throw(error) if error is not None else effects.send(result)
                if isinstance(effect, Send) and isinstance(effect.message, FolderStates):
                    self.folder_states = effect.message
                else:
                    self.effects.append(effect)
                error = self.lacks if self.full is not None and isinstance(effect, self.full) else None
                result = None
                if error is None and isinstance(effect, Persist):
                    self.control = effect.control
                elif isinstance(effect, ReadWal):
                    result = b"x" * (effect.end_lsn - effect.begin_lsn)
                elif isinstance(effect, FindRecordEnd):
                    result = self.record_end_of(effect.lsn)
                elif isinstance(effect, FindRecords):
                    result = self.record_end_of(effect.lsn), self.last_record_of(effect.lsn), None
                elif isinstance(effect, SetWalAside):
                    self.aside.setdefault(effect.label, BASE + 100)
                elif isinstance(effect, InspectSetAside):
                    result = "" if effect.label in self.aside else "it is gone"
                elif isinstance(effect, RestoreWal) and error is None:
                    result = self.aside.pop(effect.label, 0)
                elif isinstance(effect, FindTimedRecord):
                    found = (lsn for lsn in self.timed_lsns if effect.begin_lsn <= lsn < effect.end_lsn)
                    result = max(found, default=0)
        except StopIteration:
            self.acceptor.check()
            return self.effects

    def deliver(self, message: Any, connection: int = 1) -> Any:
        """Let a message arrive; return its answer."""
        self.run(message_effects(self.acceptor, connection, message, self.now))
        return self.answer()

    def answer(self) -> Any:
        """Return the only answer among the effects, None without one; nothing else follows a refusal."""
        sent = [effect for effect in self.effects if isinstance(effect, Send)]
        answers = [effect for effect in sent if not isinstance(effect.message, REPORTS)]
        assert len(answers) <= 1, answers
        if answers and isinstance(answers[0].message, Refusal):
            after = self.effects[self.effects.index(answers[0]) + 1 :]
            reason = answers[0].message.reason
            assert sent == answers and after in ([], [Close(answers[0].connection, reason)]), self.effects
        return answers[0].message if answers else None

    def kinds(self) -> list[str]:
        return [type(effect).__name__ for effect in self.effects]

    def greet(self, connection: int = 1, **changes: Any) -> Any:
        greeting = ProposerGreeting(PROTOCOL_VERSION, "run1", 1)
        return self.deliver(msgspec.structs.replace(greeting, **changes), connection)

    def append(self, begin_lsn: int, payload: bytes = b"", connection: int = 1, **changes: Any) -> Any:
        request = AppendRequest(P1, 1, begin_lsn, 0, 0, 0, True, payload)
        return self.deliver(msgspec.structs.replace(request, **changes), connection)

    def flush(self) -> Any:
        self.run(flushed_effects(self.acceptor, self.acceptor.write_lsn))
        return self.answer()


def asks(leader_id: LeaderId, membership: Membership = MEMBERS, cluster_id: str = CLUSTER) -> VoteRequest:
    return VoteRequest(leader_id, membership.generation, cluster_id, membership)


def elected(leader_id: LeaderId, *entries: tuple[int, ...], **changes: Any) -> Elected:
    history = tuple(HistoryEntry(*entry) for entry in entries)
    message = Elected(leader_id, CLUSTER, 7, SEGMENT, 150000, MEMBERS, history, (), BASE, 0)
    return msgspec.structs.replace(message, **changes)


def member() -> Bench:
    """Return a member that has promised nobody and has no WAL."""
    bench = Bench()
    bench.greet()
    assert isinstance(bench.deliver(Bootstrap(CLUSTER, 7, SEGMENT, 150000, MEMBERS)), Bootstrapped)
    return bench


def following(wal_bytes: int = 0) -> Bench:
    """Return a member that follows P1 on connection 1, with so much WAL on disk."""
    bench = member()
    bench.deliver(elected(P1, (1, BASE, 1)))
    if wal_bytes:
        bench.append(BASE, b"w" * wal_bytes)
        bench.flush()
    return bench


# Greeting and bootstrap.


def test_a_greeting_says_what_is_here() -> None:
    answer = following(100).greet(connection=2)
    assert isinstance(answer, AcceptorGreeting)
    assert (answer.last_term, answer.wal_begin_lsn, answer.flush_lsn) == (1, BASE, BASE + 100)
    assert answer.promised == P1
    assert not answer.is_empty
    assert (answer.log_tli, answer.floor) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "is_empty"),
    [
        ({}, True),
        ({"segment_size": SEGMENT, "cluster_id": CLUSTER, "commit_lsn": BASE}, True),
        ({"promised": P1}, False),
        ({"last_term": 1}, False),
        ({"flush_lsn": BASE}, False),
    ],
)
def test_a_bootstrap_starts_from_no_vote_no_term_and_no_wal(changes: dict[str, Any], is_empty: bool) -> None:
    assert msgspec.structs.replace(Bench().greet(), **changes).is_empty is is_empty


@pytest.mark.parametrize(
    ("version", "upgraded"), [(PROTOCOL_VERSION - 1, "the proxy"), (PROTOCOL_VERSION + 1, "this safekeeper")]
)
def test_a_greeting_of_another_version_is_answered_with_the_side_to_upgrade(version: int, upgraded: str) -> None:
    answer = member().greet(connection=2, protocol_version=version)
    assert answer.code is RefusalCode.VERSION
    assert answer.reason.startswith(f"the proxy has protocol version {version}, this safekeeper has {PROTOCOL_VERSION}")
    assert f": upgrade {upgraded} to the release of its peer" in answer.reason


def test_nothing_is_received_before_the_greeting() -> None:
    with pytest.raises(RemoteProtocolError, match="before the greeting"):
        Bench().deliver(asks(P1))


def test_a_bootstrap_that_names_another_folder_is_refused() -> None:
    bench = Bench(ControlState(safekeeper_id=1, incarnation="9" * 32))
    bench.greet()
    answer = bench.deliver(Bootstrap(CLUSTER, 7, SEGMENT, 150000, MEMBERS))
    assert answer.code is RefusalCode.NOT_A_MEMBER


def test_a_rebootstrap_sets_the_wal_aside_and_keeps_the_promise() -> None:
    bench = following(100)
    again = Bootstrap("d" * 32, 7, SEGMENT, 150000, Membership(2, MEMBERS.members), replace=True)
    assert isinstance(bench.deliver(again), Bootstrapped)
    assert bench.kinds() == ["Persist", "SetWalAside", "Persist", "Send"]
    assert bench.control.promised == P1
    assert (bench.control.history, bench.acceptor.flush_lsn) == ((), 0)


def test_a_crash_while_wal_is_set_aside_is_finished_at_the_start() -> None:
    control = msgspec.structs.replace(following(100).control, set_aside=True, history=(), wal_begin_lsn=0)
    bench = Bench(control, BASE + 100)
    assert bench.kinds() == ["SetWalAside", "Persist", "Persist"]  # The last one counts the start.
    assert isinstance(bench.effects[0], SetWalAside)
    assert bench.acceptor.flush_lsn == 0


NEW = "d" * 32


def rebootstrap(generation: int = 2, cluster_id: str = NEW) -> Bootstrap:
    return Bootstrap(cluster_id, 7, SEGMENT, 150000, Membership(generation, MEMBERS.members), replace=True)


def undo(generation: int = 3, *, discard: bool = False, cluster_id: str = CLUSTER) -> Bootstrap:
    membership = Membership(generation, MEMBERS.members)
    return Bootstrap(cluster_id, 7, SEGMENT, 150000, membership, undo=True, discard=discard)


def test_an_undo_brings_the_log_back_that_a_rebootstrap_has_set_aside() -> None:
    bench = following(100)
    before = bench.control
    bench.deliver(rebootstrap())
    kept = bench.greet().replaced
    assert kept is not None and (kept.cluster_id, kept.membership) == (CLUSTER, MEMBERS)
    assert isinstance(bench.deliver(undo()), Bootstrapped)
    assert bench.kinds()[:6] == ["InspectSetAside", "Persist", "SetWalAside", "Persist", "RestoreWal", "Persist"]
    assert bench.effects[2] == SetWalAside(f"undone-{NEW}") and bench.effects[4] == RestoreWal(NEW)
    control = bench.control
    assert (control.cluster_id, control.history, control.wal_begin_lsn) == (CLUSTER, before.history, BASE)
    assert control.membership == Membership(3, MEMBERS.members)
    assert (control.replaced, control.replaced_wal, control.restore_from) == (None, "", "")
    assert bench.acceptor.flush_lsn == BASE + 100


def test_what_was_promised_between_a_rebootstrap_and_its_undo_stays_promised() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    assert bench.deliver(asks(LeaderId(9, "run9"), Membership(2, MEMBERS.members), NEW)).granted
    bench.deliver(undo())
    assert not bench.deliver(asks(LeaderId(8, "run8"), Membership(3, MEMBERS.members))).granted


def test_a_greeting_describes_the_log_that_a_rebootstrap_has_replaced() -> None:
    bench = following(100)
    bench.append(BASE + 100, commit_lsn=BASE + 60)
    bench.deliver(rebootstrap())
    assert bench.greet().replaced == Replaced(CLUSTER, 7, SEGMENT, 150000, MEMBERS, BASE, BASE + 60)


@pytest.mark.parametrize("generation", [0, 1])
def test_a_rebootstrap_whose_generation_is_not_higher_is_refused_and_changes_nothing(generation: int) -> None:
    bench = following(100)
    before = bench.control
    assert bench.deliver(rebootstrap(generation)).code is RefusalCode.GENERATION
    assert bench.kinds() == ["Send"] and bench.control == before and bench.acceptor.leader == P1


def test_an_undo_is_refused_once_wal_was_written_since() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    bench.deliver(asks(P2, Membership(2, MEMBERS.members), NEW))
    adopted = msgspec.structs.replace(
        elected(P2, (2, BASE, 1)), cluster_id=NEW, membership=Membership(2, MEMBERS.members)
    )
    assert isinstance(bench.deliver(adopted), AppendResponse)
    before = bench.control
    answer = bench.deliver(undo())
    assert answer.code is RefusalCode.NOT_EMPTY and "an undo would remove it" in answer.reason
    assert bench.control == before and bench.acceptor.leader == P2, "its leader goes on"
    assert isinstance(bench.deliver(undo(discard=True)), Bootstrapped)
    assert bench.control.cluster_id == CLUSTER and bench.acceptor.leader is None


def test_an_undo_with_the_very_membership_of_the_replaced_cluster_is_refused() -> None:
    """Its generation is above the present one: a leader of the newer cluster has changed the members back."""
    bench = following(100)
    bench.deliver(Reconfigure(P1, Membership(3, MEMBERS.members, author=1)))
    bench.deliver(rebootstrap(4))
    new = Membership(2, MEMBERS.members, author=2)
    assert isinstance(bench.deliver(elected(P2, (2, BASE, 1), cluster_id=NEW, membership=new)), AppendResponse)
    before = bench.control
    message = undo(discard=True)
    answer = bench.deliver(msgspec.structs.replace(message, membership=Membership(3, MEMBERS.members, author=1)))
    assert answer.code is RefusalCode.GENERATION
    assert answer.reason.startswith("generation 3 of term 1 is not above generation 3 of term 1 of this cluster")
    assert bench.control == before
    later = msgspec.structs.replace(message, membership=Membership(4, MEMBERS.members, author=1))
    assert isinstance(bench.deliver(later), Bootstrapped)


def test_an_undo_is_refused_if_the_members_were_taken_over_since_the_command_asked_for_them() -> None:
    """The rebootstrap has not reached this safekeeper: it has followed a leader of a later term meanwhile."""
    bench = following(100)
    later = msgspec.structs.replace(MEMBERS, author=2, generation=2)
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 100, 1), membership=later))
    before = bench.control
    answer = bench.deliver(undo())
    assert answer.code is RefusalCode.GENERATION
    assert answer.reason == "generation 3 is not above generation 2 of term 2 of this cluster: run the command again"
    bench.deliver(rebootstrap(3))
    assert bench.deliver(undo(4)).code is RefusalCode.GENERATION, "it keeps them"
    assert before.membership == later
    message = undo(4)
    known = msgspec.structs.replace(message.membership, author=2)
    assert isinstance(bench.deliver(msgspec.structs.replace(message, membership=known)), Bootstrapped)


def test_an_undo_is_refused_when_what_was_set_aside_is_gone() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    bench.aside.clear()
    before = bench.control
    assert bench.deliver(undo()).reason == "it is gone"
    assert bench.control == before


def test_nobody_comes_back_as_a_member_of_a_cluster_whose_log_it_does_not_keep() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    answer = bench.deliver(undo(cluster_id="e" * 32))
    assert answer.code is RefusalCode.NOT_A_MEMBER and "wipe it" in answer.reason


def test_a_folder_that_was_empty_before_the_rebootstrap_is_a_learner_after_the_undo() -> None:
    bench = Bench()
    bench.greet()
    bench.deliver(rebootstrap())
    bench.aside.clear()  # There was nothing to set aside.
    members = (Member(1, "9" * 32), *MEMBERS.members[1:])
    assert isinstance(bench.deliver(msgspec.structs.replace(undo(), membership=Membership(3, members))), Bootstrapped)
    assert bench.acceptor.state == "learner" and bench.acceptor.flush_lsn == 0


def test_what_an_undo_finds_is_the_log_up_to_the_last_byte_that_was_on_disk() -> None:
    bench = following(100)
    bench.append(BASE + 100, b"w" * 50)
    bench.deliver(rebootstrap())
    kept = bench.control.replaced
    assert kept is not None and (kept.commit_lsn, kept.truncate_to) == (0, BASE + 100), "acknowledged, if not committed"
    bench.deliver(undo())
    assert bench.effects[0] == InspectSetAside(NEW, kept)
    assert TruncateWal(BASE + 100, 1) in bench.effects and bench.control.truncate_to is None
    assert bench.acceptor.flush_lsn == bench.acceptor.write_lsn == BASE + 100


def test_a_learner_by_an_undo_keeps_nothing_of_the_cluster_that_is_undone() -> None:
    """A repeated undo would bring that one back; and the name of its WAL is given to no other one."""
    bench = Bench()
    bench.greet()
    bench.deliver(rebootstrap(1))
    new = msgspec.structs.replace(elected(P2, (2, BASE, 1)), cluster_id=NEW, membership=rebootstrap(1).membership)
    bench.deliver(new)
    old = Membership(2, (Member(1, "9" * 32), *MEMBERS.members[1:]))
    bench.deliver(msgspec.structs.replace(undo(discard=True), membership=old))
    assert SetWalAside(f"undone-{NEW}") in bench.effects
    assert bench.greet().replaced is None and bench.acceptor.state == "learner"


def test_a_learner_that_keeps_the_log_of_a_third_cluster_leaves_that_where_it_is() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    other = Membership(3, (Member(1, "9" * 32), *MEMBERS.members[1:]))
    assert isinstance(bench.deliver(msgspec.structs.replace(undo(cluster_id="e" * 32), membership=other)), Bootstrapped)
    assert bench.aside[NEW] and bench.acceptor.flush_lsn == 0 and bench.acceptor.state == "learner"


def test_a_member_that_the_rebootstrap_has_not_reached_takes_the_newer_membership_only() -> None:
    bench = following(100)
    assert isinstance(bench.deliver(undo()), Bootstrapped)
    assert bench.kinds() == ["Persist", "Send"]
    assert bench.control.membership == Membership(3, MEMBERS.members)
    assert bench.acceptor.flush_lsn == BASE + 100
    assert isinstance(bench.deliver(undo()), Bootstrapped), "repeated"
    assert bench.deliver(undo(2)).code is RefusalCode.GENERATION


def test_a_rebootstrap_that_is_repeated_keeps_what_the_first_one_has_replaced() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    bench.deliver(rebootstrap(3, "e" * 32))
    assert bench.greet().replaced.cluster_id == CLUSTER
    bench.deliver(undo(4))
    assert RestoreWal(NEW) in bench.effects and bench.acceptor.flush_lsn == BASE + 100


@pytest.mark.parametrize("after", ["Persist", "SetWalAside", "RestoreWal"])
def test_a_crash_in_the_middle_of_an_undo_is_finished_at_the_start(after: str) -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    effects = bench.acceptor.receive(1, undo(), bench.now)
    result: Any = None
    while True:
        effect = effects.send(result)
        result = None
        if isinstance(effect, Persist):
            bench.control = effect.control
        elif isinstance(effect, InspectSetAside):
            result = ""
        elif isinstance(effect, RestoreWal):
            result = BASE + 100
        if type(effect).__name__ == after:
            break
    # The folder holds nothing that the control file speaks of.
    again = Bench(bench.control)
    assert again.control.cluster_id == CLUSTER and not again.control.is_log_pending
    assert RestoreWal(NEW) in again.effects


def test_a_member_says_nothing_of_its_log_before_an_undo_has_brought_it_back() -> None:
    bench = following(100)
    bench.deliver(rebootstrap())
    bench.greet(2)
    bench.full = RestoreWal
    assert bench.deliver(undo()).code is RefusalCode.STORAGE_FULL
    assert bench.control.cluster_id == CLUSTER
    answer = bench.deliver(asks(LeaderId(9, "run9"), Membership(3, MEMBERS.members)), connection=2)
    assert answer.code is RefusalCode.STORAGE_FULL, "it would vote without WAL that it has acknowledged"
    bench.full = None
    answer = bench.deliver(asks(LeaderId(9, "run9"), Membership(3, MEMBERS.members)), connection=2)
    assert answer.granted and answer.flush_lsn == BASE + 100


# Votes (S2, S3, S8).


def test_a_vote_is_on_disk_before_it_is_said() -> None:
    bench = member()
    answer = bench.deliver(asks(P1))
    assert answer.granted
    assert bench.kinds() == ["Persist", "Send"]
    assert bench.control.promised == P1


def test_a_vote_carries_the_state_after_the_wal_was_flushed() -> None:
    bench = following(100)
    bench.append(BASE + 100, b"more")
    answer = bench.deliver(asks(P2))
    assert bench.kinds() == ["FlushWal", "Persist", "Send"]
    assert isinstance(answer, VoteResponse)
    assert (answer.flush_lsn, answer.history) == (BASE + 104, (HistoryEntry(1, BASE, 1),))


@pytest.mark.parametrize("run", ["run0", "run9"])
def test_a_term_is_promised_once_whatever_the_run(run: str) -> None:
    bench = member()
    bench.deliver(asks(P2))
    answer = bench.deliver(asks(LeaderId(2, run)))
    assert not answer.granted
    assert answer.promised == P2
    assert bench.kinds() == ["Send"]


def test_the_same_run_may_ask_again() -> None:
    bench = member()
    bench.deliver(asks(P2))
    assert bench.deliver(asks(P2)).granted
    assert not bench.deliver(asks(P1)).granted


def test_a_promise_ends_the_leader() -> None:
    bench = following(100)
    bench.deliver(asks(P2))
    assert bench.append(BASE + 100, b"late").code is RefusalCode.STALE_TERM


def test_a_stranger_does_not_vote() -> None:
    bench = following()
    bench.control = msgspec.structs.replace(bench.control, incarnation="9" * 32)
    stranger = Bench(bench.control)
    stranger.greet()
    assert stranger.acceptor.state == "learner"
    assert stranger.deliver(asks(P2)).code is RefusalCode.NOT_A_MEMBER


def test_a_vote_is_decided_under_the_membership_of_the_request_which_is_not_stored() -> None:
    bench = following()
    own = bench.control.membership
    assert own is not None
    without_it = Membership(2, own.members[1:], author=1)
    assert bench.deliver(asks(LeaderId(9, "run9"), without_it)).code is RefusalCode.NOT_A_MEMBER
    later = msgspec.structs.replace(own, generation=own.generation + 1, author=7)
    assert bench.deliver(asks(LeaderId(9, "run9"), later)).granted
    assert bench.control.membership == own


def test_a_safekeeper_that_is_new_in_the_membership_of_the_request_votes() -> None:
    own = Membership(1, MEMBERS.members[1:])
    bench = Bench(msgspec.structs.replace(following().control, membership=own))
    bench.greet()
    assert bench.acceptor.state == "learner"
    assert bench.deliver(asks(P2, own)).code is RefusalCode.NOT_A_MEMBER
    assert bench.deliver(asks(P2, Membership(2, own.members, MEMBERS.members, author=1))).granted


@pytest.mark.parametrize(
    ("own", "asked"), [((3, 2), (3, 1)), ((3, 2), (2, 9)), ((1, 1), (0, 1))], ids=lambda key: f"{key[0]}-{key[1]}"
)
def test_a_vote_under_an_older_membership_is_refused(own: tuple[int, int], asked: tuple[int, int]) -> None:
    def of(key: tuple[int, int]) -> Membership:
        return msgspec.structs.replace(MEMBERS, author=key[0], generation=key[1])

    bench = Bench(msgspec.structs.replace(following().control, membership=of(own)))
    bench.greet()
    assert bench.deliver(asks(LeaderId(9, "run9"), of(asked))).code is RefusalCode.GENERATION
    bench.greet()
    assert bench.deliver(asks(LeaderId(9, "run9"), of(own))).granted


def test_a_vote_for_a_candidate_of_another_cluster_is_refused_whatever_its_membership() -> None:
    later = msgspec.structs.replace(MEMBERS, author=7, generation=9)
    assert following().deliver(asks(LeaderId(9, "run9"), later, NEW)).code is RefusalCode.GENERATION


# A change of the members.


def next_members(generation: int = 2, author: int = 1) -> Membership:
    return Membership(generation, MEMBERS.members, MEMBERS.members[:2], author=author)


def test_a_membership_is_on_disk_before_it_is_said_to_be() -> None:
    bench = following()
    assert bench.deliver(Reconfigure(P1, next_members())) == Reconfigured(P1, 2)
    assert bench.kinds() == ["Persist", "Send"]
    assert bench.control.membership == next_members()
    assert bench.deliver(Reconfigure(P1, next_members())) == Reconfigured(P1, 2)
    assert bench.kinds() == ["Send"], "it is there already"


def test_appends_behind_a_membership_have_its_generation() -> None:
    bench = following()
    bench.deliver(Reconfigure(P1, next_members()))
    assert isinstance(bench.append(BASE, b"x", generation=2), type(None))
    assert bench.acceptor.write_lsn == BASE + 1
    answer = bench.append(BASE + 1, b"y", sequence=7)
    assert answer.code is RefusalCode.GENERATION
    assert answer.reason == "membership generation 1 is not this safekeeper's, 2"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Reconfigure(P1, next_members(1, 1)), RefusalCode.GENERATION),
        (Reconfigure(LeaderId(1, "run9"), next_members(3)), RefusalCode.NOT_ADOPTED),
        (Reconfigure(P2, next_members(3, 2)), RefusalCode.NOT_ADOPTED),
    ],
    ids=["older", "another run", "not adopted"],
)
def test_a_membership_is_refused(message: Reconfigure, code: RefusalCode) -> None:
    bench = following()
    bench.deliver(Reconfigure(P1, next_members()))
    before = bench.control
    assert bench.deliver(message).code is code
    assert bench.control == before


def test_a_membership_of_a_deposed_leader_is_refused() -> None:
    bench = following()
    bench.deliver(asks(P2))
    assert bench.deliver(Reconfigure(P1, next_members())).code is RefusalCode.STALE_TERM


def test_a_membership_that_is_not_the_senders_breaks_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="a membership that is not its own: generation 2 of term 7"):
        following().deliver(Reconfigure(P1, next_members(author=7)))


def test_who_is_no_member_any_more_follows_as_a_learner_and_does_not_vote() -> None:
    bench = following()
    bench.deliver(Reconfigure(P1, Membership(3, MEMBERS.members[1:], author=1)))
    assert bench.acceptor.state == "learner"
    bench.append(BASE, b"x", generation=3)
    assert bench.flush().flush_lsn == BASE + 1
    assert bench.deliver(asks(P2, Membership(3, MEMBERS.members[1:], author=1))).code is RefusalCode.NOT_A_MEMBER


def test_a_full_disk_promises_nothing() -> None:
    bench = member()
    bench.full = Persist
    assert bench.deliver(asks(P1)).code is RefusalCode.STORAGE_FULL
    assert bench.acceptor.control.promised.term == 0


# The pre-vote.


def test_a_live_healthy_leader_keeps_others_away() -> None:
    bench = following()
    request = PreVoteRequest("run2")
    assert bench.deliver(request, 1) == PreVoteResponse(False, "run1")
    assert bench.deliver(PreVoteRequest("run1")).granted
    assert bench.deliver(PreVoteRequest("run2", takeover=True)).granted
    bench.append(BASE, healthy=False)
    assert bench.deliver(request).granted


def test_a_closed_connection_is_silence_at_once() -> None:
    bench = following()
    bench.greet(connection=2)
    bench.acceptor.disconnected(1)
    assert bench.deliver(PreVoteRequest("run2"), connection=2).granted


# Adoption (S5, S6).


def test_the_first_history_brings_the_base_and_is_on_disk_first() -> None:
    bench = member()
    answer = bench.deliver(elected(P1, (1, BASE, 1)))
    assert bench.kinds()[:3] == ["Persist", "ResetWal", "Persist"]
    assert bench.kinds()[-1] == "Send"
    assert isinstance(answer, AppendResponse)
    assert (answer.write_lsn, answer.flush_lsn) == (BASE, BASE)
    assert bench.control.wal_begin_lsn == BASE


def test_no_room_for_the_first_segment_claims_nothing() -> None:
    bench = following(100)
    bench.full = ResetWal
    assert bench.deliver(elected(P2, (2, BASE, 2))).code is RefusalCode.STORAGE_FULL
    bench.full = None
    vote = bench.deliver(asks(LeaderId(3, "run3")))
    assert (vote.flush_lsn, vote.history) == (0, ())


def test_no_room_to_note_the_end_of_a_reset_claims_nothing() -> None:
    bench = member()
    effects = bench.acceptor.receive(1, elected(P1, (1, BASE, 1)), 0.0)
    assert [type(next(effects)) for _ in range(3)] == [Persist, ResetWal, Persist]
    effects.throw(StorageFull("no space"))
    assert bench.acceptor.flush_lsn == 0


def test_a_history_that_diverges_cuts_after_it_is_on_disk() -> None:
    bench = following(100)
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 1)))
    persists = [effect.control.truncate_to for effect in bench.effects if isinstance(effect, Persist)]
    assert bench.kinds()[:3] == ["Persist", "TruncateWal", "Persist"]
    assert persists == [BASE + 40, None]
    assert answer.flush_lsn == BASE + 40
    assert bench.control.promised == P2


def test_a_crash_between_the_history_and_the_cut_is_finished_at_the_start() -> None:
    bench = following(100)
    effects = bench.acceptor.receive(1, elected(P2, (1, BASE, 1), (2, BASE + 40, 1)), 0.0)
    first = next(effects)
    assert isinstance(first, Persist)
    effects.send(None)
    again = Bench(first.control, BASE + 100)
    assert again.effects[0] == TruncateWal(BASE + 40, 1)
    assert again.acceptor.flush_lsn == BASE + 40
    assert again.control.truncate_to is None


def test_what_could_not_be_cut_yet_is_no_part_of_the_adopted_history() -> None:
    bench = following(100)
    bench.full = TruncateWal  # As for want of a file descriptor.
    assert bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, 1))).code is RefusalCode.STORAGE_FULL
    vote = bench.deliver(asks(LeaderId(3, "run3")))
    assert (last_term(vote.history), vote.flush_lsn) == (2, BASE + 40), "term 1's bytes are not those of term 2"
    again = Acceptor(bench.control, BASE + 100)
    assert again.flush_lsn == BASE + 40
    bench.full = None
    answer = bench.deliver(elected(LeaderId(3, "run3"), (1, BASE, 1), (2, BASE + 40, 1), (3, BASE + 40, 1)))
    assert bench.effects[0] == TruncateWal(BASE + 40, 1) and answer.flush_lsn == BASE + 40


@pytest.mark.parametrize("tli", [1, 2])
@pytest.mark.parametrize("record_end_lsn", [BASE + 40, BASE + 60, BASE + 100])
def test_a_committed_record_is_never_cut(tli: int, record_end_lsn: int) -> None:
    """Its end says so, wherever the cut lies in it; a cut at the end itself is one whose WAL cannot be decoded."""
    bench = following(100)
    bench.append(BASE + 100, commit_lsn=BASE + 100)
    bench.record_end_of = lambda lsn: record_end_lsn
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, tli)))
    assert answer.code is RefusalCode.HISTORY
    assert bench.control.history == (HistoryEntry(1, BASE, 1),)
    assert bench.acceptor.flush_lsn == BASE + 100


@pytest.mark.parametrize("tli", [1, 2])
@pytest.mark.parametrize("record_end_lsn", [0, BASE + 101])
def test_a_committed_part_of_a_record_is_cut_whether_the_fork_left_a_trace_or_not(
    tli: int, record_end_lsn: int
) -> None:
    bench = following(120)
    bench.append(BASE + 120, commit_lsn=BASE + 100)
    bench.record_end_of = lambda lsn: record_end_lsn
    answer = bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 40, tli)))
    assert isinstance(answer, AppendResponse)
    assert (bench.acceptor.flush_lsn, bench.acceptor.commit_lsn) == (BASE + 40, BASE + 40)


def test_a_member_that_was_away_cuts_what_was_given_up_meanwhile() -> None:
    for gives_up in (False, True):
        bench = following(300)
        bench.append(BASE + 300, commit_lsn=BASE + 300)
        bench.record_end_of = lambda lsn: lsn + 50
        bench.greet(connection=2)
        given_up = elected(LeaderId(3, "run3"), (1, BASE, 1), (2, BASE + 100, 2, gives_up), (3, BASE + 200, 2))
        answer = bench.deliver(given_up, connection=2)
        if gives_up:
            assert answer.flush_lsn == bench.acceptor.commit_lsn == BASE + 100
        else:
            assert answer.code is RefusalCode.HISTORY


def test_another_log_is_refused_when_something_is_committed() -> None:
    bench = following(100)
    bench.append(BASE + 100, commit_lsn=BASE + 100)
    assert bench.deliver(elected(P2, (2, BASE, 1))).code is RefusalCode.HISTORY


def test_another_log_is_taken_when_nothing_is_committed_but_the_base() -> None:
    bench = following(100)
    bench.append(BASE + 100, commit_lsn=BASE)
    answer = bench.deliver(elected(P2, (2, BASE, 2)))
    assert isinstance(answer, AppendResponse)
    assert answer.flush_lsn == BASE


def test_a_deposed_winner_is_refused() -> None:
    bench = member()
    bench.deliver(asks(P2))
    assert bench.deliver(elected(P1, (1, BASE, 1))).code is RefusalCode.STALE_TERM


def test_a_repeated_elected_changes_nothing() -> None:
    bench = following(100)
    bench.deliver(elected(P1, (1, BASE, 1)))
    assert bench.kinds() == ["Send", "Send"]  # The answer, and a word on the archive.


def test_the_newest_connection_of_a_proposer_wins() -> None:
    bench = following(100)
    bench.greet(connection=2)
    bench.deliver(elected(P1, (1, BASE, 1)), connection=2)
    assert Close(1, "the same proposer has reconnected") in bench.effects
    assert bench.append(BASE + 100, b"old", connection=1).code is RefusalCode.NOT_ADOPTED
    assert bench.append(BASE + 100, connection=2, sequence=1).write_lsn == BASE + 100


# Appends (S2, S6).


def test_wal_counts_as_flushed_only_when_the_flush_has_returned() -> None:
    bench = following()
    assert bench.append(BASE, b"12345") is None
    assert bench.kinds() == ["WriteWal"]
    bench.run(bench.acceptor.report_write())
    assert bench.effects == [Send(1, AppendResponse(P1, BASE + 5, BASE, 0))]
    assert bench.run(bench.acceptor.report_write()) == [], "once"
    assert bench.flush() == AppendResponse(P1, BASE + 5, BASE + 5, 0)


def test_an_append_starts_exactly_at_the_write_position() -> None:
    for begin_lsn in (BASE + 99, BASE + 101):
        bench = following(100)
        answer = bench.append(begin_lsn, b"x")
        assert answer.code is RefusalCode.POSITION
        assert answer.wanted_lsn == BASE + 100
        assert bench.kinds() == ["Send", "Close"]


def test_a_full_disk_refuses_the_append_and_writes_nothing() -> None:
    bench = following(100)
    bench.full = WriteWal
    assert bench.append(BASE + 100, b"x").code is RefusalCode.STORAGE_FULL
    assert bench.acceptor.write_lsn == BASE + 100
    assert bench.kinds()[-1] == "Close"


def test_a_heartbeat_is_answered_with_its_number() -> None:
    assert following(100).append(BASE + 100, sequence=7) == AppendResponse(P1, BASE + 100, BASE + 100, 7)


def test_a_word_that_only_brings_a_commit_is_not_answered_again() -> None:
    bench = following(100)
    assert bench.append(BASE + 100, sequence=7) is not None
    assert bench.append(BASE + 100, sequence=7, commit_lsn=BASE + 60) is None
    assert bench.acceptor.commit_lsn == BASE + 60
    assert bench.append(BASE + 100, sequence=8, commit_lsn=BASE + 60) is not None


def test_commit_lsn_is_never_above_what_is_flushed() -> None:
    bench = following()
    bench.append(BASE, b"12345", commit_lsn=BASE + 5)
    assert bench.acceptor.commit_lsn == BASE
    bench.flush()
    assert bench.acceptor.commit_lsn == BASE + 5


def test_wal_whose_flush_before_a_new_segment_fails_is_not_reported_as_flushed() -> None:
    bench = following(100)
    bench.deliver(asks(P2))
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 300, 2)))
    bench.full = FlushWal
    assert bench.append(BASE + 100, b"a" * 300, leader_id=P2).code == RefusalCode.STORAGE_FULL
    assert (bench.acceptor.flush_lsn, bench.acceptor.write_lsn) == (BASE + 100, BASE + 300)


# Reads (S7).


def test_recovery_reads_are_for_the_promised_proposer_only() -> None:
    bench = following(100)
    answer = bench.deliver(ReadRequest(P1, 5, BASE + 10, BASE + 30))
    assert isinstance(answer, ReadResponse)
    assert (answer.request_id, answer.begin_lsn, len(answer.payload)) == (5, BASE + 10, 20)
    assert bench.deliver(ReadRequest(P2, 6, BASE, BASE + 1)).code is RefusalCode.STALE_TERM


# Histories that lack their oldest terms.


def voter_with(count: int) -> Bench:
    """Return a member that has followed so many leaders, of which each has written a byte."""
    history = tuple(HistoryEntry(term, BASE + term, 1) for term in range(1, count + 1))
    control = msgspec.structs.replace(
        member().control,
        history=history,
        promised=LeaderId(count, "run"),
        wal_begin_lsn=BASE,
        commit_lsn=BASE + count,
    )
    return Bench(control, BASE + count + 1)


def test_a_history_that_had_outgrown_every_message_is_made_to_fit_at_the_start() -> None:
    bench = voter_with(150_000)
    assert bench.control.forgotten_term == 150_000 - HISTORY_ENTRIES_MAX
    assert [entry.term for entry in bench.control.history[:2]] == [1, 150_001 - HISTORY_ENTRIES_MAX]
    bench.greet()
    answer = bench.deliver(asks(LeaderId(150_001, "run1")))
    assert answer.granted and answer.forgotten_term == bench.control.forgotten_term
    assert sum(map(len, encode(answer))) < CONTROL_BYTES_MAX // 4
    # The next term's history is as long, and adopted without a cut.
    plan = LogPlan(answer.flush_lsn, 1, cuts=False)
    history = extend_history(answer.history, plan, answer.leader_id)
    alone = Membership(1, MEMBERS.members[:1])
    voter = alone.members[0].identity
    history, forgotten_term = shorten_history(history, {voter: answer}, voter, alone)
    message = msgspec.structs.replace(elected(answer.leader_id), history=history, forgotten_term=forgotten_term)
    assert sum(map(len, encode(message))) < CONTROL_BYTES_MAX // 4
    assert bench.deliver(message).flush_lsn == answer.flush_lsn
    assert bench.control.history[-1].term == 150_001


# Usual appends.


def settled(*entries: tuple[int, ...]) -> Bench:
    """Return a member that has 100 bytes on disk, of which 50 are committed; a record has 8 bytes."""
    bench = member()
    bench.record_end_of = lambda lsn: lsn + 8
    entries = entries or ((1, BASE, 1),)
    leader_id = LeaderId(entries[-1][0], "run1")
    bench.deliver(elected(leader_id, *entries))
    bench.append(BASE, b"w" * 100, leader_id=leader_id)
    bench.flush()
    bench.append(BASE + 100, commit_lsn=BASE + 50, leader_id=leader_id)
    return bench


def usual(**changes: Any) -> AppendRequest:
    """Return the next append to `settled()`."""
    request = AppendRequest(P1, 1, BASE + 100, BASE + 100, BASE + 60, 7, True, b"w" * 50)
    return msgspec.structs.replace(request, **changes)


@pytest.mark.parametrize(
    ("changes", "connection"),
    [
        ({"leader_id": LeaderId(1, "run2")}, 1),
        ({"leader_id": LeaderId(2, "run1")}, 1),
        ({}, 2),
        ({"generation": 2}, 1),
        ({"begin_lsn": BASE + 99}, 1),
        ({"begin_lsn": BASE + 101}, 1),
        ({"truncate_lsn": BASE + 101}, 1),
    ],
    ids=["another run", "another term", "another connection", "generation", "overlap", "gap", "truncate above commit"],
)
def test_an_append_that_would_be_refused_is_none_to_write_at_once(changes: dict[str, Any], connection: int) -> None:
    bench = settled()
    bench.greet(connection=2)
    assert bench.acceptor.accepts(1, usual())
    assert not bench.acceptor.accepts(connection, usual(**changes))
    with contextlib.suppress(RemoteProtocolError):
        bench.run(bench.acceptor.receive(connection, usual(**changes), bench.now))
    assert "WriteWal" not in bench.kinds()


def test_an_append_over_a_change_of_timeline_is_none_to_write_at_once() -> None:
    bench = settled((1, BASE, 1), (2, BASE + 150, 2))
    bench.acceptor._open_fork_lsn = LSN_MAX
    leader_id = LeaderId(2, "run1")
    assert bench.acceptor.accepts(1, usual(leader_id=leader_id))
    assert not bench.acceptor.accepts(1, usual(leader_id=leader_id, payload=b"w" * 51))


def test_no_append_is_written_at_once_while_readers_wait_for_a_record_after_a_fork() -> None:
    for fork_lsn, is_settled in ((BASE + 40, True), (BASE + 45, False)):
        bench = settled((1, BASE, 1), (2, fork_lsn, 2))
        assert bench.acceptor.accepts(1, usual(leader_id=LeaderId(2, "run1"))) is is_settled


@pytest.mark.parametrize("payload", [b"w" * 50, b""], ids=["WAL", "heartbeat"])
@pytest.mark.parametrize("full", [None, WriteWal], ids=["room", "full"])
def test_an_append_that_is_written_at_once_has_the_effects_of_any_other(payload: bytes, full: type[Any] | None) -> None:
    at_once, in_full = settled(), settled()
    message = usual(payload=payload)
    assert at_once.acceptor.accepts(1, message)
    for bench, effects in (
        (at_once, message_effects(at_once.acceptor, 1, message, 107.0)),
        (in_full, in_full.acceptor.receive(1, message, 107.0)),
    ):
        bench.full = full
        bench.run(effects)
    assert at_once.effects == in_full.effects != []
    mine, theirs = (dict(vars(bench.acceptor)) for bench in (at_once, in_full))
    for state in (mine, theirs):
        del state["_handlers"]
    assert mine == theirs
    assert at_once.acceptor.commit_lsn == (BASE + 50 if full and payload else BASE + 100)


# A change of the members that a command wants.


WANTED = ChangeMembers(0, CLUSTER, 1, MEMBERS.members)


def test_a_change_of_the_members_is_relayed_to_the_leader_and_its_answer_back() -> None:
    bench = following()
    bench.greet(connection=9)
    assert bench.run(bench.acceptor.receive(9, WANTED, bench.now)) == [
        Send(1, msgspec.structs.replace(WANTED, request_id=9))
    ]
    answer = MembersAnswer(9, "another change is under way")
    assert bench.run(bench.acceptor.receive(1, answer, bench.now)) == [
        Send(9, msgspec.structs.replace(answer, request_id=0))
    ]
    # The command has ended meanwhile.
    bench.acceptor.disconnected(9)
    assert bench.run(bench.acceptor.receive(1, answer, bench.now)) == []


def test_an_answer_that_is_not_the_leaders_is_not_relayed() -> None:
    bench = following()
    for connection in (8, 9):
        bench.greet(connection=connection)
    assert bench.run(bench.acceptor.receive(8, MembersAnswer(9), bench.now)) == []


def test_a_change_of_the_members_without_a_leader_is_refused() -> None:
    bench = member()
    bench.greet(connection=9)
    assert bench.deliver(WANTED, connection=9).code is RefusalCode.NO_LEADER


# Tail terms (step 12).


def test_a_tail_term_is_granted_only_if_no_other_proposer_is_present_healthy_or_not() -> None:
    bench = following(100)
    bench.append(BASE + 100, healthy=False)
    bench.greet(2)
    assert bench.deliver(PreVoteRequest("run2"), connection=2) == PreVoteResponse(True)
    assert bench.deliver(TailPreVoteRequest("run2"), connection=2) == PreVoteResponse(False, "run1")
    assert bench.deliver(TailPreVoteRequest("run1"), connection=2) == PreVoteResponse(True, "run1")
    bench.now += HEARTBEAT_TIMEOUT_S
    assert bench.deliver(TailPreVoteRequest("run2"), connection=2) == PreVoteResponse(True)


def test_a_tail_term_is_granted_before_any_leader_and_as_soon_as_the_leader_has_disconnected() -> None:
    assert member().deliver(TailPreVoteRequest("run2")) == PreVoteResponse(True)
    bench = following(100)
    bench.greet(2)
    assert bench.deliver(TailPreVoteRequest("run2"), connection=2) == PreVoteResponse(False, "run1")
    bench.acceptor.disconnected(1)
    assert bench.deliver(TailPreVoteRequest("run2"), connection=2) == PreVoteResponse(True)
