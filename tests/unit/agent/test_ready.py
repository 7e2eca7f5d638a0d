"""`ready-to-promote`: the terms that it wins, and that the last of them is still led when it says yes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from safekeeper.base.errors import WalproxyError
from safekeeper.net.safekeeper_connection import Credentials
from tests.unit.event_loop import on_the_loop
from tests.unit.failover.fake_world import FakeRun, FakeWorld, Screen
from tests.unit.failover.looks import END_LSN, SYSTEM, standby
from walproxy.agent import ready
from walproxy.agent.ready import ReadyToPromote
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd
from walproxy.failover.sealer import NotSealed
from walproxy.postgres.hosts import PrimaryHost
from walproxy.proposer.purpose import Reserve, Seal, TakeBack

STANDBY = standby("pg2")


class ScriptedServer:
    """The standby over SQL.

    Attributes:
        histories: the numbers of which it has history files.
        placed: is called when such files are placed.
    """

    histories: set[int]
    placed: Callable[[], None]

    def __init__(self, host: PrimaryHost) -> None:
        self.name = host.name

    def look(self) -> HostLook:
        return STANDBY

    def has_history(self, tli: int) -> bool:
        return tli in self.histories

    def place_histories(self, tlis: range) -> None:
        self.histories.update(tlis)
        type(self).placed()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    world = FakeWorld(STANDBY)
    ScriptedServer.histories, ScriptedServer.placed = set(), lambda: None

    class Survey:
        def __init__(self, *_: Any) -> None: ...

        async def survey(self) -> Any:
            return await world.survey()

        async def close(self) -> None: ...

    @asynccontextmanager
    async def sealing(*_: Any, takeover: bool, **__: Any) -> AsyncIterator[FakeRun]:
        async with world.sealing(takeover=takeover, waiting=lambda problem: None) as run:
            yield run

    async def log_end(elected: Any, *_: Any) -> LogEnd:
        return LogEnd(SYSTEM, 1, (), END_LSN, END_LSN, elected.history[-1].given)

    for name, value in (
        ("Server", ScriptedServer),
        ("Failover", Survey),
        ("sealing_run", sealing),
        ("find_log_end", log_end),
    ):
        monkeypatch.setattr(ready, name, value)
    return world


def run() -> ReadyToPromote:
    return ReadyToPromote((), PrimaryHost("pg2:5432", ""), Credentials(), Screen())


@on_the_loop
async def test_it_seals_and_reserves_the_number_that_the_promotion_takes(world: FakeWorld) -> None:
    report = await run().run(5.0)
    assert [purpose for purpose, _ in world.purposes] == [Seal(1), Reserve(1, 2)]
    assert (report.tli, report.promoted_tli, world.log["given"]) == (1, 2, 2)


@on_the_loop
async def test_numbers_with_a_history_file_are_passed_over_and_one_that_is_found_late_is_recorded(
    world: FakeWorld,
) -> None:
    ScriptedServer.histories = {2}
    ScriptedServer.placed = lambda: ScriptedServer.histories.update({3})
    report = await run().run(5.0)
    assert [purpose for purpose, _ in world.purposes] == [Seal(1), Reserve(1, 3), Reserve(1, 4, is_taken=True)]
    assert report.promoted_tli == 4


@on_the_loop
async def test_a_term_that_is_lost_after_the_reservation_is_no_yes(world: FakeWorld) -> None:
    def loses() -> None:
        assert world.run is not None
        world.run.lost = "term 6 ends: safekeeper 1 has promised another"

    ScriptedServer.placed = loses
    with pytest.raises(NotSealed, match="term 6 ends"):
        await run().run(5.0)


@on_the_loop
async def test_a_run_that_fails_takes_its_seal_back(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise WalproxyError("cannot place history files")

    ScriptedServer.placed = fails
    with pytest.raises(WalproxyError, match="cannot place history files"):
        await run().run(5.0)
    assert world.purposes[-1][0] == TakeBack(1, 1) and world.log["floor"] == 0
