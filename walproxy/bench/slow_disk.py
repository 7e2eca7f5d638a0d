"""A safekeeper on a disk that is slower than this machine's: `python -m walproxy.bench.slow_disk MS OPTIONS`.

The options are those of `safekeeper run`. Each fdatasync returns MS milliseconds later than it would have: on a machine
whose own disk is quick and whose noise is as large as what is measured, the delay decides and the noise does not.
`SlowFileSystem` takes any delay; the tests hold a disk with it altogether.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from safekeeper.config import ENVIRONMENT_PREFIX, SafekeeperConfig
from safekeeper.service import Service
from safekeeper.settings import load
from safekeeper.wal.filesystem import RealFile, RealFileSystem


class SlowFile(RealFile):
    """A file whose sync does not return before `delay` has."""

    __slots__ = ("_delay",)

    def __init__(self, path: Path, flags: int, delay: Callable[[], None]) -> None:
        super().__init__(path, flags)
        self._delay = delay

    def fdatasync(self) -> None:
        self._delay()
        super().fdatasync()


class SlowFileSystem(RealFileSystem):
    """The operating system's files; `delay` is called in each fdatasync, on the thread that waits for it."""

    def __init__(self, delay: Callable[[], None]) -> None:
        self._delay = delay

    def create(self, path: Path) -> RealFile:
        return SlowFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, self._delay)

    def open(self, path: Path, *, read_only: bool = False) -> RealFile:
        return SlowFile(path, os.O_RDONLY if read_only else os.O_RDWR, self._delay)


def run_safekeeper(delay: Callable[[], None], options: Sequence[str]) -> int:
    """Run a safekeeper on a slow disk to its end; return its exit code.

    Args:
        delay: what each fdatasync waits for.
        options: of `safekeeper run`, each a name and a value.
    """
    names = [name.removeprefix("--").replace("-", "_") for name in options[::2]]
    written = dict(zip(names, options[1::2], strict=True))

    def read() -> SafekeeperConfig:
        return load(SafekeeperConfig, ENVIRONMENT_PREFIX, command_line=written, environment={}, file=None)

    service = Service(read(), SlowFileSystem(delay), read)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(service.run())


def _main() -> None:
    delay_s = float(sys.argv[1]) / 1000
    sys.exit(run_safekeeper(lambda: time.sleep(delay_s), sys.argv[2:]))


if __name__ == "__main__":
    _main()
