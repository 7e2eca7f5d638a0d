"""The statistics of a file as Delta's log has them: the number of rows, and least and greatest values.

delta-rs' own dataset (`DeltaTable.to_pyarrow_dataset`) takes a column without limits for one that no filter matches. So
they are given for each type that the log has a notation for; texts are cut, as Delta's protocol allows.
"""

import json
import math
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa

from walproxy.pipeline.lake.parquet_files import Footer

_TEXT_MAX: Final = 32
_GREATEST: Final = "\U0010ffff"


def statistics_of(footer: Footer) -> str:
    """Return a file's statistics."""
    limits = {}
    for field in footer.schema:
        if field.name in footer.limits:
            low, high = footer.limits[field.name]
            limits[field.name] = _noted(low, is_low=True), _noted(high, is_low=False)
        elif pa.types.is_string(field.type) and footer.nulls.get(field.name) != footer.rows:
            limits[field.name] = "", _GREATEST  # Parquet has no limits of texts of kilobytes.
    known = {name: both for name, both in limits.items() if None not in both}
    return json.dumps(
        {
            "numRecords": footer.rows,
            "minValues": {name: low for name, (low, _) in known.items()},
            "maxValues": {name: high for name, (_, high) in known.items()},
            "nullCount": footer.nulls,
        }
    )


def _noted(value: Any, *, is_low: bool) -> Any:
    """Return a limit in the log's notation, None if it has none."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        cut = value[:_TEXT_MAX]
        return cut if is_low or cut == value else cut + _GREATEST
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        # Milliseconds; readers add one to the upper limit.
        utc = value.astimezone(UTC)
        return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, date) else None
