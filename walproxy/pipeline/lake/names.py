"""Names of tables, and of their folder. Imports no library of tables."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from safekeeper.base.errors import ConfigurationError

APPLY_JOB_FILE: Final = "_walproxy_apply/job.json"
"""Where a job of `walproxy pipeline apply` keeps its state beside the tables that it writes."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


def check_table_name(name: str) -> None:
    """Verify that a table can have this name. Raises ConfigurationError."""
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a table: use letters, digits, '_', '-' and '.', and begin with one of the "
            "first two"
        )


def local_folder(url_or_folder: str | Path) -> Path:
    """Return the absolute path of a folder that is named by a path or a file:// URL.

    Raises:
        ConfigurationError: it is a URL of something else.
    """
    text = str(url_or_folder)
    if "://" in text:
        parts = urlsplit(text)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"a folder of this machine or a shared one is needed here, not {text}: `run`, `query`, `report` and "
                "`maintain` use object stores"
            )
        text = unquote(parts.path)
    if not text:
        raise ConfigurationError("the folder of the tables has no name")
    return Path(text).expanduser().absolute()
