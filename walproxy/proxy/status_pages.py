"""The HTTP pages of the proxy.

GET /status    state, positions, safekeepers: JSON (walproxy/proxy/status.py)
GET /metrics   the same as metrics, for Prometheus (walproxy/proxy/metrics.py)
GET /healthz   200 while the process runs; for a service manager that restarts it
GET /readyz    200 if commits succeed through this proxy now, else 503 with the reason; a spare is not ready
"""

import asyncio

from safekeeper.net.http_server import Route
from walproxy.proxy.metrics import ProxyCollector
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.status import not_ready_reason, proxy_status


def proxy_routes(proxy: Proxy) -> dict[str, Route]:
    """Return the pages of `proxy`, for `serve_http`."""

    def readiness() -> tuple[int, dict[str, object]]:
        reason = not_ready_reason(proxy, _now())
        return (503, {"ok": False, "reason": reason}) if reason else (200, {"ok": True})

    return {
        "/status": lambda: (200, proxy_status(proxy, _now())),
        "/healthz": lambda: (200, {"ok": True}),
        "/readyz": readiness,
    }


def proxy_collector(proxy: Proxy) -> ProxyCollector:
    """Return the collector of the metrics of `proxy`, for `metrics_application`."""
    return ProxyCollector(lambda: proxy_status(proxy, _now()), lambda: not_ready_reason(proxy, _now()))


def _now() -> float:
    return asyncio.get_running_loop().time()
