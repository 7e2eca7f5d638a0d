"""Keep a job's state beside its tables: whose changes they follow, and how far all of them are.

LOCATION/_walproxy_apply/job.json   this, replaced whole
LOCATION/_walproxy_apply/lock       held while a job runs

An object store has no locks. There the lock is a file of this machine, and reports a second job of the same user at the
start. Two jobs on two machines are told apart by job.json, which is replaced by compare-and-set: each job writes itself
as the owner before it touches a table, and another one that was the owner can no longer write the file.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from safekeeper.base.errors import ConfigurationError, StorageFailed
from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint
from walproxy.pipeline.choices import NEW_ARRAYS, ArrayColumns
from walproxy.pipeline.lake.disk import cache_folder, locked, storage_errors, sync_folder
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.names import APPLY_JOB_FILE
from walproxy.pipeline.lake.state import StateObject

OWN_FOLDER: Final = APPLY_JOB_FILE.partition("/")[0]
_LOCK_FILE: Final = "lock"
_VERSION: Final = 4
_LOCK_TIMEOUT_S: Final = 2.0


class KnownTable(msgspec.Struct, frozen=True):
    """A source table as it was when it was copied, or when a change of its definition was followed last.

    Attributes:
        key: the columns that identify rows; none if rows are only added.
        fingerprint: what of the source table must not change unnoticed.
        as_text: columns that are read as text, as the options demand.
        bad_text: further ones, since they had values that their type does not hold.
        bad_as_null: values that their type does not hold were made null, if there were any.
        dropped: columns that the source has no longer, which keep their values here.
        is_full: it has no key, and a full replica identity: rows are identified by all of their values.
        lists: its arrays are lists, but for columns that are text.
    """

    key: list[str]
    fingerprint: Fingerprint
    as_text: list[str] = []
    bad_text: list[str] = []
    bad_as_null: bool = False
    dropped: list[str] = []
    is_full: bool = False
    lists: bool = False


class Copying(msgspec.Struct, frozen=True):
    """A copy that is being made. If the table has its position, it was committed.

    Attributes:
        known: the source table, as of the copy.
        lsn: the position.
    """

    known: KnownTable
    lsn: Lsn


class Quarantined(msgspec.Struct, frozen=True):
    """Why a table is not followed at present. When that is over, it is copied again.

    Attributes:
        since: seconds of Unix time.
    """

    reason: str
    since: float


class _Version(msgspec.Struct, frozen=True):
    version: int


class Job(msgspec.Struct, frozen=True):
    """The content of the file.

    Attributes:
        position_lsn: every table has what was committed below it.
        tables: by `schema.name` as folders are named; one that is not here is not, or not wholly, copied.
        quarantined: tables that are not followed at present, and why.
        copying: by name: copies that may have been committed, but are not in `tables` yet.
        mode: what the tables keep of changes.
        arrays: what arrays are in the tables.
        to_copy: by name: why tables are to be copied that were copied before.
        starts_over: the slot is to be made again, and all tables are to be copied again.
        owner: differs between jobs that run, also between those of one process.
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
    owner: str = ""
    mode: str = "mirror"
    copying: dict[str, Copying] = {}
    arrays: ArrayColumns = NEW_ARRAYS
    to_copy: dict[str, str] = {}


def job_state(tables: LakeLocation) -> StateObject:
    """Return the file of the job whose tables are in a location."""
    return StateObject(tables, APPLY_JOB_FILE)


def read_job(state: StateObject) -> Job | None:
    """Return the content of the file, None if it does not exist.

    Raises:
        ConfigurationError: it is of another version, or damaged.
        StorageFailed, ArchiveError: it cannot be read.
    """
    content = state.read()
    if content is None:
        return None
    try:
        version = msgspec.json.decode(content, type=_Version).version
        if version != _VERSION:
            raise ConfigurationError(f"{state.name} is of version {version}, this program reads version {_VERSION}")
        return msgspec.json.decode(content, type=Job)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{state.name} is damaged: {error}") from None


def write_job(state: StateObject, job: Job) -> None:
    """Replace the job that was read or written last, durably.

    Raises:
        TableMoved: another job has replaced it.
        StorageFailed, StorageFull, ArchiveError.
    """
    state.write(msgspec.json.format(msgspec.json.encode(job), indent=2) + b"\n")


@contextlib.contextmanager
def only_job(tables: LakeLocation) -> Iterator[None]:
    """Be the only job of this machine that writes to a location; a folder is created if it is missing.

    Raises:
        ConfigurationError: another job runs.
        StorageFailed, StorageFull.
    """
    folder = tables.folder
    if folder is None:
        own = cache_folder() / f"apply-{hashlib.sha256(tables.url.encode()).hexdigest()[:16]}"
    else:
        own = folder / OWN_FOLDER
    with contextlib.ExitStack() as stack:
        with storage_errors(f"make {own}"):
            own.mkdir(parents=True, exist_ok=True)
            if folder is not None:
                for path in (folder, folder.parent):
                    sync_folder(path)
        try:
            stack.enter_context(locked(own / _LOCK_FILE, _LOCK_TIMEOUT_S))
        except StorageFailed:
            raise ConfigurationError(f"another job writes to {tables}: stop it, or name another folder") from None
        yield
