"""No COMMIT is answered while fewer than a quorum could have it. A pure function of the history and the faults.

A transaction that begins and ends wholly within a time during which a majority of the safekeepers was dead, stopped,
paused or cut off, in either direction, cannot have been acknowledged by a quorum: those that were dead did not have it,
and the acknowledgements of those that were cut off reached no proxy. If its client nevertheless received "ok", it was
acknowledged without a quorum.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from walproxy.lab.torture.plan import POWER_CUT, SILENCING
from walproxy.lab.torture.record import Fault, Operation, Violation
from walproxy.lab.torture.workloads.interface import shortened

NO_QUORUM: Final = "NoQuorum"
# A signal takes a moment until it has stopped all threads of a process.
_SETTLES_S: Final = 0.1


def check_quorum(
    operations: Iterable[Operation], faults: Iterable[Fault], safekeepers: Sequence[str]
) -> list[Violation]:
    """Return a violation for each commit that was acknowledged while no quorum could have it."""
    gaps = times_without_quorum(faults, safekeepers)
    begins = [begin for begin, _ in gaps]
    messages = []
    for operation in operations:
        if operation.outcome != "ok" or operation.ended_s is None:
            continue
        index = bisect_right(begins, operation.begun_s) - 1
        if index >= 0 and operation.ended_s < gaps[index][1]:
            begin, end = gaps[index]
            messages.append(
                f"{operation.what}: begun at {operation.begun_s:.3f} s and acknowledged at {operation.ended_s:.3f} s, "
                f"while from {begin:.3f} to {end:.3f} s no quorum could be reached"
            )
    return shortened(NO_QUORUM, messages)


def times_without_quorum(faults: Iterable[Fault], safekeepers: Sequence[str]) -> list[tuple[float, float]]:
    """Return the times (begin, end) during which a majority of `safekeepers` was silenced, in their order."""
    quorum = len(safekeepers) // 2 + 1
    still_needed = len(safekeepers) - quorum
    edges: list[tuple[float, int]] = []
    for fault in faults:
        if fault.kind in (*SILENCING, POWER_CUT) and fault.target in safekeepers:
            begin, end = fault.begun_s + _SETTLES_S, fault.ended_s if fault.ended_s is not None else float("inf")
            if begin < end:
                edges += [(begin, 1), (end, -1)]
    gaps: list[tuple[float, float]] = []
    silenced = 0
    gap_began: float | None = None
    for moment, change in sorted(edges):
        silenced += change
        if silenced > still_needed and gap_began is None:
            gap_began = moment
        elif silenced <= still_needed and gap_began is not None:
            gaps.append((gap_began, moment))
            gap_began = None
    return gaps
