"""`walproxy pipeline query`: the result as JSON, as CSV, or as a table."""

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

from safekeeper.base.lsn import format_lsn
from walproxy.pipeline.lake.location import LakeLocation

__all__ = ["LakeLocation", "ask"]

_SHOWN_MAX = 1000


def ask(location: LakeLocation, statement: str, *, as_json: bool, as_csv: bool, cores: int | None, memory: str) -> None:
    """Query the tables of a location, and print the result.

    Args:
        cores, memory: of the engine: Spark for a folder, DuckDB for an object store.
    """
    if location.folder is None:
        from walproxy.pipeline.lake.duck import query

        _print(query(location, statement, cores=cores, memory=memory), as_json=as_json, as_csv=as_csv)
        return
    from walproxy.pipeline.jobs.query import is_small
    from walproxy.pipeline.jobs.query import query as query_by_spark
    from walproxy.pipeline.spark_session import spark_session

    quick, master = is_small(location.folder), f"local[{cores or '*'}]"
    with spark_session("walproxy pipeline query", master=master, memory=memory, quick=quick) as spark:
        _print(query_by_spark(spark, location.folder, statement), as_json=as_json, as_csv=as_csv)


def _print(result: pa.Table, *, as_json: bool, as_csv: bool) -> None:
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
    """Print a table, with LSNs as PostgreSQL writes them."""
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
