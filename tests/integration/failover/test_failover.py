"""`walproxy failover` and `walproxy switchover` on real servers: no acknowledged commit is lost, and commits go on."""

import json
import os
import signal
import subprocess
import sys

from psycopg.conninfo import make_conninfo

from safekeeper.base.lsn import parse_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.failover.test_failover_seal import seal
from tests.integration.refusals.refusal_fixtures import only_line, run_walproxy
from walproxy.lab.cluster.local_standby import current_lsn, received_lsn, replay_lsn
from walproxy.postgres.local_server import LocalPostgres
from walproxy.proposer.purpose import Reserve, Seal

pytestmark = NEWEST


def options(cluster: Gated, role: str = "postgres") -> tuple[str, ...]:
    """Return the option for the servers of the proxy."""
    return ("--primary", make_conninfo(cluster.primary_conninfo(), user=role))


def run(cluster: Gated, command: str, *arguments: str, role: str = "postgres") -> subprocess.CompletedProcess[str]:
    """Run a command with the servers and safekeepers of the proxy."""
    return run_walproxy(command, *options(cluster, role), *arguments, environment=cluster.operator_environment)


def failover(cluster: Gated) -> subprocess.Popen[str]:
    """Begin a failover."""
    command = [sys.executable, "-m", "walproxy", "failover", "--json", *options(cluster)]
    variables = {**os.environ, **cluster.operator_environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


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


def place(server: LocalPostgres) -> str:
    return f"127.0.0.1:{server.port}"


def test_the_primary_dies_and_a_standby_goes_on_with_all_that_was_acknowledged(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, old, servers = cluster.add_standby("heir"), cluster.postgres, options(cluster)
    load = cluster.load().start()
    load.wait_for_commits(50)
    kill_primary(cluster)
    load.stop(1.0)
    looked = report(run(cluster, "failover", "--dry-run", "--json"))
    assert (looked["would_promote"], looked["problem"], looked["is_led"]) == (place(heir), None, False)
    # The proxy that is started meanwhile has no primary, and waits for one.
    cluster.proxy.start()
    ended = report(run(cluster, "failover", "--json"))
    assert (ended["primary"], ended["old_tli"], ended["tli"]) == (place(heir), 1, 2)
    is_promoted(cluster, "heir")
    Commit(heir).wait()
    load.verify()
    # What the old primary wrote above the fork was not acknowledged; it is let in no more.
    old.start()
    assert current_lsn(old) >= parse_lsn(str(ended["fork_lsn"]))
    cluster.proxy.kill9()
    unserved = run_walproxy("failover", *servers, environment=cluster.operator_environment)
    assert "and no walproxy run serves it" in only_line(unserved.stderr)
    cluster.proxy.start()
    wait_for(lambda: field_of(cluster.proxy, "tli") == 2 and cluster.serving() is not None, "the proxy streams again")
    assert "nothing is to be done" in run(cluster, "failover").stdout


def test_a_failover_that_is_interrupted_while_the_standby_is_behind_is_repeated(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir = cluster.add_standby("heir")
    cluster.postgres.execute("CREATE ROLE operator LOGIN REPLICATION")
    Commit(cluster.postgres).wait()
    wait_for(lambda: received_lsn(heir) >= current_lsn(cluster.postgres), "the standby has everything")
    feed = heir.execute("SHOW primary_conninfo")[0][0]
    heir.execute("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'")
    heir.execute("SELECT pg_reload_conf()")
    wait_for(lambda: not heir.execute("SELECT FROM pg_stat_wal_receiver"), "it receives no more")
    Commit(cluster.postgres, "GRANT pg_monitor, pg_write_server_files TO operator").wait()
    Commit(cluster.postgres, "GRANT EXECUTE ON FUNCTION pg_promote TO operator").wait()
    kill_primary(cluster)
    # The standby does not have the rights yet: another role seals.
    with failover(cluster) as waiting:
        assert waiting.stderr is not None
        assert any("sealed timeline 1" in line for line in waiting.stderr)
        assert any("lacks WAL, and is connected to no server that sends it" in line for line in waiting.stderr)
        waiting.send_signal(signal.SIGINT)
        taking_back, ended = waiting.stderr.read().splitlines()
        assert "taking the seal of timeline 1 back" in taking_back and "nothing was changed" in ended
    assert waiting.returncode == 128 + signal.SIGINT
    # Another one is killed when it has reserved a number.
    assert seal(cluster, Seal(1), Reserve(1, 2)).history[-1].given == 2
    heir.execute(f"ALTER SYSTEM SET primary_conninfo = '{feed}'")
    heir.execute("SELECT pg_reload_conf()")
    cluster.proxy.start()
    wait_for(lambda: received_lsn(heir) > 0 and heir.execute("SELECT 1 FROM pg_stat_wal_receiver"), "it receives")
    # The number of the killed failover is passed over, by a role that is not a superuser.
    wait_for(
        lambda: heir.execute("SELECT has_function_privilege('operator', 'pg_promote(boolean, integer)', 'EXECUTE')")[0][
            0
        ],
        "the rights are there",
    )
    ended = report(run(cluster, "failover", "--json", role="operator"))
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

    seal(cluster, Seal(1), meanwhile=promote)
    assert "finish with walproxy failover --to" in only_line(run(cluster, "failover", "--cancel").stderr)
    # Another failover that began meanwhile does not seal it off.
    assert seal(cluster, Seal(1)).history[-1].floor == 1
    with failover(cluster) as process:
        assert process.stderr is not None and process.stdout is not None
        assert any("waiting for its proxy" in line for line in process.stderr)
        # Not before: a host that is refused is tried again after 10 s only.
        cluster.proxy.start()
        ended = json.load(process.stdout)
    assert (ended["tli"], ended["primary"]) == (2, place(heir))
    Commit(heir).wait()


def test_a_failover_is_cancelled_and_the_old_primary_goes_on(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    nothing = run(cluster, "failover", "--cancel")
    assert nothing.returncode == 0 and "is not sealed: nothing is to be cancelled" in nothing.stdout
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
    load = cluster.load().start()
    load.wait_for_commits(20)
    assert "still replies" in run(cluster, "switchover", "--to", place(heir), "--stop-command", "true").stderr
    stop = f"kill -INT {old.pid}; while [ -e {old.data_directory}/postmaster.pid ]; do sleep 0.02; done"
    ended = report(run(cluster, "switchover", "--to", place(heir), "--stop-command", stop, "--json"))
    assert ended["tli"] == 2
    is_promoted(cluster, "heir")
    load.wait_for_commits(20)
    load.stop()
    load.verify()
    old.configure({"primary_conninfo": cluster.standby_conninfo()})
    (old.data_directory / "standby.signal").touch()
    old.start()
    end_lsn = current_lsn(heir)
    wait_for(lambda: replay_lsn(old) >= end_lsn, "the old primary follows")


def test_a_switchover_over_sql_ends_the_sessions_of_the_old_primary(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, old = cluster.add_standby("heir"), cluster.postgres
    cluster.add_proxy()
    load = cluster.load().start()
    load.wait_for_commits(20)
    assert "nothing is to be done" in run(cluster, "switchover", "--to", place(old)).stdout
    assert "is ambiguous" in only_line(run(cluster, "failover", "--to", "127.0.0.1").stderr)
    ended = report(run(cluster, "switchover", "--to", place(heir), "--json"))
    assert ended["tli"] == 2
    assert old.execute("SHOW default_transaction_read_only")[0][0] == "on"
    is_promoted(cluster, "heir")
    load.wait_for_commits(20)
    load.stop()
    load.verify()
    old.kill9()
    old.start()
    assert old.execute("SHOW default_transaction_read_only")[0][0] == "off"
