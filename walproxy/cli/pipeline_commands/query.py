"""`walproxy pipeline query`: the tables of a folder, asked with SQL."""

import sys
from datetime import datetime
from typing import Any

import click
import msgspec
import pyarrow as pa
import pyarrow.csv
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from safekeeper import logs
from safekeeper.lsn import format_lsn
from walproxy.pipeline.jobs.query import is_small
from walproxy.pipeline.jobs.query import query as run_query
from walproxy.pipeline.spark_session import spark_session
from walproxy.pipeline.tables.table_folder import local_folder

_SHOWN_MAX = 1000


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("sql", required=False)
@click.option("--tables", required=True, metavar="DIR", help="The folder of the tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line for each row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--cores", type=click.IntRange(1), metavar="N", help="How many cores to use; by default all.")
@click.option("--memory", default="2g", show_default=True, metavar="SIZE", help="Memory of Spark's JVM.")
def query(sql: str | None, tables: str, as_json: bool, as_csv: bool, cores: int | None, memory: str) -> None:
    """Ask the tables that `walproxy pipeline run` writes, whatever their format, with Spark's SQL.

    Without SQL it is read from standard input. lsn('5/40000000') and lsn_text(lsn) convert LSNs, and transaction_sizes
    has the WAL of each transaction.

    \b
    Examples:
      walproxy pipeline query "SELECT rmgr, count(*) FROM records GROUP BY rmgr ORDER BY 2 DESC" --tables tables
      walproxy pipeline query --tables tables --json <<< "SELECT * FROM transaction_sizes ORDER BY wal_bytes DESC"
      walproxy pipeline query "SELECT * FROM transactions WHERE lsn >= lsn('5/40000000')" --tables tables --csv
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    if sql is None:
        sql = sys.stdin.read()
    statement = sql.strip().rstrip(";")
    if not statement:
        raise click.UsageError("there is no SQL: give it as an argument or on standard input")
    logs.configure(lambda: "walproxy pipeline query", "warning")
    folder = local_folder(tables)
    quick = is_small(folder)
    master = f"local[{cores or '*'}]"
    with spark_session("walproxy pipeline query", master=master, memory=memory, quick=quick) as spark:
        result = run_query(spark, folder, statement)
        if as_json:
            for row in result.to_pylist():
                sys.stdout.buffer.write(msgspec.json.encode(row) + b"\n")
            sys.stdout.buffer.flush()
        elif as_csv:
            pyarrow.csv.write_csv(_flat(result), sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            _show(result)


def _flat(result: pa.Table) -> pa.Table:
    """Return the rows with lists and structures as JSON: CSV has none."""
    for index, field in enumerate(result.schema):
        if pa.types.is_nested(field.type):
            texts = [
                None if value is None else msgspec.json.encode(value).decode()
                for value in result.column(index).to_pylist()
            ]
            result = result.set_column(index, field.name, pa.array(texts, pa.string()))
    return result


def _show(result: pa.Table) -> None:
    """Print a table for people, LSNs as PostgreSQL writes them."""
    shown = Table(box=box.SIMPLE_HEAD)
    for field in result.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        shown.add_column(Text(field.name), justify="right" if is_number else "left", no_wrap=True)
    for row in result.slice(0, _SHOWN_MAX).to_pylist():
        shown.add_row(*(Text(_cell(name, value)) for name, value in row.items()))
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)  # A pipe has no width.
    console.print(shown)
    if result.num_rows > _SHOWN_MAX:
        click.echo(f"{result.num_rows} rows, of which {_SHOWN_MAX} are shown: --json or --csv print all", err=True)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if type(value) is int and (name == "lsn" or name.endswith("_lsn")):
        return format_lsn(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return str(value)
