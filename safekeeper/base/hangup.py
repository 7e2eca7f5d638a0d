"""SIGHUP while a program starts: held back, and delivered once the program can read its configuration again.

A service manager may send SIGHUP directly after the start, which by default ends a process. Imports take 0.2 s, the
recovery of the WAL takes longer. So `run` blocks the signal before it imports anything else, and `take_signals`
(safekeeper/base/signals.py) releases it. This module imports nothing slow.
"""

import signal


def hold_hangup(arguments: list[str]) -> None:
    """Block SIGHUP if the command line starts a daemon. Other commands end with their terminal."""
    if arguments[:1] == ["run"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def release_hangup() -> None:
    """Deliver a SIGHUP that was held back, and later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
