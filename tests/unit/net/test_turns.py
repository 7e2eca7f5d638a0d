"""The turns of a listener's unknown clients: fair by address, within the share, and the loop runs between them."""

import asyncio
import itertools

import pytest

from safekeeper.net.share import Share
from safekeeper.net.turns import AGAIN_AFTER_S, SLOW_AFTER_S, TURN_S, Turns
from tests.unit.event_loop import on_the_loop, until

HOSTILE, OTHER = "192.0.2.7", "192.0.2.9"


class Work:
    """A clock of work, and pieces of work that move it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done: list[str] = []

    def __call__(self) -> float:
        return self.now_s

    def piece(self, host: str, seconds: float) -> None:
        self.now_s += seconds
        self.done.append(host)


def make(work: Work, rate: float = 0.1) -> Turns:
    return Turns("HTTP", Share(asyncio.get_running_loop().time(), rate=rate), work)


@on_the_loop
async def test_an_address_with_many_connections_delays_another_one_by_one_piece() -> None:
    work = Work()
    turns = make(work)
    for _ in range(100):
        turns.ask(HOSTILE, lambda: work.piece(HOSTILE, 0.0))
    for _ in range(3):
        turns.ask(OTHER, lambda: work.piece(OTHER, 0.0))
    await until(lambda: len(work.done) == 103)
    assert work.done[:6] == [HOSTILE, OTHER] * 3


def test_between_turns_the_loop_does_everything_else() -> None:
    @on_the_loop
    async def run() -> None:
        work, ticks = Work(), itertools.count()
        seen: list[int] = []
        now = 0

        def tick() -> None:
            nonlocal now
            now = next(ticks)
            loop.call_soon(tick)

        def piece() -> None:
            seen.append(now)
            work.piece(HOSTILE, TURN_S / 4)

        loop = asyncio.get_running_loop()
        turns = make(work, rate=1e6)
        tick()
        for _ in range(40):
            turns.ask(HOSTILE, piece)
        await until(lambda: len(seen) == 40)
        assert max(seen.count(tick) for tick in seen) <= 4

    run()


def test_work_beyond_the_share_waits_and_the_log_has_the_address_that_used_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safekeeper.net.turns.SLOW_AFTER_S", 0.05)

    @on_the_loop
    async def run() -> None:
        work = Work()
        turns = make(work)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        asked = 0

        def again() -> None:
            nonlocal asked
            asked += 1
            work.piece(HOSTILE, 0.002)
            if not caplog.records or asked < 40:
                turns.ask(HOSTILE, again)
            if asked % 10 == 0:
                turns.ask(OTHER, lambda: work.piece(OTHER, 0.0001))

        turns.ask(HOSTILE, again)
        await until(lambda: bool(caplog.records) and asked >= 40)
        # 40 pieces are 80 ms of work: 50 ms of it at once, the rest at a tenth of the time.
        assert loop.time() - began_at >= (work.now_s - 0.05 - 0.002) / 0.1 > 0.2

    assert SLOW_AFTER_S < AGAIN_AFTER_S
    run()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"limiting HTTP to 10% of this process's time: {HOSTILE} used ")


def test_a_page_that_waits_is_charged_and_can_be_cancelled() -> None:
    @on_the_loop
    async def run() -> None:
        work = Work()
        turns = make(work)
        begun, cancelled = asyncio.Event(), False

        async def page() -> str:
            work.piece(HOSTILE, 0.03)
            await asyncio.sleep(0)
            work.piece(HOSTILE, 0.03)
            return "page"

        async def hang() -> None:
            nonlocal cancelled
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise

        assert not turns.is_short
        assert await turns.charged(HOSTILE, page()) == "page"
        assert turns.is_short
        with pytest.raises(ZeroDivisionError):
            await turns.charged(HOSTILE, broken())
        task = asyncio.ensure_future(turns.charged(HOSTILE, hang()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled

    async def broken() -> float:
        await asyncio.sleep(0)
        return 1 / 0

    run()


@on_the_loop
async def test_after_a_stop_no_work_is_done() -> None:
    work = Work()
    turns = make(work)
    turns.ask(HOSTILE, lambda: work.piece(HOSTILE, 0.0))
    turns.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not work.done


@on_the_loop
async def test_withdrawn_work_is_not_done_and_not_kept() -> None:
    work = Work()
    turns = make(work)
    first, second = (lambda: work.piece("first", 0.0)), (lambda: work.piece("second", 0.0))
    turns.withdraw(HOSTILE, first)  # It does not wait.
    turns.ask(HOSTILE, first)
    turns.ask(HOSTILE, second)
    turns.ask(OTHER, first)
    turns.withdraw(HOSTILE, first)
    turns.withdraw(HOSTILE, first)
    turns.withdraw(OTHER, first)
    assert {group: len(queue) for group, queue in turns._queues.items()} == {HOSTILE: 1}
    await until(lambda: bool(work.done))
    assert work.done == ["second"]
