"""The reads of members that pull WAL from a safekeeper."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from safekeeper.base.errors import ResourceShortage, StorageFailed
from safekeeper.consensus.control_state import NOBODY
from safekeeper.consensus.messages import AcceptorMessage, PeerRead, ReadResponse, Refusal, RefusalCode
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.node.peer_reads import QUEUED_MAX, READ_BYTES_MAX, PeerReads

SEGMENT_SIZE = 16 << 20


class InlineWorker:
    """A thread whose jobs are done at once."""

    def submit(self, job: Callable[[], Any], done: Callable[..., None], token: Any) -> None:
        try:
            result, error = job(), None
        except Exception as raised:
            result, error = None, raised
        done(token, result, error)

    def stop(self) -> None:
        """See Worker."""


class ShortOfDescriptors:
    """A reader of the log: no file descriptor is free for its first job."""

    def __init__(self) -> None:
        self.is_short = True

    def fetch(self, begin_lsn: int, end_lsn: int) -> Callable[[], bytes]:
        def job() -> bytes:
            if self.is_short:
                self.is_short = False
                raise ResourceShortage("could not open the segment: Too many open files")
            return bytes(end_lsn - begin_lsn)

        return job

    def fetched(self) -> None:
        """See WalReader."""


def test_a_read_without_a_free_file_descriptor_is_refused_and_the_next_one_is_answered() -> None:
    sent: list[AcceptorMessage] = []
    reader = ShortOfDescriptors()
    acceptor = SimpleNamespace(
        logs_adopted=0, control=SimpleNamespace(history=(), promised=NOBODY), serves=lambda request: True
    )
    folder = SimpleNamespace(control=SimpleNamespace(segment_size=SEGMENT_SIZE), wal_reader=lambda: reader)
    reads = PeerReads(
        cast(Any, acceptor),
        cast(Any, folder),
        cast(Any, InlineWorker),
        lambda connection, message: sent.append(message),
    )

    reads.serve(1, PeerRead(NOBODY, 1, SEGMENT_SIZE, SEGMENT_SIZE + 10))
    reads.serve(1, PeerRead(NOBODY, 2, SEGMENT_SIZE, SEGMENT_SIZE + 10))

    refusal, answer = sent
    assert isinstance(refusal, Refusal)
    assert "Too many open files" in refusal.reason
    assert answer == ReadResponse(2, SEGMENT_SIZE, bytes(10))


class HeldWorker:
    """A thread whose jobs are done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[..., None], Any]] = []
        self.is_stopped = False

    def submit(self, job: Callable[[], Any], done: Callable[..., None], token: Any) -> None:
        self.jobs.append((job, done, token))

    def work(self) -> None:
        """Do the oldest job, and pass its result on."""
        job, done, token = self.jobs.pop(0)
        try:
            result, error = job(), None
        except Exception as raised:
            result, error = None, raised
        done(token, result, error)

    def stop(self) -> None:
        self.is_stopped = True


class Reader:
    """A reader of the log: counts what becomes of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.fetched_count = 0
        self.is_closed = False
        self.error: Exception | None = None
        self.error_at_once: Exception | None = None

    def fetch(self, begin_lsn: int, end_lsn: int) -> Callable[[], bytes]:
        if self.error_at_once is not None:
            raise self.error_at_once
        self.asked.append((begin_lsn, end_lsn))
        return self.job

    def job(self) -> bytes:
        if self.error is not None:
            raise self.error
        return bytes(self.asked[-1][1] - self.asked[-1][0])

    def fetched(self) -> None:
        self.fetched_count += 1

    def close(self) -> None:
        self.is_closed = True


class Bench:
    """The reads of a safekeeper whose log, disk and thread are the test's."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, AcceptorMessage]] = []
        self.readers: list[Reader] = []
        self.workers: list[HeldWorker] = []
        self.serves = True
        self.acceptor = SimpleNamespace(
            logs_adopted=0, control=SimpleNamespace(history=(), promised=NOBODY), serves=lambda request: self.serves
        )
        folder = SimpleNamespace(control=SimpleNamespace(segment_size=SEGMENT_SIZE), wal_reader=self.make_reader)
        self.reads = PeerReads(
            cast(Any, self.acceptor),
            cast(Any, folder),
            cast(Any, self.make_worker),
            lambda connection, message: self.sent.append((connection, message)),
        )

    def make_reader(self) -> Reader:
        self.readers.append(Reader())
        return self.readers[-1]

    def make_worker(self) -> HeldWorker:
        self.workers.append(HeldWorker())
        return self.workers[-1]

    def asks(self, number: int, connection: int = 1, begin_lsn: int = SEGMENT_SIZE, size: int = 10) -> None:
        self.reads.serve(connection, PeerRead(NOBODY, number, begin_lsn, begin_lsn + size))

    def answers(self) -> list[tuple[int, str]]:
        """Return, and forget, what was sent: by connection, the number of a request or the reason of a refusal."""
        sent, self.sent = self.sent, []
        return [(i, m.reason if isinstance(m, Refusal) else str(cast(ReadResponse, m).request_id)) for i, m in sent]


def test_requests_are_served_in_order_one_at_a_time_and_only_a_few_wait() -> None:
    bench = Bench()
    for number in range(1, QUEUED_MAX + 2):
        bench.asks(number)
        assert len(bench.workers[0].jobs) == 1
    assert bench.answers() == [(1, f"more than {QUEUED_MAX} reads at once")]
    for number in range(1, QUEUED_MAX + 1):
        bench.workers[0].work()
        assert bench.answers() == [(1, str(number))]
    assert bench.workers[0].jobs == [] and len(bench.workers) == len(bench.readers) == 1
    assert bench.reads.served_bytes == 10 * QUEUED_MAX and bench.readers[0].fetched_count == QUEUED_MAX
    bench.asks(9)
    bench.workers[0].work()
    assert bench.answers() == [(1, "9")]


@pytest.mark.parametrize(
    ("begin_lsn", "size", "read"),
    [
        (SEGMENT_SIZE, 10, 10),
        (SEGMENT_SIZE, READ_BYTES_MAX, READ_BYTES_MAX),
        (SEGMENT_SIZE, READ_BYTES_MAX + 1, READ_BYTES_MAX),
        (2 * SEGMENT_SIZE - 5, 5, 5),
        (2 * SEGMENT_SIZE - 5, 6, 5),
    ],
)
def test_a_read_is_bounded_and_ends_with_its_segment(begin_lsn: int, size: int, read: int) -> None:
    bench = Bench()
    bench.asks(1, begin_lsn=begin_lsn, size=size)
    assert bench.readers[0].asked == [(begin_lsn, begin_lsn + read)]
    bench.workers[0].work()
    ((_, answer),) = bench.sent
    assert answer == ReadResponse(1, begin_lsn, bytes(read))


def test_each_connection_has_a_reader_of_its_own_until_it_is_closed() -> None:
    bench = Bench()
    bench.asks(1, connection=1)
    bench.asks(2, connection=2)
    assert len(bench.readers) == 2 and len(bench.workers) == 1
    bench.reads.disconnected(1)
    assert [reader.is_closed for reader in bench.readers] == [True, False]
    bench.workers[0].work()
    bench.workers[0].work()
    assert bench.answers() == [(2, "2")]
    assert [reader.fetched_count for reader in bench.readers] == [1, 1], "the file of a closed reader is released"
    bench.reads.disconnected(3)
    bench.reads.stop()
    assert bench.workers[0].is_stopped


def test_a_connection_whose_number_is_used_for_another_request_meanwhile_is_not_sent_the_old_answer() -> None:
    bench = Bench()
    bench.asks(1)
    bench.reads.disconnected(1)
    bench.asks(2)
    bench.workers[0].work()
    assert bench.answers() == []
    bench.workers[0].work()
    assert bench.answers() == [(1, "2")]


@pytest.mark.parametrize("change", ["logs_adopted", "history"])
def test_the_readers_of_a_log_that_was_replaced_are_closed(change: str) -> None:
    bench = Bench()
    for number in (1, 2):
        bench.asks(number, connection=number)
        bench.workers[0].work()
    if change == "logs_adopted":
        bench.acceptor.logs_adopted = 1
    else:
        bench.acceptor.control.history = (HistoryEntry(1, SEGMENT_SIZE, 1),)
    bench.asks(3, connection=1)
    assert [reader.is_closed for reader in bench.readers] == [True, True, False]
    bench.workers[0].work()
    bench.asks(4, connection=1)
    assert len(bench.readers) == 3


def test_bytes_of_a_log_that_has_changed_during_the_read_are_not_sent() -> None:
    bench = Bench()
    bench.asks(1)
    bench.asks(2)
    bench.serves = False
    bench.workers[0].work()
    assert bench.answers() == [(1, "the log has changed during the read")] and bench.reads.served_bytes == 0
    bench.serves = True
    bench.workers[0].work()
    assert bench.answers() == [(1, "2")]


@pytest.mark.parametrize("error", [StorageFailed("gone"), ResourceShortage("gone"), OSError("gone")])
def test_a_read_that_fails_is_refused_and_ends_nothing(error: Exception) -> None:
    bench = Bench()
    bench.asks(1)
    bench.readers[0].error = error
    bench.workers[0].work()
    ((connection, refusal),) = bench.sent
    assert connection == 1 and refusal == Refusal(RefusalCode.RANGE, "gone", NOBODY)


def test_a_segment_that_does_not_exist_is_refused_without_the_thread() -> None:
    bench = Bench()
    bench.asks(1)
    bench.workers[0].work()
    bench.answers()
    bench.readers[0].error_at_once = StorageFailed("does not exist")
    bench.asks(2)
    assert bench.answers() == [(1, "does not exist")] and bench.workers[0].jobs == []
    bench.readers[0].error_at_once = None
    bench.asks(3)
    bench.workers[0].work()
    assert bench.answers() == [(1, "3")]


def test_an_error_of_the_program_is_not_taken_for_one_of_the_disk() -> None:
    bench = Bench()
    bench.asks(1)
    bench.readers[0].error = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        bench.workers[0].work()
    assert bench.sent == []
