"""What `walproxy pipeline waldump` is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass

from safekeeper.base.lsn import Lsn


@dataclass(frozen=True)
class Wanted:
    """What is printed, and how: the options of the command, by the names of its parameters."""

    start: Lsn | None
    end: Lsn | None
    timeline: int | None
    rmgr: tuple[str, ...]
    xid: int | None
    relation: tuple[int, int, int] | None
    block: int | None
    fork: str | None
    fullpage: bool
    limit: int | None
    stats: str | None
    follow: bool
    as_json: bool
    allow_gaps: bool
    archive_options: Mapping[str, str]
