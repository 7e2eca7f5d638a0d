"""The page of a run of the torture, whose libraries come with an extra: what lacks is said before a run begins."""

import importlib.util
from pathlib import Path
from typing import Final

from safekeeper.base.errors import ConfigurationError
from walproxy.cli.extras import missing_library
from walproxy.lab.torture.record import Run

_MODULES: Final = ("jinja2", "plotly")


def check_report(path: Path) -> None:
    """See that the page can be made and written, before hours have passed.

    Raises:
        ConfigurationError: a library is missing, or the folder.
    """
    for module in _MODULES:
        if importlib.util.find_spec(module) is None:
            raise ConfigurationError(missing_library("the report", module, "lab"))
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"could not write {path}: there is no such folder; correct --report")


def write_report(run: Run, path: Path) -> None:
    """Write the page.

    Raises:
        ConfigurationError: it cannot be written.
    """
    from walproxy.lab.torture.report import write_page

    write_page(run, path)
