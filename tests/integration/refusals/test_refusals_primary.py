"""Primaries that cannot be streamed, or not yet: what the proxy reports, when it waits, and with what it ends."""

import contextlib
import re
import subprocess
from collections.abc import Iterator

import pytest

from safekeeper.base.errors import EXIT_CONFIGURATION, EXIT_PRIMARY_REFUSED
from tests.integration.conftest import EVERY, NEWEST, NewStand
from tests.integration.refusals.refusal_fixtures import Stand, end_of, log_of, only_line, run_walproxy, wait_for
from walproxy.lab.cluster.local_cluster import LocalProcess


def problem_of(proxy: LocalProcess) -> str:
    """Return the problem with the primary that the proxy reports, empty if nothing or if it does not answer."""
    status = proxy.status()
    return (status["primary"]["problem"] or "") if status else ""


@NEWEST
def test_the_proxy_waits_for_what_is_not_there_yet_and_reports_it(new_stand: NewStand) -> None:
    stand = new_stand()
    stand.postgres.start()
    conninfo = stand.postgres.conninfo()
    stand.postgres.stop()
    stand.proxies[0] = stand.make_proxy("walproxy", conninfo=conninfo)
    stand.start_proxy()
    stand.wait_for_state("connecting", "waiting_for_primary")
    wait_for(lambda: "Connection refused; waiting for it" in problem_of(stand.proxy), "it reports the closed port")
    stand.postgres.start()
    stand.wait_for_state("waiting_for_quorum")
    assert "could not connect to safekeeper 2" in (stand.member(2)["problem"] or "")
    assert stand.member(2)["state"] == "disconnected"
    for safekeeper in stand.safekeepers.values():
        safekeeper.start()
    stand.wait_for_state("streaming")
    reported = re.findall(r"no primary: (.*)", log_of(stand.proxy))
    assert reported and len(reported) == len(set(reported))  # each reason once, not at each attempt


@NEWEST
def test_settings_of_postgresql_that_cannot_work_end_the_proxy_with_what_to_change(new_stand: NewStand) -> None:
    stand = new_stand(wal_level="minimal", max_wal_senders="0")
    stand.postgres.start()
    code, line = end_of(stand.proxy_for("minimal"))
    assert code == EXIT_CONFIGURATION
    assert "wal_level" in line and "wal_level = replica" in line
    stand.postgres.configure({"wal_level": "replica", "max_wal_senders": "5", "fsync": "off"})
    stand.postgres.restart()
    code, line = end_of(stand.proxy_for("no-fsync"))
    assert code == EXIT_PRIMARY_REFUSED
    assert "set fsync = on and restart it" in line


@NEWEST
def test_a_standby_is_waited_for_and_streamed_once_it_is_promoted(new_stand: NewStand) -> None:
    stand = new_stand(safekeeper_count=1)
    stand.postgres.start()
    stand.postgres.stop()
    (stand.postgres.data_directory / "standby.signal").touch()
    stand.postgres.start()
    stand.safekeepers[1].start()
    stand.start_proxy()
    wait_for(lambda: "standby in recovery; promote it" in problem_of(stand.proxy), "it reports that this is a standby")
    stand.wait_for_state("waiting_for_primary")
    stand.postgres.promote()
    stand.wait_for_state("streaming")
    status = stand.proxy.status()
    assert status is not None and status["tli"] == 2


@contextlib.contextmanager
def receivewal(stand: Stand, user: str = "postgres") -> Iterator[int]:
    """Run a pg_receivewal that holds the slot; the value is the pid of its walsender."""
    target = stand.directory / "receivewal"
    target.mkdir()
    process = subprocess.Popen(
        [
            *(str(stand.postgres.binaries.path("pg_receivewal")), "-D", str(target), "-S", "walproxy", "--no-loop"),
            *("-d", stand.postgres.conninfo(user=user, dbname="replication")),
        ],
        stderr=subprocess.DEVNULL,
    )

    def holder() -> int | None:
        rows = stand.postgres.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'walproxy'")
        return rows[0][0] if rows else None

    try:
        wait_for(lambda: holder() is not None, "pg_receivewal holds the slot")
        pid = holder()
        assert pid is not None
        yield pid
    finally:
        process.kill()
        process.wait()


@NEWEST
def test_the_winner_of_a_term_ends_each_holder_of_its_slot(new_stand: NewStand) -> None:
    stand = new_stand(safekeeper_count=1)
    stand.postgres.start()
    stand.postgres.execute("SELECT pg_create_physical_replication_slot('walproxy', true)")
    stand.safekeepers[1].start()
    with receivewal(stand) as pid:
        stand.proxies[0] = stand.proxy_for("first", "--bootstrap", "true")
        stand.wait_for_state("streaming")
        assert f'ended walsender {pid}, which held slot "walproxy"' in log_of(stand.proxy)


@NEWEST
def test_a_slot_whose_holder_may_not_be_ended_is_waited_for(new_stand: NewStand) -> None:
    stand = new_stand(safekeeper_count=1)
    stand.postgres.start()
    stand.postgres.execute("SELECT pg_create_physical_replication_slot('walproxy', true)")
    stand.postgres.execute("CREATE ROLE replicator LOGIN REPLICATION")
    stand.safekeepers[1].start()
    with receivewal(stand) as pid:
        stand.proxies[0] = stand.proxy_for(
            "replicator", "--bootstrap", "true", conninfo=stand.postgres.conninfo(user="replicator")
        )
        wait_for(
            lambda: f"SELECT pg_terminate_backend({pid})" in problem_of(stand.proxy),
            "it reports the session in the way",
        )
        assert stand.proxy.pid is not None
        (line,) = [line for line in log_of(stand.proxy).splitlines() if "pg_terminate_backend" in line]
        assert 'slot "walproxy"' in line and "as a superuser" in line
        stand.wait_for_state("waiting_for_primary")
    stand.wait_for_state("streaming")


@EVERY
def test_an_invalidated_slot_ends_the_proxy_with_the_way_out(new_stand: NewStand) -> None:
    stand = new_stand(safekeeper_count=1, max_slot_wal_keep_size="2MB", wal_keep_size="0").serve()
    stand.commit()
    stand.postgres.configure({"synchronous_standby_names": ""})
    stand.postgres.reload()
    assert stand.proxy.stop() == 0
    for _ in range(6):
        stand.postgres.execute("INSERT INTO ledger SELECT generate_series(1, 10000); SELECT pg_switch_wal()")
        stand.postgres.execute("CHECKPOINT")
    wal_status = stand.postgres.execute("SELECT wal_status FROM pg_replication_slots")
    assert wal_status == [("lost",)]
    before = {key: value for key, value in stand.untouched()[1].items() if key not in ("term", "promised")}
    again = stand.proxy_for("again")
    code, line = end_of(again)
    assert code == EXIT_PRIMARY_REFUSED
    assert "rebootstrap" in line
    # Before 18 an invalidated slot can be streamed from, and only the missing WAL shows.
    is_replaced = 'slot "walproxy" is replaced, because PostgreSQL has invalidated it' in log_of(again)
    assert is_replaced == (stand.postgres.binaries.major >= 18)
    # A term was won to find out: a promise, and nothing else.
    assert {key: value for key, value in stand.untouched()[1].items() if key not in ("term", "promised")} == before
    # The way out: without the slot, a new cluster.
    options, environment = ("--primary", stand.postgres.conninfo(), "--yes"), stand.operator_environment
    if not is_replaced:
        answer = run_walproxy("rebootstrap", *options, environment=environment)
        assert answer.returncode == EXIT_CONFIGURATION
        assert "pg_drop_replication_slot('walproxy')" in only_line(answer.stderr)
        stand.postgres.execute("SELECT pg_drop_replication_slot('walproxy')")
    assert run_walproxy("rebootstrap", *options, environment=environment).returncode == 0
    stand.proxies[0] = stand.proxy_for("new-cluster")
    stand.wait_for_state("streaming")
    stand.gate_commits()
    stand.commit(2)
    stand.verify()


@NEWEST
def test_a_slot_that_was_idle_for_too_long_is_replaced_while_the_primary_has_all_wal(new_stand: NewStand) -> None:
    stand = new_stand(safekeeper_count=1).serve()
    if stand.postgres.binaries.major < 18:
        pytest.skip("PostgreSQL invalidates no idle slots before 18")
    stand.commit()
    assert stand.proxy.stop() == 0
    stand.postgres.configure({"idle_replication_slot_timeout": "1s"})
    stand.postgres.reload()

    def is_lost() -> bool:
        stand.postgres.execute("CHECKPOINT")
        return bool(stand.postgres.execute("SELECT wal_status FROM pg_replication_slots") == [("lost",)])

    wait_for(is_lost, "the slot is invalidated", 60.0)
    stand.proxies[0] = stand.proxy_for("again")
    stand.wait_for_state("streaming")
    stand.commit(2)
    stand.verify()
    log = log_of(stand.proxy)
    assert 'slot "walproxy" is replaced, because PostgreSQL has invalidated it' in log
    assert "idle_replication_slot_timeout is 1s: PostgreSQL invalidates slot" in log
