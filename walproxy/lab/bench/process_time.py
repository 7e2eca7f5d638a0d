"""The CPU time that processes have used."""

import os
from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(process_ids: Iterable[int]) -> float:
    """Return the user and system time that the processes have used; 0 where /proc is not there to tell."""
    if not Path("/proc/self/stat").exists():
        return 0.0
    ticks = 0
    for pid in process_ids:
        # pid (name) state ...: utime and stime are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
