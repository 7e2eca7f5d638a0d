"""The resources of processes: memory in RAM, open files, CPU time; from /proc."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """A process's memory in RAM (VmRSS), and the most that it ever had (VmHWM); 0 without /proc.

    The kernel adds up counters of each CPU without a lock, so that a later VmHWM may be some 100 kB lower than an
    earlier one: highest_peak() of all the samples.
    """

    resident_bytes: int
    peak_bytes: int


def memory_of(pid: int) -> Memory:
    """Return the memory of a process that lives.

    Raises:
        ProcessLookupError: it has ended.
    """
    if not Path("/proc/self/status").exists():
        return Memory(0, 0)
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
    fields = dict(line.split(":", 1) for line in text.splitlines())
    if "VmRSS" not in fields:  # A process that has ended and was not waited for has no memory.
        raise ProcessLookupError(f"process {pid} has ended")
    resident_bytes, peak_bytes = (int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
    return Memory(resident_bytes, peak_bytes)


def highest_peak(*samples: Memory) -> int:
    """Return the most that a process ever had in RAM, by several samples of it."""
    return max(sample.peak_bytes for sample in samples)


def resident_bytes(process_ids: Mapping[str, int]) -> dict[str, int]:
    """Return what each process has in RAM, by its name."""
    return {name: memory_of(pid).resident_bytes for name, pid in process_ids.items()}


def file_descriptors_of(pid: int) -> int:
    """Return how many file descriptors a process of this user has open; 0 without /proc.

    Raises:
        ProcessLookupError: it has ended.
    """
    if not Path("/proc/self/fd").exists():
        return 0
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None


def cpu_seconds(process_ids: Iterable[int]) -> float:
    """Return the user and system time that the processes have used; 0 without /proc."""
    if not Path("/proc/self/stat").exists():
        return 0.0
    ticks = 0
    for pid in process_ids:
        # pid (name) state ...: utime and stime are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
