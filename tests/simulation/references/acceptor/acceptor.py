"""A reference of the acceptor, written from docs/design/protocol.md, that runs beside the real one in the simulator.

Theory of operation. The other checkers detect what is wrong at the end of a chain of events: an acknowledged record
that is gone. This reference states what an acceptor has to do with each event, so a wrong decision is found when it
is made (checker.py compares). It is the protocol's text in the plainest form: each decision is a formula of
the whole state, nothing is cached or counted incrementally, and it shares only types with safekeeper/acceptor and
safekeeper/consensus. The numbers in the docstrings are those of the protocol. What it does not model is
`NOT_MODELLED`.

Each event is a method: `start`, `message`, `disconnected`, `flushed`, `write_reported`, `checkpoint`, `trim`,
`archive_reported`, `readers_changed`, `pulled`, `pull_failed`. All but one are generators of the effects that the
acceptor has to request, in this order. An effect is executed once, for both; its result, or its error, is passed to
both.

    elections.py   greetings, bootstraps, votes and adoptions (steps 0 to 3, 5, 12)
    reads.py       reads of the log, and pulls (4.5, 4.6, step 6)
    state.py       the state, and what several steps have in common
    log.py         the stored log: adoption, trimming, undo
    histories.py   formulas about term histories
"""

from collections.abc import Callable
from typing import Any

import msgspec

from safekeeper.acceptor.effects import Close, Send, ServeAgent, ServeEvents
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import ResourceShortage, StorageFull
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import (
    AgentExchange,
    AppendRequest,
    ArchiveAssignment,
    Bootstrap,
    ChangeMembers,
    DigestRequest,
    Elected,
    EventExchange,
    FolderIsOlder,
    FolderStates,
    MembersAnswer,
    PeerRead,
    PreVoteRequest,
    ProposerGreeting,
    ProposerMessage,
    PullWal,
    ReadRequest,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
    TailPreVoteRequest,
    TailRequest,
    VoteRequest,
)
from tests.simulation.references.acceptor.elections import Elections
from tests.simulation.references.acceptor.histories import (
    ProtocolBroken,
    key,
    next_incarnation,
)
from tests.simulation.references.acceptor.log import Effects, Wal
from tests.simulation.references.acceptor.reads import Reads

# The parts of the acceptor that are not compared. The checker counts the effects of the first two.
NOT_MODELLED = {
    "AgentExchange": "what the registry of agents keeps and replies (step 14): only the refusals are compared",
    "EventExchange": "what the keeper of events keeps and replies (step 15): only the refusals are compared",
    "reason": "the wording of refusals, and of closed connections",
    "log_tail": "the tail of the log (4.7): synthetic WAL has none",
    "check": "the acceptor's own checks of its invariants, which stop the process",
    "error": "the wording of the error for a message that breaks the protocol; that there is one is compared",
}


class ReferenceAcceptor(Elections, Reads):
    """What an acceptor does with each event."""

    def __init__(self, control: ControlState, wal_end_lsn: int, wal: Wal, entries_max: int) -> None:
        super().__init__(control, wal_end_lsn, wal, entries_max)
        self._steps: dict[type, Callable[[int, Any, float], Effects]] = {
            Bootstrap: self._bootstrap,
            PreVoteRequest: self._pre_vote,
            TailPreVoteRequest: self._tail_pre_vote,
            VoteRequest: self._vote,
            Elected: self._elected,
            AppendRequest: self._append,
            Reconfigure: self._reconfigure,
            ChangeMembers: self._change_members,
            MembersAnswer: self._members_answer,
            FolderStates: self._folder_states,
            FolderIsOlder: self._folder_is_older,
            AgentExchange: self._agent_exchange,
            EventExchange: self._event_exchange,
            ArchiveAssignment: self._archive_assignment,
            PullWal: self._pull_wal,
            PeerRead: self._peer_read,
            ReadRequest: self._read,
            DigestRequest: self._digest,
            TailRequest: self._tail,
        }

    def message(self, connection: int, message: ProposerMessage, now: float) -> Effects:
        """A message has arrived."""
        try:
            if self.control.restore_from:
                yield from self.start()  # A5: before that it reports nothing.
            if isinstance(message, ProposerGreeting):
                yield from self._greeting(connection, message)
            elif connection not in self.greeted:
                raise ProtocolBroken("M2: a message before the greeting")
            else:
                yield from self._steps[type(message)](connection, message, now)
        except StorageFull as full:
            if isinstance(message, Elected):
                own = self.control.history
                self.has_cut_to_make = any(entry.gives_up and entry not in own for entry in message.history)
            frees = not isinstance(full, ResourceShortage)
            self.may_trim = (self.may_trim or frees) and not self.has_cut_to_make
            yield from self._refuse(connection, RefusalCode.STORAGE_FULL, close=True)

    def disconnected(self, connection: int) -> None:
        """A connection is closed (A4, 2.2)."""
        self.greeted.discard(connection)
        if connection == self.leader_connection:
            self._follow_none()

    def flushed(self, flush_lsn: int) -> Effects:
        """A flush beside the handlers has ended: all appends that it covered are answered (7.3)."""
        self.durable_end = flush_lsn
        self.advance_commit()
        yield from self._answer()

    def write_reported(self) -> Effects:
        """A flush takes long: write_lsn is reported ahead of it (7.3)."""
        if self.answered[0] < self.write_lsn:
            yield from self._answer()

    def trim(self, request: TrimRequest) -> Effects:
        """9.5, 9.1."""
        if self.may_trim and (yield from self.remove_old(request)):
            yield from self._report_archive()

    def archive_reported(self, archived_lsn: int, problem: str, archive_id: str) -> Effects:
        """9.1: the archiver's position is cut at the commit_lsn of that moment, and reported if it has changed."""
        before = self.has_archive, self.archive_progress, self.archive_here
        self.has_archive, self.archive_here = True, archive_id
        self.archive_progress = min(archived_lsn, self.commit_lsn), problem
        if before != (self.has_archive, self.archive_progress, self.archive_here):
            yield from self._report_archive()

    def readers_changed(self, has_readers: bool, standbys: tuple[Standby, ...]) -> Effects:
        """7.8, 7.14."""
        before = self.has_readers, self.standbys
        self.has_readers = has_readers
        if has_readers != before[0]:
            yield from self._answer()
        self.standbys = standbys
        if standbys != before[1]:
            yield from self._send_leader(StandbyFeedback(standbys))

    def _append(self, connection: int, message: AppendRequest, now: float) -> Effects:
        """7.1 to 7.4, 6.8."""
        if not self._is_led_by(message.leader_id, connection):
            yield from self._refuse_leader(connection, message.leader_id)
            return
        membership = self.control.membership
        if membership is None or message.generation != membership.generation:
            yield from self._refuse(connection, RefusalCode.GENERATION, close=True)
            return
        is_late_heartbeat = not message.payload and self.pulled_from_lsn <= message.begin_lsn < self.write_lsn
        if message.begin_lsn != self.write_lsn and not is_late_heartbeat:
            yield Send(connection, Refusal(RefusalCode.POSITION, "", self.control.promised, wanted_lsn=self.write_lsn))
            yield Close(connection, "")
            return
        if message.truncate_lsn > message.commit_lsn:
            raise ProtocolBroken("7.11: truncate_lsn is above commit_lsn")
        if message.payload:
            yield from self.write(message.begin_lsn, message.payload)
        self.leader_message = now, message.healthy
        if message.healthy:
            self.healthy_seen_at = now
        self.sequence = message.sequence
        self.leader_commit_lsn = max(self.leader_commit_lsn, message.commit_lsn)
        self.advance_commit()
        self.truncate_lsn = max(self.truncate_lsn, min(message.truncate_lsn, self.flush_lsn))
        self.look_for_forks()
        if not message.payload and message.sequence != self.answered[1]:
            yield from self._answer()

    def _reconfigure(self, connection: int, message: Reconfigure, now: float) -> Effects:
        """10.3."""
        own, theirs = self.control.membership, message.membership
        if not self._is_led_by(message.leader_id, connection):
            yield from self._refuse_leader(connection, message.leader_id)
        elif theirs.author != message.leader_id.term:
            raise ProtocolBroken("10.3: the author is not the sender's term")
        elif own is not None and key(theirs) < key(own):
            yield from self._refuse(connection, RefusalCode.GENERATION, close=True)
        else:
            if theirs != own:
                yield from self.persist(membership=theirs)
            yield Send(connection, Reconfigured(message.leader_id, theirs.generation))

    def _change_members(self, connection: int, message: ChangeMembers, now: float) -> Effects:
        """10.10."""
        relay = self.leader_connection
        if relay is not None:
            yield Send(relay, msgspec.structs.replace(message, request_id=connection))
        else:
            yield from self._refuse(connection, RefusalCode.NO_LEADER)

    def _members_answer(self, connection: int, message: MembersAnswer, now: float) -> Effects:
        """10.10."""
        if connection == self.leader_connection and message.request_id in self.greeted:
            yield Send(message.request_id, msgspec.structs.replace(message, request_id=0))

    def _folder_states(self, connection: int, message: FolderStates, now: float) -> Effects:
        """11.4."""
        is_ours = message.cluster_id == self.control.cluster_id and self.control.membership is not None
        if connection == self.leader_connection and is_ours:
            self.learn_folders(message.folders)
        yield from ()

    def _folder_is_older(self, connection: int, message: FolderIsOlder, now: float) -> Effects:
        """11.8."""
        control, known = self.control, message.known
        if message.leader_id.term < control.promised.term:
            yield from self._refuse(connection, RefusalCode.STALE_TERM, close=True)
        elif (known.safekeeper_id, known.incarnation) == (control.safekeeper_id, control.incarnation):
            self._follow_none()
            yield from self.persist(incarnation=next_incarnation(control.incarnation, message.leader_id))
            yield Close(connection, "")

    def _archive_assignment(self, connection: int, message: ArchiveAssignment, now: float) -> Effects:
        """9.3."""
        if self._is_led_by(message.leader_id, connection):
            was_archiver = self.is_archiver
            self.archiver = message.archiver
            if message.archived_lsn != 0:
                self.archived_lsn, self.archive_id = message.archived_lsn, message.archive_id
            if was_archiver != self.is_archiver:
                yield from self._report_archive()

    def _agent_exchange(self, connection: int, message: AgentExchange, now: float) -> Effects:
        """14.3."""
        if self.control.cluster_id == "":
            yield from self._refuse(connection, RefusalCode.NOT_A_MEMBER)
        elif message.cluster_id != self.control.cluster_id:
            yield from self._refuse(connection, RefusalCode.OTHER_CLUSTER)
        else:
            yield ServeAgent(connection, message)

    def _event_exchange(self, connection: int, message: EventExchange, now: float) -> Effects:
        """15.2."""
        if message.cluster_id != self.control.cluster_id:
            yield from self._refuse(connection, RefusalCode.OTHER_CLUSTER)
        else:
            yield ServeEvents(connection, message)
