"""Questions to several peers, each asked at its own pace: one that does not reply delays no other."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Answer = TypeVar("Answer")


class Polls(Generic[Key, Answer]):
    """The latest answers of several peers.

    Args:
        asks: asks a peer, and returns its answer; no exception. At most one runs for each peer.
    """

    def __init__(self, asks: Mapping[Key, Callable[[], Coroutine[Any, Any, Answer]]]) -> None:
        self._asks = asks
        self._running: dict[Key, asyncio.Task[Answer]] = {}
        self._latest: dict[Key, Answer] = {}

    async def answers(self, patience_s: float) -> dict[Key, Answer]:
        """Ask again, and return the latest answers: absent for a peer that has not answered since the beginning.

        Returns when all have answered, or after `patience_s` as soon as one has; the others are still being asked.
        """
        for key, ask in self._asks.items():
            if key not in self._running:
                self._running[key] = asyncio.create_task(ask())
        if self._running:
            await asyncio.wait(self._running.values(), timeout=patience_s)
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
        for key, task in list(self._running.items()):
            if task.done():
                del self._running[key]
                self._latest[key] = task.result()
        return {key: self._latest[key] for key in self._asks if key in self._latest}

    async def close(self) -> None:
        """Ask no more."""
        running = list(self._running.values())
        self._running.clear()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
