"""`walproxy pipeline report`: the report as a page, as JSON, and its findings as lines."""

from pathlib import Path

import click
import msgspec

from walproxy.pipeline.jobs.catalog import RelationNames, open_names
from walproxy.pipeline.jobs.report import make_report
from walproxy.pipeline.jobs.report_html import write_page
from walproxy.pipeline.jobs.report_input import look_for_tables, parse_position
from walproxy.pipeline.spark_session import spark_session


def report_tables(
    tables: Path,
    output: Path | None,
    place: str | None,
    bounds: tuple[str | None, str | None],
    top: int,
    *,
    as_json: bool,
    master: str,
    memory: str,
) -> None:
    """Make the report of the tables in a folder, and write or print it.

    Args:
        place: where names of relations come from, a file or a connection string; None for none.
        bounds: where the report begins and ends, as they were written.
        master, memory: Spark's.
    """
    positions = [parse_position(text) if text is not None else None for text in bounds]
    names = open_names(place) if place is not None else RelationNames()
    folder = look_for_tables(tables.absolute())
    with spark_session(
        "walproxy pipeline report",
        master=master,
        memory=memory,
        quick=folder.are_small,
    ) as spark:
        found = make_report(spark, folder, names, begin=positions[0], end=positions[1], top=top)
    if output is not None:
        write_page(found, output)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    for sentence in found.findings:
        click.echo(sentence)
    click.echo(f"the report is in {output}")
