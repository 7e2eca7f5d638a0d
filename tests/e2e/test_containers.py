"""Commits go on while a quorum of safekeepers lives, wait while there is none, and go on when it is back."""

import json
import urllib.request
from collections.abc import Callable

import psycopg
from psycopg.pq import ExecStatus

from tests.e2e.cluster import Cluster, wait_until

Session = psycopg.Connection[tuple[object, ...]]

COMMIT_S = 60


class SentStatement:
    """A statement that PostgreSQL was sent and may not have answered yet: a commit that waits blocks nobody here."""

    def __init__(self, session: Session, sql: str) -> None:
        self._session = session
        self._sql = sql
        session.pgconn.send_query(sql.encode())

    def answered(self) -> bool:
        self._session.pgconn.consume_input()
        return not self._session.pgconn.is_busy()

    def finish(self) -> None:
        """Waits, with a deadline, for PostgreSQL to say that the statement is committed, and for nothing less."""
        wait_until(self.answered, f"{self._sql!r} is acknowledged", COMMIT_S)
        while result := self._session.pgconn.get_result():
            assert result.status == ExecStatus.COMMAND_OK, result.get_error_message()


def commit(session: Session, sql: str) -> None:
    SentStatement(session, sql).finish()


def waits_for_standby(observer: Session, session: Session) -> bool:
    """Whether the backend of `session` waits for a synchronous standby, as PostgreSQL itself sees it."""
    query = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
    return observer.execute(query, [session.info.backend_pid]).fetchone() == ("SyncRep",)


def proxy_state(cluster: Cluster) -> str:
    with urllib.request.urlopen(cluster.status_url(), timeout=5) as response:
        return str(json.load(response)["state"])


def test_commits_survive_one_lost_safekeeper_and_wait_while_two_are_lost(cluster: Cluster) -> None:
    with cluster.connect() as writer, cluster.connect() as observer:
        commit(writer, "CREATE TABLE ledger (entry int PRIMARY KEY)")
        commit(writer, "INSERT INTO ledger VALUES (1)")

        cluster.kill(1)
        commit(writer, "INSERT INTO ledger VALUES (2)")
        commit(writer, "INSERT INTO ledger VALUES (3)")

        cluster.kill(2)
        pending = SentStatement(writer, "INSERT INTO ledger VALUES (4)")
        wait_until(lambda: waits_for_standby(observer, writer), "the commit waits in SyncRep")
        wait_until(lambda: proxy_state(cluster) == "waiting_for_quorum", "the proxy says that the quorum is lost")
        assert not pending.answered()
        assert waits_for_standby(observer, writer)
        assert observer.execute("SELECT max(entry) FROM ledger").fetchone() == (3,)

        cluster.start(2)
        pending.finish()
        commit(writer, "INSERT INTO ledger VALUES (5)")

        # The two that were lost make a quorum only if both have caught up with the one that was not.
        cluster.start(1)
        cluster.kill(3)
        commit(writer, "INSERT INTO ledger VALUES (6)")
        entries = [entry for (entry,) in observer.execute("SELECT entry FROM ledger ORDER BY entry")]
        assert entries == [1, 2, 3, 4, 5, 6]


def test_compose_file_brings_up_a_cluster_that_commits_through_the_quorum(compose: Callable[..., str]) -> None:
    def psql(sql: str) -> str:
        client = ["psql", "--username", "postgres", "--no-psqlrc", "--tuples-only", "--no-align", "--command", sql]
        return compose("exec", "-T", "postgres", *client, deadline_s=COMMIT_S).strip()

    compose("up", "--detach", "--no-build")
    psql("CREATE TABLE ledger AS SELECT 1 AS entry")
    assert psql("SELECT application_name, sync_state FROM pg_stat_replication") == "walproxy|sync"
    assert psql("SELECT entry FROM ledger") == "1"
