"""SIGHUP while a program starts: held back, and delivered once the program can read its configuration again.

A service manager may send SIGHUP right after the start. By default that ends a process. Imports take 0.2 s, recovery of
the WAL takes longer; so `run` blocks the signal before it imports anything else, and `take_signals`
(safekeeper/base/signals.py) releases it. This module imports nothing slow.
"""

import signal


def hold_hangup(arguments: list[str]) -> None:
    """Block SIGHUP if the arguments of the command line start a daemon. Other commands end with their terminal."""
    if arguments[:1] == ["run"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def release_hangup() -> None:
    """Deliver the SIGHUP that came meanwhile, if one did, and those that come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
