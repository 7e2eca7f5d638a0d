"""After a run: every safekeeper holds what was committed, byte for byte as the primary has it."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.lab.testing import WalproxyCluster
from walproxy.lab.torture.record import Violation
from walproxy.lab.wal_compare import WalDiffers, compare_wal

BYTES_DIFFER: Final = "BytesDiffer"
LEFT_BEHIND: Final = "LeftBehind"

CATCHES_UP_WITHIN_S: Final = 90.0
_POLL_S: Final = 0.05


def check_safekeepers(
    cluster: WalproxyCluster, safekeepers: Sequence[str], end_lsn: Lsn, segment_size: int
) -> list[Violation]:
    """Compare what every safekeeper has below `end_lsn` with the primary's pg_wal; `end_lsn` is flushed there."""
    violations = []
    primary_wal: Path | None = None
    for name in safekeepers:
        reached_lsn = wait_until_reached(partial(_committed_lsn, cluster, name), end_lsn)
        if reached_lsn < end_lsn:
            violations.append(
                Violation(
                    LEFT_BEHIND,
                    f"{name} has committed WAL up to {format_lsn(reached_lsn)}, not to {format_lsn(end_lsn)}, "
                    f"{CATCHES_UP_WITHIN_S:g} s after the end",
                )
            )
            continue
        primary_wal = primary_wal or cluster.data_folder("postgres") / "pg_wal"
        try:
            compare_wal(cluster.data_folder(name) / "wal", [primary_wal], segment_size, end_lsn)
        except WalDiffers as error:
            violations.append(Violation(BYTES_DIFFER, f"{name}: {error}"))
    return violations


def wait_until_reached(position: Callable[[], Lsn], end_lsn: Lsn) -> Lsn:
    """Wait until `position()` is at `end_lsn` or beyond, or until a timeout; return it."""
    deadline = time.monotonic() + CATCHES_UP_WITHIN_S
    while (lsn := position()) < end_lsn and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return lsn


def _committed_lsn(cluster: WalproxyCluster, safekeeper: str) -> Lsn:
    """Return up to where a safekeeper has WAL on disk below its commit_lsn, 0 if it does not answer."""
    status = cluster.status_of(safekeeper)
    return min(parse_lsn(status["flush_lsn"]), parse_lsn(status["commit_lsn"])) if status is not None else 0
