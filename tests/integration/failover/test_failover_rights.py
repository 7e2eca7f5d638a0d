"""What a failover and a switchover do over SQL, by a role that has only the rights that the guide names."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import parse_lsn
from tests.integration.cluster.cluster_fixtures import wait_for
from tests.integration.conftest import EVERY
from walproxy.failover.candidates import READ_RIGHT
from walproxy.failover.log_end import LogEnd
from walproxy.failover.rest import SETTING, NothingChanged, bring_to_rest, let_go_on
from walproxy.failover.server import Server
from walproxy.postgres.hosts import PrimaryHost
from walproxy.postgres.local_server import LocalPostgres

pytestmark = EVERY
OF_FAILOVER = (
    "GRANT pg_monitor, pg_write_server_files TO mover",
    "GRANT EXECUTE ON FUNCTION pg_promote TO mover",
)
OF_SWITCHOVER = ("GRANT pg_signal_backend TO mover", "GRANT EXECUTE ON FUNCTION pg_reload_conf TO mover")
READS_WAL = f"GRANT {READ_RIGHT} TO mover"
ALTERS = f"GRANT ALTER SYSTEM ON PARAMETER {SETTING} TO mover"


def server(postgres: LocalPostgres) -> Server:
    return Server(PrimaryHost("pg:5432", make_conninfo(postgres.conninfo(), user="mover")))


@pytest.fixture
def with_role(primary: LocalPostgres, major: int) -> Iterator[LocalPostgres]:
    """A primary with a role that has no rights yet, and another user."""
    primary.execute("CREATE ROLE mover LOGIN REPLICATION")
    primary.execute("CREATE ROLE client LOGIN")
    yield primary
    for role in ("mover", "client"):
        primary.execute(f"DROP OWNED BY {role}")
        primary.execute(f"DROP ROLE {role}")


def setting(postgres: LocalPostgres) -> str:
    return str(postgres.execute(f"SHOW {SETTING}")[0][0])


def flushed(postgres: LocalPostgres) -> int:
    return parse_lsn(str(postgres.execute("SELECT pg_current_wal_flush_lsn()")[0][0]))


def test_a_primary_is_brought_to_rest_and_goes_on(with_role: LocalPostgres, major: int) -> None:
    primary, mover = with_role, server(with_role)
    with pytest.raises(
        NothingChanged, match="the role may not end sessions or reload settings; see walproxy switchover"
    ):
        bring_to_rest(mover)
    for sql in (*OF_FAILOVER, *OF_SWITCHOVER):
        primary.execute(sql)
    with pytest.raises(NothingChanged, match=r"permission denied to set parameter|must be superuser"):
        bring_to_rest(mover)
    assert setting(primary) == "off"
    primary.execute(ALTERS if major >= 15 else "ALTER ROLE mover SUPERUSER")
    with (
        contextlib.closing(psycopg.connect(primary.conninfo(user="client"), autocommit=True)) as client,
        contextlib.closing(psycopg.connect(primary.conninfo(), autocommit=True)) as superuser,
    ):
        assert bring_to_rest(mover) > 0
        with pytest.raises(psycopg.errors.AdminShutdown):
            client.execute("SELECT 1")
        if major >= 15:
            superuser.execute("SELECT 1")
    assert setting(primary) == "on"
    # Nothing of it remains after a restart, whatever becomes of the command.
    assert SETTING not in (primary.data_directory / "postgresql.auto.conf").read_text()
    let_go_on(mover)
    wait_for(lambda: setting(primary) == "off", "it takes writes")


def test_a_standby_is_promoted_to_the_number_that_is_free(with_role: LocalPostgres, folder: Path) -> None:
    primary = with_role
    with primary.base_backup(folder / "standby", primary_conninfo=primary.conninfo()).start() as standby:
        mover = server(standby)
        wait_for(lambda: mover.look().received_lsn, "it receives WAL")
        look = mover.look()
        end = LogEnd(look.system_id, look.tli, (), look.reached_lsn, look.reached_lsn, 3)
        assert "GRANT EXECUTE ON FUNCTION pg_promote TO mover" in mover.look().hindrance
        with pytest.raises(
            WalproxyError, match=r"permission denied.*; the role needs more rights, see walproxy failover --help"
        ):
            mover.request_promotion(end)
        with pytest.raises(WalproxyError, match=r"; the role needs more rights, see walproxy failover --help"):
            mover.place_histories(range(2, 4))
        for sql in OF_FAILOVER:
            primary.execute(sql)
        wait_for(lambda: not mover.look().hindrance and mover.look().places_files, "the rights are there")
        for _ in range(2):
            mover.place_histories(range(2, 4))
        # As if it had been set up again from an older server since it was looked at.
        more = replace(end, end_lsn=end.end_lsn + (1 << 30), records_end_lsn=end.records_end_lsn + (1 << 30))
        with pytest.raises(WalproxyError, match=r"is not promoted: it lacks \d+ bytes that it had: it was set"):
            mover.request_promotion(more)
        with pytest.raises(WalproxyError, match="is not promoted: it is on timeline 1, which is not part of the log"):
            mover.request_promotion(replace(end, tli=2))
        assert mover.look().in_recovery
        mover.request_promotion(end)
        wait_for(lambda: mover.look().in_recovery is False, "it is promoted")
        assert mover.look().tli == 4
        mover.request_promotion(end)  # A primary is fine.


def test_what_a_standby_has_received_and_not_replayed_is_looked_at(with_role: LocalPostgres, folder: Path) -> None:
    primary = with_role
    for sql in OF_FAILOVER:
        primary.execute(sql)
    with primary.base_backup(folder / "standby", primary_conninfo=primary.conninfo()).start() as standby:
        mover = server(standby)
        wait_for(lambda: mover.look().received_lsn == mover.look().replayed_lsn != 0, "it replays WAL")
        standby.execute("SELECT pg_wal_replay_pause()")
        primary.execute("SELECT pg_logical_emit_message(true, 'mover', repeat('x', 40000))")
        wait_for(lambda: mover.look().received_lsn >= flushed(primary), "it receives WAL")
        assert mover.look().complete_lsn == 0
        standby.execute("SELECT pg_wal_replay_resume()")
        primary.execute(READS_WAL)
        granted_lsn = flushed(primary)
        wait_for(lambda: mover.look().replayed_lsn >= granted_lsn, "it replays the grant")
        standby.execute("SELECT pg_wal_replay_pause()")
        primary.execute("SELECT pg_logical_emit_message(true, 'mover', repeat('x', 40000))")
        wait_for(lambda: mover.look().received_lsn >= flushed(primary), "it receives WAL")
        look = mover.look()
        assert look.replayed_lsn + 40000 < look.complete_lsn == look.received_lsn
