"""The acceptor: decides what a safekeeper may promise, adopt, write and send.

Theory of operation. An acceptor follows one proposer at a time, the one it *promised* (S3), and accepts WAL only on the
connection on which it adopted that proposer's `Elected` (S5, S6). Its handlers are generators of effects
(safekeeper/acceptor/effects.py): the shell executes each effect before the handler continues, so a statement in a reply
is durable before it is sent (S2). A crash may happen between any two effects; statements already sent remain true, and
`start` finishes an interrupted adoption.

Only in memory, and so lost in a crash: which proposer's history was adopted on which connection, and whether that
proposer is alive. Its next `Elected` restores both.

Pure: time is an argument, the bytes of WAL are not interpreted.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from safekeeper.acceptor.acceptor_log import AcceptorLog, cluster_fields
from safekeeper.acceptor.effects import (
    Close,
    DigestWal,
    Effects,
    EffectsThen,
    FindRecords,
    FindTimedRecord,
    ReadWal,
    Send,
    ServeAgent,
    ServeEvents,
    ServeRead,
    TruncateWal,
)
from safekeeper.acceptor.following import Following
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import InvariantViolation, RemoteProtocolError, ResourceShortage, StorageFull
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn, segment_start
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.folder_state import learn, successor_of
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.messages import (
    DIGEST_RANGE_BYTES_MAX,
    PROTOCOL_VERSION,
    AcceptorGreeting,
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
from safekeeper.consensus.term_history import (
    check_history,
    cut_history,
    last_term,
    last_tli,
    next_tli_switch,
    tli_at,
)

READ_BYTES_MAX = 1 << 20


class Acceptor(AcceptorLog):
    """One safekeeper's half of the consensus.

    Attributes:
        has_readers, standbys: the readers of this safekeeper, as last passed to `readers_changed`.
        archiver: the safekeeper that archives, as last assigned by a leader; 0 if none was since the start.
        healthy_seen_at: when a proposer last reported that it is healthy (step 2), None if none has since the start.
        awaits_election: whether no `Elected` was received since the start, or since the last vote: no WAL is removed.
    """

    def __init__(self, control: ControlState, flush_lsn: Lsn) -> None:
        super().__init__(control, flush_lsn)
        self.has_readers = False
        self.standbys: tuple[Standby, ...] = ()
        self.archiver = 0
        self._has_archive = False
        self._archive_progress: tuple[Lsn, str] = (0, "")
        self.awaits_election = True
        self._is_to_cut = False  # A term that gives WAL up was not adopted, for want of disk space.
        self.healthy_seen_at: float | None = None
        self._greeted: set[int] = set()
        self._checked = control
        self._checked_logs_adopted = self.logs_adopted
        self._checked_commit_lsn = self.commit_lsn
        self._checked_truncate_lsn = self.truncate_lsn
        self._handlers: dict[type, Callable[[int, Any, float], Effects]] = {
            Bootstrap: self._bootstrap,
            PreVoteRequest: self._pre_vote,
            TailPreVoteRequest: self._tail_pre_vote,
            VoteRequest: self._vote,
            Elected: self._elected,
            AppendRequest: self._append,
            Reconfigure: self._reconfigure,
            ChangeMembers: self._relay_change,
            MembersAnswer: self._relay_answer,
            FolderStates: self._learn_folders,
            FolderIsOlder: self._leave_identity,
            AgentExchange: self._agent_exchange,
            EventExchange: self._event_exchange,
            ArchiveAssignment: self._archive_assignment,
            PullWal: self._pull_wal,
            PeerRead: self._peer_read,
            ReadRequest: self._read,
            DigestRequest: self._digest,
            TailRequest: self._tail,
        }

    def receive(self, connection: int, message: ProposerMessage, now: float) -> Effects:
        """Handle a proposer's message.

        Args:
            connection: number of the connection; numbers are never used twice.
            now: monotonic time in seconds.

        Raises:
            RemoteProtocolError: the message is not valid; close the connection, the message changed nothing.
            InvariantViolation: stop the process.
        """
        try:
            if self.control.restore_from:
                # Nothing may be reported about a log before it is restored.
                yield from self.start()
            if isinstance(message, ProposerGreeting):
                yield from self._greeting(connection, message)
            elif connection not in self._greeted:
                raise RemoteProtocolError(f"{type(message).__name__} before the greeting")
            else:
                yield from self._handlers[type(message)](connection, message, now)
        except StorageFull as full:
            if isinstance(message, Elected):
                self._is_to_cut = self._gives_up_anew(message)
            yield from self.no_room(connection, full)

    def no_room(self, connection: int, full: StorageFull) -> Effects:
        """Refuse a message: there is no disk space, or no file descriptor, for it."""
        # Trimming must free disk space, but must not remove WAL that an adoption is to cut. It frees no descriptors.
        is_short = isinstance(full, ResourceShortage)
        self.awaits_election = self._is_to_cut or (is_short and self.awaits_election)
        yield from self._refuse(connection, RefusalCode.STORAGE_FULL, str(full), close=True)

    def disconnected(self, connection: int) -> None:
        """Forget a closed connection; if it was the leader's, the leader no longer counts as alive."""
        self._greeted.discard(connection)
        if connection == self.leader_connection:
            self.following = None

    def flushed(self, flush_lsn: Lsn) -> AppendResponse | None:
        """Record that a flush which the shell started is done: WAL up to `flush_lsn` is on disk.

        No other method makes answers: one that is due without a flush has the present `flush_lsn`.

        Returns:
            The answer to send on `leader_connection`, None without a leader.

        Raises:
            InvariantViolation: stop the process.
        """
        if not self.flush_lsn <= flush_lsn <= self.write_lsn:
            raise InvariantViolation(
                f"flushed to {format_lsn(flush_lsn)}, outside of "
                f"[{format_lsn(self.flush_lsn)}, {format_lsn(self.write_lsn)}]"
            )
        self.flush_lsn = flush_lsn
        self._advance_commit()
        self.check()
        following = self.following
        return following.answer(self.write_lsn, flush_lsn, self.has_readers) if following is not None else None

    def report_write(self) -> Effects:
        """Report WAL that is received but not yet on disk to the leader, if a flush takes long."""
        following = self.following
        if following is not None and following.answered_write_lsn < self.write_lsn:
            yield from self._send_answer()

    def readers_changed(self, has_readers: bool, standbys: tuple[Standby, ...]) -> Effects:
        """Record that a reader started or stopped, or that a standby reported a new position."""
        news = has_readers != self.has_readers
        self.has_readers = has_readers
        if news:
            yield from self._send_answer()
        if standbys != self.standbys:
            self.standbys = standbys
            yield from self._send_standbys()

    def archive_reported(self, archived_lsn: Lsn, problem: str, archive_id: str = "") -> Effects:
        """Record that the archive contains the WAL retained below `archived_lsn` (0: not verified yet); or a problem.

        `archived_lsn` may go back, because another log may have been adopted since it was verified. `archive_id` is
        empty until it is known.
        """
        # Meanwhile a fork may have cut WAL that was archived.
        archived_lsn = min(archived_lsn, self.commit_lsn)
        before = self._has_archive, self._archive_progress, self.own_archive_id
        self._has_archive, self._archive_progress = True, (archived_lsn, problem)
        self.own_archive_id = archive_id
        if (True, self._archive_progress, archive_id) != before:
            yield from self._report_archive()

    def trim(self, request: TrimRequest) -> Effects:
        """Remove part of the old WAL that need not be retained."""
        if self.awaits_election:
            # An elected proposer that gives WAL up relies on the log's beginning in the vote (4.5).
            return
        if (yield from self._trim(request)):
            yield from self._report_archive()

    def check(self) -> None:
        """Check the invariants; the shell calls it after each event.

        Raises:
            InvariantViolation: a promise or a position has gone back, or two positions are not in order. Stop the
                process.
        """
        control, checked = self.control, self._checked
        commit_lsn, truncate_lsn, flush_lsn = self.commit_lsn, self.truncate_lsn, self.flush_lsn
        if not flush_lsn <= self.write_lsn:
            raise InvariantViolation(
                f"flush_lsn {format_lsn(flush_lsn)} is above write_lsn {format_lsn(self.write_lsn)}"
            )
        if control is not checked:
            promised, before = control.promised, checked.promised
            # Within a term it may change: only the candidate for which a quorum has voted sends `Elected`.
            if promised.term < before.term:
                raise InvariantViolation(f"the promise has gone back from {before} to {promised}")
            if last_term(control.history) > promised.term:
                raise InvariantViolation(f"a term above the promise {promised} was adopted")
            self._checked = control
        checked_commit_lsn, checked_truncate_lsn = self._checked_commit_lsn, self._checked_truncate_lsn
        has_gone_back = commit_lsn < checked_commit_lsn or truncate_lsn < checked_truncate_lsn
        if has_gone_back and self._checked_logs_adopted == self.logs_adopted:
            raise InvariantViolation(
                f"commit_lsn {format_lsn(commit_lsn)} or truncate_lsn {format_lsn(truncate_lsn)} has gone back from "
                f"{format_lsn(checked_commit_lsn)} or {format_lsn(checked_truncate_lsn)}, and no log was adopted"
            )
        self._checked_logs_adopted = self.logs_adopted
        self._checked_commit_lsn, self._checked_truncate_lsn = commit_lsn, truncate_lsn
        if truncate_lsn > commit_lsn:
            raise InvariantViolation(
                f"truncate_lsn {format_lsn(truncate_lsn)} is above commit_lsn {format_lsn(commit_lsn)}"
            )
        following = self.following
        if following is None:
            return
        if following.leader_id != control.promised:
            raise InvariantViolation(f"{following.leader_id} leads, and {control.promised} was promised")
        if following.pull is not None and following.pull.leader_id != following.leader_id:
            raise InvariantViolation(f"{following.leader_id} leads, and WAL is pulled for {following.pull.leader_id}")

    @property
    def leader(self) -> LeaderId | None:
        """The leader that is followed, None without one."""
        return self.following.leader_id if self.following is not None else None

    @property
    def leader_connection(self) -> int | None:
        """The connection of that leader, None without one."""
        return self.following.connection if self.following is not None else None

    @property
    def pull(self) -> PullWal | None:
        """The leader's request to read WAL from other members, None if none is under way."""
        return self.following.pull if self.following is not None else None

    @property
    def is_voter(self) -> bool:
        """Whether this data folder is a member: only then may it vote and does it count (S8)."""
        membership = self.control.membership
        return membership is not None and membership.is_voter(self.control.safekeeper_id, self.control.incarnation)

    @property
    def is_archiver(self) -> bool:
        """Whether this safekeeper archives: until a leader names another one."""
        return self.archiver == self.control.safekeeper_id

    @property
    def log_end(self) -> tuple[int, int, int, int]:
        """The last term of the log, the timeline of its last byte, and the last entry's floor and given; 0 for none."""
        history = cut_history(self.control.history, self.flush_lsn)
        floor, given = (history[-1].floor, history[-1].given) if history else (0, 0)
        return last_term(history), last_tli(history, self.flush_lsn), floor, given

    @property
    def state(self) -> str:
        """The acceptor's state for /status: `empty`, `learner`, `idle` or `following`."""
        if self.control.membership is None:
            return "empty"
        if not self.is_voter:
            return "learner"
        return "following" if self.following is not None else "idle"

    def _greeting(self, connection: int, message: ProposerGreeting) -> Effects:
        control = self.control
        if message.protocol_version != PROTOCOL_VERSION:
            upgraded = "the proxy" if message.protocol_version < PROTOCOL_VERSION else "this safekeeper"
            reason = (
                f"the proxy has protocol version {message.protocol_version}, this safekeeper has {PROTOCOL_VERSION}: "
                f"upgrade {upgraded} to the release of its peer"
            )
            yield from self._refuse(connection, RefusalCode.VERSION, reason, close=True)
            return
        if message.safekeeper_id != control.safekeeper_id:
            reason = (
                f"this is safekeeper {control.safekeeper_id}, not {message.safekeeper_id}: "
                "correct the list of safekeepers"
            )
            yield from self._refuse(connection, RefusalCode.WRONG_ID, reason, close=True)
            return
        for name, theirs, ours in (
            ("system identifier", message.system_id, control.system_id),
            ("segment size", message.segment_size, control.segment_size),
        ):
            if theirs is not None and ours and theirs != ours:
                reason = f"the WAL here has {name} {ours}, the primary has {theirs}: it is another PostgreSQL server"
                yield from self._refuse(connection, RefusalCode.OTHER_SYSTEM, reason, close=True)
                return
        self._greeted.add(connection)
        yield from self._send_folders(connection)
        term, log_tli, floor, given = self.log_end
        yield Send(
            connection,
            AcceptorGreeting(
                protocol_version=PROTOCOL_VERSION,
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
                replaced=_replaced_in(control.replaced),
                log_tli=log_tli,
                floor=floor,
                given=given,
            ),
        )

    def _bootstrap(self, connection: int, message: Bootstrap, now: float) -> Effects:
        control = self.control
        if not message.undo and not message.membership.is_voter(control.safekeeper_id, control.incarnation):
            reason = f"the bootstrap does not name incarnation {control.incarnation[:8]} of this data folder"
            yield from self._refuse(connection, RefusalCode.NOT_A_MEMBER, reason)
            return
        same = control.cluster_id == message.cluster_id and message.membership.is_same(control.membership)
        if (message.replace or message.undo) and not same:
            yield from self._replace_cluster(connection, message)
        elif same:
            # A bootstrap that was interrupted by a crash is completed by repeating it.
            yield Send(connection, Bootstrapped(message.cluster_id, message.membership.generation))
        elif control.cluster_id or control.promised.term or control.history:
            reason = (
                f"this safekeeper already belongs to cluster {control.cluster_id[:8] or '(none)'}: "
                "a bootstrap requires empty safekeepers (see walproxy rebootstrap)"
            )
            yield from self._refuse(connection, RefusalCode.NOT_EMPTY, reason)
        else:
            yield from self._persist(**cluster_fields(message))
            yield Send(connection, Bootstrapped(message.cluster_id, message.membership.generation))

    def _replace_cluster(self, connection: int, message: Bootstrap) -> Effects:
        """Execute a rebootstrap, or the undo of one."""
        control = self.control
        if control.membership is not None and message.membership.generation <= control.membership.generation:
            reason = (
                f"generation {message.membership.generation} is not above {control.membership.generation}, "
                "the present one: run the command again"
            )
            yield from self._refuse(connection, RefusalCode.GENERATION, reason)
            return
        known = self._membership_in(message.cluster_id)
        if known is not None and message.membership.key <= known.key:
            # A leader has taken the members over, or changed them, since the command has asked for them (S8a).
            reason = f"{message.membership.label} is not above {known.label} of this cluster: run the command again"
            yield from self._refuse(connection, RefusalCode.GENERATION, reason)
            return
        yield from self._finish_adoption()
        # A safekeeper that the rebootstrap did not reach has nothing to restore.
        brings_back = message.undo and message.cluster_id != control.cluster_id
        refusal = (yield from self._refusal_of_undo(message)) if brings_back else None
        if refusal is not None:
            yield from self._refuse(connection, *refusal)
            return
        self.following = None
        # The verified position in the archive belongs to another log.
        self._archive_progress = (0, self._archive_progress[1])
        if brings_back:
            yield from self._bring_back(message)
        elif message.undo:
            yield from self._persist(membership=message.membership)
        else:
            yield from self._set_aside(message)
        yield Send(connection, Bootstrapped(message.cluster_id, message.membership.generation))

    def _membership_in(self, cluster_id: str) -> Membership | None:
        """Return the membership of a cluster that this safekeeper belongs to, or that it keeps; None without one."""
        control, replaced = self.control, self.control.replaced
        if control.cluster_id == cluster_id:
            return control.membership
        return replaced.membership if replaced is not None and replaced.cluster_id == cluster_id else None

    def _pre_vote(self, connection: int, message: PreVoteRequest, now: float) -> Effects:
        live_proposer_id = self._live_proposer_id(now, needs_health=True)
        granted = message.takeover or live_proposer_id in ("", message.proposer_id)
        yield Send(connection, PreVoteResponse(granted, live_proposer_id))

    def _tail_pre_vote(self, connection: int, message: TailPreVoteRequest, now: float) -> Effects:
        """Let a proposer without a primary be elected only if no other one was heard, healthy or not (step 12).

        Else each restart of a primary would cost a term.
        """
        live_proposer_id = self._live_proposer_id(now, needs_health=False)
        yield Send(connection, PreVoteResponse(live_proposer_id in ("", message.proposer_id), live_proposer_id))

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        control = self.control
        own, asked = control.membership, message.membership
        if own is None or not asked.is_voter(control.safekeeper_id, control.incarnation):
            reason = f"incarnation {control.incarnation[:8]} is not a member of this cluster: it does not vote"
            yield from self._refuse(connection, RefusalCode.NOT_A_MEMBER, reason)
            return
        # A higher one is not stored: it decides this vote only (S8).
        if message.cluster_id != control.cluster_id or asked.key < own.key:
            yield from self._refuse_generation(connection, message.generation)
            return
        promised = self.control.promised
        if message.leader_id != promised:
            if message.leader_id.term <= promised.term:
                yield Send(connection, VoteResponse(message.leader_id, granted=False, promised=promised))
                return
            # From now on the deposed leader's appends are refused, also while the flush below runs.
            self.following = None
        yield from self._flush_all()
        if message.leader_id != promised:
            yield from self._persist(promised=message.leader_id)
        # A delayed request may be that of the leader that this acceptor follows.
        self.awaits_election = self.following is None
        yield from self._send_folders(connection)
        yield Send(
            connection,
            VoteResponse(
                leader_id=message.leader_id,
                granted=True,
                promised=self.control.promised,
                history=cut_history(self.control.history, self.flush_lsn),
                tli_histories=self.control.tli_histories,
                wal_begin_lsn=self.control.wal_begin_lsn,
                flush_lsn=self.flush_lsn,
                commit_lsn=self.commit_lsn,
                truncate_lsn=self.truncate_lsn,
                forgotten_term=self.control.forgotten_term,
            ),
        )

    def _elected(self, connection: int, message: Elected, now: float) -> Effects:
        control = self.control
        check_history(message.history)
        if last_term(message.history) != message.leader_id.term:
            raise RemoteProtocolError(f"Elected of {message.leader_id} with a history that ends in another term")
        # A bootstrap that was not completed has no effect: without a promise and a history this folder is still empty.
        is_empty = not control.promised.term and not control.history
        if control.cluster_id not in ("", message.cluster_id) and not is_empty:
            reason = (
                f"this safekeeper has WAL of cluster {control.cluster_id[:8]}, not of "
                f"{message.cluster_id[:8]}: wipe its data folder to let it join"
            )
            yield from self._refuse(connection, RefusalCode.OTHER_CLUSTER, reason, close=True)
            return
        sent, kept = (message.system_id, message.segment_size), (control.system_id, control.segment_size)
        if control.system_id and sent != kept:
            reason = f"the WAL here has system identifier and segment size {kept}, the proposer's log has {sent}"
            yield from self._refuse(connection, RefusalCode.OTHER_SYSTEM, reason, close=True)
            return
        # A majority voted for it, so at an equal term no other candidate can have won: the promise follows (step 5).
        if message.leader_id.term < control.promised.term:
            yield from self._refuse_stale(connection, message.leader_id)
            return
        theirs, own = message.membership, control.membership
        # The author's term says nothing about another cluster's membership.
        is_same_cluster = message.cluster_id == control.cluster_id
        if own is not None and (theirs.key < own.key if is_same_cluster else theirs.generation < own.generation):
            yield from self._refuse_generation(connection, theirs.generation)
            return
        self.awaits_election = False
        if message.leader_id != self.leader:
            self.following = None
        yield from self._flush_all()
        yield from self._finish_adoption()
        # Also true if no member retains the WAL that follows this log.
        is_behind = self.flush_lsn < message.base_lsn
        if message.history != self.control.history or not self.control.wal_begin_lsn or is_behind:
            try:
                refusal = yield from self._adopt(message)
            except StorageFull:
                # Nothing is written, also not in the name of the leader that was followed, before this is repeated.
                self.following = None
                raise
            if refusal is not None:
                yield from self._refuse(connection, *refusal)
                return
            # A position that was verified for a log before its cut does not hold for the new log above the cut.
            archived_lsn, problem = self._archive_progress
            self._archive_progress = (min(archived_lsn, self.commit_lsn), problem)
        elif (message.leader_id, message.membership) != (self.control.promised, self.control.membership):
            yield from self._persist(promised=message.leader_id, membership=message.membership)
        self._is_to_cut = False
        if any(entry.start_lsn == self.write_lsn for entry in self.control.history):
            # A connection may have broken exactly where the timeline changes: the next segment needs the new name.
            yield TruncateWal(self.write_lsn, tli_at(self.control.history, self.write_lsn))
        if self.leader_connection not in (None, connection):
            # A proposer's newest connection counts; what is still received on the older one is void.
            yield Close(self.leader_connection, "the same proposer has reconnected")
        self.following = Following(message.leader_id, connection, message.commit_lsn, seen_at=now)
        # A switch exactly at the write position is done: the adoption, or the start, has named the segment.
        self._next_tli_switch_lsn = next_tli_switch(self.control.history, self.write_lsn)
        self._advance_commit()
        yield from self._send_answer()
        if self.has_readers:
            yield from self._send_standbys()
        yield from self._report_archive()
        yield from self._settle_forks()

    def _append(self, connection: int, message: AppendRequest, now: float) -> Effects:
        following = yield from self._followed(connection, message.leader_id)
        if following is None:
            return
        membership = self.control.membership
        if membership is None or message.generation != membership.generation:
            yield from self._refuse_generation(connection, message.generation)
            return
        if not message.payload and following.pulled_from_lsn <= message.begin_lsn < self.write_lsn:
            # A heartbeat: the leader does not know yet how far the pull is.
            message = msgspec.structs.replace(message, begin_lsn=self.write_lsn)
        if message.begin_lsn != self.write_lsn:
            reason = (
                f"an append at {format_lsn(message.begin_lsn)} does not start at the write position "
                f"{format_lsn(self.write_lsn)}"
            )
            yield Send(
                connection,
                Refusal(RefusalCode.POSITION, reason, self.control.promised, wanted_lsn=self.write_lsn),
            )
            yield Close(connection, reason)
            return
        if message.truncate_lsn > message.commit_lsn:
            raise RemoteProtocolError(
                f"truncate_lsn {format_lsn(message.truncate_lsn)} of an append is above its commit_lsn "
                f"{format_lsn(message.commit_lsn)}"
            )
        if message.payload:
            yield from self._write(message.begin_lsn, message.payload)
        answer = self.wrote(message, now)
        if self._open_fork_lsn < self.commit_lsn:
            yield from self._settle_forks()
        if answer is not None:
            yield Send(connection, answer)

    def _reconfigure(self, connection: int, message: Reconfigure, now: float) -> Effects:
        """Persist the next membership of the term that is followed (S8)."""
        if (yield from self._followed(connection, message.leader_id)) is None:
            return
        theirs, own = message.membership, self.control.membership
        if theirs.author != message.leader_id.term:
            raise RemoteProtocolError(f"{message.leader_id} sends a membership that is not its own: {theirs.label}")
        if own is not None and theirs.key < own.key:
            yield from self._refuse_generation(connection, theirs.generation)
            return
        if theirs != own:
            yield from self._persist(membership=theirs)
        yield Send(connection, Reconfigured(message.leader_id, theirs.generation))

    def _relay_change(self, connection: int, message: ChangeMembers, now: float) -> Effects:
        """Relay a command's change of the members to the leader: the acceptor decides nothing about it."""
        leader_connection = self.leader_connection
        if leader_connection is None:
            reason = f"safekeeper {self.control.safekeeper_id} follows no proxy: start walproxy run"
            yield from self._refuse(connection, RefusalCode.NO_LEADER, reason)
        else:
            yield Send(leader_connection, msgspec.structs.replace(message, request_id=connection))

    def _relay_answer(self, connection: int, message: MembersAnswer, now: float) -> Effects:
        """Relay the leader's answer to the command that is still connected."""
        if connection == self.leader_connection and message.request_id in self._greeted:
            yield Send(message.request_id, msgspec.structs.replace(message, request_id=0))

    def _send_folders(self, connection: int) -> Effects:
        """Tell a proposer what is known of the members' data folders, before the answer that it decides by."""
        if self.control.membership is not None:
            yield Send(connection, FolderStates(self.control.cluster_id, (self.folder_state, *self._folders())))

    def _learn_folders(self, connection: int, message: FolderStates, now: float) -> Effects:
        """Remember what the leader knows of the other members' data folders; it is written to disk lazily."""
        control = self.control
        membership = control.membership
        if connection == self.leader_connection and message.cluster_id == control.cluster_id and membership is not None:
            others = membership.identities() - {(control.safekeeper_id, control.incarnation)}
            learned = learn(self.folders, message.folders)
            self.folders = {identity: learned[identity] for identity in sorted(others & learned.keys())}
        yield from ()

    def _leave_identity(self, connection: int, message: FolderIsOlder, now: float) -> Effects:
        """Give this data folder another incarnation: it was replaced by an older copy, and no longer counts.

        Its WAL stays: as a learner it continues from there. Once that is on disk, a repeated message is ignored.
        """
        control, known = self.control, message.known
        if message.leader_id.term < control.promised.term:
            yield from self._refuse_stale(connection, message.leader_id)
            return
        if known.identity != (control.safekeeper_id, control.incarnation):
            return  # It was told before.
        self.following = None
        yield from self._persist(incarnation=successor_of(control.incarnation, *message.leader_id))
        reason = (
            f"this data folder was replaced by an older copy of itself: it had {known}, and has {self.folder_state}; "
            "it no longer counts as a member until walproxy members replace makes it one"
        )
        yield Close(connection, reason)

    def _followed(self, connection: int, leader_id: LeaderId) -> EffectsThen[Following | None]:
        """Return what is followed if it is this leader on this connection; if not, None: the refusal was sent."""
        if self.following is not None and self.following.is_of(leader_id, connection):
            return self.following
        if leader_id.term < self.control.promised.term:
            yield from self._refuse_stale(connection, leader_id)
        else:
            reason = f"the history of {leader_id} was not adopted on this connection"
            yield from self._refuse(connection, RefusalCode.NOT_ADOPTED, reason, close=True)
        return None

    def accepts(self, connection: int, message: AppendRequest) -> bool:
        """Return whether the WAL of an append can be written at once: then write it, and call `wrote`, or `no_room`.

        So it is with nearly all appends of a term. The others are for `receive`, which would do the same for these.
        """
        following, membership, begin_lsn = self.following, self.control.membership, message.begin_lsn
        return (
            following is not None
            and following.is_of(message.leader_id, connection)
            and begin_lsn == self.write_lsn
            and begin_lsn + len(message.payload) <= self._next_tli_switch_lsn
            and membership is not None
            and message.generation == membership.generation
            and message.truncate_lsn <= message.commit_lsn
            and self._open_fork_lsn == LSN_MAX
        )

    def wrote(self, message: AppendRequest, now: float) -> AppendResponse | None:
        """Record that the WAL of an append that it `accepts` is written to the operating system.

        Returns:
            The answer to send on `leader_connection`, None if the answer is that of `flushed`.

        Raises:
            InvariantViolation: stop the process.
        """
        following = self.following
        assert following is not None  # It accepts appends of the leader that it follows only.
        following.on_append(message, now)
        if message.healthy:
            self.healthy_seen_at = now
        self.write_lsn = message.begin_lsn + len(message.payload)
        self._advance_commit()
        if message.truncate_lsn > self.truncate_lsn:
            self.truncate_lsn = min(message.truncate_lsn, self.flush_lsn)
        if message.payload or message.sequence == following.answered_sequence:
            # An empty message that only carries a commit for readers was acknowledged before.
            return None
        return self.flushed(self.flush_lsn)

    def _send_answer(self) -> Effects:
        answer = self.flushed(self.flush_lsn)
        if answer is not None and self.leader_connection is not None:
            yield Send(self.leader_connection, answer)

    def _send_standbys(self) -> Effects:
        if self.leader_connection is not None:
            yield Send(self.leader_connection, StandbyFeedback(self.standbys))

    def _archive_assignment(self, connection: int, message: ArchiveAssignment, now: float) -> Effects:
        """Record the archiver. An assignment on an older connection, or of a deposed leader, is ignored."""
        if self.following is not None and self.following.is_of(message.leader_id, connection):
            was_archiver = self.is_archiver
            self.archiver = message.archiver
            if message.archived_lsn:
                self.archived_lsn, self.archive_id = message.archived_lsn, message.archive_id
            if was_archiver != self.is_archiver:
                yield from self._report_archive()

    def _report_archive(self) -> Effects:
        if self.leader_connection is not None:
            archived_lsn, problem = self._archive_progress
            report = ArchiveReport(
                self.control.wal_begin_lsn,
                self._has_archive,
                self.is_archiver,
                archived_lsn,
                problem,
                self.own_archive_id,
            )
            yield Send(self.leader_connection, report)

    def _pull_wal(self, connection: int, message: PullWal, now: float) -> Effects:
        """Begin to pull WAL, or continue under the new request; end it if no source is named (6.6)."""
        following = yield from self._followed(connection, message.leader_id)
        if following is None:
            return
        following.begin_pull(message, self.write_lsn)
        if not message.sources or self.write_lsn >= message.end_lsn:
            yield from self._end_pull("")

    def pulled(self, leader_id: LeaderId, begin_lsn: Lsn, payload: bytes | memoryview) -> Effects:
        """Write WAL that was read from another member in the name of `leader_id`; ignore what is late (6.8)."""
        pull = self.pull
        if pull is None or not self._continues(pull, leader_id, begin_lsn):
            return
        try:
            yield from self._write(begin_lsn, payload[: pull.end_lsn - begin_lsn])
        except StorageFull as full:
            yield from self._end_pull(str(full))
            raise
        if self._open_fork_lsn < self.commit_lsn:
            yield from self._settle_forks()
        if self.write_lsn >= pull.end_lsn:
            yield from self._end_pull("")

    def _continues(self, pull: PullWal, leader_id: LeaderId, begin_lsn: Lsn) -> bool:
        """Return whether WAL that was pulled is the next of the log that is followed, as an append would be (S5, S6).

        Between the request and its answer another term may have been promised, or its history adopted.
        """
        is_led = pull.leader_id == leader_id == self.leader == self.control.promised
        return is_led and begin_lsn == self.write_lsn < pull.end_lsn

    def pull_failed(self, pull: PullWal, problem: str) -> Effects:
        """Tell the leader that no source of this pull can be read; a pull that is no longer under way is ignored."""
        if pull is self.pull:
            yield from self._end_pull(problem)

    def _end_pull(self, problem: str) -> Effects:
        following = self.following
        pull = following.end_pull() if following is not None else None
        if following is not None and pull is not None:
            yield Send(following.connection, PullEnded(pull.leader_id, pull.request_id, self.write_lsn, problem))

    def _peer_read(self, connection: int, message: PeerRead, now: float) -> Effects:
        """Let a member read WAL of the term that both have adopted (6.7)."""
        if message.leader_id != self.control.promised:
            yield from self._refuse_stale(connection, message.leader_id)
        elif not self._has_adopted(message.leader_id):
            reason = f"this safekeeper has not adopted the history of {message.leader_id}"
            yield from self._refuse(connection, RefusalCode.NOT_ADOPTED, reason, close=True)
        elif (yield from self._may_read(connection, message.leader_id, message.begin_lsn, message.end_lsn)):
            yield ServeRead(connection, message)

    def serves(self, request: PeerRead) -> bool:
        """Return whether this log has the range of a member's request, as one that `_peer_read` has accepted."""
        is_retained = self.control.wal_begin_lsn <= request.begin_lsn and request.end_lsn <= self.flush_lsn
        return is_retained and self._has_adopted(request.leader_id)

    def _has_adopted(self, leader_id: LeaderId) -> bool:
        """Return whether this log, as it is on disk, is the beginning of that of the term of `leader_id`.

        The promise alone does not show that: the log may diverge from the term's until `Elected` is received.
        """
        control = self.control
        is_whole = control.truncate_to is None and not control.is_log_pending
        return control.promised == leader_id and last_term(control.history) == leader_id.term and is_whole

    def _agent_exchange(self, connection: int, message: AgentExchange, now: float) -> Effects:
        """Let an agent of this cluster exchange with the others (step 14)."""
        cluster_id = self.control.cluster_id
        if not cluster_id:
            reason = (
                f"safekeeper {self.control.safekeeper_id} does not belong to a cluster yet: start walproxy run first"
            )
            yield from self._refuse(connection, RefusalCode.NOT_A_MEMBER, reason)
        elif message.cluster_id != cluster_id:
            reason = (
                f"safekeeper {self.control.safekeeper_id} belongs to cluster {cluster_id[:8]}, not to "
                f"{message.cluster_id[:8]}: correct the list of safekeepers"
            )
            yield from self._refuse(connection, RefusalCode.OTHER_CLUSTER, reason)
        else:
            yield ServeAgent(connection, message)

    def _event_exchange(self, connection: int, message: EventExchange, now: float) -> Effects:
        """Let a proxy or a command of this cluster exchange events (step 15)."""
        if message.cluster_id == self.control.cluster_id:
            yield ServeEvents(connection, message)
        else:
            reason = (
                f"safekeeper {self.control.safekeeper_id} belongs to another cluster: correct the list of safekeepers"
            )
            yield from self._refuse(connection, RefusalCode.OTHER_CLUSTER, reason)

    def _read(self, connection: int, message: ReadRequest, now: float) -> Effects:
        if not (yield from self._may_read(connection, message.leader_id, message.begin_lsn, message.end_lsn)):
            return
        end_lsn = min(message.end_lsn, message.begin_lsn + READ_BYTES_MAX)
        payload = yield ReadWal(message.begin_lsn, end_lsn)
        yield Send(connection, ReadResponse(message.request_id, message.begin_lsn, payload))

    def _digest(self, connection: int, message: DigestRequest, now: float) -> Effects:
        if not (yield from self._may_read(connection, message.leader_id, message.begin_lsn, message.end_lsn)):
            return
        begin_lsn = message.begin_lsn
        timed_lsn: Lsn = 0
        if message.back_to_timed:
            log_begin_lsn = self.control.wal_begin_lsn
            timed_lsn = yield FindTimedRecord(log_begin_lsn, message.end_lsn)
            begin_lsn = min(begin_lsn, segment_start(timed_lsn or log_begin_lsn, self.control.segment_size))
        end_lsn = min(message.end_lsn, begin_lsn + DIGEST_RANGE_BYTES_MAX)
        page_crcs = yield DigestWal(begin_lsn, end_lsn)
        yield Send(connection, DigestResponse(message.request_id, begin_lsn, end_lsn, tuple(page_crcs), timed_lsn))

    def _tail(self, connection: int, message: TailRequest, now: float) -> Effects:
        if not (yield from self._may_read(connection, message.leader_id, message.lsn, self.flush_lsn)):
            return
        record_end_lsn, last_record_lsn, log_tail = yield FindRecords(message.lsn)
        answer = TailResponse(message.request_id, message.lsn, record_end_lsn, last_record_lsn, log_tail)
        yield Send(connection, answer)

    def _may_read(self, connection: int, leader_id: LeaderId, begin_lsn: Lsn, end_lsn: Lsn) -> EffectsThen[bool]:
        """Return whether `leader_id` may read the range (S7); if not, the refusal was sent."""
        if leader_id != self.control.promised:
            yield from self._refuse_stale(connection, leader_id)
            return False
        if not self.control.wal_begin_lsn <= begin_lsn <= end_lsn <= self.flush_lsn:
            reason = (
                f"WAL [{format_lsn(begin_lsn)}, {format_lsn(end_lsn)}) is not retained, only "
                f"[{format_lsn(self.control.wal_begin_lsn)}, {format_lsn(self.flush_lsn)})"
            )
            yield from self._refuse(connection, RefusalCode.RANGE, reason)
            return False
        return True

    def _live_proposer_id(self, now: float, *, needs_health: bool) -> str:
        """Return the id of the proposer that is alive and, if `needs_health`, can lead; empty if none (2.2, 12.2)."""
        following = self.following
        if following is None or not following.is_alive(now) or (needs_health and not following.is_healthy):
            return ""
        return following.leader_id.proposer_id

    def _refuse(self, connection: int, code: RefusalCode, reason: str, close: bool = False) -> Effects:
        yield Send(connection, Refusal(code, reason, self.control.promised))
        if close:
            yield Close(connection, reason)

    def _refuse_stale(self, connection: int, leader_id: LeaderId) -> Effects:
        reason = f"{leader_id} is deposed: this safekeeper has promised {self.control.promised}"
        yield from self._refuse(connection, RefusalCode.STALE_TERM, reason, close=True)

    def _refuse_generation(self, connection: int, generation: int) -> Effects:
        membership = self.control.membership
        here = membership.generation if membership is not None else 0
        reason = f"membership generation {generation} is not this safekeeper's, {here}"
        yield from self._refuse(connection, RefusalCode.GENERATION, reason, close=True)


def _replaced_in(replaced: ControlState | None) -> Replaced | None:
    """Return the part of a greeting about the cluster that a rebootstrap has replaced."""
    if replaced is None or replaced.membership is None:
        return None
    return Replaced(
        replaced.cluster_id,
        replaced.system_id,
        replaced.segment_size,
        replaced.server_version,
        replaced.membership,
        replaced.wal_begin_lsn,
        replaced.commit_lsn,
    )
