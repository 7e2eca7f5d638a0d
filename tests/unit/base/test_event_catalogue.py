"""The catalogue has the kinds of events that the programs record, and no others."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from safekeeper.base.event_catalogue import KINDS

ROOT = Path(__file__).parents[3]
_KIND = re.compile(r"[a-z]+(?:-[a-z]+)+")
_CATALOGUE = ROOT / "safekeeper" / "base" / "event_catalogue.py"
# The position of the kind among the arguments of what records an event.
_RECORDERS = {"log_event": 1, "record_event": 1, "StateEvent": 0}


def modules() -> Iterator[ast.AST]:
    for package in ("safekeeper", "walproxy"):
        for path in (ROOT / package).rglob("*.py"):
            if path != _CATALOGUE:
                yield ast.parse(path.read_text())


@functools.cache
def texts_and_kinds() -> tuple[set[str], set[str]]:
    """Return all texts of the sources, and those that are given as the kind of an event."""
    texts, kinds = set(), set()
    for module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            position = _RECORDERS.get(name)
            given = [] if position is None else node.args[position : position + 1]
            given += [keyword.value for keyword in node.keywords if keyword.arg == "event"]
            kinds |= {kind.value for kind in given if isinstance(kind, ast.Constant)}
    return texts, kinds


def test_every_kind_is_recorded_somewhere() -> None:
    texts, _ = texts_and_kinds()
    assert sorted(KINDS.keys() - texts) == []


def test_every_kind_that_is_recorded_is_in_the_catalogue() -> None:
    _, used = texts_and_kinds()
    assert len(used) > 20
    assert used <= KINDS.keys() | {""}


def test_kinds_are_short_words_and_explained() -> None:
    for name, kind in KINDS.items():
        assert _KIND.fullmatch(name) and len(name) <= 32, name
        assert kind.meaning and not kind.meaning.endswith(".") and not kind.action.endswith("."), name
        assert kind.action or kind.severity == "info", f"{name}: what is to be done?"
