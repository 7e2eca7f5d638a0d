"""`walproxy discarded`: the transactions of an old primary's WAL that reached no quorum."""

from pathlib import Path
from typing import Final

import click

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.timelines import TLI_MAX
from safekeeper.waldecode.record_body import RelationLocator
from walproxy.cli.parameters import LSN, SIZE
from walproxy.failover.discarded import DiscardedTransaction, Kind, RowCounts, is_catalog
from walproxy.failover.discarded_report import DiscardedReport, commit_time, discarded_report
from walproxy.failover.relation_names import with_names
from walproxy.postgres.conninfo import parse_conninfo
from walproxy.proxy.status_table import format_bytes
from walproxy.terminal import Fit, FittedTable, TableColumn, output_console

_COLUMNS: Final = (
    TableColumn("time", leaves=2),
    TableColumn("transaction", fit=Fit.WRAP),
    TableColumn("xid", is_right=True),
    TableColumn("LSN"),
    TableColumn("WAL", leaves=1, is_right=True),
    TableColumn("changes", fit=Fit.WRAP),
)


@click.command()
@click.option(
    "--pgdata", type=click.Path(path_type=Path), metavar="DIR", help="The data folder of the old primary, stopped."
)
@click.option("--wal-dir", type=click.Path(path_type=Path), metavar="DIR", help="Or a folder with segments of its WAL.")
@click.option(
    "--from",
    "from_lsn",
    type=LSN,
    required=True,
    help="Where the new primary's timeline left the old one: walproxy failover prints it.",
)
@click.option(
    "--timeline",
    type=click.IntRange(1, TLI_MAX),
    metavar="TLI",
    help="The timeline of the old primary.  [default: as the files show it]",
)
@click.option("--conninfo", default="", help="A server that has the tables, usually the new primary: for their names.")
@click.option(
    "--look-back",
    type=SIZE,
    default="256MiB",
    show_default=True,
    help="How much WAL before --from is read at most, for transactions that began before it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def discarded(
    pgdata: Path | None,
    wal_dir: Path | None,
    from_lsn: Lsn,
    timeline: int | None,
    conninfo: str,
    look_back: int,
    as_json: bool,
) -> None:
    """List the transactions that an old primary has committed and no quorum has.

    Reads the WAL of the old primary from the fork to its end. Changes nothing, and needs no server. None of these
    transactions was acknowledged by a quorum; most of them were committed with synchronous_commit = local or off, or
    were still waiting.

    \b
    Examples:
      walproxy discarded --pgdata /var/lib/postgresql/15/main --from 0/5000148
      walproxy discarded --wal-dir /var/lib/walproxy/kept --from 0/5000148 --json
      walproxy discarded --pgdata old --from 0/5000148 --conninfo 'host=pg2 user=postgres'
    """
    if (pgdata is None) == (wal_dir is None):
        raise click.UsageError("give either --pgdata or --wal-dir")
    if conninfo:
        parse_conninfo(conninfo, "the server's")  # A typing error must not cost the time of reading.
    folder = wal_dir if wal_dir is not None else _pg_wal(pgdata or Path())
    report = discarded_report(folder, from_lsn, timeline, look_back_bytes=look_back)
    if conninfo:
        report = with_names(report, conninfo)
    if as_json:
        click.echo(report.json())
        return
    _print_transactions(report)
    for note in report.notes:
        click.echo(note)
    click.echo(summary(report))


def _pg_wal(pgdata: Path) -> Path:
    folder = pgdata / "pg_wal"
    if not folder.is_dir():
        raise ConfigurationError(f"{pgdata} is not a data folder of PostgreSQL: it has no pg_wal")
    return folder


def summary(report: DiscardedReport) -> str:
    """Return the last line of the output."""
    tail = report.tail
    return (
        f"transactions: {report.transactions}, of which committed: {report.commits}; not lost: "
        f"{tail.counts[Kind.ABORT]} aborted, {tail.open} open; {report.end_lsn - report.from_lsn} bytes of WAL from "
        f"{format_lsn(report.from_lsn)} to {format_lsn(report.end_lsn)} on timeline {report.tli}"
    )


def _print_transactions(report: DiscardedReport) -> None:
    console = output_console()
    if not console.is_terminal:
        for each in report.tail.transactions:
            click.echo(line(report, each))
        return
    if not report.tail.transactions:
        return
    table = FittedTable(_COLUMNS)
    for each in report.tail.transactions:
        cells = (_time(each), _kind(each), str(each.xid), format_lsn(each.lsn), format_bytes(each.wal_bytes))
        table.add_row(*cells, "\n".join(_changes(report, each)))
    console.print(table)


def line(report: DiscardedReport, each: DiscardedTransaction) -> str:
    """Return a transaction in one line."""
    place = f"{format_lsn(each.lsn)} to {format_lsn(each.end_lsn)}"
    changes = "; ".join(_changes(report, each))
    return (
        f"{_time(each)} {_kind(each)} xid {each.xid} at {place}, {each.wal_bytes} bytes of WAL: {changes or 'no rows'}"
    )


def _kind(each: DiscardedTransaction) -> str:
    return f"{each.kind} '{one_line(each.gid)}'" if each.gid else str(each.kind)


def _time(each: DiscardedTransaction) -> str:
    time = commit_time(each.time_us)
    return time.strftime("%Y-%m-%d %H:%M:%S.%f+00") if time is not None else "-"


def _changes(report: DiscardedReport, each: DiscardedTransaction) -> list[str]:
    """Return what a transaction has changed, a line for each relation."""
    found = [
        f"{_relation(report, relation)} {_rows(rows)}"
        for relation, rows in each.rows.items()
        if not is_catalog(relation)
    ]
    found += [f"{_relation(report, relation)} removed" for relation in each.dropped]
    found += [f"{_relation(report, relation)} advanced (sequence)" for relation in each.sequences]
    if each.changes_catalogs:
        found.append("catalogs (DDL or statistics)")
    if each.messages:
        found.append(f"logical messages: {each.messages}")
    if each.subtransactions:
        found.append(f"subtransactions: {each.subtransactions}")
    if not each.is_complete:
        found.append("incomplete: it began before the WAL that was read")
    return found


def _relation(report: DiscardedReport, relation: RelationLocator) -> str:
    number = "/".join(map(str, relation))
    created = " (created after --from)" if relation in report.tail.created else ""
    return one_line(report.names.get(relation, "")) or f"{number}{created}"


def _rows(rows: RowCounts) -> str:
    signs = (("+", rows.inserted), ("~", rows.updated), ("-", rows.deleted))
    return " ".join(f"{sign}{count}" for sign, count in signs if count)
