"""Logical subscribers: ahead of the quorum, unless synchronized_standby_slots holds them back (PostgreSQL 17 on)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.cluster.cluster_fixtures import Commit, Gated, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.primary_answer import answer_to


@contextmanager
def subscriber(cluster: Gated, slot: str) -> Iterator[Path]:
    """Stream a new logical slot into a file, as pgoutput's messages; from 17 on it has the property `failover`."""
    failover = ", failover => true" if slot == "held" else ""
    cluster.postgres.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput'{failover})")
    received = cluster.directory / f"{slot}.received"
    received.touch()
    arguments = ["--slot", slot, "--start", "--file", str(received), "--fsync-interval=0"]
    options = ["-o", "proto_version=1", "-o", "publication_names=all_tables"]
    process = subprocess.Popen(
        [cluster.postgres.binaries.path("pg_recvlogical"), "-d", cluster.postgres.conninfo(), *arguments, *options],
        stderr=subprocess.DEVNULL,
    )
    try:
        active = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
        wait_for(lambda: cluster.scalar(active) == 1, f"slot {slot} streams")
        yield received
    finally:
        process.terminate()
        process.wait()


@NEWEST
async def test_a_row_reaches_a_subscriber_before_the_quorum_unless_its_slot_waits_for_ours(new_gated: NewGated) -> None:
    cluster = new_gated(wal_level="logical")
    cluster.postgres.start()
    cluster.postgres.execute("CREATE PUBLICATION all_tables FOR ALL TABLES")
    with subscriber(cluster, "ahead") as ahead:
        cluster.start_gated()
        # The proxy warns as soon as it streams.
        log = cluster.directory / "walproxy.log"
        warning = "logical subscribers can receive commits before the quorum has them: walsenders stream from"
        wait_for(lambda: f'{warning} slot "ahead"' in log.read_text(), "the proxy warns")
        cluster.postgres.execute("ALTER SYSTEM SET synchronized_standby_slots = 'walproxy'")
        cluster.postgres.reload()
        wait_for(lambda: cluster.scalar("SHOW synchronized_standby_slots") == "walproxy", "the setting is in force")
        cluster.postgres.execute("CREATE TABLE words (word text)")
        with subscriber(cluster, "held") as held:
            subscribers = (await answer_to(cluster.postgres.conninfo())).subscribers
            assert subscribers.slots == {"ahead": False, "held": True}
            assert subscribers.synchronized_standby_slots == "walproxy"
            cluster.safekeepers[2].pause()
            cluster.safekeepers[3].pause()
            commit = Commit(cluster.postgres, "INSERT INTO words VALUES ('not yet durable')")
            wait_for(lambda: b"not yet durable" in ahead.read_bytes(), "the slot without failover gets the row")
            waiting = "SELECT count(*) FROM pg_stat_replication r JOIN pg_stat_activity USING (pid) WHERE "
            wait_for(
                lambda: cluster.scalar(f"{waiting} wait_event = 'WaitForStandbyConfirmation'") == 1,
                "the slot with failover waits for the slot of the proxy",
            )
            assert commit.waits
            assert b"not yet durable" not in held.read_bytes()
            cluster.safekeepers[2].resume()
            cluster.safekeepers[3].resume()
            commit.wait()
            wait_for(lambda: b"not yet durable" in held.read_bytes(), "the row is on the quorum, and is sent")
