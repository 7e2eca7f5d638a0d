"""A lease in a real etcd: one holder at a time, also while etcd dies, hangs, or its key is removed."""

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.net.tls import ClientTls
from tests.integration.agents.etcd_server import EtcdServer, needs_etcd
from tests.unit.certificates import Authority
from tests.waiting import wait_for
from walproxy.agent.errors import LeaseUnavailable
from walproxy.agent.lease import EtcdLease
from walproxy.postgres.local_server import free_port

KEY = "/walproxy/main/leader"
TTL_S = 4  # A loaded machine may stop a process for a second or two.

pytestmark = needs_etcd


@pytest.fixture
def etcd(folder: Path) -> Iterator[EtcdServer]:
    with EtcdServer(folder) as server:
        yield server


def lease_in(etcd: EtcdServer, *more: str, **options: Any) -> EtcdLease:
    # Of each call, shared by the endpoints: a loaded machine may stop etcd for a second.
    return EtcdLease([*more, etcd.url], KEY, TTL_S, **{"timeout_s": 10.0, **options})


def acquire_after(first: EtcdLease, second: EtcdLease) -> None:
    """Let the second one acquire the lease as soon as it can, and check that the first one has lost it before."""

    def acquired() -> bool:
        was_held = first.remaining_s > 0
        is_acquired = second.acquire("two")
        assert not (is_acquired and was_held and first.remaining_s > 0), "two agents hold the lease"
        return is_acquired

    wait_for(acquired, "the second agent has the lease", timeout_s=30)
    assert first.remaining_s == 0


def test_one_agent_at_a_time_holds_the_lease(etcd: EtcdServer) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    one, two = lease_in(etcd, dead), lease_in(etcd)
    one.probe()
    assert (one.holder(), one.remaining_s, one.renew()) == (None, 0, False)
    assert one.acquire("one") and one.acquire("one")
    assert 0 < one.remaining_s < TTL_S
    assert (two.acquire("two"), two.remaining_s, two.renew(), two.holder()) == (False, 0, False, "one")
    # It is held for as long as it is renewed, and no longer.
    until = time.monotonic() + 1.2 * TTL_S
    while time.monotonic() < until:
        assert one.renew() and not two.acquire("two")
    acquire_after(one, two)
    assert (one.renew(), one.holder(), two.renew()) == (False, "two", True)
    # It is given up at once.
    two.release()
    two.release()
    assert (two.remaining_s, two.holder(), one.acquire("one")) == (0, None, True)


def test_key_that_an_operator_removes_is_lost(etcd: EtcdServer) -> None:
    one, two = lease_in(etcd), lease_in(etcd)
    assert one.acquire("one")
    etcd.call("/v3/kv/deleterange", key=base64.b64encode(KEY.encode()).decode())
    assert (one.renew(), one.remaining_s) == (False, 0)
    assert one.acquire("one")
    etcd.call("/v3/kv/put", key=base64.b64encode(KEY.encode()).decode(), value="b3BlcmF0b3I=")
    assert (one.renew(), one.holder(), two.acquire("two")) == (False, "operator", False)


@pytest.mark.nightly
def test_lease_outlives_a_killed_etcd_and_ends_with_its_time(etcd: EtcdServer) -> None:
    one, two = lease_in(etcd), lease_in(etcd)
    assert one.acquire("one")
    etcd.kill()
    refused = re.escape(f"etcd does not reply: {etcd.url}: Connection refused")
    for call in (one.renew, lambda: two.acquire("two"), two.holder, two.probe):
        with pytest.raises(LeaseUnavailable, match=f"^{refused}$"):
            call()
    wait_for(lambda: one.remaining_s == 0, "the lease has ended by the local clock")
    assert not one.renew()
    etcd.start()
    acquire_after(one, two)
    etcd.kill()
    etcd.start()
    assert two.renew() or two.acquire("two")


@pytest.mark.nightly
def test_etcd_that_hangs_costs_a_bounded_time_and_the_lease(etcd: EtcdServer) -> None:
    one, two = lease_in(etcd, timeout_s=1.0), lease_in(etcd, timeout_s=1.0)
    assert one.acquire("one")
    etcd.pause()
    try:
        began_at = time.monotonic()
        with pytest.raises(LeaseUnavailable, match=r"etcd does not reply: http://127.0.0.1:\d+: timeout"):
            one.renew()
        assert time.monotonic() - began_at < 5
        with pytest.raises(LeaseUnavailable):
            two.acquire("two")
        wait_for(lambda: one.remaining_s == 0, "the lease has ended by the local clock")
    finally:
        etcd.resume()
    # What was sent meanwhile may have been executed: the second agent's request has a lease of its own.
    acquire_after(one, two)


def test_etcd_with_tls_and_passwords(folder: Path) -> None:
    authority = Authority(folder)
    context = ClientTls(authority.ca).context
    with EtcdServer(folder, authority.sign("etcd"), authority.ca) as etcd:
        with pytest.raises(LeaseUnavailable, match="the peer's certificate is refused"):
            lease_in(etcd).probe()
        with pytest.raises(LeaseUnavailable, match=r"127.0.0.1:\d+: "):
            EtcdLease([etcd.url.replace("https", "http")], KEY, TTL_S).probe()
        etcd.require_passwords("right")
        one = lease_in(etcd, tls=context, user="root", password="right")
        one.probe()
        assert one.acquire("one") and one.renew()
        with pytest.raises(
            ConfigurationError, match=r"^etcd refuses /v3/auth/authenticate: .*invalid user ID or passw"
        ):
            lease_in(etcd, tls=context, user="root", password="wrong").probe()
        with pytest.raises(ConfigurationError, match=r"^etcd refuses /v3/kv/txn: etcdserver: user name is empty$"):
            lease_in(etcd, tls=context).probe()
        # A token is valid until etcd restarts, at most.
        etcd.kill()
        etcd.start()
        assert one.renew() or one.acquire("one")
