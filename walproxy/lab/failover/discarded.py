"""The discarded reports of the agents, compared with what the WAL and the writers' books show.

The report of an old primary must list exactly the transactions that its WAL has and the new primary has not. By the
books, these are rows whose acknowledgement promised nothing: committed locally, or in doubt.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import format_lsn, parse_lsn
from walproxy.lab.failover.rows import Attempt
from walproxy.lab.failover.wal_truth import Commit, Stretch

_SHOWN = 5
_XID_MASK = (1 << 32) - 1


def new_reports(folder: Path, known: Collection[Path]) -> list[Path]:
    """Return the reports in a folder, except those that are known, the oldest first."""
    found = [path for path in folder.rglob("*.json") if path not in known]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def read_report(path: Path) -> list[Commit]:
    """Return the committed transactions of a report.

    Raises:
        WalproxyError: it is not a report.
    """
    try:
        content = msgspec.json.decode(path.read_bytes())
        return [
            Commit(parse_lsn(each["lsn"]), each["xid"], each["time"])
            for each in content["transactions"]
            if each["kind"] == "commit"
        ]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise WalproxyError(f"{path} is not a discarded report: {error!r}") from None


def differences(true: Sequence[Commit], reported: Sequence[Commit]) -> list[str]:
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
    true: Iterable[tuple[Stretch, Sequence[Commit]]], attempts: Iterable[Attempt], server: str, there: Collection[int]
) -> list[str]:
    """Return how the WAL of an old primary contradicts the books; nothing if it does not.

    Args:
        true: the parts of the WAL that the new primary lacks, each with its commits.
        attempts: all that were made meanwhile, on any server.
        server: the old primary's name.
        there: the ids of the rows on the new primary.
    """
    discarded = {(stretch.tli, commit.xid) for stretch, commits in true for commit in commits}
    found = []
    for attempt in attempts:
        row = attempt.transaction
        is_discarded = row.server == server and (row.tli, row.xid & _XID_MASK) in discarded
        where = f"row {row.id} ({row.writer}, xid {row.xid & _XID_MASK} on timeline {row.tli} of {row.server})"
        if is_discarded and row.id in there:
            found.append(f"{where} is after the fork in the WAL of the old primary, and the new one has it")
        elif is_discarded and row.writer != "local" and attempt.outcome == "ok":
            found.append(f"{where} was acknowledged, and is after the fork")
        is_kept = is_discarded or row.id in there
        if row.writer == "local" and attempt.outcome == "ok" and row.server == server and not is_kept:
            found.append(f"{where} was committed locally, is not on the new primary, and not after the fork")
    return found


def _named(commits: Sequence[Commit]) -> str:
    shown = ", ".join(f"xid {commit.xid} at {format_lsn(commit.lsn)}, {commit.time}" for commit in commits[:_SHOWN])
    return shown + (", ..." if len(commits) > _SHOWN else "")
