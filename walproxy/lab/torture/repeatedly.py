"""Call a function periodically during a run, in a thread of its own, so that nothing else of the run delays it."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Repeatedly:
    """Calls something from `start` to `stop`, or while it is entered: at once and then periodically.

    If that fails, it is not called again, and `check` and `stop` raise the error, which would be lost otherwise.

    Args:
        name: of the thread.
        every_s: the time from the end of one call to the next.
    """

    def __init__(self, name: str, every_s: float, call: Callable[[], None]) -> None:
        self._every_s = every_s
        self._call = call
        self._ends = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()
        if kind is None:
            self.check()

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def check(self) -> None:
        """Do nothing unless a call has failed: then raise its error."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End, after the present call; raise the error of one that has failed."""
        self._end()
        self.check()

    def _end(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._call()
            while not self._ends.wait(self._every_s):
                self._call()
        except Exception as failure:
            self._failure = failure
