"""Options of several commands, and types of options: each parses a text, or raises an error with an example."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import parse_lsn
from safekeeper.base.networks import Networks
from safekeeper.base.settings import address, host_names, key_values, positive_size
from walproxy.recovery.plan import CURRENT, LATEST

_CLUSTER_ID: Final = re.compile("[0-9a-f]{32}")
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_Command = TypeVar("_Command", bound=Callable[..., Any])
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Parameter(click.ParamType):  # type: ignore[type-arg]  # Older versions of click have none.
    """A type of option.

    Args:
        name: its name in help texts, in capitals.
        parse: returns the value of a text; raises ValueError or ConfigurationError with the reason.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the name of the value in help texts."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text; a default may be a value already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (ValueError, ConfigurationError) as error:
            self.fail(str(error), param, ctx)


def _duration_s(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time: write one like 7d, 12h, 30m, 90s or 500ms")
    return float(match[1]) * _UNITS_S[match[2]]


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("write a time like 2026-11-21T14:16:05+01:00") from None
    return instant.astimezone()  # Without a zone it is in the zone of this machine.


def _cluster_id(text: str) -> str:
    if _CLUSTER_ID.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a cluster id: write all of its 32 hexadecimal digits")
    return text


def _timeline(text: str) -> str:
    if text in (LATEST, CURRENT) or (text.isascii() and text.isdecimal() and int(text) > 0):
        return text
    raise ValueError("write latest, current or the number of a timeline")


ADDRESS: Final = Parameter("HOST:PORT", address)
CLUSTER_ID: Final = Parameter("ID", _cluster_id)
DURATION: Final = Parameter("TIME", _duration_s)
"""Seconds."""

HOST_NAMES: Final = Parameter("NAME,...", host_names)
INSTANT: Final = Parameter("TIME", _instant)
"""A time of ISO 8601, with its zone."""

KEY_VALUES: Final = Parameter("KEY=VALUE,...", key_values)
LSN: Final = Parameter("LSN", parse_lsn)
NETWORKS: Final = Parameter("NETWORK,...", Networks.parse)
SIZE: Final = Parameter("SIZE", positive_size)
"""Bytes, above 0."""

TARGET_TIMELINE: Final = Parameter("TLI", _timeline)
"""`latest`, `current` or a number, as text."""


postgres_option = click.option(
    "--postgres",
    "major",
    type=int,
    metavar="MAJOR",
    help="Major version of PostgreSQL, e.g. 15; by default the newest installed.",
)
"""The option `major` of commands that start servers of their own."""
