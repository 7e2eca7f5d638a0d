"""Keep a job's state beside its tables: whose changes they follow, and how far all of them are.

FOLDER/_walproxy_apply/job.json   this, replaced whole
FOLDER/_walproxy_apply/lock       held while a job runs
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from safekeeper.base.errors import ConfigurationError, StorageFailed
from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint
from walproxy.pipeline.tables.disk import Disk, locked, replace_durably, storage_errors, sync_folder

_FOLDER: Final = "_walproxy_apply"
_JOB_FILE: Final = "job.json"
_LOCK_FILE: Final = "lock"
_VERSION: Final = 2
_LOCK_TIMEOUT_S: Final = 2.0


class KnownTable(msgspec.Struct, frozen=True):
    """A source table as it was when it was copied, or when a change of its definition was followed last.

    Attributes:
        key: the columns that identify rows; none if rows are only added.
        as_text: columns that are read as text, as the options demand.
        bad_text: further ones, since they had values that their type does not hold.
        bad_as_null: values that their type does not hold were made null, if there were any.
        dropped: columns that the source has no longer, which keep their values here.
        fingerprint: None in a file of version 1: such a table is copied again.
    """

    key: list[str]
    as_text: list[str] = []
    bad_text: list[str] = []
    bad_as_null: bool = False
    dropped: list[str] = []
    fingerprint: Fingerprint | None = None


class Quarantined(msgspec.Struct, frozen=True):
    """Why a table is not followed at present. When that is over, it is copied again.

    Attributes:
        since: seconds of Unix time.
    """

    reason: str
    since: float


class Job(msgspec.Struct, frozen=True):
    """The content of the file.

    Attributes:
        position_lsn: every table has what was committed below it.
        tables: by `schema.name` as folders are named; one that is not here is not, or not wholly, copied.
        quarantined: tables that are not followed at present, and why.
        starts_over: the slot is to be made again, and all tables are to be copied again.
    """

    system_id: int
    database: str
    slot: str
    publications: list[str]
    format: str
    position_lsn: Lsn
    tables: dict[str, KnownTable]
    version: int = _VERSION
    quarantined: dict[str, Quarantined] = {}
    starts_over: bool = False


def read_job(folder: Path) -> Job | None:
    """Return the job of a folder, None if it has none.

    Raises:
        ConfigurationError: it cannot be understood.
        StorageFailed: it cannot be read.
    """
    path = folder / _FOLDER / _JOB_FILE
    with storage_errors(f"read {path}"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        job = msgspec.json.decode(content, type=Job)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is damaged, or a newer version's: {error}") from None
    if job.version > _VERSION:
        raise ConfigurationError(f"{path} is of version {job.version}, this program reads version {_VERSION}")
    return msgspec.structs.replace(job, version=_VERSION)


def write_job(folder: Path, job: Job) -> None:
    """Put a job on disk in place of the one before.

    Raises:
        StorageFailed, StorageFull.
    """
    content = msgspec.json.format(msgspec.json.encode(job), indent=2) + b"\n"
    with storage_errors(f"write {folder / _FOLDER / _JOB_FILE}"):
        replace_durably(Disk(), folder / _FOLDER / _JOB_FILE, content)


@contextlib.contextmanager
def only_job(folder: Path) -> Iterator[None]:
    """Be the only job that writes to a folder; it is made if it is missing.

    Raises:
        ConfigurationError: another job runs.
        StorageFailed, StorageFull.
    """
    own = folder / _FOLDER
    with contextlib.ExitStack() as stack:
        with storage_errors(f"make {own}"):
            own.mkdir(parents=True, exist_ok=True)
            for path in (folder, folder.parent):
                sync_folder(path)
        try:
            stack.enter_context(locked(own / _LOCK_FILE, _LOCK_TIMEOUT_S))
        except StorageFailed:
            raise ConfigurationError(f"another job writes to {folder}: stop it, or name another folder") from None
        yield
