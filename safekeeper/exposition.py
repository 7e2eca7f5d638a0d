"""The page /metrics of either program, in the text format that Prometheus reads.

What it says is a collector's, read at the moment of the request.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector


def metrics_application(collector: Collector) -> web.Application:
    """Return an application, for `serve_http`, that has the page /metrics."""
    registry = CollectorRegistry()
    registry.register(collector)

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    return application
