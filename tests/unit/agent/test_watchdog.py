"""The watchdog device, with a pipe in its place: what is written to it, and when it is refused."""

import array
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.agent.watchdog import WDIOC_SETTIMEOUT, Watchdog
from walproxy.postgres.problems import ServerProblem


class Device:
    """A named pipe that receives what is written to the device, and its ioctl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self.reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.timeouts: list[int] = []
        self.timeout_min_s = 1
        self.refuses_timeout = False

    def control(self, file: int, request: int, value: "array.array[int]", /) -> int:
        assert request == WDIOC_SETTIMEOUT
        if self.refuses_timeout:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        value[0] = max(value[0], self.timeout_min_s)
        self.timeouts.append(value[0])
        return 0

    def received(self) -> bytes:
        try:
            return os.read(self.reader, 100)
        except BlockingIOError:
            return b""


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made = Device(tmp_path / "watchdog")
    yield made
    os.close(made.reader)


def test_the_timer_runs_from_open_to_close_only(device: Device) -> None:
    watchdog = Watchdog(device.path, control=device.control)
    watchdog.keep_alive()
    watchdog.close()
    assert (watchdog.is_open, device.received(), device.timeouts) == (False, b"", [])
    assert watchdog.open()
    assert (watchdog.is_open, device.received(), device.timeouts) == (True, b"", [15])
    watchdog.keep_alive()
    assert watchdog.open()
    assert (device.received(), device.timeouts) == (b"\0\0", [15])
    watchdog.close()
    watchdog.close()
    assert (watchdog.is_open, device.received()) == (False, b"V")


def test_a_process_that_dies_does_not_stop_the_timer(device: Device) -> None:
    child = os.fork()
    if child == 0:
        Watchdog(device.path, control=device.control).open()
        os._exit(0)
    os.waitpid(child, 0)
    assert device.received() == b""


def test_a_missing_device_is_refused_only_if_it_is_required(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be opened: No such file.*modprobe softdog"):
        Watchdog(tmp_path / "none", required=True).open()
    watchdog = Watchdog(tmp_path / "none")
    with caplog.at_level(logging.WARNING):
        assert not watchdog.open()
    assert "without it" in caplog.text
    watchdog.keep_alive()
    watchdog.close()


def test_a_device_that_restarts_too_late_is_stopped_and_refused(device: Device) -> None:
    device.timeout_min_s = 60
    with pytest.raises(ConfigurationError, match="timeout of 60 s at least, not of 15 s"):
        Watchdog(device.path, required=True, control=device.control).open()
    device.refuses_timeout = True
    with pytest.raises(ConfigurationError, match="does not accept a timeout of 15 s"):
        Watchdog(device.path, required=True, control=device.control).open()
    assert device.received() == b"VV"


def test_a_file_that_is_not_a_watchdog_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="does not accept a timeout"):
        Watchdog(tmp_path / "file", required=True).open()


def test_a_device_that_fails_is_reported(device: Device) -> None:
    watchdog = Watchdog(device.path, control=device.control)
    watchdog.open()
    os.close(device.reader)
    try:
        with pytest.raises(ServerProblem, match="going to restart"):
            watchdog.keep_alive()
        with pytest.raises(ServerProblem, match="cannot be stopped"):
            watchdog.close()
        assert not watchdog.is_open
    finally:
        device.reader = os.open(device.path, os.O_RDONLY | os.O_NONBLOCK)
