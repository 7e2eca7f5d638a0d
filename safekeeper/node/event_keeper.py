"""What a safekeeper keeps of events: its own, and those that proxies and agents send (protocol step 15).

The newest events are in memory (`EventRecorder`, bounded). A thread appends each to the files of event_file.py, without
a sync and apart from the thread of the WAL. While the disk lacks space they are not written; a further event, at the
latest that of the space that is back, writes the last PENDING_MAX of them. Events may be lost: nothing here delays or
fails the consensus, and no commit waits for it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from safekeeper.base.errors import StorageFailed, StorageFull
from safekeeper.base.event_log import EventRecorder
from safekeeper.base.events import KeptEvent
from safekeeper.base.logs import ProblemLog, describe_bug
from safekeeper.base.worker import Worker
from safekeeper.consensus.messages import AcceptorMessage, EventExchange, EventPage
from safekeeper.storage.disk_space import DiskSpace
from safekeeper.storage.event_file import EventFile

PENDING_MAX = 500
# With less free space than this events are not written: it is for WAL and the control file.
FREE_BYTES_MIN = 16 << 20

_log = logging.getLogger(__name__)


class EventKeeper:
    """The events of one safekeeper.

    Args:
        safekeeper_id: names it in its events.
        file: the files.
        space: the disk's space.
        new_worker: makes the thread that writes, at the first event.
        send: sends a message on a connection.

    Attributes:
        recorder: the handler to add to the log; it has all kept events.
    """

    def __init__(
        self,
        safekeeper_id: int,
        file: EventFile,
        space: DiskSpace,
        new_worker: Callable[[], Worker],
        send: Callable[[int, AcceptorMessage], None],
    ) -> None:
        """Read the files (blocking)."""
        self.recorder = EventRecorder(f"safekeeper {safekeeper_id}")
        self._file = file
        self._space = space
        self._new_worker = new_worker
        self._worker: Worker | None = None
        self._send = send
        self._lock = threading.Lock()
        self._pending: deque[KeptEvent] = deque(maxlen=PENDING_MAX)
        self._is_writing = False  # A job is in the thread, or its end is on its way.
        self._problem = ProblemLog(_log)
        try:
            for kept in file.load():
                self.recorder.add(kept.event, kept.seq)
        except (StorageFailed, StorageFull) as error:
            _log.warning("could not read the events that were kept: %s", error)
        self.recorder.on_event = self._on_event

    def serve(self, connection: int, exchange: EventExchange) -> None:
        """Keep the events of a proxy, and reply with those that are requested."""
        for event in exchange.events:
            self.recorder.add(event)
        if exchange.since is None:
            self._send(connection, EventPage((), 0))
        else:
            self._send(connection, EventPage(*self.recorder.page(exchange.since)))

    async def close(self) -> None:
        """Return once the events that can be written are."""
        if self._worker is not None:
            await self._worker.run(self._write)
            self._worker.stop()

    def _on_event(self, kept: KeptEvent) -> None:
        """Write an event soon. Called in any thread."""
        with self._lock:
            self._pending.append(kept)
            if self._is_writing:
                return
            self._is_writing = True
        self._submit()

    def _submit(self) -> None:
        if self._worker is None:
            self._worker = self._new_worker()
        self._worker.submit(self._write, self._written)

    def _write(self) -> bool:
        """Append what is pending, in the thread; return whether there was anything to write, and room for it."""
        space = self._space
        measured = space.space
        if space.lacking or (measured is not None and measured.free_bytes < FREE_BYTES_MIN):
            return False
        with self._lock:
            batch = list(self._pending)
            self._pending.clear()
        if not batch:
            return False
        try:
            self._file.append(batch)
        except BaseException:
            with self._lock:
                newer = list(self._pending)
                self._pending.clear()
                self._pending.extend(batch + newer)
            raise
        return True

    def _written(self, _: object, has_written: bool | None, error: BaseException | None) -> None:
        """Write what was added meanwhile; after an error the next event retries."""
        if error is None:
            self._problem.over("events can be written again")
        elif isinstance(error, StorageFailed | StorageFull):
            self._problem.note(str(error), "could not write events, they are in memory only: %s", error)
        else:
            _log.error("could not write events: %s", describe_bug(error))
        with self._lock:
            self._is_writing = bool(has_written and self._pending)
            continues = self._is_writing
        if continues:
            self._submit()
