"""`walproxy pipeline query`: the result as JSON, as CSV, or as a table."""

import csv
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import LSN_MAX, format_lsn
from walproxy.pipeline.duck import FolderTables, QueriedTables, Result, query, query_arrow
from walproxy.pipeline.lake.disk import storage_errors, sync_folder
from walproxy.pipeline.lake.names import APPLY_JOB_FILE, local_folder
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
    numbers = [_is_number(written_type) for written_type in result.types]
    rows = [list(map(_cell, result.columns, row)) for row in itertools.islice(result.rows, _SHOWN_MAX)]
    if sys.stdout.isatty():
        _show_in_terminal(result.columns, numbers, rows)
    else:
        _print_lines(result.columns, numbers, rows)
    more = sum(1 for _ in result.rows)
    if more:
        click.echo(f"{_SHOWN_MAX + more} rows, of which {_SHOWN_MAX} are shown: --json or --csv print all", err=True)


def _is_number(written_type: str) -> bool:
    return written_type.removeprefix("U").startswith(_NUMBERS) and not written_type.endswith("]")


def _show_in_terminal(columns: Sequence[str], numbers: Sequence[bool], rows: Iterable[Sequence[str]]) -> None:
    from rich import box  # The import takes longer than a short query, and programs need no terminal.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD)
    for name, is_number in zip(columns, numbers, strict=True):
        shown.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    Console().print(shown)


def _print_lines(columns: Sequence[str], numbers: Sequence[bool], rows: Sequence[Sequence[str]]) -> None:
    """Print columns of equal width, as psql aligns them: a line for each row, whatever its values contain."""
    cells = [[one_line(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        aligned = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numbers, strict=True)
        )
        click.echo(" " + " | ".join(aligned).rstrip())
        if number == 0:
            click.echo("-" + "-+-".join("-" * width for width in widths) + "-")


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


def tables_at(place: str, options: Mapping[str, str], catalog: Mapping[str, str]) -> QueriedTables:
    """Return the tables of a place.

    Args:
        options, catalog: of an object store, and of Iceberg tables there.

    Raises:
        ConfigurationError: it is not a place of tables, or an option is not valid.
    """
    is_folder = not options and not catalog and ("://" not in place or place.lower().startswith("file://"))
    tables: QueriedTables
    if is_folder:
        folder = local_folder(place)
        tables = FolderTables(folder)
        if not (folder / APPLY_JOB_FILE).exists():
            return tables
    # Libraries of object stores, and those of row changes, take longer than a query of a folder.
    from walproxy.pipeline.cdc.apply.duck import followed_tables
    from walproxy.pipeline.lake.duck import LakeTables
    from walproxy.pipeline.lake.location import LakeLocation

    location = LakeLocation.parse(place, options, catalog)
    if not is_folder:
        tables = LakeTables(location)
    return followed_tables(location, tables) or tables
