"""`walproxy pipeline report`: the report as a page, as JSON, and its findings as lines."""

from pathlib import Path

import click
import msgspec

from safekeeper.base.logs import one_line
from walproxy.cli.pipeline_work.query import tables_at
from walproxy.pipeline.duck import QueriedTables
from walproxy.pipeline.jobs.report import make_report
from walproxy.pipeline.jobs.report_html import write_page
from walproxy.pipeline.jobs.report_input import look_for_tables, names_at, parse_position

__all__ = ["report_tables", "tables_at"]


def report_tables(
    tables: QueriedTables,
    output: Path | None,
    place: str | None,
    bounds: tuple[str | None, str | None],
    top: int,
    *,
    as_json: bool,
    threads: int | None,
    memory_bytes: int,
) -> None:
    """Make the report of tables, and write or print it.

    Args:
        place: where names of relations come from, a file or a connection string, besides names.json at the tables.
        bounds: where the report begins and ends, as they were written.
        threads, memory_bytes: DuckDB's limits.
    """
    positions = [parse_position(text) if text is not None else None for text in bounds]
    used = look_for_tables(tables)
    names = names_at(tables, place)
    found = make_report(
        used, names, begin=positions[0], end=positions[1], top=top, threads=threads, memory_bytes=memory_bytes
    )
    if output is not None:
        write_page(found, output)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    for sentence in found.findings:
        click.echo(one_line(sentence))
    for advice in found.advice:
        click.echo(one_line(f"{advice.cause} {advice.change}"))
    click.echo(f"the report is in {output}")
