"""libpq's connection strings, read without showing the password that may be in them.

A password belongs into .pgpass, PGPASSWORD or a service file. One that is written into --primary nevertheless must not
be printed in an error: libpq quotes what it does not understand, which may be a part of the password.
"""

import functools
import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from safekeeper.base.errors import ConfigurationError

# libpq looks for no file below a device, and so complains of none.
_NO_PASSFILE = "/dev/null/none"
_QUOTED = re.compile(r'".*"', re.DOTALL)

_log = logging.getLogger(__name__)


def parse_conninfo(conninfo: str, whose: str = "the primary's") -> dict[str, str]:
    """Return the parameters of a libpq connection string (URI or key=value); an error names `whose` it is.

    A password file that libpq would ignore because others can read it is logged and left out.

    Raises:
        ConfigurationError: libpq cannot read it. What it quotes is left out if a password may be part of it.
    """
    may_have_password = "password" in conninfo.lower() or "://" in conninfo
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
    except psycopg.Error as error:
        reason = str(error).strip()
        if may_have_password:
            reason = f"{_QUOTED.sub('(not shown)', reason)}; a password should be stored in .pgpass or PGPASSWORD"
        raise ConfigurationError(f"{whose} connection string is wrong: {reason}") from None
    if "://" in conninfo and "@" in given.get("host", ""):
        raise ConfigurationError(
            f"{whose} connection string is wrong: its host has an @; one in a password is written %40, "
            "and a password should be stored in .pgpass or PGPASSWORD"
        )
    return given | _passfile_override(given)


def _passfile_override(given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameter that keeps libpq from a password file that it would not read, none if there is no need.

    libpq ignores a password file that others can read, and writes so to standard error itself, past our log. Here that
    is one line of the log, once for each file and mode.
    """
    if "password" in given or "PGPASSWORD" in os.environ:
        return {}
    written = given.get("passfile") or os.environ.get("PGPASSFILE")
    try:
        file = Path(written) if written else Path("~/.pgpass").expanduser()
        mode = file.stat().st_mode
    except (OSError, RuntimeError):  # No such file; or a user without a home folder, as in a container.
        return {}
    if stat.S_ISREG(mode) and not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return {}
    _warn_of_passfile(str(file), mode)
    return {"passfile": _NO_PASSFILE}


@functools.cache
def _warn_of_passfile(path: str, mode: int) -> None:
    if stat.S_ISREG(mode):
        permissions = stat.S_IMODE(mode)
        _log.warning(
            "the password file %s is ignored: other users can read it (mode %04o): chmod 600", path, permissions
        )
    else:
        _log.warning("the password file %s is ignored: it is not a plain file", path)
