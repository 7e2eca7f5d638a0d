"""The HTTP pages of the proxy.

GET /status   state, positions, safekeepers: JSON (walproxy/proxy/status.py)
GET /limbo    the transactions that wait, with their sessions: JSON (walproxy/limbo/page.py)
GET /metrics  the same as metrics, for Prometheus (walproxy/proxy/metrics.py)
GET /events   what changed, and when: JSON (safekeeper/net/events_page.py)
GET /healthz  200 while the process runs; for a service manager that restarts it
GET /readyz   200 if commits succeed through this proxy now, else 503 with the reason; a spare is not ready
"""

import asyncio
from typing import Any

from safekeeper.base.lsn import format_lsn
from safekeeper.net.events_page import events_route
from safekeeper.net.http_server import Answer, QueryRoute, Route, SlowRoute, made_at_first_request
from safekeeper.net.listener import Listener
from safekeeper.net.tls import ServerTls
from walproxy.limbo.limbo import REQUEST_DECODE_S
from walproxy.limbo.page import limbo_as_last_read, limbo_page
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.status import not_ready_reason, proxy_status


def proxy_routes(
    proxy: Proxy, listeners: dict[str, Listener[Any]], http_tls: ServerTls | None = None
) -> dict[str, Route | QueryRoute | SlowRoute]:
    """Return the pages of `proxy`, for `serve_http`.

    Args:
        listeners: its listeners by name, for /metrics; one that is added later is in it, too.
        http_tls: the certificate of its HTTP listener, None without TLS.
    """

    def readiness() -> tuple[int, dict[str, object]]:
        reason = not_ready_reason(proxy, _now())
        return (503, {"ok": False, "reason": reason}) if reason else (200, {"ok": True})

    def metrics() -> Route:
        from safekeeper.net.metrics_page import metrics_route
        from walproxy.proxy.metrics import ProxyCollector

        status, reason = lambda: proxy_status(proxy, _now()), lambda: not_ready_reason(proxy, _now())
        certificates = {"http": http_tls, "safekeepers": proxy.credentials.tls}
        return metrics_route(ProxyCollector(status, reason, proxy.measured, listeners, certificates))

    async def limbo() -> Answer:
        await proxy.limbo.refresh(REQUEST_DECODE_S)
        return 200, limbo_page(proxy.limbo, proxy.limbo_facts())

    return {
        "/limbo": SlowRoute(limbo),
        "/status": lambda: (200, proxy_status(proxy, _now())),
        # Not imported before: 25 ms of processor time and 3 MB, which the first commit would wait for.
        "/metrics": made_at_first_request(metrics),
        "/events": events_route(proxy.events),
        "/healthz": lambda: (200, {"ok": True}),
        "/readyz": readiness,
    }


def progress(proxy: Proxy) -> dict[str, str]:
    """Return what the proxy's agent requests of /status."""
    view = proxy.view(_now())
    commit_lsn = view.led.commit_lsn if view.led is not None else 0
    return {"state": proxy.public_state(view), "commit_lsn": format_lsn(commit_lsn)}


def limbo_as_seen(proxy: Proxy) -> dict[str, Any]:
    """Return the limbo for the page at `/`, without a query to PostgreSQL for each second that it is open."""
    return limbo_as_last_read(proxy.limbo, proxy.limbo_facts())


def _now() -> float:
    return asyncio.get_running_loop().time()
