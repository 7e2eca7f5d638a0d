"""A failover refuses a standby whose promotion would fail, or end early, before it seals anything."""

from safekeeper.base.lsn import format_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import EVERY, NEWEST, NewGated
from tests.integration.failover.test_failover import is_promoted, kill_primary, place, report, run
from walproxy.lab.cluster.local_standby import current_lsn, received_lsn, replay_lsn
from walproxy.postgres.local_server import LocalPostgres


def pair(new_gated: NewGated) -> tuple[Gated, LocalPostgres]:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir = cluster.add_standby("heir")
    Commit(cluster.postgres).wait()
    wait_for(lambda: replay_lsn(heir) >= current_lsn(cluster.postgres), "the standby has everything")
    return cluster, heir


def is_paused(heir: LocalPostgres) -> bool:
    return bool(heir.execute("SELECT pg_is_wal_replay_paused()") == [(True,)])


def floors(cluster: Gated) -> object:
    return report(run(cluster, "failover", "--dry-run", "--json"))["floor"]


@EVERY
def test_a_standby_with_lower_settings_than_its_wal_needs_is_not_promoted_before_they_are_raised(
    new_gated: NewGated,
) -> None:
    cluster, heir = pair(new_gated)
    cluster.postgres.stop()
    cluster.postgres.configure({"max_connections": "77"})
    cluster.postgres.start()
    wait_for(lambda: cluster.serving() is not None, "the proxy streams again")
    commit = Commit(cluster.postgres)
    commit.wait()
    wait_for(lambda: is_paused(heir), "replay is paused")
    wait_for(lambda: received_lsn(heir) >= current_lsn(cluster.postgres), "the standby has received everything")
    before = floors(cluster)
    kill_primary(cluster)
    cluster.proxy.start()
    refused = run(cluster, "failover", "--json")
    assert refused.returncode != 0
    assert "and the primary had 77: replay is paused" in refused.stderr
    assert "set max_connections = 77 on the standby and restart it" in refused.stderr
    assert floors(cluster) == before, "nothing was sealed"
    assert heir.execute("SELECT pg_is_in_recovery()") == [(True,)]
    heir.stop()
    heir.configure({"max_connections": "77"})
    heir.start()
    ended = report(run(cluster, "failover", "--json"))
    assert ended["primary"] == place(heir)
    Commit(is_promoted(cluster, "heir")).wait()


@EVERY
def test_a_standby_whose_replay_was_paused_by_hand_is_promoted_with_everything(new_gated: NewGated) -> None:
    cluster, heir = pair(new_gated)
    heir.execute("SELECT pg_wal_replay_pause()")
    wait_for(lambda: is_paused(heir), "replay is paused")
    cluster.postgres.execute("SET synchronous_commit = on; CREATE TABLE after_the_pause ()")
    wait_for(lambda: received_lsn(heir) >= current_lsn(cluster.postgres), "the standby has received everything")
    kill_primary(cluster)
    cluster.proxy.start()
    assert report(run(cluster, "failover", "--json"))["primary"] == place(heir)
    assert is_promoted(cluster, "heir").execute("SELECT count(*) FROM after_the_pause") == [(0,)]


@NEWEST
def test_a_standby_with_a_recovery_target_is_not_promoted(new_gated: NewGated) -> None:
    cluster, heir = pair(new_gated)
    target = format_lsn(current_lsn(cluster.postgres))
    heir.stop()
    heir.configure({"recovery_target_lsn": target, "recovery_target_action": "pause"})
    heir.start()
    Commit(cluster.postgres).wait()
    wait_for(lambda: is_paused(heir), "replay is paused")

    def is_shown() -> bool:
        Commit(cluster.postgres).wait()  # It is stalled only if it receives more WAL.
        return field_of(cluster.proxy, "standbys")[0]["stalled_s"] is not None

    wait_for(is_shown, "the status shows it", 60.0)
    before = floors(cluster)
    kill_primary(cluster)
    refused = run(cluster, "failover", "--json")
    assert f"has a recovery target, recovery_target_lsn = {target}" in refused.stderr
    assert floors(cluster) == before, "nothing was sealed"
