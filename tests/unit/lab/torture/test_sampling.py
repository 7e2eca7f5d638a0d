"""Samples of processes, taken in the background."""

import os
import time

from walproxy.lab.torture.sampling import Sampler

DEADLINE_S = 20.0


def test_samples_are_taken_again_and_again_until_the_end_and_those_that_have_ended_have_none() -> None:
    begun_at = time.monotonic()
    nobody = 1 << 22  # More than any process id of Linux.
    with Sampler(lambda: {"me": os.getpid(), "nobody": nobody}, begun_at, 0.01) as sampler:
        while len(sampler.samples) < 3:
            assert time.monotonic() < begun_at + DEADLINE_S
            time.sleep(0.01)
    taken = list(sampler.samples)
    assert {sample.process for sample in taken} == {"me"}
    assert all(sample.resident_bytes > 1 << 20 and sample.file_descriptors > 2 for sample in taken)
    times_s = [sample.at_s for sample in taken]
    assert times_s == sorted(times_s)
    assert 0 <= times_s[0] < times_s[-1] <= time.monotonic() - begun_at
