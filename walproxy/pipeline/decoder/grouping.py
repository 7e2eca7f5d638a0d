"""A hash table for compiled group-bys: which row of a result a key belongs to.

A table is two arrays. `rows` has eight numbers a row, a line of the processor's cache: the two that are the row's key,
and six in which the caller adds up. `slots` holds row numbers plus one, 0 where a slot is free. Both have room for as
many rows as there can be; memory that is not touched costs nothing. Of the slots only the first `mask + 1` are used, at
most half of them: they are read at random, so they shall fit into the cache if the keys are few.

    row = row_of(slots, mask, rows, known, first, second)
    if row == known:
        known += 1
        mask = mask_for(slots, mask, rows, known)

Rows are numbered in the order in which their keys first appear.
"""

from typing import Any

import numpy as np

from walproxy.pipeline.decoder.jit import part

# Odd numbers with well mixed bits: 2^64 divided by the golden ratio, and the square root of 2 as a binary fraction.
_MIX_A = np.uint64(0x9E3779B97F4A7C15)
_MIX_B = np.uint64(0x6A09E667F3BCC909)
_HALF = np.uint64(32)

FIRST_MASK = 1023


def new_table(rows: int) -> tuple[Any, Any]:
    """Return the slots (int32) and the rows (int64, zeros) of an empty table that can hold `rows` rows."""
    return np.zeros(max(FIRST_MASK + 1, 1 << (2 * rows + 1).bit_length()), np.int32), np.zeros((rows, 8), np.int64)


@part
def _home(first: int, second: int, mask: int) -> Any:
    """Return the slot where the search for a key begins."""
    mixed = (np.uint64(first) ^ (np.uint64(second) * _MIX_B)) * _MIX_A
    mixed ^= mixed >> _HALF
    mixed *= _MIX_B
    return np.int64(mixed >> _HALF) & mask


@part
def row_of(slots: Any, mask: int, rows: Any, known: int, first: int, second: int) -> int:
    """Return the row of the key (first, second); `known`, the number of rows so far, if it has just been made."""
    slot = _home(first, second, mask)
    while True:
        row = slots[slot] - 1
        if row < 0:
            slots[slot] = known + 1
            rows[known, 0] = first
            rows[known, 1] = second
            return known
        if rows[row, 0] == first and rows[row, 1] == second:
            return row
        slot = (slot + 1) & mask


@part
def mask_for(slots: Any, mask: int, rows: Any, known: int) -> int:
    """Return the mask for `known` rows. If they fill half of the slots, enlarge it and distribute them again."""
    if 2 * known <= mask:
        return mask
    mask = 2 * mask + 1
    for slot in range(mask + 1):
        slots[slot] = 0
    for row in range(known):
        slot = _home(rows[row, 0], rows[row, 1], mask)
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = row + 1
    return mask
