"""How often the proxy ticks, and looks at its own state, while only everyday events occur."""

import itertools
from typing import Any

import pytest

from safekeeper.base.settings import load
from safekeeper.consensus.messages import AppendResponse
from tests.unit.event_loop import on_the_loop
from tests.unit.proxy.test_proxy import START, leading
from walproxy.proposer.proposer import Proposer
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.proxy.proxy import TICK_S, Proxy


class Clock:
    """The proxy's loop: its time moves to that of the next tick."""

    def __init__(self) -> None:
        self.now = 0.0
        self.delays_s: list[float] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, *_: object) -> None:
        self.delays_s.append(delay_s)
        self.now += delay_s

    def create_future(self) -> None:
        """Return none: no proxy ends here."""


def steady_proxy(monkeypatch: pytest.MonkeyPatch) -> tuple[Proxy, Clock]:
    """Return a proxy whose proposer is steady."""
    proxy, *_ = leading()
    clock: Any = Clock()
    proxy._execution.begin(clock)
    monkeypatch.setattr(Proposer, "is_steady", True)
    monkeypatch.setattr(proxy.proposer, "tick", lambda now, jitter: [])
    monkeypatch.setattr(proxy, "_observe", lambda now: None)
    return proxy, clock


@pytest.mark.parametrize("heartbeat_interval", ["0.0009", "0.01", "0.25", "0.5"])
@on_the_loop
async def test_a_steady_proxy_ticks_no_more_often_than_another_one(
    monkeypatch: pytest.MonkeyPatch, heartbeat_interval: str
) -> None:
    proxy, clock = steady_proxy(monkeypatch)
    flags = {"primary": "host=h", "safekeepers": "1=h:1,2=h:2,3=h:3", "heartbeat_interval": heartbeat_interval}
    proxy.config = load(ProxyConfig, ENVIRONMENT_PREFIX, command_line=flags, environment={}, file=None)
    proxy._tick()
    assert min(clock.delays_s) >= TICK_S


@on_the_loop
async def test_a_steady_proxy_observes_its_state_as_often_as_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, _ = steady_proxy(monkeypatch)
    observed_at: list[float] = []
    monkeypatch.setattr(proxy, "_observe", observed_at.append)
    for _ in range(41):
        proxy._tick()
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(observed_at)]
    assert max(gaps_s) <= 0.25


@on_the_loop
async def test_a_member_that_needs_wal_below_the_window_is_not_left_waiting_for_a_steady_tick() -> None:
    proxy, leadership, *_ = leading()
    for safekeeper_id in (1, 2, 3):
        leadership.on_greeting((safekeeper_id, str(safekeeper_id) * 32), 1.0)
        answer = AppendResponse(leadership.leader_id, START, START, 0, False)
        leadership.on_append_response(safekeeper_id, answer, 1.0)
    proxy.proposer._steady = dict(leadership.members)
    assert proxy.proposer.is_steady
    # The rate of fetches for it is spent: only a tick lets them continue.
    leadership.received_lsn = leadership.window_begin_lsn = START + 10
    for safekeeper_id in (1, 2):
        leadership.members[safekeeper_id].sent_lsn = START + 10
    assert not proxy.proposer.is_steady
