"""The discarded reports of the agents, compared with what the WAL and the writers' books show.

The report of an old primary must list exactly the transactions that its WAL has and the new primary has not. By the
books, these are rows whose acknowledgement promised nothing: committed locally, or in doubt.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from safekeeper.base.errors import ConfigurationError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.lab.failover.checks import named_rows
from walproxy.lab.failover.rows import Attempt
from walproxy.lab.failover.wal_truth import CommittedTransaction, Stretch

_SHOWN = 5
_XID_MASK = (1 << 32) - 1


def new_reports(folder: Path, known: Collection[Path]) -> list[Path]:
    """Return the reports in a folder, except those that are known, the oldest first."""
    found = [path for path in folder.rglob("*.json") if path not in known]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


@dataclass(frozen=True)
class ComparedReport:
    """What is compared of a discarded report.

    Attributes:
        commits: its committed transactions.
        inserted: the rows that each has inserted into tables of users, by (xid, LSN).
    """

    commits: tuple[CommittedTransaction, ...]
    inserted: dict[tuple[int, Lsn], int]


def read_report(path: Path) -> ComparedReport:
    """Return a report.

    Raises:
        WalproxyError: it is not one.
    """
    commits, inserted = [], {}
    try:
        for each in msgspec.json.decode(path.read_bytes())["transactions"]:
            if each["kind"] == "commit":
                lsn, at = parse_lsn(each["lsn"]), datetime.fromisoformat(each["time"]).astimezone(UTC)
                commits.append(CommittedTransaction(lsn, each["xid"], at.strftime("%Y-%m-%d %H:%M:%S.%f")))
                rows = (relation["inserted"] for relation in each["relations"] if not relation["catalog"])
                inserted[each["xid"], lsn] = sum(rows)
    except (msgspec.DecodeError, ConfigurationError, KeyError, TypeError, ValueError) as error:
        raise WalproxyError(f"{path} is not a discarded report: {error!r}") from None
    return ComparedReport(tuple(commits), inserted)


def find_wrong_rows(
    report: ComparedReport, stretches: Iterable[Stretch], attempts: Iterable[Attempt], server: str
) -> list[str]:
    """Return the transactions of writers to which a report does not attribute exactly one inserted row."""
    tlis = {stretch.tli for stretch in stretches}
    ours = {
        attempt.transaction.xid & _XID_MASK
        for attempt in attempts
        if attempt.transaction.server == server and attempt.transaction.tli in tlis
    }
    wrong = {xid: count for (xid, _), count in report.inserted.items() if xid in ours and count != 1}
    return [
        f"the report attributes {count} inserted rows to xid {xid}, which inserted 1" for xid, count in wrong.items()
    ]


def differences(true: Sequence[CommittedTransaction], reported: Sequence[CommittedTransaction]) -> list[str]:
    """Return how a report differs from what the WAL shows; nothing if it does not."""
    found = []
    for what, some, others in (
        ("the report lacks", true, reported),
        ("the report lists, and the WAL after the fork does not have,", reported, true),
    ):
        odd = sorted(set(some) - set(others))
        if odd:
            found.append(f"{what} {len(odd)} of {len(some)} transactions: {_named(odd)}")
    if not found and len(reported) != len(true):
        found.append(f"the report lists {len(reported)} transactions, and the WAL after the fork has {len(true)}")
    return found


def contradictions(
    true: Iterable[tuple[Stretch, Sequence[CommittedTransaction]]],
    attempts: Iterable[Attempt],
    server: str,
    there: Collection[int],
) -> list[str]:
    """Return how the WAL of an old primary contradicts the books; nothing if it does not.

    Args:
        true: the parts of the WAL that the new primary lacks, each with its commits.
        attempts: all that were made meanwhile, on any server.
        server: the old primary's name.
        there: the ids of the rows on the new primary.
    """
    discarded = {(stretch.tli, commit.xid) for stretch, commits in true for commit in commits}
    kept, promised, nowhere = [], [], []
    for attempt in attempts:
        row = attempt.transaction
        if row.server != server:
            continue
        is_discarded = (row.tli, row.xid & _XID_MASK) in discarded
        if is_discarded and row.id in there:
            kept.append(attempt)
        elif is_discarded and row.writer != "local" and attempt.outcome == "ok":
            promised.append(attempt)
        elif not is_discarded and row.writer == "local" and attempt.outcome == "ok" and row.id not in there:
            nowhere.append(attempt)
    return [
        f"{len(found)} rows {what}: {named_rows(found)}"
        for found, what in (
            (kept, "are after the fork in the WAL of the old primary, and the new one has them"),
            (promised, "were acknowledged, and are after the fork"),
            (nowhere, "were committed locally, and are neither after the fork nor on the new primary"),
        )
        if found
    ]


def _named(commits: Sequence[CommittedTransaction]) -> str:
    shown = ", ".join(f"xid {commit.xid} at {format_lsn(commit.lsn)}, {commit.time}" for commit in commits[:_SHOWN])
    return shown + (", ..." if len(commits) > _SHOWN else "")
