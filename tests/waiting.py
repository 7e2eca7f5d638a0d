"""Waiting for a condition with a deadline, in every kind of test.

A condition that reads a status may run at a moment when there is nothing to read: no proxy leads, a process restarts, a
new leader has not heard of a standby yet. The functions that look such a thing up raise `NotThereYet`, and `wait_for`
takes that for "not yet"; outside of a wait it fails the test with its own message.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest


class NotThereYet(Exception):
    """What was looked up does not exist at present, for instance because leadership changes."""


def wait_for(
    condition: Callable[[], object], what: str | Callable[[], str], timeout_s: float = 20.0, poll_s: float = 0.02
) -> float:
    """Wait until `condition()` is true; return how many seconds that took.

    Args:
        condition: called every `poll_s`. `NotThereYet` counts as false, any other exception fails the test.
        what: what is waited for, as a clause; or a function that returns it, called when the time is over.
    """
    began_at = time.monotonic()
    while True:
        missing = ""
        try:
            if condition():
                return time.monotonic() - began_at
        except NotThereYet as error:
            missing = f" ({error})"
        if time.monotonic() - began_at >= timeout_s:
            pytest.fail(f"waited {timeout_s:g} s in vain until {_text(what)}{missing}")
        time.sleep(poll_s)


def entry(entries: Iterable[dict[str, Any]], key: str, value: object) -> dict[str, Any]:
    """Return the entry of a status' list whose `key` is `value`.

    Raises:
        NotThereYet: there is none.
    """
    for each in entries:
        if each[key] == value:
            return each
    raise NotThereYet(f"no entry with {key} = {value!r}")


def _text(what: str | Callable[[], str]) -> str:
    if isinstance(what, str):
        return what
    try:
        return what()
    except NotThereYet as error:
        return str(error)
