"""Verify that the tables of a job have the rows of their sources, both as of one LSN.

A snapshot of the source shows what was committed below an LSN; the tables follow up to exactly that LSN; then the rows
are compared by hashes over key ranges (row_hashes.py). What a table shows of its source depends on the mode
(present_rows.py). A table that was copied in the meantime is newer than the
snapshot, and is compared with another one.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.apply.copying import Snapshot
from walproxy.pipeline.cdc.apply.job import ApplyJob, ApplyOptions, no_report, opened_job
from walproxy.pipeline.cdc.apply.job_file import only_job
from walproxy.pipeline.cdc.apply.parallel_copy import CopyProgress
from walproxy.pipeline.cdc.apply.present_rows import present_rows
from walproxy.pipeline.cdc.apply.row_hashes import Comparison, compare_rows
from walproxy.pipeline.cdc.apply.target import TargetTable
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.published_tables import PublishedTable
from walproxy.pipeline.cdc.server import SourceRefused

_log = logging.getLogger(__name__)
_ROUNDS: Final = 3


class TablesDiffer(WalproxyError):
    """Tables do not have the rows of their sources."""


class Verified(NamedTuple):
    """A table that was compared with its source, both as of `lsn`.

    Attributes:
        comparison: None if it cannot be compared: in mode append, without a key, updates and deletes are rows, too.
    """

    table: TableName
    lsn: Lsn
    comparison: Comparison | None

    @property
    def is_same(self) -> bool:
        """Whether there is no difference."""
        return self.comparison is None or not self.comparison.differences

    def lines(self) -> list[str]:
        """Return what is to be reported."""
        where = f"as of {format_lsn(self.lsn)}"
        if self.comparison is None:
            return [f"{self.table}: not compared: without a key, its changes do not show which rows its source has"]
        if self.is_same:
            return [
                f"{self.table}: the same {self.comparison.rows} rows as its source {where}, "
                f"{self.comparison.ranges} key ranges"
            ]
        lines = [f"{self.table}: differs from its source {where}"]
        for each in self.comparison.differences:
            low = "the first key" if each.low is None else each.low
            high = "the last key" if each.high is None else f"below {each.high}"
            lines.append(
                f"{self.table}: from {low} to {high}: {each.missing} rows missing, {each.extra} extra, "
                f"{each.different} different"
            )
        for kind, key in self.comparison.keys:
            lines.append(f"{self.table}: {kind}: {', '.join(map(repr, key))}")
        return lines


def run_verify(
    options: ApplyOptions,
    *,
    repair: bool,
    stop: threading.Event | None = None,
    on_copy: Callable[[CopyProgress], None] = no_report,
) -> list[Verified]:
    """Follow up to now, then compare each table with its source.

    Args:
        repair: copy tables again that differ, and compare them once more.
        on_copy: as for `run_apply`.

    Returns:
        The last comparison of each table; logged too.

    Raises:
        TablesDiffer: some tables differ, or were altered all the time.
        TablesQuarantined: some tables do not follow; all others are the same.
        WalproxyError: as `run_apply` with `once`.
    """
    stop = stop or threading.Event()
    with (
        only_job(options.location),
        opened_job(options, first=True, ends=True, stop=stop, on_copy=on_copy) as job,
    ):
        job.copy_missing()
        job.follow_until_now(stop)
        verified = _verify(job, options, frozenset(target.table for target in job.tables), stop)
        different = frozenset(each.table for each in verified.values() if not each.is_same)
        if different and repair:
            job.copy_again(different, "it differed from its source")
            verified.update(_verify(job, options, different, stop))
            different = frozenset(each.table for each in verified.values() if not each.is_same)
        if different:
            names = ", ".join(str(table) for table in sorted(different))
            hint = "report this" if repair else "copy them again with --repair"
            raise TablesDiffer(f"{len(different)} of {len(verified)} tables differ from their sources: {names}; {hint}")
        job.require_all()
        return [verified[table] for table in sorted(verified)]


def _verify(
    job: ApplyJob, options: ApplyOptions, tables: frozenset[TableName], stop: threading.Event
) -> dict[TableName, Verified]:
    verified: dict[TableName, Verified] = {}
    for _ in range(_ROUNDS):
        with job.snapshot() as source:
            job.wait_for_quorum(source.lsn)
            published = {each.table: each for each in source.tables if each.table in tables - verified.keys()}
            # No lock is held meanwhile: a copy waits for transactions, and one of them might wait for the lock.
            job.follow_until(source.lsn, stop)
            for each in list(published.values()):
                try:
                    source.lock(each)
                except SourceRefused as error:
                    _log.warning("%s", error)
                    del published[each.table]
            now = job.tables.published()
            for target in job.tables:
                made = published.get(target.table)
                if stop.is_set():
                    raise WalproxyError("the verification was stopped: not all tables were compared")
                if made is None or target.table not in now:
                    continue
                if target.position.lsn <= source.lsn and made.fingerprint == now[target.table].fingerprint:
                    verified[target.table] = _compared(options, source, made, target)
        remaining = tables - verified.keys() - {TableName(*name.split(".", 1)) for name in job.tables.quarantined}
        if not remaining:
            return verified
    names = ", ".join(str(table) for table in sorted(remaining))
    raise TablesDiffer(f"not verified, as they are altered continually or gone: {names}")


def _compared(options: ApplyOptions, source: Snapshot, made: PublishedTable, target: TargetTable) -> Verified:
    following = target.following
    if target.known.is_full:
        return _logged(Verified(made.table, source.lsn, None))
    known = following.schema()
    names = [column.name for column in made.columns]
    null_if_bad = frozenset(names) - set(made.key) if target.known.bad_as_null else frozenset()

    def of_source(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with source.connection.transaction():
            yield from source.rows(made, pa.schema([known.field(name) for name in columns]), null_if_bad=null_if_bad)

    schema = pa.schema([known.field(name) for name in names])
    of_table = present_rows(following, options.mode, target.known.key)
    comparison = compare_rows(of_source, of_table, schema, target.known.key, keys_max=options.keys_max)
    return _logged(Verified(made.table, source.lsn, comparison))


def _logged(verified: Verified) -> Verified:
    for line in verified.lines():
        _log.log(logging.INFO if verified.is_same else logging.ERROR, "%s", line)
    return verified
