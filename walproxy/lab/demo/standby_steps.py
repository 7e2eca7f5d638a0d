"""The demo's chapter of the standby: fed by safekeepers, promoted when the primary is lost, followed by the proxy."""

import time

import psycopg
from psycopg import pq

from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.lab.cluster.local_standby import received_lsn, replay_lsn
from walproxy.lab.demo.stage import SHORT_WATCH_S, DemoStage, Step, leading_proxy, serving_proxy
from walproxy.postgres.local_server import LocalPostgres

STANDBY = "standby"
# The proxies know that remote_apply waits for the standby, also before there is one.
PROXY_OPTIONS = ("-c", f"remote_apply_standbys={STANDBY}")


def _add_standby(stage: DemoStage) -> str:
    cluster = stage.cluster
    began_at = time.monotonic()
    standby = cluster.add_standby(STANDBY)
    target_lsn = cluster.commit_lsn()
    stage.wait_until(lambda: replay_lsn(standby) >= target_lsn, "the standby has caught up")
    seconds = time.monotonic() - began_at
    stage.wait_until(lambda: _applied_lsn(stage) >= target_lsn, "the proxy has its replay position")
    cluster.postgres.execute("CREATE TABLE note (line text)")
    committed_ms = _commit_applied(cluster.postgres, "INSERT INTO note VALUES ('hello')")
    seen = standby.execute("SELECT line FROM note")
    stage.require(seen == [("hello",)], "a commit with remote_apply returned before the standby showed its row")
    fed_by = _feeding_safekeeper(stage, standby)
    return (
        f"copied and caught up in {seconds:.1f} s, streams from safekeeper {fed_by}; a commit with remote_apply took "
        f"{committed_ms:.1f} ms, and its row was on the standby then"
    )


def _kill_its_safekeeper(stage: DemoStage) -> str:
    standby = stage.cluster.standbys[STANDBY]
    stage.wait_until(lambda: _feeding_safekeeper(stage, standby) is not None, "the standby streams")
    fed_by = _feeding_safekeeper(stage, standby)
    assert fed_by is not None  # nothing has disconnected it
    stage.kill_safekeeper(fed_by)
    target_lsn = stage.dead_since_lsn[fed_by]

    def goes_on() -> bool:
        return _feeding_safekeeper(stage, standby) not in (fed_by, None) and replay_lsn(standby) > target_lsn

    seconds = stage.wait_until(goes_on, "the standby streams from another safekeeper")
    now_fed_by = _feeding_safekeeper(stage, standby)
    stage.cluster.safekeepers[fed_by].start()
    return f"safekeeper {fed_by} was killed; from safekeeper {now_fed_by} it replays what is new after {seconds:.2f} s"


def _promote(stage: DemoStage) -> str:
    cluster = stage.cluster
    standby = cluster.standbys[STANDBY]
    leading = leading_proxy(cluster)
    # While the quorum hangs a spare may be voted for, and be without a primary a moment later: then no proxy could
    # send the standby the last commit position (docs/guide/failover.md).
    spares = [proxy for proxy in cluster.proxies if leading is not None and proxy is not leading[0]]
    for proxy in spares:
        proxy.kill9()
    # A quorum that hangs makes sure that commits wait when the primary dies.
    hung = [cluster.safekeepers[i] for i in sorted(cluster.safekeepers)[-2:]]
    for process in hung:
        process.pause()
    stage.wait_until_all_wait()
    waiting, _ = stage.waiting_clients()
    before = time.monotonic()
    cluster.postgres.kill9()
    for process in hung:
        process.resume()
    stage.wait_until(lambda: _has_all_that_is_committed(stage, standby), "the standby has all committed WAL")
    cluster.promote(STANDBY)
    promoted = time.monotonic()
    for proxy in spares:
        cluster.start_proxy(proxy)
    seconds = stage.seconds_to_new_commit(before, promoted)
    status = serving_proxy(stage)[1]
    stage.require(status.tli == 2, f"the proxy streams TLI {status.tli}, not 2")
    stage.observe(SHORT_WATCH_S)
    return (
        f"{waiting} commits waited at the kill; the standby was promoted {promoted - before:.2f} s after it, the first "
        f"commit on TLI 2 came after {seconds:.2f} s (term {status.term})"
    )


def _bring_back_old_primary(stage: DemoStage) -> str:
    cluster = stage.cluster
    old = cluster.former_primaries[-1]
    old.start()
    client = pq.PGconn.connect(old.conninfo().encode())
    try:
        client.send_query(b"INSERT INTO note VALUES ('lost')")
        # Proxies that have just been started know nothing of what was before, and find both servers taking writes.
        for proxy in cluster.proxies:
            proxy.kill9()
        killed = time.monotonic()
        for proxy in cluster.proxies:
            cluster.start_proxy(proxy)
        seconds = stage.seconds_to_new_commit(killed, killed)
        stage.wait_until(lambda: _refusal(stage, old) is not None, "a proxy refuses the old primary")
        stage.observe(SHORT_WATCH_S)
        client.consume_input()
        stage.require(client.is_busy() == 1, "a commit on the old primary was answered")
        status = serving_proxy(stage)[1]
        stage.require(status.tli == 2, f"the proxy streams TLI {status.tli}, not 2")
        return (
            f"commits go on after {seconds:.2f} s, one on the old primary waits; it is refused: {_refusal(stage, old)}"
        )
    finally:
        client.finish()
        old.stop("immediate")


def _commit_applied(primary: LocalPostgres, sql: str) -> float:
    """Run `sql` and wait until standbys have applied it; return how many milliseconds that took."""
    conninfo = primary.conninfo(options="-c synchronous_commit=remote_apply")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        began_at = time.monotonic()
        connection.execute(sql.encode())
        return (time.monotonic() - began_at) * 1000


def _feeding_safekeeper(stage: DemoStage, standby: LocalPostgres) -> int | None:
    """Return the safekeeper that a standby streams from, None if it streams from none."""
    rows = standby.execute("SELECT sender_port FROM pg_stat_wal_receiver WHERE status = 'streaming'")
    return stage.cluster.safekeeper_at(rows[0][0]) if rows else None


def _applied_lsn(stage: DemoStage) -> Lsn:
    """Return how far the designated standby has replayed, as the serving proxy reports it to PostgreSQL."""
    leading = leading_proxy(stage.cluster)
    return parse_lsn(leading[1].apply_lsn) if leading is not None else 0


def _has_all_that_is_committed(stage: DemoStage, standby: LocalPostgres) -> bool:
    """Tell whether all that the proxy has got from the dead primary is committed, and the standby has it.

    A safekeeper that hung may have more on its disk than that: the next term might have to keep it.
    """
    leading = leading_proxy(stage.cluster)
    if leading is None:
        return False
    commit_lsn, end_lsn = parse_lsn(leading[1].commit_lsn), parse_lsn(leading[1].received_lsn)
    statuses = [safekeeper.status() for safekeeper in stage.cluster.safekeepers.values()]
    nobody_has_more = all(status is not None and parse_lsn(status["flush_lsn"]) <= commit_lsn for status in statuses)
    return commit_lsn == end_lsn and nobody_has_more and received_lsn(standby) >= commit_lsn


def _refusal(stage: DemoStage, server: LocalPostgres) -> str | None:
    """Return why a proxy refuses `server`, None as long as none does."""
    for status in filter(None, (proxy.proxy_status() for proxy in stage.cluster.proxies)):
        for host in status.primary.hosts:
            if host.host.endswith(f":{server.port}") and host.state == "refused":
                return one_line(str(host.problem).partition(": ")[0])
    return None


STANDBY_STEPS = (
    Step("add a standby that safekeepers feed", _add_standby),
    Step("kill -9 its safekeeper: it streams on", _kill_its_safekeeper),
    Step("kill -9 PostgreSQL, promote the standby", _promote),
    Step("the old primary comes back: it is refused", _bring_back_old_primary),
)
