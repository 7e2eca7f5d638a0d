"""Segments that are fetched before PostgreSQL requests them: the process that fetches.

Started by the first call of the restore_command (`python -m walproxy.recovery.prefetcher`, its settings as JSON on
standard input), it runs during the recovery, so that importing, connecting and reading listings are done once. Each
call sends the name of the segment that it has delivered; the next segments of the same timeline are then fetched in
parallel. The process ends, and removes all its files, when recovery has ended, when the server has stopped, or when no
call was made for a minute.

Only whole, committed segments are fetched ahead. An error is left to the call that needs the segment, which reports it.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safekeeper.base import settings
from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, parse_segment_name, segment_name
from walproxy.recovery.caller import is_recovering, system_id_of
from walproxy.recovery.config import ENVIRONMENT_PREFIX, FetchConfig, open_sources
from walproxy.recovery.fetcher import Fetcher
from walproxy.recovery.prefetched import BEGUN_SUFFIX, LOCK, REQUESTS, Prefetched

_IDLE_S = 60.0
_LOOK_S = 1.0
_AHEAD_BYTES_MAX = 1 << 30
_PIPE_BYTES = 4096
_NAME_BYTES = 24


def start_prefetcher(prefetched: Prefetched, config: FetchConfig, name: str) -> None:
    """Start the process, detached from this one. It ends at once if another one runs already.

    Args:
        name: the segment that was delivered.
    """
    words = {
        "data_directory": str(prefetched.data_directory),
        "wal_directory": str(prefetched.folder.parent.parent),
        "name": name,
        "settings": {
            "archive": config.archive,
            "archive_options": dict(config.archive_options),
            "safekeepers": config.safekeepers,
            "data_dir": [str(folder) for folder in config.data_dir],
            "prefetch": config.prefetch,
        },
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "walproxy.recovery.prefetcher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # It runs longer than this call, and must not be ended by its Ctrl-C.
    )
    assert process.stdin is not None  # By the arguments above.
    process.stdin.write(json.dumps(words).encode())
    process.stdin.close()
    process.returncode = 0  # It is not waited for here: init will do that.


class Prefetcher:
    """Fetch the segments after the delivered one.

    Args:
        name: the segment that was delivered last.
    """

    def __init__(self, prefetched: Prefetched, config: FetchConfig, name: str) -> None:
        self._prefetched = prefetched
        self._folder = prefetched.folder
        self._fetcher = Fetcher(open_sources(config), system_id=system_id_of(prefetched.data_directory))
        self._segment_size = self._fetcher.origin().segment_size
        self._count = min(config.prefetch, max(1, _AHEAD_BYTES_MAX // self._segment_size))
        self._under_way: dict[str, Future[bool]] = {}
        self._fetched: set[str] = set()  # Those that were fetched ahead, some perhaps delivered already.
        self._end_lsn: Lsn | None = None  # The first segment that no source had.
        self._delivered = name

    def run(self) -> None:
        """Fetch until no more segments are needed."""
        with ThreadPoolExecutor(self._count) as pool:
            self._fetch_ahead(pool)
            pipe = os.open(self._folder / REQUESTS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            asked_at = time.monotonic()
            try:
                while time.monotonic() - asked_at < _IDLE_S and is_recovering(self._prefetched.data_directory):
                    if not select.select([pipe], [], [], _LOOK_S)[0]:
                        continue
                    names = os.read(pipe, _PIPE_BYTES).decode("ascii", "replace").split()
                    self._delivered = names[-1] if names else self._delivered
                    asked_at = time.monotonic()
                    self._fetch_ahead(pool)
            finally:
                os.close(pipe)

    def _fetch_ahead(self, pool: ThreadPoolExecutor) -> None:
        parsed = parse_segment_name(self._delivered, self._segment_size)
        if parsed is None:
            return
        tli, delivered_lsn = parsed
        for name, job in list(self._under_way.items()):
            if job.done():
                del self._under_way[name]
                if job.result():
                    self._fetched.add(name)
                else:
                    self._end_lsn = (parse_segment_name(name, self._segment_size) or (0, 0))[1]
        wanted = [delivered_lsn + index * self._segment_size for index in range(1, self._count + 1)]
        names = {segment_name(tli, lsn, self._segment_size): lsn for lsn in wanted}
        self._fetched &= names.keys()
        for path in self._folder.iterdir():
            if len(path.name) == _NAME_BYTES and path.name not in names:
                path.unlink(missing_ok=True)
        if self._end_lsn is not None and self._end_lsn <= wanted[0]:
            self._end_lsn = None  # PostgreSQL requests it itself now; it may exist meanwhile.
        for name, lsn in names.items():
            if self._end_lsn is not None and lsn >= self._end_lsn:
                break
            if name not in self._under_way and name not in self._fetched:
                (self._folder / (name + BEGUN_SUFFIX)).touch()
                self._under_way[name] = pool.submit(self._fetch, name, tli, lsn)

    def _fetch(self, name: str, tli: int, begin_lsn: Lsn) -> bool:
        """Fetch one segment; return False if no source has all of it, or it cannot be fetched now."""
        begun, part = self._folder / (name + BEGUN_SUFFIX), self._folder / (name + ".part")
        try:
            if self._fetcher.fetch_segment(tli, begin_lsn, part, whole_only=True, find_holes=False) is None:
                return False
            sync(part)
            part.rename(self._folder / name)
        except (WalproxyError, OSError):
            part.unlink(missing_ok=True)
            return False  # Reported by the call that needs it.
        finally:
            begun.unlink(missing_ok=True)
        return True


def sync(path: Path) -> None:
    """Return when the file's content is on disk: after a crash of the machine it must not be served torn."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    """Run the process: acquire the lock, create the folder again, fetch, remove it."""
    words: dict[str, Any] = json.load(sys.stdin)
    config = settings.load(FetchConfig, ENVIRONMENT_PREFIX, command_line=words["settings"], environment={}, file=None)
    data_directory = Path(words["data_directory"])
    prefetched = Prefetched(data_directory, Path(words["wal_directory"]), system_id_of(data_directory), config)
    top = prefetched.folder.parent
    top.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(top / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    try:
        for left_over in top.iterdir():
            if left_over.is_dir():
                shutil.rmtree(left_over)
        prefetched.folder.mkdir(mode=0o700)
        os.mkfifo(prefetched.folder / REQUESTS, 0o600)
        Prefetcher(prefetched, config, words["name"]).run()
    except (WalproxyError, OSError):
        return  # The next call reports the error, or starts another process.
    finally:
        shutil.rmtree(top, ignore_errors=True)
        os.close(lock)


if __name__ == "__main__":
    main()
