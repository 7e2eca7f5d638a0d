"""The extras of the package: a command whose libraries are missing fails in one line that says how to get them."""

import contextlib
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import click

from safekeeper.base.errors import ConfigurationError
from walproxy.installation import pip_install

MODULES: Final = {
    "lab": ("asyncpg", "docker", "jinja2", "markupsafe", "plotly", "testcontainers"),
    "pipeline": (
        *("deltalake", "duckdb", "jinja2", "llvmlite", "markupsafe", "numba", "numpy", "pandas", "py4j"),
        *("pyarrow", "pyiceberg", "pyspark", "sqlalchemy"),
    ),
}
"""What each extra brings to import, for those that commands need."""


class CommandWithoutExtra(click.Command):
    """Stands for a command that cannot be imported: the list of commands shows why, and calling it raises that."""

    def __init__(self, name: str, error: ConfigurationError) -> None:
        super().__init__(name, short_help=str(error))
        self._error = error

    def make_context(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise the reason.

        Raises:
            ConfigurationError: always.
        """
        raise self._error


@contextlib.contextmanager
def missing_extra_is_one_line(what: str, extra: str) -> Iterator[None]:
    """Turn the absence of a library of an extra into one line that says how to get it.

    Args:
        what: needs the library, for example "the pipeline".

    Raises:
        ConfigurationError: a library is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in MODULES[extra]:
            raise
        raise ConfigurationError(missing_library(what, library, extra)) from error


def missing_library(what: str, library: str, extra: str) -> str:
    """Return the line for a library that is not installed."""
    return f"{what} needs {library}, which is not installed: {pip_install(extra)}"
