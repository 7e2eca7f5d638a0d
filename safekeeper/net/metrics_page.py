"""The page /metrics of either program, in the text format that Prometheus reads.

Its content comes from a collector, read at the time of the request. This module and those of the collectors are
imported at the first request for the page: prometheus_client is not needed before.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import functools
import platform
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from safekeeper.base.histogram import Histogram
from safekeeper.consensus.answer_counts import AnswerCounts
from safekeeper.net.http_server import Route, Text
from safekeeper.net.listener import Listener
from safekeeper.net.tls import ClientTls, ServerTls

Figures = Iterable[tuple[str, float | None]]


def metrics_route(collector: Collector) -> Route:
    """Return the page /metrics, for `serve_http`: the figures of `collector` and of the process (`process_*`)."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return lambda: (200, Text(CONTENT_TYPE_LATEST, generate_latest(registry)))


class Metrics(NamedTuple):
    """Makes the metrics of one program, whose names begin with `prefix`.

    A metric with a label has (value of the label, figure) pairs; a figure that is None is left out.
    """

    prefix: str

    def gauge(self, name: str, help: str, value: float) -> Metric:
        """Return a gauge without a label."""
        return GaugeMetricFamily(f"{self.prefix}_{name}", help, value=value)

    def counter(self, name: str, help: str, value: float) -> Metric:
        """Return a counter without a label."""
        return CounterMetricFamily(f"{self.prefix}_{name}", help, value=value)

    def gauges(self, name: str, help: str, label: str, figures: Figures) -> Metric:
        """Return a gauge with a label."""
        return _labelled(GaugeMetricFamily(f"{self.prefix}_{name}", help, labels=[label]), figures)

    def counters(self, name: str, help: str, label: str, figures: Figures) -> Metric:
        """Return a counter with a label."""
        return _labelled(CounterMetricFamily(f"{self.prefix}_{name}", help, labels=[label]), figures)

    def histogram(self, name: str, help: str, histogram: Histogram) -> Metric:
        """Return a classic histogram without a label."""
        buckets = histogram.buckets()
        return HistogramMetricFamily(f"{self.prefix}_{name}", help, buckets=buckets, sum_value=histogram.total)

    def histograms(self, name: str, help: str, label: str, histograms: Iterable[tuple[str, Histogram]]) -> Metric:
        """Return a classic histogram with a label."""
        family = HistogramMetricFamily(f"{self.prefix}_{name}", help, labels=[label])
        for value, histogram in histograms:
            family.add_metric([value], histogram.buckets(), histogram.total)
        return family

    def build_info(self) -> Metric:
        """Return the metric whose labels are the versions of the program and of Python."""
        name, help = f"{self.prefix}_build_info", "1; the labels are the versions"
        info = GaugeMetricFamily(name, help, labels=["version", "python"])
        info.add_metric([_version(), platform.python_version()], 1)
        return info

    def listeners(self, listeners: Mapping[str, Listener[Any]]) -> Iterator[Metric]:
        """Return the metrics of a process's listeners, by name."""
        open_now = GaugeMetricFamily(
            f"{self.prefix}_connections",
            "Connections, by whether the peer is known",
            labels=["listener", "authenticated"],
        )
        for name, listener in listeners.items():
            open_now.add_metric([name, "no"], listener.admission.unproven)
            open_now.add_metric([name, "yes"], listener.admission.proven)
        yield open_now
        yield self.counters(
            "connections_evicted",
            "Connections without authentication that were closed for newer ones",
            "listener",
            ((name, listener.admission.evictions) for name, listener in listeners.items()),
        )
        yield self.counters(
            "connections_refused",
            "Authenticated connections beyond the maximum",
            "listener",
            ((name, listener.admission.refusals) for name, listener in listeners.items()),
        )
        yield self.counters(
            "accept_shortages",
            "Failed attempts to accept a connection, because no file descriptor or memory was free",
            "listener",
            ((name, listener.accept_shortages) for name, listener in listeners.items()),
        )

    def certificates(self, certificates: Mapping[str, ServerTls | ClientTls | None]) -> Metric:
        """Return how long the certificates in use remain valid; negative for one that has expired since it was read.

        Args:
            certificates: by the listener that presents it, or "safekeepers" for that of connections to safekeepers.
                None, and one without a certificate of its own, is left out.
        """
        now = datetime.now(UTC)
        return self.gauges(
            "certificate_remaining_seconds",
            "Seconds until the certificate in use expires; absent without TLS",
            "certificate",
            (
                (name, (tls.valid_until - now).total_seconds())
                for name, tls in certificates.items()
                if tls is not None and tls.valid_until is not None
            ),
        )

    def answers(self, counts: AnswerCounts) -> Iterator[Metric]:
        """Return the metrics of votes and refusals."""
        votes = (("granted", counts.granted), ("refused", counts.refused))
        yield self.counters("votes", "Votes of safekeepers in elections", "answer", votes)
        refusals = ((code.value, count) for code, count in counts.refusals.items())
        yield self.counters("refusals", "Messages of proxies that safekeepers have refused", "reason", refusals)


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, figures: Figures) -> Metric:
    for value, figure in figures:
        if figure is not None:
            family.add_metric([value], figure)
    return family


@functools.cache
def _version() -> str:
    """Return the version of the package: read once, since that is as slow as half of a page."""
    return version("walproxy")
