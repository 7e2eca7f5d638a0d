"""libpq's connection strings, read without showing the password that may be in them.

A password belongs into .pgpass, PGPASSWORD or a service file. Where somebody writes it into --primary all the same, it
must not come out again in an error: libpq quotes what it does not understand, which may be a part of the password.
"""

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict

from safekeeper.errors import ConfigurationError

_QUOTED = re.compile(r'".*"', re.DOTALL)


def parse_conninfo(conninfo: str, whose: str = "the primary's") -> dict[str, str]:
    """Return the parameters of a libpq connection string (URI or key=value); `whose` it is, an error says.

    Raises:
        ConfigurationError: libpq cannot read it. What it quotes is left out if a password may be part of it.
    """
    may_have_password = "password" in conninfo.lower() or "://" in conninfo
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
    except psycopg.Error as error:
        reason = str(error).strip()
        if may_have_password:
            reason = f"{_QUOTED.sub('(not shown)', reason)}; a password belongs into .pgpass or PGPASSWORD"
        raise ConfigurationError(f"{whose} connection string is wrong: {reason}") from None
    if "://" in conninfo and "@" in given.get("host", ""):
        raise ConfigurationError(
            f"{whose} connection string is wrong: its host has an @; one in a password is written %40, "
            "and a password belongs into .pgpass or PGPASSWORD"
        )
    return given
