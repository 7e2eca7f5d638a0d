"""Templates of pages, and the writing of a page. Needs jinja2."""

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Final

import jinja2

from safekeeper.base.errors import ConfigurationError
from walproxy.html_page.units import duration_text, size_text

SHARED: Final = "walproxy.html_page.templates"
"""The package of templates that every page can use."""


def environment(package: str, filters: Mapping[str, Callable[..., str]] | None = None) -> jinja2.Environment:
    """Return what fills in the templates of a package, and the shared ones.

    Args:
        filters: further filters, besides `size`, `duration` and `number`.
    """
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([_loader_of(package), _loader_of(SHARED)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"size": size_text, "duration": duration_text, "number": lambda value: f"{value:,}"}
    made.filters |= filters or {}
    return made


def read(package: str, name: str) -> str:
    """Return a file of a package."""
    return resources.files(package).joinpath(name).read_text("utf-8")


def write(page: str, path: Path, option: str) -> None:
    """Write a page into the file that `option` names.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"could not write {path}: {error.strerror}; correct {option}") from error


def _loader_of(package: str) -> jinja2.FunctionLoader:
    def load(name: str) -> str | None:
        try:
            return read(package, name)
        except FileNotFoundError:
            return None  # Another loader may have it.

    return jinja2.FunctionLoader(load)
