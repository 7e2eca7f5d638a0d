"""The part of a node's log that readers may receive at this moment, and whether it was cut since (S7).

The hub of the readers and the archiver each have a view of their own. After every event of the node they refresh it and
compare it with what they have sent or archived.
"""

import logging

from safekeeper.acceptor.readable import ReadableLog, lineage_of
from safekeeper.base.errors import RemoteProtocolError
from safekeeper.node.node import Node

_log = logging.getLogger(__name__)


class LogView:
    """The readable log as it was between two events of a node.

    Attributes:
        log: the readable log.
        cluster_id: the cluster of the log, empty before the bootstrap.
        epoch: a number that changes when readable bytes were removed from the log.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._acceptor = node.acceptor
        self._control = self._acceptor.control
        self.cluster_id = self._control.cluster_id
        self.epoch = 0
        self.log = self._look(None)

    def refresh(self) -> ReadableLog | None:
        """Refresh the view; return the previous log if anything changed. Call it only between events. Cheap."""
        acceptor, before = self._acceptor, self.log
        # The timeline of the last byte changes with the history, which is in `control`, or with the end.
        if (
            acceptor.readable_lsn == before.end_lsn
            and acceptor.control is self._control
            and self._node.folder.begin_lsn == before.begin_lsn
        ):
            return None
        self.log = self._look(before)
        self._control = acceptor.control
        if self._control.cluster_id != self.cluster_id:
            # The first log removes nothing that was readable.
            self.epoch += bool(self.cluster_id)
            self.cluster_id = self._control.cluster_id
        elif self.log.end_lsn < before.end_lsn:
            self.epoch += 1
        return before

    def _look(self, before: ReadableLog | None) -> ReadableLog:
        acceptor, control = self._acceptor, self._acceptor.control
        tli = acceptor.readable_tli
        if before is not None and before.tli == tli and control is self._control:
            lineage = before.lineage
        else:
            try:
                lineage = lineage_of(control, tli)
            except RemoteProtocolError as error:
                _log.error("the WAL of older timelines cannot be read: %s", error)
                lineage = ()
        return ReadableLog(self._node.folder.begin_lsn, acceptor.readable_lsn, tli, lineage)
