"""Checks files that only their owner may read: secrets, private keys, verifiers of passwords."""

import logging
import stat
from pathlib import Path

_log = logging.getLogger(__name__)


def warn_if_shared(path: Path, what: str) -> None:
    """Log a warning if other users can read or change the file `path`; `what` names it in the log line.

    The rule is PostgreSQL's for server keys: no access for group and others; if root is the owner, the group may read.
    A file that cannot be examined is not reported here, but by its reader.
    """
    try:
        status = path.stat()
    except OSError:
        return
    forbidden = stat.S_IRWXG | stat.S_IRWXO if status.st_uid else stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
    mode = stat.S_IMODE(status.st_mode)
    if mode & forbidden:
        _log.warning("other users can read the %s in %s (mode %04o): chmod 600 %s", what, path, mode, path)
