"""The reference of a safekeeper's log: what it keeps, and how it is adopted, cut, trimmed, set aside and restored.

Part of the reference of the acceptor (acceptor.py), from docs/design/protocol.md: "What an acceptor keeps",
0.10, 0.13, 0.14, 5.4, 5.5, 7.4, 7.15, 9.5. The log is its history, the positions of its beginning and its end, and
the records that `Wal` finds in it. Every decision is a formula of these values; nothing is remembered that can be
computed.

Generators of effects, as the acceptor's: what is compared is which effects they request, in which order.
"""

from collections.abc import Generator
from typing import Any, Protocol

import msgspec

from safekeeper.acceptor.effects import (
    Effect,
    FlushWal,
    Persist,
    ResetWal,
    RestoreWal,
    SetWalAside,
    TrimWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.messages import Bootstrap, Elected, RefusalCode
from tests.simulation.references.acceptor.histories import (
    NO_END,
    Parting,
    ProtocolBroken,
    bounded,
    folders_of,
    last_term,
    latest_states,
    parting,
    switches,
    tli_of_byte,
)

Effects = Generator[Effect, Any, None]
Decision = Generator[Effect, Any, RefusalCode | None]
# Segments are removed a few at a time.
TRIMMED_SEGMENTS_MAX = 16


class Wal(Protocol):
    """The bytes of the log, which the reference can read without an effect. No method changes anything."""

    def record_end(self, lsn: int) -> int:
        """Return the end of the first complete record that ends above `lsn`, 0 if there is none."""

    def last_record_start(self, lsn: int) -> int:
        """Return the start of the last record that begins below `lsn`, 0 if there is none."""

    def last_timed_record(self, begin_lsn: int, end_lsn: int) -> int:
        """Return the start of the last complete record of this range that bears a time, 0 if there is none."""

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        """Return the bytes of a range."""

    def page_crcs(self, begin_lsn: int, end_lsn: int) -> tuple[int, ...]:
        """Return the checksums of the pages of a range."""

    def is_set_aside_incomplete(self, label: str, control: ControlState) -> bool:
        """Return whether the WAL that was set aside lacks what `control` needs."""


class ReferenceLog:
    """What an acceptor keeps.

    Attributes:
        control: A1, as it is on disk.
        commit_lsn, truncate_lsn, archived_lsn, archive_id, folders: A2, in memory.
        written_end, durable_end: ends of the WAL that is stored; what of it counts are `write_lsn` and `flush_lsn`.
        claimed_end: what lies above it is not claimed, `NO_END` if all is (A5).
        leader_commit_lsn: the highest commit_lsn received in this adoption.
        open_fork_lsn: the first fork that is open, `NO_END` if none is (7.15).
        named_lsn: the segments have the right names for the timeline changes up to here (6.5).
        archive_here: the id of the archive that is configured here.
    """

    def __init__(self, control: ControlState, wal_end_lsn: int, wal: Wal, entries_max: int) -> None:
        self._take(control)
        self.wal = wal
        self.entries_max = entries_max
        self.written_end = self.durable_end = wal_end_lsn
        self.commit_lsn = control.commit_lsn
        self.truncate_lsn = control.truncate_lsn
        self.archived_lsn, self.archive_id = control.archived_lsn, control.archive_id
        self.folders = control.folders
        self.leader_commit_lsn = 0
        self.open_fork_lsn = control.wal_begin_lsn if control.base_lsn is None else control.base_lsn
        self.named_lsn = 0
        self.archive_here = ""
        self.is_counted = False
        self._search_again()
        if self.is_misplaced:
            self.written_end = self.durable_end = 0

    @property
    def is_misplaced(self) -> bool:
        """Whether the log of the control state is not in place: the files found are not it (A5)."""
        return self.control.set_aside or self.control.restore_from != "" or self.control.base_lsn is not None

    @property
    def is_whole(self) -> bool:
        """Whether no cut, no new beginning and no moving is unfinished."""
        return not self.is_misplaced and self.control.truncate_to is None

    def _take(self, control: ControlState) -> None:
        """A5: WAL that is to be dropped or cut is not claimed."""
        self.control = control
        cut = NO_END if control.truncate_to is None else control.truncate_to
        self.claimed_end = 0 if self.is_misplaced else cut

    @property
    def write_lsn(self) -> int:
        """The end of the WAL that was written."""
        return min(self.written_end, self.claimed_end)

    @property
    def flush_lsn(self) -> int:
        """The end of the WAL that is on disk."""
        return min(self.durable_end, self.claimed_end)

    @property
    def readable_lsn(self) -> int:
        """7.15."""
        return min(self.commit_lsn, self.flush_lsn, self.open_fork_lsn)

    @property
    def readable_tli(self) -> int:
        """7.15: the timeline of the last byte that readers may see."""
        return tli_of_byte(self.control.history, self.readable_lsn - 1)

    @property
    def folder_state(self) -> FolderState:
        """11.1."""
        control = self.control
        end_lsn = self.flush_lsn if control.base_lsn is None else control.base_lsn
        return FolderState(
            control.safekeeper_id, control.incarnation, control.starts, last_term(control.history), end_lsn
        )

    @property
    def is_member(self) -> bool:
        """Whether this data folder is a member's."""
        control = self.control
        folder = control.safekeeper_id, control.incarnation
        return control.membership is not None and folder in folders_of(control.membership)

    def advance_commit(self) -> None:
        """7.4."""
        self.commit_lsn = max(self.commit_lsn, min(self.leader_commit_lsn, self.flush_lsn))

    def look_for_forks(self) -> None:
        """7.15: a fork is open until the first complete record behind it ends at or below commit_lsn."""
        committed_lsn = min(self.commit_lsn, self.flush_lsn)
        if self.open_fork_lsn >= committed_lsn:
            return
        forks = sorted({self.open_fork_lsn, *switches(self.control.history)})
        self.open_fork_lsn = next(
            (
                fork
                for fork in forks
                if fork >= self.open_fork_lsn
                and not (fork < committed_lsn and 0 < self.wal.record_end(fork) <= committed_lsn)
            ),
            NO_END,
        )

    def persist(self, **changes: Any) -> Effects:
        """A1 and A2: one write, with the present values of what is written lazily."""
        lazy = {
            "commit_lsn": self.commit_lsn,
            "truncate_lsn": self.truncate_lsn,
            "archived_lsn": self.archived_lsn,
            "archive_id": self.archive_id,
            "folders": self.folders,
        }
        control = msgspec.structs.replace(self.control, **{**lazy, **changes})
        yield Persist(control)
        self._take(control)
        self.commit_lsn, self.truncate_lsn = control.commit_lsn, control.truncate_lsn
        self.archived_lsn, self.archive_id = control.archived_lsn, control.archive_id
        self.folders = control.folders

    def flush_all(self) -> Effects:
        """Flush what is written."""
        if self.flush_lsn < self.write_lsn:
            yield FlushWal()
            self.durable_end = self.written_end
            self.advance_commit()

    def write(self, begin_lsn: int, payload: bytes | memoryview) -> Effects:
        """6.5: what lies before a change of timeline is flushed, and the next segment has the new name."""
        end_lsn = begin_lsn + len(payload)
        for switch_lsn in switches(self.control.history):
            if self.named_lsn < switch_lsn < end_lsn:
                before = payload[: switch_lsn - begin_lsn]
                if before:
                    yield WriteWal(begin_lsn, before)
                    self.written_end = switch_lsn
                yield from self.flush_all()
                yield TruncateWal(switch_lsn, tli_of_byte(self.control.history, switch_lsn))
                self.named_lsn, begin_lsn, payload = switch_lsn, switch_lsn, payload[len(before) :]
        yield WriteWal(begin_lsn, payload)
        self.written_end = end_lsn

    def start(self) -> Effects:
        """A5, and 5.1 for the own history."""
        yield from self.finish()
        control = self.control
        history, forgotten = bounded(control.history, control.forgotten_term, control.commit_lsn, self.entries_max)
        if history != control.history:
            yield from self.persist(history=history, forgotten_term=forgotten)
        if self.flush_lsn:
            yield TruncateWal(self.flush_lsn, tli_of_byte(history, self.flush_lsn))
            self.look_for_forks()
            yield TrimWal(self.control.wal_begin_lsn)
        if not self.is_counted:
            yield from self.persist(starts=self.control.starts + 1)
            self.is_counted = True

    def finish(self) -> Effects:
        """A5: finish what was interrupted, each note cleared when its work is done."""
        control = self.control
        if control.set_aside:
            yield SetWalAside(control.set_aside_as)
            self.written_end = self.durable_end = 0
            yield from self.persist(set_aside=False, set_aside_as="")
        if control.restore_from:
            self.written_end = self.durable_end = yield RestoreWal(control.restore_from)
            yield from self.persist(restore_from="")
        if control.base_lsn is not None:
            yield ResetWal(control.base_lsn, tli_of_byte(control.history, control.base_lsn))
            self.written_end = self.durable_end = control.base_lsn
            yield from self.persist(base_lsn=None, wal_begin_lsn=control.base_lsn)
        elif control.truncate_to is not None:
            yield TruncateWal(control.truncate_to, tli_of_byte(control.history, control.truncate_to))
            self.written_end = self.durable_end = control.truncate_to
            yield from self.persist(truncate_to=None)

    def checkpoint(self) -> Effects:
        """A2."""
        control = self.control
        on_disk = (
            control.commit_lsn, control.truncate_lsn, control.archived_lsn, control.archive_id, control.folders
        )  # fmt: skip
        if (self.commit_lsn, self.truncate_lsn, self.archived_lsn, self.archive_id, self.folders) != on_disk:
            yield from self.persist()

    def remove_old(self, request: TrimRequest) -> Generator[Effect, Any, bool]:
        """9.5: return whether WAL was removed. Whether it may be now is the caller's question."""
        control, size = self.control, self.control.segment_size
        if not self.flush_lsn or not self.is_whole:
            return False
        begin_lsn = control.wal_begin_lsn
        starts = range(begin_lsn + size, begin_lsn + size * TRIMMED_SEGMENTS_MAX + 1, size)
        removable = [start for start in starts if self._is_removable_below(start, request)]
        if not removable:
            return False
        timed_lsn = self._newest_timed_record()
        readable = (s for s in removable if s <= timed_lsn and 0 < self.wal.record_end(s) <= self.readable_lsn)
        lsn = max(readable, default=0)
        if lsn:
            yield from self.persist(wal_begin_lsn=lsn)
            yield TrimWal(lsn)
        return lsn > 0

    def _is_removable_below(self, lsn: int, request: TrimRequest) -> bool:
        """Whether the segments that end at or below `lsn`, a segment's start, may go."""
        size = self.control.segment_size
        last_segment = (self.flush_lsn - 1) // size * size
        if request.has_archive:
            safe_lsn = self.archived_lsn if self.archive_id == self.archive_here else 0
        else:
            safe_lsn = self.truncate_lsn
        if not (lsn <= safe_lsn and lsn + size <= last_segment and lsn <= (self.readable_lsn - 1) // size * size):
            return False
        is_needed = (
            lsn > self.truncate_lsn
            or lsn > self.flush_lsn - request.keep_bytes
            or (request.wanted_lsn is not None and lsn > request.wanted_lsn)
        )
        if is_needed:
            # The file of the last segment counts, and the one that is prepared behind it.
            files_bytes = last_segment + 2 * size - (lsn - size)
            if not request.has_archive or request.limit_bytes is None or files_bytes <= request.limit_bytes:
                return False
        return True

    def _newest_timed_record(self) -> int:
        """Where the newest record begins that bears a time and can be read.

        A segment is searched until the position that readers may see is in a later one. A record that began in it, and
        was not complete then, is not found: more is kept.
        """
        size = self.control.segment_size
        begin_lsn = max(self._searched_lsn // size * size, self.control.wal_begin_lsn)
        found_lsn = self.wal.last_timed_record(begin_lsn, self.readable_lsn)
        self._timed_lsn, self._searched_lsn = found_lsn or self._timed_lsn, self.readable_lsn
        return self._timed_lsn

    def _search_again(self) -> None:
        self._timed_lsn, self._searched_lsn = 0, 0

    def adopt(self, message: Elected) -> Decision:
        """5.4 and 5.5: adopt the history, or return why not."""
        control = self.control
        found = self._parting_from(message)
        if found is None and self._may_share_what_is_forgotten(message):
            return RefusalCode.HISTORY
        is_superseded = self._is_superseded_by(message)
        settled_lsn = max(message.commit_lsn, message.settled_lsn)
        cut_lsn = found.lsn if found is not None and found.lsn >= control.wal_begin_lsn else None
        if cut_lsn is None:
            if found is not None and found.gives_up:
                if not is_superseded:
                    return RefusalCode.RANGE
            elif self.commit_lsn > control.wal_begin_lsn:
                return RefusalCode.HISTORY
            base_lsn: int | None = message.base_lsn
        else:
            assert found is not None  # it has a cut
            is_committed = cut_lsn < self.commit_lsn and 0 < self.wal.record_end(cut_lsn) <= self.commit_lsn
            if is_committed and not found.gives_up:
                return RefusalCode.HISTORY
            base_lsn = message.base_lsn if self.flush_lsn < message.base_lsn else None
            if base_lsn is not None and base_lsn > settled_lsn:
                return RefusalCode.RANGE
        self._search_again()
        if base_lsn is not None and (base_lsn == 0 or base_lsn % message.segment_size):
            raise ProtocolBroken(f"a log cannot begin at {base_lsn}")
        if base_lsn is not None:
            commit_lsn = base_lsn if base_lsn <= settled_lsn else 0
        else:
            commit_lsn = min(self.commit_lsn, cut_lsn or 0)
        # There is nothing to cut, and no segment to rename, where the log ends at the divergence on the same timeline.
        is_intact = cut_lsn == self.flush_lsn and (
            tli_of_byte(control.history, self.flush_lsn) == tli_of_byte(message.history, self.flush_lsn)
        )
        yield from self.persist(
            promised=message.leader_id,
            cluster_id=message.cluster_id,
            system_id=message.system_id,
            segment_size=message.segment_size,
            server_version=message.server_version,
            membership=message.membership,
            history=message.history,
            forgotten_term=message.forgotten_term,
            tli_histories=message.tli_histories,
            base_lsn=base_lsn,
            truncate_to=None if base_lsn is not None or is_intact else cut_lsn,
            commit_lsn=commit_lsn,
            archived_lsn=min(self.archived_lsn, cut_lsn or 0),
            truncate_lsn=0,
        )
        # Forks below the divergence are those of the same log; of the others none was passed.
        if base_lsn is not None:
            self.open_fork_lsn = base_lsn
        elif cut_lsn is not None and self.open_fork_lsn >= cut_lsn:
            forks = [self.control.wal_begin_lsn, *switches(message.history)]
            self.open_fork_lsn = min((fork for fork in forks if fork >= cut_lsn), default=NO_END)
        yield from self.finish()
        return None

    def _parting_from(self, message: Elected) -> Parting | None:
        """5.4, second part: where the own log and the message's part, None if they have nothing in common."""
        if not self.flush_lsn:
            return None
        control = self.control
        found = parting(control.history, control.forgotten_term, message.history, message.forgotten_term)
        return found._replace(lsn=min(found.lsn, self.flush_lsn)) if found is not None else None

    def _may_share_what_is_forgotten(self, message: Elected) -> bool:
        """5.4, third part: the own log has bytes, of terms that one of the two no longer names."""
        forgotten = max(self.control.forgotten_term, message.forgotten_term)
        return self.flush_lsn > 0 and any(entry.term <= forgotten for entry in self.control.history)

    def _is_superseded_by(self, message: Elected) -> bool:
        """5.4: a quorum has adopted a term that this acceptor has not, and its beginning."""
        own_last = last_term(self.control.history)
        return message.commit_lsn != 0 or any(
            entry.term > own_last and entry.start_lsn < message.settled_lsn for entry in message.history
        )

    def undo_refusal(self, message: Bootstrap) -> RefusalCode | None:
        """0.14: why the replaced cluster does not come back here, None if it does."""
        control, replaced = self.control, self.control.replaced
        if control.history and not message.discard:
            return RefusalCode.NOT_EMPTY
        if replaced is not None and replaced.cluster_id == message.cluster_id:
            is_lost = self.wal.is_set_aside_incomplete(control.replaced_wal, replaced)
            return RefusalCode.RANGE if is_lost else None
        if (control.safekeeper_id, control.incarnation) in folders_of(message.membership):
            return RefusalCode.NOT_A_MEMBER
        return None

    def begin_cluster(self, message: Bootstrap) -> Effects:
        """0.10 and 0.13: an empty log of another cluster; the old one is set aside, its state kept for an undo."""
        self._search_again()
        control = self.control
        kept: dict[str, Any] = {}
        if not message.undo and control.cluster_id and (control.history or control.replaced is None):
            state = msgspec.structs.replace(
                control,
                replaced=None,
                replaced_wal="",
                truncate_to=self.flush_lsn if self.flush_lsn else None,
                commit_lsn=self.commit_lsn,
                truncate_lsn=0,
                archived_lsn=0,
                archive_id="",
                folders=self.folders,
            )
            kept = {"replaced": state, "replaced_wal": message.cluster_id}
        yield from self.persist(
            **kept,
            **_identity(message),
            history=(),
            forgotten_term=0,
            tli_histories=(),
            truncate_to=None,
            base_lsn=None,
            wal_begin_lsn=0,
            set_aside=True,
            set_aside_as=f"undone-{control.cluster_id}" if message.undo else message.cluster_id,
            commit_lsn=0,
            truncate_lsn=0,
            archived_lsn=0,
            archive_id="",
            folders=(),
        )
        yield from self.finish()

    def restore_cluster(self, message: Bootstrap) -> Effects:
        """0.14: one write makes `replaced` the state again, with today's promise; then the logs change places."""
        control, replaced = self.control, self.control.replaced
        if replaced is None or replaced.cluster_id != message.cluster_id:
            yield from self.begin_cluster(message)
            return
        self._search_again()
        state = msgspec.structs.replace(
            replaced,
            **_identity(message),
            promised=control.promised,
            starts=control.starts,
            set_aside=True,
            set_aside_as=f"undone-{control.cluster_id}",
            restore_from=control.replaced_wal,
        )
        yield from self.persist(**msgspec.structs.asdict(state))
        self.open_fork_lsn = state.wal_begin_lsn
        yield from self.start()

    def learn_folders(self, states: tuple[FolderState, ...]) -> None:
        """11.4: the latest states of the other members."""
        control = self.control
        assert control.membership is not None  # by the caller
        others = folders_of(control.membership) - {(control.safekeeper_id, control.incarnation)}
        self.folders = latest_states((*self.folders, *states), others)


def _identity(message: Bootstrap) -> dict[str, Any]:
    return {
        "cluster_id": message.cluster_id,
        "system_id": message.system_id,
        "segment_size": message.segment_size,
        "server_version": message.server_version,
        "membership": message.membership,
    }
