"""What a statement of `walproxy pipeline query` names, whichever engine carries it out."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

TRANSACTION_SIZES: Final = "transaction_sizes"
SIZES_FROM: Final = ("transactions", "transaction_volume")
"""The tables that the view TRANSACTION_SIZES is made of."""


class Named(NamedTuple):
    """What must be known to the engine.

    Attributes:
        tables: sorted.
        has_sizes: also the view TRANSACTION_SIZES.
    """

    tables: list[str]
    has_sizes: bool


def named_in(statement: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` that a statement may refer to."""
    words = {word.lower() for word in re.findall(r"\w+", statement)}
    return [name for name in names if name.lower() in words]


def needed_by(statement: str, existing: Sequence[str]) -> Named:
    """Return what a statement needs of the existing tables; everything if it names nothing, such as SHOW TABLES."""
    wanted = named_in(statement, [*existing, TRANSACTION_SIZES])
    tables = set(wanted or existing) - {TRANSACTION_SIZES}
    has_sizes = TRANSACTION_SIZES in wanted if wanted else set(SIZES_FROM) <= set(existing)
    if has_sizes:
        tables |= set(SIZES_FROM)
    return Named(sorted(tables), has_sizes)
