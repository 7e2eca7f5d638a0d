"""A quorum that is lost for a while: PostgreSQL is held back, memory stays bounded, everything resumes by itself."""

import threading
import time

from tests.integration.cluster.cluster_fixtures import MIB, Commit, bulk, field_of, resident_bytes, wait_for
from tests.integration.conftest import NEWEST, NewGated

WINDOW_MIB = 16
WALSENDER_TIMEOUT_S = 2.0
# What two hung safekeepers may have in flight, and what the interpreter needs.
SLACK_MIB = 48


@NEWEST
def test_lost_quorum_under_load_bounds_memory_keeps_the_walsender_and_resumes(new_gated: NewGated) -> None:
    cluster = new_gated(
        "-c", f"window_size={WINDOW_MIB}MiB", wal_sender_timeout=f"{WALSENDER_TIMEOUT_S:.0f}s"
    ).start_gated()
    walsender = "SELECT pid FROM pg_stat_replication WHERE application_name = 'walproxy'"
    with cluster.load() as load:
        pid, resident = cluster.scalar(walsender), resident_bytes(cluster.proxy)
        cluster.safekeepers[1].kill9()
        cluster.safekeepers[2].pause()
        load.assert_stalled()
        local = Commit(cluster.postgres, bulk(120), synchronous_commit="local")
        wait_for(lambda: field_of(cluster.proxy, "backpressure") is True, "PostgreSQL is held back")
        local.wait(60)
        # Long enough for two timeouts of the walsender.
        deadline, most = time.monotonic() + 2.5 * WALSENDER_TIMEOUT_S, 0
        while time.monotonic() < deadline:
            most = max(most, resident_bytes(cluster.proxy) - resident)
            threading.Event().wait(0.05)
        assert most < (WINDOW_MIB + SLACK_MIB) * MIB, f"{most / MIB:.0f} MiB more"
        assert field_of(cluster.proxy, "window_bytes") < (WINDOW_MIB + 1) * MIB
        assert field_of(cluster.proxy, "state") == "waiting_for_quorum"
        assert cluster.scalar(walsender) == pid
        cluster.safekeepers[2].resume()
        load.wait_for_commits(20)
        assert cluster.scalar(walsender) == pid
        assert resident_bytes(cluster.proxy) - resident < (WINDOW_MIB + SLACK_MIB) * MIB
        cluster.safekeepers[1].start()
