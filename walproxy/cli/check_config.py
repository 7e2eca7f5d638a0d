"""The limits of `walproxy check`: keys of [check] in the cluster's file."""

from dataclasses import dataclass
from typing import Any, Final

from safekeeper.base.cluster_file import Role
from safekeeper.base.settings import key, optional, positive_integer, positive_size, seconds


def waiting_time(written: Any) -> float:
    """Parse a time in seconds from 0 on."""
    return 0.0 if str(written).strip() == "0" else seconds(written)


@dataclass(frozen=True)
class CheckConfig:
    """From which value on the state is WARNING or CRITICAL; never if None."""

    wait_warning: float = key(
        "WARNING if commits have waited for this number of seconds", parse=waiting_time, default="0", metavar="SECONDS"
    )
    wait_critical: float = key("CRITICAL for the same", parse=waiting_time, default="10", metavar="SECONDS")
    missing_warning: int = key(
        "WARNING if this number of members do not stream", parse=positive_integer, default="1", metavar="COUNT"
    )
    missing_critical: int | None = key(
        "CRITICAL for the same; never by default", parse=optional(positive_integer), default=None, metavar="COUNT"
    )
    lag_warning: int = key(
        "WARNING if a streaming safekeeper lacks this amount of WAL",
        parse=positive_size,
        default="64MiB",
        metavar="SIZE",
    )
    lag_critical: int | None = key(
        "CRITICAL for the same; never by default", parse=optional(positive_size), default=None, metavar="SIZE"
    )
    archive_lag_warning: int = key(
        "WARNING if this amount of committed WAL is not archived", parse=positive_size, default="1GiB", metavar="SIZE"
    )
    archive_lag_critical: int | None = key(
        "CRITICAL for the same; never by default", parse=optional(positive_size), default=None, metavar="SIZE"
    )


CHECK: Final = Role("check", CheckConfig)
