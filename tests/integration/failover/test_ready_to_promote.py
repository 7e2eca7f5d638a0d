"""`walproxy ready-to-promote`, and then a promotion by another manager: no acknowledged commit is lost."""

import os
import signal
import subprocess

from safekeeper.base.lsn import format_lsn, parse_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import MOSTLY_NEWEST, NEWEST, NewGated
from tests.integration.failover.test_failover import is_promoted, kill_primary, report
from tests.integration.refusals.refusal_fixtures import only_line, run_walproxy
from walproxy.lab.cluster.local_standby import current_lsn, replay_lsn
from walproxy.postgres.local_server import LocalPostgres
from walproxy.postgres.process_table import descendants


def ready(cluster: Gated, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_walproxy("ready-to-promote", *arguments, environment=cluster.operator_environment)


def by_folder(cluster: Gated, standby: LocalPostgres, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command on the standby's machine."""
    return ready(cluster, "--pgdata", str(standby.data_directory), "--conninfo", "user=postgres", *arguments)


def add_follower(cluster: Gated, name: str, restore_command: str = "") -> LocalPostgres:
    """Add a standby that streams from the primary itself, as other managers set it up."""
    standby = cluster.add_standby(name, settings={"restore_command": restore_command})
    feed = cluster.postgres.conninfo(application_name=name)
    standby.configure({"primary_conninfo": feed, "wal_retrieve_retry_interval": "5s"})
    standby.reload()
    wait_for(lambda: walsender_of(cluster.postgres, name) is not None, f"{name} streams from the primary")
    return standby


def walsender_of(primary: LocalPostgres, name: str) -> int | None:
    sql = "SELECT pid FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
    return next((pid for (pid,) in primary.execute(sql, name)), None)


def start_proxy(cluster: Gated) -> None:
    """Start a proxy that looks for the promoted server first: a hung one costs it 5 s."""
    cluster.proxies = [cluster.make_proxy("walproxy")]
    cluster.start_proxy()


def hang(server: LocalPostgres) -> None:
    """Stop every process of a server, as a machine does that hangs: its connections stay open."""
    assert server.pid is not None
    for pid in (server.pid, *descendants(server.pid)):
        os.kill(pid, signal.SIGSTOP)


@NEWEST
def test_a_standby_of_a_primary_that_hangs_gets_what_only_the_safekeepers_have(new_gated: NewGated) -> None:
    two_standbys_of_hung_primaries(new_gated)


def two_standbys_of_hung_primaries(new_gated: NewGated) -> None:
    """Promote one standby after the other, neither of which receives anything any longer from its primary."""
    cluster = new_gated(candidates=["heir", "spare"]).start_gated()
    old = cluster.postgres
    given_up = cluster.directory / "00000002.history"
    heir = add_follower(cluster, "heir", f"test %f = {given_up.name} && cp {given_up} %p")
    spare = add_follower(cluster, "spare")
    # A server that was promoted to timeline 2, and given up, has left its history file in an archive.
    given_up.write_text(f"1\t{format_lsn(replay_lsn(heir) - 1)}\tno recovery target specified\n")
    load = cluster.load().start()
    for name in ("heir", "spare"):
        pid = walsender_of(old, name)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    # Several segments of 1 MiB, acknowledged by the quorum.
    old.execute("CREATE TABLE wide AS SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
    load.wait_for_commits(20)
    assert current_lsn(old) - replay_lsn(heir) > 2 << 20
    cluster.proxy.kill9()
    hang(old)
    load.stop(1.0)
    first = report(by_folder(cluster, heir, "--json"))
    assert (first["tli"], first["promoted_tli"]) == (1, 3)
    assert int(str(first["handed_bytes"])) > 2 << 20
    again = report(by_folder(cluster, heir, "--json"))
    assert (again["promoted_tli"], again["handed_bytes"]) == (4, 0)
    heir.promote()
    is_promoted(cluster, "heir")
    start_proxy(cluster)
    Commit(heir).wait()
    load.verify()
    assert heir.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")[0][0].startswith("00000004")
    # The other standby has never received the new timeline, and its primary still hangs.
    Commit(heir, "CREATE TABLE later AS SELECT repeat('x', 1000) FROM generate_series(1, 3000)").wait()
    kill_primary(cluster)
    followed = by_folder(cluster, spare)
    assert followed.returncode == 0, followed.stderr
    assert "has everything that may have been acknowledged" in followed.stdout
    assert followed.stdout.endswith("promote it now, to timeline 5\n")
    old.kill9()
    spare.promote()
    is_promoted(cluster, "spare")
    start_proxy(cluster)
    Commit(spare).wait()
    load.verify()
    assert spare.execute("SELECT count(*) FROM later") == [(3000,)]


@MOSTLY_NEWEST
def test_a_standby_that_is_ahead_of_the_log_may_be_promoted(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir = add_follower(cluster, "heir")
    cluster.proxy.pause()
    Commit(cluster.postgres)
    wait_for(lambda: cluster.waiters() > 0, "a commit waits for the quorum")
    wait_for(lambda: replay_lsn(heir) == current_lsn(cluster.postgres), "the standby has it")
    kill_primary(cluster)
    ended = report(by_folder(cluster, heir, "--json"))
    assert parse_lsn(str(ended["reached_lsn"])) > parse_lsn(str(ended["end_lsn"]))
    heir.promote()
    is_promoted(cluster, "heir")
    start_proxy(cluster)
    Commit(heir).wait()
    assert cluster.scalar("SELECT count(*) FROM ledger") == 2
    cluster.assert_bytes_are_equal(cluster.commit_lsn_of_all())


@NEWEST
def test_a_standby_on_another_machine_is_waited_for(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir = cluster.add_standby("heir")
    Commit(cluster.postgres).wait()
    there = ready(cluster, "--conninfo", cluster.postgres.conninfo())
    assert there.returncode == 4
    assert "it is a primary on timeline 1" in only_line(there.stderr)
    elsewhere = by_folder(cluster, heir, "--conninfo", cluster.postgres.conninfo())
    assert elsewhere.returncode == 3
    assert "correct --pgdata or --conninfo" in only_line(elsewhere.stderr)
    led = ready(cluster, "--conninfo", heir.conninfo())
    assert led.returncode == 1
    assert "a proxy leads, and its primary commits" in only_line(led.stderr)
    kill_primary(cluster)
    for safekeeper_id in (2, 3):
        cluster.safekeepers[safekeeper_id].kill9()
    lost = ready(cluster, "--conninfo", heir.conninfo(), "--timeout", "3")
    assert lost.returncode == 1
    assert "s: safekeeper 2: could not connect to safekeeper 2 at 127.0.0.1" in lost.stderr.splitlines()[-1]
    for safekeeper_id in (2, 3):
        cluster.safekeepers[safekeeper_id].start()
    ended = report(ready(cluster, "--conninfo", heir.conninfo(), "--json"))
    assert (ended["promoted_tli"], ended["handed_bytes"]) == (2, 0)
    ended = report(ready(cluster, "--conninfo", heir.conninfo(), "--json"))
    assert ended["promoted_tli"] == 3
    heir.promote()
    is_promoted(cluster, "heir")
    cluster.proxy.start()
    Commit(heir).wait()
    assert heir.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")[0][0].startswith("00000003")
