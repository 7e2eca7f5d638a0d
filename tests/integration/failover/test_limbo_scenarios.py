"""Scenarios of other synchronous replications, with the limbo as a witness: Tarantool's, NoisePage's, PostgreSQL's."""

import psycopg

from tests.integration.cluster.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.failover.test_limbo import (
    WAIT_S,
    by_xid,
    commits_that_wait,
    limbo_of,
    lost_quorum,
    received,
    restart,
)

pytestmark = NEWEST


def rows(cluster: Gated) -> list[int]:
    return [number for (number,) in cluster.postgres.execute("SELECT number FROM ledger WHERE worker = 1 ORDER BY 1")]


def forget_rows(cluster: Gated) -> None:
    """Earlier tests of the shared cluster have left some."""
    Commit(cluster.postgres, "DELETE FROM ledger WHERE worker = 1").wait(WAIT_S)


def test_one_lost_safekeeper_changes_nothing_two_make_commits_wait_and_each_is_confirmed_when_one_returns(
    cluster: Gated,
) -> None:
    forget_rows(cluster)
    cluster.safekeepers[1].kill9()
    Commit(cluster.postgres, "INSERT INTO ledger VALUES (1, 100)").wait(WAIT_S)
    wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 0, "nothing waits", WAIT_S)
    cluster.safekeepers[2].kill9()
    commits = commits_that_wait(cluster, 3)
    wait_for(lambda: limbo_of(cluster.proxy)["state"] == "waiting_for_quorum", "the loss is noticed", WAIT_S)
    cluster.safekeepers[1].start()
    for commit in commits:
        commit.wait(WAIT_S)
    wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 0, "nothing waits", WAIT_S)
    assert rows(cluster) == [0, 1, 2, 100]


def test_the_order_of_the_clients_is_that_of_the_queue(cluster: Gated) -> None:
    with lost_quorum(cluster):
        commits = []
        for number in range(5):
            commits.append(Commit(cluster.postgres, f"INSERT INTO ledger AS n{number} VALUES (3, {number})"))
            wait_for(lambda: cluster.waiters() == len(commits), "it waits", WAIT_S)
        wait_for(lambda: len(received(limbo_of(cluster.proxy))) == 5, "the proxy lists all", WAIT_S)
        listed = [each["session"]["query"] for each in limbo_of(cluster.proxy)["transactions"]]
        assert listed == [f"INSERT INTO ledger AS n{number} VALUES (?, ?)" for number in range(5)]
    for commit in commits:
        commit.wait(WAIT_S)


def test_a_spare_that_takes_over_confirms_everything_that_was_left(cluster: Gated) -> None:
    forget_rows(cluster)
    spare = cluster.add_proxy()
    wait_for(lambda: spare.status() is not None, "it replies", WAIT_S)
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 4)
        left = by_xid(limbo_of(cluster.proxy)).keys()
        cluster.proxy.kill9()
        wait_for(lambda: by_xid(limbo_of(spare)).keys() == left, "the spare lists the same", WAIT_S)
        assert limbo_of(spare)["owner"] is None
    for commit in commits:
        commit.wait(WAIT_S)
    assert rows(cluster) == [0, 1, 2, 3]
    wait_for(lambda: limbo_of(spare)["entries"] == 0, "nothing waits", WAIT_S)
    assert limbo_of(spare)["owner"] is not None
    cluster.proxy.start()
    wait_for(lambda: cluster.proxy.status() is not None, "it replies", WAIT_S)
    assert limbo_of(cluster.proxy)["owner"] is None, "one owner"


def test_a_proxy_that_stops_with_a_queue_confirms_nothing_and_the_next_one_all(cluster: Gated) -> None:
    forget_rows(cluster)
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 3)
        assert cluster.proxy.stop(WAIT_S) == 0
        assert all(commit.waits for commit in commits)
        cluster.proxy.start()
    for commit in commits:
        commit.wait(WAIT_S)
    assert rows(cluster) == [0, 1, 2]


def test_a_read_only_transaction_never_enters_the_queue(cluster: Gated) -> None:
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 1)
        before = by_xid(limbo_of(cluster.proxy)).keys()
        Commit(cluster.postgres, "BEGIN; SELECT count(*) FROM ledger; COMMIT").wait(WAIT_S)
        Commit(cluster.postgres, "SELECT 1").wait(WAIT_S)
        assert by_xid(limbo_of(cluster.proxy)).keys() == before
    commits[0].wait(WAIT_S)


def test_a_transaction_over_several_segments_is_one_entry(cluster: Gated) -> None:
    sql = "INSERT INTO ledger SELECT 4, n FROM generate_series(1, 50000) n"
    with lost_quorum(cluster):
        commit = Commit(cluster.postgres, sql)
        wait_for(lambda: len(received(limbo_of(cluster.proxy))) == 1, "the proxy lists it", WAIT_S)
        (only,) = received(limbo_of(cluster.proxy))
        assert only["session"]["query"] == "INSERT INTO ledger SELECT ?, n FROM generate_series(?, ?) n"
        assert limbo_of(cluster.proxy)["bytes"] > 2 * cluster.segment_size
    commit.wait(WAIT_S)


def test_emptied_standby_names_release_a_waiter_and_the_queue_shows_that_no_quorum_has_it(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with lost_quorum(cluster):
        (commit,) = commits_that_wait(cluster, 1)
        cluster.postgres.configure({"synchronous_standby_names": ""})
        cluster.postgres.reload()
        commit.wait(WAIT_S)
        states = [each["state"] for each in limbo_of(cluster.proxy)["transactions"]]
        assert states == ["detached"]


def test_transactions_that_waited_at_an_immediate_restart_are_committed_and_confirmed(cluster: Gated) -> None:
    forget_rows(cluster)
    with lost_quorum(cluster):
        commits = commits_that_wait(cluster, 3)
        cluster.postgres.stop("immediate")
        for commit in commits:
            wait_for(lambda c=commit: not c.waits, "the client has lost its connection", WAIT_S)  # type: ignore[misc]
            assert isinstance(commit.error, psycopg.OperationalError)
        cluster.postgres.start()
    wait_for(lambda: cluster.serving() is not None, "a proxy streams", WAIT_S)
    assert rows(cluster) == [0, 1, 2], "a local commit is not rolled back"
    Commit(cluster.postgres).wait(WAIT_S)
    wait_for(lambda: limbo_of(cluster.proxy)["entries"] == 0, "nothing waits", WAIT_S)


def test_a_session_that_waits_for_a_standby_is_listed_at_its_level(new_gated: NewGated) -> None:
    cluster = new_gated("-c", "remote_apply_standbys=absent").start_gated()
    Commit(cluster.postgres).wait(WAIT_S)
    commit = Commit(cluster.postgres, synchronous_commit="remote_apply")

    def levels() -> list[tuple[str, str]]:
        return [(each["level"], each["state"]) for each in limbo_of(cluster.proxy)["transactions"] if each["session"]]

    wait_for(lambda: levels() == [("remote_apply", "waiting")], "it is listed", WAIT_S)
    assert commit.waits
    restart(cluster.proxy)
    wait_for(lambda: levels() == [("remote_apply", "waiting")], "the next proxy lists it, too", WAIT_S)
