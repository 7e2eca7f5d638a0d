"""`walproxy pipeline report`: what wrote the WAL, as one HTML page."""

from collections.abc import Mapping
from pathlib import Path

import click

from safekeeper.base import logs
from walproxy.cli.configuration import PIPELINE
from walproxy.cli.pipeline_commands.keys import (
    KeyedCommand,
    iceberg_catalog,
    keys_options,
    lake_options,
    query_limits,
)
from walproxy.pipeline.choices import REPORT_TOP


@click.command(cls=KeyedCommand, role=PIPELINE, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tables", required=True, metavar="DIR|URL", help="The folder of the tables, or s3://, gs:// or az://.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="The HTML page to write.")
@click.option("--catalog", metavar="FILE", help="Names of relations, of walproxy pipeline catalog.")
@click.option(
    "--primary", envvar="WALPROXY_PRIMARY", metavar="CONNINFO", help="The server, or a standby, to ask for these names."
)
@click.option("--from", "begin", metavar="TIME|LSN", help="Begin there: an LSN, or a time of ISO 8601.")
@click.option("--to", "end", metavar="TIME|LSN", help="End there.")
@click.option("--top", default=REPORT_TOP, show_default=True, type=click.IntRange(1, 1000), help="Rows of each list.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@query_limits
@lake_options
@iceberg_catalog
@keys_options
def report(
    tables: str,
    output: Path | None,
    catalog: str | None,
    primary: str | None,
    begin: str | None,
    end: str | None,
    top: int,
    as_json: bool,
    query_cores: int | None,
    query_memory: int,
    lake_options: Mapping[str, str],
    iceberg_catalog: Mapping[str, str],
) -> None:
    """Report what wrote the WAL, why, and what to change so that less is written.

    The page is one file that needs no network. Its source is the tables that `walproxy pipeline run` writes; at its end
    it lists the information that is missing in the tables or in the WAL. Names come from names.json beside the
    tables, if `walproxy pipeline catalog` wrote it there, and from --catalog or --primary.

    \b
    Examples:
      walproxy pipeline report --tables tables --output report.html --primary "host=db1 user=report"
      walproxy pipeline report --tables tables --output report.html --catalog names.json \\
          --from 2026-11-20T22:00:00+01:00 --to 2026-11-21T06:00:00+01:00
      walproxy pipeline report --tables s3://bucket/lake --json --from 5/40000000 --to 5/60000000
    """
    if output is None and not as_json:
        raise click.UsageError("set --output to write the page, or --json to print JSON")
    if catalog is not None and primary is not None and not _is_from_environment("primary"):
        raise click.UsageError("--catalog and --primary cannot be combined: names come from one of them")
    logs.configure(lambda: "walproxy pipeline report", "warning")
    from walproxy.cli.pipeline_work.report import report_tables, tables_at

    place = catalog if catalog is not None else primary
    found = tables_at(tables, lake_options, iceberg_catalog)
    report_tables(
        found, output, place, (begin, end), top, as_json=as_json, threads=query_cores, memory_bytes=query_memory
    )


def _is_from_environment(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.ENVIRONMENT
