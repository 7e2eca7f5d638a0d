"""A spare takes over while clients use all connections of the primary: the walsender of the old proxy must be ended."""

import contextlib
import threading
from collections.abc import Iterator

import psycopg

from tests.integration.cluster.cluster_fixtures import Gated, field_of, wait_for
from tests.integration.conftest import EVERY, NEWEST, NewGated
from walproxy.lab.cluster.local_cluster import LocalProcess


@contextlib.contextmanager
def used_up(cluster: Gated, **options: str) -> Iterator[None]:
    """Hold all connections of a kind, those that are reserved for superusers, too, and each one that becomes free."""
    held: list[psycopg.Connection] = []
    is_full, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        while not is_over.is_set():
            try:
                held.append(psycopg.connect(cluster.postgres.conninfo(**options)))
            except psycopg.OperationalError:
                is_full.set()
                is_over.wait(0.02)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        wait_for(is_full.is_set, "no connection is free")
        yield
    finally:
        is_over.set()
        holder.join()
        for connection in held:
            connection.close()


def with_spare(cluster: Gated) -> tuple[LocalProcess, LocalProcess]:
    """Return the proxy that leads, and a spare that waits."""
    spare = cluster.add_proxy()
    wait_for(lambda: field_of(spare, "spare") is True, "the second proxy waits as a spare")
    return cluster.proxy, spare


# Without the timeout PostgreSQL itself never ends the walsender of a proxy that hangs.
SETTINGS = {"max_connections": "12", "wal_sender_timeout": "0"}


@EVERY
def test_spare_takes_over_with_one_term_while_clients_hold_all_connections(new_gated: NewGated) -> None:
    with new_gated(**SETTINGS).start_gated() as cluster, cluster.load() as load:
        deposed, spare = with_spare(cluster)
        term = field_of(deposed, "term")
        with used_up(cluster):
            deposed.pause()
            load.wait_for_commits()
        assert field_of(spare, "term") == term + 1
        deposed.resume()


@NEWEST
def test_spare_takes_over_with_a_session_if_no_walsender_is_free(new_gated: NewGated) -> None:
    with new_gated(**SETTINGS, max_wal_senders="3").start_gated() as cluster, cluster.load() as load:
        deposed, spare = with_spare(cluster)
        term = field_of(deposed, "term")
        with used_up(cluster, replication="true"):
            deposed.pause()
            load.wait_for_commits()
        assert field_of(spare, "term") == term + 1
        deposed.resume()


@NEWEST
def test_spare_waits_for_the_slot_in_one_term_while_nothing_is_free(new_gated: NewGated) -> None:
    with new_gated(**SETTINGS, max_wal_senders="3").start_gated() as cluster, cluster.load() as load:
        deposed, spare = with_spare(cluster)
        term = field_of(deposed, "term")
        with used_up(cluster), used_up(cluster, replication="true"):
            deposed.pause()
            wait_for(lambda: "no WAL yet" in spare.log_tail(), "the spare reports what it waits for")
            problem = field_of(spare, "primary")["problem"]
            assert "max_wal_senders" in problem and "raise max_connections" in problem
            load.assert_stalled(3.0)
        load.wait_for_commits()
        assert field_of(spare, "term") == term + 1
        assert spare.log_tail(200).count("no WAL yet") == 1
        deposed.resume()
