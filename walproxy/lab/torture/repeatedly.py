"""Call a function periodically during a run, in a thread of its own, so that nothing else of the run delays it."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Repeatedly:
    """Calls something while it is entered, at once and then periodically.

    If that fails, it is not called again, and leaving raises the error, which would be lost otherwise.

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
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        if self._failure is not None and kind is None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._call()
            while not self._ends.wait(self._every_s):
                self._call()
        except Exception as failure:
            self._failure = failure
