"""The HTTP pages of the proxy.

GET /status    state, positions, safekeepers: JSON (walproxy/proxy/status.py)
GET /metrics   the same as metrics, for Prometheus (walproxy/proxy/metrics.py)
GET /events    what changed, and when: JSON (safekeeper/net/events_page.py)
GET /healthz   200 while the process runs; for a service manager that restarts it
GET /readyz    200 if commits succeed through this proxy now, else 503 with the reason; a spare is not ready
"""

import asyncio
from typing import Any

from safekeeper.net.events_page import events_route
from safekeeper.net.http_server import QueryRoute, Route, made_at_first_request
from safekeeper.net.listener import Listener
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.status import not_ready_reason, proxy_status


def proxy_routes(proxy: Proxy, listeners: dict[str, Listener[Any]]) -> dict[str, Route | QueryRoute]:
    """Return the pages of `proxy`, for `serve_http`.

    Args:
        listeners: its listeners by name, for /metrics; one that is added later is in it, too.
    """

    def readiness() -> tuple[int, dict[str, object]]:
        reason = not_ready_reason(proxy, _now())
        return (503, {"ok": False, "reason": reason}) if reason else (200, {"ok": True})

    def metrics() -> Route:
        from safekeeper.net.metrics_page import metrics_route
        from walproxy.proxy.metrics import ProxyCollector

        status, reason = lambda: proxy_status(proxy, _now()), lambda: not_ready_reason(proxy, _now())
        return metrics_route(ProxyCollector(status, reason, listeners))

    return {
        "/status": lambda: (200, proxy_status(proxy, _now())),
        # Not imported before: 25 ms of processor time and 3 MB, which the first commit would wait for.
        "/metrics": made_at_first_request(metrics),
        "/events": events_route(proxy.events),
        "/healthz": lambda: (200, {"ok": True}),
        "/readyz": readiness,
    }


def _now() -> float:
    return asyncio.get_running_loop().time()
