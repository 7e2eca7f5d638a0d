"""Restore a base backup into a data folder, ready to recover from the configured sources when it is started.

Nothing is written before `plan` has found that the target can be reached. An incomplete data folder cannot be started:
pg_control, without which no server starts, is written last, and after an error all files are removed.

The server fetches its WAL with `walproxy wal-fetch`, whose settings are in a file of the data folder. When recovery
has ended, `walproxy recovery-end` removes that file and what was added to postgresql.auto.conf (settings_block.py).
"""

import os
import pwd
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from safekeeper.storage.control_file import CONTROL_FILE_NAME
from walproxy.postgres.binaries import ServerUser
from walproxy.postgres.conninfo import parse_conninfo
from walproxy.recovery.base_backup import BackupEntry, BaseBackup, write_entry
from walproxy.recovery.config import DEFAULT_PREFETCH, FetchConfig, SourceConfig, as_toml
from walproxy.recovery.plan import Plan, RecoveryTarget, format_time
from walproxy.recovery.server_mode import EXIT_MISSING, EXIT_STOPS_RECOVERY
from walproxy.recovery.settings_block import AUTO_CONF, END_COMMAND, SETTINGS_FILE, TARGETS, as_block

_PG_CONTROL = PurePosixPath("global/pg_control")
# Of obstore's configuration keys of S3, Google's store and Azure's.
_CREDENTIAL_OPTIONS = re.compile(
    "secret|token|password|(access|account|master|sas|encryption|customer|service_account)_key|access_key_id"
)
# The exit code for "missing": no other failure of a program has it.
MISSING_CODE = 100
_USER_IN_URL = re.compile("://[^/?#]*@")
_CONNINFO_CREDENTIALS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


class FolderOwner(NamedTuple):
    """The owner of the data folder."""

    uid: int
    gid: int


def check_target_folder(target: Path) -> None:
    """Refuse a target folder that is not empty, or cannot be created.

    Raises:
        ConfigurationError: with the reason.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigurationError(f"{target} is not a folder: choose another --target")
    if target.is_dir() and any(target.iterdir()):
        raise ConfigurationError(f"{target} is not empty: empty it, or choose another --target; nothing was changed")
    if not target.parent.is_dir():
        raise ConfigurationError(f"{target.parent} does not exist: create it, or correct --target")


def refuse_credentials(config: SourceConfig) -> None:
    """Refuse settings that would write credentials into the data folder, and so into every copy of it.

    Raises:
        ConfigurationError: with their names, and where to set them instead.
    """
    named = [name for name, value in config.archive_options.items() if _is_credential(name, value)]
    if named:
        raise ConfigurationError(
            f"archive_options has credentials ({', '.join(sorted(named))}), which restore does not write into the "
            "data folder: set the store's variables in the environment of this command, and of the server that recovers"
        )
    if config.safekeepers is None:
        return
    given = parse_conninfo(config.safekeepers, "the safekeepers'")
    named = [name for name in _CONNINFO_CREDENTIALS if given.get(name)]
    if named:
        raise ConfigurationError(
            f"--safekeepers has credentials ({', '.join(named)}), which restore does not write into the data folder: "
            "use a password file (passfile=...) that the user of the server may read"
        )


def _is_credential(option: str, value: str) -> bool:
    name = option.lower()
    if _USER_IN_URL.search(value) or (name == "proxy_url" and "@" in value):
        return True
    return bool(_CREDENTIAL_OPTIONS.search(name)) and not name.endswith(("_file", "_kms_key_id"))


def owner_of(target: Path, name: str | None) -> FolderOwner | None:
    """Return the new owner of the data folder, None for this process's user.

    Args:
        name: a user; by default the owner of the folder above `target`, if this process is root.

    Raises:
        ConfigurationError: the user does not exist, or it is root, as which PostgreSQL does not run.
    """
    if os.geteuid() != 0:
        if name is not None and name != pwd.getpwuid(os.geteuid()).pw_name:
            raise ConfigurationError("--owner: only root can give files to another user")
        return None
    if name is not None:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise ConfigurationError(f"--owner: the user {name!r} does not exist") from None
        owner = FolderOwner(entry.pw_uid, entry.pw_gid)
    else:
        status = target.parent.stat()
        owner = FolderOwner(status.st_uid, status.st_gid)
    if owner.uid == 0:
        raise ConfigurationError(
            f"{target} would belong to root, as which PostgreSQL does not run: set its user with --owner, e.g. postgres"
        )
    return owner


def write_data_folder(
    backup: BaseBackup,
    target: Path,
    config: SourceConfig,
    plan: Plan,
    goal: RecoveryTarget,
    owner: FolderOwner | None,
    progress: Callable[[int], None],
) -> None:
    """Fill `target`, which is empty or does not exist.

    Args:
        progress: called with the number of bytes written.

    Raises:
        ConfigurationError: the backup cannot be read, or the disk is full. All written files are removed.
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
                f"could not write {error.filename or target}: {error.strerror}; the copied files were removed"
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


def _is_wal(entry: BackupEntry) -> bool:
    name = entry.path.name
    is_segment = len(name) == 24 and not name.strip("0123456789ABCDEF")
    return entry.path.parent == PurePosixPath("pg_wal") and (is_segment or name.endswith(".history"))


def _configure(target: Path, config: SourceConfig, goal: RecoveryTarget) -> None:
    """Write the settings: the sources of WAL and the end of recovery."""
    sources = {name: value for name, value in asdict(config).items() if name in SourceConfig.__dataclass_fields__}
    # PostgreSQL reads ahead of its target, so WAL that is missing after it must not stop it; and it does not end
    # before.
    fetching = FetchConfig(**sources, no_partial=False, end_at_hole=not goal.is_end, prefetch=DEFAULT_PREFETCH)
    settings = target / SETTINGS_FILE
    settings.touch(mode=0o600)
    settings.write_text(
        "# Where walproxy wal-fetch gets the WAL of this recovery. Removed when it has ended.\n" + as_toml(fetching)
    )
    with (target / AUTO_CONF).open("a") as file:
        file.write(as_block(recovery_settings(goal)))
    (target / "recovery.signal").touch(mode=0o600)


def recovery_settings(goal: RecoveryTarget) -> dict[str, str]:
    """Return PostgreSQL's settings for this recovery."""
    chosen = {
        "recovery_target_time": format_time(goal.time) if goal.time is not None else None,
        "recovery_target_lsn": format_lsn(goal.lsn) if goal.lsn is not None else None,
        "recovery_target_name": goal.name,
    }
    # PostgreSQL refuses two targets, and the backup may contain one. It reads them in this order and refuses a second
    # one after a target, even an empty one: so the empty ones are first.
    settings = {"restore_command": restore_command(), "recovery_end_command": recovery_end_command()}
    settings |= {name: "" for name in TARGETS if chosen.get(name) is None}
    settings |= {name: value for name, value in chosen.items() if value is not None}
    settings["recovery_target_timeline"] = goal.timeline
    if not goal.is_end:
        settings["recovery_target_action"] = goal.action
    return settings


def restore_command() -> str:
    """Return the command that fetches WAL; PostgreSQL runs it in its data folder.

    A program that cannot start, e.g. after an upgrade of Python, ends with a code that would end the recovery early, or
    with one that would stop a promotion in the middle. The shell around it handles both.
    """
    script = _quoted(str(Path(__file__).with_name("walproxy-wal-fetch")))
    fetch = f"/bin/sh {script} {_walproxy()} wal-fetch %f %p --config {SETTINGS_FILE} --missing-code {MISSING_CODE}"
    return (
        f"{fetch} || {{ [ $? -eq {MISSING_CODE} ] || [ ! -e recovery.signal ] || exit {EXIT_STOPS_RECOVERY}; "
        f"exit {EXIT_MISSING}; }}"
    )


def recovery_end_command() -> str:
    """Return the command that removes the settings of this recovery; PostgreSQL runs it in its data folder.

    It always succeeds: PostgreSQL ends the server, in the middle of a promotion, if the command cannot be found.
    """
    problem = f"recovery-end failed: the settings of walproxy restore stay in {AUTO_CONF}"
    return f'{_walproxy()} {END_COMMAND} {SETTINGS_FILE} || echo "{problem}" >&2'


def _walproxy() -> str:
    """Return the beginning of a command that runs this program, as PostgreSQL passes it to a shell."""
    program = Path(sys.argv[0]).absolute()
    if program.name == "walproxy" and os.access(program, os.X_OK):
        words = [str(program)]
    else:
        words = [sys.executable, "-P", "-m", "walproxy"]
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    return shlex.quote(word).replace("%", "%%")


def warn_of_unreachable(owner: FolderOwner, config: SourceConfig) -> list[str]:
    """Return a line for each program and folder of the recovery that the server's user cannot use."""
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


def _give(target: Path, owner: FolderOwner) -> None:
    os.chown(target, *owner)
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            os.chown(Path(folder, name), *owner, follow_symlinks=False)


def _empty(target: Path, existed: bool) -> None:
    """Remove all written files."""
    if not existed:
        shutil.rmtree(target, ignore_errors=True)
        return
    for path in target.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
