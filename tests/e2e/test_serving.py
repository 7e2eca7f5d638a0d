"""The deployment of docker-compose.yml serves what it promises, whatever happens to its containers.

Commits go on while a quorum of safekeepers can be reached, wait while there is none, and go on when there is one again.
"""

import time
import urllib.request
from typing import Literal

import pytest

from tests.e2e.commits import SentStatement, assert_books_hold, commit, transfers, waits_for_standby
from tests.e2e.deployment import PASSWORD, PROXIES, SAFEKEEPERS, Deployment, Session, wait_until
from walproxy.lab.demo import bank
from walproxy.lab.load.history import History


def test_a_commit_goes_through_the_quorum_to_the_standby_and_into_the_archive(deployment: Deployment) -> None:
    with deployment.connect() as primary, deployment.connect("standby") as standby:
        rows = primary.execute("SELECT application_name, sync_state FROM pg_stat_replication WHERE state = 'streaming'")
        assert rows.fetchall() == [("walproxy", "sync")]
        commit(primary, "CREATE TABLE brought_up AS SELECT 1 AS entry")
        [(lsn,)] = primary.execute("SELECT pg_current_wal_lsn()").fetchall()
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: standby.execute(replayed, [lsn]).fetchone() == (True,), "the standby has replayed it")
        assert standby.execute("SELECT entry, pg_is_in_recovery() FROM brought_up").fetchone() == (1, True)

        archived = "SELECT %s::pg_lsn >= %s::pg_lsn"

        def is_archived() -> bool:
            archive = deployment.leaders_status()["archive"]
            return primary.execute(archived, [archive["archived_lsn"], lsn]).fetchone() == (True,)

        wait_until(is_archived, lambda: f"it is archived: {deployment.leaders_status()['archive']}")
        wait_until(lambda: _standbys(deployment) == ["standby"], "the proxy reports the standby")


def test_the_load_and_the_metrics_are_there(deployment: Deployment) -> None:
    with deployment.connect() as session:
        load = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'load'"
        [(before,)] = session.execute(load).fetchall()
        wait_until(lambda: session.execute(load).fetchall()[0][0] > before, "the load commits")
    for safekeeper in SAFEKEEPERS:
        with urllib.request.urlopen(f"http://127.0.0.1:{deployment.ports[safekeeper]}/metrics", timeout=5) as page:
            assert b"\nsafekeeper_commit_lsn_bytes " in page.read()


@pytest.mark.timeout(180)
def test_any_service_but_postgresql_can_be_killed_and_commits_go_on(deployment: Deployment) -> None:
    with deployment.connect() as session:
        commit(session, "CREATE TABLE survivor (killed text)")
        leader = deployment.leader()
        assert leader is not None
        spare = next(proxy for proxy in PROXIES if proxy != leader)
        for service in ("load", "standby", "store", *SAFEKEEPERS, spare, leader):
            deployment.kill(service)
            commit(session, f"INSERT INTO survivor VALUES ('{service}')")
            deployment.start(service)
            deployment.wait_until_whole()
        wait_until(lambda: deployment.leader() == spare, "the spare leads")
        assert session.execute("SELECT count(*) FROM survivor").fetchone() == (8,)


@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_commits_wait_while_two_safekeepers_are_gone_and_return_when_one_is_back(
    deployment: Deployment, fault: str
) -> None:
    with deployment.connect() as writer, deployment.connect() as observer:
        commit(writer, f"CREATE TABLE gone_{fault} (entry int)")
        if fault == "killed":
            deployment.kill("safekeeper1", "safekeeper2")
            pending = _until_it_waits(deployment, writer, observer, f"INSERT INTO gone_{fault} VALUES (1)")
            deployment.start("safekeeper2")
            pending.finish()
            # The two that were killed make a quorum only if both have caught up with the one that was not.
            deployment.start("safekeeper1")
            deployment.kill("safekeeper3")
            commit(writer, f"INSERT INTO gone_{fault} VALUES (2)")
            deployment.start("safekeeper3")
        else:
            with deployment.paused("safekeeper3"):
                with deployment.paused("safekeeper1"):
                    pending = _until_it_waits(deployment, writer, observer, f"INSERT INTO gone_{fault} VALUES (1)")
                pending.finish()
                commit(writer, f"INSERT INTO gone_{fault} VALUES (2)")
        assert observer.execute(f"SELECT entry FROM gone_{fault} ORDER BY entry").fetchall() == [(1,), (2,)]


def test_a_paused_proxy_is_replaced_by_the_spare_and_is_the_spare_afterwards(deployment: Deployment) -> None:
    leader = deployment.leader()
    assert leader is not None
    with deployment.connect() as session:
        with deployment.paused(leader):
            commit(session, f"CREATE TABLE without_{leader} ()")
            wait_until(lambda: deployment.is_whole() and deployment.leader() != leader, "the other proxy streams")
        wait_until(lambda: (deployment.status(leader) or {}).get("spare"), f"{leader} is the spare")
        commit(session, f"DROP TABLE without_{leader}")


def test_a_safekeeper_and_the_store_without_a_network_hold_up_nothing_and_catch_up(deployment: Deployment) -> None:
    with deployment.connect() as session:
        with deployment.disconnected("safekeeper2"), deployment.disconnected("store"):
            commit(session, "CREATE TABLE cut_off AS SELECT generate_series(1, 10000)")
            wait_until(lambda: deployment.safekeeper_state("safekeeper2") == "disconnected", "it is missed")
            commit(session, "DROP TABLE cut_off")
            [(lsn,)] = session.execute("SELECT pg_current_wal_lsn()").fetchall()
        deployment.wait_until_whole()
        archived = "SELECT %s::pg_lsn >= %s::pg_lsn"
        wait_until(
            lambda: (
                session.execute(archived, [deployment.leaders_status()["archive"]["archived_lsn"], lsn]).fetchone()
                == (True,)
            ),
            lambda: f"the archive catches up: {deployment.leaders_status()['archive']}",
        )


@pytest.mark.usefixtures("inside_namespaces")
@pytest.mark.parametrize("direction", ["to", "from"])
def test_one_safekeeper_cut_off_one_way_is_not_needed_and_two_are(
    deployment: Deployment, direction: Literal["to", "from"]
) -> None:
    other: Literal["to", "from"] = "from" if direction == "to" else "to"
    with deployment.connect() as writer, deployment.connect() as observer:
        with deployment.half_cut("safekeeper1", direction):
            commit(writer, f"CREATE TABLE half_cut_{direction} (entry int)")
            with deployment.half_cut("safekeeper2", other):
                pending = _until_it_waits(deployment, writer, observer, f"INSERT INTO half_cut_{direction} VALUES (1)")
            pending.finish()
            wait_until(lambda: deployment.safekeeper_state("safekeeper1") == "disconnected", "it is missed")
        deployment.wait_until_whole()
        commit(writer, f"DROP TABLE half_cut_{direction}")


def test_one_slow_disk_holds_up_no_commit_and_two_do(deployment: Deployment) -> None:
    control = "/tmp/disk"
    program = "python3 -m walproxy.lab.testing.faulty_disk"
    slow = ("safekeeper1", "safekeeper2")
    changes: dict[str, dict[str, object]] = {
        safekeeper: {"command": f"{program} {control} run --id {safekeeper[-1]}"} for safekeeper in slow
    }

    with deployment.changed(changes), deployment.connect() as session:
        deployment.wait_until_whole()
        commit(session, "CREATE TABLE timed (entry int)")
        deployment.put("safekeeper1", control, '{"fsync_ms": 1000}')
        quick_s = _commit_seconds(session, 8)
        deployment.put("safekeeper2", control, '{"fsync_ms": 1000}')
        slow_s = _commit_seconds(session, 3)
        assert quick_s < 0.8 < slow_s
        commit(session, "DROP TABLE timed")
    deployment.wait_until_whole()


@pytest.mark.timeout(240)
def test_everything_is_restarted_in_turn_under_load_and_no_commit_is_lost(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with deployment.connect() as session:
        commit(session, bank.CREATE)
    with transfers(deployment) as load:
        for service in (*SAFEKEEPERS, *PROXIES, "standby", "postgres"):
            deployment.compose("restart", service)
            deployment.wait_until_whole()
            _wait_for_transfers(load.history, service)
        deployment.kill("postgres")
        deployment.start("postgres")
        deployment.wait_until_whole()
        assert load.stop(60) == 0
    with deployment.connect() as session:
        assert_books_hold(session, load.history)
        assert len(load.history.acknowledged) > 100
        commit(session, "DROP TABLE account, transfer")


def _wait_for_transfers(history: History[bank.Transfer], service: str) -> None:
    count = len(history.acknowledged)
    wait_until(lambda: len(history.acknowledged) > count, f"transfers go on after the restart of {service}")


def _standbys(deployment: Deployment) -> list[str]:
    return [each["name"] for each in deployment.leaders_status()["standbys"]]


def _commit_seconds(session: Session, commits: int) -> float:
    """The mean time of a commit."""
    begun = time.monotonic()
    for _ in range(commits):
        commit(session, "INSERT INTO timed VALUES (1)")
    return (time.monotonic() - begun) / commits


def _until_it_waits(deployment: Deployment, writer: Session, observer: Session, sql: str) -> SentStatement:
    """Sends a commit, and returns when PostgreSQL and the proxy both show that it waits for a quorum."""
    pending = SentStatement(writer, sql)
    wait_until(lambda: waits_for_standby(observer, writer), "the commit waits in SyncRep")
    wait_until(lambda: deployment.leaders_status()["state"] == "waiting_for_quorum", "the proxy reports why")
    assert not pending.answered()
    return pending
