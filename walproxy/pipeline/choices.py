"""The choices of the options of `walproxy pipeline`. Imports nothing: `--help` must work without the extra."""

from typing import Final, Literal, TypeAlias, get_args

TableFormat: TypeAlias = Literal["delta", "iceberg"]
TABLE_FORMATS: Final[tuple[TableFormat, ...]] = get_args(TableFormat)

FollowingMode: TypeAlias = Literal["mirror", "append", "soft-delete"]
FOLLOWING_MODES: Final[tuple[FollowingMode, ...]] = get_args(FollowingMode)

ArrayColumns: TypeAlias = Literal["text", "list"]
ARRAY_COLUMNS: Final[tuple[ArrayColumns, ...]] = get_args(ArrayColumns)
NEW_ARRAYS: Final[ArrayColumns] = "list"
"""What arrays are in the tables of a new job."""

OnBadValue: TypeAlias = Literal["stop", "null", "text"]
ON_BAD_VALUE: Final[tuple[OnBadValue, ...]] = get_args(OnBadValue)

VIEW_NAMES: Final = (
    "records",
    "blocks",
    "transactions",
    "transaction_volume",
    "relation_volume",
    "page_versions",
    "tuple_stats",
    "transaction_relations",
    "catalog_changes",
)
"""Those of `schemas.VIEWS`, in the same order."""
DEFAULT_TABLES: Final = VIEW_NAMES[:7]
"""Without what only some questions need."""

REPORT_TOP: Final = 15
"""Rows of each list of a report."""

COPY_SESSIONS: Final = 2
"""Sessions that read a large table for its copy, unless another number is given."""

COPY_SESSIONS_MAX: Final = 64
COPY_RANGE_BYTES: Final = 128 << 20
"""What one of them reads at once, and one file has: of a table's size at the source."""
