"""What pg_waldump says about WAL, as columns.

Its text is all that it gives, so this reads text: one line a record, with the layout that has been the same since
PostgreSQL 13, and the table of `--stats=record`.
"""

import bisect
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.postgres.binaries import ServerBinaries

FORKS: Final = {"": 0, "main": 0, "fsm": 1, "vm": 2, "init": 3}
OUTCOMES: Final = {"COMMIT", "ABORT", "PREPARE", "COMMIT_PREPARED", "ABORT_PREPARED"}

_RECORD = re.compile(
    rb"rmgr: (\S+) +len \(rec/tot\): +(\d+)/ *(\d+), tx: +(\d+), lsn: ([0-9A-F]+)/([0-9A-F]+), "
    rb"prev ([0-9A-F]+)/([0-9A-F]+), desc: (UNKNOWN \(\S+\)|\S+)"
)
_BLOCK = re.compile(
    rb", blkref #(\d+): rel (\d+)/(\d+)/(\d+)(?: fork (\w+))? blk (\d+)(?: (FPW for WAL verification|FPW))?"
)
_TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}) UTC"
_TRANSACTION = re.compile(rf"desc: (\w+) (?:gid (?P<gid>.*?): |(?P<xid>\d+): )?{_TIME}(?P<rest>.*)", re.DOTALL)
_SUBXIDS = re.compile(r"; subxacts: ([\d ]+)")
_ORIGIN = re.compile(rf"; origin: node (\d+), lsn ([0-9A-F/]+), at {_TIME}")
_STATS = re.compile(r"(\S+)/(\S+) +(\d+) \( *[\d.]+\) +(\d+) \( *[\d.]+\) +(\d+) \( *[\d.]+\) +(\d+) \( *[\d.]+\)")


class DumpedTransaction(NamedTuple):
    """What the line of a record of rmgr Transaction says that ends a transaction."""

    lsn: Lsn
    xid: int
    outcome: str
    time: datetime
    subxids: list[int]
    gid: str | None  # said of PREPARE alone
    origin: tuple[int, Lsn, datetime] | None
    remote_apply: bool


@dataclass
class Dump:
    """The records of a range of WAL.

    `blocks` has (number of the record, id, tablespace, database, relation, fork, block, image). An image is 0 for none,
    1 for one that redo restores, 2 for one that it only compares.
    """

    lsn: list[Lsn] = field(default_factory=list)
    previous_lsn: list[Lsn] = field(default_factory=list)
    rmgr: list[str] = field(default_factory=list)
    operation: list[str] = field(default_factory=list)
    length: list[int] = field(default_factory=list)  # without images
    total_length: list[int] = field(default_factory=list)
    xid: list[int] = field(default_factory=list)
    blocks: list[tuple[int, int, int, int, int, int, int, int]] = field(default_factory=list)
    transactions: list[DumpedTransaction] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lsn)

    def before(self, end_lsn: Lsn) -> "Dump":
        """Return the records that begin before `end_lsn`."""
        count = bisect.bisect_left(self.lsn, end_lsn)
        return Dump(
            *(column[:count] for column in self._columns()),  # type: ignore[call-arg]
            [block for block in self.blocks if block[0] < count],
            [transaction for transaction in self.transactions if transaction.lsn < end_lsn],
        )

    def followed_by(self, other: "Dump") -> "Dump":
        """Return these records and then those of another one."""
        moved = [(number + len(self), *block) for number, *block in other.blocks]
        return Dump(
            *(ours + theirs for ours, theirs in zip(self._columns(), other._columns(), strict=True)),  # type: ignore[call-arg]
            self.blocks + moved,
            self.transactions + other.transactions,
        )

    def _columns(self) -> tuple[list[Any], ...]:
        return (
            self.lsn,
            self.previous_lsn,
            self.rmgr,
            self.operation,
            self.length,
            self.total_length,
            self.xid,
        )


def dump(binaries: ServerBinaries, folder: Path, tli: int, begin_lsn: Lsn, end_lsn: Lsn | None = None) -> Dump:
    """Return the records that begin in [begin_lsn, end_lsn), or from begin_lsn on."""
    found = Dump()
    for line in lines(binaries, folder, tli, begin_lsn, end_lsn):
        match = _RECORD.match(line)
        if match is None:
            continue
        rmgr, length, total_length, xid, high, low, previous_high, previous_low, operation = match.groups()
        number = len(found.lsn)
        found.lsn.append(int(high, 16) << 32 | int(low, 16))
        found.previous_lsn.append(int(previous_high, 16) << 32 | int(previous_low, 16))
        found.rmgr.append(rmgr.decode())
        found.operation.append(operation.decode())
        found.length.append(int(length))
        found.total_length.append(int(total_length))
        found.xid.append(int(xid))
        if rmgr == b"Transaction":
            if operation.decode() in OUTCOMES:
                found.transactions.append(_transaction(found.lsn[-1], found.xid[-1], line.decode()))
        elif rmgr != b"LogicalMessage":
            for block_id, tablespace, database, relation, fork, block, image in _BLOCK.findall(line):
                found.blocks.append(
                    (
                        number,
                        int(block_id),
                        int(tablespace),
                        int(database),
                        int(relation),
                        FORKS[fork.decode()],
                        int(block),
                        0 if not image else 1 if image == b"FPW" else 2,
                    )
                )
    return found


def lines(
    binaries: ServerBinaries, folder: Path, tli: int, begin_lsn: Lsn, end_lsn: Lsn | None, *options: str
) -> Iterator[bytes]:
    """Yield what pg_waldump prints; that it complains of the end of the WAL is fine."""
    command: list[str | Path] = [binaries.path("pg_waldump"), "-p", folder, "-t", str(tli), "-s", format_lsn(begin_lsn)]
    if end_lsn is not None:
        command += ["-e", format_lsn(end_lsn)]
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        yield from process.stdout
        complaint = process.stderr.read().decode()
    ended = re.search(r"invalid record length|out-of-sequence|invalid magic number 0000|unexpected pageaddr", complaint)
    assert process.returncode == 0 or ended, complaint


def stats(
    binaries: ServerBinaries, folder: Path, tli: int, begin_lsn: Lsn, end_lsn: Lsn | None = None
) -> dict[tuple[str, str], tuple[int, int, int, int]]:
    """Return the table of --stats=record: (rmgr, operation) -> (records, bytes without images, of images, of both)."""
    text = b"".join(lines(binaries, folder, tli, begin_lsn, end_lsn, "--stats=record")).decode()
    rows = [match.groups() for match in map(_STATS.match, text.splitlines()) if match is not None]
    return {(rmgr, operation): (int(n), int(r), int(f), int(c)) for rmgr, operation, n, r, f, c in rows}


def _transaction(lsn: Lsn, xid: int, line: str) -> DumpedTransaction:
    match = _TRANSACTION.search(line)
    assert match is not None, line
    rest = match["rest"]
    subxids, origin = _SUBXIDS.search(rest), _ORIGIN.search(rest)
    return DumpedTransaction(
        lsn,
        int(match["xid"]) if match["xid"] else xid,
        match[1].lower(),
        _time(match[4]),
        [int(word) for word in subxids[1].split()] if subxids else [],
        match["gid"],
        (int(origin[1]), parse_lsn(origin[2]), _time(origin[3])) if origin else None,
        "; apply_feedback" in rest,
    )


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
