"""How this installation gets the packages of an extra."""

import json
import shlex
from urllib.parse import unquote, urlsplit

_PACKAGE = "walproxy"


def pip_install(extra: str) -> str:
    """Return the command that installs the packages of `extra`, from the folder from which walproxy was installed."""
    return f"pip install {shlex.quote(f'{_folder() or _PACKAGE}[{extra}]')}"


def _folder() -> str:
    """Return the folder of which pip has made this installation (PEP 610); empty if it is from an index."""
    import importlib.metadata  # 20 ms, which every call of wal-fetch would need.

    try:
        record = importlib.metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return ""  # It runs without an installation.
    url = urlsplit(json.loads(record)["url"]) if record else urlsplit("")
    return unquote(url.path) if url.scheme == "file" else ""
