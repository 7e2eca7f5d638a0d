"""The page /metrics of either program, in the text format that Prometheus reads.

Its content comes from a collector, read at the time of the request.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from safekeeper.net.listener import Listener


def metrics_application(collector: Collector) -> web.Application:
    """Return an application, for `serve_http`, with the page /metrics."""
    registry = CollectorRegistry()
    registry.register(collector)

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    return application


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
