"""The choices of the options of `walproxy pipeline`. Imports nothing: `--help` must work without the extra."""

from typing import Final, Literal, TypeAlias, get_args

TableFormat: TypeAlias = Literal["parquet", "iceberg", "delta"]
TABLE_FORMATS: Final[tuple[TableFormat, ...]] = get_args(TableFormat)

FOLDER_FORMAT: Final[TableFormat] = "parquet"
"""The format of new tables in a folder. In an object store a catalog makes Iceberg tables, and none Delta tables."""

FollowingFormat: TypeAlias = Literal["delta", "iceberg"]
FOLLOWING_FORMATS: Final[tuple[FollowingFormat, ...]] = get_args(FollowingFormat)

FollowingMode: TypeAlias = Literal["mirror", "append", "soft-delete"]
FOLLOWING_MODES: Final[tuple[FollowingMode, ...]] = get_args(FollowingMode)

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
)
"""Those of `schemas.VIEWS`, in the same order."""
DEFAULT_TABLES: Final = tuple(view for view in VIEW_NAMES if view != "blocks")

REPORT_TOP: Final = 15
"""Rows of each list of a report."""
