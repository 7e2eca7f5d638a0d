"""A reader of a real node's log, which reports the end of each event to the checkers, and checks what readers see.

The view (safekeeper/node/readable_log.py) is compared with the state of the acceptor and with what was readable before:
its epoch must change when, and only when, bytes that could be read are no longer part of the log (S7).
"""

from typing import TYPE_CHECKING

from safekeeper.acceptor.readable import ReadableLog, lineage_of
from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn
from safekeeper.node.node import Node
from safekeeper.node.readable_log import LogView
from tests.simulation.checks.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.shells.real_safekeeper import RealSafekeeper


class Watcher:
    """A reader that is informed of each event."""

    wakes_at_lsn: Lsn = 0

    def __init__(self, shell: "RealSafekeeper", node: Node) -> None:
        self._shell = shell
        self._node = node
        self._view = LogView(node)
        self._cluster_id, self._epoch = self._view.cluster_id, self._view.epoch
        self._state: tuple[Lsn, Lsn, object] = (-1, 0, None)
        self._lineage_of: tuple[object, int] | None = None
        self._lineage: tuple[tuple[int, Lsn], ...] = ()
        self._log = self._expected()

    def update(self) -> None:
        """See LogReaders."""
        if self._node.is_between_events and not self._shell.disk.fs.is_down:
            self._check_view()
        self._shell.event_ended()

    def _expected(self) -> ReadableLog:
        acceptor, tli = self._node.acceptor, self._node.acceptor.readable_tli
        if self._lineage_of is None or self._lineage_of[0] is not acceptor.control or self._lineage_of[1] != tli:
            self._lineage_of = acceptor.control, tli
            try:
                self._lineage = lineage_of(acceptor.control, tli)
            except RemoteProtocolError:
                self._lineage = ()
        return ReadableLog(self._node.folder.begin_lsn, acceptor.readable_lsn, tli, self._lineage)

    def _check_view(self) -> None:
        view, acceptor = self._view, self._node.acceptor
        returned = view.refresh()
        state = acceptor.readable_lsn, self._node.folder.begin_lsn, acceptor.control
        if returned is None and self._state[:2] == state[:2] and self._state[2] is state[2]:
            return
        self._state = state
        before, expected = self._log, self._expected()
        cluster_id = acceptor.control.cluster_id
        if cluster_id != self._cluster_id:
            self._epoch += bool(self._cluster_id)
        elif expected.end_lsn < before.end_lsn:
            self._epoch += 1
        self._log, self._cluster_id = expected, cluster_id
        seen, wanted = (view.log, view.epoch, view.cluster_id), (expected, self._epoch, cluster_id)
        if seen != wanted or (returned is None and before != expected) or (returned is not None and returned != before):
            violation = Violation("ReadersKnow", f"{self._shell.name} shows its readers {seen}, not {wanted}")
            if self._shell.loop.failure is None:
                self._shell.loop.failure = violation
