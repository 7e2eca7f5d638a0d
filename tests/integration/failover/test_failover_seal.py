"""A timeline is sealed while its primary may be alive: nothing that its server writes is acknowledged again (S15)."""

import asyncio
from collections.abc import Callable

import pytest

from safekeeper.base.settings import address
from safekeeper.consensus.messages import Elected
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.peers.local_secret import LocalSecret
from tests.integration.cluster.cluster_fixtures import Commit, Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from walproxy.failover.sealer import NotSealed, sealing_run
from walproxy.lab.cluster.local_standby import received_lsn
from walproxy.proposer.purpose import CancelSeal, Purpose, Seal

pytestmark = NEWEST
EXIT_PRIMARY_REFUSED = 4


def seal(cluster: Gated, *purposes: Purpose, meanwhile: Callable[[Elected], None] = lambda sealed: None) -> Elected:
    """Win terms for these purposes as one run; call `meanwhile` in a thread of its own while the last one is led."""
    places = [place.split("=") for place in cluster.safekeepers_option.split(",")]
    safekeepers = [(int(safekeeper_id), address(place)) for safekeeper_id, place in places]
    credentials = Credentials(local_secret=LocalSecret())

    async def run() -> Elected:
        async with sealing_run(safekeepers, credentials=credentials, timeout_s=20.0) as run:
            for purpose in purposes:
                await run.pursue(purpose)
            await asyncio.to_thread(meanwhile, run.elected)
            return run.elected

    return asyncio.run(run())


def test_a_proxy_that_leads_is_left_alone(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    term = cluster.status()["term"]
    with pytest.raises(NotSealed, match="another proxy leads"):
        seal(cluster, Seal(1))
    Commit(cluster.postgres).wait()
    assert cluster.status()["term"] == term


def test_the_old_primary_is_refused_until_the_seal_is_cancelled(new_gated: NewGated) -> None:
    cluster = new_gated().start_gated()
    Commit(cluster.postgres).wait()
    proxy = cluster.proxy
    proxy.kill9()
    assert seal(cluster, Seal(1)).history[-1].floor == 1
    waiting = Commit(cluster.postgres)
    assert proxy.start().wait() == EXIT_PRIMARY_REFUSED
    assert "a failover has sealed the timelines up to 1" in proxy.log_tail(3)
    assert waiting.waits
    assert seal(cluster, CancelSeal(1)).history[-1].floor == 0
    proxy.start()
    waiting.wait()


def test_a_standby_gets_the_whole_log_and_takes_over(new_gated: NewGated) -> None:
    cluster = new_gated(candidates=["heir"]).start_gated()
    heir, old = cluster.add_standby("heir"), cluster.postgres
    Commit(old).wait()
    cluster.proxy.kill9()
    old.kill9()

    def promote(sealed: Elected) -> None:
        end_lsn = sealed.history[-1].start_lsn
        wait_for(lambda: received_lsn(heir) == end_lsn, "the standby has all WAL")
        cluster.promote("heir")

    seal(cluster, Seal(1), meanwhile=promote)
    old.start()
    cluster.proxy.start()
    wait_for(lambda: field_of(cluster.proxy, "tli") == 2 and cluster.serving() is not None, "the log goes on")
    Commit(heir).wait()
    cluster.proxy.kill9()
    with pytest.raises(NotSealed, match="the log has gone on to timeline 2") as refused:
        seal(cluster, Seal(1))
    assert refused.value.log_tli == 2
