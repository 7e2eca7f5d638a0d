"""When the leader hears of the standbys."""

import asyncio

from safekeeper.serving.standby_feedback import PATIENCE_S, PAUSE_S, FeedbackTimer
from tests.unit.event_loop import on_the_loop, until


class Reports:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.at: list[float] = []
        self.timer = FeedbackTimer(self.loop, lambda: self.at.append(self.loop.time()))


@on_the_loop
async def test_what_somebody_waits_for_is_reported_in_the_next_turn_and_once() -> None:
    reported = Reports()
    for _ in range(10):
        reported.timer.changed(urgent=True)
    assert not reported.at
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(reported.at) == 1


@on_the_loop
async def test_it_is_reported_no_more_often_than_the_pause_allows() -> None:
    reported = Reports()
    while len(reported.at) < 20:
        reported.timer.changed(urgent=True)
        await asyncio.sleep(0)
    # The loop's timers are exact to a millisecond.
    assert reported.at[-1] - reported.at[0] >= 19 * PAUSE_S * 0.5


@on_the_loop
async def test_what_nobody_waits_for_is_reported_within_a_tenth_of_a_second() -> None:
    reported = Reports()
    began_at = reported.loop.time()
    reported.timer.changed(urgent=False)
    reported.timer.changed(urgent=False)
    await until(lambda: bool(reported.at))
    assert PATIENCE_S * 0.9 <= reported.at[0] - began_at < 10 * PATIENCE_S
    assert len(reported.at) == 1


@on_the_loop
async def test_what_is_urgent_takes_along_what_is_not() -> None:
    reported = Reports()
    began_at = reported.loop.time()
    reported.timer.changed(urgent=False)
    reported.timer.changed(urgent=True)
    await until(lambda: bool(reported.at))
    assert reported.at[0] - began_at < PATIENCE_S / 2
    assert reported.timer._handle is None  # Nothing more will come.


@on_the_loop
async def test_after_the_end_nothing_is_reported() -> None:
    reported = Reports()
    reported.timer.changed(urgent=True)
    reported.timer.stop()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not reported.at
