"""Whether commits wait for the proxy, on real servers: what an operator sees when a setting of PostgreSQL changes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg
import pytest

from tests.integration.cluster.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import EVERY, MOSTLY_NEWEST, NewGated
from tests.primary_answer import answer_to
from tests.unit.proxy.test_gate import PARSED, REFUSED
from walproxy.postgres.local_server import LocalPostgres
from walproxy.proxy.gate import GateState, classify
from walproxy.proxy.health_check import CheckLevel, Thresholds, judge
from walproxy.proxy.status_fields import ProxyStatus


@contextmanager
def receiver(cluster: Gated, name: str) -> Iterator[None]:
    """Let a synchronous receiver of this name stream from the primary."""
    folder = cluster.directory / f"received-by-{name}"
    folder.mkdir(exist_ok=True)
    conninfo = cluster.postgres.conninfo(application_name=name)
    process = subprocess.Popen(
        [cluster.postgres.binaries.path("pg_receivewal"), "-d", conninfo, "-D", str(folder), "--synchronous"],
        stderr=subprocess.DEVNULL,
    )
    count = f"SELECT count(*) FROM pg_stat_replication WHERE application_name = '{name}' AND flush_lsn IS NOT NULL"
    try:
        wait_for(lambda: cluster.scalar(count) == 1, f"{name} streams")
        yield
    finally:
        process.terminate()
        process.wait()
    wait_for(lambda: cluster.scalar(count) == 0, f"{name} is gone")


def configure(cluster: Gated, **settings: str) -> None:
    """Change settings of the running primary, as an operator does."""
    with psycopg.connect(cluster.postgres.conninfo(options="-c synchronous_commit=local"), autocommit=True) as session:
        for name, value in settings.items():
            session.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        session.execute("SELECT pg_reload_conf()")


def until(
    cluster: Gated, state: GateState, *, hangs: bool = False, exempt: bool = False, is_lost: bool = False
) -> tuple[CheckLevel, str]:
    """Wait until the proxy has found this; return the level and the line of `walproxy check`.

    Args:
        exempt: roles or databases are found whose commits do not wait.
        is_lost: the quorum is lost.
    """
    found: list[dict[str, Any]] = []

    def is_found() -> bool:
        found[:] = [cluster.proxy.status() or {}]
        gate = found[0].get("gate")
        if gate is None or bool(found[0]["quorum_lost"]) is not is_lost:
            return False
        return (gate["state"], gate["hangs"], bool(gate["exempt"])) == (state.value, hangs, exempt)

    wait_for(is_found, lambda: f"the proxy finds {state.value}: {found}")
    verdict = judge(msgspec.convert(found[0], ProxyStatus), Thresholds())
    return verdict.level, verdict.line()


def log_of(cluster: Gated) -> str:
    return (cluster.directory / "walproxy.log").read_text()


@EVERY
def test_a_setting_that_lets_commits_pass_is_found_within_seconds_and_so_is_its_end(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    assert "commits" not in until(cluster, GateState.GATED)[1]
    configure(cluster, synchronous_standby_names="")
    level, line = until(cluster, GateState.NOT_GATED)
    assert (
        level is CheckLevel.CRITICAL and "commits do not wait for the quorum: synchronous_standby_names is ''" in line
    )
    wait_for(lambda: "ERROR" in log_of(cluster) and "commits do not wait for the quorum" in log_of(cluster), "a line")
    status = subprocess.run(
        [sys.executable, "-m", "walproxy", "status", "--url", cluster.proxy.url], capture_output=True, text=True
    )
    assert status.stdout.startswith("NOT GATED: commits do not wait for the quorum: synchronous_standby_names is ''")
    cluster.safekeepers[2].pause()
    cluster.safekeepers[3].pause()
    Commit(cluster.postgres).wait()
    cluster.safekeepers[2].resume()
    cluster.safekeepers[3].resume()
    configure(cluster, synchronous_standby_names="WalProxy")
    until(cluster, GateState.GATED)
    wait_for(lambda: "commits wait for the quorum again" in log_of(cluster), "a line")
    configure(cluster, synchronous_commit="local")
    assert "synchronous_commit is local" in until(cluster, GateState.NOT_GATED)[1]
    configure(cluster, synchronous_commit="on")
    until(cluster, GateState.GATED)
    cluster.postgres.execute("ALTER ROLE postgres SET synchronous_commit = off")
    level, line = until(cluster, GateState.GATED, exempt=True)
    assert level is CheckLevel.WARNING and "commits of role postgres (off) do not wait" in line


@MOSTLY_NEWEST
def test_a_standby_that_is_chosen_instead_of_the_proxy_or_beside_it_is_found(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    until(cluster, GateState.GATED)
    configure(cluster, synchronous_standby_names="other, walproxy")
    assert until(cluster, GateState.WITH_OTHERS)[0] is CheckLevel.WARNING
    with receiver(cluster, "other"):
        level, line = until(cluster, GateState.NOT_GATED)
        assert level is CheckLevel.CRITICAL and "commits return once other has them" in line
        cluster.safekeepers[2].pause()
        cluster.safekeepers[3].pause()
        Commit(cluster.postgres).wait()
        level, line = until(cluster, GateState.NOT_GATED, is_lost=True)
        assert level is CheckLevel.CRITICAL and "commits wait" not in line
        cluster.safekeepers[2].resume()
        cluster.safekeepers[3].resume()
        for setting, state in (
            ("walproxy, other", GateState.WITH_OTHERS),
            ("ANY 1 (*)", GateState.NOT_GATED),
            ("FIRST 2 (walproxy, other)", GateState.WITH_OTHERS),
            ("ANY 2 (walproxy, other)", GateState.WITH_OTHERS),
            ("walproxy", GateState.GATED),
        ):
            configure(cluster, synchronous_standby_names=setting)
            until(cluster, state)
    configure(cluster, synchronous_standby_names="FIRST 2 (walproxy, other)")
    level, line = until(cluster, GateState.WITH_OTHERS, hangs=True)
    assert level is CheckLevel.CRITICAL and "commits hang" in line
    commit = Commit(cluster.postgres)
    wait_for(lambda: cluster.waiters() == 1, "the commit waits")
    configure(cluster, synchronous_standby_names="walproxy")
    commit.wait()
    until(cluster, GateState.GATED)


@MOSTLY_NEWEST
async def test_a_role_without_rights_sees_what_the_setting_alone_decides(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    cluster.postgres.execute("CREATE ROLE replicator LOGIN REPLICATION")
    blind = cluster.postgres.conninfo(user="replicator")
    answer = await answer_to(blind)
    assert answer.waiting_sessions is None
    assert [(each.name, each.is_ours, each.counts) for each in answer.gate.walsenders] == [("walproxy", True, None)]
    assert classify(answer.gate, "walproxy").state is GateState.GATED
    configure(cluster, synchronous_standby_names="walproxy, other")
    with receiver(cluster, "other"):
        gate = classify((await answer_to(blind)).gate, "walproxy")
        assert gate.state is GateState.UNKNOWN and gate.reason.endswith("GRANT pg_monitor TO replicator")
        cluster.postgres.execute("GRANT pg_monitor TO replicator")
        gate = classify((await answer_to(blind)).gate, "walproxy")
        assert gate.state is GateState.WITH_OTHERS


def test_postgresql_accepts_and_refuses_the_same_settings(primary: LocalPostgres) -> None:
    """ALTER SYSTEM parses the value."""
    for text in PARSED:
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '{}'".format(text.replace("'", "''")))
    for text in REFUSED:
        with pytest.raises((psycopg.errors.InvalidParameterValue, psycopg.errors.SyntaxError)):
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = '{}'".format(text.replace("'", "''")))
    primary.execute("ALTER SYSTEM RESET synchronous_standby_names")
