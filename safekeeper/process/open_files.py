"""The limit of open files of this process: raised to its maximum and divided among the listeners."""

import logging
import resource
from collections.abc import Mapping

from safekeeper.net.admission import RESERVED_FILES, Budget, Wish, least_limit, share_descriptors

_log = logging.getLogger(__name__)


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard limit; return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # E.g. a kernel with a lower maximum than the hard limit.
            _log.warning("could not raise the limit of open files from %d to %d: %s", soft, hard, error)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def listener_budgets(wishes: Mapping[str, Wish]) -> dict[str, Budget]:
    """Raise the limit of open files and return the budget of each listener; warn if a budget is less than requested."""
    limit = raise_open_files_limit()
    budgets = share_descriptors(limit, wishes)
    if any(budgets[name] != wish.budget for name, wish in wishes.items()):
        wanted = RESERVED_FILES + sum(wish.descriptors for wish in wishes.values())
        reduced = ", ".join(
            f"{name} {budget.proven_max} + {budget.unproven_max} not authenticated" for name, budget in budgets.items()
        )
        _log.warning(
            "the limit of open files, %d, is below the %d that all connections can use: accepting at most %s; "
            "raise it (ulimit -n, LimitNOFILE)",
            limit,
            wanted,
            reduced,
        )
    if limit < least_limit(wishes):
        _log.warning(
            "the limit of open files, %d, is below %d: nothing is reserved for WAL files; raise it (ulimit -n, "
            "LimitNOFILE)",
            limit,
            least_limit(wishes),
        )
    return budgets
