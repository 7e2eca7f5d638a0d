"""Batches of states, what a step changes in them, and the tables from which the changes are read.

Theory of operation. A table calls a function of small numbers once for each combination, and keeps the result in an
array. So a Python function is applied to millions of states.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.simulation.checks.violation import Violation

Numbers = NDArray[Any]
T = TypeVar("T")

# Values of a table that are not numbers: not computed yet; the step violates an invariant; the step is impossible.
UNKNOWN, VIOLATES, IMPOSSIBLE = -1, -2, -3
# The number of values that a field of a state can have.
FIELD_VALUES = 1 << 16


class Table:
    """What a function of small numbers returns, called once for each combination. Its results are less than `limit`."""

    def __init__(self, function: Callable[..., int], limit: int = 1 << 31) -> None:
        self._function, self._limit = function, limit
        self._values: NDArray[np.int32] = np.full((1,) * function.__code__.co_argcount, UNKNOWN, np.int32)

    def __call__(self, *keys: Any) -> Numbers:
        """Return the values for arrays of keys, none of which is empty.

        Raises:
            OverflowError: the function has returned a number that is not less than the limit.
        """
        try:
            found = self._values[keys]
        except IndexError:
            self._grow(keys)
            found = self._values[keys]
        if (found == UNKNOWN).any():
            missing = [key[found == UNKNOWN].tolist() for key in np.broadcast_arrays(*keys)]
            for key in set(zip(*missing, strict=True)):
                self._values[key] = self._call(key)
            found = self._values[keys]
        return found

    def _call(self, key: tuple[int, ...]) -> int:
        try:
            value = self._function(*key)
        except Violation:
            return VIOLATES
        if value >= self._limit:
            raise OverflowError(
                f"the world is too big: a number of {self._function.__name__} is not below {self._limit}"
            )
        return value

    def _grow(self, keys: tuple[Any, ...]) -> None:
        old = self._values
        needed = [1 << int(np.max(key)).bit_length() for key in keys]
        self._values = np.full([max(*pair) for pair in zip(old.shape, needed, strict=True)], UNKNOWN, np.int32)
        self._values[tuple(slice(size) for size in old.shape)] = old


class Batch(NamedTuple):
    """States: a row of `columns` for each field, and a fingerprint for each state."""

    columns: NDArray[np.uint16]
    fingerprints: NDArray[np.uint64]

    def part(self, begin: int, end: int) -> "Batch":
        """Return the states from `begin` up to `end`."""
        return Batch(self.columns[:, begin:end], self.fingerprints[begin:end])


class Change:
    """One step of some states of a batch: the indices of these states (`parents`), and new values of changed fields."""

    def __init__(self, batch: Batch, parents: Numbers) -> None:
        self.batch, self.parents = batch, parents
        self.fields: dict[int, Numbers] = {}

    def __getitem__(self, field: int) -> Numbers:
        return self.fields[field] if field in self.fields else self.batch.columns[field][self.parents]

    def __setitem__(self, field: int, values: Numbers) -> None:
        self.fields[field] = values

    def fingerprints(self, bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the fingerprints of the states that the step leads to."""
        result: NDArray[np.uint64] = self.batch.fingerprints[self.parents]
        for field, values in self.fields.items():
            result ^= bits[field][self.batch.columns[field][self.parents]] ^ bits[field][values]
        return result


class Numbering(Generic[T]):
    """Numbers of things, in the order in which they appear."""

    def __init__(self, *first: T) -> None:
        self.items: list[T] = list(first)
        self._numbers = {item: number for number, item in enumerate(first)}

    def number(self, item: T) -> int:
        number = self._numbers.setdefault(item, len(self.items))
        if number == len(self.items):
            self.items.append(item)
        return number
