"""The levels of synchronous_commit with standbys behind safekeepers: what each waits for, and what it does not."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from safekeeper.base.lsn import parse_lsn
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST
from tests.integration.serving.serve_fixtures import standby_of, wait_for_everything, wait_for_feeder
from walproxy.lab.cluster.local_standby import replay_lsn
from walproxy.postgres.local_server import LocalPostgres

FAILOVER_S = 10.0
AT_ONCE_S = 3.0


@pytest.fixture(scope="module")
def first(shared_cluster: Gated) -> Iterator[LocalPostgres]:
    """A standby called `first` of the shared cluster. Each test leaves it streaming."""
    with standby_of(shared_cluster, name="first", settings={"wal_receiver_status_interval": "1s"}) as made:
        yield made


@pytest.fixture(autouse=True, scope="module")
def rule_file(shared_cluster: Gated) -> Iterator[None]:
    """The proxy reads a file in which `designated` writes."""
    proxy = shared_cluster.proxy
    ordinary = proxy.arguments
    _rule_file(shared_cluster).write_text("")
    proxy.kill9()
    proxy.arguments = [*ordinary, "--config", str(_rule_file(shared_cluster))]
    start_proxy(shared_cluster)
    yield
    proxy.kill9()
    proxy.arguments = ordinary
    start_proxy(shared_cluster)


def _rule_file(cluster: Gated) -> Path:
    return cluster.directory / "rule.toml"


def start_proxy(cluster: Gated) -> None:
    """Start the proxy that was ended and wait until it streams."""
    cluster.proxy.start()
    wait_for(lambda: cluster.serving() is not None, "the proxy streams")


@contextlib.contextmanager
def designated(cluster: Gated, rule: str) -> Iterator[None]:
    """Let the proxy read again which standbys remote_apply waits for; in the end, that it waits for none."""
    _designate(cluster, rule)
    try:
        yield
    finally:
        _designate(cluster, "")


def _designate(cluster: Gated, rule: str) -> None:
    assert cluster.proxy.pid is not None
    _rule_file(cluster).write_text(f'[proxy]\nremote_apply_standbys = "{rule}"\n')
    os.kill(cluster.proxy.pid, signal.SIGHUP)
    wait_for(lambda: field_of(cluster.proxy, "apply_rule") == rule, "the proxy has the rule of remote_apply")


@contextlib.contextmanager
def replay_paused(*standbys: LocalPostgres) -> Iterator[None]:
    """Standbys that receive and do not replay."""
    for standby in standbys:
        standby.execute("SELECT pg_wal_replay_pause()")
        wait_for(lambda s=standby: _pause_state(s) == "paused", "replay is paused")  # type: ignore[misc]
    try:
        yield
    finally:
        for standby in standbys:
            standby.execute("SELECT pg_wal_replay_resume()")


def _pause_state(standby: LocalPostgres) -> str:
    return str(standby.execute("SELECT pg_get_wal_replay_pause_state()")[0][0])


@contextlib.contextmanager
def stopped(standby: LocalPostgres) -> Iterator[None]:
    """A standby that is gone for a while."""
    standby.stop("fast")
    try:
        yield
    finally:
        standby.start()


def start_commit_that_waits(cluster: Gated, level: str) -> Commit:
    """Begin a commit that waits in PostgreSQL's queue."""
    before = cluster.waiters()
    commit = Commit(cluster.postgres, synchronous_commit=level)
    wait_for(lambda: cluster.waiters() == before + 1, f"a commit at {level} waits")
    return commit


def commit_at(cluster: Gated, *levels: str, timeout_s: float = 20.0) -> None:
    """Commit at each level; each must return."""
    for level in levels:
        Commit(cluster.postgres, synchronous_commit=level).wait(timeout_s)


def test_remote_apply_waits_until_the_designated_standby_has_replayed_and_on_does_not(
    cluster: Gated, first: LocalPostgres
) -> None:
    with designated(cluster, "first"), cluster.load(workers=1) as load:
        load.stop()
        commit_at(cluster, "remote_apply")
        with replay_paused(first):
            waiting = start_commit_that_waits(cluster, "remote_apply")
            end_lsn = cluster.primary_flush_lsn()
            commit_at(cluster, "on", "remote_write", "local")
            wait_for(lambda: cluster.commit_lsn() >= end_lsn, "it is committed on the quorum")
            status = cluster.status()
            assert waiting.waits
            assert parse_lsn(status["apply_lsn"]) <= replay_lsn(first) < end_lsn <= parse_lsn(status["flush_lsn"])
        waiting.wait(AT_ONCE_S)
        # What it waited for can be read there by then.
        Commit(cluster.postgres, "INSERT INTO ledger VALUES (-2, 1)", synchronous_commit="remote_apply").wait()
        assert first.execute("SELECT count(*) FROM ledger WHERE worker = -2") == [(1,)]
        cluster.postgres.execute("DELETE FROM ledger WHERE worker = -2")


@NEWEST
def test_remote_apply_goes_on_when_the_safekeeper_of_the_designated_standby_is_killed(
    cluster: Gated, first: LocalPostgres
) -> None:
    with designated(cluster, "FIRST"), cluster.load(workers=1):
        commit_at(cluster, "remote_apply")
        killed = wait_for_feeder(cluster, first)
        cluster.safekeepers[killed].kill9()
        commit_at(cluster, "remote_apply", timeout_s=FAILOVER_S)
        assert wait_for_feeder(cluster, first) != killed
        cluster.safekeepers[killed].start()


@NEWEST
def test_remote_apply_waits_for_a_designated_standby_that_is_gone_and_on_does_not(
    cluster: Gated, first: LocalPostgres
) -> None:
    with designated(cluster, "first"), cluster.load(workers=1) as load:
        load.stop()
        commit_at(cluster, "remote_apply")
        with stopped(first):
            waiting = start_commit_that_waits(cluster, "remote_apply")
            commit_at(cluster, "on", "remote_write")
            wait_for(
                lambda: field_of(cluster.proxy, "apply_problem") == "first is not streaming",
                "its status has the reason",
            )
            blocked = "remote_apply is blocked: first is not streaming"
            wait_for(lambda: blocked in cluster.proxy.log_path.read_text(), "it is logged at the next observation")
            # Nor does a proxy without a report of it take that for a reason to go on.
            cluster.proxy.kill9()
            start_proxy(cluster)
            commit_at(cluster, "on")
            assert waiting.waits
        waiting.wait(FAILOVER_S)
        wait_for(lambda: field_of(cluster.proxy, "apply_problem") is None, "the problem is gone")


@NEWEST
def test_any_one_of_two_designated_standbys_suffices_under_that_rule(cluster: Gated, first: LocalPostgres) -> None:
    with standby_of(cluster, name="second") as second:
        with designated(cluster, "ANY 1 (first, second)"), cluster.load(workers=1) as load:
            load.stop()
            commit_at(cluster, "remote_apply")
            for paused in (first, second):
                with replay_paused(paused):
                    commit_at(cluster, "remote_apply")
            with replay_paused(first):
                with replay_paused(second):
                    waiting = start_commit_that_waits(cluster, "remote_apply")
                    commit_at(cluster, "on")
                    assert waiting.waits
                waiting.wait(AT_ONCE_S)
        with designated(cluster, "first, second"):
            with replay_paused(second):
                waiting = start_commit_that_waits(cluster, "remote_apply")
                wait_for_everything(cluster, first)
                assert waiting.waits
            waiting.wait(AT_ONCE_S)


@NEWEST
def test_without_a_designated_standby_remote_apply_waits_no_longer_than_on_and_the_log_reports_it(
    cluster: Gated, first: LocalPostgres
) -> None:
    assert field_of(cluster.proxy, "apply_rule") == ""
    with cluster.load(workers=1), replay_paused(first):
        commit_at(cluster, "remote_apply", "on", "remote_write")
    found = "no standby is designated (remote_apply_standbys): remote_apply behaves like synchronous_commit = on"
    lines = [line for line in cluster.proxy.log_path.read_text().splitlines() if found in line]
    assert lines and all(" INFO " in line for line in lines)


@NEWEST
def test_remote_write_returns_while_the_quorum_s_disks_are_held_and_no_standby_sees_its_row(
    cluster: Gated, first: LocalPostgres
) -> None:
    with contextlib.ExitStack() as disks:
        held = [disks.enter_context(cluster.on_slow_disk(i)) for i in (2, 3)]
        wait_for(lambda: all(cluster.member(i)["state"] == "streaming" for i in (2, 3)), "all follow")
        with designated(cluster, "first"), cluster.load(workers=1) as load, contextlib.ExitStack() as syncs:
            for disk in held:
                syncs.enter_context(disk.slow())
            load.wait_for_commits(20)
            for disk in held:
                syncs.enter_context(disk.held())
            load.stop(timeout_s=0.5)
            waiting = [start_commit_that_waits(cluster, level) for level in ("on", "remote_apply")]
            insert = "INSERT INTO ledger VALUES (-2, 2)"
            Commit(cluster.postgres, insert, synchronous_commit="remote_write").wait()
            seen = "SELECT count(*) FROM ledger WHERE worker = -2"
            assert cluster.postgres.execute(seen) == [(1,)]
            assert first.execute(seen) == [(0,)]
            assert all(commit.waits for commit in waiting)
            syncs.close()
            for commit in waiting:
                commit.wait()
            wait_for(lambda: first.execute(seen) == [(1,)], "the standby sees the row")
            cluster.postgres.execute("DELETE FROM ledger WHERE worker = -2")


@NEWEST
def test_snapshot_on_a_standby_holds_vacuum_on_the_primary_back_through_safekeeper_and_proxy(cluster: Gated) -> None:
    settings = {
        "hot_standby_feedback": "on",
        "wal_receiver_status_interval": "1s",
        # Without the feedback the standby's query would be cancelled at once.
        "max_standby_streaming_delay": "0",
    }
    postgres = cluster.postgres
    postgres.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS i")
    with standby_of(cluster, settings=settings) as standby, cluster.load(workers=1) as load:
        wait_for_everything(cluster, standby)
        with psycopg.connect(standby.conninfo()) as reading:
            reading.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            (number, xmin), *_ = reading.execute(
                "SELECT count(*), pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM kept"
            ).fetchall()
            assert number == 1000
            wait_for(lambda: 0 < _slot_xmin(cluster) <= xmin, "the slot walproxy holds the standby's snapshot")
            load.wait_for_commits(20)
            postgres.execute("DELETE FROM kept")
            # To cut the table's end it would be locked, which is another conflict.
            postgres.execute("VACUUM (TRUNCATE false) kept")
            wait_for_everything(cluster, standby)
            assert 0 < _slot_xmin(cluster) <= xmin
            assert reading.execute("SELECT count(*) FROM kept").fetchall() == [(1000,)]
        load.wait_for_commits(20)
        wait_for(lambda: _slot_xmin(cluster) > xmin, "nothing old is held once the snapshot is gone")
        standby.stop("fast")
        wait_for(lambda: _slot_xmin(cluster) == 0, "nothing is held once the standby is gone")
        standby.start()
        wait_for(lambda: _slot_xmin(cluster) > 0, "the standby holds it again")
        # A proxy that starts again clears what the slot remembers, when no reader needs it.
        cluster.proxy.kill9()
        standby.stop("fast")
        assert _slot_xmin(cluster) > 0
        start_proxy(cluster)
        wait_for(lambda: _slot_xmin(cluster) == 0, "nothing is held")
    postgres.execute("DROP TABLE kept")


def _slot_xmin(cluster: Gated) -> int:
    """Return what the proxy's slot on the primary holds, 0 if nothing."""
    held = "SELECT coalesce(xmin::text, '0') FROM pg_replication_slots WHERE slot_name = 'walproxy'"
    return int(cluster.scalar(held))
