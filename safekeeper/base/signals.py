"""The signals of a running process: the same for both programs.

SIGTERM, SIGINT  shut down cleanly; a second one exits at once
SIGHUP           read the configuration again; changes that require a restart are logged
SIGUSR1          of a safekeeper: archive the open segment now
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.hangup import release_hangup
from safekeeper.base.logs import set_level
from safekeeper.base.settings import changed_options

_log = logging.getLogger(__name__)


class RunSettings(Protocol):
    """The settings of a process."""

    @property
    def log_level(self) -> str:
        """The lowest level to log."""


_Settings = TypeVar("_Settings", bound=RunSettings)


def take_signals(
    stop: Callable[[], object], reload: Callable[[], object], archive_now: Callable[[], object] | None = None
) -> None:
    """Call `stop` at the first SIGTERM or SIGINT, the others at each SIGHUP and SIGUSR1, on the running event loop.

    A service manager is told that the process is ready: from here on no signal that means reload ends it.
    """
    loop = asyncio.get_running_loop()
    stopping = False

    def on_stop(number: signal.Signals) -> None:
        nonlocal stopping
        if stopping:
            _log.warning("a second %s: exiting immediately", number.name)
            os._exit(128 + number)
        stopping = True
        _log.info("%s: shutting down", number.name)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop, number)
    loop.add_signal_handler(signal.SIGHUP, reload)
    if archive_now is not None:
        loop.add_signal_handler(signal.SIGUSR1, archive_now)
    release_hangup()
    _report_ready()


def _report_ready() -> None:
    """Report to systemd (Type=notify) that signals are handled; do nothing without it.

    https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")  # Not for the processes that this one starts.
    if address.startswith("@"):  # The abstract namespace of Linux.
        address = "\0" + address[1:]
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.sendto(b"READY=1", address)


def reload_settings(running: _Settings, read: Callable[[], _Settings]) -> _Settings | None:
    """Read the settings again and log the changes; return None if they cannot be read.

    Args:
        running: the settings since the start. The new log level is applied here.
    """
    try:
        new = read()
    except ConfigurationError as error:
        _log.error("could not reload the configuration: %s; nothing was changed", error)
        return None
    taken, fixed = changed_options(running, new)
    set_level(new.log_level)
    _log.info("reloaded the configuration; changed: %s", ", ".join(taken) or "nothing")
    if fixed:
        _log.warning("a change of %s requires a restart", ", ".join(fixed))
    return new
