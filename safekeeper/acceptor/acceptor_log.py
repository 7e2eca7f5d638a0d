"""The log of a safekeeper, and how it may change: the acceptor without its connections.

Theory of operation. A log is bytes and a control state: the cluster it belongs to, the terms that wrote it, and the end
of what is known to be committed. Bytes are appended only at the end (S6). WAL after a divergence is cut only by an
adoption, which is one atomic write of the control state; the cut is executed afterwards, and finished by `start` if a
crash interrupted it (S5). Readers receive WAL that is committed and can no longer be replaced (S7).

Generators of effects, as the acceptor's handlers are (safekeeper/acceptor/effects.py).
"""

from typing import Any

import msgspec

from safekeeper.acceptor.effects import (
    Effects,
    EffectsThen,
    FindRecordEnd,
    FindRecords,
    FindTimedRecord,
    FlushWal,
    InspectSetAside,
    Persist,
    ResetWal,
    RestoreWal,
    SetWalAside,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.acceptor.following import Following
from safekeeper.acceptor.trimming import Kept, TrimRequest, trim_to
from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn, segment_start
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.messages import Bootstrap, Elected, RefusalCode
from safekeeper.consensus.term_history import (
    Divergence,
    bound_history,
    divergence,
    last_term,
    next_tli_switch,
    tli_at,
)

Reason = tuple[RefusalCode, str]


class AcceptorLog:
    """The durable state of one safekeeper, and the positions of its WAL.

    Attributes:
        control: the durable state as it is on disk.
        write_lsn: end of the WAL that was passed to the operating system.
        flush_lsn: end of the WAL that is on disk; never above `write_lsn`.
        commit_lsn, truncate_lsn, archived_lsn, archive_id: the present values; `control` may have older ones.
        logs_adopted: how often another log has replaced this one since the start: its positions may be lower.
        own_archive_id: the id of the archive that is configured here, empty until it is known.
        folders: what is known of the other members' data folders; `control` may have older states (S8e).
        counts_starts: whether this start is to be counted on disk.
        following: the leader that is followed, None without one.
    """

    def __init__(self, control: ControlState, flush_lsn: Lsn) -> None:
        """Begin from the state on disk. Run `start` before anything else.

        Args:
            control: the control file's content.
            flush_lsn: the end of the WAL according to recovery (S13), 0 if there is none.
        """
        self.control = control
        # WAL that is being removed no longer counts.
        if control.is_log_pending:
            flush_lsn = 0
        elif control.truncate_to is not None:
            flush_lsn = min(flush_lsn, control.truncate_to)
        self.write_lsn = self.flush_lsn = flush_lsn
        self.commit_lsn = control.commit_lsn
        self.truncate_lsn = control.truncate_lsn
        self.archived_lsn = control.archived_lsn
        self.archive_id = control.archive_id
        self.folders = {state.identity: state for state in control.folders}
        self.counts_starts = True
        self.logs_adopted = 0
        # The id of the archive that is configured here, once it was read.
        self.own_archive_id = ""
        # The last timed record of the newest segment that has one, among those below the other: see `_trim`.
        self._timed_lsn = self._timed_below_lsn = 0
        self.following: Following | None = None
        self._next_tli_switch_lsn: Lsn = LSN_MAX
        # The first change of timeline that another fork might still replace: readers stop there. The log's beginning
        # counts as one, because the very first timeline can be replaced at its first byte.
        self._open_fork_lsn = control.wal_begin_lsn if control.base_lsn is None else control.base_lsn

    def start(self) -> Effects:
        """Finish what a crash interrupted: a cut, a reset, setting WAL aside, or the undo of that.

        May raise `StorageFull`: then unfinished parts are not claimed, and are finished before the next adoption.
        """
        yield from self._finish_adoption()
        control = self.control
        history, forgotten_term = bound_history(control.history, control.forgotten_term, control.commit_lsn)
        if history != control.history:
            # More is committed than when it was adopted.
            yield from self._persist(history=history, forgotten_term=forgotten_term)
        if self.flush_lsn:
            # The next byte may belong to another timeline than the last one: its segment must have that name.
            yield TruncateWal(self.flush_lsn, tli_at(self.control.history, self.flush_lsn))
            yield from self._settle_forks()
            yield TrimWal(self.control.wal_begin_lsn)
        if self.counts_starts:
            yield from self._persist(starts=self.control.starts + 1)
            self.counts_starts = False

    def checkpoint(self) -> Effects:
        """Write the lazily written positions, if they have moved. May raise `StorageFull`: nothing is lost."""
        control = self.control
        lazy = (self.commit_lsn, self.truncate_lsn, self.archived_lsn, self.archive_id, self._folders())
        on_disk = (
            control.commit_lsn, control.truncate_lsn, control.archived_lsn, control.archive_id, control.folders
        )  # fmt: skip
        if lazy != on_disk:
            yield from self._persist()

    def _trim(self, request: TrimRequest) -> EffectsThen[bool]:
        """Remove old WAL that need not be retained; return whether there was any. May raise `StorageFull`: none was.

        The new beginning is on disk before WAL is removed, so that WAL missing above it is known to be lost (S8).
        """
        control = self.control
        is_whole = control.truncate_to is None and not control.is_log_pending
        if not self.flush_lsn or not is_whole:
            return False
        begin_lsn = control.wal_begin_lsn
        kept = Kept(
            begin_lsn,
            self.flush_lsn,
            # WAL that a fork may still replace stays (S9): readers get none of it before its first record is complete.
            self.readable_lsn,
            self.truncate_lsn,
            # The position of another archive does not hold for the one that is configured here.
            self.archived_lsn if self.archive_id == self.own_archive_id else 0,
            control.segment_size,
        )
        lsn = trim_to(kept, request)
        if lsn <= begin_lsn:
            return False
        # Without a timed record nothing is removed.
        lsn = min(lsn, segment_start((yield from self._find_timed_record()), control.segment_size))
        lsn = yield from self._before_open_record(lsn)
        if lsn <= begin_lsn:
            return False
        yield from self._persist(wal_begin_lsn=lsn)
        yield TrimWal(lsn)
        return True

    def _find_timed_record(self) -> EffectsThen[Lsn]:
        """Return the start of a timed record that no fork can cut, in the newest segment that has one; 0 without one.

        It stays, because a primary is compared back to it (S10). Segments are searched only once.
        """
        begin_lsn = max(segment_start(self._timed_below_lsn, self.control.segment_size), self.control.wal_begin_lsn)
        found_lsn: Lsn = yield FindTimedRecord(begin_lsn, self.readable_lsn)
        self._timed_lsn, self._timed_below_lsn = found_lsn or self._timed_lsn, self.readable_lsn
        return self._timed_lsn

    def _before_open_record(self, lsn: Lsn) -> EffectsThen[Lsn]:
        """Return the highest segment start, not above `lsn`, after which the next record is complete and readable.

        A record over several segments for which this is unknown may be replaced from its beginning on (S9).
        """
        while lsn > self.control.wal_begin_lsn:
            record_end_lsn = yield FindRecordEnd(lsn)
            if 0 < record_end_lsn <= self.readable_lsn:
                break
            lsn -= self.control.segment_size
        return lsn

    @property
    def readable_lsn(self) -> Lsn:
        """End of the WAL that readers may receive: what is below is committed, and on disk here (S7).

        A timeline's first bytes become readable only with the end of its first complete record. Before that another
        timeline may still fork off at the same place, even if any number of members have these bytes (S9).
        """
        return min(self.commit_lsn, self.flush_lsn, self._open_fork_lsn)

    @property
    def readable_tli(self) -> int:
        """The timeline of the last byte below `readable_lsn`, 0 while there is no WAL."""
        return tli_at(self.control.history, self.readable_lsn - 1)

    def _settle_forks(self) -> Effects:
        """Let readers pass forks after which a complete record is committed: no fork can replace those (S9)."""
        committed_lsn = min(self.commit_lsn, self.flush_lsn)
        while self._open_fork_lsn < committed_lsn:
            record_end_lsn = yield FindRecordEnd(self._open_fork_lsn)
            if not 0 < record_end_lsn <= committed_lsn:
                return
            self._open_fork_lsn = next_tli_switch(self.control.history, self._open_fork_lsn)

    def _adopt(self, message: Elected) -> EffectsThen[Reason | None]:
        """Adopt the elected proposer's history (S5), cutting what diverges; or return why not."""
        if self._shares_forgotten_terms_only(message):
            return RefusalCode.HISTORY, (
                f"the terms that its log shares with that of {message.leader_id} are forgotten: when a quorum accepts "
                "WAL without it, wipe its data folder, so that it joins as a learner"
            )
        cut = parted = self._divergence_from(message)
        if cut is not None and cut.lsn < self.control.wal_begin_lsn:
            cut = None  # This safekeeper retains nothing that the two logs share: a cut would leave nothing.
        base_lsn: Lsn | None = None
        if cut is None:
            refusal = self._refusal_of_new_beginning(parted, message)
            if refusal is not None:
                return refusal
            base_lsn = message.base_lsn
        else:
            refusal = yield from self._refusal_of_cut(cut, message)
            if refusal is not None:
                return refusal
            if self.flush_lsn < message.base_lsn:
                if message.base_lsn > max(message.commit_lsn, message.settled_lsn):
                    return RefusalCode.RANGE, (
                        f"this safekeeper's WAL ends at {format_lsn(self.flush_lsn)}, below the oldest retained WAL "
                        f"({format_lsn(message.base_lsn)}), which is not yet committed"
                    )
                base_lsn = message.base_lsn
        self._timed_lsn = self._timed_below_lsn = 0  # It may be cut, or the log may begin elsewhere.
        if base_lsn is not None and (not base_lsn or base_lsn % message.segment_size):
            raise RemoteProtocolError(f"{format_lsn(base_lsn)} is not the start of a segment: a log cannot begin there")
        if base_lsn is not None:
            commit_lsn = base_lsn if base_lsn <= max(message.commit_lsn, message.settled_lsn) else 0
            archived_lsn = min(self.archived_lsn, cut.lsn) if cut is not None else 0
            truncate_to = None
        else:
            assert cut is not None  # the two cases above
            commit_lsn = min(self.commit_lsn, cut.lsn)
            archived_lsn = min(self.archived_lsn, cut.lsn)
            same_tli = tli_at(self.control.history, cut.lsn) == tli_at(message.history, cut.lsn)
            truncate_to = None if cut.lsn == self.flush_lsn and same_tli else cut.lsn
        yield from self._persist(
            promised=message.leader_id,
            **cluster_fields(message),
            history=message.history,
            forgotten_term=message.forgotten_term,
            tli_histories=message.tli_histories,
            commit_lsn=commit_lsn,
            # Counted again in each term: a fork may have cut a member below the position that all members had (S9),
            # this one, or one that received another term than this one.
            truncate_lsn=0,
            archived_lsn=archived_lsn,
            base_lsn=base_lsn,
            truncate_to=truncate_to,
        )
        if base_lsn is not None:
            self._open_fork_lsn = base_lsn
        elif cut is not None and cut.lsn == self.control.wal_begin_lsn:
            self._open_fork_lsn = cut.lsn
        elif cut is not None and self._open_fork_lsn >= cut.lsn:
            self._open_fork_lsn = next_tli_switch(message.history, cut.lsn - 1)
        yield from self._finish_adoption()
        return None

    def _divergence_from(self, message: Elected) -> Divergence | None:
        """Return where this log and the elected proposer's diverge, None if they have nothing in common."""
        if not self.flush_lsn:
            return None
        # Including entries above our end: this log is the beginning of the one that was adopted last.
        own, forgotten_term = self.control.history, max(self.control.forgotten_term, message.forgotten_term)
        found = divergence(own, LSN_MAX, message.history, forgotten_term)
        return found._replace(lsn=min(found.lsn, self.flush_lsn)) if found is not None else None

    def _shares_forgotten_terms_only(self, message: Elected) -> bool:
        """Return whether nothing shows where the two logs diverge, because it was forgotten, here or there.

        This log may be part of the other one. Any cut may remove committed WAL: the data folder counts as lost (S8).
        """
        own, forgotten_term = self.control.history, max(self.control.forgotten_term, message.forgotten_term)
        may_share = bool(self.flush_lsn and own) and own[0].term <= forgotten_term
        return may_share and self._divergence_from(message) is None

    def _is_superseded(self, message: Elected) -> bool:
        """Return whether a quorum has the message's log, up to or beyond the divergence, in a term that this log lacks.

        Either in the message's term, or in an earlier one that was not adopted here and whose first byte is committed.
        Every later leader has that log, whatever happens to this one.
        """
        last = last_term(self.control.history)
        settled = any(entry.term > last and entry.start_lsn < message.settled_lsn for entry in message.history)
        return settled or message.commit_lsn > 0

    def _gives_up_anew(self, message: Elected) -> bool:
        """Return whether the message's log gives up WAL in an entry that this acceptor has not adopted."""
        return any(entry.gives_up and entry not in self.control.history for entry in message.history)

    def _refusal_of_new_beginning(self, parted: Divergence | None, message: Elected) -> Reason | None:
        """Return why this log must not be replaced by one that shares none of it, None if it may be.

        WAL that was given up from below this log's beginning on is not needed. But this acceptor had, and removed, the
        WAL below that, as other members may have: it counts as one that has it until a quorum of others does, in this
        term (S9).
        """
        begin_lsn = self.control.wal_begin_lsn
        if parted is not None and parted.gives_up:
            if self._is_superseded(message):
                return None
            return RefusalCode.RANGE, (
                f"WAL was abandoned from {format_lsn(parted.lsn)} on, and begins at {format_lsn(begin_lsn)} on this "
                f"safekeeper, which retains it until a quorum has the log of {message.leader_id}"
            )
        if self.commit_lsn > begin_lsn:
            return RefusalCode.HISTORY, (
                f"WAL [{format_lsn(begin_lsn)}, {format_lsn(self.commit_lsn)}) is committed on this safekeeper, "
                f"and is not part of the history of {message.leader_id}: it is another log"
            )
        return None

    def _refusal_of_cut(self, cut: Divergence, message: Elected) -> EffectsThen[Reason | None]:
        """Return why the WAL must not be cut there, None if it may be (S5; S9's second fence)."""
        lsn = cut.lsn
        # WAL that an operator gave up stays given up, also for members that were disconnected then.
        if lsn >= self.commit_lsn or cut.gives_up:
            return None
        # The history need not show a change of timeline: a timeline without WAL leaves no entry.
        record_end_lsn, _, _ = yield FindRecords(lsn)
        if not record_end_lsn or record_end_lsn > self.commit_lsn:
            # Only part of a record that was never complete below commit_lsn is cut: nothing acknowledged.
            return None
        return RefusalCode.HISTORY, (
            f"adopting the history of {message.leader_id} would cut the WAL at {format_lsn(lsn)}, "
            f"below {format_lsn(self.commit_lsn)}, which is committed"
        )

    def _set_aside(self, message: Bootstrap) -> Effects:
        """Begin another cluster's log; the existing WAL is set aside for the operator."""
        self._timed_lsn = self._timed_below_lsn = 0
        control = self.control
        replaced, replaced_wal, set_aside_as = control.replaced, control.replaced_wal, message.cluster_id
        if message.undo:
            # The undone log gets another name, so that a repeated undo does not restore it.
            set_aside_as = f"undone-{control.cluster_id}"
        elif control.cluster_id and (control.history or replaced is None):
            # A repeated rebootstrap keeps the state that the first one replaced, not the empty log that it began.
            replaced, replaced_wal = self._kept_state(), message.cluster_id
        # The promise stays: no candidate of a lower term may overtake the promised one, in no cluster.
        yield from self._persist(
            **cluster_fields(message),
            history=(),
            forgotten_term=0,
            tli_histories=(),
            truncate_to=None,
            base_lsn=None,
            wal_begin_lsn=0,
            set_aside=True,
            set_aside_as=set_aside_as,
            replaced=replaced,
            replaced_wal=replaced_wal,
            commit_lsn=0,
            truncate_lsn=0,
            archived_lsn=0,
            archive_id="",
            folders=(),
        )
        yield from self._finish_adoption()

    def _kept_state(self) -> ControlState:
        """Return the state for an undo. Positions in the archive are left out: they are verified again.

        WAL on disk may be acknowledged above the position that is known to be committed, so an undo must restore all of
        it. WAL that is not on disk yet may be lost, or partly remain: the undo cuts it.
        """
        return msgspec.structs.replace(
            self.control,
            replaced=None,
            replaced_wal="",
            truncate_to=self.flush_lsn or None,
            commit_lsn=self.commit_lsn,
            truncate_lsn=0,
            archived_lsn=0,
            archive_id="",
            folders=self._folders(),
        )

    def _refusal_of_undo(self, message: Bootstrap) -> EffectsThen[Reason | None]:
        """Return why the cluster that a rebootstrap replaced cannot be restored, None if it can.

        WAL that was written in the new cluster may be acknowledged. And a member of the old cluster whose log is
        missing here must not become a member again: it has acknowledged WAL that it would lack (S8).
        """
        control, replaced = self.control, self.control.replaced
        if control.history and not message.discard:
            return RefusalCode.NOT_EMPTY, (
                f"WAL [{format_lsn(control.wal_begin_lsn)}, {format_lsn(self.flush_lsn)}) of cluster "
                f"{control.cluster_id[:8]} was written since the rebootstrap: an undo would remove it"
            )
        if replaced is not None and replaced.cluster_id == message.cluster_id:
            lost = yield InspectSetAside(control.replaced_wal, replaced)
            return (RefusalCode.RANGE, lost) if lost else None
        if message.membership.is_voter(control.safekeeper_id, control.incarnation):
            return RefusalCode.NOT_A_MEMBER, (
                f"this safekeeper retains nothing of cluster {message.cluster_id[:8]}, and its data folder is "
                "a member of it: wipe it, to let it join as a learner"
            )
        return None

    def _bring_back(self, message: Bootstrap) -> Effects:
        """Undo a rebootstrap: restore the log of the cluster that it replaced. The promise stays."""
        control, replaced = self.control, self.control.replaced
        if replaced is None or replaced.cluster_id != message.cluster_id:
            # Not a member of that cluster: it becomes a learner, which begins without WAL.
            yield from self._set_aside(message)
            return
        restored = msgspec.structs.replace(
            replaced,
            **cluster_fields(message),
            promised=control.promised,
            starts=control.starts,
            set_aside=True,
            set_aside_as=f"undone-{control.cluster_id}",
            restore_from=control.replaced_wal,
        )
        self._timed_lsn = self._timed_below_lsn = 0
        yield from self._persist(**msgspec.structs.asdict(restored))
        self._open_fork_lsn = restored.wal_begin_lsn
        yield from self.start()

    def _finish_adoption(self) -> Effects:
        """Execute what an adoption recorded, then clear the record; all of it can be repeated after a crash."""
        control = self.control
        if control.set_aside:
            self.write_lsn = self.flush_lsn = 0
            yield SetWalAside(control.set_aside_as)
            yield from self._persist(set_aside=False, set_aside_as="")
        if control.restore_from:
            restored_lsn = yield RestoreWal(control.restore_from)
            yield from self._persist(restore_from="")
            self.write_lsn = self.flush_lsn = restored_lsn
        if control.base_lsn is not None:
            # Nothing is claimed before all of it is done: there may be no disk space for the segment or control file.
            self.write_lsn = self.flush_lsn = 0
            yield ResetWal(control.base_lsn, tli_at(control.history, control.base_lsn))
            yield from self._persist(base_lsn=None, wal_begin_lsn=control.base_lsn)
            self.write_lsn = self.flush_lsn = control.base_lsn
        elif control.truncate_to is not None:
            # The cut may fail for want of a file descriptor: WAL above it is nevertheless not part of this history.
            self.write_lsn = self.flush_lsn = control.truncate_to
            yield TruncateWal(control.truncate_to, tli_at(control.history, control.truncate_to))
            yield from self._persist(truncate_to=None)

    def _write(self, begin_lsn: Lsn, payload: bytes | memoryview) -> Effects:
        """Write at the write position; begin a segment with the new timeline's name where the timeline changes."""
        end_lsn = begin_lsn + len(payload)
        while end_lsn > self._next_tli_switch_lsn:
            switch_lsn = self._next_tli_switch_lsn
            head = switch_lsn - begin_lsn
            if head:
                yield WriteWal(begin_lsn, payload[:head])
                self.write_lsn = begin_lsn = switch_lsn
                payload = payload[head:]
            yield from self._flush_all()
            yield TruncateWal(switch_lsn, tli_at(self.control.history, switch_lsn))
            self._next_tli_switch_lsn = next_tli_switch(self.control.history, switch_lsn)
        yield WriteWal(begin_lsn, payload)
        self.write_lsn = end_lsn

    def _advance_commit(self) -> None:
        """Take over the leader's commit_lsn, as far as the WAL is on disk here."""
        if self.following is not None:
            self.commit_lsn = max(self.commit_lsn, min(self.following.commit_lsn, self.flush_lsn))

    def _flush_all(self) -> Effects:
        if self.flush_lsn < self.write_lsn:
            yield FlushWal()
            self.flush_lsn = self.write_lsn
            self._advance_commit()

    def _persist(self, **changes: Any) -> Effects:
        """Write the control file with `changes` and the newest lazy positions, then make it the state in memory."""
        if "commit_lsn" in changes:
            self.logs_adopted += 1  # Positions go back only if another log was adopted.
        changes.setdefault("commit_lsn", self.commit_lsn)
        changes.setdefault("truncate_lsn", self.truncate_lsn)
        changes.setdefault("archived_lsn", self.archived_lsn)
        changes.setdefault("archive_id", self.archive_id)
        changes.setdefault("folders", self._folders())
        control = msgspec.structs.replace(self.control, **changes)
        yield Persist(control)
        self.control = control
        self.commit_lsn = control.commit_lsn
        self.truncate_lsn = control.truncate_lsn
        self.archived_lsn = control.archived_lsn
        self.archive_id = control.archive_id
        self.folders = {state.identity: state for state in control.folders}

    @property
    def folder_state(self) -> FolderState:
        """What this data folder has on disk. While it is the same folder, no later state is older (S8e)."""
        control = self.control
        # An adoption counts with its first write: what it skips, or cuts, is not part of that term's log.
        flush_lsn = self.flush_lsn if control.base_lsn is None else control.base_lsn
        term = last_term(control.history)
        return FolderState(control.safekeeper_id, control.incarnation, control.starts, term, flush_lsn)

    def _folders(self) -> tuple[FolderState, ...]:
        return tuple(self.folders[identity] for identity in sorted(self.folders))


def cluster_fields(message: Bootstrap | Elected) -> dict[str, Any]:
    """Return the fields of the control state that identify a message's cluster."""
    return {
        "cluster_id": message.cluster_id,
        "system_id": message.system_id,
        "segment_size": message.segment_size,
        "server_version": message.server_version,
        "membership": message.membership,
    }
