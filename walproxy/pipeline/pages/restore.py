"""One page as it was at an LSN, restored by a throw-away PostgreSQL and checked against the WAL.

    which record is the last one that is complete at that LSN     the WAL itself        history.LogReader
    can recovery get there                                        walproxy restore's    recovery.plan
    recover up to and with that record, write all to the files    PostgreSQL            private_server
    read the page                                                 its file              relation
    what the page's header must say then                          the WAL               history.history_of

The page is byte for byte what redo has made. PostgreSQL puts in the checksum when it writes a page, if the cluster has
checksums; nothing else is added. On the primary the same page may have hints besides (walproxy/pipeline/pages/page.py).
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import PlannedPiece, plan_pieces
from walproxy.pipeline.input.times import end_of_time
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.jobs.catalog import RelationId
from walproxy.pipeline.pages.history import LogReader, PageHistory, RecordPosition, history_of
from walproxy.pipeline.pages.page import PageHeader, header_of
from walproxy.pipeline.pages.private_server import PrivatePostgres, sql_text
from walproxy.pipeline.pages.relation import PageId, RelationName, read_page
from walproxy.pipeline.pages.row import ShownRow, read_row
from walproxy.postgres.binaries import ServerBinaries, find_servers, server_user
from walproxy.recovery.base_backup import BackupFacts, BaseBackup
from walproxy.recovery.config import SourceConfig, open_sources
from walproxy.recovery.fetcher import Fetcher
from walproxy.recovery.plan import LATEST, Plan, RecoveryTarget, choose_path, make_plan
from walproxy.recovery.restore import FolderOwner, recovery_settings, write_data_folder
from walproxy.wal_sources.source import Extent, LogPath

_REMOVAL_TIMEOUT_S: Final = 10.0
_RELATION_QUERY: Final = """
    SELECT pg_catalog.pg_relation_filenode(c.oid)::text AS relation,
           CASE WHEN c.relisshared THEN '0' ELSE d.oid::text END AS database,
           coalesce(nullif(c.reltablespace, 0), d.dattablespace)::text AS tablespace
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
    WHERE n.nspname = {schema} AND c.relname = {name}
"""


class PageMismatch(WalproxyError):
    """The restored page is not the one that the WAL's records make."""


class PageRequest(NamedTuple):
    """The page to restore.

    Attributes:
        at: the LSN, or a time: then the last commit at or before it.
        sources: where the WAL is; an archive at least.
        tables: a folder with the table `page_versions`, None to read the WAL alone.
        timeline: as `walproxy restore --target-timeline`.
        line: the line pointer of a row that is wanted, too; None for none.
    """

    relation: RelationName | RelationId
    fork: int
    block: int
    at: Lsn | datetime
    backup: Path
    sources: SourceConfig
    tables: Path | None = None
    timeline: str = LATEST
    line: int | None = None


class RestoredPage(NamedTuple):
    """A page.

    Attributes:
        content: its 8 KiB.
        at_lsn: the requested LSN.
        last_record: the last one of the whole log that is complete there.
        history: which records made the page.
        replayed_bytes: how much WAL PostgreSQL went through.
        row: the row that was wanted.
    """

    page: PageId
    content: bytes
    header: PageHeader
    at_lsn: Lsn
    last_record: RecordPosition
    history: PageHistory
    major: int
    tli: int
    replayed_bytes: int
    row: ShownRow | None = None


Progress = Callable[[str], None]
"""Called with the name of each step as it begins."""


def restore_page(request: PageRequest, progress: Progress = lambda step: None) -> RestoredPage:
    """Restore a page.

    Raises:
        ConfigurationError: something of the request does not exist: the relation, the block, the backup, the WAL.
        PageMismatch: the WAL contradicts the page.
        ArchiveRefused, SourceUnavailable, SourceCorrupt, WalMissing: the WAL cannot be read.
        RecoveryFailed: PostgreSQL could not recover.
    """
    backup = BaseBackup(request.backup)
    binaries = _binaries(backup)
    progress("looking at the archive")
    fetcher = Fetcher(
        open_sources(request.sources), system_id=backup.facts.system_id, timeout_s=request.sources.timeout
    )
    path = choose_path(fetcher, backup.facts, request.timeline)
    wal_input = _open_wal(request.sources)
    at_lsn = _lsn_of(request.at, wal_input, path)
    log = LogReader(wal_input, path, _pieces(wal_input, path, backup.facts, at_lsn))
    last_record = log.last_record(at_lsn)
    if last_record is None or last_record.lsn < max(backup.facts.end_lsn, backup.facts.checkpoint_lsn):
        raise _too_early(request, backup.facts, at_lsn)
    own_wal = {entry.path.name: entry.size for entry in backup.wal_entries()}
    goal = RecoveryTarget(lsn=last_record.lsn, timeline=request.timeline)
    plan = make_plan(fetcher, backup.facts, own_wal, goal)
    folder = Path(tempfile.mkdtemp(prefix="walproxy-page-"))
    try:
        folder.chmod(0o711)
        with PrivatePostgres(binaries, folder / "data") as server:
            page = _recover(server, backup, plan, goal, request, progress)
            content = read_page(server.data_directory, page)
            row = read_row(server, request.relation, page, request.line) if request.line is not None else None
    finally:
        _remove(folder)
    progress("comparing the page with the WAL")
    history = history_of(log, page, at_lsn, request.tables)
    header = header_of(content)
    _check(history, header, page, at_lsn)
    replayed_bytes = last_record.end_lsn - backup.facts.start_lsn
    return RestoredPage(
        page,
        content,
        header,
        at_lsn,
        last_record,
        history,
        binaries.major,
        path.tli_of(last_record.lsn),
        replayed_bytes,
        row,
    )


def _remove(folder: Path) -> None:
    """Remove the folder; who fetched WAL for the recovery ahead may be removing his part of it at the same time."""
    deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries(backup: BaseBackup) -> ServerBinaries:
    major = backup.facts.major
    servers = find_servers()
    if major not in servers:
        there = ", ".join(str(each) for each in sorted(servers)) or "none"
        raise ConfigurationError(
            f"{backup.path} is of PostgreSQL {major}, which is not installed here (there: {there}): install it"
        )
    return servers[major]


def _open_wal(sources: SourceConfig) -> WalInput:
    if sources.archive is None:
        raise ConfigurationError("the records of a page are read from the archive: name it with --archive")
    return open_input(sources.archive, sources.archive_options)


def _lsn_of(at: Lsn | datetime, wal_input: WalInput, path: LogPath) -> Lsn:
    if not isinstance(at, datetime):
        return at
    extents = wal_input.extents(path)
    if not extents:
        raise ConfigurationError(f"{wal_input.name} has no WAL of timeline {path.tli}")
    return end_of_time(wal_input, path, extents, at)


def _pieces(wal_input: WalInput, path: LogPath, backup: BackupFacts, at_lsn: Lsn) -> list[PlannedPiece]:
    """Return the WAL from the backup on that is there without a hole around `at_lsn`.

    WAL before that, which only the backup has, is not needed to find the records that make the page.
    """
    begin_lsn = segment_start(backup.start_lsn, path.segment_size)
    extents = wal_input.extents(path)
    reached = next((extent for extent in extents if extent.begin_lsn <= at_lsn <= extent.end_lsn), None)
    if reached is None:
        if at_lsn < begin_lsn:
            raise ConfigurationError(f"--at {format_lsn(at_lsn)} is before the backup's begin, {format_lsn(begin_lsn)}")
        raise ConfigurationError(f"{wal_input.name} does not reach --at {format_lsn(at_lsn)}: {_existing(extents)}")
    if reached.begin_lsn > begin_lsn and reached.begin_lsn > backup.end_lsn:
        raise ConfigurationError(
            f"{path.name_of(reached.begin_lsn - 1)} is missing in {wal_input.name}: the backup of "
            f"{format_lsn(backup.start_lsn)} cannot be recovered up to {format_lsn(at_lsn)}; find that file, or name a "
            "later backup"
        )
    return plan_pieces(path, [reached], max(begin_lsn, reached.begin_lsn), reached.end_lsn)


def _existing(extents: list[Extent]) -> str:
    ranges = [f"{format_lsn(extent.begin_lsn)} to {format_lsn(extent.end_lsn)}" for extent in extents[-3:]]
    return f"it has WAL from {', '.join(ranges)}" if ranges else "it has no WAL"


def _too_early(request: PageRequest, backup: BackupFacts, at_lsn: Lsn) -> ConfigurationError:
    end_lsn = backup.end_lsn or backup.checkpoint_lsn
    return ConfigurationError(
        f"{request.backup} is newer than --at {format_lsn(at_lsn)}: it can be recovered only to positions after "
        f"{format_lsn(end_lsn)}; name an earlier backup"
    )


def _recover(
    server: PrivatePostgres,
    backup: BaseBackup,
    plan: Plan,
    goal: RecoveryTarget,
    request: PageRequest,
    progress: Progress,
) -> PageId:
    """Recover, and return the page's identity."""
    user = server_user()
    owner = FolderOwner(user.uid, user.gid) if user is not None else None
    progress("copying the backup")
    write_data_folder(backup, server.data_directory, request.sources, plan, goal, owner, lambda size: None)
    server.prepare({**recovery_settings(goal), "recovery_target_inclusive": "on"})
    progress("recovering")
    server.recover()
    relation = request.relation
    if isinstance(relation, RelationName):
        relation = _relation_id(server, relation)
    return PageId(relation, request.fork, request.block)


def _relation_id(server: PrivatePostgres, relation: RelationName) -> RelationId:
    query = _RELATION_QUERY.format(schema=sql_text(relation.schema), name=sql_text(relation.name))
    found = server.ask_once(relation.database, query)
    if found is None:
        raise ConfigurationError(f"there was no relation {relation} at that LSN: correct --relation")
    if found.get("relation") is None:
        raise ConfigurationError(f"{relation} has no pages: it is a view or a partitioned table")
    return RelationId(*(int(found[name] or 0) for name in ("tablespace", "database", "relation")))


def _check(history: PageHistory, header: PageHeader, page: PageId, at_lsn: Lsn) -> None:
    """Compare the page's header with the WAL.

    Raises:
        PageMismatch: they contradict each other.
    """
    if header.lsn > at_lsn or not history.allows(header.lsn):
        expected = " or ".join(format_lsn(lsn) for lsn in history.possible_lsns) or "no record after the backup's begin"
        raise PageMismatch(
            f"the restored block {page.block} of {page.relation} was last changed at {format_lsn(header.lsn)} by its "
            f"header, and at {expected} by the WAL up to {format_lsn(at_lsn)}: archive and backup contradict each "
            "other; run walproxy archive verify"
        )
