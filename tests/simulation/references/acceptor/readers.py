"""What readers of a log may be sent, as docs/design/protocol.md states it (7.15 and the refusals of PostgreSQL).

Part of the reference of the acceptor (acceptor.py). A reader follows one timeline; a log is a path of
timelines, each with where it is left. `check_readers` compares the answers to drawn readers of the present log.
"""

import random
from itertools import pairwise, takewhile

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.acceptor.readable import (
    Gone,
    NothingToSend,
    ReadableLog,
    Removed,
    SendRange,
    Step,
    TimelineEnd,
    lineage_of,
    next_step,
    refusal_of_start,
)
from safekeeper.base.timelines import Lineage
from safekeeper.consensus.term_history import TermHistory
from tests.simulation.checks.violation import Violation


def check_readers(rng: random.Random, acceptor: Acceptor) -> None:
    """Compare the lineage of a log, and what drawn readers of it are answered.

    Raises:
        Violation: it differs from the reference.
    """
    control, tli = acceptor.control, acceptor.readable_tli
    asked = rng.choice((tli, tli + 1, *(entry.tli for entry in control.history)))
    if all(file.tli != asked for file in control.tli_histories):
        _require("the lineage", asked, lineage_of(control, asked), _path_before(control.history, asked))
    lineage = _path_before(control.history, tli)
    if rng.random() < 0.5:
        lineage = _drawn_path(rng)
        tli = lineage[-1][0] + 1
    end_lsn = acceptor.readable_lsn if rng.random() < 0.5 else rng.randint(0, 4000)
    begin_lsn = control.wal_begin_lsn if rng.random() < 0.5 else rng.randint(0, 3000)
    log = ReadableLog(begin_lsn, end_lsn, tli, lineage)
    borders = (log.begin_lsn, log.end_lsn, acceptor.write_lsn, *(lsn for _, lsn in lineage))
    reader = rng.choice((tli, *(each for each, _ in lineage), rng.randint(1, tli + 1)))
    lsn = max(0, rng.choice(borders) + rng.choice((0, 0, 1, -1, 300, -300)))
    retreated = max(0, rng.choice(borders) + rng.choice((0, 1, -1))) if rng.random() < 0.3 else None
    is_refused = refusal_of_start(log, reader, lsn) is not None
    _require("a start is refused", (reader, lsn), is_refused, _is_no_part(log, reader, lsn))
    _require(
        "the next step",
        (reader, lsn, retreated),
        next_step(log, reader, lsn, retreated),
        _step(log, reader, lsn, retreated),
    )


def _drawn_path(rng: random.Random) -> Lineage:
    """Draw a log of several timelines, all of them near the positions of drawn readers."""
    forks = sorted(rng.randint(1, 3000) for _ in range(rng.choice((1, 2, 3))))
    return tuple(enumerate(forks, start=1))


def _path_before(history: TermHistory, tli: int) -> Lineage:
    """The timelines of a history before this one, each with where the next one begins."""
    entries = list(takewhile(lambda entry: entry.tli <= tli, history))
    return tuple((one.tli, other.start_lsn) for one, other in pairwise(entries) if one.tli != other.tli)


def _is_no_part(log: ReadableLog, tli: int, lsn: int) -> bool:
    """Whether a position of a timeline is on none that leads to the readable end."""
    return tli != log.tli and not any(each == tli and lsn <= end_lsn for each, end_lsn in log.lineage)


def _step(log: ReadableLog, tli: int, lsn: int, retreated_lsn: int | None) -> Step:
    """7.15: committed bytes of the reader's timeline that are retained; where it ends, the next one is named."""
    path = [*log.lineage, (log.tli, log.end_lsn)]
    tlis = [each for each, _ in path]
    if tli not in tlis:
        return Gone()
    index = tlis.index(tli)
    is_left = index < len(path) - 1
    if is_left and lsn >= path[index][1]:
        return TimelineEnd(tlis[index + 1], path[index][1])
    end_lsn = min(path[index][1], log.end_lsn)
    if retreated_lsn is not None:
        return NothingToSend() if end_lsn <= retreated_lsn else Gone()
    if lsn >= end_lsn:
        return NothingToSend()
    return Removed(lsn, min(end_lsn, log.begin_lsn)) if lsn < log.begin_lsn else SendRange(lsn, end_lsn)


def _require(what: str, of: object, actual: object, expected: object) -> None:
    if actual != expected or type(actual) is not type(expected):
        raise Violation("Reference", f"{what} of {of} is {actual}, reference {expected}")
