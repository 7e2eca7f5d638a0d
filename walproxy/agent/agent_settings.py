"""The server's settings that the agent writes, without a change of any setting that the user has written.

They are in a file of their own, walproxy.agent.conf in the data folder, and the last line of postgresql.auto.conf
includes it: that file is in the data folder on every system, and is read last, so the agent's settings win while they
are there, and the user's apply again when they are not.

ALTER SYSTEM replaces an include by the lines of the included file. The next `write` removes exactly these lines, by
comparison with the file, and appends the include again. `write` changes postgresql.auto.conf only if that is necessary,
and repeats the change if ALTER SYSTEM was quicker.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from walproxy.postgres.problems import ServerProblem

AGENT_CONF = "walproxy.agent.conf"
AUTO_CONF = "postgresql.auto.conf"
_INCLUDE = f"include_if_exists '{AGENT_CONF}'"
_HEADING = "# Written by walproxy agent, which replaces this file. Do not edit it.\n"
_ATTEMPTS = 10


def format_settings(settings: Mapping[str, str]) -> str:
    """Return the content of walproxy.agent.conf. Its lines have the format that ALTER SYSTEM writes."""
    return _HEADING + "".join(f"{name} = '{_escaped(value)}'\n" for name, value in settings.items())


def parse_settings(text: str) -> dict[str, str]:
    """Return the settings in the content of walproxy.agent.conf."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        if equals and not name.startswith("#"):
            found[name] = value.strip()[1:-1].replace("''", "'").replace("\\\\", "\\")
    return found


def with_include(auto_conf: str, written_before: str) -> str:
    """Return the content of postgresql.auto.conf with the include as its last line.

    Args:
        written_before: the content of walproxy.agent.conf until now; its lines are removed where ALTER SYSTEM has
            copied them.
    """
    ours = {line for line in written_before.splitlines() if " = " in line and not line.startswith("#")}
    kept = [line for line in auto_conf.splitlines() if line.strip() != _INCLUDE and line not in ours]
    return "".join(f"{line}\n" for line in [*kept, _INCLUDE])


def read(data_directory: Path) -> dict[str, str]:
    """Return the agent's settings, none if it has not written any.

    Raises:
        OSError: the file cannot be read.
    """
    return parse_settings(_read(data_directory / AGENT_CONF))


def write(data_directory: Path, settings: Mapping[str, str]) -> bool:
    """Replace the agent's settings, durably; return whether anything has changed. The caller reloads the server.

    Raises:
        OSError: a file cannot be read or written.
        ServerProblem: another process changes postgresql.auto.conf repeatedly.
    """
    for name, value in settings.items():
        if "\n" in value or "\r" in value:
            raise ServerProblem(f"the value of {name} contains a line break")
    path, auto_conf = data_directory / AGENT_CONF, data_directory / AUTO_CONF
    before, content = _read(path), format_settings(settings)
    changed = False
    # First: lines that ALTER SYSTEM has copied are found by the file that they came from.
    for _ in range(_ATTEMPTS):
        status = auto_conf.stat() if auto_conf.exists() else None
        text = _read(auto_conf)
        wanted = with_include(text, before)
        if wanted == text:
            break
        changed = True
        if _replaced(auto_conf, wanted, status):
            break
    else:
        raise ServerProblem(f"{auto_conf} is changed repeatedly by another process: try again")
    if before != content:
        changed = True
        _replaced(path, content, path.stat() if path.exists() else None)
    return changed


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""


def _replaced(path: Path, text: str, before: os.stat_result | None) -> bool:
    """Replace a file durably; return False if another process has, since it was read."""
    owner = path.parent.stat()
    temporary = path.with_name(f"{path.name}.walproxy")
    try:
        with temporary.open("w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(file.fileno(), before.st_mode & 0o7777 if before is not None else 0o600)
            if os.geteuid() != owner.st_uid:  # Run by root: the server must be able to read its file.
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        now = path.stat() if path.exists() else None
        if _version(now) != _version(before):
            return False
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def _version(status: os.stat_result | None) -> tuple[int, int, int] | None:
    return None if status is None else (status.st_ino, status.st_mtime_ns, status.st_size)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
