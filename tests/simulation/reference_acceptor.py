"""A reference of the acceptor, written from docs/design/protocol.md, that runs beside the real one in the simulator.

Theory of operation. The other checkers detect what is wrong at the end of a chain of events: an acknowledged record
that is gone. This reference states what an acceptor has to do with each event, so a wrong decision is found when it
is made (reference_checker.py compares). It is the protocol's text in the plainest form: each decision is a formula of
the whole state, nothing is cached or counted incrementally, and it shares only types with safekeeper/acceptor and
safekeeper/consensus. The numbers in the docstrings are those of the protocol. What it does not model is
`NOT_MODELLED`.

Each event is a method: `start`, `message`, `disconnected`, `flushed`, `write_reported`, `checkpoint`, `trim`,
`archive_reported`, `readers_changed`, `pulled`, `pull_failed`. All but one are generators of the effects that the
acceptor has to request, in this order. An effect is executed once, for both; its result, or its error, is passed to
both.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from safekeeper.acceptor.effects import Close, Send, ServeAgent, ServeEvents, ServeRead, TruncateWal
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import StorageFull
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AcceptorMessage,
    AgentExchange,
    AppendRequest,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    ChangeMembers,
    DigestRequest,
    DigestResponse,
    Elected,
    EventExchange,
    FolderIsOlder,
    FolderStates,
    MembersAnswer,
    PeerRead,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    PullEnded,
    PullWal,
    ReadRequest,
    ReadResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    Replaced,
    Standby,
    StandbyFeedback,
    TailPreVoteRequest,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from tests.simulation.reference_histories import (
    NO_END,
    ProtocolBroken,
    entries_of_log,
    folders_of,
    is_same,
    key,
    last_term,
    next_incarnation,
    require_history,
    tli_of_byte,
)
from tests.simulation.reference_log import Effects, ReferenceLog, Wal

# Waits: a proposer counts as live after its last message.
LIVE_S = 1.0
READ_BYTES_MAX = 1 << 20
DIGEST_BYTES_MAX = 1 << 30
VERSION, VERSION_BEFORE = 5, 4

# The parts of the acceptor that are not compared. The checker counts the effects of the first two.
NOT_MODELLED = {
    "AgentExchange": "what the registry of agents keeps and replies (step 14): only the refusals are compared",
    "EventExchange": "what the keeper of events keeps and replies (step 15): only the refusals are compared",
    "reason": "the wording of refusals, and of closed connections",
    "log_tail": "the tail of the log (4.7): synthetic WAL has none",
    "check": "the acceptor's own checks of its invariants, which stop the process",
    "error": "the wording of the error for a message that breaks the protocol; that there is one is compared",
}


class ReferenceAcceptor(ReferenceLog):
    """What an acceptor does with each event.

    Attributes:
        followed: the leader whose history was adopted, and the connection (5.7); None without one (A4).
        heard: when the leader's last `Elected` or append came, and whether it said healthy (2.2).
        heard_healthy_at: when an append last said healthy (14.8).
        sequence, answered: of the last append; and what the last answer carried: write_lsn, sequence (7.3).
        pull, pulled_from_lsn: the pull that is under way; where the first one of this adoption began (6.8).
        archiver, has_archive, archive_progress: step 9.
        may_trim, has_cut_to_make: 9.5: whether `Elected` came last, or room is needed; a term that gives up WAL waits.
        versions: the protocol versions of the connections that have greeted.
    """

    def __init__(self, control: ControlState, wal_end_lsn: int, wal: Wal, entries_max: int) -> None:
        super().__init__(control, wal_end_lsn, wal, entries_max)
        self.followed: tuple[LeaderId, int] | None = None
        self.heard: tuple[float, bool] = (0.0, False)
        self.heard_healthy_at: float | None = None
        self.sequence = 0
        self.answered: tuple[int, int] = (0, 0)
        self.pull: PullWal | None = None
        self.pulled_from_lsn = NO_END
        self.archiver = 0
        self.has_archive = False
        self.archive_progress: tuple[int, str] = (0, "")
        self.may_trim = False
        self.has_cut_to_make = False
        self.has_readers = False
        self.standbys: tuple[Standby, ...] = ()
        self.versions: dict[int, int] = {}
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

    # ------------------------------------------------------------------ what others see

    @property
    def leader(self) -> LeaderId | None:
        """The leader that is followed."""
        return self.followed[0] if self.followed is not None else None

    @property
    def leader_connection(self) -> int | None:
        """The connection on which it is."""
        return self.followed[1] if self.followed is not None else None

    @property
    def is_archiver(self) -> bool:
        """Whether this safekeeper is named as the archiver."""
        return self.archiver == self.control.safekeeper_id

    @property
    def state(self) -> str:
        """What /status shows."""
        if self.control.membership is None:
            return "empty"
        if not self.is_member:
            return "learner"
        return "following" if self.followed is not None else "idle"

    @property
    def awaits_election(self) -> bool:
        """Whether nothing may be removed before the next `Elected` (9.5)."""
        return not self.may_trim

    @property
    def log_end(self) -> tuple[int, int, int]:
        """1.3: last term, timeline of the last byte, floor."""
        entries = entries_of_log(self.control.history, self.flush_lsn)
        has_byte = bool(entries) and self.flush_lsn > entries[0].start_lsn
        tli = tli_of_byte(entries, self.flush_lsn - 1) if has_byte else 0
        return last_term(entries), tli, entries[-1].floor if entries else 0

    # ------------------------------------------------------------------ events

    def message(self, connection: int, message: ProposerMessage, now: float) -> Effects:
        """A message has arrived."""
        try:
            if self.control.restore_from:
                yield from self.start()  # A5: before that it reports nothing.
            if isinstance(message, ProposerGreeting):
                yield from self._greeting(connection, message)
            elif connection not in self.versions:
                raise ProtocolBroken("M2: a message before the greeting")
            else:
                yield from self._steps[type(message)](connection, message, now)
        except StorageFull:
            if isinstance(message, Elected):
                own = self.control.history
                self.has_cut_to_make = any(entry.gives_up and entry not in own for entry in message.history)
            self.may_trim = not self.has_cut_to_make
            yield from self._refuse(connection, RefusalCode.STORAGE_FULL, close=True)

    def disconnected(self, connection: int) -> None:
        """A connection is closed (A4, 2.2)."""
        self.versions.pop(connection, None)
        if connection == self.leader_connection:
            self._follow_nobody()

    def flushed(self, flush_lsn: int) -> Effects:
        """A flush beside the handlers has ended: all appends that it covered are answered (7.3)."""
        self.durable_end = flush_lsn
        self.advance_commit()
        yield from self._answer()

    def write_reported(self) -> Effects:
        """A flush takes long: write_lsn is told ahead of it (7.3)."""
        if self.answered[0] < self.write_lsn:
            yield from self._answer()

    def trim(self, request: TrimRequest) -> Effects:
        """9.5, 9.1."""
        if self.may_trim and (yield from self.remove_old(request)):
            yield from self._report_archive()

    def archive_reported(self, archived_lsn: int, problem: str, archive_id: str) -> Effects:
        """9.1: what the archiver says is cut at the commit_lsn of that moment, and reported if it has changed."""
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

    def pulled(self, leader_id: LeaderId, begin_lsn: int, payload: bytes) -> Effects:
        """6.8: pulled WAL is written under the rules of an append."""
        pull = self.pull
        if pull is None or not leader_id == pull.leader_id == self.leader == self.control.promised:
            return
        if not begin_lsn == self.write_lsn < pull.end_lsn:
            return
        try:
            yield from self.write(begin_lsn, payload[: pull.end_lsn - begin_lsn])
        except StorageFull as full:
            yield from self._end_pull(str(full))
            raise
        self.look_for_forks()
        if self.write_lsn == pull.end_lsn:
            yield from self._end_pull("")

    def pull_failed(self, pull: PullWal, problem: str) -> Effects:
        """6.9."""
        if pull is self.pull:
            yield from self._end_pull(problem)

    # ------------------------------------------------------------------ steps 0 and 1

    def _greeting(self, connection: int, message: ProposerGreeting) -> Effects:
        control, version = self.control, message.protocol_version
        facts = ((message.system_id, control.system_id), (message.segment_size, control.segment_size))
        if version not in (VERSION, VERSION_BEFORE):
            yield from self._refuse(connection, RefusalCode.VERSION, close=True)
        elif message.safekeeper_id != control.safekeeper_id:
            yield from self._refuse(connection, RefusalCode.WRONG_ID, close=True)
        elif any(theirs is not None and own != 0 and theirs != own for theirs, own in facts):
            yield from self._refuse(connection, RefusalCode.OTHER_SYSTEM, close=True)
        else:
            self.versions[connection] = version
            yield from self._send_folders(connection)
            term, tli, floor = self.log_end
            yield Send(
                connection,
                AcceptorGreeting(
                    protocol_version=version,
                    safekeeper_id=control.safekeeper_id,
                    incarnation=control.incarnation,
                    cluster_id=control.cluster_id,
                    system_id=control.system_id,
                    segment_size=control.segment_size,
                    server_version=control.server_version,
                    membership=control.membership,
                    promised=control.promised,
                    last_term=term,
                    wal_begin_lsn=control.wal_begin_lsn,
                    flush_lsn=self.flush_lsn,
                    commit_lsn=self.commit_lsn,
                    truncate_lsn=self.truncate_lsn,
                    replaced=_replaced(control.replaced),
                    log_tli=tli if version == VERSION else 0,
                    floor=floor if version == VERSION else 0,
                ),
            )

    def _bootstrap(self, connection: int, message: Bootstrap, now: float) -> Effects:
        control = self.control
        folder = control.safekeeper_id, control.incarnation
        is_there = control.cluster_id == message.cluster_id and is_same(message.membership, control.membership)
        if not message.undo and folder not in folders_of(message.membership):
            yield from self._refuse(connection, RefusalCode.NOT_A_MEMBER)  # 0.5
        elif is_there:
            yield Send(connection, Bootstrapped(message.cluster_id, message.membership.generation))  # 0.6
        elif message.replace or message.undo:
            yield from self._replace(connection, message)
        elif control.cluster_id or control.promised.term or control.history:
            yield from self._refuse(connection, RefusalCode.NOT_EMPTY)  # 0.7
        else:
            yield from self.persist(
                cluster_id=message.cluster_id,
                system_id=message.system_id,
                segment_size=message.segment_size,
                server_version=message.server_version,
                membership=message.membership,
            )
            yield Send(connection, Bootstrapped(message.cluster_id, message.membership.generation))

    def _replace(self, connection: int, message: Bootstrap) -> Effects:
        """0.10, 0.14."""
        control, theirs = self.control, message.membership
        known = [
            state.membership
            for state in (control, control.replaced)
            if state is not None and state.cluster_id == message.cluster_id
        ][:1]
        is_low = control.membership is not None and theirs.generation <= control.membership.generation
        if is_low or any(own is not None and key(theirs) <= key(own) for own in known):
            yield from self._refuse(connection, RefusalCode.GENERATION)
            return
        yield from self.finish()
        was_replaced = message.cluster_id != control.cluster_id
        refusal = self.undo_refusal(message) if message.undo and was_replaced else None
        if refusal is not None:
            yield from self._refuse(connection, refusal)
            return
        self._follow_nobody()
        self.archive_progress = 0, self.archive_progress[1]
        if not message.undo:
            yield from self.begin_cluster(message)
        elif was_replaced:
            yield from self.restore_cluster(message)
        else:
            yield from self.persist(membership=theirs)
        yield Send(connection, Bootstrapped(message.cluster_id, theirs.generation))

    # ------------------------------------------------------------------ steps 2, 3, 12: elections

    def _pre_vote(self, connection: int, message: PreVoteRequest, now: float) -> Effects:
        """2.2, 2.4."""
        leader = self.leader
        is_live = leader is not None and now - self.heard[0] < LIVE_S and self.heard[1]
        live = leader.proposer_id if leader is not None and is_live else ""
        yield Send(connection, PreVoteResponse(message.takeover or live in ("", message.proposer_id), live))

    def _tail_pre_vote(self, connection: int, message: TailPreVoteRequest, now: float) -> Effects:
        """12.2."""
        leader = self.leader
        live = leader.proposer_id if leader is not None and now - self.heard[0] < LIVE_S else ""
        yield Send(connection, PreVoteResponse(live in ("", message.proposer_id), live))

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        """3.2 to 3.5."""
        control, own, theirs = self.control, self.control.membership, message.membership
        folder = control.safekeeper_id, control.incarnation
        if own is None or folder not in folders_of(theirs if theirs is not None else own):
            yield from self._refuse(connection, RefusalCode.NOT_A_MEMBER)
            return
        if theirs is None and own.author != 0:
            yield from self._refuse(connection, RefusalCode.VERSION, close=True)
            return
        if theirs is None:
            is_fit = message.generation == own.generation
        else:
            is_fit = message.cluster_id == control.cluster_id and key(theirs) >= key(own)
        if not is_fit:
            yield from self._refuse(connection, RefusalCode.GENERATION, close=True)
            return
        is_promised = message.leader_id == control.promised
        if not is_promised and message.leader_id.term <= control.promised.term:
            yield Send(connection, VoteResponse(message.leader_id, granted=False, promised=control.promised))
            return
        if not is_promised:
            self._follow_nobody()
        yield from self.flush_all()
        if not is_promised:
            yield from self.persist(promised=message.leader_id)
        self.may_trim = self.followed is not None
        yield from self._send_folders(connection)
        control = self.control
        yield Send(
            connection,
            VoteResponse(
                leader_id=message.leader_id,
                granted=True,
                promised=message.leader_id,
                history=entries_of_log(control.history, self.flush_lsn),
                tli_histories=control.tli_histories,
                wal_begin_lsn=control.wal_begin_lsn,
                flush_lsn=self.flush_lsn,
                commit_lsn=self.commit_lsn,
                truncate_lsn=self.truncate_lsn,
                forgotten_term=control.forgotten_term,
            ),
        )

    # ------------------------------------------------------------------ step 5: elected

    def _elected(self, connection: int, message: Elected, now: float) -> Effects:
        """5.3 to 5.8."""
        control, own, theirs = self.control, self.control.membership, message.membership
        require_history(message.history)
        if last_term(message.history) != message.leader_id.term:
            raise ProtocolBroken("5.3: the history ends in another term")
        refusal = None
        is_ours = message.cluster_id == control.cluster_id
        is_blank = control.promised.term == 0 and control.history == ()
        if not is_ours and control.cluster_id != "" and not is_blank:
            refusal = RefusalCode.OTHER_CLUSTER
        elif control.system_id != 0 and (
            message.system_id != control.system_id or message.segment_size != control.segment_size
        ):
            refusal = RefusalCode.OTHER_SYSTEM
        elif message.leader_id.term < control.promised.term:
            refusal = RefusalCode.STALE_TERM
        elif own is not None and (key(theirs) < key(own) if is_ours else theirs.generation < own.generation):
            refusal = RefusalCode.GENERATION
        if refusal is not None:
            yield from self._refuse(connection, refusal, close=True)
            return
        self.may_trim = True
        if self.leader != message.leader_id:
            self._follow_nobody()
        yield from self.flush_all()
        yield from self.finish()
        control = self.control
        is_another_log = message.history != control.history or control.wal_begin_lsn == 0
        if is_another_log or self.flush_lsn < message.base_lsn:
            refusal = yield from self.adopt(message)
            if refusal is not None:
                yield from self._refuse(connection, refusal)
                return
            self.archive_progress = min(self.archive_progress[0], self.commit_lsn), self.archive_progress[1]
        elif message.leader_id != control.promised or theirs != control.membership:
            yield from self.persist(promised=message.leader_id, membership=theirs)  # 5.6
        self.has_cut_to_make = False
        history = self.control.history
        if any(entry.start_lsn == self.write_lsn for entry in history):
            yield TruncateWal(self.write_lsn, tli_of_byte(history, self.write_lsn))
        self.named_lsn = self.write_lsn
        if self.leader_connection is not None and self.leader_connection != connection:
            yield Close(self.leader_connection, "")  # 5.7
        self.followed = message.leader_id, connection
        self.leader_commit_lsn = message.commit_lsn
        self.sequence = 0
        self.pull, self.pulled_from_lsn = None, NO_END
        self.heard = now, True
        self.advance_commit()
        yield from self._answer()
        if self.has_readers:
            yield from self._send_leader(StandbyFeedback(self.standbys))
        yield from self._report_archive()
        self.look_for_forks()

    # ------------------------------------------------------------------ steps 7 and 10: what a leader sends

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
        self.heard = now, message.healthy
        if message.healthy:
            self.heard_healthy_at = now
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
        if relay is not None and self.versions.get(relay) == VERSION:
            yield Send(relay, msgspec.structs.replace(message, request_id=connection))
        else:
            yield from self._refuse(connection, RefusalCode.NO_LEADER)

    def _members_answer(self, connection: int, message: MembersAnswer, now: float) -> Effects:
        """10.10."""
        if connection == self.leader_connection and message.request_id in self.versions:
            yield Send(message.request_id, msgspec.structs.replace(message, request_id=0))

    # ------------------------------------------------------------------ step 11: data folders

    def _send_folders(self, connection: int) -> Effects:
        """11.2."""
        if self.control.membership is not None and self.versions[connection] == VERSION:
            yield Send(connection, FolderStates(self.control.cluster_id, (self.folder_state, *self.folders)))

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
            self._follow_nobody()
            yield from self.persist(incarnation=next_incarnation(control.incarnation, message.leader_id))
            yield Close(connection, "")

    # ------------------------------------------------------------------ steps 9, 14, 15

    def _archive_assignment(self, connection: int, message: ArchiveAssignment, now: float) -> Effects:
        """9.3."""
        if self._is_led_by(message.leader_id, connection):
            was_archiver = self.is_archiver
            self.archiver = message.archiver
            if message.archived_lsn != 0:
                self.archived_lsn, self.archive_id = message.archived_lsn, message.archive_id
            if was_archiver != self.is_archiver:
                yield from self._report_archive()

    def _report_archive(self) -> Effects:
        """9.1."""
        archived_lsn, problem = self.archive_progress
        begin_lsn, here = self.control.wal_begin_lsn, self.archive_here
        yield from self._send_leader(
            ArchiveReport(begin_lsn, self.has_archive, self.is_archiver, archived_lsn, problem, here)
        )

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

    # ------------------------------------------------------------------ step 6: pulls and reads

    def _pull_wal(self, connection: int, message: PullWal, now: float) -> Effects:
        """6.6, 6.8."""
        if not self._is_led_by(message.leader_id, connection):
            yield from self._refuse_leader(connection, message.leader_id)
            return
        self.pulled_from_lsn = min(self.pulled_from_lsn, self.write_lsn)
        self.pull = message
        if not message.sources or message.end_lsn <= self.write_lsn:
            yield from self._end_pull("")

    def _end_pull(self, problem: str) -> Effects:
        """6.9."""
        pull, self.pull = self.pull, None
        if pull is not None:
            yield from self._send_leader(PullEnded(pull.leader_id, pull.request_id, self.write_lsn, problem))

    def _peer_read(self, connection: int, message: PeerRead, now: float) -> Effects:
        """6.7."""
        if message.leader_id != self.control.promised:
            yield from self._refuse(connection, RefusalCode.STALE_TERM, close=True)
        elif not self._has_log_of(message.leader_id):
            yield from self._refuse(connection, RefusalCode.NOT_ADOPTED, close=True)
        elif not self._has_range(message.begin_lsn, message.end_lsn):
            yield from self._refuse(connection, RefusalCode.RANGE)
        else:
            yield ServeRead(connection, message)

    def serves(self, request: PeerRead) -> bool:
        """6.7: whether the range may be sent, now that it was read."""
        return self._has_log_of(request.leader_id) and self._has_range(request.begin_lsn, request.end_lsn)

    def _has_log_of(self, leader_id: LeaderId) -> bool:
        control = self.control
        return leader_id == control.promised and last_term(control.history) == leader_id.term and self.is_whole

    def _has_range(self, begin_lsn: int, end_lsn: int) -> bool:
        return self.control.wal_begin_lsn <= begin_lsn <= end_lsn <= self.flush_lsn

    def _reader_refusal(self, leader_id: LeaderId, begin_lsn: int, end_lsn: int) -> RefusalCode | None:
        """6.2."""
        if leader_id != self.control.promised:
            return RefusalCode.STALE_TERM
        return None if self._has_range(begin_lsn, end_lsn) else RefusalCode.RANGE

    def _read(self, connection: int, message: ReadRequest, now: float) -> Effects:
        """6.2."""
        refusal = self._reader_refusal(message.leader_id, message.begin_lsn, message.end_lsn)
        if refusal is not None:
            yield from self._refuse(connection, refusal, close=refusal is RefusalCode.STALE_TERM)
            return
        end_lsn = min(message.end_lsn, message.begin_lsn + READ_BYTES_MAX)
        payload = self.wal.read(message.begin_lsn, end_lsn)
        yield Send(connection, ReadResponse(message.request_id, message.begin_lsn, payload))

    def _digest(self, connection: int, message: DigestRequest, now: float) -> Effects:
        """4.6, 6.2."""
        refusal = self._reader_refusal(message.leader_id, message.begin_lsn, message.end_lsn)
        if refusal is not None:
            yield from self._refuse(connection, refusal, close=refusal is RefusalCode.STALE_TERM)
            return
        begin_lsn, timed_lsn = message.begin_lsn, 0
        if message.back_to_timed:
            size, log_begin_lsn = self.control.segment_size, self.control.wal_begin_lsn
            timed_lsn = self.wal.last_timed_record(log_begin_lsn, message.end_lsn)
            begin_lsn = min(begin_lsn, (timed_lsn or log_begin_lsn) // size * size)
        end_lsn = min(message.end_lsn, begin_lsn + DIGEST_BYTES_MAX)
        crcs = self.wal.page_crcs(begin_lsn, end_lsn)
        yield Send(connection, DigestResponse(message.request_id, begin_lsn, end_lsn, crcs, timed_lsn))

    def _tail(self, connection: int, message: TailRequest, now: float) -> Effects:
        """4.5."""
        refusal = self._reader_refusal(message.leader_id, message.lsn, self.flush_lsn)
        if refusal is not None:
            yield from self._refuse(connection, refusal, close=refusal is RefusalCode.STALE_TERM)
            return
        end_lsn, start_lsn = self.wal.record_end(message.lsn), self.wal.last_record_start(message.lsn)
        yield Send(connection, TailResponse(message.request_id, message.lsn, end_lsn, start_lsn, None))

    # ------------------------------------------------------------------ what several steps have in common

    def _is_led_by(self, leader_id: LeaderId, connection: int) -> bool:
        """5.7, 7.1."""
        return self.followed == (leader_id, connection)

    def _refuse_leader(self, connection: int, leader_id: LeaderId) -> Effects:
        """7.1."""
        is_stale = leader_id.term < self.control.promised.term
        code = RefusalCode.STALE_TERM if is_stale else RefusalCode.NOT_ADOPTED
        yield from self._refuse(connection, code, close=True)

    def _follow_nobody(self) -> None:
        """A4."""
        self.followed = None
        self.leader_commit_lsn = 0
        self.pull, self.pulled_from_lsn = None, NO_END

    def _send_leader(self, message: AcceptorMessage) -> Effects:
        if self.followed is not None:
            yield Send(self.followed[1], message)

    def _answer(self) -> Effects:
        """5.8, 7.3."""
        if self.followed is not None:
            leader_id, connection = self.followed
            self.answered = self.write_lsn, self.sequence
            answer = AppendResponse(leader_id, self.write_lsn, self.flush_lsn, self.sequence, self.has_readers)
            yield Send(connection, answer)

    def _refuse(self, connection: int, code: RefusalCode, close: bool = False) -> Effects:
        """M1, R2."""
        yield Send(connection, Refusal(code, "", self.control.promised))
        if close:
            yield Close(connection, "")


def _replaced(state: ControlState | None) -> Replaced | None:
    """0.13: the greeting says whose state a rebootstrap has replaced."""
    if state is None or state.membership is None:
        return None
    return Replaced(
        cluster_id=state.cluster_id,
        system_id=state.system_id,
        segment_size=state.segment_size,
        server_version=state.server_version,
        membership=state.membership,
        wal_begin_lsn=state.wal_begin_lsn,
        commit_lsn=state.commit_lsn,
    )
