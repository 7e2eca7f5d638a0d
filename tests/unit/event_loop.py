"""Tests that are coroutines, run on the loop that the programs use."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import uvloop

_Parameters = ParamSpec("_Parameters")

DEADLINE_S = 20.0


def on_the_loop(test: Callable[_Parameters, Coroutine[Any, Any, None]]) -> Callable[_Parameters, None]:
    """Make a coroutine a test."""

    @functools.wraps(test)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds, with a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.0005)
