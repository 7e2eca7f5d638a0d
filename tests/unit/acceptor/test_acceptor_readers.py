"""What an acceptor lets its readers see (S7), and what it tells its proposer of them."""

import msgspec

from safekeeper.acceptor.effects import Effect, Effects, FindRecordEnd, Send
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.messages import AppendResponse, ArchiveReport, Standby, StandbyFeedback
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.acceptor import test_acceptor
from tests.unit.acceptor.test_acceptor import BASE, CLUSTER, MEMBERS, OWN, SEGMENT, elected

FORK = BASE + 100
ONE, TWO, THREE = HistoryEntry(1, BASE, 1), HistoryEntry(2, FORK, 2), HistoryEntry(3, FORK, 3)


class Bench(test_acceptor.Bench):
    """Runs an acceptor.

    Attributes:
        record_end_lsn: where the first record behind the fork ends, once it is on the disk.
        first_record_end_lsn: the same of the first record of all.
        looked_for: how often the record behind the fork was looked for.
        said: the messages of the last event.
    """

    def __init__(self, control: ControlState | None = None, flush_lsn: int = 0, record_end_lsn: int = 0) -> None:
        self.record_end_lsn = record_end_lsn
        self.first_record_end_lsn = BASE + 20
        self.looked_for = 0
        self.said: list[object] = []
        control = control or ControlState(safekeeper_id=1, incarnation=OWN, cluster_id=CLUSTER, membership=MEMBERS)
        super().__init__(control, flush_lsn, self._record_end)

    def _record_end(self, lsn: int) -> int:
        end_lsn = {BASE: self.first_record_end_lsn, FORK: self.record_end_lsn}[lsn]
        return end_lsn if end_lsn <= self.acceptor.flush_lsn else 0

    def run(self, effects: Effects) -> list[Effect]:
        found = super().run(effects)
        self.said = [effect.message for effect in found if isinstance(effect, Send)]
        self.looked_for += sum(isinstance(effect, FindRecordEnd) and effect.lsn == FORK for effect in found)
        return found

    def adopts(self, *history: HistoryEntry, commit_lsn: int = 0) -> None:
        self.greet()
        self.deliver(elected(LeaderId(history[-1].term, "run1"), history=history, commit_lsn=commit_lsn))

    def gets(self, size: int, commit_lsn: int) -> None:
        """Take so many bytes, flush them, and hear of a commit."""
        leader = self.acceptor.leader
        if size:
            self.append(self.acceptor.write_lsn, b"w" * size, leader_id=leader)
            self.flush()
        self.append(self.acceptor.write_lsn, leader_id=leader, commit_lsn=commit_lsn)

    @property
    def readable(self) -> tuple[int, int]:
        return self.acceptor.readable_lsn, self.acceptor.readable_tli


def forked(record_end_lsn: int = FORK + 60) -> Bench:
    """Return a member that holds timeline 1 up to the fork, all committed, and has adopted timeline 2 from there on."""
    bench = Bench(record_end_lsn=record_end_lsn)
    bench.adopts(ONE)
    bench.gets(100, FORK)
    bench.adopts(ONE, TWO)
    return bench


def test_readers_see_what_is_committed_and_on_disk_here() -> None:
    bench = Bench()
    assert bench.readable == (0, 0)
    bench.adopts(ONE)
    assert bench.readable == (0, 1)
    bench.gets(100, BASE + 60)
    assert bench.readable == (BASE + 60, 1)
    bench.gets(0, BASE + 60)
    assert bench.readable == (BASE + 60, 1) and bench.looked_for == 0


def test_the_very_first_timeline_is_shown_with_its_first_complete_record_too() -> None:
    bench = Bench()
    bench.first_record_end_lsn = BASE + 40
    bench.adopts(ONE)
    bench.gets(30, BASE + 30)
    assert bench.acceptor.commit_lsn == BASE + 30
    assert bench.readable == (BASE, 1)
    restarted = Bench(bench.control, BASE + 30)
    assert restarted.readable == (0, 1)
    # Another timeline forks off at its very first byte: nobody has seen anything of the one that goes.
    bench.adopts(ONE, HistoryEntry(2, BASE, 2))
    assert bench.acceptor.write_lsn == BASE and bench.readable == (BASE, 1)
    bench.gets(39, BASE + 39)
    assert bench.readable == (BASE, 1)
    bench.gets(1, BASE + 40)
    assert bench.readable == (BASE + 40, 2)


def test_a_timeline_is_not_shown_when_only_its_term_is_committed() -> None:
    bench = forked()
    assert bench.readable == (FORK, 1)
    bench.gets(0, FORK)
    assert bench.readable == (FORK, 1) and bench.looked_for == 0


def test_a_timeline_and_its_first_bytes_are_shown_with_its_first_complete_record() -> None:
    bench = forked()
    bench.gets(50, FORK + 50)
    assert bench.acceptor.commit_lsn == FORK + 50
    assert bench.readable == (FORK, 1)
    bench.gets(10, FORK + 59)
    assert bench.readable == (FORK, 1)
    bench.gets(0, FORK + 60)
    assert bench.readable == (FORK + 60, 2)
    looks = bench.looked_for
    bench.gets(40, FORK + 100)
    assert bench.readable == (FORK + 100, 2) and bench.looked_for == looks


def test_what_cannot_be_decoded_counts_as_complete_as_it_does_for_the_primary_that_would_cut_it() -> None:
    bench = forked(record_end_lsn=FORK)
    bench.gets(1, FORK + 1)
    assert bench.readable == (FORK + 1, 2)


def test_a_timeline_that_another_one_replaces_was_never_shown() -> None:
    bench = forked()
    bench.gets(50, FORK + 50)
    bench.adopts(ONE, THREE)
    bench.record_end_lsn = FORK + 30
    assert bench.readable == (FORK, 1)
    bench.gets(40, FORK + 40)
    assert bench.readable == (FORK + 40, 3)


def test_a_timeline_stays_shown_without_a_leader_and_under_the_next_one() -> None:
    bench = forked()
    bench.gets(100, FORK + 100)
    bench.acceptor.disconnected(1)
    assert bench.readable == (FORK + 100, 2)
    bench.adopts(ONE, TWO, HistoryEntry(4, FORK + 100, 2))
    assert bench.readable == (FORK + 100, 2)


def test_a_restart_shows_a_timeline_again_if_its_first_record_is_known_to_be_committed() -> None:
    control = forked().control
    known = msgspec.structs.replace(control, commit_lsn=FORK + 60)
    assert Bench(known, FORK + 90, FORK + 60).readable == (FORK + 60, 2)
    assert Bench(known, FORK + 90, FORK + 61).readable == (FORK, 1)
    assert Bench(msgspec.structs.replace(control, commit_lsn=FORK), FORK + 90, FORK + 60).readable == (FORK, 1)


def test_a_log_that_begins_behind_a_fork_is_of_the_later_timeline() -> None:
    bench = Bench()
    bench.adopts(HistoryEntry(1, BASE - SEGMENT, 1), HistoryEntry(2, BASE - 50, 2), commit_lsn=BASE)
    bench.gets(100, BASE + 60)
    assert bench.readable == (BASE + 60, 2) and bench.looked_for == 0


# What the proposer hears of readers.


def test_a_proposer_that_is_adopted_receives_the_standbys_again() -> None:
    bench = Bench()
    standbys = (Standby("a", BASE, BASE, BASE),)
    bench.run(bench.acceptor.readers_changed(True, standbys))
    assert bench.said == []
    bench.adopts(ONE)
    answer, feedback, _ = bench.said
    assert isinstance(answer, AppendResponse) and answer.has_readers
    assert feedback == StandbyFeedback(standbys)
    bench.run(bench.acceptor.readers_changed(True, ()))
    assert bench.said == [StandbyFeedback(())]
    # Also that there are none, as long as somebody reads; who hears of no readers knows that.
    bench.adopts(ONE)
    assert bench.said[1] == StandbyFeedback(())
    bench.run(bench.acceptor.readers_changed(False, ()))
    (answer,) = bench.said
    assert isinstance(answer, AppendResponse) and not answer.has_readers
    bench.adopts(ONE)
    assert [type(message) for message in bench.said] == [AppendResponse, ArchiveReport]
