"""The primary and the proxy die together: a tail term makes known where the acknowledged WAL ends."""

from safekeeper.base.lsn import parse_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.serving.serve_fixtures import wait_for_everything
from walproxy.lab.cluster.local_standby import received_lsn

pytestmark = NEWEST


def commit_lsns(cluster: Gated) -> list[int]:
    return [parse_lsn(field_of(process, "commit_lsn") or "0/0") for process in cluster.safekeepers.values()]


def log_end_lsn(cluster: Gated) -> int:
    return max(cluster.flush_lsn_of(safekeeper_id) for safekeeper_id in cluster.safekeepers)


def lose_primary_and_proxy(cluster: Gated) -> None:
    """Kill both right behind a commit, until safekeepers have WAL without its commit position."""
    for number in range(20):
        cluster.postgres.execute("INSERT INTO ledger VALUES (7, %s)", number)
        cluster.proxy.kill9()
        cluster.postgres.kill9()
        if min(commit_lsns(cluster)) < log_end_lsn(cluster):
            return
        cluster.heal()
    raise AssertionError("each commit was known to every safekeeper at once")


def test_the_end_of_the_log_becomes_known_without_a_primary_and_the_primary_goes_on(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    lose_primary_and_proxy(cluster)
    end_lsn = log_end_lsn(cluster)
    proxy = cluster.proxy
    proxy.arguments += ["-c", "tail_after=0.5"]
    proxy.start()
    wait_for(lambda: min(commit_lsns(cluster)) == end_lsn, "every safekeeper has the end of the log as committed")
    assert field_of(proxy, "state") == "waiting_for_primary"
    text = proxy.log_path.read_text()
    assert "tail term " in text and "no quorum" not in text.rpartition("tail term ")[2]
    cluster.postgres.start()
    cluster.postgres.execute("INSERT INTO ledger VALUES (8, 1)")
    cluster.assert_bytes_are_equal(cluster.commit_lsn_of_all())
    assert cluster.scalar("SELECT count(*) FROM ledger WHERE worker = 7") > 0


def test_a_proxy_that_leads_is_not_deposed_for_it(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    cluster.postgres.stop()
    spare = cluster.add_proxy("-c", "tail_after=0.5")
    wait_for(lambda: field_of(spare, "state") is not None, "the other proxy runs")
    cluster.postgres.start()
    cluster.postgres.execute("INSERT INTO ledger VALUES (8, 1)")
    # After a second without a primary either proxy may lead: the one that connects to it first.
    assert "tail term" not in spare.log_path.read_text()


def test_a_standby_gets_what_only_the_safekeepers_have_and_takes_over(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir = cluster.add_standby("heir")
    wait_for_everything(cluster, heir)
    for safekeeper_id in (2, 3):
        cluster.safekeepers[safekeeper_id].pause()
    waiting = Commit(cluster.postgres)
    wait_for(lambda: cluster.waiters() > 0, "a commit waits for the quorum")
    wait_for(lambda: cluster.flush_lsn_of(1) >= cluster.primary_flush_lsn(), "safekeeper 1 has the commit")
    cluster.proxy.kill9()
    cluster.postgres.kill9()
    wait_for(lambda: not waiting.waits, "the client gets the reply")
    for safekeeper_id in (2, 3):
        cluster.safekeepers[safekeeper_id].resume()
    end_lsn = log_end_lsn(cluster)
    assert received_lsn(heir) < end_lsn, "a reader gets committed WAL only"
    cluster.proxy.arguments += ["-c", "tail_after=0.5"]
    cluster.proxy.start()
    wait_for(lambda: received_lsn(heir) == end_lsn, "the standby has the whole log")
    heir.promote()
    wait_for(lambda: field_of(cluster.proxy, "tli") == 2 and cluster.serving() is not None, "the log goes on")
    heir.execute("INSERT INTO ledger VALUES (8, 1)")
