"""The metrics of a safekeeper, for Prometheus: GET /metrics.

Every figure is read from the component that owns it at the time of the request; none is counted twice. LSNs are bytes
since the beginning of the WAL, so that their differences are lags.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from safekeeper.archiving.archiver import Archiver
from safekeeper.archiving.read_through import ReadThrough
from safekeeper.archiving.statistics import UPLOAD_BUCKETS_S
from safekeeper.base.lsn import parse_lsn
from safekeeper.net.listener import Listener
from safekeeper.net.metrics_page import (
    answer_metrics,
    build_info,
    certificate_metrics,
    histogram_metric,
    listener_metrics,
)
from safekeeper.net.tls import ServerTls
from safekeeper.node.node import Node
from safekeeper.node.wal_pull import WalPuller
from safekeeper.process.retention import Retention
from safekeeper.serving.readers import ReaderHub


class SafekeeperCollector(Collector):
    """Collects the figures of one safekeeper. A figure that is None is left out.

    Attributes:
        listeners: the listeners by name.
        certificates: by the name of the listener that presents it, None for a listener without TLS.
    """

    def __init__(
        self,
        node: Node,
        retention: Retention,
        *,
        listeners: dict[str, Listener[Any]] | None = None,
        hub: ReaderHub | None = None,
        archiver: Archiver | None = None,
        read_through: ReadThrough | None = None,
        puller: WalPuller | None = None,
        certificates: Mapping[str, ServerTls | None] | None = None,
    ) -> None:
        self._node = node
        self._retention = retention
        self._hub = hub
        self._archiver = archiver
        self._read_through = read_through
        self._puller = puller
        self.listeners = listeners if listeners is not None else {}
        self.certificates = certificates if certificates is not None else {}

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield build_info("safekeeper")
        yield from self._of_the_log()
        yield from self._of_the_disk()
        yield from answer_metrics("safekeeper", self._node.answers)
        yield from listener_metrics("safekeeper", self.listeners)
        yield certificate_metrics("safekeeper", self.certificates)
        if self._hub is not None:
            yield _gauge(
                "readers",
                "Standbys and pg_receivewal processes that stream from this safekeeper",
                len(self._hub.readers),
            )
        yield from self._of_the_slots()
        yield _counter(
            "served_to_members_bytes",
            "WAL that other members have pulled from here",
            self._node.services.peer_reads.served_bytes,
        )
        if self._puller is not None:
            pulled = CounterMetricFamily(
                "safekeeper_pulled_bytes", "WAL that was pulled from another member", labels=["source"]
            )
            for source, size in self._puller.pulled_bytes.items():
                pulled.add_metric([str(source)], size)
            yield pulled
            yield _gauge("pulling", "1 while WAL is pulled from other members", self._puller.describe() is not None)
        if self._archiver is not None:
            yield from self._of_the_archive(self._archiver)
        if self._read_through is not None:
            archive = self._read_through
            yield _counter("read_through_segments", "Segments that readers received from the archive", archive.segments)
            yield _counter("read_through_errors", "Failed attempts to fetch a segment", archive.errors)
            yield _gauge("read_through_problem", "1 if reading from the archive fails", bool(archive.problem))

    def _of_the_log(self) -> Iterator[Metric]:
        acceptor = self._node.acceptor
        yield _gauge("term", "Term of the followed proposer", acceptor.control.promised.term)
        for name, help, lsn in (
            ("wal_begin", "Start of the retained WAL", self._node.folder.begin_lsn),
            ("write", "End of the received WAL", acceptor.write_lsn),
            ("flush", "End of the durable WAL", acceptor.flush_lsn),
            ("commit", "WAL below it is durable on a quorum", acceptor.commit_lsn),
            ("readable", "End of the WAL that readers may receive", acceptor.readable_lsn),
            ("truncate", "WAL below it is durable on every member", acceptor.truncate_lsn),
            ("archived", "WAL below it is in the archive", acceptor.archived_lsn),
        ):
            yield _gauge(f"{name}_lsn_bytes", help, lsn)

    def _of_the_disk(self) -> Iterator[Metric]:
        node, retention = self._node, self._retention
        flushes, appends = [("", node.wal.flush_times)], [("", node.wal.append_sizes)]
        yield histogram_metric("safekeeper_flush_seconds", "Duration of flushes of WAL: fdatasync", flushes)
        yield histogram_metric("safekeeper_append_bytes", "WAL in each append", appends)
        yield _gauge("wal_bytes", "Retained WAL", node.folder.wal_bytes)
        if retention.limit_bytes is not None:
            yield _gauge("wal_limit_bytes", "Limit of retained WAL, wal_limit", retention.limit_bytes)
            yield _gauge("wal_over_limit", "1 if more WAL than wal_limit is retained", retention.is_over_limit)
        if node.disk_space.space is not None:
            yield _gauge("disk_free_bytes", "Free space of the data folder's disk", node.disk_space.space.free_bytes)
            yield _gauge("disk_total_bytes", "Size of the data folder's disk", node.disk_space.space.total_bytes)
        yield _counter(
            "resource_shortages",
            "Failed attempts to open a file, because no file descriptor or memory was free",
            node.disk_space.shortages,
        )
        yield _gauge(
            "disk_lacking", "1 if there was no disk space for WAL or the control file", bool(node.disk_space.lacking)
        )

    def _of_the_slots(self) -> Iterator[Metric]:
        restart = _labelled(
            "slot_restart_lsn_bytes", "Oldest WAL that the slot's client needs; absent without one", "slot"
        )
        retained = _labelled("slot_retained_bytes", "WAL that the slot retains", "slot")
        idle = _labelled("slot_idle_seconds", "Time since a client used the slot, 0 while one does", "slot")
        active = _labelled("slot_active", "1 if a client uses the slot", "slot")
        for slot in self._retention.described_slots():
            label = [slot["name"]]
            if slot["restart_lsn"] is not None:
                restart.add_metric(label, parse_lsn(slot["restart_lsn"]))
            retained.add_metric(label, slot["retained_bytes"])
            idle.add_metric(label, slot["idle_s"])
            active.add_metric(label, slot["active"])
        yield from (restart, retained, idle, active)

    def _of_the_archive(self, archiver: Archiver) -> Iterator[Metric]:
        statistics, acceptor = archiver.statistics, self._node.acceptor
        yield _gauge("archiver", "1 if this safekeeper archives", acceptor.is_archiver)
        yield _gauge("archive_problem", "1 if archiving fails at present", bool(archiver.problem))
        yield _gauge("unarchived_bytes", "Readable WAL that may not be archived yet", archiver.unarchived_bytes)
        yield _counter("archive_uploads", "Files uploaded to the archive", statistics.uploads)
        yield _counter("archive_uploaded_bytes", "Uncompressed bytes of the uploaded files", statistics.bytes)
        yield _counter("archive_errors", "Failed attempts to archive", statistics.errors)
        bounds, total, buckets = (*map(str, UPLOAD_BUCKETS_S), "+Inf"), 0, []
        for bound, count in zip(bounds, statistics.by_seconds, strict=True):
            total += count
            buckets.append((bound, float(total)))
        yield HistogramMetricFamily(
            "safekeeper_archive_upload_seconds",
            "Duration of uploads, including verification",
            buckets=buckets,
            sum_value=statistics.seconds,
        )


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"safekeeper_{name}", help, value=value)


def _labelled(name: str, help: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"safekeeper_{name}", help, labels=[label])


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"safekeeper_{name}", help, value=value)
