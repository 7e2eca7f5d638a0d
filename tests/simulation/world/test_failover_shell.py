"""What the failover command stands on in the simulation: its loop, its servers, its WAL."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from safekeeper.base.errors import WalproxyError
from tests.simulation.model.clock import Clock
from tests.simulation.model.synthetic_wal import HEADER_BYTES, SEGMENT_SIZE, last_complete_end, make_record
from tests.simulation.model.virtual_loop import VirtualLoop
from tests.simulation.seeds.runner import Task as Run
from tests.simulation.seeds.runner import build, plan, run_world
from tests.simulation.world.failover_shell import SyntheticDecoder
from walproxy.failover import log_end


class Process:
    """A process of one coroutine, and what it has done, with the virtual time of each thing."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.done: list[tuple[float, str]] = []
        self.loop = VirtualLoop(clock, random.Random(1), 0.0, self)
        self.ended: list[asyncio.Task[Any]] = []

    def does(self, what: str) -> None:
        self.done.append((round(self.clock.now, 3), what))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_task(coroutine, self.ended.append)


@pytest.fixture
def process() -> Process:
    return Process(Clock())


def test_a_coroutine_sleeps_and_waits_on_virtual_time(process: Process) -> None:
    async def asks(what: str, delay_s: float) -> str:
        await asyncio.sleep(delay_s)
        process.does(what)
        return what

    async def main() -> list[str]:
        answers = await asyncio.gather(asks("slow", 2.0), asks("quick", 1.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await asyncio.sleep(10.0)
        process.does("end")
        return answers

    process.run(main())
    process.clock.run(60.0)
    assert process.done == [(1.0, "quick"), (2.0, "slow"), (5.0, "end")]
    assert process.ended[0].result() == ["slow", "quick"]


def test_a_process_that_stood_still_does_then_what_it_would_have_done(process: Process) -> None:
    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(1.0)
            process.does("wakes")

    process.run(main())
    process.clock.run(1.5)
    process.loop.suspend(5.0)
    process.clock.run(60.0)
    assert [at_s for at_s, _ in process.done] == [1.0, 6.5, 7.5]


@pytest.mark.parametrize("at_s", [None, 0.0, 1.5, 2.5])
@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_process_is_killed_wherever_it_is_and_its_statement_is_executed_all_the_same(
    process: Process, at_s: float | None, is_suspended: bool
) -> None:
    async def main() -> None:
        try:
            await asyncio.sleep(1.0)
            statement = asyncio.to_thread(process.does, "executed")
            process.loop._delay_s = 8.0  # It is executed at 2.07.
            await asyncio.gather(statement, asyncio.sleep(2.0))
            process.does("goes on")
        finally:
            process.does("is cancelled")

    process.run(main())
    if at_s is not None:
        process.clock.run(at_s)
    if is_suspended:
        process.loop.suspend(5.0)
    process.loop.kill()
    process.loop.kill()
    process.clock.run(60.0)
    done = {None: [], 0.0: ["is cancelled"], 1.5: ["is cancelled", "executed"], 2.5: ["executed", "is cancelled"]}
    assert [what for _, what in process.done] == done[at_s]
    assert [task.cancelled() for task in process.ended] == [True]


def test_an_error_of_a_statement_is_the_coroutines_and_any_other_one_ends_the_run(process: Process) -> None:
    def fails(error: Exception) -> None:
        raise error

    async def main() -> None:
        with pytest.raises(WalproxyError, match="the server is gone"):
            await asyncio.to_thread(fails, WalproxyError("the server is gone"))
        await asyncio.to_thread(fails, AssertionError("a checker"))

    process.run(main())
    with pytest.raises(AssertionError, match="a checker"):
        process.clock.run(60.0)
    process.loop.kill()


def test_what_a_callback_raises_ends_the_run(process: Process) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon([].pop)
        await asyncio.sleep(1.0)

    process.run(main())
    with pytest.raises(IndexError):
        process.clock.run(60.0)
    process.loop.kill()


@pytest.mark.parametrize("seed", range(40))
def test_the_last_record_of_synthetic_wal_is_found_as_that_of_postgresql(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_end, "RecordDecoder", SyntheticDecoder)
    rng, wal, begin_lsn = random.Random(seed), bytearray(), 4 * SEGMENT_SIZE
    while len(wal) < 3 * SEGMENT_SIZE:
        wal += make_record(HEADER_BYTES + rng.choice((1, 50, 5000, 40_000)), begin_lsn + len(wal), rng)
    end_lsn = begin_lsn + rng.randint(1, len(wal))

    async def read(first_lsn: int, last_lsn: int) -> bytes:
        return bytes(wal[first_lsn - begin_lsn : last_lsn - begin_lsn])

    found = asyncio.run(log_end.last_record_end(read, begin_lsn, end_lsn, SEGMENT_SIZE))
    expected = last_complete_end(wal, begin_lsn, end_lsn)
    assert found == (expected if expected > begin_lsn else 0)


def test_a_seed_with_failovers_decides_everything() -> None:
    first, again = (build(Run(11, "failovers")) for _ in range(2))
    assert run_world(first) == run_world(again)
    assert first.trace() == again.trace()
    assert first.counts["failovers begun"] > 0


def test_runs_with_failovers_have_standbys() -> None:
    standbys = {plan(Run(seed, "failovers")).standbys for seed in range(60)}
    assert standbys == {0, 1, 2}
    worlds = [build(Run(seed, "failovers")) for seed in range(60)]
    assert all(world.standbys or world.directs for world in worlds)
    assert any(world.directs for world in worlds) and not all(world.directs for world in worlds)
    assert not any(build(Run(seed, "tails")).directs for seed in range(20))
