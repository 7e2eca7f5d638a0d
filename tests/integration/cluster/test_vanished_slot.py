"""A slot that was dropped while no proxy served is made again, and WAL that it does not retain is an ERROR."""

from tests.integration.cluster.cluster_fixtures import Gated, wait_for


def test_a_slot_that_was_dropped_while_the_proxy_was_dead_is_made_again_and_reported(cluster: Gated) -> None:
    log = cluster.directory / "walproxy.log"
    before = len(log.read_bytes())
    with cluster.load(workers=1) as load:
        load.wait_for_commits(5)
        cluster.proxy.kill9()
        load.stop(timeout_s=0.5)
        wait_for(
            lambda: cluster.scalar("SELECT count(*) FROM pg_replication_slots WHERE active") == 0, "no one holds it"
        )
        cluster.postgres.execute("SELECT pg_drop_replication_slot('walproxy')")
        # The next checkpoint's redo position is beyond the end of the quorum's log.
        cluster.postgres.execute("SELECT pg_switch_wal()")
        cluster.postgres.execute("CHECKPOINT")
        cluster.start_proxy()
        cluster.wait_for_state("streaming")
        assert cluster.scalar("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'walproxy'") == 1
        logged = log.read_bytes()[before:].decode()
        assert 'slot "walproxy" was missing and has been created: it retains WAL from' in logged
        assert "is at risk: the quorum needs it" in logged
