"""Process pieces of WAL in threads, with results in the order of the log.

The compiled code runs without the interpreter's lock, so threads share the work. Only a few pieces are processed at
once: memory stays small however long the log is.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

from walproxy.pipeline.input.pieces import PlannedPiece

Result = TypeVar("Result")

THREADS: Final = 2
_PIECE_BYTES: Final = 16 << 20


def cut(pieces: Iterable[PlannedPiece]) -> list[PlannedPiece]:
    """Cut pieces of large segments."""
    return [
        piece._replace(begin_lsn=begin_lsn, end_lsn=min(begin_lsn + _PIECE_BYTES, piece.end_lsn))
        for piece in pieces
        for begin_lsn in range(piece.begin_lsn, piece.end_lsn, _PIECE_BYTES)
    ]


def in_order(
    pool: ThreadPoolExecutor, read: Callable[[PlannedPiece], Result], pieces: Iterable[PlannedPiece], at_once: int
) -> Iterator[Result]:
    """Yield the results of tasks of a pool in the order of the pieces, `at_once` of which are processed or waiting."""
    waiting = iter(pieces)
    under_way = deque(pool.submit(read, piece) for piece in islice(waiting, at_once))
    try:
        while under_way:
            done = under_way.popleft().result()
            under_way.extend(pool.submit(read, piece) for piece in islice(waiting, 1))
            yield done
    finally:
        for future in under_way:
            future.cancel()
