"""The reads of members that pull WAL from a safekeeper."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from safekeeper.base.errors import ResourceShortage
from safekeeper.consensus.control_state import NOBODY
from safekeeper.consensus.messages import AcceptorMessage, PeerRead, ReadResponse, Refusal
from safekeeper.node.peer_reads import PeerReads

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
