"""A reference of the proposer, written from docs/design/protocol.md, that looks on at the real one in the simulator.

Theory of operation. The other checkers detect what is wrong at the end of a chain of events. This reference states what
a proposer has to do with each event, so a wrong decision is found when it is made (checker.py passes the
events on). It is the protocol's text in the plainest form: formulas of the whole state, and it shares only types with
walproxy/proposer. The numbers in the docstrings are those of the protocol. What it does not model is `NOT_MODELLED`.

Each event of `Proposer` is a method with the same arguments. It changes the state, and collects in `_expected` the
actions that the protocol fixes; the actual ones must be these, in any order. Where the protocol leaves a choice, the
actual action decides: an append, a read, a pull, the archiver. Such an action is checked
against what is permitted, and what must not be left out is checked at the end of the event (term.py).
"""

from typing import Any

from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import (
    AppendRequest,
    ArchiveAssignment,
    Bootstrap,
    Elected,
    FolderIsOlder,
    FolderStates,
    PreVoteRequest,
    ProposerGreeting,
    PullWal,
    ReadRequest,
    Reconfigure,
    TailPreVoteRequest,
    VoteRequest,
)
from tests.simulation.references.acceptor.histories import folders_of
from tests.simulation.references.proposer.actions import Differs, alike, expect, without_repeats, worded
from tests.simulation.references.proposer.beginnings import Beginnings
from tests.simulation.references.proposer.primary import PrimaryEvents
from tests.simulation.references.proposer.safekeepers import SafekeeperEvents
from tests.simulation.references.proposer.shown import ShownState
from tests.simulation.references.proposer.term import ReferenceTerm
from walproxy.proposer.actions import (
    Action,
    Dial,
    Disconnect,
    RefusePrimary,
    ReportStatus,
    SendAppend,
    SendMessage,
    StartReplication,
)
from walproxy.proposer.apply_rule import ApplyRule
from walproxy.proposer.phase import Phase

FOLDERS_INTERVAL_S = 1.0

NOT_MODELLED = {
    "Note": "what is logged; that a term is won or lost is compared",
    "error": "the wording of errors and of the reasons of actions; their kind is compared",
    "due": "a heartbeat before it is due; when WAL is fetched for a member that commits do not wait for",
    "archiver": "9.2, which one of several replaces an archiver",
    "redirect": "10.11, the addresses by which a member is dialled, and which of two is tried next",
    "pull_sources": "6.6, which sources come first",
    "cluster_id": "0.3, the digest of a bootstrap",
    "log_tail": "4.7, the tail of the log: synthetic WAL has none",
}

# Which argument of an event is its time.
_NOW = {
    "connected": 1,
    "disconnected": 1,
    "message": 2,
    "primary_identified": 1,
    "primary_segment_removed": 0,
    "primary_slot_in_use": 0,
    "primary_lost": 0,
    "primary_checked": 3,
    "primary_refused": 1,
    "timeline_ended": 2,
    "wal_received": 1,
    "tick": 0,
    "change_members": 1,
}


# What is answered, besides what the leader of a term sends.
_ASKS = (ProposerGreeting, PreVoteRequest, TailPreVoteRequest, VoteRequest, Bootstrap, FolderIsOlder)


class ReferenceProposer(SafekeeperEvents, PrimaryEvents, Beginnings, ShownState):
    """What a proposer does with each event."""

    def after(
        self,
        event: str,
        arguments: tuple[Any, ...],
        actions: list[Action],
        phase: Phase = Phase.GATHERING,
        membership: Membership | None = None,
    ) -> None:
        """Take an event, and check the actions that the proposer has returned for it.

        Args:
            event, arguments: as the proposer was called.
            phase, membership: of the proposer after the event: whether it has given up an attempt, and whether it has
                decided for a membership, shows there. The second one is None without a term.

        Raises:
            Differs: they are not what the protocol says.
        """
        self._actions = without_repeats(actions) if actions else actions
        self._expected.clear()
        self._acting = self.term
        self._welcomed = {}
        self._is_tick, self._tells_folders = event == "tick", False
        self._ended = self._has_answered = False
        self._streamed = self.term is not None and self.term.streams
        self._phase_after, self._membership_after = phase, membership
        if event in _NOW:
            self._now = arguments[_NOW[event]]
        for action in self._actions:
            if isinstance(action, SendAppend) and self.term is not None:
                self.term.begin_event()
            elif isinstance(action, Dial):
                self._dialled(action)
        self._draw_on(event, arguments)
        getattr(self, event)(*arguments)
        if self._actions:
            self._may_begin()
        if self._actions or self._expected:
            self._explain()
        if self._is_tick:
            self._look_for_primary()  # It may have been refused in this event.
        if self._is_attempt_due:
            self._require_attempt(event, arguments)
        if self._removed:
            self._forget_removed()
        if self._actions or self._ended or self.term is not None:
            self._require(event, arguments)
        if self._actions or event in ("message", "change_members"):
            self._learn_of_term()

    def tick(self, now: float, jitter: float) -> None:
        """12.5, the waits, and what is due."""
        if self._ends_tail_term():
            self._end_term()
            return
        self._close_silent(now)
        term = self.term
        if term is not None:
            term.begin_tick()
            self._tells_folders = now >= self._tell_folders_at
            if self._tells_folders:
                self._tell_folders_at = now + FOLDERS_INTERVAL_S
            if self.config.seal is not None and term.commit_lsn:
                self.known.was_elected = True  # 13.1: a takeover holds until the seal is committed.
            term.truncate_lsn = term.truncate_now()
            is_settled = term.change.next(term.membership) is None
            if not is_settled:
                self._decide()
            term.watch_archive(now)
            self._members_told_of = folders_of(term.membership)
            self._replace_lost()
            if is_settled:
                self._decide()
            self._hang_up(term)
            self._follow_term(now)
        elif self.campaign is not None:
            self.campaign.tick(now)
            self._follow_campaign(now)
        self._look_for_primary()

    def _ends_tail_term(self) -> bool:
        """12.5."""
        return self.term is not None and self.term.is_tail and self.primary is not None

    def _look_for_primary(self) -> None:
        """12.1: since when there is none, as ticks see it at their end."""
        if self.primary is not None and not self._has(RefusePrimary):
            self._without_primary_since = None
        elif self._without_primary_since is None:
            self._without_primary_since = self._now

    def set_apply_rule(self, rule: ApplyRule) -> None:
        """7.14."""
        self._standbys.rule = rule

    def forget_refusals(self) -> None:
        """4.10."""
        self._refusals.forget()

    def _explain(self) -> None:
        """Compare the actions that the protocol fixes, and check the others against what is permitted."""
        fixed: list[Action] = []
        decided = self._sent(Reconfigure)
        if decided:
            self._leading().append_generation = decided[0][1].membership.generation - 1
        for action in self._actions:
            if isinstance(action, SendAppend):
                self._leading().sent_append(action.safekeeper_ids, action.header, action.end_lsn, self._now)
            elif not self._is_left_open(action):
                fixed.append(action)
        missing = without_repeats([worded(action) for action in self._expected])
        for action in fixed:
            plain = worded(action)
            if plain not in missing:
                raise Differs(f"does {action}, reference {alike(plain, missing)}")
            missing.remove(plain)
        if missing:
            raise Differs(f"does not {missing[0]}")
        for action in fixed:
            if isinstance(action, SendMessage) and isinstance(action.message, _ASKS):
                peer = self.roster.peers[action.safekeeper_id]
                if peer.waiting_since is None:
                    peer.waiting_since = self._now

    def _leading(self) -> ReferenceTerm:
        if self._acting is None:
            raise Differs("sends what only the leader of a term sends")
        return self._acting

    def _is_left_open(self, action: Action) -> bool:
        """Check an action that the protocol does not fix, or that is compared elsewhere; return whether it is one."""
        if not isinstance(action, SendMessage):
            return isinstance(action, ReportStatus)
        safekeeper_id, message = action.safekeeper_id, action.message
        if isinstance(message, Elected):
            if safekeeper_id not in self._welcomed:
                self._leading().sent_elected(safekeeper_id, None, message, self._now)
        elif isinstance(message, AppendRequest):
            self._leading().sent_fetched(safekeeper_id, message, self._now)
        elif isinstance(message, ReadRequest):
            self._leading().sent_read(safekeeper_id, message)
        elif isinstance(message, PullWal):
            self._leading().sent_pull(safekeeper_id, message, self._now, self._is_tick)
        elif isinstance(message, ArchiveAssignment):
            self._leading().sent_assignment(safekeeper_id, message, self._now, self._is_tick)
        elif isinstance(message, FolderStates):
            self._told_folders(safekeeper_id, message)
        elif isinstance(message, Reconfigure):
            expect(message.membership == self._leading().membership, "10.4: a membership that is not decided for")
            self._leading().append_generation = None
        else:
            return False
        return True

    def _told_folders(self, safekeeper_id: int, message: FolderStates) -> None:
        """11.3."""
        term = self._leading()
        member = term.members[safekeeper_id]
        expect(self._is_tick and member.follows, "11.3: folders are told at the wrong time")
        expect(self._tells_folders, "11.3: folders are told too often")
        expected = self._folders_to_tell(term)
        expect(message == expected, "11.3: tells {}, reference {}", message, expected)
        expect(message != member.told_folders, "11.3: safekeeper {} is told the same again", safekeeper_id)
        member.told_folders = message

    def _folders_to_tell(self, term: ReferenceTerm) -> FolderStates:
        self._learn_of_term()
        known = self.roster.folders.get(term.elected.cluster_id, {})
        states = tuple(known[folder] for folder in sorted(self._members_told_of) if folder in known)
        return FolderStates(term.elected.cluster_id, states)

    def _require_folders_told(self, term: ReferenceTerm, gone: set[int]) -> None:
        """11.3: each second, who does not know what is known of the members' folders is told."""
        if not self._tells_folders:
            return
        due = self._folders_to_tell(term)
        for safekeeper_id, member in term.members.items():
            if member.follows and safekeeper_id not in gone and due.folders:
                expect(member.told_folders == due, "11.3: safekeeper {} is not told {}", safekeeper_id, due)

    def _close_silent(self, now: float) -> None:
        """The waits: who has not answered for too long."""
        timeout_s = self.config.timing.response_timeout_s
        for safekeeper_id, peer in self.roster.peers.items():
            if peer.is_connected and peer.waiting_since is not None and now - peer.waiting_since > timeout_s:
                peer.waiting_since = None
                self._disconnect(safekeeper_id)
        if self.term is not None:
            for safekeeper_id in self.term.silent(now):
                self._disconnect(safekeeper_id)

    def _require(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What must have been done at the end of the event."""
        reports = [action for action in self._actions if type(action) is ReportStatus]
        term = self.term
        if self._ended:
            expect(reports[-1:] == [ReportStatus(0, 0, 0)], "8.1: a term ends, and PostgreSQL is not told (0, 0, 0)")
            return
        if term is None:
            expect(all(report == ReportStatus(0, 0, 0) for report in reports), "7.6: positions without a term")
            return
        status, told = term.status(), term.reported or ReportStatus(0, 0, 0)
        if reports:
            expect(reports[-1] == status, "7.6: reports {}, reference {}", reports[-1], status)
            is_news = status != told or event != "message" or term.streams != self._streamed
            is_news = is_news or self._has(StartReplication)  # This connection has had no report.
            expect(is_news or self._has(RefusePrimary), "7.6: reports {} again", status)
            term.reported = reports[-1]
        elif status != told:
            is_lower = (status.flush_lsn, status.apply_lsn) == (told.flush_lsn, told.apply_lsn)
            is_lower = is_lower and status.write_lsn < told.write_lsn
            expect(is_lower, "7.6: does not report {} after {}", status, told)
        term.require_told()
        if event in ("wal_received", "tick"):
            gone = {a.safekeeper_id for a in self._actions if isinstance(a, Disconnect)}
            if self._is_tick:
                term.require_tick(gone, self._now)
                self._require_folders_told(term, gone)
            term.require_wal(term.members.keys() - gone)
        elif self._has_answered:
            term.require_wal([arguments[0]])
