"""`walproxy pipeline query`: the result as JSON, as CSV, or as a table."""

import csv
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import LSN_MAX, format_lsn
from walproxy.cli.pipeline_work.tables_at import tables_at
from walproxy.pipeline.duck import Result, query, query_arrow
from walproxy.pipeline.lake.disk import storage_errors, sync_folder
from walproxy.pipeline.lake.parquet_files import first_line, write_parquet

_SHOWN_MAX: Final = 1000
_NUMBERS: Final = ("BIGINT", "DECIMAL", "DOUBLE", "FLOAT", "HUGEINT", "INTEGER", "SMALLINT", "TINYINT")
_JSON: Final = msgspec.json.Encoder(decimal_format="number")


def ask(
    place: str,
    options: Mapping[str, str],
    catalog: Mapping[str, str],
    statement: str,
    *,
    as_json: bool,
    as_csv: bool,
    threads: int | None,
    memory_bytes: int | None,
) -> None:
    """Query the tables of a folder or a URL, and print the result.

    Args:
        options, catalog: of the object store, and of Iceberg tables there.
        threads, memory_bytes: DuckDB's limits.
    """
    with query(tables_at(place, options, catalog), statement, threads=threads, memory_bytes=memory_bytes) as result:
        if as_json:
            for row in result.rows:
                sys.stdout.buffer.write(_JSON.encode(dict(zip(result.columns, row, strict=True))) + b"\n")
            sys.stdout.buffer.flush()
        elif as_csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(result.columns)
            writer.writerows([_text(value) for value in row] for row in result.rows)
        else:
            _show(result)


def export(
    place: str,
    options: Mapping[str, str],
    catalog: Mapping[str, str],
    statement: str,
    file: Path,
    *,
    threads: int | None,
    memory_bytes: int | None,
) -> None:
    """Query the tables of a folder or a URL, and write the rows into a Parquet file, which appears whole. See `ask`."""
    tables = tables_at(place, options, catalog)
    with query_arrow(tables, statement, threads=threads, memory_bytes=memory_bytes) as batches:
        names = batches.schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigurationError(f"the column {one_line(twice)} occurs twice: name one of them with AS")
        new = file.absolute().with_name(f"{file.name}.new")
        try:
            written = write_parquet(str(new), batches, batches.schema)
        except pa.ArrowException as error:
            raise ConfigurationError(f"the rows cannot be written to {file}: {first_line(error)}") from error
        with storage_errors(f"write {file}"):
            new.rename(file)
            sync_folder(new.parent)
    click.echo(f"{file}: {written.rows} rows, {written.bytes} bytes")


def _show(result: Result) -> None:
    """Print a table, with LSNs as PostgreSQL writes them."""
    from rich import box  # A program that reads JSON or CSV does not wait for its import.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD)
    for name, written_type in zip(result.columns, result.types, strict=True):
        is_number = written_type.removeprefix("U").startswith(_NUMBERS) and not written_type.endswith("]")
        shown.add_column(Text(name), justify="right" if is_number else "left", no_wrap=True)
    number = 0
    for number, row in enumerate(result.rows, start=1):
        if number <= _SHOWN_MAX:
            shown.add_row(*(Text(_cell(name, value)) for name, value in zip(result.columns, row, strict=True)))
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)  # A pipe has no width.
    console.print(shown)
    if number > _SHOWN_MAX:
        click.echo(f"{number} rows, of which {_SHOWN_MAX} are shown: --json or --csv print all", err=True)


def _cell(name: str, value: Any) -> str:
    if type(value) is int and (name == "lsn" or name.endswith("_lsn")) and 0 <= value <= LSN_MAX:
        return format_lsn(value)
    return _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, list | dict | bool | bytes):
        return _JSON.encode(value).decode()
    return str(value)
