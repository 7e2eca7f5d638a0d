"""What a cluster of walproxy.lab.testing must be able to suffer, whatever it runs on; and the example of its page."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from safekeeper.base.lsn import parse_lsn
from tests.waiting import wait_for
from walproxy.lab.testing import WalproxyCluster
from walproxy.lab.wal_compare import compare_wal

ROOT = Path(__file__).parents[1]
_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SEGMENT_SIZE = 16 << 20
_DEADLINE_S = 30.0
_A_WHILE_S = 0.3

Session = psycopg.Connection[tuple[object, ...]]


def run_example(engine: str, folder: Path) -> None:
    """Do what docs/guide/testing.md says: save its first test and run it, on that engine."""
    match = _EXAMPLE.search((ROOT / "docs" / "guide" / "testing.md").read_text())
    assert match is not None
    assert match[1].count("\n") <= 15
    (folder / "test_orders.py").write_text(match[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "test_orders.py"],
        cwd=folder,
        env={**os.environ, "WALPROXY_TESTING_ENGINE": engine, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


class Ledger:
    """Rows that must all be there."""

    def __init__(self, cluster: WalproxyCluster) -> None:
        self._cluster = cluster
        self._rows = 0
        with self._session() as session:
            session.execute("CREATE TABLE ledger (row int)")

    def commit(self) -> None:
        """Commit one more row and find all."""
        with self._session() as session:
            session.execute("INSERT INTO ledger VALUES (%s)", [self._rows])
            self._rows += 1
            found = session.execute("SELECT row FROM ledger ORDER BY row").fetchall()
        assert found == [(row,) for row in range(self._rows)]

    def commit_waits_until_healed(self) -> None:
        """A commit waits for its quorum; it is acknowledged when the cluster is healed, and not before."""
        with self._session() as session, self._session() as observer:
            session.pgconn.send_query(b"INSERT INTO ledger VALUES (%d)" % self._rows)
            self._rows += 1
            query = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"

            def waits() -> bool:
                return observer.execute(query, [session.info.backend_pid]).fetchone() == ("SyncRep",)

            def is_answered() -> bool:
                session.pgconn.consume_input()
                return not session.pgconn.is_busy()

            wait_for(waits, "the commit waits for the quorum", timeout_s=_DEADLINE_S)
            # Every commit waits for a moment.
            end = time.monotonic() + _A_WHILE_S
            while time.monotonic() < end:
                assert waits() and not is_answered(), "the commit does not wait for the quorum"
            self._cluster.heal()
            wait_for(is_answered, "the commit is acknowledged", timeout_s=_DEADLINE_S)
            while result := session.pgconn.get_result():
                assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, result.get_error_message()

    def _session(self) -> Session:
        return psycopg.connect(self._cluster.conninfo, autocommit=True, connect_timeout=10)


def suffer_everything(cluster: WalproxyCluster) -> None:
    """Bring every fault over a cluster of three safekeepers, two proxies and a standby; nothing committed is lost."""
    ledger = Ledger(cluster)
    assert set(cluster.process_ids()) == set(cluster.members)

    cluster.kill(1)
    assert "safekeeper1" not in cluster.process_ids()
    assert cluster.status_of(1) is None
    ledger.commit()
    cluster.heal()
    for direction in ("both", "to", "from"):
        cluster.partition(2, direction)  # type: ignore[arg-type]
        cluster.kill(3)
        ledger.commit_waits_until_healed()

    # A full disk has no room for the name of a new leader: whoever follows already goes on.
    wait_until_whole(cluster)
    cluster.pause(1)
    cluster.slow(2, fsync_ms=30)
    cluster.fill(3)
    ledger.commit()
    cluster.heal()

    _stop_the_leader(cluster)
    cluster.wait_until_streaming()
    ledger.commit()

    cluster.pause("postgres")
    cluster.resume("postgres")
    cluster.kill("postgres")
    cluster.heal()
    cluster.wait_until_streaming()
    ledger.commit()
    cluster.stop("postgres")
    cluster.heal()
    cluster.wait_until_streaming()
    ledger.commit()
    assert "listening for proxies" in cluster.logs(1, lines=100)
    assert_bytes_are_equal(cluster)


def hinders_and_heals(cluster: WalproxyCluster) -> None:
    """Each of what outsiders do is in effect until it is healed; commits of a session that is there go on."""

    def log_in(conninfo: str) -> Session:
        return psycopg.connect(conninfo, autocommit=True, connect_timeout=2)

    def shown(conninfo: str, query: str) -> object:
        with log_in(conninfo) as session:
            row = session.execute(query.encode()).fetchone()
        return row[0] if row is not None else None

    paused = "SELECT pg_is_wal_replay_paused()"

    def commit(session: Session) -> None:
        session.execute("INSERT INTO hindered VALUES (1)")

    with log_in(cluster.conninfo) as session:
        session.execute("CREATE TABLE hindered (number int)")
        for kind, refusal in ("no connections", "too many clients already"), ("logins blocked", "timeout"):
            cluster.hinder("postgres", kind)
            commit(session)
            with pytest.raises(psycopg.OperationalError, match=refusal):
                log_in(cluster.conninfo)
            cluster.heal("postgres")
            log_in(cluster.conninfo).close()
    for kind, setting, value in (
        ("settings changed", "lock_timeout", "100ms"),
        ("gate removed", "synchronous_standby_names", ""),
    ):
        show, before = f"SHOW {setting}", shown(cluster.conninfo, f"SHOW {setting}")
        cluster.hinder("postgres", kind)
        wait_for(lambda: shown(cluster.conninfo, show) == value, f"{setting} is changed", timeout_s=_DEADLINE_S)  # noqa: B023
        with log_in(cluster.conninfo) as session:
            commit(session)
        cluster.heal("postgres")
        wait_for(lambda: shown(cluster.conninfo, show) == before, f"{setting} is as before", timeout_s=_DEADLINE_S)  # noqa: B023
    standby = cluster.conninfo_of("standby1")
    cluster.hinder("standby1", "replay paused")
    assert shown(standby, paused) is True
    cluster.heal("standby1")
    assert shown(standby, paused) is False
    for daemon in ("walproxy", "safekeeper1"):
        cluster.hinder(daemon, "hostile HTTP")
    is_limited = "limiting HTTP to"
    wait_for(lambda: is_limited in cluster.logs("walproxy", lines=1000), "it names the client", timeout_s=_DEADLINE_S)
    with log_in(cluster.conninfo) as session:
        commit(session)
    cluster.heal()


def _stop_the_leader(cluster: WalproxyCluster) -> None:
    """Stop the proxy that leads; return when the other one does."""
    led = cluster.status()
    assert led is not None
    proxies = {name: cluster.status_of(name) for name in ("walproxy", "walproxy2")}
    [leader] = [name for name, status in proxies.items() if status is not None and status["run"] == led["run"]]
    [other] = proxies.keys() - {leader}
    cluster.stop(leader)

    def other_serves() -> bool:
        # If it had led before, it ends when it sees that it was replaced: whoever watches over it starts it again.
        cluster.start(other)
        status = cluster.status_of(other)
        return status is not None and status["state"] == "streaming"

    wait_for(other_serves, f"{other} serves in the place of {leader}", timeout_s=_DEADLINE_S)


def wait_until_whole(cluster: WalproxyCluster) -> None:
    """Return when every safekeeper follows the proxy that leads."""

    def is_whole() -> bool:
        status = cluster.status()
        return status is not None and {each["state"] for each in status["safekeepers"]} == {"streaming"}

    wait_for(is_whole, "every safekeeper follows", timeout_s=_DEADLINE_S)


def assert_bytes_are_equal(cluster: WalproxyCluster) -> None:
    """Compare a safekeeper's WAL with the primary's, up to where that safekeeper has flushed."""
    status = cluster.status_of(2)
    assert status is not None
    safekeeper, primary = cluster.data_folder(2) / "wal", cluster.data_folder("postgres") / "pg_wal"
    compared = compare_wal(safekeeper, [primary], _SEGMENT_SIZE, parse_lsn(status["flush_lsn"]))
    assert compared.end_lsn > compared.begin_lsn
