"""The settings that `walproxy restore` adds to postgresql.auto.conf, and their removal when recovery has ended.

postgresql.auto.conf is the only configuration file that is in the data folder on every system, so the settings are
there and not in a separate file: an include in it would be replaced by its content at the next ALTER SYSTEM. That
command also drops all comments and appends its setting, but it keeps the order of the other lines and writes them as
`as_block` does. So the block is found by its first line: the settings of this recovery are the commands that name
SETTINGS_FILE, and each recovery_target... that follows them.

Settings of the backup with the same names are above the block, and apply again.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

SETTINGS_FILE = "walproxy-recovery.toml"
AUTO_CONF = "postgresql.auto.conf"
END_COMMAND = "recovery-end"
TARGETS = (
    "recovery_target",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_xid",
    "recovery_target_lsn",
)
_HEADING = "# walproxy restore"
_COMMANDS = ("restore_command", "recovery_end_command")
_OF_THE_BLOCK = frozenset((*TARGETS, "recovery_target_timeline", "recovery_target_action"))
_TEMPORARY = f"{AUTO_CONF}.walproxy"
_ATTEMPTS = 10


def as_block(settings: Mapping[str, str]) -> str:
    """Return the lines to append; the commands are first."""
    lines = [f"{name} = '{_escaped(value)}'\n" for name, value in settings.items()]
    return f"\n{_HEADING}\n{''.join(lines)}"


def without_block(text: str) -> str:
    """Return the content of postgresql.auto.conf without the appended block."""
    kept, is_in_block = [], False
    for line in text.splitlines(keepends=True):
        name = line.partition("=")[0].strip()
        if line.strip() == _HEADING:
            continue
        if name in _COMMANDS and SETTINGS_FILE in line:
            is_in_block = True
        elif not (is_in_block and name in _OF_THE_BLOCK):
            kept.append(line)
    return "".join(kept)


def remove_settings(data_directory: Path) -> None:
    """Remove the block and SETTINGS_FILE from a data folder. Change nothing if they do not exist.

    Raises:
        OSError: a file cannot be read or written; postgresql.auto.conf is then as it was.
    """
    path = data_directory / AUTO_CONF
    for _ in range(_ATTEMPTS):
        before = path.stat()
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        changed = without_block(text)
        if changed == text or _replaced(path, changed, before):
            break
    else:
        raise OSError(errno.EAGAIN, "another process changes it: try again", str(path))
    (data_directory / SETTINGS_FILE).unlink(missing_ok=True)


def _replaced(path: Path, text: str, before: os.stat_result) -> bool:
    """Replace a file durably; return False if another process has, e.g. ALTER SYSTEM, since it was read."""
    temporary = path.with_name(_TEMPORARY)
    try:
        with temporary.open("w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(file.fileno(), before.st_mode & 0o7777)
            if os.geteuid() != before.st_uid:  # Run by root: the server must still be able to read its file.
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        now = path.stat()
        if (now.st_ino, now.st_mtime_ns, now.st_size) != (before.st_ino, before.st_mtime_ns, before.st_size):
            return False
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
