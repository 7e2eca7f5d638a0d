"""The event of a commit that has waited for longer than its timeout."""

import logging
from collections.abc import Iterable

from safekeeper.base.logs import log_event
from safekeeper.base.lsn import Lsn, format_lsn


def record_commit_timeout(
    logger: logging.Logger, *, xid: int, end_lsn: Lsn, waits_s: float, action: str, missing: Iterable[int]
) -> None:
    """Log and record that a commit has waited for too long.

    Args:
        logger: of the module that watches commits.
        xid: the transaction.
        end_lsn: the end of its commit record.
        waits_s: for how long it has waited.
        action: what is done about it, e.g. `warn` or `terminate`.
        missing: the safekeepers that have not acknowledged it.
    """
    ids = ", ".join(str(each) for each in sorted(missing))
    fields = {
        "xid": xid,
        "end_lsn": format_lsn(end_lsn),
        "waits_s": round(waits_s, 3),
        "action": action,
        "missing": ids,
    }
    log_event(
        logger,
        "commit-timeout",
        fields,
        "the commit of transaction %d at %s has waited for %.1f s, action: %s; not acknowledged by safekeepers: %s",
        xid,
        format_lsn(end_lsn),
        waits_s,
        action,
        ids or "none",
    )
