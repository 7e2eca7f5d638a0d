"""The archiver of one safekeeper: uploads committed WAL to the archive while the leader assigns it to (S7).

    stands by       checks every CHECK_INTERVAL_S whether it could archive, and reports that
    archives        claims the archive, lists it, uploads what is missing, UPLOADS_AT_ONCE at a time; then each segment
                    when it is complete, and the open one as a partial file every few seconds or on demand
    has a problem   starts again with claim and listing after 1 s, 2 s, ... RETRY_S_MAX

`ArchivingPlan` decides what is uploaded in which order. Only that runs on the event loop: WAL is read, checked,
compressed and sent in the archiver's own threads, from the segment's file. If another log is adopted meanwhile, the
upload ends without a receipt, so wrong bytes do not count (safekeeper/storage/wal_reading.py, `SegmentBytes`).

Files that have a receipt when the archiving starts, and that are below the leader's archived_lsn, are accepted without
a comparison: an archiver has read them back. All others are compared with the local WAL.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from safekeeper.archive.access import ArchiveAccess
from safekeeper.archive.objects import ArchivedFile
from safekeeper.archiving.plan import ArchivingPlan
from safekeeper.archiving.statistics import UploadStatistics
from safekeeper.base.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveRefused,
    ConfigurationError,
    LogChanged,
    StorageFailed,
    WalproxyError,
)
from safekeeper.base.logs import ProblemLog, describe_bug, one_line
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.status_fields import SafekeeperArchive
from safekeeper.base.worker import Worker
from safekeeper.node.node import Node
from safekeeper.node.readable_log import LogView
from safekeeper.storage.filesystem import FileSystem
from safekeeper.storage.wal_reading import SegmentBytes

if TYPE_CHECKING:
    from safekeeper.archive.upload import Content, Uploader

UPLOADS_AT_ONCE = 2
CHECK_INTERVAL_S = 30.0
RETRY_S_MIN = 1.0
RETRY_S_MAX = 30.0
REPORT_INTERVAL_S = 0.2
NOT_LOOKED_YET = "the archive has not been checked yet"

# Problems that are reported must fit into a message.
_PROBLEM_BYTES_MAX = 900
# Errors that an operator must correct.
_SERIOUS = (ArchiveConflict, ArchiveCorrupt, ArchiveRefused, ConfigurationError)
_log = logging.getLogger(__name__)


class Archiver:
    """Archives the readable WAL of a node; one of the node's `LogReaders`. It starts with `start`.

    Attributes:
        partial_interval_s: seconds between uploads of the open segment.
        archived_lsn: all retained WAL below it is in the archive, as was verified; 0 if unknown.
        problem: why nothing can be archived at present, one line; empty if it can.
        archive_id: the archive's id as last read, empty if it was not.
        statistics: the counters of its uploads.
    """

    def __init__(
        self, node: Node, fs: FileSystem, access: ArchiveAccess, *, compress: bool, partial_interval_s: float
    ) -> None:
        self._node = node
        self._acceptor = node.acceptor
        self._fs = fs
        self._access = access
        self._compress = compress
        self._loop = asyncio.get_running_loop()
        self._workers = [Worker("archiver", self._loop) for _ in range(UPLOADS_AT_ONCE)]
        self._view = LogView(node)
        self._plan: ArchivingPlan | None = None
        self._uploads: dict[asyncio.Task[bool], tuple[Worker, ArchivedFile]] = {}
        self._partial_due_at = 0.0
        self._partial_demanded = False
        # Set when the control state or the archiver has changed, or the end of the open segment is readable.
        self._news = asyncio.Event()
        self._control = self._acceptor.control
        self._was_archiver = False
        self.wakes_at_lsn: Lsn = 0
        self._reported: tuple[Lsn, str, str] | None = None
        self._reported_at = 0.0
        self._report_timer: asyncio.TimerHandle | None = None
        self._problems = ProblemLog(_log)
        self._retry_s = RETRY_S_MIN
        self._stuck_at_lsn: Lsn | None = None  # The archive's position when an upload failed.
        self._settled: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.partial_interval_s = partial_interval_s
        self.archived_lsn: Lsn = 0
        self.problem = NOT_LOOKED_YET
        self.archive_id = ""
        self.statistics = UploadStatistics()

    # Called by others.

    def start(self) -> None:
        """Start to check the archive, and to archive when the leader assigns it."""
        self._report()
        self._task = self._loop.create_task(self._run())

    def update(self) -> None:
        """See node.LogReaders."""
        acceptor = self._acceptor
        if acceptor.control is not self._control:
            # The log may be cut, and continue with other bytes, before the archiver runs again.
            self._see_log()
            self._news.set()
        elif acceptor.readable_lsn >= self.wakes_at_lsn or acceptor.is_archiver != self._was_archiver:
            self._news.set()

    def archive_now(self) -> None:
        """Archive the open segment at once, without waiting for the interval."""
        self._partial_demanded = True
        self._news.set()

    async def finish(self) -> None:
        """Return once all readable WAL is archived, or at once if it cannot be archived now."""
        if self._acceptor.is_archiver and not self.problem and self._task is not None:
            self._settled = self._loop.create_future()
            self.archive_now()
            await self._settled

    def close(self) -> None:
        """End the archiver. Uploads that run end in their threads, or with the process."""
        self._closed = True
        for task in (self._task, *self._uploads):
            if task is not None:
                task.cancel()
        if self._report_timer is not None:
            self._report_timer.cancel()
        for worker in self._workers:
            worker.stop()

    @property
    def unarchived_bytes(self) -> int:
        """The readable WAL that may not be archived yet, in bytes."""
        archived_lsn = max(self.archived_lsn or self._acceptor.archived_lsn, self._node.folder.begin_lsn)
        return max(0, self._acceptor.readable_lsn - archived_lsn)

    def describe(self) -> SafekeeperArchive:
        """Return the part of /status that describes the archive."""
        acceptor, last_upload_at = self._acceptor, self.statistics.last_upload_at
        return SafekeeperArchive(
            url=self._access.url,
            archiver=acceptor.is_archiver,
            archived_lsn=format_lsn(self.archived_lsn or acceptor.archived_lsn),
            lag_bytes=self.unarchived_bytes,
            problem=self.problem,
            uploads=self.statistics.times.count,
            uploaded_bytes=self.statistics.bytes,
            last_upload_at=datetime.fromtimestamp(last_upload_at, UTC).isoformat() if last_upload_at else None,
        )

    # The archiver's states.

    async def _run(self) -> None:
        while True:
            try:
                if not self._acceptor.control.cluster_id:
                    await self._wait(None)
                elif self._acceptor.is_archiver:
                    await self._archive()
                else:
                    await self._stand_by()
            except WalproxyError as error:
                await self._fail(str(error), serious=isinstance(error, _SERIOUS))
            except Exception as error:
                await self._fail(describe_bug(error), serious=True)

    async def _stand_by(self) -> None:
        # Another safekeeper now verifies the archive's position.
        self._plan, self.archived_lsn = None, 0
        uploader = await self._workers[0].run(self._uploader)
        await self._claim(self._workers[0], uploader)
        self._recover()
        await self._wait(CHECK_INTERVAL_S, until=lambda: self._acceptor.is_archiver)

    async def _archive(self) -> None:
        control = self._acceptor.control
        uploaders = {worker: await worker.run(self._uploader) for worker in self._workers}
        for worker, uploader in uploaders.items():
            await self._claim(worker, uploader)
        self._plan = plan = await self._look(uploaders[self._workers[0]])
        if self._stuck_at_lsn is None:
            self._recover()
        try:
            while self._acceptor.is_archiver and self._acceptor.control.cluster_id == control.cluster_id:
                self._follow()
                wait_s = self._begin_uploads(plan, uploaders)
                await self._wait(wait_s)
                self._collect(plan)
        finally:
            await self._give_up_uploads(plan)

    async def _claim(self, worker: Worker, uploader: "Uploader") -> None:
        """Verify that the archive belongs to this cluster; log an error if it is not the previous archive."""
        before_id = self._acceptor.archive_id
        claim = partial(uploader.claim, before_id or self.archive_id)
        archive_id = (await worker.run(claim)).archive_id
        if before_id and archive_id not in (before_id, self.archive_id):
            _log.error(
                "the archive %s (%s) is not the previous one (%s), and only that has the WAL below %s: if it was not "
                "unmounted or emptied, take a new base backup",
                self._access.url,
                archive_id[:8],
                before_id[:8],
                format_lsn(self._node.folder.begin_lsn),
            )
        self.archive_id = archive_id

    async def _look(self, uploader: "Uploader") -> ArchivingPlan:
        """Return a plan that includes the files that are already archived."""
        while True:
            while not self._see_log():
                await self._wait(None)
            epoch, acceptor = self._view.epoch, self._acceptor
            reported_lsn = acceptor.archived_lsn if acceptor.archive_id == self.archive_id else 0
            plan = ArchivingPlan(self._view.log, self._history_tlis(), self._acceptor.control.segment_size)
            listing = await self._workers[0].run(partial(uploader.listing, *plan.folders()))
            if epoch == self._view.epoch:
                break
        plan.follow(self._view.log, self._history_tlis())
        for archived in listing.objects:
            if archived.file.kind != "history" and archived.file.end_lsn <= reported_lsn:
                plan.found(archived.file)
        return plan

    def _follow(self) -> None:
        """Take over the present log; later changes set the event."""
        if self._see_log():
            segment_size = self._control.segment_size or 1
            self.wakes_at_lsn = self._view.log.end_lsn // segment_size * segment_size + segment_size
        else:
            self.wakes_at_lsn = 0
        self._was_archiver = self._acceptor.is_archiver
        if self._plan is not None:
            self.archived_lsn = self._plan.archived_lsn
        self._report()

    def _see_log(self) -> bool:
        """Refresh the log unless an event is changing it at this moment; return whether it was refreshed."""
        if not self._node.is_between_events:
            return False
        self._control = self._acceptor.control
        cluster_id = self._view.cluster_id
        if self._view.refresh() is not None and self._plan is not None:
            self._plan.follow(self._view.log, self._history_tlis())
            if self._view.cluster_id != cluster_id:
                # The position that was found in the archive belongs to the other cluster's log.
                self._plan, self.archived_lsn = None, 0
        return True

    async def _wait(self, timeout_s: float | None, until: Callable[[], bool] | None = None) -> None:
        """Return once the log has changed, an upload has ended, or the timeout is over.

        Args:
            until: continue to wait unless it returns True; changes are taken over meanwhile.
        """
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            self._follow()
            left_s = None if deadline is None else max(0.0, deadline - self._loop.time())
            news = self._loop.create_task(self._news.wait())
            try:
                done, _ = await asyncio.wait(
                    {news, *self._uploads}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                news.cancel()
            self._news.clear()
            if not done or until is None or until():
                return

    # Uploads.

    def _begin_uploads(self, plan: ArchivingPlan, uploaders: "dict[Worker, Uploader]") -> float | None:
        """Start the uploads that are due. Return the seconds until the open segment is due, None: after a change."""
        now, busy = self._loop.time(), [worker for worker, _ in self._uploads.values()]
        idle = [worker for worker in self._workers if worker not in busy]
        under_way = [file for _, file in self._uploads.values()]
        while idle and self._node.is_between_events:
            is_due = self._is_partial_due(now)
            file = plan.next_file(under_way, with_partial=is_due)
            nothing_is_left = file is None and not under_way
            # A call that was too early, or had another cause, must not postpone the open segment.
            if is_due and (nothing_is_left or (file is not None and file.kind == "partial")):
                self._partial_demanded = False
                self._partial_due_at = now + self.partial_interval_s
            if file is None:
                break
            worker = idle.pop()
            self._uploads[self._loop.create_task(self._upload(worker, uploaders[worker], file))] = worker, file
            under_way.append(file)
        if not under_way and self._node.is_between_events:
            self._recover()
            self._settle()
        # An upload that is due and not started waits for one that runs.
        return None if not idle or self._is_partial_due(now) else self._partial_due_at - now

    def _is_partial_due(self, now: float) -> bool:
        return self._partial_demanded or now >= self._partial_due_at

    async def _upload(self, worker: Worker, uploader: "Uploader", file: ArchivedFile) -> bool:
        """Upload a file; return whether the archive now has what this log has, which may have changed meanwhile."""
        epoch = self._view.epoch
        path = None if file.kind == "history" else self._path_of(file)
        content = self._history_of(file.tli) if path is None else self._segment_source(file, path)
        began_at = self._loop.time()
        try:
            is_new = await worker.run(partial(uploader.upload, file, content))
        except LogChanged:
            return False
        except StorageFailed:
            if path is not None and self._path_of(file) != path:
                return False  # It was renamed, to another timeline.
            raise
        if is_new:
            size_bytes = len(content) if isinstance(content, bytes) else file.end_lsn - file.begin_lsn
            self.statistics.count(size_bytes, self._loop.time() - began_at)
        return epoch == self._view.epoch

    def _segment_source(self, file: ArchivedFile, path: Path) -> "Content":
        acceptor, history = self._acceptor, self._acceptor.control.history
        # A log is cut only when another history is adopted, and another cluster's log has another history, too.
        return SegmentBytes(self._fs, path, file.end_lsn - file.begin_lsn, lambda: acceptor.control.history is history)

    def _path_of(self, file: ArchivedFile) -> Path:
        storage = self._node.folder.storage
        path = storage.segment_path(file.begin_lsn) if storage is not None else None
        if path is None:
            raise StorageFailed(f"the WAL segment of byte {format_lsn(file.begin_lsn)} does not exist")
        return path

    def _history_tlis(self) -> list[int]:
        return [history.tli for history in self._acceptor.control.tli_histories]

    def _history_of(self, tli: int) -> bytes:
        return next(history.content for history in self._acceptor.control.tli_histories if history.tli == tli)

    def _collect(self, plan: ArchivingPlan) -> None:
        """Record the uploads that have ended.

        Raises:
            WalproxyError: an upload has failed.
        """
        for task in [task for task in self._uploads if task.done()]:
            _, file = self._uploads.pop(task)
            try:
                if task.result():
                    plan.found(file)
            except WalproxyError:
                # All uploads, also of the open segment, must succeed again before the problem is reported as over.
                self._stuck_at_lsn, self._partial_due_at = plan.archived_lsn, 0.0
                raise
        if self._stuck_at_lsn is not None and plan.archived_lsn > self._stuck_at_lsn:
            self._recover()

    async def _give_up_uploads(self, plan: ArchivingPlan) -> None:
        """Wait for the uploads that run, without starting others."""
        if self._uploads and not self._closed:
            ended, _ = await asyncio.wait(self._uploads)
            for task in ended:
                _, file = self._uploads.pop(task)
                if task.exception() is None and task.result():
                    plan.found(file)
        self._settle()

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _uploader(self) -> "Uploader":
        """Return a new uploader. Call it in a thread, because opening the archive may have to wait."""
        # Imported when it is needed (safekeeper/archive/access.py).
        from safekeeper.archive.upload import Uploader

        control = self._acceptor.control
        return Uploader(
            self._access.store(),
            cluster_id=control.cluster_id,
            system_id=control.system_id,
            segment_size=control.segment_size,
            safekeeper_id=control.safekeeper_id,
            compress=self._compress,
        )

    # Problems and reports.

    async def _fail(self, reason: str, *, serious: bool) -> None:
        """Record a failure and wait before the next attempt."""
        self.statistics.errors += 1
        self.problem = one_line(reason).encode()[:_PROBLEM_BYTES_MAX].decode(errors="ignore")
        self._problems.note(
            self.problem, "cannot archive: %s", self.problem, level=logging.ERROR if serious else logging.WARNING
        )
        self._settle()
        wait_s, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_S_MAX)
        await self._wait(wait_s, until=lambda: False)

    def _recover(self) -> None:
        """Record that there is no problem, or no longer one."""
        if self._plan is not None:
            self._problems.over("archiving resumed from %s", format_lsn(self.archived_lsn))
        else:
            self._problems.over("archiving resumed")
        self.problem, self._stuck_at_lsn, self._retry_s = "", None, RETRY_S_MIN
        self._report()

    def _report(self) -> None:
        """Report changes to the leader: at once if the state is worse, else rate-limited."""
        before, state = self._reported, (self.archived_lsn, self.problem, self.archive_id)
        if state == before or self._closed:
            return
        left_s = self._reported_at + REPORT_INTERVAL_S - self._loop.time()
        is_better = before is not None and state[0] >= before[0] and state[1:] == before[1:]
        if is_better and left_s > 0:
            if self._report_timer is None:
                self._report_timer = self._loop.call_later(left_s, self._report_later)
            return
        self._reported, self._reported_at = state, self._loop.time()
        self._node.archive_reported(*state)

    def _report_later(self) -> None:
        self._report_timer = None
        self._report()
