"""Arrow arrays out of numpy arrays, for the views.

Every array returned here has memory of its own, or that of the array it was given: what a `Decoded` holds is only valid
until its workspace is used again, so it is copied, which the change to Spark's signed types mostly does anyway. Copies
go to memory of Arrow's pool, which hands out what it has had before: into new memory of the process they took 2.7 times
as long.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

Columns = dict[str, Callable[[], pa.Array]]
"""The columns of a view, made when they are requested."""

# From PostgreSQL's epoch, 2000-01-01, to 1970-01-01, in microseconds; and the times that Python and SQL can write,
# years 1 to 9999, on PostgreSQL's scale. Others are infinite or nonsense.
_EPOCH_US: Final = 946_684_800_000_000
TIME_MIN: Final = -62_135_596_800_000_000 - _EPOCH_US
TIME_MAX: Final = 253_402_300_799_999_999 - _EPOCH_US

_TIME: Final = pa.timestamp("us", tz="UTC")


_INTEGERS: Final = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def integers(values: Any, width: int = 64) -> pa.Array:
    """Return a copy of an array of integers as Arrow's signed ones of 16, 32 or 64 bits."""
    return pa.Array.from_buffers(_INTEGERS[width], len(values), [None, _integers(values, width)])


def nullable_integers(values: Any, valid: Any, width: int = 64) -> pa.Array:
    """Return integers as `integers` does, null where `valid` is false."""
    return pa.Array.from_buffers(_INTEGERS[width], len(values), [_bits(valid), _integers(values, width)])


def booleans(values: Any) -> pa.Array:
    """Return a copy of an array of booleans."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def _integers(values: Any, width: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(len(values) * width // 8)
    np.copyto(np.frombuffer(buffer, f"int{width}"), values, casting="unsafe")
    return buffer


def _bits(values: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def repeated(value: int, count: int) -> pa.Array:
    """Return `count` times the same 64-bit integer."""
    return pa.array(np.full(count, value, np.int64))


def times(values: Any) -> pa.Array:
    """Return PostgreSQL's timestamps (int64, microseconds since 2000) as times; nonsense becomes year 1 or 9999."""
    return pa.array(np.clip(values, TIME_MIN, TIME_MAX) + _EPOCH_US).view(_TIME)


def nullable_times(values: Any, valid: Any) -> pa.Array:
    """Return times as `times` does, null where `valid` is false and outside of the years 1 to 9999."""
    writable = (values >= TIME_MIN) & (values <= TIME_MAX)
    return pa.array(np.clip(values, TIME_MIN, TIME_MAX) + _EPOCH_US, mask=~(valid & writable)).view(_TIME)


def repeated_time(value: int | None, count: int) -> pa.Array:
    """Return `count` times the same of PostgreSQL's timestamps, or null."""
    if value is None:
        return pa.nulls(count, _TIME)
    return times(np.full(count, value, np.int64))
