"""Serve what a running job reported last over HTTP, from a thread of its own: the job may wait for a store or a server.

/status    the report of the last step, and what the job waits for
/metrics   the same for Prometheus
/healthz   200: the process runs
/readyz    200 if the last step succeeded and all tables follow, otherwise 503 with the reason
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar

from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address
from safekeeper.net.http_access import OPEN_TO_ALL, HttpAccess
from safekeeper.net.http_server import Answer, Route, Text, serve_http
from safekeeper.net.tls import ServerTls
from walproxy.pipeline.cdc.apply.status_files import StatusFiles, metrics_text

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_T = TypeVar("_T")


@contextlib.contextmanager
def served_pages(
    status: StatusFiles,
    address: Address,
    tls: ServerTls | None = None,
    networks: Networks | None = None,
    access: HttpAccess = OPEN_TO_ALL,
) -> Iterator[Address]:
    """Serve the pages as long as the block runs; yield the address, with the port.

    Args:
        tls: the certificate of HTTPS, None for HTTP.
        networks: the networks from which clients are accepted, None for all.
        access: see `serve_http`.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="status pages", daemon=True)
    thread.start()

    def result_of(work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        listener = result_of(serve_http(_routes(status), address, tls=tls, networks=networks, access=access))
        try:
            yield listener.address
        finally:
            result_of(listener.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _routes(status: StatusFiles) -> Mapping[str, Route]:
    def report() -> Answer:
        return 200, {"problem": status.problem or None, "report": status.last}

    def metrics() -> Answer:
        last = status.last
        waits = "# HELP walproxy_apply_waiting 1 while the job waits for a server or a store that does not reply.\n"
        waits += f"# TYPE walproxy_apply_waiting gauge\nwalproxy_apply_waiting {int(bool(status.problem))}\n"
        return 200, Text(_METRICS_TYPE, (b"" if last is None else metrics_text(last)) + waits.encode())

    def readiness() -> Answer:
        reason = _reason(status)
        return (200, {"status": "ready"}) if reason is None else (503, {"status": "not ready", "reason": reason})

    return {"/status": report, "/metrics": metrics, "/healthz": lambda: (200, {"status": "ok"}), "/readyz": readiness}


def _reason(status: StatusFiles) -> str | None:
    """Return why not all tables follow, None if they do."""
    problem, last = status.problem, status.last
    if problem:
        return problem
    if last is None:
        return "no step was completed yet"
    reasons = []
    for state in ("quarantined", "copying"):
        names = sorted(name for name, table in last.tables.items() if table.state == state)
        if names:
            reasons.append(f"{state}: {', '.join(names)}")
    return "; ".join(reasons) or None
