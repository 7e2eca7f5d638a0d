"""What must hold of acknowledged rows. Pure.

Lost        each row that was acknowledged under synchronous_commit = on, to a client or to a probe, is on the primary
Two servers no commit that began after a server of a newer timeline had acknowledged one is acknowledged by another
            server on an older timeline. (One that began before may be acknowledged late: its reply was on its way.)
"""

from collections.abc import Collection, Iterable, Sequence

from walproxy.lab.failover.rows import Attempt

_SHOWN = 5


def find_lost(acknowledged: Iterable[Attempt], there: Collection[int]) -> list[str]:
    """Return the violation that acknowledged rows are not on a server; none if all are.

    Args:
        there: the ids of the rows on the server.
    """
    lost = [attempt for attempt in acknowledged if attempt.transaction.id not in there]
    if not lost:
        return []
    return [f"{len(lost)} acknowledged rows are missing: {named_rows(lost)}"]


def find_two_servers(attempts: Iterable[Attempt]) -> list[str]:
    """Return the violations that a server acknowledged a commit after a newer one had.

    Args:
        attempts: of clients and probes, whatever became of them, in any order.
    """
    acknowledged = [attempt for attempt in attempts if attempt.outcome == "ok"]
    first: dict[int, Attempt] = {}  # by timeline, the first that ended
    for attempt in sorted(acknowledged, key=lambda attempt: attempt.ended_at):
        first.setdefault(attempt.transaction.tli, attempt)
    violations = []
    for tli in sorted(first):
        newer = [first[other] for other in first if other > tli]
        if not newer:
            continue
        limit = min(newer, key=lambda attempt: attempt.ended_at)
        late = [a for a in acknowledged if a.transaction.tli == tli and a.begun_at > limit.ended_at]
        if late:
            violations.append(
                f"timeline {tli} acknowledged {len(late)} commits that began after timeline {limit.transaction.tli} "
                f"had acknowledged one on {limit.transaction.server}: {named_rows(late)}"
            )
    return violations


def find_two_writers_of_a_timeline(attempts: Iterable[Attempt]) -> list[str]:
    """Return the violations that two servers have acknowledged commits on one timeline."""
    servers: dict[int, set[str]] = {}
    for attempt in attempts:
        if attempt.outcome == "ok":
            servers.setdefault(attempt.transaction.tli, set()).add(attempt.transaction.server)
    return [
        f"{' and '.join(sorted(names))} have both acknowledged commits on timeline {tli}"
        for tli, names in sorted(servers.items())
        if len(names) > 1
    ]


def named_rows(attempts: Sequence[Attempt]) -> str:
    """Return the first few rows in words."""
    shown = ", ".join(
        f"row {a.transaction.id} ({a.transaction.writer} at {a.transaction.server}, timeline {a.transaction.tli}, xid "
        f"{a.transaction.xid})"
        for a in attempts[:_SHOWN]
    )
    return shown + (", ..." if len(attempts) > _SHOWN else "")
