"""Makes a data folder out of a base backup, ready to recover from the named sources when it is started.

Nothing is written before `plan` has said that the target can be reached. What must not be taken for a whole data folder
is none: pg_control, without which no server starts, is written last, and if something fails all is removed again.

The server finds its WAL through `walproxy wal-fetch`, whose settings stand in a file of the data folder.
"""

import os
import pwd
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from safekeeper.control_file import CONTROL_FILE_NAME
from safekeeper.errors import ConfigurationError
from safekeeper.lsn import format_lsn
from walproxy.recovery.base_backup import BaseBackup, Entry, write_entry
from walproxy.recovery.config import DEFAULT_PREFETCH, FetchConfig, SourceConfig, as_toml
from walproxy.recovery.plan import Plan, Target, format_time
from walproxy.server_binaries import ServerUser

SETTINGS_FILE = "walproxy-recovery.toml"
_PG_CONTROL = PurePosixPath("global/pg_control")
_TARGETS = (
    "recovery_target",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_xid",
    "recovery_target_lsn",
)


class Owner(NamedTuple):
    """To whom the data folder will belong."""

    uid: int
    gid: int


def check_target_folder(target: Path) -> None:
    """Refuse a folder that is not free to be filled.

    Raises:
        ConfigurationError: it says why.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigurationError(f"{target} is not a folder: choose another --target")
    if target.is_dir() and any(target.iterdir()):
        raise ConfigurationError(f"{target} is not empty: empty it, or choose another --target; nothing was changed")
    if not target.parent.is_dir():
        raise ConfigurationError(f"{target.parent} does not exist: make it, or correct --target")


def owner_of(target: Path, name: str | None) -> Owner | None:
    """Return to whom the data folder is given, None if it stays with this process's user.

    Args:
        name: a user; by default who owns the folder above `target`, if this process is root.

    Raises:
        ConfigurationError: there is no such user, or it is root, as whom PostgreSQL refuses to run.
    """
    if os.geteuid() != 0:
        if name is not None and name != pwd.getpwuid(os.geteuid()).pw_name:
            raise ConfigurationError("--owner: only root can give files to another user")
        return None
    if name is not None:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise ConfigurationError(f"--owner: there is no user {name!r}") from None
        owner = Owner(entry.pw_uid, entry.pw_gid)
    else:
        status = target.parent.stat()
        owner = Owner(status.st_uid, status.st_gid)
    if owner.uid == 0:
        raise ConfigurationError(
            f"{target} would belong to root, as whom PostgreSQL does not run: name its user with --owner, e.g. postgres"
        )
    return owner


def write_data_folder(
    backup: BaseBackup,
    target: Path,
    config: SourceConfig,
    plan: Plan,
    goal: Target,
    owner: Owner | None,
    progress: Callable[[int], None],
) -> None:
    """Fill `target`, which is empty or not there.

    Args:
        progress: told how many bytes were written.

    Raises:
        ConfigurationError: the backup cannot be read, or there is no room. Nothing is left behind.
    """
    existed = target.is_dir()
    try:
        target.mkdir(mode=0o700, exist_ok=True)
        target.chmod(0o700)
        _copy(backup, target, plan, progress)
        _configure(target, config, goal)
        if owner is not None:
            _give(target, owner)
        os.sync()  # As pg_basebackup does: the restored folder must survive a crash of the machine.
        (target / (SETTINGS_FILE + ".control")).rename(target / _PG_CONTROL)
    except BaseException as error:
        _empty(target, existed)
        if isinstance(error, OSError):
            raise ConfigurationError(
                f"could not write {error.filename or target}: {error.strerror}; nothing was left behind"
            ) from error
        raise


def _copy(backup: BaseBackup, target: Path, plan: Plan, progress: Callable[[int], None]) -> None:
    for entry in backup.entries():
        if entry.path == _PG_CONTROL:
            write_entry(entry._replace(path=PurePosixPath(SETTINGS_FILE + ".control")), target, progress)
        else:
            write_entry(entry, target, progress)
    for name in ("pg_wal", "pg_wal/archive_status", "pg_tblspc", "pg_replslot"):
        (target / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in backup.wal_entries() if plan.needs_own_wal else ():
        if _is_wal(entry):
            write_entry(entry, target, progress)


def _is_wal(entry: Entry) -> bool:
    name = entry.path.name
    is_segment = len(name) == 24 and not name.strip("0123456789ABCDEF")
    return entry.path.parent == PurePosixPath("pg_wal") and (is_segment or name.endswith(".history"))


def _configure(target: Path, config: SourceConfig, goal: Target) -> None:
    """Say where the WAL comes from and where recovery ends."""
    sources = {name: value for name, value in asdict(config).items() if name in SourceConfig.__dataclass_fields__}
    # PostgreSQL reads ahead of its target, so what is missing behind it must not stop it; and it does not end before.
    fetching = FetchConfig(**sources, no_partial=False, end_at_hole=not goal.is_end, prefetch=DEFAULT_PREFETCH)
    settings = target / SETTINGS_FILE
    settings.touch(mode=0o600)
    settings.write_text(
        "# Where walproxy wal-fetch gets the WAL of this recovery. Of no use once the server takes writes.\n"
        + as_toml(fetching)
    )
    with (target / "postgresql.auto.conf").open("a") as file:
        file.write("\n# walproxy restore\n")
        for name, value in recovery_settings(goal).items():
            file.write(f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n")
    (target / "recovery.signal").touch(mode=0o600)


def recovery_settings(goal: Target) -> dict[str, str]:
    """Return PostgreSQL's settings for this recovery."""
    chosen = {
        "recovery_target_time": format_time(goal.time) if goal.time is not None else None,
        "recovery_target_lsn": format_lsn(goal.lsn) if goal.lsn is not None else None,
        "recovery_target_name": goal.name,
    }
    # PostgreSQL refuses two targets, and the backup may have brought one along. It reads them in this order and has
    # one already when it comes to a second, even to an empty one: so the empty ones come first.
    settings = {"restore_command": restore_command()}
    settings |= {name: "" for name in _TARGETS if chosen.get(name) is None}
    settings |= {name: value for name, value in chosen.items() if value is not None}
    settings["recovery_target_timeline"] = goal.timeline
    if not goal.is_end:
        settings["recovery_target_action"] = goal.action
    return settings


def restore_command() -> str:
    """Return the command that fetches WAL; PostgreSQL runs it in its data folder."""
    program = Path(sys.argv[0]).absolute()
    if program.name == "walproxy" and os.access(program, os.X_OK):
        words = [str(program)]
    else:
        words = [sys.executable, "-P", "-m", "walproxy"]
    command = " ".join(shlex.quote(word).replace("%", "%%") for word in words)
    return f"{command} wal-fetch %f %p --config {SETTINGS_FILE}"


def warn_of_unreachable(owner: Owner, config: SourceConfig) -> list[str]:
    """Return what the server's user cannot use of what recovery needs, one line each."""
    user = ServerUser(str(owner.uid), owner.uid, owner.gid)
    program = Path(sys.executable).resolve()
    found = []
    if not user.may_enter(program):
        found.append(f"user {owner.uid} cannot run {program}, which restore_command needs: install walproxy elsewhere")
    for folder in config.data_dir:
        status = (folder / CONTROL_FILE_NAME).stat()
        if not user.may_enter(folder / CONTROL_FILE_NAME) or (
            status.st_uid != owner.uid and not status.st_mode & 0o004
        ):
            found.append(f"user {owner.uid} cannot read {folder}, which recovery needs: make it the owner of a copy")
    return found


def _give(target: Path, owner: Owner) -> None:
    os.chown(target, *owner)
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            os.chown(Path(folder, name), *owner, follow_symlinks=False)


def _empty(target: Path, existed: bool) -> None:
    """Remove what was written."""
    if not existed:
        shutil.rmtree(target, ignore_errors=True)
        return
    for path in target.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
