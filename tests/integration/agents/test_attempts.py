"""Failovers that fail, with real agents and servers: what they leave behind, and that commits go on afterwards."""

import asyncio
import os
import signal
import time
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from safekeeper.base.settings import Secret, address
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.peers.shared_secret import SharedSecret
from tests.integration.agents.lost_leaders import DEAD_AFTER_S, NewAgents, commits_go_on, floors, wait_for_line
from tests.integration.agents.test_agent import Book
from tests.integration.conftest import NEWEST
from tests.integration.refusals.refusal_fixtures import run_walproxy
from tests.waiting import wait_for
from walproxy.failover.sealer import sealing_run
from walproxy.proposer.purpose import Seal

pytestmark = NEWEST


def test_a_fence_that_fails_leaves_the_primary_as_it_was(new_agents: NewAgents) -> None:
    cluster = new_agents("-c", "fence_command=echo no such outlet; exit 1")
    leader, *others = cluster.hosts.values()
    with Book(cluster) as book:
        book.wait_for_commit()
        leader.manager.kill9()
        wait_for_line(others, "failover failed: fence_command failed with exit code 1: no such outlet")
        assert floors(cluster) == {0}
        leader.manager.start()
        commits_go_on(book, time.monotonic())
        assert cluster.wait_until_well(30.0).leader is leader
        assert "is sealed by a failover" not in leader.manager.log_path.read_text()
        book.verify()


def test_a_fence_that_takes_long_is_waited_for_and_run_once(new_agents: NewAgents, folder: Path) -> None:
    runs = folder / "fences"
    cluster = new_agents(
        "-c", f"fence_command=echo $WALPROXY_OLD_PRIMARY >> {runs}; sleep 28", "-c", "fence_timeout=40"
    )
    leader = cluster.hosts["pg1"]
    runs.touch()
    runs.chmod(0o666)
    with Book(cluster) as book:
        book.wait_for_commit()
        leader.kill()
        cluster.wait_for_leader("pg2", "pg3", timeout_s=60.0)
        commits_go_on(book, time.monotonic())
        assert runs.read_text().split() == ["pg1"]
        book.verify()


def test_standbys_that_receive_nothing_leave_the_primary_as_it_was(new_agents: NewAgents) -> None:
    cluster = new_agents()
    leader, *others = cluster.hosts.values()
    with Book(cluster) as book:
        book.wait_for_commit()
        # Their walreceivers cannot log in from now on.
        passwords = Path(conninfo_to_dict(cluster.around.standby_conninfo)["passfile"])
        known = passwords.read_text()
        passwords.write_text(f"{known[:-2]}x\n")
        for host in others:
            [(pid,)] = host.execute("SELECT pid FROM pg_stat_wal_receiver")
            os.kill(pid, signal.SIGTERM)
        book.wait_for_commit()
        leader.manager.kill9()
        wait_for_line(others, "failover failed: no standby has received all that may have been acknowledged")
        leader.manager.start()
        commits_go_on(book, time.monotonic())
        assert cluster.wait_for_leader() is leader
        passwords.write_text(known)
        assert cluster.wait_until_well(30.0).leader is leader
        assert any("taking the seal of timeline 1 back" in host.manager.log_path.read_text() for host in others)
        book.verify()


def test_a_primary_that_a_killed_failover_has_sealed_is_let_in_again(new_agents: NewAgents) -> None:
    cluster = new_agents()
    leader, *others = cluster.hosts.values()
    places = [each.split("=") for each in cluster.around.safekeepers.split(",")]
    safekeepers = [(int(each), address(place)) for each, place in places]

    async def seal_and_die() -> None:
        credentials = Credentials(secret=SharedSecret(None, Secret(cluster.environment["WALPROXY_SECRET"].encode())))
        async with sealing_run(safekeepers, takeover=True, credentials=credentials) as run:
            await run.pursue(Seal(1))

    with Book(cluster) as book:
        book.wait_for_commit()
        for host in others:
            host.stop("manager")
        asyncio.run(seal_and_die())
        since = time.monotonic()
        wait_for_line([leader], "no writes from now on: timeline 1 is sealed by a failover")
        commits_go_on(book, since)
        assert "letting timeline 1 in again" in leader.manager.log_path.read_text() and floors(cluster) == {0}
        for host in others:
            host.resume("manager")
        after = cluster.wait_until_well(30.0)
        assert (after.leader, after.tli) == (leader, 1)
        book.verify()


def test_a_promotion_that_crashes_is_finished(new_agents: NewAgents, folder: Path) -> None:
    cluster = new_agents()
    leader, *others = cluster.hosts.values()
    crashed = folder / "crashed"
    # After the new timeline is chosen, and before the server is a primary; once.
    command = f"test -e {crashed} || {{ touch {crashed}; kill -9 $(head -n 1 postmaster.pid); sleep 30; }}"
    folder.chmod(0o777)
    with Book(cluster) as book:
        book.wait_for_commit()
        for host in others:
            host.execute(f"ALTER SYSTEM SET recovery_end_command = '{command}'")
            host.execute("SELECT pg_reload_conf()")
        leader.kill()
        wait_for(crashed.exists, "a promotion crashes", 60.0)
        commits_go_on(book, time.monotonic())
        assert cluster.wait_for_leader() in others
        leader.start()
        cluster.wait_until_well(60.0)
        book.verify()


def test_a_pause_holds_while_no_safekeeper_replies(new_agents: NewAgents) -> None:
    cluster = new_agents()
    leader = cluster.hosts["pg1"]
    with Book(cluster) as book:
        book.wait_for_commit()
        paused = run_walproxy("cluster", "pause", environment=cluster.operator_environment)
        assert paused.returncode == 0, paused.stderr
        for safekeeper in cluster.safekeepers.values():
            safekeeper.pause()
        until = time.monotonic() + 2 * DEAD_AFTER_S
        wait_for(lambda: time.monotonic() > until, "longer than the loss of a leader takes")
        for safekeeper in cluster.safekeepers.values():
            safekeeper.resume()
        commits_go_on(book, time.monotonic())
        assert "no writes from now on" not in leader.manager.log_path.read_text()
        book.verify()


def test_a_cancelled_failover_waits_for_the_old_primary(new_agents: NewAgents, folder: Path) -> None:
    fails = folder / "fence-fails"
    cluster = new_agents("-c", f"fence_command=! test -e {fails}")
    leader, *others = cluster.hosts.values()
    fails.touch()
    with Book(cluster) as book:
        book.wait_for_commit()
        leader.kill()
        wait_for_line(others, "failover failed: fence_command failed")
        servers = [host.place.local_conninfo for host in others]
        cancelled = run_walproxy(
            "failover", "--cancel", "--primary", servers[0], environment=cluster.operator_environment
        )
        assert cancelled.returncode == 0, cancelled.stderr
        wait_for_line(others, "the failover was cancelled: waiting for the old primary")
        fails.unlink()  # From now on nothing but the order keeps them from it.
        until = time.monotonic() + 4 * DEAD_AFTER_S
        wait_for(lambda: time.monotonic() > until, "several attempts could have been made")
        leader.start()
        commits_go_on(book, time.monotonic())
        assert cluster.wait_for_leader() is leader
        # The next loss of the leader counts.
        leader.kill()
        assert cluster.wait_for_leader("pg2", "pg3") in others
        book.verify()
