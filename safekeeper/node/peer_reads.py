"""Serves the reads of members that pull WAL from this safekeeper, beside the node's events.

Each connection has a reader of its own, which reads with read-only files in a thread of its own: neither the event loop
nor the thread that flushes waits for old WAL. One read runs at a time, and few are queued for each connection, so
memory is bounded (S14). The bytes are sent only if the log still has them for the same term after the read (S7).
"""

from collections import deque
from collections.abc import Callable

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.base.errors import ResourceShortage, StorageFailed
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import segment_start
from safekeeper.base.worker import Worker
from safekeeper.consensus.messages import AcceptorMessage, PeerRead, ReadResponse, Refusal, RefusalCode
from safekeeper.consensus.term_history import TermHistory
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.wal_reading import WalReader

# A member has two requests in flight (wal_pull.py).
QUEUED_MAX = 4
READ_BYTES_MAX = 1 << 20


class PeerReads:
    """The reads of members.

    Args:
        acceptor, folder: those of the node; the log is the folder's.
        make_worker: makes the thread, when the first request is received.
        send: sends a message on a connection.

    Attributes:
        served_bytes: the WAL that was sent to members.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        folder: DataFolder,
        make_worker: Callable[[], Worker],
        send: Callable[[int, AcceptorMessage], None],
    ) -> None:
        self.served_bytes = 0
        self._acceptor = acceptor
        self._folder = folder
        self._make_worker = make_worker
        self._send = send
        self._worker: Worker | None = None
        self._queues: dict[int, deque[PeerRead]] = {}  # By connection. The first request of a queue is being read.
        self._readers: dict[int, WalReader] = {}
        self._log: tuple[int, TermHistory] = (0, ())  # The one that the readers read.

    def serve(self, connection: int, request: PeerRead) -> None:
        """Read for a member; refuse the request if it has too many."""
        queue = self._queues.setdefault(connection, deque())
        if len(queue) >= QUEUED_MAX:
            self._refuse(connection, f"more than {QUEUED_MAX} reads at once")
            return
        queue.append(request)
        if len(queue) == 1:
            self._read(connection, request)

    def disconnected(self, connection: int) -> None:
        """Release what was opened for a connection."""
        self._queues.pop(connection, None)
        reader = self._readers.pop(connection, None)
        if reader is not None:
            reader.close()

    def stop(self) -> None:
        """End the thread after its present work."""
        if self._worker is not None:
            self._worker.stop()

    def _read(self, connection: int, request: PeerRead) -> None:
        if self._worker is None:
            self._worker = self._make_worker()
        begin_lsn = request.begin_lsn
        size = self._folder.control.segment_size
        end_lsn = min(request.end_lsn, begin_lsn + READ_BYTES_MAX, segment_start(begin_lsn, size) + size)
        reader = self._reader_of(connection)
        try:
            job = reader.fetch(begin_lsn, end_lsn)
        except StorageFailed as error:
            self._done((connection, request, reader), None, error)
            return
        self._worker.submit(job, self._done, (connection, request, reader))

    def _reader_of(self, connection: int) -> WalReader:
        """Return the connection's reader; a new one if the log was replaced, because its files may be renamed."""
        acceptor = self._acceptor
        log = (acceptor.logs_adopted, acceptor.control.history)
        if log != self._log:
            self._log = log
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()
        if connection not in self._readers:
            self._readers[connection] = self._folder.wal_reader()
        return self._readers[connection]

    def _done(self, token: tuple[int, PeerRead, WalReader], data: bytes | None, error: BaseException | None) -> None:
        connection, request, reader = token
        reader.fetched()
        queue = self._queues.get(connection)
        if not queue or queue[0] is not request:
            return  # The connection was closed meanwhile.
        if error is not None and not isinstance(error, StorageFailed | ResourceShortage | OSError):
            raise error
        if data is None:
            self._refuse(connection, one_line(str(error)))
        elif not self._acceptor.serves(request):
            self._refuse(connection, "the log has changed during the read")
        else:
            self.served_bytes += len(data)
            self._send(connection, ReadResponse(request.request_id, request.begin_lsn, data))
        queue.popleft()
        if queue:
            self._read(connection, queue[0])

    def _refuse(self, connection: int, reason: str) -> None:
        refusal = Refusal(RefusalCode.RANGE, reason, self._acceptor.control.promised)
        self._send(connection, refusal)
