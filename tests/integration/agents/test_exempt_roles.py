"""Roles with a setting of their own for default_transaction_read_only, which ending the writes of a primary leaves."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.integration.agents.lost_leaders import NewAgents, wait_for_line, wait_until
from tests.integration.agents.test_agent import Agents
from tests.integration.conftest import NEWEST
from tests.waiting import wait_for
from walproxy.agent.processes import postmaster_of
from walproxy.lab.failover.host import Host

pytestmark = NEWEST


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def fence(folder: Path) -> Path:
    """No promotion begins while this file exists."""
    return folder / "fence-fails"


def insert(host: Host, n: int, synchronous_commit: str) -> None:
    """Commit a row as the role; return once that is acknowledged."""
    with psycopg.connect(host.place.local_conninfo, user="writer", autocommit=True) as session:
        session.execute(f"SET synchronous_commit = {synchronous_commit}".encode())
        session.execute("INSERT INTO book VALUES (%s)", (n,))


def make_role(leader: Host) -> None:
    leader.execute("CREATE ROLE writer LOGIN")
    leader.execute("ALTER ROLE writer SET default_transaction_read_only = off")
    leader.execute("CREATE TABLE book (n int)")
    leader.execute("GRANT INSERT ON book TO writer")


def has_ended_writes(leader: Host) -> bool:
    """Return whether its agent has ended the writes and all sessions."""
    _, begun, since = leader.manager.log_path.read_text().partition("no writes from now on")
    return bool(begun) and "waiting: its writes are ended" in since


def numbers(host: Host) -> set[int]:
    return {n for (n,) in host.execute("SELECT n FROM book")}


def fenced_commit(cluster: Agents, fence: Path, pool: ThreadPoolExecutor) -> Future[None]:
    """Cut the leader's proxy off, and begin a synchronous commit of the role once the leader has ended its writes."""
    leader, *others = cluster.hosts.values()
    make_role(leader)
    fence.touch()
    leader.stop("proxy")
    wait_for(lambda: has_ended_writes(leader), "the writes of all other roles are ended", 60.0)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        leader.execute("INSERT INTO book VALUES (0)")
    commit = pool.submit(insert, leader, 1, "on")
    waiting = "SELECT 1 FROM pg_stat_activity WHERE usename = 'writer' AND wait_event = 'SyncRep'"
    wait_for(lambda: leader.execute(waiting), "the commit waits for the quorum")
    # What waits for no quorum is acknowledged, and promises nothing.
    insert(leader, 2, "local")
    assert numbers(leader) >= {2}
    wait_for_line(others, "failover failed: fence_command failed")
    assert not commit.done()
    return commit


def test_a_role_that_writes_on_a_replaced_primary_gets_no_acknowledgement(
    new_agents: NewAgents, fence: Path, pool: ThreadPoolExecutor
) -> None:
    cluster = new_agents("-c", f"fence_command=! test -e {fence}", dead_after_s=5.0)
    leader = cluster.hosts["pg1"]
    commit = fenced_commit(cluster, fence, pool)
    fence.unlink()
    cluster.wait_for_leader("pg2", "pg3", timeout_s=60.0)
    with pytest.raises(psycopg.OperationalError):
        commit.result(60.0)
    new = cluster.wait_until_well(60.0).leader
    assert new is not leader and not numbers(new)
    [path] = leader.place.discarded_directory.iterdir()
    assert json.loads(path.read_text())["commit_count"] == 2


def test_a_role_that_writes_on_a_primary_that_leads_again_is_acknowledged_by_the_quorum(
    new_agents: NewAgents, fence: Path, pool: ThreadPoolExecutor
) -> None:
    cluster = new_agents("-c", f"fence_command=! test -e {fence}", dead_after_s=5.0)
    leader = cluster.hosts["pg1"]
    commit = fenced_commit(cluster, fence, pool)
    leader.resume("proxy")
    commit.result(60.0)
    fence.unlink()
    leader.kill()
    new = cluster.wait_for_leader("pg2", "pg3", timeout_s=60.0)
    assert numbers(new) == {1, 2}


def test_a_primary_that_is_stopped_without_a_quorum_takes_no_writes_of_any_role(new_agents: NewAgents) -> None:
    cluster = new_agents("-c", "without_quorum=stop", dead_after_s=5.0)
    leader = cluster.hosts["pg1"]
    make_role(leader)
    for i in (1, 2):
        cluster.safekeepers[i].pause()
    wait_for_line([leader], "no writes from now on")
    wait_for(lambda: postmaster_of(leader.place.data_directory) is None, "the server is stopped")
    wait_until(time.monotonic() + 10.0, "it could have been started again")
    with pytest.raises(psycopg.OperationalError):
        insert(leader, 1, "local")
    for i in (1, 2):
        cluster.safekeepers[i].resume()
    insert(cluster.wait_for_leader(), 2, "on")
