"""The primary dies and a standby that streams from safekeepers takes its place; all other readers follow it.

A standby that lacks something which may have been acknowledged is refused, and nothing is touched (S9, S10).
"""

import json
import re
import shutil

from safekeeper.base.lsn import Lsn, parse_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.refusals.refusal_fixtures import run_walproxy
from tests.integration.serving.serve_fixtures import (
    ReceiveWal,
    assert_equal_to_primary,
    feeder,
    wait_for_everything,
    wait_for_feeder,
    wait_for_the_last_commit,
    wait_until_promotable,
)
from tests.waiting import NotThereYet, entry
from walproxy.lab.cluster.local_standby import received_lsn
from walproxy.postgres.local_server import LocalPostgres

# Generous on a loaded machine; the proxy looks at each host every two seconds at least.
FOLLOWS_S = 20.0
TLI_2_HISTORY = "00000002.history"


def standby_status(cluster: Gated, name: str) -> dict[str, object]:
    """Return the entry of a standby in `walproxy status --json`."""
    answer = run_walproxy("status", "--json", "--url", cluster.proxy.url)
    assert answer.returncode == 0, answer.stderr
    return entry(json.loads(answer.stdout)["standbys"], "name", name)


def host_problem(cluster: Gated, port: int, state: str) -> str:
    """Wait until the proxy's host with that port is in `state`; return what is wrong with it."""

    def found() -> dict[str, str]:
        hosts = (field_of(cluster.proxy, "primary") or {"hosts": []})["hosts"]
        return next((each for each in hosts if each["host"].endswith(f":{port}")), {"state": ""})

    wait_for(lambda: found()["state"] == state, f"the host with port {port} is {state}", FOLLOWS_S)
    return found()["problem"]


def kill_primary_with_waiters(cluster: Gated, count: int) -> LocalPostgres:
    """Kill the primary while commits wait in its queue for a quorum that comes back later; return the dead one."""
    for safekeeper_id in (2, 3):
        cluster.safekeepers[safekeeper_id].pause()
    before = cluster.waiters()
    waiting = [Commit(cluster.postgres) for _ in range(count)]
    wait_for(lambda: cluster.waiters() >= before + count, "commits wait for the quorum")
    cluster.postgres.kill9()
    for safekeeper_id in (2, 3):
        cluster.safekeepers[safekeeper_id].resume()
    for commit in waiting:
        wait_for(lambda each=commit: not each.waits, "the client gets the reply")  # type: ignore[misc]
        assert commit.error is not None
    wait_for_the_last_commit(cluster)
    return cluster.postgres


def wait_until_tli_is_2(cluster: Gated) -> None:
    wait_for(lambda: field_of(cluster.proxy, "tli") == 2 and cluster.serving() is not None, "it goes on", FOLLOWS_S)


def received_tli(standby: LocalPostgres) -> int:
    """Return the timeline that a standby streams, 0 if none."""
    rows = standby.execute("SELECT received_tli FROM pg_stat_wal_receiver WHERE status = 'streaming'")
    return int(rows[0][0]) if rows else 0


def everywhere(cluster: Gated, name: str) -> set[Lsn]:
    """Return the positions of that name that the safekeepers have.

    Raises:
        NotThereYet: one of them does not answer.
    """
    positions = [field_of(each, name) for each in cluster.safekeepers.values()]
    if None in positions:
        raise NotThereYet("a safekeeper does not answer")
    return {parse_lsn(position) for position in positions}


def positions_of(cluster: Gated) -> dict[int, tuple[object, ...]]:
    """Return what a refused primary must not change on the safekeepers."""
    names = ("flush_lsn", "commit_lsn", "history", "tli")
    return {i: tuple(field_of(each, name) for name in names) for i, each in cluster.safekeepers.items()}


def test_promoted_standby_has_every_acknowledged_commit_and_all_readers_follow_it(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, other = cluster.add_standby("heir"), cluster.add_standby("other", 3, 2)
    archive = ReceiveWal(cluster.postgres.binaries, cluster, 2, cluster.directory / "archive")
    with archive, cluster.load() as load:
        load.wait_for_commits(50)
        old = kill_primary_with_waiters(cluster, 3)
        wait_for(lambda: standby_status(cluster, "heir")["has_everything"] is True, "the standby has everything")
        assert received_lsn(heir) >= cluster.commit_lsn()
        cluster.promote("heir")
        wait_until_tli_is_2(cluster)
        load.wait_for_commits(50)
        wait_for(lambda: received_tli(other) == 2, "the other standby follows to the next timeline", FOLLOWS_S)
        load.stop()
        assert feeder(cluster, other) in (2, 3)
        archive.wait_for(cluster, wait_for_everything(cluster, other), tli=2)
        _assert_history_is_that_of(cluster, archive)
        assert_equal_to_primary(cluster, other)
    _assert_old_primary_is_refused(cluster, old)
    assert_equal_to_primary(cluster, other)


@NEWEST
def test_readers_follow_a_promotion_that_has_passed_a_number_over(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, other = cluster.add_standby("heir"), cluster.add_standby("other", 3, 2)
    with cluster.load() as load:
        load.wait_for_commits(20)
        cluster.postgres.kill9()
        wait_until_promotable(cluster, heir)
        # Another standby was promoted, and given up: its history file is in the archive that this one reads.
        passed = heir.pg_wal / TLI_2_HISTORY
        passed.write_bytes(b"1\t0/800000\tno recovery target specified\n")
        shutil.chown(passed, passed.parent.owner(), passed.parent.group())
        cluster.promote("heir")
        wait_for(lambda: field_of(cluster.proxy, "tli") == 3 and cluster.serving() is not None, "it goes on", FOLLOWS_S)
        wait_for(lambda: received_tli(other) == 3, "the other standby follows to timeline 3", FOLLOWS_S)
        load.wait_for_commits(20)
        load.stop()
        assert_equal_to_primary(cluster, other)


def _assert_history_is_that_of(cluster: Gated, archive: ReceiveWal) -> None:
    mine = (archive.folder / TLI_2_HISTORY).read_bytes()
    assert mine == (cluster.postgres.pg_wal / TLI_2_HISTORY).read_bytes()


def _assert_old_primary_is_refused(cluster: Gated, old: LocalPostgres) -> None:
    """It is back, and the next proxy looks at it first: that one goes on with the new primary nevertheless."""
    old.start()
    cluster.proxy.kill9()
    waiting = Commit(old)
    cluster.proxy.start()
    with cluster.load() as load:
        load.wait_for_commits(20)
        assert "left timeline 1 at" in host_problem(cluster, old.port, "refused")
        assert f"the primary at 127.0.0.1:{old.port} is refused" in cluster.proxy.log_path.read_text()
        assert waiting.waits
    old.stop("immediate")


@NEWEST
def test_standby_that_was_promoted_without_an_acknowledged_commit_is_refused_and_another_one_taken(
    new_gated: NewGated,
) -> None:
    cluster = new_gated(candidates=["early", "whole"]).start_gated()
    early, _, away = (cluster.add_standby(name) for name in ("early", "whole", "away"))
    with cluster.load() as load:
        away.stop("fast")
        wait_for_feeder(cluster, early)
        # It is cut off from the safekeepers while commits go on.
        early.configure({"primary_conninfo": ""})
        early.reload()
        wait_for(lambda: feeder(cluster, early) is None, "it streams no more")
        load.wait_for_commits(50)
        old = kill_primary_with_waiters(cluster, 2)
        wait_for(lambda: standby_status(cluster, "whole")["has_everything"] is True, "the other has everything")
        commit_lsn = cluster.commit_lsn()
        wait_for(lambda: everywhere(cluster, "commit_lsn") == {commit_lsn}, "the safekeepers have the commit")
        before = positions_of(cluster)
        early.promote()
        problem = host_problem(cluster, early.port, "refused")
        fork_lsn, acknowledged_lsn = _lsns_of_refusal(problem)
        assert received_lsn(early) >= fork_lsn and fork_lsn < commit_lsn <= acknowledged_lsn
        assert problem in cluster.proxy.log_path.read_text()
        assert positions_of(cluster) == before
        # Both have called their timelines 2. The log goes on with the one that has everything.
        cluster.former_primaries.append(old)
        cluster.promote("whole")
        wait_until_tli_is_2(cluster)
        load.wait_for_commits(20)
        assert "forked off" in host_problem(cluster, early.port, "refused")
        early.stop("immediate")
        # Who was away all the while finds the way from its old timeline.
        away.start()
        load.stop()
        assert_equal_to_primary(cluster, away)
        wait_for(lambda: received_tli(away) == 2, "it streams the new timeline")


def _lsns_of_refusal(problem: str) -> tuple[Lsn, Lsn]:
    """Return where the refused standby left the log, and up to where commits may have been acknowledged."""
    found = re.search(r"forked off at ([0-9A-F/]+).* WAL up to ([0-9A-F/]+) may have been acknowledged", problem)
    assert found is not None, problem
    return parse_lsn(found[1]), parse_lsn(found[2])
