"""A safekeeper on a disk that a test can slow down: `slow_disk_safekeeper.py CONTROL-FOLDER OPTIONS-OF-safekeeper-run`.

While the control folder holds a file `slow`, each fdatasync takes 20 ms longer; while it holds `held`, none returns.
What was written is in the operating system all the while: received, not flushed.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import uvloop

from safekeeper.config import ENVIRONMENT_PREFIX, SafekeeperConfig
from safekeeper.service import Service
from safekeeper.settings import load
from safekeeper.wal.filesystem import RealFile, RealFileSystem

_SLOW_S = 0.02
_POLL_S = 0.005


class SlowFile(RealFile):
    """A file whose sync takes as long as the control folder says."""

    __slots__ = ("_control",)

    def __init__(self, path: Path, flags: int, control: Path) -> None:
        super().__init__(path, flags)
        self._control = control

    def fdatasync(self) -> None:
        if (self._control / "slow").exists():
            time.sleep(_SLOW_S)
        while (self._control / "held").exists():
            time.sleep(_POLL_S)
        super().fdatasync()


class SlowFileSystem(RealFileSystem):
    """The operating system's files, with syncs that a test can hold."""

    def __init__(self, control: Path) -> None:
        self._control = control

    def create(self, path: Path) -> RealFile:
        return SlowFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, self._control)

    def open(self, path: Path, *, read_only: bool = False) -> RealFile:
        return SlowFile(path, os.O_RDONLY if read_only else os.O_RDWR, self._control)


def main() -> None:
    control, *options = sys.argv[1:]
    names = [name.removeprefix("--").replace("-", "_") for name in options[::2]]
    written = dict(zip(names, options[1::2], strict=True))

    def read() -> SafekeeperConfig:
        return load(SafekeeperConfig, ENVIRONMENT_PREFIX, command_line=written, environment={}, file=None)

    service = Service(read(), SlowFileSystem(Path(control)), read)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(service.run()))


main()
