"""The folder of this user in which what can be made again is kept between runs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder, which may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "walproxy"
