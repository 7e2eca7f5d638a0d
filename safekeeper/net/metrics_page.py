"""The page /metrics of either program, in the text format that Prometheus reads.

Its content comes from a collector, read at the time of the request. This module and those of the collectors are
imported at the first request for the page: prometheus_client is not needed before.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from safekeeper.net.http_server import Route, Text
from safekeeper.net.listener import Listener


def metrics_route(collector: Collector) -> Route:
    """Return the page /metrics, for `serve_http`."""
    registry = CollectorRegistry()
    registry.register(collector)
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
