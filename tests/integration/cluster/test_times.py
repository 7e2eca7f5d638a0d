"""Times and counts of a real cluster: they agree with what happened, and name the safekeeper that is slow."""

import json
import time
import urllib.request
from typing import Any

import psycopg
from prometheus_client.parser import text_string_to_metric_families

from tests.forking.daemons import run_walproxy
from tests.integration.cluster.cluster_fixtures import Gated, SlowDisk, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.serving.serve_fixtures import standby_of
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.lab.testing.faulty_disk import DiskFaults, write_faults

pytestmark = NEWEST

SLOW_S = 0.3
COMMITS_MIN = 20
PATIENCE_S = 60.0


def metrics_of(process: LocalProcess) -> dict[str, float]:
    """Return the numbers of a daemon's /metrics, by name and values of the labels, in the order of their names."""
    with urllib.request.urlopen(f"{process.url}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        sample.name + "".join(f"[{value}]" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def levels_of_the_command(cluster: Gated) -> dict[str, dict[str, Any]]:
    """Return what `walproxy levels --json` prints, by level."""
    ended = run_walproxy("levels", "--json", "--url", cluster.proxy.url, timeout_s=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    return {row["level"]: row for row in json.loads(ended.stdout)["levels"]}


def commit_until_each_is_timed(cluster: Gated, since: dict[str, Any], level: str = "on") -> list[float]:
    """Commit one row after the other until each safekeeper has several more samples; return how long commits took."""
    took_s: list[float] = []

    def is_enough() -> bool:
        began_at = time.monotonic()
        connection.execute("INSERT INTO ledger VALUES (7, 7)")
        took_s.append(time.monotonic() - began_at)
        members = cluster.status()["times"]["members"]
        before = since["members"]
        return len(took_s) >= COMMITS_MIN and all(
            members.get(i, {"count": 0})["count"] >= before.get(i, {"count": 0})["count"] + 5 for i in ("1", "2", "3")
        )

    conninfo = cluster.postgres.conninfo(options=f"-c synchronous_commit={level}")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        wait_for(is_enough, "the replies of every safekeeper were timed", PATIENCE_S)
    return took_s


def test_times_agree_with_what_clients_saw_and_a_slow_safekeeper_is_the_slowest(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    with cluster.on_slow_disk(2) as disk:
        wait_for(lambda: cluster.member(2)["state"] == "streaming", "safekeeper 2 follows", PATIENCE_S)
        slow_down(disk)
        before = cluster.status()
        took_s = commit_until_each_is_timed(cluster, before["times"])
        status = cluster.status()
        times = status["times"]

        # Each commit of the only client is a batch of its own at least.
        assert times["quorum"]["count"] - before["times"]["quorum"]["count"] >= len(took_s)
        assert times["oldest_s"] is None or times["oldest_s"] < PATIENCE_S
        # A quantile is right within a factor of two; a client waits for more than the quorum.
        assert 0 < times["quorum"]["p50_s"] <= 2 * max(took_s)
        assert times["quorum"]["p50_s"] <= times["quorum"]["p99_s"]
        assert times["write"]["count"] > 0 and times["apply"]["count"] == 0

        slowest = times["members"]["2"]
        others = [times["members"][i]["p99_s"] for i in ("1", "3")]
        assert slowest["p50_s"] >= SLOW_S / 2
        assert slowest["p50_s"] > min(others)
        assert times["quorum"]["p50_s"] < slowest["p50_s"], "no commit waits for the slow one"
        flush = field_of(cluster.safekeepers[2], "disk")["flush"]
        assert flush["p50_s"] >= SLOW_S / 2 and flush["count"] >= 5

        levels = levels_of_the_command(cluster)
        assert [row["state"] for row in levels.values()] == ["ok"] * 5
        assert levels["on"]["slowest"]["name"] == "safekeeper 2"
        assert levels["on"]["slowest"]["is_needed"] is False
        assert levels["on"]["losses"]["primary"] == "nothing"

        assert (status["elections"]["won"], status["elections"]["lost"]) == (1, 0)
        assert status["reconnects"]["safekeepers"] == {"1": 0, "2": 1, "3": 0}
        assert status["reconnects"]["primary"] == 0
        agree_with_status(cluster)


def slow_down(disk: SlowDisk) -> None:
    write_faults(disk.control_file, DiskFaults(fsync_ms=1000 * SLOW_S))


def agree_with_status(cluster: Gated) -> None:
    """Check that the pages /metrics have the counts of /status, which may have grown meanwhile."""
    status = cluster.status()
    numbers = metrics_of(cluster.proxy)
    assert numbers["walproxy_wal_seconds_count[flush]"] >= status["times"]["quorum"]["count"] > 0
    assert numbers["walproxy_append_seconds_count[2]"] >= status["times"]["members"]["2"]["count"] > 0
    assert numbers["walproxy_wal_seconds_bucket[+Inf][flush]"] == numbers["walproxy_wal_seconds_count[flush]"]
    assert numbers["walproxy_elections_total[won]"] == numbers["walproxy_election_seconds_count"] == 1
    assert numbers["walproxy_term_age_seconds"] > 0 and numbers["walproxy_term_seconds_count"] == 0
    assert numbers["walproxy_safekeepers[streaming]"] == 3
    assert numbers["walproxy_votes_total[granted]"] >= 2
    assert numbers["process_max_fds"] > numbers["process_open_fds"] > 5
    of_safekeepers = [metrics_of(process) for process in cluster.safekeepers.values()]
    # The second one was restarted since; a vote that is requested again is granted again.
    assert [each["safekeeper_votes_total[granted]"] >= 1 for each in of_safekeepers] == [True, False, True]
    for each in of_safekeepers:
        assert each["safekeeper_flush_seconds_count"] > 0
        assert each["safekeeper_append_bytes_sum"] > 0
        assert sum(count for name, count in each.items() if name.startswith("safekeeper_refusals_total")) == 0


def test_a_commit_that_waited_for_a_quorum_counts_with_all_its_time_and_remote_apply_is_timed(
    new_gated: NewGated,
) -> None:
    cluster = new_gated("-c", "remote_apply_standbys=a").start_gated()
    with standby_of(cluster, name="a"):
        wait_for(lambda: cluster.status()["apply_problem"] is None, "the standby streams", PATIENCE_S)
        # The proxy reads the settings every 2 s.
        wait_for(lambda: cluster.status()["gate"]["state"] == "gated", "the gate is seen", PATIENCE_S)
        commit_until_each_is_timed(cluster, cluster.status()["times"], level="remote_apply")
        assert cluster.status()["times"]["apply"]["count"] > 0
        assert levels_of_the_command(cluster)["remote_apply"]["slowest"]["name"] == "standby a"
    before = metrics_of(cluster.proxy)
    for safekeeper_id in (2, 3):
        cluster.safekeepers[safekeeper_id].kill9()
    wait_for(lambda: field_of(cluster.proxy, "state") == "waiting_for_quorum", "the proxy notices", PATIENCE_S)
    cluster.postgres.execute("SET synchronous_commit = local; INSERT INTO ledger VALUES (8, 8)")
    wait_for(
        lambda: ((field_of(cluster.proxy, "times") or {}).get("oldest_s") or 0) > 2.0,
        "WAL has waited for 2 s",
        PATIENCE_S,
    )
    blocked = levels_of_the_command(cluster)
    assert [blocked[level]["state"] for level in blocked] == ["ok", "ok", "blocked", "blocked", "blocked"]
    assert blocked["on"]["slowest"]["is_needed"] and "safekeeper 2" in blocked["on"]["problem"]
    assert "bytes of WAL or more" in blocked["local"]["losses"]["primary"]
    for safekeeper_id in (2, 3):
        cluster.safekeepers[safekeeper_id].start()
    wait_for(lambda: cluster.status()["times"]["oldest_s"] is None, "all WAL is on a quorum", PATIENCE_S)
    wait_for(lambda: cluster.status()["members_streaming"] == 3, "all members stream", PATIENCE_S)
    after = metrics_of(cluster.proxy)

    def longer_than_1_s(numbers: dict[str, float]) -> float:
        return numbers["walproxy_wal_seconds_count[flush]"] - numbers["walproxy_wal_seconds_bucket[1.0][flush]"]

    assert longer_than_1_s(after) > longer_than_1_s(before)
    assert after["walproxy_safekeeper_reconnects_total[2]"] - before["walproxy_safekeeper_reconnects_total[2]"] >= 1
    assert after["walproxy_safekeeper_reconnects_total[1]"] == before["walproxy_safekeeper_reconnects_total[1]"]
