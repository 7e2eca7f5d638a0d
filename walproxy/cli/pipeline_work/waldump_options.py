"""The options of `walproxy pipeline waldump`."""

from collections.abc import Mapping
from dataclasses import dataclass

from safekeeper.base.lsn import Lsn


@dataclass(frozen=True)
class Wanted:
    """The selected records and the output format, by the names of the command's parameters."""

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
