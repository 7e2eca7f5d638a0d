"""The virtual network keeps the order of what is sent, whatever stands still in between."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.model.clock import Clock
from tests.simulation.model.network import TO_PROXY, TO_SAFEKEEPER, Connection, Network


def connected(seed: int) -> tuple[Network, Connection, list[Any]]:
    """Return a network with one connection, and what arrives on it."""
    network = Network(Clock(), random.Random(seed), 0.02)
    arrived: list[Any] = []
    ends = SimpleNamespace(
        name="P1", id=1, life=1, is_serving=True, disconnected=lambda _: arrived.append("end"),
        received=lambda _, message: arrived.append(message),
    )  # fmt: skip
    ends_as: Any = ends
    connection = network.connect(ends_as, ends_as)
    assert connection is not None
    return network, connection, arrived


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("way", [TO_SAFEKEEPER, TO_PROXY])
def test_what_is_sent_arrives_in_order_also_around_a_block(seed: int, way: int) -> None:
    network, connection, arrived = connected(seed)
    chance = random.Random(seed)
    clock = network._clock
    for number in range(60):
        network.send(connection, way, number)
        clock.run(clock.now + chance.random() * 0.01)
        if chance.random() < 0.2:
            network.blocked.add(("P1", 1, way))
        elif chance.random() < 0.3:
            network.unblock("P1", 1, way)
    network.unblock_all()
    clock.run(clock.now + 1.0)
    assert arrived == list(range(60))


def test_what_is_in_flight_when_a_proxy_lets_go_arrives_late_and_before_the_end() -> None:
    network, connection, arrived = connected(1)
    for number in range(3):
        network.send(connection, TO_SAFEKEEPER, number)
    network.let_go(connection, 5.0)
    network._clock.run(4.9)
    assert arrived == []
    network._clock.run(6.0)
    assert arrived == [0, 1, 2, "end"] and network.late_messages == 3
