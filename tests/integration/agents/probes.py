"""A writer at each server that does not respect its read-only default, and what their commits prove."""

import itertools
import time

from tests.integration.agents.test_agent import Agents
from walproxy.lab.failover.checks import find_lost, find_two_servers, find_two_writers_of_a_timeline
from walproxy.lab.failover.clients import probe
from walproxy.lab.failover.rows import CREATE_TABLE, Book, RowIds, row_ids


class Probes:
    """A client of each server that commits synchronously, whenever that server accepts writes."""

    def __init__(self, cluster: Agents) -> None:
        self._cluster = cluster
        self._history = Book()
        rows = RowIds()
        self._clients = [probe(host, rows, self._history) for host in cluster.hosts.values()]

    def __enter__(self) -> "Probes":
        self._cluster.wait_for_leader().execute(CREATE_TABLE)
        for each in self._clients:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for each in self._clients:
            each.stop(1.0)

    def wait_for_commit(self) -> float:
        """Wait until a commit that begins now is acknowledged; return for how many seconds none was."""
        self._clients[0].wait_for_commit(time.monotonic(), 40.0)
        ends = sorted(each.ended_at for each in self._history.acknowledged)
        return max(b - a for a, b in itertools.pairwise([*ends, time.monotonic()]))

    def verify(self) -> None:
        """Every acknowledged row is on the leader, and no two servers have acknowledged at the same time."""
        self._stop()
        acknowledged = self._history.acknowledged
        lost = find_lost(acknowledged, row_ids(self._cluster.wait_for_leader()))
        assert lost + find_two_servers(acknowledged) + find_two_writers_of_a_timeline(acknowledged) == []
