"""The end of a server's own log: why it did not start."""

import os
import re
from pathlib import Path

_LINES = 3
# Clients that are refused meanwhile log many lines.
_BYTES = 1 << 16
_STARTS = re.compile(r"LOG:  starting PostgreSQL ")
_IN_A_FILE = "contains errors"
# What ends a server; not what clients are refused with while it starts or stops.
_ENDS = re.compile(r"(PANIC|FATAL):  (?!the database system is )")


def log_tail(path: Path) -> str:
    """Return what a server that did not start has logged last, one line."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _BYTES))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({error})"
    return " / ".join(reasons(text.splitlines()))


def reasons(lines: list[str]) -> list[str]:
    """Return the first line of the last start that names what has ended the server, else the last lines.

    The lines after it are those of its end. The line before it has the reason where it names a file with errors.
    """
    starts = [i for i, line in enumerate(lines) if _STARTS.search(line)]
    last_start = lines[starts[-1] :] if starts else lines
    for number, line in enumerate(last_start):
        if _ENDS.search(line):
            return last_start[max(0, number - 1) : number + 1] if _IN_A_FILE in line else [line]
    return lines[-_LINES:]
