"""The views `records` and `blocks`: what was decoded, as Arrow, one row a record or a block reference.

Only the requested columns are made. Names of resource managers and operations are taken out of tables by number, or
stay numbers with a dictionary. A batch has memory of its own: it stays valid when the workspace is used again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.opcodes import operation_code, operation_numbers, operation_table, rmgr_table
from walproxy.pipeline.schemas import arrow_schema

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


_NUMBERED: Final = pa.dictionary(pa.int16(), pa.string())


def records_batch(
    decoded: Decoded, names: Sequence[str] | None = None, *, dictionaries: bool = False
) -> pa.RecordBatch:
    """Return the view `records`, with the schema `arrow_schema("records", names)`.

    Args:
        dictionaries: texts are of Arrow's dictionary type, with the same dictionary in each batch of a major version.

    Raises:
        ConfigurationError: there is no such column.
    """
    return _batch("records", _records(decoded, dictionaries), names)


def blocks_batch(decoded: Decoded, names: Sequence[str] | None = None, *, dictionaries: bool = False) -> pa.RecordBatch:
    """Return the view `blocks`, with the schema `arrow_schema("blocks", names)`.

    Args:
        dictionaries: texts are of Arrow's dictionary type, with the same dictionary in each batch of a major version.

    Raises:
        ConfigurationError: there is no such column.
    """
    return _batch("blocks", _blocks(decoded, dictionaries), names)


def _batch(view: str, columns: Columns, names: Sequence[str] | None) -> pa.RecordBatch:
    schema = arrow_schema(view, names)
    arrays = [columns[name]() for name in schema.names]
    fields = [field.with_type(array.type) for field, array in zip(schema, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _records(decoded: Decoded, dictionaries: bool) -> Columns:
    d = decoded
    operations = _numbered_operations if dictionaries else _operations
    return {
        "lsn": lambda: integers(d.lsn),
        "end_lsn": lambda: integers(d.end_lsn),
        "previous_lsn": lambda: integers(d.previous_lsn),
        "tli": lambda: integers(d.tli, 32),
        "rmgr": lambda: _rmgrs(d.rmid, dictionaries),
        "operation": lambda: operations(d.major, d.rmid, d.info),
        "rmid": lambda: integers(d.rmid, 16),
        "info": lambda: integers(d.info, 16),
        "xid": lambda: integers(d.xid),
        "top_xid": lambda: nullable_integers(d.top_xid, d.top_xid != 0),
        "origin": lambda: nullable_integers(d.origin, d.origin != 0, 32),
        "total_length": lambda: integers(d.total_length, 32),
        "main_bytes": lambda: integers(d.main_bytes, 32),
        "image_count": lambda: integers(d.image_count, 16),
        "image_bytes": lambda: integers(d.image_bytes, 32),
        "blocks": lambda: _block_lists(d),
    }


def _blocks(decoded: Decoded, dictionaries: bool) -> Columns:
    d = decoded
    operations = _numbered_operations if dictionaries else _operations
    of = d.block_record
    return {
        "lsn": lambda: integers(d.lsn[of]),
        "end_lsn": lambda: integers(d.end_lsn[of]),
        "rmgr": lambda: _rmgrs(d.rmid[of], dictionaries),
        "operation": lambda: operations(d.major, d.rmid[of], d.info[of]),
        "xid": lambda: integers(d.xid[of]),
        **_references(d),
        "is_first": lambda: booleans(_are_first(d)),
        "wal_bytes": lambda: integers(_wal_bytes(d), 32),
    }


def _are_first(decoded: Decoded) -> NDArray[np.bool_]:
    are_first = np.zeros(decoded.block_count, np.bool_)
    are_first[_first_references(decoded)[0]] = True
    return are_first


def _wal_bytes(decoded: Decoded) -> NDArray[np.int64]:
    """Return the bytes of each block reference: those of a record add up to its length, as in `relation_volume`."""
    wal_bytes = decoded.block_image_bytes.astype(np.int64) + decoded.data_bytes
    first, records = _first_references(decoded)
    wal_bytes[first] += decoded.total_length[records] - np.add.reduceat(wal_bytes, first)
    return wal_bytes


def _first_references(decoded: Decoded) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the index of the first reference of each record that has one, and which records these are."""
    have_blocks = decoded.first_block[1:] > decoded.first_block[:-1]
    return decoded.first_block[:-1][have_blocks], have_blocks


def _references(decoded: Decoded) -> Columns:
    d = decoded
    return {
        "block_id": lambda: integers(d.block_id, 16),
        "tablespace": lambda: integers(d.tablespace),
        "database": lambda: integers(d.database),
        "relation": lambda: integers(d.relation),
        "fork": lambda: integers(d.fork, 16),
        "block": lambda: integers(d.block),
        "has_image": lambda: booleans(d.has_image),
        "image_applied": lambda: booleans(d.image_applied),
        "image_bytes": lambda: integers(d.block_image_bytes, 32),
        "data_bytes": lambda: integers(d.data_bytes, 32),
        "will_init": lambda: booleans(d.will_init),
    }


def _block_lists(decoded: Decoded) -> pa.Array:
    """Return a list of block references for each record."""
    list_type = arrow_schema("records", ["blocks"]).field(0).type
    columns = _references(decoded)
    fields = list(list_type.value_type)
    references = pa.StructArray.from_arrays([columns[field.name]() for field in fields], fields=fields)
    offsets = integers(decoded.first_block, 32)
    return pa.ListArray.from_arrays(offsets, references, type=list_type)


def _rmgrs(rmid: Any, dictionaries: bool) -> pa.Array:
    if dictionaries:
        return pa.DictionaryArray.from_arrays(integers(rmid, 16), rmgr_table(), safe=False)
    return rmgr_table().take(pa.array(rmid))


def _operations(major: int, rmid: Any, info: Any) -> pa.Array:
    if len(rmid) == 0:
        return pa.array([], pa.string())  # of no major version, perhaps
    return operation_table(major).take(pa.array(operation_code(rmid.astype("int32"), info)))


def _numbered_operations(major: int, rmid: Any, info: Any) -> pa.Array:
    if len(rmid) == 0:
        return pa.array([], _NUMBERED)
    numbers, names = operation_numbers(major)
    codes = operation_code(rmid.astype(np.int16), info)
    return pa.DictionaryArray.from_arrays(pa.array(numbers[codes]), names, safe=False)
