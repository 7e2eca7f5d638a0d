"""Which pages a piece of WAL changes, and from where on it can be replayed: the view `page_versions`.

A page can be had at any LSN by taking the last image of it and replaying the records after it. A record makes a
page without its older version if redo puts its image in place, or begins with an empty page. Over several pieces the
last one that has an image decides: `image_lsn` is its, and `records_since_image` adds up from there on.

A record that refers to a page twice changes it once.
"""

from typing import Any

import numpy as np

from walproxy.pipeline.decoder.arrow import Columns, integers, nullable_integers
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.grouping import FIRST_MASK, mask_for, new_table, row_of
from walproxy.pipeline.decoder.jit import compiled

# The second half of a relation's key is its number and, in the lowest bits, the fork.
_FORK_BITS = 8


@compiled
def _find_pages(
    count: int,
    lsn: Any,
    end_lsn: Any,
    first_block: Any,
    tablespace: Any,
    database: Any,
    relation: Any,
    fork: Any,
    block: Any,
    image_applied: Any,
    will_init: Any,
    relation_slots: Any,
    relations: Any,
    slots: Any,
    pages: Any,
) -> int:
    """Gather (records, first, last, end of the last, image, records since) by page; return how many pages there are.

    A page's key is the row of its relation's fork in `relations`, and its block.
    """
    known = known_relations = 0
    mask = relation_mask = FIRST_MASK
    for index in range(count):
        here = lsn[index]
        for reference in range(first_block[index], first_block[index + 1]):
            high = np.int64(tablespace[reference]) << 32 | np.int64(database[reference])
            low = np.int64(relation[reference]) << _FORK_BITS | np.int64(fork[reference])
            owner = row_of(relation_slots, relation_mask, relations, known_relations, high, low)
            if owner == known_relations:
                known_relations += 1
                relation_mask = mask_for(relation_slots, relation_mask, relations, known_relations)
            page = row_of(slots, mask, pages, known, owner, np.int64(block[reference]))
            if page == known:
                known += 1
                mask = mask_for(slots, mask, pages, known)
                pages[page, 3] = here
            if pages[page, 4] != here:
                pages[page, 2] += 1
                pages[page, 4] = here
                pages[page, 5] = end_lsn[index]
                pages[page, 7] += 1
            if image_applied[reference] or will_init[reference]:
                pages[page, 6] = here
                pages[page, 7] = 0
    return known


def page_versions(decoded: Decoded) -> Columns:
    """Return the columns of the view `page_versions` but for the piece's bounds, a row for each page that changes."""
    references = decoded.block_count
    relation_slots, relations = new_table(references)
    slots, pages = new_table(references)
    known = _find_pages(
        decoded.count,
        decoded.lsn,
        decoded.end_lsn,
        decoded.first_block,
        decoded.tablespace,
        decoded.database,
        decoded.relation,
        decoded.fork,
        decoded.block,
        decoded.image_applied,
        decoded.will_init,
        relation_slots,
        relations,
        slots,
        pages,
    )
    owner, block, records, first_lsn, last_lsn, last_end_lsn, image_lsn, since_image = pages[:known].T
    high, low = relations[: owner.max(initial=-1) + 1, :2].T
    return {
        "tablespace": lambda: integers((high >> 32 & 0xFFFFFFFF)[owner]),
        "database": lambda: integers((high & 0xFFFFFFFF)[owner]),
        "relation": lambda: integers((low >> _FORK_BITS)[owner]),
        "fork": lambda: integers((low & 0xFF)[owner], 16),
        "block": lambda: integers(block),
        "records": lambda: integers(records),
        "first_lsn": lambda: integers(first_lsn),
        "last_lsn": lambda: integers(last_lsn),
        "last_end_lsn": lambda: integers(last_end_lsn),
        "image_lsn": lambda: nullable_integers(image_lsn, image_lsn != 0),
        "records_since_image": lambda: integers(since_image),
    }
