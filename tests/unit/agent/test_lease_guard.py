"""When an agent holds the lease: before a promotion, while it leads, and no longer."""

import asyncio
import logging
from pathlib import Path
from typing import Any, cast

import pytest

from safekeeper.base import settings
from safekeeper.base.errors import WalproxyError
from walproxy.agent import guards
from walproxy.agent.activity import Activity
from walproxy.agent.config import AgentConfig
from walproxy.agent.errors import LeaseUnavailable
from walproxy.agent.lease import EtcdLease
from walproxy.agent.lease_guard import LeaseGuard


class Store:
    """A lease that the test controls."""

    def __init__(self) -> None:
        self.held_by: str | None = None
        self.name = ""
        self.is_down = False
        self.calls: list[str] = []

    @property
    def remaining_s(self) -> float:
        return 5.0 if self.name and self.held_by == self.name else 0.0

    def probe(self) -> None:
        self._called("probe")

    def acquire(self, name: str) -> bool:
        self._called("acquire")
        if self.held_by in (None, name):
            self.held_by = self.name = name
        return self.held_by == name

    def release(self) -> None:
        self._called("release")
        self.held_by = None

    def holder(self) -> str | None:
        return self.held_by

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.is_down:
            raise LeaseUnavailable("etcd does not reply")


def guard_of(store: Store, wait_s: float = 0.0) -> LeaseGuard:
    return LeaseGuard(cast(EtcdLease, store), "pg2", wait_s=wait_s)


def test_promotion_waits_for_the_end_of_another_lease() -> None:
    store = Store()
    store.held_by = "pg1"

    async def run() -> None:
        guard = guard_of(store, 5.0)
        required = asyncio.create_task(guard.require())
        while "acquire" not in store.calls:
            await asyncio.sleep(0)
        assert not required.done()
        store.held_by = None
        await required

    asyncio.run(run())
    assert store.held_by == "pg2"


def test_promotion_is_refused_while_another_agent_holds_it_or_the_store_is_down() -> None:
    store = Store()
    store.held_by = "pg1"
    guard = guard_of(store)
    with pytest.raises(WalproxyError, match="no promotion: pg1 holds the lease"):
        asyncio.run(guard.require())
    store.is_down = True
    with pytest.raises(LeaseUnavailable):
        asyncio.run(guard_of(store).require())


@pytest.mark.parametrize("taken_by", [None, "pg3"])
def test_the_lease_that_has_ended_while_fence_command_ran_is_required_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_by: str | None
) -> None:
    store = Store()

    async def fence(*_: Any, **__: Any) -> None:
        store.calls.append("fence")
        store.held_by = taken_by

    monkeypatch.setattr(guards, "_lease_guard", lambda _: guard_of(store))
    monkeypatch.setattr(guards, "run_command", fence)
    options = {"name": "pg2", "pgdata": str(tmp_path), "bin_dir": str(tmp_path), "fence_command": "true"}
    options |= {
        "conninfo": "host=/run",
        "address": "pg2:5432",
        "safekeepers": "1=sk1:1",
        "standby_conninfo": "host=sk1",
    }
    config = settings.load(AgentConfig, "WALPROXY_AGENT_", command_line=options, environment={}, file=None)
    guarded = guards.Guards(config, Activity())
    if taken_by is not None:
        with pytest.raises(WalproxyError, match="no promotion: pg3 holds the lease"):
            asyncio.run(guarded.require("pg1"))
    else:
        asyncio.run(guarded.require("pg1"))
    assert store.held_by == (taken_by or "pg2")
    assert store.calls == ["acquire", "fence", "acquire"]


def test_leader_keeps_it_and_a_former_one_releases_it() -> None:
    store = Store()

    async def run() -> None:
        guard = guard_of(store)
        await guard.keep(False)
        assert store.calls == []
        await guard.keep(True)
        await guard.keep(True)
        await guard.keep(False)
        await guard.keep(False)

    asyncio.run(run())
    assert store.calls == ["acquire", "acquire", "release"]
    assert store.held_by is None


def test_leader_goes_on_without_the_store_and_logs_that_once(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    store.is_down = True

    async def run() -> None:
        guard = guard_of(store)
        for _ in range(3):
            await guard.keep(True)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
        guard_of(store).probe()
    assert [record.message for record in caplog.records] == [
        "the lease is not extended: etcd does not reply",
        "the lease: etcd does not reply; no promotion until it replies",
    ]
