"""What a process holds: memory is tested with the benchmark of processes, here are descriptors, and those that end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from walproxy.lab.process_resources import Memory, file_descriptors_of, highest_peak, memory_of


def test_every_open_file_counts(tmp_path: Path) -> None:
    before = file_descriptors_of(os.getpid())
    files = [(tmp_path / str(number)).open("w") for number in range(7)]
    assert file_descriptors_of(os.getpid()) == before + 7
    for file in files:
        file.close()
    assert file_descriptors_of(os.getpid()) == before


def test_a_process_that_has_ended_is_not_there_whether_it_was_waited_for_or_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()  # Until its end closes the pipe.
    process.stdout.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError, match="has ended"):
        memory_of(process.pid)
    process.wait()
    for ask in (memory_of, file_descriptors_of):
        with pytest.raises(ProcessLookupError, match="has ended"):
            ask(process.pid)


def test_a_peak_never_falls_though_a_later_sample_of_the_kernel_is_lower() -> None:
    assert highest_peak(Memory(1, 98_619_392), Memory(3, 98_557_952)) == 98_619_392
    assert highest_peak(Memory(1, 5), Memory(3, 7)) == 7
