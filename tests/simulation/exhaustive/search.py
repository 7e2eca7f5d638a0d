"""A breadth-first search through all states of a small world, layer by layer.

Theory of operation. A layer has the states that are reached in the same number of steps. Of the earlier layers only
fingerprints of 64 bits are kept (as TLC does), and for each state the index of its predecessor in the layer before and
the kind of the step: 12 bytes a state, or 16 if a layer has more than 16 million states. The kinds of the steps are
enough to execute a shortest path again in terms of the definition (steps.py), which describes each step.

A state is omitted if its fingerprint is that of another one. Among n states the probability of at least one omission
is at most n**2 / 2**65, the number of pairs times 2**-64 (columns.py).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.simulation.checks.violation import Violation
from tests.simulation.exhaustive.columns import MOVES, Columns, Violating
from tests.simulation.exhaustive.steps import Bounds, Steps
from tests.simulation.exhaustive.tables import Batch, Change

# The number of states whose steps are computed at once.
CHUNK = 1 << 18
_BUCKETS_LOG2 = 6
# In layers up to this size, 32 bits are enough for the predecessor and the kind of the step.
_NARROW = (1 << 32) // MOVES


@dataclass
class Found:
    """The result of a search. Without a violation the path is empty."""

    states: int
    transitions: int
    depth: int
    seconds: float
    violation: Violation | None
    path: list[str]

    @property
    def omission_probability(self) -> float:
        """The upper bound of the probability that any state was omitted."""
        return float(self.states) ** 2 / 2**65


class Fingerprints:
    """A set of fingerprints: sorted arrays, one for each value of the highest bits, so that growing copies little."""

    def __init__(self) -> None:
        self._buckets = [np.empty(0, np.uint64)] * (1 << _BUCKETS_LOG2)
        self._begins = np.arange(1, 1 << _BUCKETS_LOG2, dtype=np.uint64) << np.uint64(64 - _BUCKETS_LOG2)

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def add(self, fingerprints: NDArray[np.uint64]) -> None:
        """Add sorted fingerprints, none of which is in the set."""
        for number, part in enumerate(np.split(fingerprints, np.searchsorted(fingerprints, self._begins))):
            if part.size:
                bucket = self._buckets[number]
                self._buckets[number] = np.insert(bucket, np.searchsorted(bucket, part), part)

    def lacks(self, fingerprints: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return for each of sorted fingerprints whether it is not in the set."""
        result = np.ones(len(fingerprints), np.bool_)
        cuts = [0, *np.searchsorted(fingerprints, self._begins).tolist(), len(fingerprints)]
        for bucket, begin, end in zip(self._buckets, cuts, cuts[1:], strict=False):
            if begin < end and bucket.size:
                part = fingerprints[begin:end]
                at = np.minimum(np.searchsorted(bucket, part), len(bucket) - 1)
                result[begin:end] = bucket[at] != part
        return result


class Search:
    """One search."""

    def __init__(self, bounds: Bounds) -> None:
        self.steps = Steps(bounds)
        self.columns = Columns(self.steps)
        self.first = self.columns.packed(self.steps.beginning())
        self.seen = Fingerprints()
        self.transitions = 0
        # For each later layer and each of its states: the index of the predecessor * MOVES + the kind of the step.
        self._came: list[NDArray[np.uint32 | np.uint64]] = []

    def run(self, report: Callable[[int, int], None] = lambda depth, states: None) -> Found:
        """Visit all states that can be reached, until the first violation. `report` is called after every layer.

        Raises:
            OverflowError: the world is too big for the numbers of columns.py.
        """
        began_at = time.monotonic()
        layer, depth, states = self.first, 0, 1
        self.seen.add(layer.fingerprints)
        while len(layer.fingerprints):
            try:
                layer = self._next(layer)
            except Violating as violating:
                violation, path = self._path(violating.index)
                return Found(states, self.transitions, depth + 1, time.monotonic() - began_at, violation, path)
            states += len(layer.fingerprints)
            depth += bool(len(layer.fingerprints))
            report(depth, states)
        return Found(states, self.transitions, depth, time.monotonic() - began_at, None, [])

    def _next(self, layer: Batch) -> Batch:
        """Return the states that were not seen before, and are one step from a layer."""
        batches, came = [], []
        for begin in range(0, len(layer.fingerprints), CHUNK):
            try:
                batch, parents, kinds = self._new(layer.part(begin, begin + CHUNK))
            except Violating as violating:
                raise Violating(begin + violating.index) from None
            batches.append(batch)
            wide = np.uint32 if len(layer.fingerprints) <= _NARROW else np.uint64
            came.append((parents + begin).astype(wide) * wide(MOVES) + kinds.astype(wide))
        fingerprints = np.concatenate([batch.fingerprints for batch in batches])
        order = _distinct(fingerprints)
        columns = np.concatenate([batch.columns for batch in batches], axis=1)
        batches.clear()
        self._came.append(np.concatenate(came)[order])
        following = Batch(columns[:, order], fingerprints[order])
        self.seen.add(following.fingerprints)
        return following

    def _new(self, batch: Batch) -> tuple[Batch, NDArray[np.int64], NDArray[np.int64]]:
        """Return the states one step from a batch that earlier layers lack, their predecessors, the kinds of steps."""
        kinds: list[int] = []
        changes: list[Change] = []
        for kind, change in self.columns.successors(batch):
            kinds.append(kind)
            changes.append(change)
        if not changes:
            empty = np.empty(0, np.int64)
            return batch.part(0, 0), empty, empty
        begins = np.cumsum([0, *(len(change.parents) for change in changes)])
        self.transitions += int(begins[-1])
        fingerprints = np.concatenate([change.fingerprints(self.columns.bits) for change in changes])
        order = _distinct(fingerprints)
        order = order[self.seen.lacks(fingerprints[order])]
        parents = np.concatenate([change.parents for change in changes])[order]
        which = np.searchsorted(begins, order, side="right") - 1
        columns = batch.columns[:, parents]
        for number, change in enumerate(changes):
            at = np.flatnonzero(which == number)
            of_change = order[at] - begins[number]
            for field, values in change.fields.items():
                columns[field, at] = values[of_change]
        return Batch(columns, fingerprints[order]), parents, np.array(kinds)[which]

    def _path(self, index: int) -> tuple[Violation, list[str]]:
        """Return the violation after a step from the state `index` of the last layer, and the path to it.

        The path is executed again, because the texts of its steps are not stored.
        """
        kinds = []
        for came in reversed(self._came):
            index, kind = divmod(int(came[index]), MOVES)
            kinds.append(kind)
        batch, path = self.first, []
        state = self.columns.unpacked(batch, 0)
        for kind in reversed(kinds):
            change = next(change for number, change in self.columns.successors(batch) if number == kind)
            columns = batch.columns.copy()
            for field, values in change.fields.items():
                columns[field] = values
            batch = Batch(columns, change.fingerprints(self.columns.bits))
            following = self.columns.unpacked(batch, 0)
            path.append(next(what for what, after in self.steps.steps(state) if after == following))
            state = following
        try:
            for _ in self.steps.steps(state):
                pass
        except Violation as violation:
            return violation, [*path, f"(next) {violation}"]
        raise AssertionError(f"columns.py finds a violation after {path}, steps.py does not")


def _distinct(fingerprints: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the indices of distinct fingerprints, in ascending order of these."""
    order = np.argsort(fingerprints)
    in_order = fingerprints[order]
    return order[np.concatenate(([True], in_order[1:] != in_order[:-1]))] if len(order) else order
