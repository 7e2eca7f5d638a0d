"""What agents keep on this safekeeper: their reports, and the settings that they share (protocol step 14).

Reports are in memory: one per agent, of at most 64 agents, for an hour. The newest version of the settings is in a file
of its own, `agents`, which the disk's thread replaces as a whole; an exchange that brings a newer version is answered
once that is on disk, any other at once. A file that is damaged, or of another cluster, counts as absent: the agents
bring the settings back from the other safekeepers.

Nothing here changes the consensus, and no commit waits for it.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.base.errors import RemoteProtocolError, StorageFailed, StorageFull
from safekeeper.base.logs import ProblemLog, one_line
from safekeeper.base.worker import Worker
from safekeeper.consensus.messages import (
    AcceptorMessage,
    AgentExchange,
    AgentSettingsVersion,
    AgentView,
    KeptReport,
    Refusal,
    RefusalCode,
)
from safekeeper.peers.message_checks import AGENTS_MAX
from safekeeper.storage.control_file import StateFile
from safekeeper.storage.data_folder import KeptSettings

REPORT_FORGOTTEN_AFTER_S = 3600.0

_log = logging.getLogger(__name__)


class _Report(NamedTuple):
    content: bytes
    received_at: float


class _Waiting(NamedTuple):
    """An exchange that is answered once its settings, or newer ones, are on disk."""

    offered: AgentSettingsVersion
    view: AgentView


class AgentRegistry:
    """The registry of one safekeeper.

    Args:
        acceptor: of the node; it is only read, between two of its events.
        file: of the settings.
        disk: the thread in which the file is written.
        send: sends a message on a connection.
        clock: the loop's time, as the acceptor receives it.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        file: StateFile,
        disk: Worker,
        send: Callable[[int, AcceptorMessage], None],
        clock: Callable[[], float],
    ) -> None:
        """Read the settings (blocking)."""
        self._acceptor = acceptor
        self._file = file
        self._disk = disk
        self._send = send
        self._clock = clock
        self._started_at = clock()
        self._cluster_id = acceptor.control.cluster_id
        self._reports: dict[str, _Report] = {}  # The oldest first.
        self._kept = self._load()  # On disk.
        self._offered: AgentSettingsVersion | None = None  # Newer than those on disk, or being written.
        self._is_writing = False
        self._waiting: dict[int, _Waiting] = {}  # By connection.
        self._problem = ProblemLog(_log)

    def serve(self, connection: int, exchange: AgentExchange) -> None:
        """Keep what an agent of this cluster has sent, and answer it.

        Raises:
            RemoteProtocolError: it sends further settings before the reply to the last ones.
        """
        self._take_cluster(exchange.cluster_id)
        now = self._clock()
        self._forget_old_reports(now)
        if exchange.name:
            self._keep_report(exchange.name, _Report(exchange.report, now))
        view = self._view(now)
        offered = exchange.settings
        if offered is None or not _is_newer(offered, self._kept):
            self._answer(connection, view)
            return
        if connection in self._waiting:
            raise RemoteProtocolError("an agent sends settings before the reply to its last ones")
        self._waiting[connection] = _Waiting(offered, view)
        if _is_newer(offered, self._offered):
            self._offered = offered
        if not self._is_writing:
            self._write(self._offered or offered)

    def disconnected(self, connection: int) -> None:
        """Forget a connection. The settings that it has sent are written nevertheless."""
        self._waiting.pop(connection, None)

    def _keep_report(self, name: str, report: _Report) -> None:
        self._reports.pop(name, None)
        self._reports[name] = report
        if len(self._reports) > AGENTS_MAX:
            del self._reports[next(iter(self._reports))]

    def _forget_old_reports(self, now: float) -> None:
        for name, report in list(self._reports.items()):
            if now - report.received_at <= REPORT_FORGOTTEN_AFTER_S:
                return
            del self._reports[name]

    def _view(self, now: float) -> AgentView:
        acceptor = self._acceptor
        control, healthy_at = acceptor.control, acceptor.healthy_seen_at
        term, log_tli, floor, _ = acceptor.log_end
        return AgentView(
            cluster_id=control.cluster_id,
            incarnation=control.incarnation,
            promised=control.promised,
            leader_age_ms=_milliseconds(now - (self._started_at if healthy_at is None else healthy_at)),
            last_term=term,
            log_tli=log_tli,
            floor=floor,
            flush_lsn=acceptor.flush_lsn,
            commit_lsn=acceptor.commit_lsn,
            reports=tuple(
                KeptReport(name, _milliseconds(now - report.received_at), report.content)
                for name, report in sorted(self._reports.items())
            ),
        )

    def _answer(self, connection: int, view: AgentView) -> None:
        self._send(connection, msgspec.structs.replace(view, settings=self._kept))

    def _load(self) -> AgentSettingsVersion | None:
        try:
            stored = self._file.load(KeptSettings)
            if stored is None or stored.cluster_id != self._cluster_id:
                return None
            # After a failed sync the page cache may have what the disk has not (S12).
            with contextlib.suppress(StorageFull):  # The file stays as it is, and an exchange writes it later.
                self._file.store(stored)
        except StorageFailed as error:
            _log.warning("%s", error)
            return None
        return stored.settings

    def _take_cluster(self, cluster_id: str) -> None:
        """Drop what agents of another cluster have kept here: a rebootstrap has replaced it."""
        if cluster_id == self._cluster_id:
            return
        self._cluster_id = cluster_id
        self._reports.clear()
        self._kept = self._offered = None
        for connection in list(self._waiting):
            self._refuse(connection, RefusalCode.OTHER_CLUSTER, "a rebootstrap has replaced the cluster meanwhile")

    def _write(self, settings: AgentSettingsVersion) -> None:
        self._is_writing = True
        stored = KeptSettings(self._cluster_id, settings)
        self._disk.submit(lambda: self._file.store(stored), self._written, stored)

    def _written(self, stored: KeptSettings, _: object, error: BaseException | None) -> None:
        """Answer the exchanges that waited for this version or an older one, and write the next."""
        self._is_writing = False
        if error is not None and not isinstance(error, StorageFull | StorageFailed):
            raise error
        is_ours = stored.cluster_id == self._cluster_id
        if error is None:
            self._problem.over()
        else:
            self._problem.note(str(error), "could not save the settings of the agents: %s", error)
        if error is None and is_ours:
            self._kept = stored.settings
        if is_ours and self._offered == stored.settings:
            self._offered = None
        for connection, waiting in list(self._waiting.items()):
            if not is_ours or _is_newer(waiting.offered, stored.settings):
                continue
            if error is None:
                del self._waiting[connection]
                self._answer(connection, waiting.view)
            else:
                self._refuse(connection, RefusalCode.STORAGE_FULL, one_line(str(error)))
        if self._offered is not None:
            self._write(self._offered)

    def _refuse(self, connection: int, code: RefusalCode, reason: str) -> None:
        self._waiting.pop(connection, None)
        self._send(connection, Refusal(code, reason, self._acceptor.control.promised))


def _is_newer(settings: AgentSettingsVersion, other: AgentSettingsVersion | None) -> bool:
    return other is None or settings.key > other.key


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
