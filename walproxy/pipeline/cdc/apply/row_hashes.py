"""Two sets of rows, compared by hashes over ranges of their key. Pure, but for the rows, which are read several times.

Rows are divided into *key ranges* by the first column of the key, about the same number in each. Of each range there
is a count and a sum of hashes; only ranges whose sums differ are read again, and rows are named last. So memory is
bounded by the rows of the ranges that differ, at sixteen bytes each.

Without a key the rows themselves are compared, each as often as it comes, in ranges of their hash.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

RANGE_ROWS: Final = 65_536
_SAMPLE_MAX: Final = 1 << 20
_PREFIX_BYTES: Final = 8
_HASH_BITS: Final = 64

Hashes = npt.NDArray[np.uint64]
Rows = Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
"""Reads all rows with the columns of these names, in this order; each call reads them again."""


class RangeDifference(NamedTuple):
    """The differences in one key range.

    Attributes:
        low, high: its first key column is at least `low` and below `high`; None where the range is open.
        missing: rows that only the source has.
        extra: rows that only the table has.
        different: keys that both have, with other values.
    """

    low: str | None
    high: str | None
    missing: int
    extra: int
    different: int


class Comparison(NamedTuple):
    """The outcome.

    Attributes:
        rows: of the source.
        ranges: number of key ranges.
        differences: those that differ.
        keys: some of the rows that differ: `missing`, `extra` or `different`, and the values of the key.
    """

    rows: int
    ranges: int
    differences: list[RangeDifference]
    keys: list[tuple[str, tuple[Any, ...]]]


def compare_rows(
    source: Rows, table: Rows, schema: pa.Schema, key: Sequence[str], *, keys_max: int, range_rows: int = RANGE_ROWS
) -> Comparison:
    """Compare the rows of a source and of a table.

    Args:
        schema: the columns that both have.
        key: columns that identify rows; none if rows may be equal.
        keys_max: rows that are named at most.
    """
    names = schema.names
    borders = _borders(table, names, key, range_rows)
    counts, sums = _sums(source, names, key, borders)
    table_counts, table_sums = _sums(table, names, key, borders)
    differs = (counts != table_counts) | (sums != table_sums)
    rows, ranges = int(counts.sum()), len(counts)
    if not differs.any():
        return Comparison(rows, ranges, [], [])
    found = _hashes_in(source, names, key, borders, differs)
    found_here = _hashes_in(table, names, key, borders, differs)
    kinds = _kinds(found, found_here)
    data_type = schema.field(key[0]).type if key else None
    differences = []
    for number in np.flatnonzero(differs):
        of_range = [kind for kind, of in kinds.values() if of == number]
        low = None if number == 0 else _shown(borders[number - 1], data_type)
        high = None if number == len(borders) else _shown(borders[number], data_type)
        counted = (of_range.count("missing"), of_range.count("extra"), of_range.count("different"))
        differences.append(RangeDifference(low, high, *counted))
    return Comparison(rows, ranges, differences, _named(source, table, names, key, kinds, keys_max))


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """Return a hash of each row; it depends on the order of the columns."""
    result = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        result = _mixed(result * np.uint64(31) + _value_hashes(column))
    return result


def _value_hashes(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_floating(kind):
        # One NaN, as PostgreSQL prints it; zeros keep their sign.
        values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        values = np.where(np.isnan(values), np.nan, values)
        hashes = _mixed(values.view(np.uint64))
    elif _is_countable(kind):
        hashes = _mixed(_numbers(column).view(np.uint64))
    elif pa.types.is_list(kind):
        hashes = _list_hashes(column)
    else:
        texts = column if pa.types.is_binary(kind) or pa.types.is_string(kind) else column.cast(pa.string())
        encoded = texts.dictionary_encode()
        content = b"".join(_digest(value) for value in encoded.dictionary.to_pylist())
        of_values = np.frombuffer(content, np.uint64)
        indices = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
        hashes = of_values[indices] if len(of_values) else np.zeros(len(column), np.uint64)
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_null, np.uint64(0x9E3779B97F4A7C15), hashes)


def _list_hashes(column: pa.ListArray) -> Hashes:
    """Each element counts with its place; a null has no elements here."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(counts)
    places = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    elements = _mixed(_value_hashes(column.flatten()) + _mixed(places.view(np.uint64)))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)))
    return _mixed(sums[ends] - sums[ends - counts])


def _digest(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return hashlib.blake2b(content, digest_size=_HASH_BITS // 8).digest()


def _mixed(values: Hashes) -> Hashes:
    """The finalizer of splitmix64, by Sebastiano Vigna: each bit of the input changes each bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _is_countable(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_date32(kind) or types.is_timestamp(kind))


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    whole = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    numbers = pc.fill_null(whole.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers, np.int64)


def _places(batch: pa.RecordBatch, key: Sequence[str]) -> Hashes:
    """Return where each row stands in the order in which ranges are cut."""
    if not key:
        return row_hashes(batch)
    column = batch.column(key[0])
    if _is_countable(column.type):
        return _numbers(column).view(np.uint64) ^ np.uint64(1 << (_HASH_BITS - 1))
    texts = column if pa.types.is_string(column.type) or pa.types.is_binary(column.type) else column.cast(pa.string())
    values = [value.encode() if isinstance(value, str) else value for value in texts.to_pylist()]
    prefixes = b"".join(value[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\0") for value in values)
    return np.frombuffer(prefixes, ">u8").astype(np.uint64)


def _shown(place: np.uint64, data_type: pa.DataType | None) -> str:
    if data_type is None:
        return f"hash {int(place):016x}"
    if _is_countable(data_type):
        number = int(place) - (1 << (_HASH_BITS - 1))
        if pa.types.is_date32(data_type):
            return str(pa.scalar(number, pa.int32()).cast(data_type).as_py())
        return str(pa.scalar(number, pa.int64()).cast(data_type).as_py())
    return repr(int(place).to_bytes(_PREFIX_BYTES).rstrip(b"\0").decode(errors="replace"))


def _borders(rows: Rows, names: Sequence[str], key: Sequence[str], range_rows: int) -> Hashes:
    """Return where ranges begin, but for the first: about `range_rows` rows are between two of them."""
    total, step = 0, 1
    sample = np.zeros(0, np.uint64)
    for batch in rows(key or names):
        total += batch.num_rows
        sample = np.concatenate([sample, _places(batch, key)[::step]])
        while len(sample) > _SAMPLE_MAX:
            sample, step = np.ascontiguousarray(sample[::2]), 2 * step
    wanted = max(1, -(-total // range_rows))
    sample = np.sort(sample)
    picked = [len(sample) * number // wanted for number in range(1, wanted)]
    return np.unique(sample[picked]) if picked else np.zeros(0, np.uint64)


def _ranges(batch: pa.RecordBatch, key: Sequence[str], borders: Hashes) -> npt.NDArray[np.int64]:
    return np.searchsorted(borders, _places(batch, key), side="right")


def _sums(
    rows: Rows, names: Sequence[str], key: Sequence[str], borders: Hashes
) -> tuple[npt.NDArray[np.int64], Hashes]:
    counts, sums = np.zeros(len(borders) + 1, np.int64), np.zeros(len(borders) + 1, np.uint64)
    for batch in rows(names):
        numbers = _ranges(batch, key, borders)
        counts += np.bincount(numbers, minlength=len(counts))
        np.add.at(sums, numbers, row_hashes(batch))
    return counts, sums


_Found = dict[tuple[int, int, int], int]
"""(range, hash of the key, hash of the row) to the number of rows."""


def _hashes_in(
    rows: Rows, names: Sequence[str], key: Sequence[str], borders: Hashes, wanted: npt.NDArray[np.bool_]
) -> _Found:
    found: _Found = {}
    for batch in rows(names):
        numbers = _ranges(batch, key, borders)
        chosen = wanted[numbers]
        hashes = row_hashes(batch)[chosen]
        keys = row_hashes(batch.select(key))[chosen] if key else hashes
        for place in zip(numbers[chosen].tolist(), keys.tolist(), hashes.tolist(), strict=True):
            found[place] = found.get(place, 0) + 1
    return found


def _kinds(source: _Found, table: _Found) -> dict[int, tuple[str, int]]:
    """Return for each hash of a key that differs what is wrong with it, and its range."""
    missing = {place[1]: place[0] for place, count in source.items() if table.get(place, 0) < count}
    extra = {place[1]: place[0] for place, count in table.items() if source.get(place, 0) < count}
    kinds = {key: ("missing", number) for key, number in missing.items()}
    for key, number in extra.items():
        kinds[key] = ("different" if key in missing else "extra", number)
    return kinds


def _named(
    source: Rows,
    table: Rows,
    names: Sequence[str],
    key: Sequence[str],
    kinds: dict[int, tuple[str, int]],
    keys_max: int,
) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the keys, or without a key the rows, of some of those that differ."""
    named: dict[int, tuple[str, tuple[Any, ...]]] = {}
    wanted = np.array(sorted(kinds), np.uint64)
    with closing(_both(source, table, key or names)) as batches:
        for batch in batches:
            hashes = row_hashes(batch)
            for index in np.flatnonzero(np.isin(hashes, wanted)).tolist():
                number = int(hashes[index])
                if len(named) < keys_max and number not in named:
                    named[number] = (kinds[number][0], tuple(column[index].as_py() for column in batch.columns))
            if len(named) >= min(keys_max, len(kinds)):
                break
    return sorted(named.values(), key=repr)


def _both(source: Rows, table: Rows, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
    yield from source(names)
    yield from table(names)
