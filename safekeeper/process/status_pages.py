"""The pages of a safekeeper's HTTP listener.

    GET /status    positions, the followed proposer, its disk, its archive: JSON
    GET /metrics   figures for Prometheus (safekeeper/process/metrics.py)
    GET /events    what changed, and when: JSON (safekeeper/net/events_page.py)
    GET /healthz   200 while the process runs and its disk responds; for a supervisor that restarts it
    GET /readyz    200 if this safekeeper can take part in a quorum now, else 503 with the reason

Ready means: a voting member that does not lack disk space for WAL and whose disk responds. A missing proposer does not
matter, because the next proxy that connects is served. A learner and a folder that was never bootstrapped are not
ready, because they do not count for a quorum (S8).
"""

from collections.abc import Callable

from safekeeper.archiving.archiver import Archiver
from safekeeper.base.lsn import format_lsn
from safekeeper.base.status_fields import DiskStatus, PromisedLeader, SafekeeperStatus
from safekeeper.consensus.term_history import listed_terms, tli_at
from safekeeper.net.events_page import events_route
from safekeeper.net.http_server import Answer, QueryRoute, Route
from safekeeper.node.node import Node
from safekeeper.node.wal_pull import WalPuller
from safekeeper.process.retention import Retention
from safekeeper.serving.replication_listener import ReplicationListener

# A disk whose thread has been busy with one operation for longer than this is reported as stalled.
DISK_STALLED_S = 10.0


def safekeeper_routes(node: Node, status: Callable[[], SafekeeperStatus]) -> dict[str, Route | QueryRoute]:
    """Return the pages of a safekeeper, of which `status` returns the content of /status."""
    return {
        "/status": lambda: (200, status()),
        "/events": events_route(node.services.events.recorder),
        "/healthz": lambda: _verdict(health_problem(node)),
        "/readyz": lambda: _verdict(readiness_problem(node)),
    }


def safekeeper_status(
    node: Node,
    addresses: dict[str, str],
    pg_listener: ReplicationListener | None = None,
    archiver: Archiver | None = None,
    retention: Retention | None = None,
    puller: WalPuller | None = None,
) -> SafekeeperStatus:
    """Return the content of /status.

    Args:
        addresses: of the listeners, by name.
        pg_listener, archiver, retention, puller: None where there is none.
    """
    acceptor, control, folder = node.acceptor, node.acceptor.control, node.folder
    space, membership = node.disk_space.space, control.membership
    return SafekeeperStatus(
        id=control.safekeeper_id,
        state=acceptor.state,
        term=control.promised.term,
        tli=tli_at(control.history, acceptor.write_lsn),
        write_lsn=format_lsn(acceptor.write_lsn),
        flush_lsn=format_lsn(acceptor.flush_lsn),
        commit_lsn=format_lsn(acceptor.commit_lsn),
        truncate_lsn=format_lsn(acceptor.truncate_lsn),
        archived_lsn=format_lsn(acceptor.archived_lsn),
        wal_begin_lsn=format_lsn(control.wal_begin_lsn),
        votes=acceptor.is_voter,
        promised=PromisedLeader(term=control.promised.term, run=control.promised.proposer_id),
        follows=acceptor.leader.proposer_id if acceptor.leader is not None else None,
        history=listed_terms(control.history),
        incarnation=control.incarnation,
        cluster_id=control.cluster_id,
        system_id=str(control.system_id),
        server_version=control.server_version,
        segment_size=control.segment_size,
        generation=membership.generation if membership is not None else 0,
        members=sorted(membership.ids()) if membership is not None else [],
        disk=DiskStatus(
            free_bytes=space.free_bytes if space is not None else None,
            total_bytes=space.total_bytes if space is not None else None,
            wal_bytes=folder.wal_bytes,
            low=node.disk_space.is_low,
            no_room_for=node.disk_space.lacking,
            busy_s=round(node.disk.busy_s, 3),
            flush=node.wal.flush_times.describe(),
        ),
        readers=pg_listener.describe_readers() if pg_listener is not None else [],
        slots=retention.described_slots() if retention is not None else [],
        archive=archiver.describe() if archiver is not None else None,
        wal_limit=retention.limit_bytes if retention is not None else None,
        pull=puller.describe() if puller is not None else None,
        addresses=addresses,
    )


def health_problem(node: Node) -> str | None:
    """Return why the process is not healthy, None if it is."""
    if node.failed.done():
        return f"it failed: {node.failed.exception()}"
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
        return "a learner: its data folder is not a member and does not count for the quorum"
    if node.disk_space.lacking:
        return "; ".join(node.disk_space.lacking.values())
    return None


def _verdict(problem: str | None) -> Answer:
    return (200, {"ok": True}) if problem is None else (503, {"ok": False, "reason": problem})
