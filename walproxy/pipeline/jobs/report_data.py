"""The content of a report, as values: `report` fills them in, `report_html` shows them, and `--json` prints them.

LSNs are text as PostgreSQL writes them, times are ISO 8601 in UTC, sizes are bytes, durations microseconds.
"""

from typing import Final, NamedTuple

import msgspec

from safekeeper.base.lsn import Lsn

NO_RELATION: Final = "(no relation)"
OTHER: Final = "other"


class ReportedRange(NamedTuple):
    """The WAL that is looked at.

    Attributes:
        pieces: how many, 0 if the WAL's extent is only in `records` or `transactions`.
        holes: ranges between pieces of which there is nothing, the first ones.
    """

    begin_lsn: Lsn
    end_lsn: Lsn
    pieces: int
    holes: list[tuple[Lsn, Lsn]]


class Headline(msgspec.Struct, kw_only=True):
    """The whole in numbers.

    Attributes:
        source: of what the sums are made: `relation_volume`, `records` or nothing.
        timed_bytes: of all WAL, what the charts over time show.
        relations: how many were written to; `unnamed` of them have no name, with `unnamed_bytes`.
        commits, aborts: None without the table `transactions`.
        transactions: how many wrote something; None without the table `transaction_volume`.
        checkpoints: None without the table `records`.
    """

    begin_lsn: str = ""
    end_lsn: str = ""
    begin_time: str | None = None
    end_time: str | None = None
    source: str = ""
    records: int = 0
    wal_bytes: int = 0
    image_count: int = 0
    image_bytes: int = 0
    timed_bytes: int = 0
    relations: int = 0
    unnamed: int = 0
    unnamed_bytes: int = 0
    commits: int | None = None
    aborts: int | None = None
    transactions: int | None = None
    transactions_without_end: int = 0
    checkpoints: int | None = None


class Series(msgspec.Struct):
    """The values of one name, one for each bin."""

    name: str
    values: list[float]


class Bins(msgspec.Struct, kw_only=True):
    """The bins of the charts over time, or over LSNs where there are no times.

    Attributes:
        width: in microseconds or bytes.
        checkpoints: where they fall on the axis.
        commits, aborts: per bin; empty without the table `transactions`.
    """

    has_times: bool = True
    width: int = 0
    labels: list[str] = []
    by_relation: list[Series] = []
    by_rmgr: list[Series] = []
    wal_bytes: list[float] = []
    image_bytes: list[float] = []
    commits: list[int] = []
    aborts: list[int] = []
    checkpoints: list[str] = []


class RelationRow(msgspec.Struct, kw_only=True):
    """The WAL of a relation; the tuples are None without the table `tuple_stats`."""

    name: str
    kind: str
    records: int
    wal_bytes: int
    image_count: int
    image_bytes: int
    inserts: int | None = None
    updates: int | None = None
    hot_updates: int | None = None
    deletes: int | None = None


class WrittenWal(msgspec.Struct):
    """The WAL of a transaction for one relation."""

    relation: str
    wal_bytes: int


class TransactionRow(msgspec.Struct, kw_only=True):
    """A transaction with its subtransactions.

    Attributes:
        outcome, end_time, commit_lsn: None if its end is not among the rows.
        duration: from the last commit before its first record to its end, so it is that long at most.
        relations: what it wrote to, the most first; None without the table `records`.
    """

    xid: int
    database: str | None
    outcome: str | None
    records: int
    wal_bytes: int
    image_bytes: int
    first_lsn: str
    last_lsn: str
    commit_lsn: str | None
    end_time: str | None
    duration: int | None
    relations: list[WrittenWal] | None


class GapRow(msgspec.Struct, kw_only=True):
    """A time without a commit, and the WAL written in it."""

    begin_time: str
    end_time: str
    duration: int
    begin_lsn: str
    end_lsn: str
    wal_bytes: int


class PageRow(msgspec.Struct, kw_only=True):
    """A page and the records that changed it."""

    relation: str
    fork: int
    block: int
    records: int


class IndexRow(msgspec.Struct, kw_only=True):
    """The WAL of an index.

    Attributes:
        table: of the index; None without its name.
        splits: pages of a B-tree that were split; None if no records were counted.
    """

    name: str
    table: str | None
    records: int
    wal_bytes: int
    image_bytes: int
    splits: int | None


class Causes(msgspec.Struct, kw_only=True):
    """Why the WAL is as large as it is.

    Attributes:
        checkpoint_distance: bytes of WAL between two checkpoints, on average; None without two of them.
        checkpoint_interval: the time between them in microseconds, where it is known.
        imaged_pages: pages of which there are full-page images, or more; None if no table has it. With only one
            checkpoint, there would have been one image of each page.
        indexes: those that wrote most.
    """

    checkpoint_distance: int | None = None
    checkpoint_interval: int | None = None
    imaged_pages: int | None = None
    indexes: list[IndexRow] = []


class Advice(msgspec.Struct, kw_only=True):
    """A change that reduces WAL.

    Attributes:
        about: what it is about, in one or two words.
        cause: the figure and its reason, a sentence.
        change: what to change, a sentence.
        wal_bytes: the WAL that it is about: the change saves a part of it, never more.
    """

    about: str
    cause: str
    change: str
    wal_bytes: int


class Report(msgspec.Struct, kw_only=True):
    """All of it.

    Attributes:
        made_at: when.
        findings: the answer in sentences.
        advice: changes that reduce WAL, the one about most WAL first.
        unknown: what this report does not know, in sentences.
        tables: relations added up to tables, with their indexes and TOAST; only with names.
        pages: how many pages were changed; None without the table `page_versions`.
    """

    made_at: str
    headline: Headline
    findings: list[str] = []
    advice: list[Advice] = []
    causes: Causes = msgspec.field(default_factory=Causes)
    unknown: list[str] = []
    bins: Bins = msgspec.field(default_factory=Bins)
    tables: list[RelationRow] = []
    relations: list[RelationRow] = []
    rmgrs: list[RelationRow] = []
    transactions: list[TransactionRow] = []
    gaps: list[GapRow] = []
    pages: int | None = None
    hot_pages: list[PageRow] = []
