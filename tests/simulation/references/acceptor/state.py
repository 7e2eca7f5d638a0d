"""The state of the reference of the acceptor, and what several steps have in common.

Part of the reference of the acceptor (acceptor.py).
"""

from safekeeper.acceptor.effects import Close, Send
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.messages import (
    AcceptorMessage,
    AppendResponse,
    ArchiveReport,
    FolderStates,
    PullWal,
    Refusal,
    RefusalCode,
    Standby,
)
from tests.simulation.references.acceptor.histories import (
    NO_END,
    entries_of_log,
    last_term,
    tli_of_byte,
)
from tests.simulation.references.acceptor.log import Effects, ReferenceLog, Wal

VERSION = 6


class AcceptorState(ReferenceLog):
    """What an acceptor keeps beside its log.

    Attributes:
        followed: the leader whose history was adopted, and the connection (5.7); None without one (A4).
        leader_message: when the leader's last `Elected` or append came, and whether it was healthy (2.2).
        healthy_seen_at: when an append was last healthy (14.8).
        sequence, answered: of the last append; and what the last answer carried: write_lsn, sequence (7.3).
        pull, pulled_from_lsn: the pull that is under way; where the first one of this adoption began (6.8).
        archiver, has_archive, archive_progress: step 9.
        may_trim, has_cut_to_make: 9.5: whether `Elected` came last, or room is needed; a term that gives up WAL waits.
        greeted: the connections that have greeted.
    """

    def __init__(self, control: ControlState, wal_end_lsn: int, wal: Wal, entries_max: int) -> None:
        super().__init__(control, wal_end_lsn, wal, entries_max)
        self.followed: tuple[LeaderId, int] | None = None
        self.leader_message: tuple[float, bool] = (0.0, False)
        self.healthy_seen_at: float | None = None
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
        self.greeted: set[int] = set()

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
    def log_end(self) -> tuple[int, int, int, int]:
        """1.3: last term, timeline of the last byte, floor, given."""
        entries = entries_of_log(self.control.history, self.flush_lsn)
        has_byte = bool(entries) and self.flush_lsn > entries[0].start_lsn
        tli = tli_of_byte(entries, self.flush_lsn - 1) if has_byte else 0
        floor, given = (entries[-1].floor, entries[-1].given) if entries else (0, 0)
        return last_term(entries), tli, floor, given

    def _is_led_by(self, leader_id: LeaderId, connection: int) -> bool:
        """5.7, 7.1."""
        return self.followed == (leader_id, connection)

    def _follow_none(self) -> None:
        """A4."""
        self.followed = None
        self.leader_commit_lsn = 0
        self.pull, self.pulled_from_lsn = None, NO_END

    def _refuse(self, connection: int, code: RefusalCode, close: bool = False) -> Effects:
        """M1, R2."""
        yield Send(connection, Refusal(code, "", self.control.promised))
        if close:
            yield Close(connection, "")

    def _refuse_leader(self, connection: int, leader_id: LeaderId) -> Effects:
        """7.1."""
        is_stale = leader_id.term < self.control.promised.term
        code = RefusalCode.STALE_TERM if is_stale else RefusalCode.NOT_ADOPTED
        yield from self._refuse(connection, code, close=True)

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

    def _send_folders(self, connection: int) -> Effects:
        """11.2."""
        if self.control.membership is not None:
            yield Send(connection, FolderStates(self.control.cluster_id, (self.folder_state, *self.folders)))

    def _report_archive(self) -> Effects:
        """9.1."""
        archived_lsn, problem = self.archive_progress
        begin_lsn, here = self.control.wal_begin_lsn, self.archive_here
        yield from self._send_leader(
            ArchiveReport(begin_lsn, self.has_archive, self.is_archiver, archived_lsn, problem, here)
        )
