"""What happened, put into words: only when a run has failed, so it may take its time."""

import dataclasses
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec

from safekeeper.base.lsn import format_lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Membership
from safekeeper.consensus.term_history import HistoryEntry, describe_history

LINE_MAX = 400
_UNINTERESTING = frozenset(
    {
        "cluster_id",
        "code",
        "error",
        "incarnation",
        "level",
        "protocol_version",
        "safekeeper_id",
        "segment_size",
        "server_version",
        "system_id",
        "tli_histories",
    }
)


def line(now_s: float, who: str, verb: str, what: tuple[Any, ...]) -> str:
    """Return one line of a trace: when, who, what."""
    text = f"{now_s:9.4f} {who:>4} {verb} {' '.join(shown(item) for item in what)}".rstrip()
    return text if len(text) <= LINE_MAX else text[:LINE_MAX] + "..."


def shown(item: Any, name: str = "") -> str:
    """Return a value in few words; positions as PostgreSQL prints them."""
    if isinstance(item, LeaderId | str):
        return str(item)
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, int):
        return format_lsn(item) if name.endswith("_lsn") or name in ("lsn", "truncate_to") else str(item)
    if isinstance(item, bytes | bytearray | memoryview):
        return f"<{len(item)} bytes>"
    if isinstance(item, Enum):
        return str(item.value)
    if isinstance(item, Membership):
        return f"generation {item.generation}"
    if isinstance(item, tuple) and item and all(isinstance(entry, HistoryEntry) for entry in item):
        return f"[{describe_history(item)}]"
    fields = list(_fields(item))
    if fields:
        parts = [f"{key}={shown(value, key)}" for key, value in fields if value or value == 0]
        return f"{type(item).__name__}({', '.join(parts)})"
    return str(item)


def figures(item: Any) -> str:
    """Return the values of an item without the names of types and fields, and without sentences.

    A digest of figures is the same before and after a change of words.
    """
    if isinstance(item, str):
        return "" if " " in item else item
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item).hex()
    if isinstance(item, Enum):
        return figures(item.value)
    if isinstance(item, tuple | list):
        return f"({','.join(figures(each) for each in item)})"
    if isinstance(item, msgspec.Struct):
        return f"({','.join(figures(getattr(item, name)) for name in item.__struct_fields__)})"
    if dataclasses.is_dataclass(item):
        return f"({','.join(figures(getattr(item, field.name)) for field in dataclasses.fields(item))})"
    return "" if isinstance(item, BaseException) else repr(item)


def _fields(item: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields that are not at their default."""
    if isinstance(item, msgspec.Struct):
        names = item.__struct_fields__
    elif dataclasses.is_dataclass(item):
        names = tuple(field.name for field in dataclasses.fields(item))
    else:
        return
    for name in names:
        value = getattr(item, name)
        if (name not in _UNINTERESTING or isinstance(value, Exception)) and value not in (None, (), ""):
            yield name, value
