"""The proxy's pages.

GET /status    state, positions, safekeepers: JSON (walproxy/status.py)
GET /healthz   200 while the process lives; for whoever restarts a process
GET /readyz    200 if commits go through this proxy now, else 503 with the reason; a spare is not ready
"""

import asyncio

from safekeeper.http_door import Route
from walproxy.proxy import Proxy
from walproxy.status import not_ready_reason, proxy_status


def proxy_routes(proxy: Proxy) -> dict[str, Route]:
    """Return the pages of `proxy`, for `serve_http`."""

    def now() -> float:
        return asyncio.get_running_loop().time()

    def readiness() -> tuple[int, dict[str, object]]:
        reason = not_ready_reason(proxy, now())
        return (503, {"ok": False, "reason": reason}) if reason else (200, {"ok": True})

    return {
        "/status": lambda: (200, proxy_status(proxy, now())),
        "/healthz": lambda: (200, {"ok": True}),
        "/readyz": readiness,
    }
