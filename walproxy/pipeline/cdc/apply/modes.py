"""The modes of a job: what its tables keep of the changes of their sources, and in which columns of their own.

| mode | a table has | columns of its own |
|---|---|---|
| mirror | the rows of its source | none |
| append | a row for each change, in any order | `_op`, `_commit_lsn`, `_commit_time`, `_sequence`, `_unchanged` |
| soft-delete | the rows of its source, and those that it had once | `_deleted`, `_deleted_at` |

Columns of our own come first, so that columns that the source gets later are the last ones.

In mode append, (`_commit_lsn`, `_sequence`) orders the rows. A copy of a table that has rows already begins with one of
RESET: what the source has is in the rows after the last RESET or TRUNCATE. Rows of a copy have its position, and a
negative `_sequence`: they are before the changes of a transaction whose commit record begins there. An update of the
key is two rows, with the same place: a DELETE of the old key, and an UPDATE.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.server import SourceRefused
from walproxy.pipeline.choices import FollowingMode

OP: Final = "_op"
COMMIT_LSN: Final = "_commit_lsn"
COMMIT_TIME: Final = "_commit_time"
SEQUENCE: Final = "_sequence"
UNSENT: Final = "_unchanged"
DELETED: Final = "_deleted"
DELETED_AT: Final = "_deleted_at"

COPY, RESET, INSERT, UPDATE, DELETE, TRUNCATE = "copy", "reset", "insert", "update", "delete", "truncate"
COPY_SEQUENCE: Final = -1
RESET_SEQUENCE: Final = -2

TIME: Final = pa.timestamp("us", tz="UTC")
_OWN: Final[Mapping[FollowingMode, tuple[pa.Field, ...]]] = {
    "mirror": (),
    "append": (
        pa.field(OP, pa.string()),
        pa.field(COMMIT_LSN, pa.int64()),
        pa.field(COMMIT_TIME, TIME),
        pa.field(SEQUENCE, pa.int64()),
        pa.field(UNSENT, pa.list_(pa.string())),
    ),
    "soft-delete": (pa.field(DELETED, pa.bool_()), pa.field(DELETED_AT, TIME)),
}


def own_columns(mode: FollowingMode) -> tuple[pa.Field, ...]:
    """Return the columns that tables have beside those of their sources."""
    return _OWN[mode]


def mode_of(names: Iterable[str]) -> FollowingMode:
    """Return the mode in which a table with these columns was made."""
    first = list(names)
    for mode, fields in _OWN.items():
        if fields and first[: len(fields)] == [field.name for field in fields]:
            return mode
    return "mirror"


def require_other_names(table: TableName, names: Iterable[str], mode: FollowingMode) -> None:
    """See that no column of a source has the name of one of ours, whether case counts or not. Raises SourceRefused."""
    taken = {name.lower(): name for name in names}
    for field in _OWN[mode]:
        if field.name in taken:
            raise SourceRefused(
                f"{table} has a column {taken[field.name]!r}, a name that --mode {mode} needs: rename it, publish the "
                "other columns, or follow the table in a folder of another mode"
            )
