"""The Linux watchdog device: the machine restarts if a primary's agent no longer runs.

The device is open only while this server is a primary. From `open` on, the kernel (softdog) or the hardware restarts
the machine unless `keep_alive` is called within the timeout. `close` writes the character V before it closes the
device, which stops the timer ("magic close"); a process that dies does not, and the timer continues. A driver with
nowayout ignores the V: then the machine restarts after the close.

Source: https://www.kernel.org/doc/html/latest/watchdog/watchdog-api.html
"""

import array
import errno
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

from safekeeper.base.errors import ConfigurationError
from walproxy.postgres.problems import ServerProblem

# Without `keep_alive` the machine restarts after this.
TIMEOUT_S = 15
# _IOWR('W', 6, int) of include/uapi/linux/watchdog.h, as on x86, ARM, RISC-V and s390. On PowerPC, MIPS and SPARC the
# bits of the direction are others.
WDIOC_SETTIMEOUT = 0xC0045706
_MAGIC_CLOSE = b"V"
_ANY_OTHER = b"\0"

_log = logging.getLogger(__name__)


# ioctl with an integer that the device may change; tests replace it, because no file but a watchdog has it.
Control = Callable[[int, int, "array.array[int]"], int]


def _ioctl(file: int, request: int, value: "array.array[int]") -> int:
    return int(fcntl.ioctl(file, request, value, True))


class Watchdog:
    """One watchdog device, closed at first.

    Args:
        required: without the device this server must not be a primary; otherwise its absence is logged.
        control: ioctl.
    """

    def __init__(self, device: Path, *, required: bool = False, control: Control = _ioctl) -> None:
        self._device = device
        self._required = required
        self._control = control
        self._file: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the timer runs."""
        return self._file is not None

    def open(self) -> bool:
        """Start the timer, before this server becomes a primary; return whether it runs. An open one is kept alive.

        Raises:
            ConfigurationError: the device is required, and cannot be opened, or does not have the timeout.
            ServerProblem: an open one cannot be kept alive.
        """
        if self._file is not None:
            self.keep_alive()
            return True
        try:
            file = os.open(self._device, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            return self._absent(f"the watchdog {self._device} cannot be opened: {error.strerror}{_advice(error)}")
        value = array.array("i", [TIMEOUT_S])
        try:
            self._control(file, WDIOC_SETTIMEOUT, value)
        except OSError as error:
            _close(file)
            return self._absent(
                f"the watchdog {self._device} does not accept a timeout of {TIMEOUT_S} s: {error.strerror}"
            )
        if value[0] > TIMEOUT_S:
            # A later restart than the caller relies on: another server may already be the primary.
            _close(file)
            return self._absent(
                f"the watchdog {self._device} has a timeout of {value[0]} s at least, not of {TIMEOUT_S} s"
            )
        self._file = file
        return True

    def keep_alive(self) -> None:
        """Start the timeout again. Without an open device nothing happens.

        Raises:
            ServerProblem: the device refuses it: the machine is going to restart.
        """
        if self._file is None:
            return
        try:
            os.write(self._file, _ANY_OTHER)
        except OSError as error:
            raise ServerProblem(
                f"the watchdog {self._device} cannot be kept alive, the machine is going to restart: {error.strerror}"
            ) from None

    def close(self) -> None:
        """Stop the timer, after this server has ceased to be a primary. A closed one is fine.

        Raises:
            ServerProblem: the device refuses the magic close: the machine is going to restart.
        """
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            _close(file)
        except OSError as error:
            raise ServerProblem(
                f"the watchdog {self._device} cannot be stopped, the machine is going to restart: {error.strerror}"
            ) from None

    def _absent(self, problem: str) -> bool:
        if self._required:
            raise ConfigurationError(problem)
        _log.warning("%s; this server is a primary without it", problem)
        return False


def _close(file: int) -> None:
    try:
        os.write(file, _MAGIC_CLOSE)
    finally:
        os.close(file)


def _advice(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "; load a driver, e.g. modprobe softdog"
    if error.errno == errno.EBUSY:
        return "; another process uses it"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "; give the agent's user access to it"
    return ""
