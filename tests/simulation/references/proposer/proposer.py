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
    Elected,
    FolderStates,
    PullWal,
    ReadRequest,
    Reconfigure,
)
from tests.simulation.references.acceptor.histories import folders_of
from tests.simulation.references.proposer.actions import Differs, alike, expect, is_for_silence, without_repeats, worded
from tests.simulation.references.proposer.beginnings import Beginnings
from tests.simulation.references.proposer.primary import PrimaryEvents
from tests.simulation.references.proposer.safekeepers import SafekeeperEvents
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
from walproxy.proposer.purpose import Purpose

NOT_MODELLED = {
    "Note": "what is logged; that a term is won or lost is compared",
    "error": "the wording of errors and of the reasons of actions; their kind is compared",
    "waits": "when an attempt begins or is given up, when a heartbeat is sent, who is disconnected for silence",
    "fetches": "6.3, when WAL below the window is fetched, and at which rate",
    "pulls": "6.6, when a pull begins and ends, its rate, and which sources come first",
    "archiver": "9.2, which safekeeper archives",
    "folders": "11.3, when the members' folders are reported; what is reported is compared",
    "shown": "what status pages read",
    "read": "of what the shell acts on: hot_standby_feedback, knows_a_cluster, is_first_start, is_steady",
    "redirect": "10.11, the addresses by which a member is dialled, and which of two is tried next",
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
    "pursue": 1,
    "change_members": 1,
}


class ReferenceProposer(SafekeeperEvents, PrimaryEvents, Beginnings):
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
        self._is_tick = event == "tick"
        # How long an answer is awaited is left open.
        self._silent = {a.safekeeper_id for a in actions if isinstance(a, Disconnect) and is_for_silence(a)}
        if self._silent and self._is_tick:
            actions = [action for action in actions if not is_for_silence(action)]
        self._actions = without_repeats(actions) if actions else actions
        self._expected.clear()
        self._acting = self.term
        self._welcomed = {}
        self._ended = self._has_answered = False
        self._streamed = self.term is not None and self.term.streams
        self._membership_after = membership
        if event in _NOW:
            self._now = arguments[_NOW[event]]
        for action in self._actions:
            if isinstance(action, SendAppend) and self.term is not None:
                self.term.begin_event()
            elif isinstance(action, Dial):
                self._dialled(action)
        if self.campaign is not None:
            self.campaign.phase_after = phase
        getattr(self, event)(*arguments)
        if self._actions:
            self._may_begin()
        if self._actions or self._expected:
            self._explain()
        if self._removed:
            self._forget_removed()
        if self._actions or self._ended or self.term is not None:
            self._require(event, arguments)
        if self._actions or event in ("message", "change_members"):
            self._learn_of_term()

    def tick(self, now: float, jitter: float) -> None:
        """12.5, and what is due."""
        if self._ends_tail_term():
            self._end_term()
            return
        term = self.term
        if term is not None:
            if self.known.purpose is not None and term.is_tail and term.commit_lsn:
                self.known.was_elected = True  # 13.1: a takeover holds until the first purpose is served.
            term.truncate_lsn = term.truncate_now()
            is_settled = term.change.next(term.membership) is None
            if not is_settled:
                self._decide()
            self._members_in_report = folders_of(term.membership)
            self._replace_lost()
            if is_settled:
                self._decide()
            self._hang_up(term)
            self._follow_term(now)
        elif self.campaign is not None:
            self.campaign.tick()
            self._follow_campaign(now)

    def pursue(self, purpose: Purpose, now: float) -> None:
        """13.1: another purpose, which ends the term that is led."""
        self._end_term()
        self.known.purpose, self.known.is_done = purpose, False

    def _ends_tail_term(self) -> bool:
        """12.5."""
        return self.term is not None and self.term.is_tail and self.primary is not None

    def set_apply_rule(self, rule: ApplyRule) -> None:
        """7.14."""
        self._standbys.rule = rule

    def forget_refusals(self) -> None:
        """4.10."""
        self._refused_hosts.forget()

    def quorum_end_lsn(self) -> int:
        """Return what a quorum has, as far as known."""
        if self.term is not None and self.term.commit_lsn:
            return self.term.commit_lsn
        return max((p.greeting.flush_lsn for p in self.roster.peers.values() if p.greeting is not None), default=0)

    def tail_elected(self) -> Elected | None:
        """13.4: `Elected` of a tail term, once a quorum has adopted it."""
        term = self.term
        return term.elected if term is not None and term.is_tail and term.commit_lsn else None

    def committed_lsns(self) -> tuple[int, int]:
        """7.5, 7.9: commit_lsn, and truncate_lsn, which is advanced when it is read."""
        term = self.term
        if term is None:
            return 0, 0
        term.truncate_lsn = term.truncate_now()
        return term.commit_lsn, term.truncate_lsn

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
                self._leading().sent_elected(safekeeper_id, None, message)
        elif isinstance(message, AppendRequest):
            self._leading().sent_fetched(safekeeper_id, message, self._now)
        elif isinstance(message, ReadRequest):
            self._leading().sent_read(safekeeper_id, message)
        elif isinstance(message, PullWal):
            self._leading().sent_pull(safekeeper_id, message)
        elif isinstance(message, ArchiveAssignment):
            self._leading().sent_assignment(safekeeper_id, message)
        elif isinstance(message, FolderStates):
            self._on_folders_sent(safekeeper_id, message)
        elif isinstance(message, Reconfigure):
            expect(message.membership == self._leading().membership, "10.4: a membership that is not decided for")
            self._leading().append_generation = None
        else:
            return False
        return True

    def _on_folders_sent(self, safekeeper_id: int, message: FolderStates) -> None:
        """11.3: what is known of the members' data folders."""
        term = self._leading()
        expect(term.members[safekeeper_id].follows, "11.3: folders are reported to one that does not follow")
        self._learn_of_term()
        known = self.roster.folders.get(term.elected.cluster_id, {})
        states = tuple(known[folder] for folder in sorted(self._members_in_report) if folder in known)
        expected = FolderStates(term.elected.cluster_id, states)
        expect(message == expected, "11.3: reports {}, reference {}", message, expected)

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
        status, before = term.status(), term.reported or ReportStatus(0, 0, 0)
        if reports:
            expect(reports[-1] == status, "7.6: reports {}, reference {}", reports[-1], status)
            is_news = status != before or event != "message" or term.streams != self._streamed
            is_news = is_news or self._has(StartReplication)  # This connection has had no report.
            expect(is_news or self._has(RefusePrimary), "7.6: reports {} again", status)
            term.reported = reports[-1]
        elif status != before:
            is_lower = (status.flush_lsn, status.apply_lsn) == (before.flush_lsn, before.apply_lsn)
            is_lower = is_lower and status.write_lsn < before.write_lsn
            expect(is_lower, "7.6: does not report {} after {}", status, before)
        term.require_sent()
        term.require_assignment()
        if event in ("wal_received", "tick"):
            gone = {action.safekeeper_id for action in self._actions if isinstance(action, Disconnect)}
            term.require_wal(term.members.keys() - gone - self._silent)
        elif self._has_answered:
            term.require_wal([arguments[0]])
