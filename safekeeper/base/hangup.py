"""SIGHUP while a program starts: held back, and delivered once the program can read its configuration again.

A service manager may send SIGHUP directly after the start, which by default ends a process. Imports take 0.2 s, the
recovery of the WAL takes longer. So a daemon blocks the signal before it imports anything else, and `take_signals`
(safekeeper/base/signals.py) releases it. A job ignores the signal, as do the processes that it starts; once it runs, it
may have a password of HTTP to read again.

Before that, for about 20 ms after exec, the interpreter starts, and the signal ends it: a sender waits for
`takes_hangup`, a service manager for READY=1. This module imports nothing slow.
"""

import signal

_DAEMONS = (["run"], ["agent"])
_JOBS = (["pipeline", "run"], ["pipeline", "apply"])
# With one of these a job ends by itself: it is a command like others.
_ENDS = frozenset(("--once", "--verify", "--repair"))


def hold_hangup(arguments: list[str]) -> None:
    """Block SIGHUP if the command line starts a daemon, ignore it for a job. Other commands end with their terminal."""
    if arguments[:1] in _DAEMONS:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    elif arguments[:2] in _JOBS and _ENDS.isdisjoint(arguments):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def release_hangup() -> None:
    """Deliver a SIGHUP that was held back, and later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def takes_hangup(pid: int) -> bool:
    """Return whether SIGHUP does not end a process: it blocks, ignores or handles the signal (Linux)."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            lines = [line.split() for line in file]
    except OSError:
        return False
    masks = [int(words[1], 16) for words in lines if words[:1] and words[0] in ("SigBlk:", "SigIgn:", "SigCgt:")]
    return any(mask >> (signal.SIGHUP - 1) & 1 for mask in masks)
