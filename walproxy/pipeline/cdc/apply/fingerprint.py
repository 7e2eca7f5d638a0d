"""Detect changes of a source table that its stream does not carry, and decide what follows from them. Pure.

The stream of changes does not show everything that happens to a table: ALTER TABLE rewrites rows, partitions bring rows
along, and a table outside its publication sends nothing. So the catalogs are read at each step and compared with what
they held when the table was copied. The xmin of a catalog row shows that a definition was changed and changed back
between two steps. VACUUM, ANALYZE, CREATE INDEX and freezing update catalog rows in place and keep it.

| evidence | from | changes when |
|---|---|---|
| oid | pg_class | another table took the name |
| publication | pg_publication, pg_publication_rel, ... | the publication, the membership or the schema changed |
| heaps | pg_class.relfilenode, reltoastrelid | the rows were rewritten or truncated |
| partitions | pg_inherits | a partition was attached or detached |
| columns | pg_attribute | columns were added, dropped, renamed, or got another type |
| types | pg_enum, pg_attribute of composite types | the text of stored values changes without a change of the row |
| key_constraint | pg_constraint, pg_index | the key was dropped for a while, so that rows had equal keys |

ALTER TABLE gives a rewritten table another TOAST table; TRUNCATE, VACUUM FULL and CLUSTER keep it. So for a table with
a TOAST table, another relfilenode alone is harmless. Without one, only a TRUNCATE that the stream has shown explains
it: then the pg_class row was written by the truncating transaction. A new relation's relfilenode is its OID.

TRUNCATE of a partition is not sent if rows are sent as those of the whole. So another relfilenode of a partition means
a copy. Partitions that came and went between two looks at the catalogs are in the stream alone (target.py).
"""

from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple

import msgspec

_VARYING: Final = frozenset({25, 1043})
"""text and varchar: the same bytes, so that a change from one to the other rewrites nothing."""


class Heap(msgspec.Struct, frozen=True, array_like=True):
    """Where rows are stored: pg_class.relfilenode, and reltoastrelid (0 without a TOAST table)."""

    file_number: int
    toast: int


class SentColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column that is sent: pg_attribute.attnum, and the type and modifier; of a domain those of its base type."""

    number: int
    type_oid: int
    type_modifier: int


class Fingerprint(msgspec.Struct, frozen=True):
    """A source table as its catalogs describe it.

    Attributes:
        publication: why its changes are sent: catalog rows, each with its xmin.
        key_constraint: OID of the constraint of its key, of the index if no constraint made it, 0 without a key.
        heaps: by OID: of the table, or of its partitions if they are sent as its own.
        partitions: by OID of a partition that is sent as the table's own: the xmin of its pg_inherits row.
        types: catalog rows that decide how stored values are printed, each with its xmin.
    """

    oid: int
    publication: list[str]
    key_constraint: int
    heaps: dict[int, Heap]
    partitions: dict[int, int]
    columns: dict[str, SentColumn]
    types: dict[str, int]


class Evidence(NamedTuple):
    """The context in which a fingerprint was read.

    Attributes:
        writers: of each heap, the xmin of its pg_class row, if TRUNCATE alone may have written it; else 0.
        is_partitioned: the rows are in partitions.
        is_member: the publications list the table itself, so that it cannot be made unlogged.
        born_partitions: partitions that were created as such, so that they brought no rows to their parent.
        plain_columns: columns that are null in all rows older than they are.
        parents: of each partition, the table of which it is one.
    """

    writers: Mapping[int, int]
    is_partitioned: bool
    is_member: bool
    born_partitions: Set[int]
    plain_columns: Set[str]
    parents: Mapping[int, int]


class TableVerdict(NamedTuple):
    """The result of a comparison.

    Attributes:
        copy_reason: why the table must be copied again; None if it need not.
        brought: new partitions that may have brought rows, unless they are empty.
        born: new partitions that were created as such.
        writers: transactions that must be seen to have truncated the table; if one was not, it is copied.
        added: new columns, null in old rows.
        changed: columns with another type modifier, or varchar in place of text, while no row was rewritten.
    """

    copy_reason: str | None = None
    brought: frozenset[int] = frozenset()
    born: frozenset[int] = frozenset()
    writers: frozenset[int] = frozenset()
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def compare(known: Fingerprint, now: Fingerprint, evidence: Evidence) -> TableVerdict:
    """Return what follows from the difference between what was known of a table and what its catalogs hold now."""
    if known == now:
        return TableVerdict()
    reason = _other_table(known, now) or _other_partitions(known, now) or _other_types(known, now)
    if reason is not None:
        return TableVerdict(reason)
    writers: set[int] = set()
    same_files = True
    for oid, old in known.heaps.items():
        new = now.heaps[oid]
        if old == new:
            continue
        if old.file_number == new.file_number and old.toast == 0:
            continue  # The first column that may be stored out of line was added.
        same_files = False
        if old.toast != new.toast or evidence.is_partitioned or (old.toast == 0 and not evidence.is_member):
            return TableVerdict("its rows were rewritten")
        if old.toast != 0:
            continue
        writer = evidence.writers.get(oid, 0)
        if writer == 0:
            return TableVerdict("its rows were rewritten")
        writers.add(writer)
    reason, added, changed = _columns(known.columns, now.columns, evidence, same_files=same_files)
    if reason is not None:
        return TableVerdict(reason)
    arrived = now.partitions.keys() - known.partitions.keys()
    if any(oid in now.heaps and now.heaps[oid].file_number != oid for oid in arrived):
        return TableVerdict("a partition was attached, and its rows had been rewritten or truncated")
    born = frozenset(oid for oid in arrived if _is_born(oid, known, evidence))
    return TableVerdict(None, frozenset(arrived - born), born, frozenset(writers), added, changed)


def followed_change(before: Fingerprint, after: Fingerprint, types: Mapping[str, str]) -> str | None:
    """Return what changed in a definition that is followed; None if that is no change of the definition.

    Args:
        types: of the columns of the table that follows, as text.
    """
    parts = []
    added = after.columns.keys() - before.columns.keys()
    for name in added:
        parts.append(f"column {name} was added, here of type {types.get(name, 'unknown')}")
    for name in before.columns.keys() - after.columns.keys():
        parts.append(f"column {name} was dropped, and keeps its values here")
    for name, column in after.columns.items():
        if name in before.columns and before.columns[name] != column:
            parts.append(f"the type of column {name} was altered, here it is {types.get(name, 'unknown')}")
    partitions = len(after.partitions.keys() - before.partitions.keys())
    if partitions:
        parts.append(f"{partitions} partition{'s' if partitions > 1 else ''} added")
    if after.types.keys() - before.types.keys() and not added:
        parts.append("a type of its columns has new labels")
    return "; ".join(sorted(parts)) or None


def _is_born(oid: int, known: Fingerprint, evidence: Evidence) -> bool:
    """Return whether a partition, and each one above it that is new too, was created as such."""
    while oid != known.oid and oid not in known.partitions:
        if oid not in evidence.born_partitions:
            return False
        oid = evidence.parents[oid]
    return True


def _other_table(known: Fingerprint, now: Fingerprint) -> str | None:
    if known.oid != now.oid:
        return "another table has its name"
    if known.publication != now.publication:
        return "its publication, or its place in it, was altered"
    if known.key_constraint not in (0, now.key_constraint):
        return "its primary key was dropped or its replica identity changed"
    return None


def _other_partitions(known: Fingerprint, now: Fingerprint) -> str | None:
    if known.partitions.keys() - now.partitions.keys():
        return "a partition was detached or dropped"
    if any(now.partitions[oid] != xmin for oid, xmin in known.partitions.items()):
        return "a partition was detached and attached"
    if known.heaps.keys() - now.heaps.keys():
        return "its rows were rewritten"
    return None


def _other_types(known: Fingerprint, now: Fingerprint) -> str | None:
    if any(now.types.get(name) != xmin for name, xmin in known.types.items()):
        return "a type of one of its columns was altered"
    if any(_is_attribute(name) for name in now.types.keys() - known.types.keys()) and _composites(known.types):
        return "a type of one of its columns was altered"
    return None


def _is_attribute(name: str) -> bool:
    return name.startswith("attribute ")


def _composites(types: Iterable[str]) -> bool:
    return any(_is_attribute(name) for name in types)


def _columns(
    known: Mapping[str, SentColumn], now: Mapping[str, SentColumn], evidence: Evidence, *, same_files: bool
) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Return why the columns need a copy, which ones were added, and which ones have another type modifier."""
    changed = []
    for name, old in known.items():
        new = now.get(name)
        if new is None or new == old:
            continue
        if new.number != old.number:
            return f"its column {name} was dropped and added again", (), ()
        same_bytes = new.type_oid == old.type_oid or {new.type_oid, old.type_oid} <= _VARYING
        if not same_files or not same_bytes:
            return f"its column {name} is of another type", (), ()
        changed.append(name)
    numbers = {column.number: name for name, column in known.items()}
    last = max(numbers, default=0)
    added = [name for name in now if name not in known]
    for name in added:
        if now[name].number in numbers:
            return f"its column {numbers[now[name].number]} is called {name}", (), ()
        if now[name].number <= last or name not in evidence.plain_columns or not same_files:
            return f"its column {name} was added with values in old rows", (), ()
    return None, tuple(added), tuple(changed)
