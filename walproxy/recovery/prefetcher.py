"""Segments that are fetched before PostgreSQL requests them: the process that fetches.

Started by the first call of the restore_command (`python -m walproxy.recovery.prefetcher`, its settings as JSON on
standard input), it runs during the recovery, so that importing, connecting and reading listings are done once. A
segment that is no longer in the folder was delivered, other deliveries are reported; the next segments of the same
timeline are then fetched in parallel. The process ends, and removes all its files, when recovery has ended, when the
server has stopped, when the file of settings has changed, or when nothing was delivered for a minute.

Only whole, committed segments are fetched ahead. An error is left to the call that needs the segment, which reports it.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safekeeper.base import settings
from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, parse_segment_name
from walproxy.recovery.caller import recovering_run, system_id_of
from walproxy.recovery.config import ENVIRONMENT_PREFIX, FetchConfig, open_sources
from walproxy.recovery.fetcher import Fetcher
from walproxy.recovery.prefetched import BEGUN_SUFFIX, DELIVERED, LOCK, OWNER, Prefetched

_IDLE_S = 60.0
_POLL_S = 0.01
_NAME_BYTES = 24


def start_prefetcher(
    prefetched: Prefetched, config: FetchConfig, name: str, segment_size: int, settings_file: Path | None
) -> None:
    """Start the process, detached from this one, if there is none.

    The next calls wait for what it begins with: they would take longer, and as much of the processor.

    Args:
        name: the segment that was delivered.
        settings_file: the file of `config`, which must not change.

    Raises:
        OSError: it cannot be started.
    """
    lock = _make_folder(prefetched)
    if lock is None:
        return
    words = {
        "lock": lock,
        "data_directory": str(prefetched.data_directory),
        "options": prefetched.options,
        "name": name,
        "settings_file": str(settings_file.absolute()) if settings_file is not None else None,
        "settings_version": _version_of(settings_file),
        "settings": {
            "archive": config.archive,
            "archive_options": dict(config.archive_options),
            "safekeepers": config.safekeepers,
            "data_dir": [str(folder) for folder in config.data_dir],
            "prefetch": config.prefetch,
        },
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "walproxy.recovery.prefetcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # It runs longer than this call, and must not be ended by its Ctrl-C.
            pass_fds=[lock],
        )
        process.returncode = 0  # It is not waited for here: init will do that.
        for each in prefetched.segments_after(name, segment_size):
            (prefetched.folder / (each + BEGUN_SUFFIX)).touch()
        temporary = prefetched.folder / f"{OWNER}.new"
        temporary.write_bytes(os.fsencode(f"{process.pid}\n{prefetched.owner}"))
        temporary.rename(prefetched.folder / OWNER)
        assert process.stdin is not None  # By the arguments above.
        with process.stdin:
            process.stdin.write(json.dumps(words).encode())
    except OSError:
        shutil.rmtree(prefetched.folder, ignore_errors=True)
        raise
    finally:
        os.close(lock)


class Prefetcher:
    """Fetch the segments after the delivered one.

    Args:
        name: the segment that was delivered last.
        is_current: return whether the settings still apply.
    """

    def __init__(
        self, prefetched: Prefetched, config: FetchConfig, name: str, is_current: Callable[[], bool] = lambda: True
    ) -> None:
        self._prefetched = prefetched
        self._folder = prefetched.folder
        self._is_current = is_current
        self._fetcher = Fetcher(open_sources(config), system_id=system_id_of(prefetched.data_directory))
        self._segment_size = self._fetcher.origin().segment_size
        self._under_way: dict[str, Future[bool]] = {}
        self._fetched: set[str] = set()  # Those that were fetched ahead and are in the folder, or were until now.
        self._end_lsn: Lsn | None = None  # The first segment that no source had.
        self._delivered = name
        self._ends_with = ""  # The delivered segment that was fetched again because no source had the next one.
        self._reported_ns = 0

    def run(self) -> None:
        """Fetch until no more segments are needed, then remove the folder."""
        # PostgreSQL removes the folder when it starts, and another prefetcher may make one of the same name.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with ThreadPoolExecutor(self._prefetched.count) as pool:
                try:
                    self._serve(pool, folder)
                finally:
                    # Without waiting for the threads: another program may copy the data folder of a server that ended.
                    self._remove(folder)
        finally:
            self._remove(folder)  # What a thread has added meanwhile.
            os.close(folder)

    def _serve(self, pool: ThreadPoolExecutor, folder: int) -> None:
        self._fetch_ahead(pool, folder)
        delivered_at = time.monotonic()
        while time.monotonic() - delivered_at < _IDLE_S and self._is_wanted(folder):
            if self._has_more_to_fetch(folder):
                delivered_at = time.monotonic()
                self._fetch_ahead(pool, folder)
            else:
                time.sleep(_POLL_S)

    def _remove(self, folder: int) -> None:
        if self._is_there(folder):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _is_wanted(self, folder: int) -> bool:
        run = recovering_run(self._prefetched.data_directory)
        return bool(run) and run == self._prefetched.run and self._is_there(folder) and self._is_current()

    def _is_there(self, folder: int) -> bool:
        try:
            return os.path.samestat(os.fstat(folder), self._folder.stat())
        except OSError:
            return False

    def _has_more_to_fetch(self, folder: int) -> bool:
        """Note the delivered segment, from the folder or otherwise; return whether it is new, or was the last one."""
        for name, job in list(self._under_way.items()):
            if job.done():
                del self._under_way[name]
                if job.result():
                    self._fetched.add(name)
                else:
                    missing = self._position_of(name)
                    self._end_lsn = missing if self._end_lsn is None else min(missing, self._end_lsn)
        there = set(os.listdir(folder))  # After the jobs: what was fetched and is not there was delivered.
        taken = self._fetched - there
        self._fetched -= taken
        if taken:
            self._delivered = max(taken)
        reported = self._folder / DELIVERED
        if DELIVERED in there and (written_ns := reported.stat().st_mtime_ns) != self._reported_ns:
            self._reported_ns = written_ns
            self._delivered = reported.read_text()
            return True
        return bool(taken) or (self._is_at_end() and self._ends_with != self._delivered)

    def _is_at_end(self) -> bool:
        return self._end_lsn is not None and self._end_lsn <= self._position_of(self._delivered) + self._segment_size

    def _position_of(self, name: str) -> Lsn:
        return (parse_segment_name(name, self._segment_size) or (0, 0))[1]

    def _fetch_ahead(self, pool: ThreadPoolExecutor, folder: int) -> None:
        names = self._prefetched.segments_after(self._delivered, self._segment_size)
        self._fetched &= names.keys()
        for path in self._folder.iterdir():
            if len(path.name) == _NAME_BYTES and path.name not in names:
                path.unlink(missing_ok=True)
        if self._is_at_end():
            self._end_lsn = None  # PostgreSQL requests it itself now; it may exist meanwhile.
            # If it does not, recovery ends, and PostgreSQL requests the last one again.
            names[self._delivered] = self._position_of(self._delivered)
            self._ends_with = self._delivered
        for name, lsn in names.items():
            if self._end_lsn is not None and lsn >= self._end_lsn:
                break
            if name not in self._under_way and name not in self._fetched:
                (self._folder / (name + BEGUN_SUFFIX)).touch()
                self._under_way[name] = pool.submit(self._fetch, folder, name, lsn)

    def _fetch(self, folder: int, name: str, begin_lsn: Lsn) -> bool:
        """Fetch one segment; return False if no source has all of it, or it cannot be fetched now."""
        begun, part = self._folder / (name + BEGUN_SUFFIX), self._folder / f"{name}.{os.getpid()}.part"
        try:
            if (
                self._fetcher.fetch_segment(int(name[:8], 16), begin_lsn, part, whole_only=True, find_holes=False)
                is None
            ):
                return False
            sync(part)
            os.rename(part.name, name, src_dir_fd=folder, dst_dir_fd=folder)
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


def _make_folder(prefetched: Prefetched) -> int | None:
    """Make the folder again, with the rights that PostgreSQL gives to its own; return the lock on it.

    None is returned if a prefetcher has it.
    """
    mode = prefetched.data_directory.stat().st_mode & 0o777
    folder = prefetched.folder
    for made in (folder.parent, folder):
        made.mkdir(mode=mode, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left_over in folder.iterdir():
            if left_over.name != LOCK:
                left_over.unlink()
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock


def main() -> None:
    """Run the process that `start_prefetcher` starts: fetch, and remove the folder."""
    words: dict[str, Any] = json.load(sys.stdin)
    config = settings.load(FetchConfig, ENVIRONMENT_PREFIX, command_line=words["settings"], environment={}, file=None)
    data_directory = Path(words["data_directory"])
    prefetched = Prefetched(data_directory, system_id_of(data_directory), config, words["options"])
    settings_file = Path(words["settings_file"]) if words["settings_file"] is not None else None
    try:
        if prefetched.is_ours():  # Otherwise the server has stopped, or started again, meanwhile.
            Prefetcher(
                prefetched, config, words["name"], lambda: _version_of(settings_file) == words["settings_version"]
            ).run()
    except (WalproxyError, OSError):
        pass  # The next call reports the error, or starts another process.
    finally:
        _remove_locked(prefetched.folder, words["lock"])


def _remove_locked(folder: Path, lock: int) -> None:
    """Remove the folder, unless it was replaced by another one."""
    try:
        is_same = os.path.samestat(os.fstat(lock), (folder / LOCK).stat())
    except OSError:
        return
    if is_same:
        shutil.rmtree(folder, ignore_errors=True)


def _version_of(file: Path | None) -> list[int] | None:
    """Return what changes when a file is changed or replaced, None without one."""
    if file is None:
        return None
    status = file.stat()
    return [status.st_ino, status.st_mtime_ns, status.st_size]


if __name__ == "__main__":
    main()
