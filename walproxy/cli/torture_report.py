"""The page of a torture test, whose libraries come with an extra: a missing one is an error before the test begins."""

import importlib.util
from pathlib import Path
from typing import Final

from safekeeper.base.errors import ConfigurationError
from walproxy.cli.extras import missing_library
from walproxy.lab.torture.record import Run

_MODULES: Final = ("jinja2", "plotly")


def check_report(path: Path) -> None:
    """Check that the page can be made and written, before the test runs for hours.

    Raises:
        ConfigurationError: a library or the folder is missing.
    """
    for module in _MODULES:
        if importlib.util.find_spec(module) is None:
            raise ConfigurationError(missing_library("the report", module, "lab"))
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"could not write {path}: the folder does not exist; correct --report")


def write_report(run: Run, path: Path) -> None:
    """Write the page.

    Raises:
        ConfigurationError: it cannot be written.
    """
    from walproxy.lab.torture.report import write_page

    write_page(run, path)
