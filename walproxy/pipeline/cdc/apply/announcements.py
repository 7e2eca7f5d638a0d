"""What is announced when the definition of a table changes: one JSON object for each change. Pure.

| action | the table | change |
|---|---|---|
| followed | has the change | columns that were added, dropped or altered, partitions, labels of an enum |
| copied | was copied again, with the definition of now | why |
| quarantined | is not followed until it can be | why |
| stopped | stays as it is | it is no longer published |

The first copy of a table is not announced. Announcements are kept in the job's file, from the write in which the job
notes that it has dealt with the change until the receiver has taken them: so each one is delivered at least once, with
the same `id` each time.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

import msgspec

from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.apply.fingerprint import Fingerprint
from walproxy.pipeline.cdc.publication import TableName

Action = Literal["followed", "copied", "quarantined", "stopped"]

NOT_COPIED_YET: Final = "it was not copied yet"
"""Why a table is copied that the job did not have."""

NO_LONGER_PUBLISHED: Final = "it is no longer published: its copy stays as it is"


class TableChange(NamedTuple):
    """A change of a table's definition.

    Attributes:
        change: the change, or why the table is copied again or not followed.
        lsn: the position of a copy; None: that of the job.
    """

    table: TableName
    action: Action
    change: str
    lsn: Lsn | None = None


class Announcement(msgspec.Struct, frozen=True):
    """The object that is sent.

    Attributes:
        id: the same if it is sent again.
        time: when the job noticed, in ISO 8601, UTC.
        lsn: all tables that follow had what was committed below it; of a copy, its position.
    """

    id: str
    time: str
    database: str
    slot: str
    schema: str
    table: str
    action: Action
    change: str
    lsn: str


def announcement(change: TableChange, database: str, slot: str, position_lsn: Lsn) -> Announcement:
    """Return what is to be sent for a change that was noticed now, when the job was at a position."""
    return Announcement(
        uuid.uuid4().hex,
        datetime.now(UTC).isoformat(timespec="microseconds"),
        database,
        slot,
        change.table.schema,
        change.table.name,
        change.action,
        change.change,
        format_lsn(position_lsn if change.lsn is None else change.lsn),
    )


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
