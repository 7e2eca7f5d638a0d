"""Types of options that several commands take: each parses what is written, and says what to write instead."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from safekeeper.errors import ConfigurationError
from safekeeper.lsn import parse_lsn
from safekeeper.settings import key_values, positive_size
from walproxy.recovery.plan import CURRENT, LATEST

_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Parameter(click.ParamType):  # type: ignore[type-arg]  # Older versions of click have none.
    """A type of option.

    Args:
        name: how help calls it, in capitals.
        parse: returns the value of a text; a ValueError or ConfigurationError says what is wrong with it.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return how help calls the value."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of what was written; a default may be a value already."""
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
    return instant.astimezone()  # One without a zone is of this machine's.


def _timeline(text: str) -> str:
    if text in (LATEST, CURRENT) or (text.isascii() and text.isdecimal() and int(text) > 0):
        return text
    raise ValueError("write latest, current or the number of a timeline")


DURATION: Final = Parameter("TIME", _duration_s)
"""Seconds."""

INSTANT: Final = Parameter("TIME", _instant)
"""A time of ISO 8601, with its zone."""

KEY_VALUES: Final = Parameter("KEY=VALUE,...", key_values)
LSN: Final = Parameter("LSN", parse_lsn)
SIZE: Final = Parameter("SIZE", positive_size)
"""Bytes, above 0."""

TARGET_TIMELINE: Final = Parameter("TLI", _timeline)
"""`latest`, `current` or a number, as text."""
