"""SIGTERM and SIGINT as an event, for commands that finish the present step before they stop; SIGHUP as a call.

Python calls a signal handler in the main thread, between any two of its instructions. So a handler must not set an
event: if the main thread is at that moment inside `Event.wait()` of the same event, it holds the lock that
`Event.set()` acquires, and waits for itself. Nor is a handler called while the main thread is inside a library that is
not written in Python. Therefore the handlers do nothing: the interpreter writes the number of each signal into a socket
(`signal.set_wakeup_fd`), and a thread reads it there.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stopped_by_signals(reload: Callable[[], object] | None = None) -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets; the second one ends the process, with 128 plus its number.

    `reload`, if given, is called at each SIGHUP, by another thread.

    Must be called in the main thread. What the process did at these signals before is restored afterwards.
    """
    stop = threading.Event()
    receiver, sender = socket.socketpair()
    with receiver, contextlib.ExitStack() as stack:
        thread = threading.Thread(target=_receive, args=(receiver, stop, reload), name="stop signals", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(sender.close)  # The thread reads the end of the stream, and returns.
        sender.setblocking(False)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False))
        for number in (*_SIGNALS, signal.SIGHUP) if reload is not None else _SIGNALS:
            stack.callback(signal.signal, number, signal.signal(number, _ignore))
        yield stop


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: only a signal with a handler is written into the socket."""


def _receive(receiver: socket.socket, stop: threading.Event, reload: Callable[[], object] | None) -> None:
    while received := receiver.recv(1):
        if received[0] == signal.SIGHUP and reload is not None:
            reload()
        if received[0] not in _SIGNALS:
            continue
        if stop.is_set():
            os._exit(128 + received[0])
        stop.set()
