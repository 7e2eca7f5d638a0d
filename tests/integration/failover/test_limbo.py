"""The limbo with real PostgreSQL: what waits, with its sessions, and what happens to a commit that waits too long."""

import contextlib
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.cluster.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import EVERY, NEWEST, NewGated
from tests.integration.refusals.refusal_fixtures import run_walproxy
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.limbo.literals import mask_literals
from walproxy.postgres.sessions import APPLICATION_NAME

CLIENTS = 32
ROWS_EACH = 25
WAIT_S = 60.0


def limbo_of(proxy: LocalProcess) -> dict[str, Any]:
    """Return GET /limbo."""
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.http_port}/limbo", timeout=30) as response:
        content: dict[str, Any] = json.load(response)
        return content


def by_command(proxy: LocalProcess) -> dict[str, Any]:
    """Return what `walproxy limbo --json` prints."""
    url = f"http://127.0.0.1:{proxy.http_port}"
    ended = run_walproxy("limbo", "--json", "--url", url)
    assert ended.returncode == 0, ended.stderr
    content: dict[str, Any] = json.loads(ended.stdout)
    return content


def waiting(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in content["transactions"] if each["state"] == "waiting"]


def received(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return those that wait and of which the proxy has the record.

    A walsender of PostgreSQL 16 or newer can miss that WAL was flushed just before it sleeps, and then sends it when
    the proxy repeats its positions (STATUS_INTERVAL_S).
    """
    return [each for each in waiting(content) if each["end_lsn"] is not None]


@contextlib.contextmanager
def lost_quorum(cluster: Gated) -> Iterator[None]:
    """Two of three safekeepers are dead."""
    for safekeeper_id in (1, 2):
        cluster.safekeepers[safekeeper_id].kill9()
    try:
        yield
    finally:
        for safekeeper_id in (1, 2):
            if cluster.safekeepers[safekeeper_id].pid is None:
                cluster.safekeepers[safekeeper_id].start()


def sessions_that_wait(cluster: Gated) -> set[tuple[int, int, str]]:
    """Return pid, transaction and query of each session that waits, as PostgreSQL shows them, without literals."""
    # The view shows the wait of now and the transaction of a moment before: who had none then counts at the next look.
    rows = cluster.postgres.execute(
        "SELECT pid, backend_xid::text, query FROM pg_stat_activity WHERE wait_event = 'SyncRep' "
        "AND backend_xid IS NOT NULL"
    )
    return {(pid, int(xid), mask_literals(query)) for pid, xid, query in rows}


@contextlib.contextmanager
def pgbench(cluster: Gated, script: Path) -> Iterator["subprocess.Popen[str]"]:
    """Let the clients of pgbench insert rows, one in each transaction, while the block runs."""
    script.write_text("INSERT INTO ledger VALUES (-1, :client_id);\n")
    program = cluster.postgres.binaries.path("pgbench")
    counts = f"--client={CLIENTS}", "--jobs=2", f"--transactions={ROWS_EACH}"
    conninfo = cluster.postgres.conninfo()
    command = [str(program), "--no-vacuum", *counts, "--file", str(script), conninfo]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def rows_of_pgbench(cluster: Gated) -> int:
    return int(cluster.scalar("SELECT count(*) FROM ledger WHERE worker = -1"))


@EVERY
def test_every_waiting_transaction_is_listed_with_its_session_and_confirmed_when_the_quorum_is_back(
    cluster: Gated, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        with lost_quorum(cluster):
            # Begun without a quorum: no client has made its rows before, and each waits in its first one.
            running = stack.enter_context(pgbench(cluster, tmp_path / "insert.sql"))
            wait_for(lambda: len(sessions_that_wait(cluster)) == CLIENTS, "all wait", WAIT_S)
            wait_for(lambda: len(received(limbo_of(cluster.proxy))) == CLIENTS, "the proxy lists all", WAIT_S)
            wait_for(
                lambda: all(each["missing"] == [1, 2] for each in limbo_of(cluster.proxy)["transactions"]),
                "safekeeper 3 has acknowledged all",
                WAIT_S,
            )
            content = by_command(cluster.proxy)
            listed = {(e["session"]["pid"], e["xid"], e["session"]["query"]) for e in content["transactions"]}
            assert listed == sessions_that_wait(cluster)
            assert content["entries"] == content["listed"] == CLIENTS
            assert content["problem"] is None
            assert {each["session"]["application"] for each in content["transactions"]} == {"pgbench"}
            ends = [each["end_lsn"] for each in content["transactions"]]
            assert len(set(ends)) == CLIENTS
            assert all(each["missing"] == [1, 2] and each["kind"] == "commit" for each in content["transactions"])
        printed, _ = running.communicate(timeout=WAIT_S)
    count = CLIENTS * ROWS_EACH
    assert f"processed: {count}/{count}" in printed
    assert rows_of_pgbench(cluster) == count
    wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 0, "nothing waits", WAIT_S)
    cluster.verify()


def by_xid(content: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {each["xid"]: each for each in content["transactions"]}


def commits_that_wait(cluster: Gated, count: int) -> list[Commit]:
    """Begin commits without a quorum, and wait until the proxy lists them with their sessions and positions."""
    commits = [Commit(cluster.postgres, f"INSERT INTO ledger VALUES (1, {n})") for n in range(count)]
    wait_for(lambda: cluster.waiters() == count, "all wait", WAIT_S)
    wait_for(lambda: len(received(limbo_of(cluster.proxy))) == count, "the proxy lists all", WAIT_S)
    return commits


def restart(proxy: LocalProcess) -> None:
    """Kill a proxy, start it, and wait until it replies."""
    proxy.kill9()
    proxy.start()
    wait_for(lambda: proxy.status() is not None, "it replies", WAIT_S)


def timeouts(cluster: Gated) -> dict[str, int]:
    status = cluster.proxy.status()
    assert status is not None
    counts: dict[str, int] = status["limbo"]["timeouts"]
    return counts


def timeouts_at_rest(cluster: Gated) -> dict[str, int]:
    """Return them once nothing waits: on a busy machine a commit of the fixture may have exceeded the timeout."""
    wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 0, "nothing waits", WAIT_S)
    return timeouts(cluster)


def log_of(process: LocalProcess) -> str:
    return process.log_path.read_text(errors="replace")


@EVERY
def test_prepared_transactions_are_listed_by_name_and_kind_with_their_sessions(new_gated: NewGated) -> None:
    cluster = new_gated(max_prepared_transactions="5").start_gated()
    Commit(cluster.postgres, "BEGIN; INSERT INTO ledger VALUES (0, 1); PREPARE TRANSACTION 'one'").wait()
    Commit(cluster.postgres, "BEGIN; INSERT INTO ledger VALUES (0, 2); PREPARE TRANSACTION 'it''s two'").wait()
    xids = dict(cluster.postgres.execute("SELECT gid, transaction::text::int FROM pg_prepared_xacts"))
    with lost_quorum(cluster):
        commits = [
            Commit(cluster.postgres, "COMMIT PREPARED 'one'"),
            Commit(cluster.postgres, "rollback  prepared 'it''s two'"),
            Commit(cluster.postgres, "BEGIN; INSERT INTO ledger VALUES (0, 3); PREPARE TRANSACTION 'three'"),
        ]
        wait_for(lambda: cluster.waiters() == 3, "all wait", WAIT_S)
        wait_for(lambda: len(received(limbo_of(cluster.proxy))) == 3, "the proxy lists all", WAIT_S)
        content = limbo_of(cluster.proxy)
        assert content["entries"] == 3
        listed = {each["kind"]: each for each in content["transactions"]}
        assert {kind: each["gid"] for kind, each in listed.items()} == {
            "commit_prepared": "one",
            "abort_prepared": "it's two",
            "prepare": "three",
        }
        assert listed["commit_prepared"]["xid"] == xids["one"]
        assert listed["abort_prepared"]["xid"] == xids["it's two"]
        assert all("prepare" in each["session"]["query"].lower() for each in listed.values())
    for commit in commits:
        commit.wait(WAIT_S)
    wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 0, "nothing waits", WAIT_S)


@NEWEST
def test_a_restarted_proxy_without_a_quorum_lists_the_same_transactions(cluster: Gated) -> None:
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 3)
        before = limbo_of(cluster.proxy)
        restart(cluster.proxy)
        wait_for(lambda: len(waiting(limbo_of(cluster.proxy))) == 3, "it lists them", WAIT_S)
        after = limbo_of(cluster.proxy)
        assert by_xid(after).keys() == by_xid(before).keys()
        assert {each["session"]["pid"] for each in after["transactions"]} == {
            each["session"]["pid"] for each in before["transactions"]
        }
        assert after["owner"] is None and "does not lead" in after["problem"]
        assert before["owner"] is not None
    for commit in commits:
        commit.wait(WAIT_S)


@NEWEST
def test_a_restarted_proxy_that_leads_finds_the_same_queue(new_gated: NewGated) -> None:
    """It is elected by two of three, and a commit needs all three."""
    cluster = new_gated().start_gated()
    ended = run_walproxy(
        *("members", "quorum", "--commit", "N", "--elect", "N/2+1"), environment=cluster.operator_environment
    )
    assert ended.returncode == 0, ended.stderr
    cluster.safekeepers[1].kill9()
    commits = commits_that_wait(cluster, 5)

    def lack_safekeeper_1_only() -> bool:
        return all(each["missing"] == [1] for each in limbo_of(cluster.proxy)["transactions"])

    wait_for(lack_safekeeper_1_only, "the others have acknowledged them", WAIT_S)
    before = limbo_of(cluster.proxy)
    restart(cluster.proxy)
    wait_for(lambda: len(waiting(limbo_of(cluster.proxy))) == 5, "it lists them", WAIT_S)

    after = limbo_of(cluster.proxy)
    assert {xid: each["session"] for xid, each in by_xid(after).items()} == {
        xid: each["session"] for xid, each in by_xid(before).items()
    }
    # Their WAL is on two safekeepers, below the new term's start. What arrives from now on has positions.
    commits += [Commit(cluster.postgres, f"INSERT INTO ledger VALUES (1, {n})") for n in range(5, 8)]
    wait_for(lambda: len(received(limbo_of(cluster.proxy))) == 3, "it lists them", WAIT_S)
    assert len(waiting(limbo_of(cluster.proxy))) == 8
    ended_at = {each["xid"]: each["end_lsn"] for each in waiting(limbo_of(cluster.proxy))}
    assert {xid for xid, end_lsn in ended_at.items() if end_lsn is not None} == ended_at.keys() - by_xid(before).keys()
    cluster.safekeepers[1].start()
    for commit in commits:
        commit.wait(WAIT_S)


@NEWEST
def test_a_cancelled_wait_is_detached_and_a_local_commit_does_not_wait(cluster: Gated) -> None:
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 2)
        Commit(cluster.postgres, synchronous_commit="local").wait(WAIT_S)
        first, second = sorted(each["xid"] for each in limbo_of(cluster.proxy)["transactions"] if each["session"])
        cluster.postgres.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_xid::text = %s", str(first)
        )

        def states() -> dict[int, tuple[str, str | None]]:
            return {each["xid"]: (each["state"], each["level"]) for each in limbo_of(cluster.proxy)["transactions"]}

        def of_the_third() -> list[tuple[str, str | None]]:
            return [each for xid, each in states().items() if xid not in (first, second)]

        wait_for(lambda: states().get(first) == ("detached", None), "its wait was cancelled", WAIT_S)
        wait_for(lambda: of_the_third() == [("received", "none")], "the local commit has arrived", WAIT_S)
        assert states()[first] == ("detached", None)
        assert states()[second] == ("waiting", None)
        assert of_the_third() == [("received", "none")]
    for commit in commits:
        commit.wait(WAIT_S)


@NEWEST
def test_thousands_of_entries_are_counted_and_the_oldest_hundred_listed(cluster: Gated) -> None:
    with lost_quorum(cluster):
        loop = "DO $$ BEGIN FOR i IN 1..10000 LOOP INSERT INTO ledger VALUES (2, i); COMMIT; END LOOP; END $$"
        Commit(cluster.postgres, loop, synchronous_commit="off").wait(WAIT_S)

        def entries() -> int:
            return int(limbo_of(cluster.proxy)["entries"])

        wait_for(lambda: entries() >= 10_000, "all are read", WAIT_S)
        content = limbo_of(cluster.proxy)
        assert content["listed"] == len(content["transactions"]) == 100
        assert content["problem"] is None
        ends = [each["committed_at"] for each in content["transactions"]]
        assert ends == sorted(ends), "the oldest are listed, in order"
        shown = run_walproxy("limbo", "--url", f"http://127.0.0.1:{cluster.proxy.http_port}")
        assert f"the oldest 100 are listed; {content['entries'] - 100} more wait" in shown.stdout
    wait_for(lambda: entries() == 0, "all are confirmed", WAIT_S)


@NEWEST
def test_queries_of_any_encoding_with_html_and_control_characters_are_shown_safely(cluster: Gated) -> None:
    cluster.postgres.execute("DROP DATABASE IF EXISTS latin")
    cluster.postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with psycopg.connect(cluster.postgres.conninfo(dbname="latin"), autocommit=True) as setup:
        setup.execute("CREATE TABLE t (x text)")
    latin = "INSERT INTO t AS caf\u00e9 VALUES ('hunter2')"
    html = 'INSERT INTO ledger AS "<b>\x1b[2J</b>" VALUES (1, 1)'
    with lost_quorum(cluster):
        other = cluster.postgres.conninfo(dbname="latin", client_encoding="LATIN1")

        def run() -> None:
            with psycopg.connect(other, autocommit=True) as connection:
                connection.execute(latin.encode("latin1"))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        commit = Commit(cluster.postgres, html)
        wait_for(lambda: len(waiting(limbo_of(cluster.proxy))) == 2, "both are listed", WAIT_S)
        queries = {each["session"]["query"] for each in limbo_of(cluster.proxy)["transactions"]}
        masked = {html.replace("1, 1", "?, ?"), "INSERT INTO t AS caf\ufffd VALUES ('?')"}
        assert queries == masked
        shown = run_walproxy("limbo", "--url", f"http://127.0.0.1:{cluster.proxy.http_port}")
        assert shown.returncode == 0 and "\x1b" not in shown.stdout and "hunter2" not in shown.stdout
    commit.wait(WAIT_S)
    thread.join(WAIT_S)
    cluster.postgres.execute("DROP DATABASE latin")


def read_only(cluster: Gated) -> bool:
    return bool(cluster.scalar("SELECT current_setting('default_transaction_read_only')") == "on")


@NEWEST
def test_warn_rolls_nothing_back_after_many_timeouts(new_gated: NewGated) -> None:
    """Tarantool's 7486: a rollback by timeout. And 10181: a wait is not hidden."""
    cluster = new_gated("-c", "commit_timeout=0.2").start_gated()
    before = timeouts_at_rest(cluster)["warn"]
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 3)
        began_at = time.monotonic()
        wait_for(lambda: timeouts(cluster)["warn"] == before + 3, "all have exceeded the timeout", WAIT_S)
        wait_for(lambda: time.monotonic() - began_at > 2, "ten timeouts have passed")
        assert all(commit.waits for commit in commits)
        assert timeouts(cluster) == {"warn": before + 3, "terminate": 0, "detach": 0, "fence": 0}
        assert "commits wait longer than commit_timeout = 0.2 s (action: warn)" in log_of(cluster.proxy)
    for commit in commits:
        commit.wait(WAIT_S)
    assert cluster.scalar("SELECT count(*) FROM ledger WHERE worker = 1") == 3
    cluster.verify()


@NEWEST
def test_terminate_ends_the_sessions_and_the_transactions_are_confirmed_later(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "commit_timeout=1", "-c", "on_commit_timeout=terminate").start_gated()
    with lost_quorum(cluster):
        commits = [Commit(cluster.postgres, f"INSERT INTO ledger VALUES (1, {n})") for n in range(3)]
        wait_for(lambda: not any(commit.waits for commit in commits), "all sessions have ended", WAIT_S)
        assert all(isinstance(commit.error, psycopg.OperationalError) for commit in commits)
        wait_for(lambda: timeouts(cluster)["terminate"] == 3, "they are counted", WAIT_S)
        assert log_of(cluster.proxy).count("its outcome is unknown to the client") == 3
        states = [each["state"] for each in limbo_of(cluster.proxy)["transactions"]]
        assert states == ["detached"] * 3
    wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 0, "all are confirmed", WAIT_S)
    assert cluster.scalar("SELECT count(*) FROM ledger WHERE worker = 1") == 3
    assert timeouts(cluster)["terminate"] == 3


@NEWEST
def test_detach_reports_success_and_the_log_has_each_transaction(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "commit_timeout=1", "-c", "on_commit_timeout=detach").start_gated()
    before = timeouts_at_rest(cluster)["detach"]
    with lost_quorum(cluster):
        commits = [Commit(cluster.postgres, f"INSERT INTO ledger VALUES (1, {n})") for n in range(3)]
        for commit in commits:
            commit.wait(WAIT_S)
        wait_for(lambda: timeouts(cluster)["detach"] == before + 3, "they are counted", WAIT_S)
        xids = [each["xid"] for each in limbo_of(cluster.proxy)["transactions"] if each["state"] == "detached"]
        assert len(xids) == 3
        for xid in xids:
            assert f"data-loss risk: detached transaction {xid} " in log_of(cluster.proxy)


@NEWEST
def test_the_fence_refuses_new_writes_until_nothing_waits_also_after_a_restart(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "commit_timeout=1", "-c", "on_commit_timeout=fence").start_gated()
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 2)
        wait_for(lambda: read_only(cluster), "new transactions are read-only", WAIT_S)
        late = Commit(cluster.postgres)
        wait_for(lambda: not late.waits, "a write is refused", WAIT_S)
        assert isinstance(late.error, psycopg.errors.ReadOnlySqlTransaction)
        assert all(commit.waits for commit in commits)
        # The first one that has waited too long is enough for the fence.
        wait_for(lambda: timeouts(cluster)["fence"] == 2, "both commits have waited too long", WAIT_S)
    for commit in commits:
        commit.wait(WAIT_S)
    wait_for(lambda: not read_only(cluster), "new transactions are read-write", WAIT_S)
    Commit(cluster.postgres).wait(WAIT_S)
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 1)
        wait_for(lambda: read_only(cluster), "new transactions are read-only", WAIT_S)
        cluster.proxy.kill9()
    cluster.proxy.start()
    wait_for(lambda: not read_only(cluster), "the next process ends the fence", WAIT_S)
    commits[0].wait(WAIT_S)


@NEWEST
def test_without_the_right_to_see_sessions_the_wal_is_shown(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "commit_timeout=1", "-c", "on_commit_timeout=detach")
    cluster.postgres.start()
    cluster.postgres.execute("CREATE ROLE plain LOGIN REPLICATION")
    cluster.proxies = [
        cluster.make_proxy(
            *("walproxy", "-c", "commit_timeout=1", "-c", "on_commit_timeout=detach"),
            conninfo=cluster.postgres.conninfo(user="plain"),
        )
    ]
    cluster.start_gated()
    with lost_quorum(cluster):
        commits = [Commit(cluster.postgres, f"INSERT INTO ledger VALUES (1, {n})") for n in range(3)]
        wait_for(lambda: cluster.waiters() == 3, "all wait", WAIT_S)
        wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 3, "the proxy lists all", WAIT_S)
        content = limbo_of(cluster.proxy)
        assert "GRANT pg_monitor TO plain" in content["problem"]
        assert all(each["session"] is None and each["state"] == "received" for each in content["transactions"])
        assert {each["xid"] for each in content["transactions"]} == {xid for _, xid, _ in sessions_that_wait(cluster)}
        Commit(cluster.postgres, "GRANT pg_monitor TO plain", synchronous_commit="local").wait(WAIT_S)
        wait_for(lambda: len(waiting(limbo_of(cluster.proxy))) == 3, "it may see sessions now", WAIT_S)
        wait_for(lambda: "GRANT pg_signal_backend to it" in log_of(cluster.proxy), "it may not end them", WAIT_S)
        assert all(commit.waits for commit in commits)
        assert timeouts(cluster)["detach"] == 0
    for commit in commits:
        commit.wait(WAIT_S)


@NEWEST
def test_when_all_connections_are_used_up_the_wal_is_shown(new_gated: NewGated) -> None:
    cluster = new_gated(max_connections="12").start_gated()
    with lost_quorum(cluster), contextlib.ExitStack() as stack:
        commits = commits_that_wait(cluster, 4)
        xids = by_xid(limbo_of(cluster.proxy)).keys()
        killer = stack.enter_context(psycopg.connect(cluster.postgres.conninfo(), autocommit=True))

        def is_without_a_session() -> bool:
            """Take all connections, that of the proxy's session, too; return whether the proxy has found none."""
            killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = %s AND backend_type = 'client backend'",
                [APPLICATION_NAME],
            )
            with pytest.raises(psycopg.OperationalError, match="too many clients"):
                while True:
                    stack.enter_context(psycopg.connect(cluster.postgres.conninfo()))
            return "too many clients" in str(limbo_of(cluster.proxy)["problem"])

        wait_for(is_without_a_session, "it cannot connect", WAIT_S)
        content = limbo_of(cluster.proxy)
        assert (content["entries"], by_xid(content).keys()) == (4, xids), content
    for commit in commits:
        commit.wait(WAIT_S)


@NEWEST
def test_the_last_commits_before_a_promotion_are_discarded_if_no_safekeeper_has_them(new_gated: NewGated) -> None:
    # With leave to lose data: the safekeepers may have a record of the background writer that the standby lacks.
    cluster = new_gated("--allow-data-loss", "true", candidates=["standby1"]).start_gated()
    standby = cluster.add_standby("standby1")
    Commit(cluster.postgres).wait(WAIT_S)
    end_lsn = cluster.commit_lsn_of_all()
    replayed = "SELECT pg_wal_lsn_diff(pg_last_wal_replay_lsn(), %s::text::pg_lsn) >= 0"
    wait_for(lambda: standby.execute(replayed, f"0/{end_lsn:X}")[0][0], "the standby has all", WAIT_S)
    for safekeeper in cluster.safekeepers.values():
        safekeeper.kill9()
    commits = commits_that_wait(cluster, 3)
    lost = by_xid(limbo_of(cluster.proxy)).keys()
    cluster.postgres.kill9()
    assert len(commits) == 3
    for safekeeper in cluster.safekeepers.values():
        safekeeper.start()
    cluster.promote("standby1")

    def missing() -> str:
        return f"the log continues on the standby's timeline; the proxy's log ends with {cluster.proxy.log_tail()}"

    wait_for(lambda: cluster.serving() is not None, missing, WAIT_S)
    assert cluster.status()["tli"] == 2
    content = limbo_of(cluster.proxy)
    assert {each["xid"] for each in content["transactions"] if each["state"] == "discarded"} == lost
    assert content["discarded"] == 3
    assert not waiting(content)
    for xid in lost:
        assert f"transaction {xid} (commit at " in log_of(cluster.proxy)
