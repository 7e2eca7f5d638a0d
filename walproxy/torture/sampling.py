"""What the processes of a run use, written down every few seconds.

In a thread of its own, so that nothing else of the run delays it. A process that has ended has no sample; what that
means is for others to say.
"""

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from walproxy.process_resources import file_descriptors_of, memory_of
from walproxy.torture.record import Sample


class Sampler:
    """Takes samples while it is entered.

    Attributes:
        samples: those taken so far, by time; once it has been left, all of them.

    Args:
        process_ids: returns the processes that live, by name; called from the sampler's thread.
        begun_at: when the run began, on the clock of `time.monotonic`.
        every_s: the time from one round of samples to the next.
    """

    def __init__(self, process_ids: Callable[[], Mapping[str, int]], begun_at: float, every_s: float) -> None:
        self.samples: list[Sample] = []
        self._process_ids = process_ids
        self._begun_at = begun_at
        self._every_s = every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        self._take()
        while not self._ends.wait(self._every_s):
            self._take()

    def _take(self) -> None:
        at_s = time.monotonic() - self._begun_at
        for name, pid in self._process_ids().items():
            try:
                sample = Sample(at_s, name, memory_of(pid).resident_bytes, file_descriptors_of(pid))
            except ProcessLookupError:
                continue  # It has ended while we looked.
            self.samples.append(sample)
