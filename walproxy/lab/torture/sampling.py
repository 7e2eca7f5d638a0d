"""Sample the resources of a run's processes every few seconds.

A process that has ended has no sample; the checks interpret that.
"""

import time
from collections.abc import Callable, Mapping

from walproxy.lab.process_resources import file_descriptors_of, memory_of
from walproxy.lab.torture.record import Sample
from walproxy.lab.torture.repeatedly import Repeatedly


class Sampler(Repeatedly):
    """Takes samples while it is entered.

    Attributes:
        samples: those taken so far, by time; once it has been left, all of them.

    Args:
        process_ids: returns the processes that live, by name; called from the sampler's thread.
        begun_at: when the run began, on the clock of `time.monotonic`.
        every_s: the time from one round of samples to the next.
    """

    def __init__(self, process_ids: Callable[[], Mapping[str, int]], begun_at: float, every_s: float) -> None:
        super().__init__("sampler", every_s, self._take)
        self.samples: list[Sample] = []
        self._process_ids = process_ids
        self._begun_at = begun_at

    def _take(self) -> None:
        at_s = time.monotonic() - self._begun_at
        for name, pid in self._process_ids().items():
            try:
                sample = Sample(at_s, name, memory_of(pid).resident_bytes, file_descriptors_of(pid))
            except ProcessLookupError:
                continue  # It has ended while we looked.
            self.samples.append(sample)
