"""Options of commands that read tables. Imports little: `query` is to answer within a second or so."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from safekeeper.base.settings import key_values, positive_size

_Command = TypeVar("_Command", bound=Callable[..., Any])


def limits(command: _Command) -> _Command:
    """Give a command the options `cores`, a number or None, and `memory`, in bytes."""
    cores = click.option("--cores", type=click.IntRange(1), metavar="N", help="How many cores to use; by default all.")
    memory = click.option(
        "--memory",
        default="2GB",
        show_default=True,
        metavar="SIZE",
        callback=_size,
        help="Memory limit; larger sorts and sums use temporary files.",
    )
    return cores(memory(command))


def lake_options(command: _Command) -> _Command:
    """Give a command the option `lake_options`, a mapping."""
    return click.option(
        "--lake-options",
        default="",
        metavar="KEY=VALUE,...",
        callback=_key_values,
        help="Settings of the tables' store, by obstore's names, e.g. endpoint and region.",
    )(command)


def iceberg_catalog(command: _Command) -> _Command:
    """Give a command the option `iceberg_catalog`, a mapping."""
    return click.option(
        "--iceberg-catalog",
        default="",
        metavar="KEY=VALUE,...",
        callback=_key_values,
        help="Catalog of Iceberg tables in an object store, by pyiceberg's names, e.g. uri, and its namespace.",
    )(command)


def _key_values(context: click.Context, parameter: click.Parameter, text: str) -> Mapping[str, str]:
    try:
        return key_values(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _size(context: click.Context, parameter: click.Parameter, text: str) -> int:
    try:
        return positive_size(f"{text}B" if text[-1:] in "kmgtKMGT" else text)  # Java's notation, such as 2g, too.
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
