"""`walproxy failover` and `walproxy switchover` on real servers: no acknowledged commit is lost, and commits go on."""

import json
import subprocess

from safekeeper.base.lsn import parse_lsn
from tests.integration.cluster_fixtures import Commit, Gated, said, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.refusal_fixtures import only_line, run_walproxy
from tests.integration.test_failover_seal import seal
from walproxy.lab.cluster.local_standby import current_lsn, replay_lsn
from walproxy.postgres.local_server import LocalPostgres
from walproxy.proposer.seal import Seal

pytestmark = NEWEST


def run(cluster: Gated, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the servers and safekeepers of the proxy."""
    options = ("--primary", cluster.primary_conninfo(), "--safekeepers", cluster.safekeepers_option)
    return run_walproxy(command, *options, *arguments)


def report(ended: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


def is_promoted(cluster: Gated, name: str) -> LocalPostgres:
    """Make a standby that was promoted the primary of the fixture."""
    standby = cluster.standbys.pop(name)
    cluster.former_primaries.append(cluster.postgres)
    cluster.postgres = standby
    return standby


def kill_primary(cluster: Gated) -> None:
    cluster.proxy.kill9()
    cluster.postgres.kill9()


def test_the_primary_dies_and_a_standby_goes_on_with_all_that_was_acknowledged(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, old = cluster.add_standby("heir"), cluster.postgres
    load = cluster.load().start()
    load.wait_for_commits(50)
    refused = run(cluster, "failover")
    assert "is the primary of the log (timeline 1) and replies" in only_line(refused.stderr)
    kill_primary(cluster)
    load.stop(1.0)
    looked = report(run(cluster, "failover", "--dry-run", "--json"))
    assert looked["would_promote"] == f"127.0.0.1:{heir.port}"
    # The proxy that is started meanwhile has no primary, and waits for one.
    cluster.proxy.start()
    ended = report(run(cluster, "failover", "--json"))
    assert (ended["primary"], ended["old_tli"], ended["tli"]) == (f"127.0.0.1:{heir.port}", 1, 2)
    is_promoted(cluster, "heir")
    Commit(heir).wait()
    load.verify()
    # What the old primary wrote above the fork was not acknowledged; it is let in no more.
    old.start()
    assert current_lsn(old) >= parse_lsn(str(ended["fork_lsn"]))
    cluster.proxy.kill9()
    cluster.proxy.start()
    wait_for(lambda: said(cluster.proxy, "tli") == 2, "the proxy streams from the new primary")
    assert "nothing is to be done" in run(cluster, "failover").stdout
    assert "use walproxy switchover" in only_line(run(cluster, "failover", "--to", f"127.0.0.1:{old.port}").stderr)


def test_a_failover_that_was_begun_before_takes_a_number_of_its_own(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir = cluster.add_standby("heir")
    Commit(cluster.postgres).wait()
    kill_primary(cluster)
    seal(cluster, Seal(1))  # As of a command that died here.
    cluster.proxy.start()
    ended = report(run(cluster, "failover", "--json"))
    assert ended["tli"] == 3
    is_promoted(cluster, "heir")
    Commit(heir).wait()


def test_a_failover_that_died_after_the_promotion_is_finished(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, old = cluster.add_standby("heir"), cluster.postgres
    Commit(old).wait()
    end_lsn = current_lsn(old)
    kill_primary(cluster)

    def promote(_: object) -> None:
        wait_for(lambda: replay_lsn(heir) >= end_lsn, "the standby has caught up")
        cluster.promote("heir")

    seal(cluster, Seal(1), promote)
    assert "finish the failover" in only_line(run(cluster, "failover", "--cancel").stderr)
    cluster.proxy.start()
    ended = report(run(cluster, "failover", "--json"))
    assert (ended["tli"], ended["primary"]) == (2, f"127.0.0.1:{heir.port}")
    Commit(heir).wait()


def test_a_failover_is_cancelled_and_the_old_primary_goes_on(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    assert "is not sealed" in only_line(run(cluster, "failover", "--cancel").stderr)
    kill_primary(cluster)
    assert "no standby can be promoted" in only_line(run(cluster, "failover").stderr)
    seal(cluster, Seal(1))
    cancelled = run(cluster, "failover", "--cancel")
    assert cancelled.returncode == 0, cancelled.stderr
    cluster.postgres.start()
    cluster.proxy.start()
    Commit(cluster.postgres).wait()


def test_a_switchover_moves_the_primary_and_the_old_one_follows_without_a_rewind(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, old = cluster.add_standby("heir"), cluster.postgres
    cluster.add_proxy()  # A spare.
    to = f"127.0.0.1:{heir.port}"
    stop = " ".join([str(old.binaries.path("pg_ctl")), "stop", "-m", "fast", "-D", str(old.data_directory)])
    load = cluster.load().start()
    load.wait_for_commits(20)
    failed = run(cluster, "switchover", "--to", to, "--stop-command", "false")
    assert "'false' failed with exit code 1" in failed.stderr
    ended = report(run(cluster, "switchover", "--to", to, "--stop-command", stop, "--json"))
    assert ended["tli"] == 2
    is_promoted(cluster, "heir")
    load.wait_for_commits(20)
    load.stop()
    load.verify()


def test_a_switchover_over_sql_ends_the_sessions_of_the_old_primary(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, old = cluster.add_standby("heir"), cluster.postgres
    cluster.add_proxy()
    to = f"127.0.0.1:{heir.port}"
    load = cluster.load().start()
    load.wait_for_commits(20)
    assert "is the primary already" in only_line(run(cluster, "switchover", "--to", f"127.0.0.1:{old.port}").stderr)
    assert "none of the servers" in only_line(run(cluster, "switchover", "--to", "elsewhere").stderr)
    ended = report(run(cluster, "switchover", "--to", to, "--json"))
    assert ended["tli"] == 2
    assert old.execute("SHOW default_transaction_read_only")[0][0] == "on"
    is_promoted(cluster, "heir")
    load.wait_for_commits(20)
    load.stop()
    load.verify()
    old.kill9()
    old.start()
    assert old.execute("SHOW default_transaction_read_only")[0][0] == "off"
