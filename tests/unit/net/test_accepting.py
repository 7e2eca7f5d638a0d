"""Listening sockets: a flood of connections leaves the event loop its turn."""

import asyncio
import socket

from safekeeper.base.settings import Address
from safekeeper.net.accepting import ACCEPTS_AT_ONCE, ListeningSockets
from safekeeper.net.turns import Turns
from tests.unit.certificates import HOST
from tests.unit.event_loop import on_the_loop, until
from tests.unit.held_turns import HeldTurns


class Refuse:
    """Refuses each connection; keeps the ports that they came from."""

    def __init__(self) -> None:
        self.arrived: list[int] = []

    def __call__(self, host: str, port: int) -> None:
        self.arrived.append(port)


def test_between_a_few_connections_that_are_refused_the_loop_does_everything_else() -> None:
    turn = 0
    refused_in: list[int] = []  # By connection: the turn of the loop in which it was refused.

    def refuse(host: str, port: int) -> None:
        refused_in.append(turn)

    @on_the_loop
    async def run() -> None:
        nonlocal turn
        listening = await ListeningSockets.open(Address(HOST, 0), refuse, Turns("strangers"))
        try:
            # None of them is accepted meanwhile: the loop has no turn.
            flood = [socket.create_connection((HOST, listening.port)) for _ in range(5 * ACCEPTS_AT_ONCE)]

            def count_turns() -> None:
                nonlocal turn
                turn += 1
                loop.call_soon(count_turns)

            loop = asyncio.get_running_loop()
            count_turns()
            await until(lambda: len(refused_in) == len(flood))
            for connection in flood:
                connection.close()
        finally:
            listening.close()

    run()
    assert max(refused_in.count(turn) for turn in set(refused_in)) <= ACCEPTS_AT_ONCE


@on_the_loop
async def test_while_the_share_of_time_is_short_one_connection_is_accepted_in_a_turn() -> None:
    turns = HeldTurns()
    refuse = Refuse()
    listening = await ListeningSockets.open(Address(HOST, 0), refuse, turns)
    try:
        flood = [socket.create_connection((HOST, listening.port)) for _ in range(ACCEPTS_AT_ONCE + 2)]
        for accepted in (ACCEPTS_AT_ONCE, ACCEPTS_AT_ONCE + 1):
            await until(lambda: bool(turns.held))
            turns.release()
            assert len(refuse.arrived) == accepted
            turns.charge(HOST, 0.1)
        for connection in flood:
            connection.close()
    finally:
        listening.close()


@on_the_loop
async def test_of_many_sockets_each_is_accepted_from_and_none_before_all_others_again() -> None:
    turns = HeldTurns()
    refuse = Refuse()
    sockets = [socket.create_server((HOST, 0)) for _ in range(ACCEPTS_AT_ONCE + 3)]
    for each in sockets:
        each.setblocking(False)
    # Two wait at each socket.
    clients = [[socket.create_connection(each.getsockname()) for each in sockets] for _ in range(2)]
    listening = ListeningSockets(sockets, refuse, turns)
    try:
        while len(refuse.arrived) < 2 * len(sockets):
            await until(lambda: bool(turns.held))
            before = len(refuse.arrived)
            turns.release()
            assert 1 <= len(refuse.arrived) - before <= ACCEPTS_AT_ONCE
        firsts = {each.getsockname()[1] for each in clients[0]}
        assert set(refuse.arrived[: len(sockets)]) == firsts
        for each in (*clients[0], *clients[1]):
            each.close()
        socket.create_connection(sockets[0].getsockname()).close()
        await until(lambda: bool(turns.held))
    finally:
        listening.close()
    turns.release()
    assert len(refuse.arrived) == 2 * len(sockets)
