"""The metrics of a safekeeper, for Prometheus: GET /metrics.

Every figure is read from the component that owns it at the time of the request; none is counted twice. LSNs are bytes
since the beginning of the WAL, so that their differences are lags.
"""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from safekeeper.archiving.archiver import Archiver
from safekeeper.archiving.read_through import ReadThrough
from safekeeper.base.lsn import parse_lsn
from safekeeper.net.listener import Listener
from safekeeper.net.metrics_page import Metrics
from safekeeper.net.tls import ServerTls
from safekeeper.node.node import Node
from safekeeper.node.wal_pull import WalPuller
from safekeeper.process.retention import Retention
from safekeeper.serving.readers import ReaderHub

_METRICS = Metrics("safekeeper")
_gauge, _gauges, _counter = _METRICS.gauge, _METRICS.gauges, _METRICS.counter


@dataclass(eq=False)
class SafekeeperCollector(Collector):
    """Collect the figures of one safekeeper. A figure that is None is left out.

    Attributes:
        listeners: the listeners by name.
        certificates: by the name of the listener that presents it, None for a listener without TLS.
    """

    node: Node
    retention: Retention
    _: KW_ONLY
    listeners: Mapping[str, Listener[Any]] = field(default_factory=dict)
    hub: ReaderHub | None = None
    archiver: Archiver | None = None
    read_through: ReadThrough | None = None
    puller: WalPuller | None = None
    certificates: Mapping[str, ServerTls | None] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield _METRICS.build_info()
        yield from self._of_the_log()
        yield from self._of_the_disk()
        yield from _METRICS.answers(self.node.answers)
        yield from _METRICS.listeners(self.listeners)
        yield _METRICS.certificates(self.certificates)
        if self.hub is not None:
            help = "Standbys and pg_receivewal processes that stream from this safekeeper"
            yield _gauge("readers", help, len(self.hub.readers))
        yield from self._of_the_slots()
        served_bytes = self.node.services.peer_reads.served_bytes
        yield _counter("served_to_members_bytes", "WAL that other members have pulled from here", served_bytes)
        if self.puller is not None:
            pulled = ((str(source), size) for source, size in self.puller.pulled_bytes.items())
            yield _METRICS.counters("pulled_bytes", "WAL that was pulled from another member", "source", pulled)
            yield _gauge("pulling", "1 while WAL is pulled from other members", self.puller.describe() is not None)
        if self.archiver is not None:
            yield from self._of_the_archive(self.archiver)
        if self.read_through is not None:
            archive = self.read_through
            yield _counter("read_through_segments", "Segments that readers received from the archive", archive.segments)
            yield _counter("read_through_errors", "Failed attempts to fetch a segment", archive.errors)
            yield _gauge("read_through_problem", "1 if reading from the archive fails", bool(archive.problem))

    def _of_the_log(self) -> Iterator[Metric]:
        acceptor = self.node.acceptor
        yield _gauge("term", "Term of the followed proposer", acceptor.control.promised.term)
        for name, help, lsn in (
            ("wal_begin", "Start of the retained WAL", self.node.folder.begin_lsn),
            ("write", "End of the received WAL", acceptor.write_lsn),
            ("flush", "End of the durable WAL", acceptor.flush_lsn),
            ("commit", "WAL below it is durable on a quorum", acceptor.commit_lsn),
            ("readable", "End of the WAL that readers may receive", acceptor.readable_lsn),
            ("truncate", "WAL below it is durable on every member", acceptor.truncate_lsn),
            ("archived", "WAL below it is in the archive", acceptor.archived_lsn),
        ):
            yield _gauge(f"{name}_lsn_bytes", help, lsn)

    def _of_the_disk(self) -> Iterator[Metric]:
        node, retention = self.node, self.retention
        yield _METRICS.histogram("flush_seconds", "Duration of flushes of WAL: fdatasync", node.wal.flush_times)
        yield _METRICS.histogram("append_bytes", "WAL in each append", node.wal.append_sizes)
        yield _gauge("wal_bytes", "Retained WAL", node.folder.wal_bytes)
        if retention.limit_bytes is not None:
            yield _gauge("wal_limit_bytes", "Limit of retained WAL, wal_limit", retention.limit_bytes)
            yield _gauge("wal_over_limit", "1 if more WAL than wal_limit is retained", retention.is_over_limit)
        if node.disk_space.space is not None:
            yield _gauge("disk_free_bytes", "Free space of the data folder's disk", node.disk_space.space.free_bytes)
            yield _gauge("disk_total_bytes", "Size of the data folder's disk", node.disk_space.space.total_bytes)
        help = "Failed attempts to open a file, because no file descriptor or memory was free"
        yield _counter("resource_shortages", help, node.disk_space.shortages)
        help = "1 if there was no disk space for WAL or the control file"
        yield _gauge("disk_lacking", help, bool(node.disk_space.lacking))

    def _of_the_slots(self) -> Iterator[Metric]:
        slots = self.retention.described_slots()
        positions = ((slot.name, parse_lsn(slot.restart_lsn)) for slot in slots if slot.restart_lsn is not None)
        help = "Oldest WAL that the slot's client needs; absent without one"
        yield _gauges("slot_restart_lsn_bytes", help, "slot", positions)
        retained = ((slot.name, slot.retained_bytes) for slot in slots)
        yield _gauges("slot_retained_bytes", "WAL that the slot retains", "slot", retained)
        idle = ((slot.name, slot.idle_s) for slot in slots)
        yield _gauges("slot_idle_seconds", "Time since a client used the slot, 0 while one does", "slot", idle)
        active = ((slot.name, slot.active) for slot in slots)
        yield _gauges("slot_active", "1 if a client uses the slot", "slot", active)

    def _of_the_archive(self, archiver: Archiver) -> Iterator[Metric]:
        statistics, acceptor = archiver.statistics, self.node.acceptor
        yield _gauge("archiver", "1 if this safekeeper archives", acceptor.is_archiver)
        yield _gauge("archive_problem", "1 if archiving fails at present", bool(archiver.problem))
        yield _gauge("unarchived_bytes", "Readable WAL that may not be archived yet", archiver.unarchived_bytes)
        yield _counter("archive_uploads", "Files uploaded to the archive", statistics.times.count)
        yield _counter("archive_uploaded_bytes", "Uncompressed bytes of the uploaded files", statistics.bytes)
        yield _counter("archive_errors", "Failed attempts to archive", statistics.errors)
        help = "Duration of uploads, including verification"
        yield _METRICS.histogram("archive_upload_seconds", help, statistics.times)
