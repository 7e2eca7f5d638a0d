"""Peers that are asked at their own pace."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.unit.event_loop import on_the_loop
from walproxy.failover.polls import Polls


class Peer:
    """Answers with how often it was asked, once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled = 0
        self.may_answer = asyncio.Event()

    async def ask(self) -> int:
        self.asked += 1
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.asked


@on_the_loop
async def test_one_that_does_not_answer_delays_no_other_and_is_asked_once() -> None:
    quick, silent = Peer(), Peer()
    quick.may_answer.set()
    asks: dict[str, Callable[[], Coroutine[Any, Any, int]]] = {"quick": quick.ask, "silent": silent.ask}
    polls = Polls(asks)
    assert await polls.answers(0.01) == {"quick": 1}
    assert await polls.answers(0.01) == {"quick": 2}
    assert silent.asked == 1
    silent.may_answer.set()
    assert await polls.answers(5.0) == {"quick": 3, "silent": 1}
    # What it has answered stays until it answers again.
    silent.may_answer.clear()
    assert await polls.answers(0.01) == {"quick": 4, "silent": 1}
    await polls.close()
    assert silent.cancelled == 1


@on_the_loop
async def test_without_any_answer_it_waits_longer_than_its_patience() -> None:
    peer = Peer()
    polls = Polls({"peer": peer.ask})
    answers = asyncio.create_task(polls.answers(0.001))
    await asyncio.sleep(0.02)
    assert not answers.done()
    peer.may_answer.set()
    assert await answers == {"peer": 1}


@on_the_loop
async def test_nobody_is_asked_if_there_is_no_peer() -> None:
    assert await Polls[str, int]({}).answers(0.0) == {}
