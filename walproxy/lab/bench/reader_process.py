"""The benchmark's readers, run from outside: walproxy/lab/bench/wal_readers.py in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.lab.bench.wal_readers import READY
from walproxy.postgres.local_server import end_with_parent

_END_TIMEOUT_S = 10.0


class ReaderProcess:
    """Readers that stream while the `with` block runs.

    Args:
        kind: of wal_readers.py.
        count: how many at each of `conninfos`.
        conninfos: of the safekeepers that they read from.
        begin_lsn: where they begin.
        until_lsn: where readers of the kind "reading" have to be before the block begins.
    """

    def __init__(self, kind: str, count: int, conninfos: Sequence[str], begin_lsn: Lsn, until_lsn: Lsn) -> None:
        self._command = [
            *end_with_parent("KILL"),
            *(sys.executable, "-m", "walproxy.lab.bench.wal_readers"),
            *(kind, str(count), format_lsn(begin_lsn), format_lsn(until_lsn), *conninfos),
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdout is not None  # it is a pipe
        if self._process.stdout.readline().strip() != READY:
            self.end()
            raise WalproxyError("the benchmark's readers ended before they were ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def end(self) -> list[int]:
        """End them; return how many bytes of WAL each has got.

        Raises:
            WalproxyError: one of them has lost its server, or could not begin.
        """
        assert self._process is not None  # the block was entered
        process, self._process = self._process, None
        try:
            output, errors = process.communicate(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise WalproxyError(f"the benchmark's readers did not end within {_END_TIMEOUT_S:g} s") from None
        if process.returncode != 0:
            raise WalproxyError(f"the benchmark's readers have failed: {errors.strip()[-300:]}")
        read_bytes: list[int] = json.loads(output)
        return read_bytes
