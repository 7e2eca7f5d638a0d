"""The HTTP door, and what a safekeeper says about itself there.

    GET /status    positions, whom it follows, its disk: JSON
    GET /healthz   200 while the process lives and its disk answers; for whoever restarts a process
    GET /readyz    200 if this safekeeper can take part in a quorum now, else 503 with the reason

Ready means: a voting member, not lacking room for WAL, with a disk that answers. Having no proposer at the moment does
not matter: a proxy that comes will be served. A learner and a folder that was never bootstrapped are not ready,
because a quorum does not count them (S8).

`serve_http` is shared with the proxy: paths and functions that return a status code and a JSON value.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from safekeeper.consensus.term_history import tli_at
from safekeeper.errors import ConfigurationError
from safekeeper.lsn import format_lsn
from safekeeper.node import Node
from safekeeper.settings import Address

# A disk whose thread has been at one thing for longer than this does not answer.
DISK_STALLED_S = 10.0

Answer = tuple[int, Any]
Route = Callable[[], Answer]

_log = logging.getLogger(__name__)


class HttpDoor:
    """A small HTTP server. Made by `serve_http`; `close` ends it."""

    def __init__(self, runner: web.AppRunner, address: Address) -> None:
        self._runner = runner
        self.address = address

    async def close(self) -> None:
        """Stop listening and close all connections."""
        await self._runner.cleanup()


async def serve_http(
    routes: Mapping[str, Route], address: Address, *, application: web.Application | None = None
) -> HttpDoor:
    """Serve `routes` (GET path -> function that returns status code and JSON value) at `address`.

    Args:
        application: one that has other routes already, e.g. of another content type.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    application = application if application is not None else web.Application()
    for path, route in routes.items():
        application.router.add_get(path, _handler(route))
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, address.host, address.port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigurationError(
            f"could not serve HTTP at {address}: {error.strerror or error}: correct --http"
        ) from error
    return HttpDoor(runner, Address(address.host, runner.addresses[0][1]))


def _handler(route: Route) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        code, value = route()
        body = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
        return web.Response(status=code, body=body, content_type="application/json")

    return handle


def safekeeper_routes(node: Node, addresses: Callable[[], dict[str, str]]) -> dict[str, Route]:
    """Return the pages of a safekeeper.

    Args:
        node: whom they are about.
        addresses: returns where it listens, by door, for /status.
    """
    return {
        "/status": lambda: (200, status(node) | {"addresses": addresses()}),
        "/healthz": lambda: _verdict(health_problem(node)),
        "/readyz": lambda: _verdict(readiness_problem(node)),
    }


def status(node: Node) -> dict[str, Any]:
    """Return what /status shows; LSNs as PostgreSQL prints them."""
    acceptor, control, folder = node.acceptor, node.acceptor.control, node.folder
    space = node.room.space
    return {
        "id": control.safekeeper_id,
        "state": acceptor.state,
        "term": control.promised.term,
        "tli": tli_at(control.history, acceptor.write_lsn),
        "write_lsn": format_lsn(acceptor.write_lsn),
        "flush_lsn": format_lsn(acceptor.flush_lsn),
        "commit_lsn": format_lsn(acceptor.commit_lsn),
        "truncate_lsn": format_lsn(acceptor.truncate_lsn),
        "archived_lsn": format_lsn(control.archived_lsn),
        "wal_begin_lsn": format_lsn(control.wal_begin_lsn),
        "readers": [],
        "votes": acceptor.is_voter,
        "promised": {"term": control.promised.term, "run": control.promised.run},
        "follows": acceptor.leader.run if acceptor.leader is not None else None,
        "history": [
            {"term": entry.term, "start_lsn": format_lsn(entry.start_lsn), "tli": entry.tli}
            for entry in control.history
        ],
        "incarnation": control.incarnation,
        "cluster_id": control.cluster_id,
        "system_id": str(control.system_id),
        "server_version": control.server_version,
        "segment_size": control.segment_size,
        "generation": control.membership.generation if control.membership is not None else 0,
        "members": sorted(control.membership.ids()) if control.membership is not None else [],
        "disk": {
            "free_bytes": space.free_bytes if space is not None else None,
            "total_bytes": space.total_bytes if space is not None else None,
            "wal_bytes": folder.wal_bytes,
            "low": node.room.is_low,
            "no_room_for": node.room.lacking,
            "busy_s": round(node.disk.busy_s, 3),
        },
    }


def health_problem(node: Node) -> str | None:
    """Return why the process should be looked at, None if it is fine."""
    if node.failed.done():
        return f"it has failed: {node.failed.exception()}"
    if node.disk.busy_s > DISK_STALLED_S:
        return f"the disk has not answered for {node.disk.busy_s:.0f} s"
    return None


def readiness_problem(node: Node) -> str | None:
    """Return why this safekeeper cannot take part in a quorum, None if it can."""
    problem = health_problem(node)
    if problem is not None:
        return problem
    if node.acceptor.control.membership is None:
        return "empty: waits for a proxy to make it a member"
    if not node.acceptor.is_voter:
        return "a learner: its data folder is no member, so it does not count (S8)"
    if node.room.lacking:
        return "; ".join(node.room.lacking.values())
    return None


def _verdict(problem: str | None) -> Answer:
    return (200, {"ok": True}) if problem is None else (503, {"ok": False, "reason": problem})
