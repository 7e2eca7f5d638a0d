"""The memory that processes have in RAM."""

from collections.abc import Mapping
from pathlib import Path

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """What a process has in RAM (VmRSS), and the most that it ever had (VmHWM); 0 where /proc is not there to tell."""

    resident_bytes: int
    peak_bytes: int


def memory_of(pid: int) -> Memory:
    """Return the memory of a process that lives."""
    if not Path("/proc/self/status").exists():
        return Memory(0, 0)
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident_bytes, peak_bytes = (int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
    return Memory(resident_bytes, peak_bytes)


def resident_bytes(process_ids: Mapping[str, int]) -> dict[str, int]:
    """Return what each process has in RAM, by its name."""
    return {name: memory_of(pid).resident_bytes for name, pid in process_ids.items()}
