"""A proxy that is stopped: once, twice, with WAL on its way and with a quorum that does not answer."""

import os
import signal
import time

from safekeeper.base.errors import EXIT_FINE
from safekeeper.base.lsn import parse_lsn, segment_start
from tests.integration.conftest import NEWEST, NewStand
from tests.integration.refusals.refusal_fixtures import SEGMENT_SIZE, Stand, log_of, wait_for

DRAIN_S = 30


def stand_with_wal_on_its_way(new_stand: NewStand) -> Stand:
    """Return a cluster whose proxy has WAL that no quorum has, because two safekeepers hang."""
    stand = new_stand()
    stand.proxies[0] = stand.make_proxy("walproxy", "-c", f"drain_timeout={DRAIN_S}", "-c", "response_timeout=60")
    stand.serve()
    for safekeeper_id in (2, 3):
        stand.safekeepers[safekeeper_id].pause()
    stand.postgres.execute("SET synchronous_commit = off; INSERT INTO ledger VALUES (7); SELECT pg_switch_wal()")

    def is_behind() -> bool:
        status = stand.proxy.status()
        return status is not None and parse_lsn(status["received_lsn"]) > parse_lsn(status["commit_lsn"])

    wait_for(is_behind, "the proxy has WAL that the quorum lacks")
    return stand


@NEWEST
def test_sigterm_waits_for_the_quorum_and_a_second_one_does_not(new_stand: NewStand) -> None:
    stand = stand_with_wal_on_its_way(new_stand)
    proxy = stand.proxy
    assert proxy.pid is not None
    os.kill(proxy.pid, signal.SIGTERM)
    wait_for(lambda: "SIGTERM: shutting down" in log_of(proxy), "the signal is taken")
    began_at = time.monotonic()
    assert proxy.status() is not None, "it drains"
    os.kill(proxy.pid, signal.SIGTERM)
    assert proxy.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - began_at < DRAIN_S / 2
    assert "a second SIGTERM: exiting immediately" in log_of(proxy)
    # The next one finds everything as it was.
    for safekeeper_id in (2, 3):
        stand.safekeepers[safekeeper_id].resume()
    stand.start_proxy()
    stand.wait_for_state("streaming")
    stand.verify()


@NEWEST
def test_a_drain_ends_as_soon_as_the_quorum_has_everything(new_stand: NewStand) -> None:
    stand = stand_with_wal_on_its_way(new_stand)
    proxy = stand.proxy
    assert proxy.pid is not None

    def restart_lsn() -> int:
        return parse_lsn(stand.postgres.execute("SELECT restart_lsn::text FROM pg_replication_slots")[0][0])

    held_lsn = restart_lsn()
    os.kill(proxy.pid, signal.SIGTERM)
    wait_for(lambda: "SIGTERM: shutting down" in log_of(proxy), "the signal is taken")
    for safekeeper_id in (2, 3):
        stand.safekeepers[safekeeper_id].resume()
    began_at = time.monotonic()
    assert proxy.wait() == EXIT_FINE
    assert time.monotonic() - began_at < DRAIN_S / 2
    assert log_of(proxy).rstrip().endswith("stopped")
    # What it had is on the quorum, and was reported to PostgreSQL: its slot is in the segment of the commit, which the
    # switch to the next one does not leave (S10).
    committed_lsn = sorted(stand.flush_lsn_of(i) for i in (1, 2, 3))[1]
    wait_for(lambda: held_lsn < restart_lsn() <= committed_lsn, "the slot has advanced")
    assert segment_start(restart_lsn(), SEGMENT_SIZE) == segment_start(committed_lsn - 1, SEGMENT_SIZE)
