"""A reader of a real node's log, which tells the checkers of the end of each event, and checks what readers see.

The view (safekeeper/node/readable_log.py) is compared with the state of the acceptor and with what was readable before:
its epoch must change when, and only when, bytes that could be read are no longer part of the log (S7).
"""

from typing import TYPE_CHECKING

from safekeeper.acceptor.readable import ReadableLog, lineage_of
from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn
from safekeeper.node.node import Node
from safekeeper.node.readable_log import LogView
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.real_safekeeper import RealSafekeeper


class Watcher:
    """A reader that is informed of each event."""

    wakes_at_lsn: Lsn = 0

    def __init__(self, shell: "RealSafekeeper", node: Node) -> None:
        self._shell = shell
        self._node = node
        self._view = LogView(node)
        self._cluster_id, self._epoch = self._view.cluster_id, self._view.epoch
        self._log = self._expected()

    def update(self) -> None:
        """See LogReaders."""
        if self._node.is_between_events and not self._shell.disk.fs.is_down:
            self._check_view()
        self._shell.event_ended()

    def _expected(self) -> ReadableLog:
        acceptor = self._node.acceptor
        try:
            lineage = lineage_of(acceptor.control, acceptor.readable_tli)
        except RemoteProtocolError:
            lineage = ()
        return ReadableLog(self._node.folder.begin_lsn, acceptor.readable_lsn, acceptor.readable_tli, lineage)

    def _check_view(self) -> None:
        before, expected, view = self._log, self._expected(), self._view
        cluster_id = self._node.acceptor.control.cluster_id
        if cluster_id != self._cluster_id:
            self._epoch += bool(self._cluster_id)
        elif expected.end_lsn < before.end_lsn:
            self._epoch += 1
        returned = view.refresh()
        self._log, self._cluster_id = expected, cluster_id
        seen, wanted = (view.log, view.epoch, view.cluster_id), (expected, self._epoch, cluster_id)
        if seen != wanted or (returned is None and before != expected) or (returned is not None and returned != before):
            violation = Violation("ReadersKnow", f"{self._shell.name} shows its readers {seen}, not {wanted}")
            if self._shell.loop.failure is None:
                self._shell.loop.failure = violation
