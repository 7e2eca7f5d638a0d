"""The discarded report: what the tail of an old primary's WAL has that reached no quorum. Blocking.

The agent makes one before it overwrites the old primary, and keeps it as a file. `walproxy discarded` makes one by
hand.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.waldecode.format import PAGE_SIZE, page_header_size
from safekeeper.waldecode.record_body import RelationLocator
from safekeeper.waldecode.records import Record
from walproxy.failover.discarded import DiscardedTransaction, Kind, LookBack, Tail, TailReader, is_catalog
from walproxy.failover.tail_wal import TailScan, TailWal
from walproxy.wal_sources.source import WalMissing

FORMAT_VERSION = 1
LOOK_BACK_BYTES = 256 << 20
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class DiscardedReport:
    """The content of a report.

    Attributes:
        folder: of the WAL.
        system_id, major: of the server that wrote it.
        tli: the timeline at its end.
        from_lsn: the fork: what begins here is discarded.
        end_lsn: the end of the valid WAL.
        read_from_lsn: WAL was read from here on.
        tail: the transactions.
        notes: what is not complete, one line each.
        names: of relations, `database.schema.name`, as far as they are known.
    """

    folder: Path
    system_id: int
    major: int
    tli: int
    from_lsn: Lsn
    end_lsn: Lsn
    read_from_lsn: Lsn
    tail: Tail
    notes: tuple[str, ...] = ()
    names: Mapping[RelationLocator, str] = field(default_factory=dict)

    @property
    def transactions(self) -> int:
        """The number of transactions that are lost, or whose end is."""
        return sum(count for kind, count in self.tail.counts.items() if kind is not Kind.ABORT)

    @property
    def commits(self) -> int:
        """The number of those that were committed."""
        return self.tail.counts[Kind.COMMIT] + self.tail.counts[Kind.COMMIT_PREPARED]

    def content(self) -> dict[str, Any]:
        """Return it as a JSON object. LSNs are text, times are of ISO 8601."""
        tail = self.tail
        return {
            "version": FORMAT_VERSION,
            "folder": str(self.folder),
            "system_id": str(self.system_id),
            "postgres": self.major,
            "timeline": self.tli,
            "from_lsn": format_lsn(self.from_lsn),
            "end_lsn": format_lsn(self.end_lsn),
            "bytes": self.end_lsn - self.from_lsn,
            "read_from_lsn": format_lsn(self.read_from_lsn),
            "transaction_count": self.transactions,
            "commit_count": self.commits,
            "counts": {kind.value: count for kind, count in tail.counts.items()},
            "open_count": tail.open,
            "message_count": tail.messages,
            "transactions": [self._transaction(each) for each in tail.transactions],
            "aborted": [self._transaction(each) for each in tail.aborted],
            "notes": list(self.notes),
        }

    def json(self) -> bytes:
        """Return `content` as text."""
        return msgspec.json.format(msgspec.json.encode(self.content()), indent=1)

    def _transaction(self, each: DiscardedTransaction) -> dict[str, Any]:
        time = commit_time(each.time_us)
        return {
            "xid": each.xid,
            "kind": each.kind.value,
            "gid": each.gid or None,
            "time": time.isoformat() if time is not None else None,
            "lsn": format_lsn(each.lsn),
            "end_lsn": format_lsn(each.end_lsn),
            "first_lsn": format_lsn(each.first_lsn),
            "prepare_lsn": format_lsn(each.prepare_lsn) if each.prepare_lsn else None,
            "subtransactions": each.subtransactions,
            "changes_catalogs": each.changes_catalogs,
            "messages": each.messages,
            "wal_bytes": each.wal_bytes,
            "complete": each.is_complete,
            "relations": [self._relation(relation) | rows._asdict() for relation, rows in each.rows.items()],
            "sequences": [self._relation(relation) for relation in each.sequences],
            "dropped": [self._relation(relation) for relation in each.dropped],
        }

    def _relation(self, relation: RelationLocator) -> dict[str, Any]:
        return {
            **relation._asdict(),
            "name": self.names.get(relation),
            "catalog": is_catalog(relation),
            "created": relation in self.tail.created,
        }


def commit_time(time_us: int) -> datetime | None:
    """Return the time that is `time_us` microseconds after 2000; None if no calendar has it."""
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return None


def discarded_report(
    wal_folder: Path, from_lsn: Lsn, tli: int | None = None, *, look_back_bytes: int = LOOK_BACK_BYTES
) -> DiscardedReport:
    """Read the tail of an old primary's WAL.

    Args:
        wal_folder: its pg_wal, or a folder of segments.
        from_lsn: the fork, as the new timeline's history file has it: the end of a record.
        tli: of the old primary, at the end of its WAL; None: see `TailWal`.
        look_back_bytes: how much WAL before the fork is read at most, for transactions that began before it.

    Raises:
        ConfigurationError: the folder has no WAL, the timeline is not clear, or no record ends at the fork.
        WalMissing: the folder lacks the segment with the fork, or its WAL ends before it.
        SourceUnavailable, SourceCorrupt: a file cannot be read, or is another server's.
        WalFormatError: a record with the right checksum has an unknown content.
    """
    wal = TailWal(wal_folder, from_lsn, tli)
    reader, scan, begin_lsn = _read_tail(wal, from_lsn)
    notes = []
    later = wal.later_segment(scan.end_lsn)
    if later is not None:
        notes.append(
            f"no valid record follows {format_lsn(scan.end_lsn)} ({scan.end_reason}), but {later} was written: "
            "transactions after it are not listed"
        )
    look_back = reader.finish()
    if look_back is not None:
        begin_lsn = _look_back(wal, look_back, begin_lsn, look_back_bytes)
    tail = reader.tail()
    incomplete = sum(not each.is_complete for each in tail.transactions)
    if incomplete:
        notes.append(
            f"transactions: {incomplete} may have begun before {format_lsn(begin_lsn)}, where the read WAL begins: "
            "their rows and relations may be incomplete"
        )
    unlisted = sum(tail.counts.values()) - len(tail.transactions) - len(tail.aborted)
    if unlisted:
        notes.append(f"transactions: {unlisted} more are counted and not listed")
    return DiscardedReport(
        *(wal_folder, wal.system_id, scan.major, wal.path.tli, from_lsn),
        *(max(scan.end_lsn, from_lsn), begin_lsn, tail, tuple(notes)),
    )


def _read_tail(wal: TailWal, from_lsn: Lsn) -> tuple[TailReader, TailScan, Lsn]:
    """Return the reader of the tail, the scan that has ended, and where it began."""
    begin_lsn = wal.block_start(from_lsn)
    while True:
        if begin_lsn is None:
            # A fork on a segment's border needs no byte after it.
            begin_lsn = wal.block_start(from_lsn - 1) if from_lsn else None
        if begin_lsn is None:
            raise WalMissing(
                f"{wal.folder} has no {wal.segment_name(from_lsn)}, the segment that contains {format_lsn(from_lsn)}: "
                "check the LSN and the folder"
            )
        scan = TailScan(wal, begin_lsn)
        reader = _read(scan, from_lsn)
        if reader is not None:
            break
        earlier_lsn = wal.block_start(begin_lsn - 1) if begin_lsn else None
        if earlier_lsn is None:
            raise WalMissing(
                f"{wal.folder} has no valid record at {format_lsn(from_lsn)}: {scan.end_reason or 'one begins before'}"
            )
        begin_lsn = earlier_lsn
    end_lsn = scan.end_lsn
    header_bytes = page_header_size(end_lsn, wal.segment_size) if end_lsn % PAGE_SIZE == 0 else 0
    if end_lsn + header_bytes < from_lsn:
        raise WalMissing(
            f"the WAL of timeline {wal.path.tli} in {wal.folder} ends at {format_lsn(end_lsn)}, before "
            f"{format_lsn(from_lsn)}: {scan.end_reason}"
        )
    return reader, scan, begin_lsn


def _read(scan: TailScan, from_lsn: Lsn) -> TailReader | None:
    """Read a scan to its end; return None if it must begin earlier: at the fork, no record ends that it can see."""
    reader: TailReader | None = None
    for record in scan.records():
        if reader is None:
            if scan.skipped_until > from_lsn:
                return None
            reader = TailReader(from_lsn, scan.major)
        _check_fork(record, from_lsn)
        reader.add(record)
    return reader


def _check_fork(record: Record, from_lsn: Lsn) -> None:
    """Check that the fork is not inside a record.

    It may be where a page begins: a new primary lacks the rest of a record there, and overwrites it.

    Raises:
        ConfigurationError: it is.
    """
    if record.start_lsn < from_lsn < record.end_lsn and from_lsn % PAGE_SIZE:
        raise ConfigurationError(
            f"{format_lsn(from_lsn)} is inside the record from {format_lsn(record.start_lsn)} to "
            f"{format_lsn(record.end_lsn)}: give the LSN at which the old timeline was left, which the history file of "
            "the new one contains"
        )


def _look_back(wal: TailWal, look_back: LookBack, end_lsn: Lsn, bytes_max: int) -> Lsn:
    """Read earlier WAL, as far as it is there and needed; return from where on WAL was read."""
    begin_lsn = end_lsn
    while not look_back.is_done and begin_lsn and end_lsn - begin_lsn < bytes_max:
        earlier_lsn = wal.block_start(begin_lsn - 1)
        if earlier_lsn is None:
            break
        scan, found = TailScan(wal, earlier_lsn), []
        for record in scan.records():
            if record.start_lsn >= begin_lsn:
                break
            found.append(record)
        else:
            if scan.end_lsn < begin_lsn:
                break  # It is damaged: what precedes it is not connected.
        look_back.add(found)
        begin_lsn = earlier_lsn
    return begin_lsn


def write_report(path: Path, report: DiscardedReport) -> None:
    """Write a report as JSON: all of it or nothing, and durably. The folder exists. Raises OSError."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(report.json() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
