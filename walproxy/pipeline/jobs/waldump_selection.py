"""Which records `walproxy pipeline waldump` shows, and the sums of its `--stats`.

Both work on the arrays of a `Decoded`. All conditions must hold; those on blocks must hold for one and the same block
reference, as in pg_waldump.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import LSN_MAX, Lsn
from safekeeper.waldecode.format import RM_XACT, RM_XLOG, XLOG_SWITCH
from walproxy.pipeline.decoder.opcodes import operation_code, operation_table, rmgr_table

FORKS: Final = ("main", "fsm", "vm", "init")
_BUILT_IN: Final = 22
_CODES: Final = 256 * 16
_SWITCH_BYTES: Final = 24


class RelationPath(NamedTuple):
    """What `pg_relation_filepath` shows: the OIDs of tablespace and database, and the number of the file."""

    tablespace: int
    database: int
    relation: int


@dataclass(frozen=True)
class Selection:
    """The conditions; None stands for any.

    Attributes:
        begin_lsn, end_lsn: records that begin at or after `begin_lsn` and end at or before `end_lsn`.
        rmids: numbers of resource managers.
        full_page: only records with a full-page image.
    """

    begin_lsn: Lsn = 0
    end_lsn: Lsn = LSN_MAX
    rmids: frozenset[int] | None = None
    xid: int | None = None
    relation: RelationPath | None = None
    fork: int | None = None
    block: int | None = None
    full_page: bool = False

    def of(self, decoded: Any) -> Any:
        """Return the indices of the selected records of a `Decoded`, ascending, int64."""
        lsn, end_lsn, rmid = decoded.lsn, decoded.end_lsn, decoded.rmid
        chosen = lsn >= self.begin_lsn
        if decoded.count and self.end_lsn < end_lsn[-1]:
            # The rest of the segment belongs to a switch, but nothing stands in it.
            switches = (rmid == RM_XLOG) & (decoded.info & 0xF0 == XLOG_SWITCH)
            chosen &= np.where(switches, lsn + _SWITCH_BYTES, end_lsn) <= self.end_lsn
        if self.rmids is not None:
            chosen &= np.isin(rmid, sorted(self.rmids))
        if self.xid is not None:
            chosen &= decoded.xid == self.xid
        if self.full_page:
            chosen &= decoded.image_count > 0
        if self.relation is not None or self.fork is not None or self.block is not None:
            chosen &= self._with_block(decoded)
        return np.flatnonzero(chosen)

    def _with_block(self, decoded: Any) -> Any:
        """Return which records have a block reference that meets the conditions on blocks."""
        meets = np.ones(decoded.block_count, np.bool_)
        if self.relation is not None:
            meets &= decoded.relation == self.relation.relation
            meets &= decoded.database == self.relation.database
            meets &= decoded.tablespace == self.relation.tablespace
        if self.fork is not None:
            meets &= decoded.fork == self.fork
        if self.block is not None:
            meets &= decoded.block == self.block
        found = np.zeros(decoded.count, np.bool_)
        found[decoded.block_record[meets]] = True
        return found


def rmid_of(name: str) -> int:
    """Return the number of the resource manager that is called so, in any case.

    Raises:
        ConfigurationError: there is none.
    """
    names = [each.lower() for each in rmgr_table().to_pylist()]
    if name.lower() not in names or name.lower().startswith("unknown"):
        raise ConfigurationError(f"unknown resource manager {name!r}: use one of {', '.join(rmgr_names())}")
    return names.index(name.lower())


def rmgr_names() -> list[str]:
    """Return the names of the resource managers that PostgreSQL has of its own."""
    return [str(name) for name in rmgr_table().to_pylist()[:_BUILT_IN]]


class StatsRow(NamedTuple):
    """One line of `--stats`; sizes in bytes.

    Attributes:
        name: of the resource manager, or its and the operation's.
        record_bytes: without full-page images.
    """

    name: str
    records: int
    record_bytes: int
    image_bytes: int


class Stats:
    """Counts and sizes by operation, over all that was added."""

    def __init__(self) -> None:
        self._major = 0
        self._sums = np.zeros((3, _CODES), np.int64)

    def add(self, decoded: Any, selected: Any) -> None:
        """Add the selected records of a `Decoded`."""
        if len(selected) == 0:
            return
        self._major = decoded.major
        rmid, info = decoded.rmid[selected].astype(np.int64), decoded.info[selected]
        # Of a transaction's record the highest bit is no part of the operation.
        code = operation_code(rmid, np.where(rmid == RM_XACT, info & 0x7F, info))
        images = decoded.image_bytes[selected]
        sizes = decoded.total_length[selected] - images
        self._sums[0] += np.bincount(code, minlength=_CODES)
        # Sums of doubles are exact below 2^53 bytes.
        self._sums[1] += np.bincount(code, sizes, _CODES).astype(np.int64)
        self._sums[2] += np.bincount(code, images, _CODES).astype(np.int64)

    def merge(self, other: "Stats") -> None:
        """Add what was added to another one."""
        self._major = self._major or other._major
        self._sums += other._sums

    def by_operation(self) -> Iterator[StatsRow]:
        """Yield the operations that occurred."""
        if self._major == 0:
            return
        rmgrs, operations = rmgr_table(), operation_table(self._major)
        for code in np.flatnonzero(self._sums[0]).tolist():
            yield self._row(f"{rmgrs[code // 16]}/{operations[code]}", self._sums[:, code])

    def by_rmgr(self) -> Iterator[StatsRow]:
        """Yield all of PostgreSQL's own resource managers, and of others those that occurred."""
        sums = self._sums.reshape(3, 256, 16).sum(axis=2)
        for rmid, name in enumerate(rmgr_table().to_pylist()):
            if rmid < _BUILT_IN or sums[0, rmid]:
                yield self._row(name, sums[:, rmid])

    def total(self) -> StatsRow:
        """Return the sum of all."""
        return self._row("Total", self._sums.sum(axis=1))

    @staticmethod
    def _row(name: str, sums: Any) -> StatsRow:
        return StatsRow(name, *(int(value) for value in sums))


def stats_table(stats: Stats, by_operation: bool) -> str:
    """Return the table as pg_waldump prints it."""
    total = stats.total()
    header = ("Type", "N", "(%)", "Record size", "(%)", "FPI size", "(%)", "Combined size", "(%)")
    template = "{:<27} {:>20} {:>8} {:>20} {:>8} {:>20} {:>8} {:>20} {:>8}"
    lines = [template.format(*header), template.format(*("-" * len(word) for word in header))]
    for row in stats.by_operation() if by_operation else stats.by_rmgr():
        numbers = zip(
            (row.records, row.record_bytes, row.image_bytes, row.record_bytes + row.image_bytes),
            (total.records, total.record_bytes, total.image_bytes, total.record_bytes + total.image_bytes),
            strict=True,
        )
        lines.append(f"{row.name:<27} " + " ".join(f"{n:>20} ({_percent(n, of):6.2f})" for n, of in numbers))
    combined = total.record_bytes + total.image_bytes
    of_records, of_images = (f"[{_percent(size, combined):.2f}%]" for size in (total.record_bytes, total.image_bytes))
    lines.append(template.format("", *["-" * 8, ""] * 4).rstrip())
    lines.append(
        f"{'Total':<27} {total.records:>20} {'':>8} {total.record_bytes:>20} {of_records:<8} {total.image_bytes:>20} "
        f"{of_images:<8} {combined:>20} [100%]"
    )
    return "\n".join(lines) + "\n"


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
