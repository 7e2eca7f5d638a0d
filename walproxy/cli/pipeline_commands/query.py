"""`walproxy pipeline query`: the tables of a folder, asked with SQL."""

import sys
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


@click.command(cls=KeyedCommand, role=PIPELINE, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("sql", required=False)
@click.option("--tables", required=True, metavar="DIR|URL", help="The folder of the tables, or s3://, gs:// or az://.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line for each row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option(
    "--parquet",
    "parquet_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the rows into a plain Parquet file, which is replaced.",
)
@query_limits
@lake_options
@iceberg_catalog
@keys_options
def query(
    sql: str | None,
    tables: str,
    as_json: bool,
    as_csv: bool,
    parquet_file: Path | None,
    query_cores: int | None,
    query_memory: int,
    lake_options: Mapping[str, str],
    iceberg_catalog: Mapping[str, str],
) -> None:
    """Query the tables that `walproxy pipeline run` writes, in any format, with DuckDB's SQL.

    Without SQL it is read from standard input. lsn('5/40000000') and lsn_text(lsn) convert LSNs, transaction_sizes has
    the WAL of each transaction, and blocks the block references of each record. definition_changes and
    transaction_changes need the tables catalog_changes and transaction_relations.

    \b
    Examples:
      walproxy pipeline query "SELECT rmgr, count(*) FROM records GROUP BY rmgr ORDER BY 2 DESC" --tables tables
      walproxy pipeline query --tables tables --json <<< "SELECT * FROM transaction_sizes ORDER BY wal_bytes DESC"
      walproxy pipeline query "SELECT * FROM transactions WHERE lsn >= lsn('5/40000000')" --tables tables --csv
      walproxy pipeline query "FROM records WHERE lsn < lsn('5/40000000')" --tables tables --parquet records.parquet
    """
    if as_json + as_csv + (parquet_file is not None) > 1:
        raise click.UsageError("--json, --csv and --parquet cannot be combined")
    if sql is None:
        sql = sys.stdin.read()
    statement = sql.strip().rstrip(";")
    if not statement:
        raise click.UsageError("SQL is missing: give it as an argument or on standard input")
    logs.configure(lambda: "walproxy pipeline query", "warning")
    from walproxy.cli.pipeline_work.query import ask, export

    if parquet_file is not None:
        export(
            tables,
            lake_options,
            iceberg_catalog,
            statement,
            parquet_file,
            threads=query_cores,
            memory_bytes=query_memory,
        )
        return
    ask(
        tables,
        lake_options,
        iceberg_catalog,
        statement,
        as_json=as_json,
        as_csv=as_csv,
        threads=query_cores,
        memory_bytes=query_memory,
    )
