"""What a job knows beside its tables: whose changes they follow, and how far all of them are.

FOLDER/_walproxy_apply/job.json   this, replaced whole
FOLDER/_walproxy_apply/lock       held while a job runs
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from safekeeper.errors import ConfigurationError, StorageFailed
from safekeeper.lsn import Lsn
from walproxy.pipeline.tables.disk import Disk, locked, replace_durably, storage_errors, sync_folder

_FOLDER: Final = "_walproxy_apply"
_JOB_FILE: Final = "job.json"
_LOCK_FILE: Final = "lock"
_VERSION: Final = 1
_LOCK_TIMEOUT_S: Final = 2.0


class KnownTable(msgspec.Struct, frozen=True):
    """A source table as it was when it was copied, or when columns were added last.

    Attributes:
        oid: of pg_class: another one is another table.
        file_number: of its file, as pg_class.relfilenode says: another one after its rows were written anew.
        key: the columns that tell rows apart; none if rows are only added.
        columns: their numbers, as pg_attribute.attnum says.
        as_text: those that are read as text whatever their type.
    """

    oid: int
    file_number: int
    key: list[str]
    columns: dict[str, int]
    as_text: list[str] = []


class Job(msgspec.Struct, frozen=True):
    """What the file holds.

    Attributes:
        position_lsn: every table has what was committed below it.
        tables: by `schema.name` as folders are named; one that is not here is not, or not wholly, copied.
    """

    system_id: int
    database: str
    slot: str
    publications: list[str]
    format: str
    position_lsn: Lsn
    tables: dict[str, KnownTable]
    version: int = _VERSION


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
    if job.version != _VERSION:
        raise ConfigurationError(f"{path} is of version {job.version}, this program reads version {_VERSION}")
    return job


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
            raise ConfigurationError(f"another job writes to {folder}: end it, or name another folder") from None
        yield
