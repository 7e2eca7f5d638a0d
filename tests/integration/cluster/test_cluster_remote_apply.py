"""remote_apply with standbys that stream from safekeepers: what a commit waits for, and what is known of them."""

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.integration.serving.serve_fixtures import standby_of
from tests.waiting import entry
from walproxy.postgres.local_server import LocalPostgres

pytestmark = NEWEST

# A heartbeat comes after 250 ms of silence: who has to wait for one takes longer.
PROMPT_S = 0.12


@pytest.fixture
def waiting_cluster(new_gated: NewGated, folder: Path) -> Gated:
    """A cluster whose remote_apply waits for the standby `a`, as in its configuration file."""
    file = folder / "walproxy.toml"
    file.write_text('[proxy]\nremote_apply_standbys = "A"\n')
    return new_gated("--config", str(file)).start_gated()


def standby_status(cluster: Gated, name: str) -> dict[str, Any]:
    """Return what the proxy reports of a standby, whether or not the proxy streams."""
    return entry(field_of(cluster.proxy, "standbys") or [], "name", name)


@contextlib.contextmanager
def replay_paused(standby: LocalPostgres) -> Iterator[None]:
    standby.execute("SELECT pg_wal_replay_pause()")
    wait_for(lambda: standby.execute("SELECT pg_get_wal_replay_pause_state()")[0][0] == "paused", "replay is paused")
    try:
        yield
    finally:
        standby.execute("SELECT pg_wal_replay_resume()")


def test_a_commit_with_remote_apply_is_seen_on_the_standby_when_it_returns_also_when_it_is_the_only_one(
    waiting_cluster: Gated,
) -> None:
    cluster = waiting_cluster
    with standby_of(cluster, name="a") as standby:
        wait_for(lambda: standby_status(cluster, "a")["connected"], "the proxy has the standby")
        took_s = []
        conninfo = cluster.postgres.conninfo(options="-c synchronous_commit=remote_apply")
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for number in range(5):
                time.sleep(0.4)  # Silence, in which the last heartbeat has come and gone.
                began_at = time.monotonic()
                connection.execute("INSERT INTO ledger VALUES (9, %s)", (number,))
                took_s.append(time.monotonic() - began_at)
                assert standby.execute("SELECT max(number) FROM ledger WHERE worker = 9") == [(number,)]
        assert statistics.median(took_s) < PROMPT_S, took_s


def test_remote_apply_waits_for_the_designated_standby_and_on_does_not(waiting_cluster: Gated) -> None:
    cluster = waiting_cluster
    early = Commit(cluster.postgres, synchronous_commit="remote_apply")
    wait_for(lambda: cluster.waiters() == 1, "a commit waits for the standby that has never been there")
    Commit(cluster.postgres).wait()
    assert cluster.status()["apply_problem"] == "a is not streaming"
    with standby_of(cluster, name="a") as standby:
        early.wait()
        with replay_paused(standby):
            waiting = Commit(cluster.postgres, synchronous_commit="remote_apply")
            wait_for(lambda: cluster.waiters() == 1, "a commit waits for the standby's replay")
            Commit(cluster.postgres).wait()
            row = standby_status(cluster, "a")
            assert row["designated"] and row["connected"]
            wait_for(lambda: standby_status(cluster, "a")["has_everything"] is True, "the standby has it on its disk")
            assert waiting.waits and standby_status(cluster, "a")["apply_lag_bytes"] > 0
        waiting.wait()
        standby.stop("fast")
        wait_for(lambda: not standby_status(cluster, "a")["connected"], "the standby's end is noticed")
        lost = Commit(cluster.postgres, synchronous_commit="remote_apply")
        wait_for(lambda: cluster.waiters() == 1, "a commit waits for a standby that is gone")
        Commit(cluster.postgres).wait()
        standby.start()
        lost.wait()


def test_another_rule_is_taken_at_sighup_and_releases_who_waits(waiting_cluster: Gated, folder: Path) -> None:
    cluster = waiting_cluster
    with standby_of(cluster, name="b"):
        wait_for(lambda: standby_status(cluster, "b"), "the proxy has the standby")
        waiting = Commit(cluster.postgres, synchronous_commit="remote_apply")
        wait_for(lambda: cluster.waiters() == 1, "a commit waits for a standby that is not there")
        (folder / "walproxy.toml").write_text('[proxy]\nremote_apply_standbys = "ANY 1 (a, b)"\n')
        os.kill(cluster.proxy.pid or 0, signal.SIGHUP)
        waiting.wait()
        assert cluster.status()["apply_rule"] == "ANY 1 (a, b)"


def test_what_a_standby_has_is_known_when_the_primary_is_dead(waiting_cluster: Gated) -> None:
    cluster = waiting_cluster
    with standby_of(cluster, name="a") as standby:
        for _ in range(20):
            Commit(cluster.postgres, synchronous_commit="remote_apply").wait()
        cluster.postgres.kill9()
        wait_for(lambda: field_of(cluster.proxy, "state") == "waiting_for_primary", "the proxy notices")
        wait_for(
            lambda: standby_status(cluster, "a")["has_everything"] is True, "the standby has all that was acknowledged"
        )
        standby.stop("fast")
        wait_for(lambda: not standby_status(cluster, "a")["connected"], "the standby's end is noticed")
        assert standby_status(cluster, "a")["has_everything"] is True
        cluster.postgres.start()
        wait_for(lambda: field_of(cluster.proxy, "state") == "streaming", "the primary is back")
        Commit(cluster.postgres).wait()
        wait_for(lambda: standby_status(cluster, "a")["has_everything"] is False, "what it lacks now is known too")
        assert standby_status(cluster, "a")["lag_bytes"] > 0
        standby.start()
        wait_for(lambda: standby_status(cluster, "a")["has_everything"] is True, "it has caught up")
