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
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from safekeeper.base.histogram import Histogram
from safekeeper.consensus.answer_counts import AnswerCounts
from safekeeper.net.http_server import Route, Text
from safekeeper.net.listener import Listener
from safekeeper.net.tls import ClientTls, ServerTls


def metrics_route(collector: Collector) -> Route:
    """Return the page /metrics, for `serve_http`: the figures of `collector` and of the process (`process_*`)."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return lambda: (200, Text(CONTENT_TYPE_LATEST, generate_latest(registry)))


def listener_metrics(prefix: str, listeners: Mapping[str, Listener[Any]]) -> Iterator[Metric]:
    """Return the metrics of a process's listeners, by name."""
    open_now = GaugeMetricFamily(
        f"{prefix}_connections",
        "Connections, by whether the peer is known",
        labels=["listener", "authenticated"],
    )
    evicted = CounterMetricFamily(
        f"{prefix}_connections_evicted",
        "Connections without authentication that were closed for newer ones",
        labels=["listener"],
    )
    refused = CounterMetricFamily(
        f"{prefix}_connections_refused", "Authenticated connections beyond the maximum", labels=["listener"]
    )
    shortages = CounterMetricFamily(
        f"{prefix}_accept_shortages",
        "Failed attempts to accept a connection, because no file descriptor or memory was free",
        labels=["listener"],
    )
    for name, listener in listeners.items():
        open_now.add_metric([name, "no"], listener.admission.unproven)
        open_now.add_metric([name, "yes"], listener.admission.proven)
        evicted.add_metric([name], listener.admission.evictions)
        refused.add_metric([name], listener.admission.refusals)
        shortages.add_metric([name], listener.accept_shortages)
    yield from (open_now, evicted, refused, shortages)


def build_info(prefix: str) -> Metric:
    """Return the metric whose labels are the versions of the program and of Python."""
    info = GaugeMetricFamily(f"{prefix}_build_info", "1; the labels are the versions", labels=["version", "python"])
    info.add_metric([_version(), platform.python_version()], 1)
    return info


@functools.cache
def _version() -> str:
    """Return the version of the package: read once, since that is as slow as half of a page."""
    return version("walproxy")


def certificate_metrics(prefix: str, certificates: Mapping[str, ServerTls | ClientTls | None]) -> Metric:
    """Return how long the certificates in use remain valid; negative for one that has expired since it was read.

    Args:
        certificates: by the listener that presents it, or "safekeepers" for that of connections to safekeepers. None,
            and one without a certificate of its own, is left out.
    """
    remaining = GaugeMetricFamily(
        f"{prefix}_certificate_remaining_seconds",
        "Seconds until the certificate in use expires; absent without TLS",
        labels=["certificate"],
    )
    now = datetime.now(UTC)
    for name, tls in certificates.items():
        if tls is not None and tls.valid_until is not None:
            remaining.add_metric([name], (tls.valid_until - now).total_seconds())
    return remaining


def histogram_metric(
    name: str, help: str, histograms: Iterable[tuple[str, Histogram]], label: str | None = None
) -> Metric:
    """Return a classic histogram.

    Args:
        histograms: each with the value of the label, which is ignored if there is none.
        label: the name of the label; None for a single histogram without one.
    """
    family = HistogramMetricFamily(name, help, labels=[label] if label is not None else [])
    for value, histogram in histograms:
        family.add_metric([value] if label is not None else [], histogram.buckets(), histogram.total)
    return family


def answer_metrics(prefix: str, counts: AnswerCounts) -> Iterator[Metric]:
    """Return the metrics of votes and refusals."""
    votes = CounterMetricFamily(f"{prefix}_votes", "Votes of safekeepers in elections", labels=["answer"])
    votes.add_metric(["granted"], counts.granted)
    votes.add_metric(["refused"], counts.refused)
    refusals = CounterMetricFamily(
        f"{prefix}_refusals", "Messages of proxies that safekeepers have refused", labels=["reason"]
    )
    for code, count in counts.refusals.items():
        refusals.add_metric([code.value], count)
    yield from (votes, refusals)
