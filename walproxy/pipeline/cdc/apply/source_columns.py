"""The columns of a source table as those of the table that follows it, and what is to be remembered of the source.

Pure. An array is a list if the job keeps lists, and if it is not a column of the key: rows are found by equality of the
key, which the formats' libraries do not offer for lists. A column that is declared with several dimensions (`int[][]`)
is text, as its values most likely have them; PostgreSQL does not enforce the declaration.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from walproxy.pipeline.cdc.apply.following import FollowingTable
from walproxy.pipeline.cdc.apply.job_file import KnownTable
from walproxy.pipeline.cdc.apply.modes import require_other_names
from walproxy.pipeline.cdc.column_types import arrow_type, is_array
from walproxy.pipeline.cdc.published_tables import PublishedTable
from walproxy.pipeline.cdc.server import SourceRefused
from walproxy.pipeline.choices import FollowingMode

_FULL_IDENTITY: Final = "f"


def fields_of(
    table: PublishedTable, following: type[FollowingTable], as_text: Sequence[str], *, lists: bool
) -> list[pa.Field]:
    """Return the columns that a following table has for those of its source.

    Args:
        as_text: columns that are text.
        lists: other arrays are lists.
    """
    return [
        pa.field(
            column.name,
            pa.string()
            if column.name in as_text
            else following.storable(arrow_type(column.type_oid, column.type_modifier, lists=lists)),
        )
        for column in table.columns
    ]


def text_arrays(table: PublishedTable) -> frozenset[str]:
    """Return the arrays of a source that are text in any case: those of its key, and those of several dimensions."""
    return frozenset(
        column.name
        for column in table.columns
        if is_array(column.type_oid) and (column.dimensions > 1 or column.name in table.key)
    )


def known_of(
    table: PublishedTable,
    as_text: Sequence[str],
    bad_text: Iterable[str],
    mode: FollowingMode,
    *,
    bad_as_null: bool,
    lists: bool,
) -> KnownTable:
    """Return what is to be remembered of a source table.

    Raises:
        SourceRefused: its rows cannot be identified, though the mode demands it, and updates and deletes of them are
            sent; or it has a column with a name that the mode needs.
    """
    is_full = table.replica_identity == _FULL_IDENTITY and not table.key
    if is_full and mode != "append":
        raise SourceRefused(
            f"{table.table} has a full replica identity and no primary key, so equal rows are indistinguishable: give "
            "it a primary key, or name the other tables with --table"
        )
    require_other_names(table.table, (column.name for column in table.columns), mode)
    return KnownTable(
        list(table.key),
        table.fingerprint,
        list(as_text),
        sorted(bad_text),
        bad_as_null=bad_as_null,
        is_full=is_full,
        lists=lists,
    )
