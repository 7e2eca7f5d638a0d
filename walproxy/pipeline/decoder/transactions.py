"""The view `transactions`: how transactions ended; and when the first and the last of a piece did.

A rollback to a savepoint writes an abort of its own, whose xid is the subtransaction's.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from safekeeper.base.lsn import format_lsn
from safekeeper.waldecode.format import RM_XACT, WalFormatError
from walproxy.pipeline.decoder.arrow import (
    Columns,
    integers,
    nullable_integers,
    nullable_times,
    times,
)
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.jit import compiled, part
from walproxy.pipeline.decoder.opcodes import operation_name
from walproxy.pipeline.decoder.transaction_bodies import ABORT_PREPARED, PREPARE, read_bodies

# By (xl_info & XLOG_XACT_OPMASK) >> 4.
_OUTCOMES: Final = pa.array(["commit", "prepare", "abort", "commit_prepared", "abort_prepared"])
_SUBXID: Final = pa.field("element", pa.int64(), True)


def transactions(decoded: Decoded) -> Columns:
    """Return the columns of the view `transactions`.

    Raises:
        WalFormatError: a record is not as its version writes it.
    """
    t = read_bodies(decoded)
    if isinstance(t, int):
        raise _malformed(decoded, t)
    origin = decoded.origin[t.record]
    has_origin = t.has_origin != 0
    return {
        "lsn": lambda: integers(decoded.lsn[t.record]),
        "end_lsn": lambda: integers(decoded.end_lsn[t.record]),
        "tli": lambda: integers(decoded.tli[t.record], 32),
        "xid": lambda: integers(t.xid),
        "outcome": lambda: _OUTCOMES.take(pa.array((decoded.info[t.record] >> 4) & 7)),
        "time": lambda: times(t.time),
        "database": lambda: nullable_integers(t.database, t.database >= 0),
        "subxids": lambda: _lists(t.subxid_end, t.subxids),
        "gid": lambda: _names(decoded.stripped, t.gid_begin, t.gid_bytes),
        "origin": lambda: nullable_integers(origin, origin != 0, 32),
        "origin_lsn": lambda: nullable_integers(t.origin_lsn, has_origin),
        "origin_time": lambda: nullable_times(t.origin_time, has_origin),
        "remote_apply": lambda: pa.array(t.remote_apply != 0),
    }


def _lists(ends: Any, values: Any) -> pa.Array:
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return pa.ListArray.from_arrays(pa.array(offsets), integers(values[: offsets[-1]]), pa.list_(_SUBXID))


def _names(wal: Any, begins: Any, lengths: Any) -> pa.Array:
    """Return names as strings. They are in the encoding of their database: what is no UTF-8 is replaced."""
    named = np.flatnonzero(lengths >= 0)
    if len(named) == 0:
        return pa.nulls(len(lengths), pa.string())
    names = np.full(len(lengths), None, object)
    for row, begin, length in zip(named.tolist(), begins[named].tolist(), lengths[named].tolist(), strict=True):
        names[row] = wal[begin : begin + length].tobytes().decode(errors="replace")
    return pa.array(names, pa.string())


@part
def _ends(rmid: int, info: int) -> bool:
    """Return whether a record commits or aborts a transaction, prepared or not."""
    return rmid == RM_XACT and (info >> 4) & 7 <= ABORT_PREPARED and (info >> 4) & 7 != PREPARE


@compiled
def _first_and_last_end(rmid: Any, info: Any, count: int) -> Any:
    """Return the indices of the first and the last record that commits or aborts, (-1, -1) if there is none."""
    first = 0
    while first < count and not _ends(rmid[first], info[first]):
        first += 1
    if first == count:
        return -1, -1
    last = count - 1
    while not _ends(rmid[last], info[last]):
        last -= 1
    return first, last


def piece_times(decoded: Decoded) -> tuple[int | None, int | None]:
    """Return when the first and the last commit or abort happened, in PostgreSQL's microseconds; None without one.

    Raises:
        WalFormatError: such a record has no time.
    """
    ends = _first_and_last_end(decoded.rmid, decoded.info, decoded.count)
    if ends[0] < 0:
        return None, None
    found = []
    for index in ends:
        if decoded.main_bytes[index] < 8:
            raise _malformed(decoded, index)
        offset = int(decoded.main_offset[index])
        found.append(int.from_bytes(decoded.stripped[offset : offset + 8].tobytes(), "little", signed=True))
    return found[0], found[1]


def _malformed(decoded: Decoded, index: int) -> WalFormatError:
    operation = operation_name(decoded.major, RM_XACT, int(decoded.info[index]))
    lsn = format_lsn(int(decoded.lsn[index]))
    return WalFormatError(
        f"the {operation} record at {lsn} is not in the format of PostgreSQL {decoded.major}:"
        f" look at its {decoded.main_bytes[index]} bytes with pg_waldump"
    )
