"""Greetings, bootstraps, votes and adoptions: steps 0 to 3, 5 and 12 of docs/design/protocol.md.

Part of the reference of the acceptor (acceptor.py).
"""

from safekeeper.acceptor.effects import Close, Send, TruncateWal
from safekeeper.base.errors import StorageFull
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    Bootstrap,
    Bootstrapped,
    Elected,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    RefusalCode,
    Replaced,
    StandbyFeedback,
    TailPreVoteRequest,
    VoteRequest,
    VoteResponse,
)
from tests.simulation.references.acceptor.histories import (
    NO_END,
    ProtocolBroken,
    entries_of_log,
    folders_of,
    is_same,
    key,
    last_term,
    require_history,
    tli_of_byte,
)
from tests.simulation.references.acceptor.log import Effects
from tests.simulation.references.acceptor.state import VERSION, AcceptorState

# Waits: a proposer counts as live after its last message.
LIVE_S = 1.0


class Elections(AcceptorState):
    """How an acceptor gets a cluster, and a leader."""

    def _greeting(self, connection: int, message: ProposerGreeting) -> Effects:
        control = self.control
        facts = ((message.system_id, control.system_id), (message.segment_size, control.segment_size))
        if message.protocol_version != VERSION:
            yield from self._refuse(connection, RefusalCode.VERSION, close=True)
        elif message.safekeeper_id != control.safekeeper_id:
            yield from self._refuse(connection, RefusalCode.WRONG_ID, close=True)
        elif any(theirs is not None and own != 0 and theirs != own for theirs, own in facts):
            yield from self._refuse(connection, RefusalCode.OTHER_SYSTEM, close=True)
        else:
            self.greeted.add(connection)
            yield from self._send_folders(connection)
            term, tli, floor, given = self.log_end
            yield Send(
                connection,
                AcceptorGreeting(
                    protocol_version=VERSION,
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
                    log_tli=tli,
                    floor=floor,
                    given=given,
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
        self._follow_none()
        self.archive_progress = 0, self.archive_progress[1]
        if not message.undo:
            yield from self.begin_cluster(message)
        elif was_replaced:
            yield from self.restore_cluster(message)
        else:
            yield from self.persist(membership=theirs)
        yield Send(connection, Bootstrapped(message.cluster_id, theirs.generation))

    def _pre_vote(self, connection: int, message: PreVoteRequest, now: float) -> Effects:
        """2.2, 2.4."""
        leader = self.leader
        is_live = leader is not None and now - self.leader_message[0] < LIVE_S and self.leader_message[1]
        live = leader.proposer_id if leader is not None and is_live else ""
        yield Send(connection, PreVoteResponse(message.takeover or live in ("", message.proposer_id), live))

    def _tail_pre_vote(self, connection: int, message: TailPreVoteRequest, now: float) -> Effects:
        """12.2."""
        leader = self.leader
        live = leader.proposer_id if leader is not None and now - self.leader_message[0] < LIVE_S else ""
        yield Send(connection, PreVoteResponse(live in ("", message.proposer_id), live))

    def _vote(self, connection: int, message: VoteRequest, now: float) -> Effects:
        """3.2 to 3.5."""
        control, own, theirs = self.control, self.control.membership, message.membership
        folder = control.safekeeper_id, control.incarnation
        if own is None or folder not in folders_of(theirs):
            yield from self._refuse(connection, RefusalCode.NOT_A_MEMBER)
            return
        if message.cluster_id != control.cluster_id or key(theirs) < key(own):
            yield from self._refuse(connection, RefusalCode.GENERATION, close=True)
            return
        is_promised = message.leader_id == control.promised
        if not is_promised and message.leader_id.term <= control.promised.term:
            yield Send(connection, VoteResponse(message.leader_id, granted=False, promised=control.promised))
            return
        if not is_promised:
            self._follow_none()
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
            self._follow_none()
        yield from self.flush_all()
        yield from self.finish()
        control = self.control
        is_another_log = message.history != control.history or control.wal_begin_lsn == 0
        if is_another_log or self.flush_lsn < message.base_lsn:
            try:
                refusal = yield from self.adopt(message)
            except StorageFull:
                self._follow_none()  # 5.5
                raise
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
        self.leader_message = now, True
        self.advance_commit()
        yield from self._answer()
        if self.has_readers:
            yield from self._send_leader(StandbyFeedback(self.standbys))
        yield from self._report_archive()
        self.look_for_forks()


def _replaced(state: ControlState | None) -> Replaced | None:
    """0.13: the greeting has the state that a rebootstrap has replaced."""
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
